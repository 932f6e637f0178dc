// Source and translation: what the token under the pointer, or with the focus, looks at.

const ENDS = {
  cross: ["target", "source"],
  encoder: ["source", "source"],
  decoder: ["target", "target"],
};

function tokensView(model) {
  const state = { kind: "cross", layer: "all", head: "all", how: "mean", unit: "words" };
  let chosen = null, hovered = null, weights = null; // a token is [side, place]; the start is -1
  const chips = {}, drawing = svg("svg", { "aria-hidden": "true" });
  const told = el("p.told", { role: "status" }), detail = el("div.detail");
  const line = (side, label) => el(`div.tokens.${side}`,
    { role: "listbox", "aria-orientation": "horizontal", "aria-label": label,
      dir: direction(model[side].text) });
  const lines = { source: line("source", "Source"), target: line("target", "Translation") };
  const given = model.target.given ? "Translation (given)" : "Translation";
  const stage = el("div.stage", drawing, el("p.side", "Source"), lines.source, el("div.space"),
    el("p.side", given), lines.target);

  const set = (changes, then) => (Object.assign(state, changes), then());
  const layers = el("span"), heads = el("span");
  const kinds = choice("Attention", Object.entries(KINDS),
    (kind) => set({ kind, layer: "all", head: "all" }, setUp));
  const how = choice("Over several", [["mean", "mean"], ["maximum", "maximum"]],
    (how) => set({ how }, update));
  const units = choice("Show", [["words", "words"], ["pieces", "pieces"]], (unit) => {
    chosen = hovered = null;
    set({ unit }, setUp);
  });
  const controls = el("div.controls", kinds.box, layers, heads, how.box, units.box);

  const words = () => state.unit === "words";
  const labels = (side) => model[side][words() ? "words" : "pieces"];
  const unitOf = (side) => (words() ? model[side].word_of : range(model[side].pieces.length));
  /** The chip of a place; those of the translation begin with the start token. */
  const chipAt = (side, place) => chips[side][side === "target" ? place + 1 : place];
  const queryChip = (row) => chipAt(weights.from, row);
  /** The decoder's first key is the start token. */
  const keyChip = (column) => chipAt(weights.to, state.kind === "decoder" ? column - 1 : column);

  function setUp() {
    const attention = model.attention[state.kind];
    stage.dataset.kind = kinds.select.value = state.kind;
    for (const [field, host] of [["layer", layers], ["head", heads]]) {
      const each = range(attention[`${field}s`]).map((i) => [i, `${field} ${i + 1}`]);
      const options = [["all", `all ${field}s`], ...each];
      const { box, select } = choice(capital(field), options, (x) => set({ [field]: x }, update));
      select.value = state[field];
      host.replaceChildren(box);
    }
    for (const side of ["source", "target"]) {
      const named = labels(side), first = side === "target" ? -1 : 0;
      chips[side] = (first ? [model.target.start, ...named] : named).map((text, i) => {
        const place = i + first, special = place < 0 || text === "</s>";
        return el(special ? "span.token.special" : "span.token", {
          role: "option", dir: "auto", lang: special ? null : model[side].lang,
          "aria-label": place < 0 ? `start: ${text}` : `${text}, ${place + 1} of ${named.length}`,
          onpointerenter: () => point([side, place]),
          onfocus: () => point(null, [side, place]),
          onclick: (event) => event.currentTarget.focus(),
        }, text);
      });
      lines[side].replaceChildren(...chips[side]);
      lines[side].classList.toggle("long", named.length > 150);
    }
    const across = (other) => (key, at) => key === "ArrowUp" || key === "ArrowDown"
      ? chips[other][Math.min(at, chips[other].length - 1)] : null;
    roving(chips.source, 0, across("target"));
    roving(chips.target, 0, across("source"));
    update();
  }
  function point(at, focused = chosen) {
    [hovered, chosen] = [at, focused];
    mark();
  }
  stage.addEventListener("pointerleave", () => point(null));
  stage.addEventListener("keydown", (event) => event.key === "Escape" && point(null, null));

  function update() {
    const [from, to] = ENDS[state.kind], rowOf = unitOf(from);
    let columnOf = unitOf(to);
    // The decoder reads the start token and all but the last: keys stand one place later.
    if (state.kind === "decoder") columnOf = [0, ...columnOf.slice(0, -1).map((key) => key + 1)];
    const fold = (raw) => ofWords(raw, rowOf, columnOf);
    weights = Object.assign(model.attention[state.kind].over(state.layer, state.head, state.how, fold),
      { from, to, rows: rowOf.at(-1) + 1, columns: columnOf.at(-1) + 1 });
    mark();
  }

  function mark() {
    const active = hovered ?? chosen, { from, to, rows, columns } = weights;
    const found = []; // [weight, row, column]
    const add = (row, column) => found.push([weights[row * columns + column], row, column]);
    let scale = 0.7;
    for (const chip of [...chips.source, ...chips.target]) {
      chip.style.setProperty("--w", 0);
      chip.classList.remove("active");
      chip.setAttribute("aria-selected", "false");
    }
    const asks = active && active[0] === from, place = active?.[1];
    if (active) {
      const chip = chipAt(...active);
      chip.classList.add("active");
      chip.setAttribute("aria-selected", "true");
      if (asks && place >= 0) for (const column of range(columns)) add(place, column);
      else if (!asks && from !== to) for (const row of range(rows)) add(row, place);
      // What is spread thin would not be seen: the strongest has a quarter of full strength at
      // least, before all are drawn in proportion to it.
      scale = 1 / Math.max(0.25, ...found.map(([w]) => w));
      for (const [w, row, column] of found) {
        (asks ? keyChip(column) : queryChip(row)).style.setProperty("--w", w * scale);
      }
    } else if (rows * columns <= 10000) {
      for (const row of range(rows)) for (const column of range(columns)) add(row, column);
    }
    const least = active ? 0.004 : 0.03;
    connect(found.filter(([w]) => w * scale > least), scale);
    describe(active, asks, found);
  }

  function connect(found, scale) {
    const origin = stage.getBoundingClientRect(), known = new Map();
    const same = weights.from === weights.to;
    const box = (node) =>
      known.get(node) ?? known.set(node, node.getBoundingClientRect()).get(node);
    const seen = (chip) => {
      const [a, b] = [box(chip), box(chip.parentElement)];
      return a.bottom > b.top && a.top < b.bottom;
    };
    drawing.replaceChildren(...found.flatMap(([w, row, column]) => {
      const query = queryChip(row), key = keyChip(column), a = box(query), b = box(key);
      if (query === key || !seen(query) || !seen(key)) return [];
      const [x1, x2] = [a, b].map((each) => each.left + each.width / 2 - origin.left);
      const y1 = a.top - origin.top, y2 = (same ? b.top : b.bottom) - origin.top;
      const lift = same ? Math.min(62, 14 + Math.abs(x1 - x2) * 0.16) : (y1 - y2) / 2;
      const end = same ? y2 - lift : y2 + lift;
      const d = `M${x1} ${y1} C${x1} ${y1 - lift} ${x2} ${end} ${x2} ${y2}`;
      return [svg("path", { d, "stroke-opacity": (w * scale).toFixed(3) })];
    }));
  }

  function describe(active, asks, found) {
    const { pieces, log_probs, likeliest, lang } = model.target;
    if (!active) {
      told.textContent = "Point at a token, or reach it with Tab and the arrow keys.";
      const least = range(pieces.length).sort((a, b) => log_probs[a] - log_probs[b]).slice(0, 6);
      const unsure = bars(least.map((i) => [pieces[i], Math.exp(log_probs[i])]), lang);
      detail.replaceChildren(el("div", el("h3", "Where the model was least sure"), unsure));
      return;
    }
    detail.replaceChildren();
    const [side, place] = active, { from, to } = weights;
    const name = quoted(chipAt(side, place).textContent);
    const other = ([, row, column]) => (asks ? keyChip(column) : queryChip(row)).textContent;
    const best = found.sort((a, b) => b[0] - a[0]).slice(0, 6).filter(([w]) => w > 0.0005);
    const kind = KINDS[state.kind];
    if (found.length && !best.length) told.textContent = `No token looks at ${name}.`;
    else if (found.length) {
      const three = best.slice(0, 3).map((each) => `${quoted(other(each))} ${number(each[0], 2)}`);
      const does = asks ? "looks at" : "is looked at by";
      const writes = asks && side === "target";
      told.textContent = writes ? `To write ${name} the model looked at ${three.join(", ")}.`
        : `${name} ${does} ${three.join(", ")}.`;
      const which = ["layer", "head"].map((field) =>
        state[field] === "all" ? `all ${field}s` : `${field} ${Number(state[field]) + 1}`);
      const shares = bars(best.map((each) => [other(each), each[0]]), model[asks ? to : from].lang);
      detail.append(el("div", el("h3", [kind, ...which].join(", ")), shares));
    } else told.textContent = `${name} is not a query in ${kind.toLowerCase()}.`;
    if (side !== "target" || place < 0) return;
    const own = range(pieces.length).filter((i) => unitOf("target")[i] === place);
    for (const i of own.slice(0, 4)) {
      const had = `${quoted(pieces[i])} had ${percent(Math.exp(log_probs[i]))}; likeliest here`;
      const found = likeliestBars(likeliest[i].slice(0, 6), lang, pieces[i]);
      detail.append(el("div", el("h3", had), found));
    }
  }

  new ResizeObserver(() => mark()).observe(stage);
  for (const side of Object.values(lines)) side.addEventListener("scroll", () => mark());
  const note = "Lines run from a query to the tokens that it looks at; a stronger line is more " +
    "attention. Each token of the translation is shown with what the model looked at to write " +
    "it.";
  const view = section("Who looks at whom", note, controls, stage, told, detail);
  setUp();
  const select = (kind, layer, head) => {
    set({ kind, layer: String(layer), head: String(head) }, setUp);
    view.scrollIntoView({ block: "start" });
    kinds.select.focus({ preventScroll: true });
  };
  return { view, select };
}
