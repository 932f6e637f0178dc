// All heads of all layers: as small maps, which open, and in numbers.

/** The labels along the queries and the keys of a kind: those of pictures/attention.py. */
function axes(model, kind) {
  const { source, target } = model, read = [target.start, ...target.pieces.slice(0, -1)];
  const decoder = kind === "decoder" ? [read, read] : [target.pieces, source.pieces];
  return kind === "encoder" ? [source.pieces, source.pieces] : decoder;
}

function headsView(model, showInText) {
  const status = el("p.readout", "Open a map with a click or Enter."); // each map has it as label
  const figures = Object.entries(KINDS).map(([kind, name]) => {
    const attention = model.attention[kind], { entropy, distance, diagonal } = attention.statistics;
    const grid = el("div.heads", { role: "group", "aria-label": `${name}: maps of all heads` });
    grid.style.gridTemplateColumns = `1.6rem repeat(${attention.heads}, minmax(0, 6.5rem))`;
    grid.append(el("span"), ...range(attention.heads).map((h) => el("span.across", h + 1)));
    for (const layer of range(attention.layers)) {
      grid.append(el("span.down", `L${layer + 1}`), ...range(attention.heads).map((head) => {
        const [bits, away] = [entropy, distance].map((each) => number(each[layer][head], 2));
        const label = `${name}, layer ${layer + 1}, head ${head + 1}: entropy ${bits} bits, ` +
          `mean distance ${away}, diagonal ${percent(diagonal[layer][head])}`;
        const canvas = el("canvas", { "aria-hidden": "true" });
        const paint = () => {
          const w = attention.head(layer, head);
          pixels(canvas, attention.rows, attention.columns, "weight", (i) => w[i]);
        };
        paint();
        repaint.add(paint);
        const tell = () => { status.textContent = label; };
        const onclick = () => openHead(model, kind, layer, head, showInText);
        const reacts = { onclick, onpointerenter: tell, onfocus: tell };
        return el("button.head", { type: "button", "aria-label": label, ...reacts }, canvas);
      }));
    }
    roving([...grid.querySelectorAll("button")], attention.heads);
    return el("div", el("h3", name), grid);
  });
  const note = "Rows are layers, columns are heads; inside a map, rows are queries and columns " +
    "are keys. Colour grows with the square root of the weight.";
  return section("All heads", note, el("div.grids", ...figures), status);
}

const dialog = document.getElementById("matrix");
let shown = null; // the arguments of openHead
repaint.add(() => dialog.open && openHead(...shown));
function openHead(model, kind, layer, head, showInText) {
  shown = [model, kind, layer, head, showInText];
  const attention = model.attention[kind], [rows, columns] = axes(model, kind);
  const weights = attention.head(layer, head), n = attention.layers * attention.heads;
  const title = `${KINDS[kind]}, layer ${layer + 1}, head ${head + 1}`;
  const step = (by) => {
    const to = (layer * attention.heads + head + by + n) % n;
    const place = [Math.floor(to / attention.heads), to % attention.heads];
    openHead(model, kind, ...place, showInText);
  };
  const close = () => dialog.close();
  const buttons = [
    button("Previous", () => step(-1), { "aria-describedby": "matrix-title" }),
    button("Next", () => step(1), { "aria-describedby": "matrix-title" }),
    button("Show in the text", () => (close(), showInText(kind, layer, head))),
    button("Close", close),
  ];
  const width = Math.min(innerWidth * 0.96 - 60, 1100);
  const names = [attention.query_name, attention.key_name];
  const value = (i, j) => weights[i * columns.length + j];
  const pressed = document.activeElement?.textContent; // Next, perhaps to be pressed again
  dialog.replaceChildren(el("h2", { id: "matrix-title" }, title), el("div.controls", ...buttons),
    matrix({ title, rows, columns, value, scale: "weight", names, width }));
  if (!dialog.open) dialog.showModal();
  (buttons.find((each) => each.textContent === pressed) ?? dialog.querySelector("canvas")).focus();
}

function numbersView(model) {
  const rows = Object.keys(KINDS).flatMap((kind) => {
    const { layers, heads, statistics } = model.attention[kind];
    const { entropy, distance, diagonal } = statistics;
    return range(layers * heads).map((i) => {
      const [l, h] = [Math.floor(i / heads), i % heads];
      return [KINDS[kind], l + 1, h + 1, entropy[l][h], distance[l][h], diagonal[l][h]];
    });
  });
  const heads = ["attention", "layer", "head", "entropy (bits)", "mean distance", "diagonal"];
  const classes = ["name", ...range(5).map(() => "number")];
  const label = "Statistics of every head";
  const box = el("div.table.tall", { tabindex: 0, role: "region", "aria-label": label });
  const sorted = { by: null, down: false };
  function draw() {
    const { by, down } = sorted, order = [...rows];
    if (by !== null) order.sort((a, b) => (down ? -1 : 1) * (a[by] > b[by] ? 1 : -(a[by] < b[by])));
    const shown = order.map((row) => ({
      cells: row.map((x, i) => (i < 3 ? x : i === 5 ? percent(x) : number(x, 2))),
    }));
    const buttons = heads.map((head, i) => el("button", { type: "button", onclick: () => {
      Object.assign(sorted, { by: i, down: by === i && !down });
      draw();
      box.querySelectorAll("th button")[i].focus();
    } }, head + (by === i ? (down ? " \u2193" : " \u2191") : "")));
    box.replaceChildren(table(buttons, classes, shown));
    if (by !== null) {
      const sort = down ? "descending" : "ascending";
      box.querySelectorAll("th")[by].setAttribute("aria-sort", sort);
    }
  }
  draw();
  const note = "Means over the queries. Entropy: 0 bits where a query looks at only one key. " +
    "Distance: from the query's own place; in cross-attention, from the diagonal. Diagonal: the " +
    "share of attention within half a token of that place.";
  return section("The heads in numbers", note, box);
}
