// What the position scheme does at the sentence's own lengths.

const FORMS = {
  table: "added to the embeddings",
  rotation: "rotation of queries and keys",
  bias: "added to the logits",
};

const largest = (values) =>
  values.reduce((most, x) => (Math.abs(x) > most ? Math.abs(x) : most), 1e-9);

const DRAWN = {
  table({ values, labels, width }) {
    const columns = range(values.shape[1]).map(String);
    const unit = largest(Array.from(values.codes, (code) => values.value(code)));
    return matrix({
      title: "Vectors of the positions", rows: labels, columns, width, unit, scale: "signed",
      value: (i, j) => values.at(i, j), square: false, names: ["position", "dimension"],
      say: (i, j, x) => `position ${isolated(labels[i])}, dimension ${j}: ${number(x)}`,
    });
  },

  rotation({ part, values, labels, layer, head, width }) {
    const factors = part.factors && new Packed(part.factors);
    const say = (i, j, angle) => {
      const turned = `turned by ${number(angle)} rad (${number((angle * 180) / Math.PI, 0)}\u00b0)`;
      const stretched = factors ? `, queries stretched by ${number(factors.at(layer, head, i, j))}` : "";
      return `position ${isolated(labels[i])}, pair ${j}: ${turned}${stretched}`;
    };
    return matrix({
      title: "Angles", rows: labels, columns: range(values.shape[3]).map(String), width, say,
      value: (i, j) => values.at(layer, head, i, j), scale: "angle", square: false,
      names: ["position", "pair of dimensions, from fast to slow"],
    });
  },

  /** The bias, and logits with it and without it, these less the mean of their row. */
  bias({ model, part, values, labels, layer, head, width }) {
    const { logits, columns: n } = model.attention[part.stack];
    const own = Math.min(layer, values.shape[0] - 1); // all layers may share one
    const grid = (value) => Float64Array.from({ length: n * n }, (_, at) =>
      value(Math.floor(at / n), at % n));
    const bias = grid((i, j) => values.at(own, head, i, j));
    const centred = (whole) => {
      const rows = range(n).map((i) => range(n).filter((j) => !Number.isNaN(whole[i * n + j])));
      const means = rows.map((there, i) =>
        there.reduce((sum, j) => sum + whole[i * n + j], 0) / there.length);
      return whole.map((x, at) => x - means[Math.floor(at / n)]);
    };
    const all = grid((i, j) => logits.at(layer, head, i, j) + 0 * bias[i * n + j]);
    const logitsWith = centred(all), without = centred(all.map((x, at) => x - bias[at]));
    const lacks = (i, j) =>
      Number.isNaN(bias[i * n + j]) ? "hidden by the mask" : "its weight is 0 in float32";
    const one = (title, cells, unit) => el("div", el("p.side", title), matrix({
      title, rows: labels, columns: labels, value: (i, j) => cells[i * n + j], scale: "signed",
      unit, lacks, names: ["query", "key"],
      width: width < 750 ? Math.min(width, 360) : width / 3 - 20,
    }));
    const unit = largest(logitsWith);
    return el("div.row.three", one("the bias itself", bias, largest(bias)),
      one("logits with the bias, less the mean of the row", logitsWith, unit),
      one("logits without it, less the mean of the row", without, unit));
  },
};

function positionsView(model) {
  const { note, parts } = model.position;
  const boxes = parts.map((part) => {
    const { form, stack } = part, values = new Packed(part.values), host = el("div");
    const state = { layer: 0, head: 0 };
    const labels = axes(model, stack)[0].map((text, i) => `${part.at[i]} ${text}`);
    const draw = () => host.replaceChildren(DRAWN[form](
      { model, part, values, labels, ...state, width: Math.max(280, host.clientWidth || 600) }));
    const [own, heads] = form === "table" ? [1, 1] : values.shape;
    const layers = form === "bias" ? model.attention[stack].layers : own;
    const choices = [["layer", layers], ["head", heads]].filter(([, many]) => many > 1);
    const controls = choices.map(([field, many]) => {
      const options = range(many).map((i) => [i, `${field} ${i + 1}`]);
      return choice(capital(field), options, (value) => {
        state[field] = Number(value);
        draw();
      }).box;
    });
    const title = `${capital(stack)}: ${FORMS[form]}`;
    const box = el(`div.${form}`, el("h3", title), el("div.controls", ...controls), host);
    let width = 0;
    new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width !== width) draw();
      width = contentRect.width;
    }).observe(box);
    repaint.add(draw);
    return box;
  });
  const colours = boxes.length ? " Blue is above 0 and orange below; for angles, blue is " +
    "a quarter turn and orange three quarters." : "";
  return section("Positions", note + colours, el("div.parts", ...boxes));
}
