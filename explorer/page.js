"use strict";
// The page is made of the traces in #data. All text reaches it as text nodes, never as markup.

// ---------------------------------------------------------------------------------- small tools

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}
const el = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const range = (n) => Array.from({ length: n }, (_, i) => i);
const number = (x, digits = 3) =>
  x === null || Number.isNaN(x) ? "–" : x.toFixed(digits).replace("-", "\u2212");
const percent = (p) => (p >= 0.0995 ? (100 * p).toFixed(0) : (100 * p).toPrecision(2)) + " %";
/** Text that runs in its own direction, whatever stands around it. */
const isolated = (text) => `\u2068${text}\u2069`;
const quoted = (text) => `\u201c${isolated(text)}\u201d`;
const direction = (text) => (/^\P{L}*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/u.test(text) ? "rtl" : "ltr");
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
/** The end of a long text. */
const ending = (text) => (text.length > 44 ? "\u2026" + text.slice(-43) : text);
const plain = (piece) => piece.replaceAll("\u2581", " ");
let made = 0;
const newId = () => `e${++made}`;

function choice(label, options, onchange) {
  const select = el("select", { onchange: () => onchange(select.value) },
    ...options.map(([value, text]) => el("option", { value }, text)));
  return { box: el("label", {}, label, select), select };
}

/** Of items in a row one can be reached by Tab; arrow keys go to the others. step: of up and down. */
function roving(items, step, also = () => null) {
  items.forEach((item, at) => {
    item.tabIndex = at ? -1 : 0;
    item.addEventListener("focus", () => items.forEach((other) => (other.tabIndex = other === item ? 0 : -1)));
    item.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: items.length - 1 };
      if (step) Object.assign(moves, { ArrowUp: at - step, ArrowDown: at + step });
      const to = event.key in moves ? items[moves[event.key]] : also(event.key, at);
      if (!to) return;
      event.preventDefault();
      to.focus();
    });
  });
}

// --------------------------------------------------------------------------------------- arrays

/** What packed.py wrote: at(i, j, ...) is a number, or NaN. */
class Packed {
  constructor({ shape, lo, step, codes }) {
    const bytes = Uint8Array.from(atob(codes), (char) => char.charCodeAt(0));
    Object.assign(this, { shape, lo, step, codes: new Uint16Array(bytes.buffer) });
  }
  value(code) { return code === 65535 ? NaN : this.lo + this.step * code; }
  at(...place) { return this.value(this.codes[place.reduce((sum, x, axis) => sum * this.shape[axis] + x, 0)]); }
}

/** Attention weights [L,H,Tq,Tk] of one kind. */
class Attention {
  constructor(kind, trace) {
    Object.assign(this, trace, { kind });
    this.logits = new Packed(trace.log_weights);
    [this.layers, this.heads, this.rows, this.columns] = this.logits.shape;
    this.weight = Float32Array.from({ length: 65536 }, (_, code) => Math.exp(this.logits.value(code)) || 0);
  }
  head(layer, head) {
    const size = this.rows * this.columns, start = (layer * this.heads + head) * size;
    return Float32Array.from(this.logits.codes.subarray(start, start + size), (code) => this.weight[code]);
  }
  /** One head, or the mean or the maximum over all of a layer or of all layers ("all"). */
  over(layer, head, how) {
    const layers = layer === "all" ? range(this.layers) : [Number(layer)];
    const heads = head === "all" ? range(this.heads) : [Number(head)];
    const total = new Float32Array(this.rows * this.columns), n = layers.length * heads.length;
    for (const l of layers) for (const h of heads) {
      this.head(l, h).forEach((w, i) => (total[i] = how === "maximum" ? Math.max(total[i], w) : total[i] + w / n));
    }
    return total;
  }
}

/** Weights of pieces -> of words: the sum over a word's keys, the mean over its queries. */
function ofWords(weights, rowOf, columnOf) {
  const rows = rowOf.at(-1) + 1, columns = columnOf.at(-1) + 1, sizes = new Float32Array(rows);
  rowOf.forEach((row) => sizes[row]++);
  const total = new Float32Array(rows * columns);
  weights.forEach((w, i) => {
    const row = rowOf[Math.floor(i / columnOf.length)];
    total[row * columns + columnOf[i % columnOf.length]] += w / sizes[row];
  });
  return total;
}

// -------------------------------------------------------------------------------------- colours

const dark = matchMedia("(prefers-color-scheme: dark)");
let ramps = null;
dark.addEventListener("change", () => { ramps = null; repaint.forEach((paint) => paint()); });
const repaint = new Set();

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function ramp(...names) {
  const stops = names.map((name) => [1, 3, 5].map((i) => parseInt(css(name).slice(i, i + 2), 16)));
  return range(256).map((i) => {
    const at = (i / 255) * (stops.length - 1), k = Math.min(Math.floor(at), stops.length - 2);
    return stops[k].map((c, j) => Math.round(c + (at - k) * (stops[k + 1][j] - c)));
  });
}
/** A number's colour: a weight in 0..1 (by its square root), a sign in -1..1, or an angle. */
function colour(scale, x) {
  ramps ??= {
    weight: ramp("--heat-0", "--heat-1", "--heat-2"),
    signed: ramp("--negative", "--middle", "--positive"),
    angle: ramp("--middle", "--positive", "--heat-2", "--negative", "--middle"),
    none: ramp("--void", "--void")[0],
  };
  if (Number.isNaN(x)) return ramps.none;
  const place = { weight: Math.sqrt(x), signed: (x + 1) / 2, angle: x / (2 * Math.PI) + (x < 0 ? 1 : 0) }[scale];
  return ramps[scale][clamp(Math.round(255 * place), 0, 255)];
}
/** One pixel for each cell. */
function pixels(canvas, rows, columns, scale, value) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) image.data.set([...colour(scale, value(i)), 255], 4 * i);
  context.putImageData(image, 0, 0);
  return canvas;
}

/**
 * A labelled matrix: the number of a cell on hover, or under the cursor that arrow keys move.
 * value(row, column); scale as in `colour`, with `unit` the value that has the full colour.
 */
function matrix({ title, rows, columns, value, scale, unit = 1, digits = 3, square = true, width = 900, rowName, columnName, say }) {
  const canvas = el("canvas", { tabindex: 0, role: "img" });
  const readout = el("p", { class: "readout", role: "status" });
  const box = el("div", { class: "matrix" }, el("div", { class: "scroll" }, canvas), readout);
  const font = (size) => `${size}px system-ui, sans-serif`;
  const cells = pixels(document.createElement("canvas"), rows.length, columns.length, scale,
    (i) => value(Math.floor(i / columns.length), i % columns.length) / unit);
  canvas.setAttribute("aria-label", `${title}: ${rows.length} rows (${rowName}), ${columns.length} columns (${columnName}). Arrow keys read cells.`);
  let cursor = null, place = null;
  const drawn = el("canvas").getContext("2d");
  drawn.font = font(11);
  const shown = (text) => (text.length > 16 ? text.slice(0, 15) + "\u2026" : text);
  const room = (labels) => Math.ceil(Math.max(...labels.map((text) => drawn.measureText(shown(text)).width))) + 8;

  function draw() {
    const left = room(rows), top = room(columns);
    let cw = clamp(Math.floor((width - left) / columns.length), 3, square ? 26 : 44), ch = clamp(Math.floor(620 / rows.length), 3, 26);
    if (square) cw = ch = Math.min(cw, Math.max(ch, 9));
    place = { left, top, cw, ch };
    const [w, h] = [left + cw * columns.length + 1, top + ch * rows.length + 1], ratio = devicePixelRatio || 1;
    canvas.width = w * ratio;
    canvas.height = h * ratio;
    canvas.style.width = `${w}px`;
    canvas.style.height = `${h}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    context.drawImage(cells, left, top, cw * columns.length, ch * rows.length);
    context.fillStyle = css("--ink");
    context.font = font(11);
    context.textBaseline = "middle";
    context.textAlign = "right";
    const every = (size) => Math.ceil(11 / size);
    rows.forEach((text, i) => i % every(ch) || context.fillText(shown(text), left - 5, top + (i + 0.5) * ch));
    context.textAlign = "left";
    columns.forEach((text, j) => {
      if (j % every(cw)) return;
      context.save();
      context.translate(left + (j + 0.5) * cw, top - 5);
      context.rotate(-Math.PI / 2);
      context.fillText(shown(text), 0, 0);
      context.restore();
    });
    if (cursor) {
      context.strokeStyle = css("--second");
      context.lineWidth = 2;
      context.strokeRect(left + cursor[1] * cw, top + cursor[0] * ch, cw, ch);
    }
  }
  function go(row, column) {
    cursor = [clamp(row, 0, rows.length - 1), clamp(column, 0, columns.length - 1)];
    [row, column] = cursor;
    const x = value(row, column);
    readout.textContent = say ? say(row, column, x) : `${isolated(rows[row])} \u2192 ${isolated(columns[column])}: ${number(x, digits)}`;
    draw();
  }
  canvas.addEventListener("pointermove", (event) => {
    const { left, top, cw, ch } = place;
    const row = Math.floor((event.offsetY - top) / ch), column = Math.floor((event.offsetX - left) / cw);
    if (row >= 0 && column >= 0 && row < rows.length && column < columns.length) go(row, column);
  });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    if (cursor) go(cursor[0] + move[0], cursor[1] + move[1]);
    else go(0, 0);
  });
  readout.textContent = `${rowName} down, ${columnName} across.`;
  draw();
  return box;
}

// --------------------------------------------------------------------------------- the sections

const KINDS = { cross: "Cross-attention", encoder: "Encoder self-attention", decoder: "Decoder self-attention" };
const STACK = { encoder: "Encoder", decoder: "Decoder" };

function section(title, note, ...children) {
  const id = newId();
  return el("section", { class: "view", "aria-labelledby": id }, el("h2", { id }, title), el("p", { class: "note" }, note), ...children);
}

function bars(entries, chosen = null) {
  return el("ul", { class: "bars" }, ...entries.map(([name, p]) => {
    const filled = el("i");
    filled.style.width = `${100 * p}%`;
    return el("li", { class: name === chosen ? "chosen" : null }, el("span", { class: "name", dir: "auto" }, name),
      el("span", { class: "bar", "aria-hidden": "true" }, filled), el("span", { class: "number" }, percent(p)));
  }));
}

const probabilities = (likeliest) => likeliest.map(([piece, logProb]) => [piece, Math.exp(logProb)]);

/** The labels along the queries and the keys of a kind: those of pictures/attention.py. */
function axes(model, kind) {
  const read = [model.target.start, ...model.target.pieces.slice(0, -1)];
  if (kind === "encoder") return [model.source.pieces, model.source.pieces];
  return kind === "decoder" ? [read, read] : [model.target.pieces, model.source.pieces];
}

/** Source and translation: what the token under the pointer, or with the focus, looks at. */
function tokensView(model) {
  const state = { kind: "cross", layer: "all", head: "all", how: "mean", unit: "words" };
  let chosen = null, hovered = null, chips = {}, weights = null;
  const drawing = svg("svg", { "aria-hidden": "true" });
  const told = el("p", { class: "told", role: "status" }), detail = el("div", { class: "detail" });
  const lines = {
    source: el("div", { class: "tokens source", role: "listbox", "aria-label": "Source", dir: direction(model.source.text) }),
    target: el("div", { class: "tokens target", role: "listbox", "aria-label": "Translation", dir: direction(model.target.text) }),
  };
  const stage = el("div", { class: "stage" }, drawing, el("p", { class: "side" }, "Source"), lines.source, el("div", { class: "space" }), el("p", { class: "side" }, model.target.given ? "Translation (given)" : "Translation"), lines.target);
  const change = (field) => (value) => { state[field] = value; update(); };
  const numbered = (word, n) => [["all", `all ${word}s`], ...range(n).map((i) => [String(i), `${word} ${i + 1}`])];
  const kinds = choice("Attention", Object.entries(KINDS), (kind) => { state.kind = kind; state.layer = state.head = "all"; setUp(); });
  const how = choice("Over several", [["mean", "mean"], ["maximum", "maximum"]], change("how"));
  const units = choice("Show", [["words", "words"], ["pieces", "pieces"]], (unit) => { state.unit = unit; chosen = hovered = null; setUp(); });
  const layers = el("span"), heads = el("span");

  const attention = () => model.attention[state.kind];
  const labels = (side) => (state.unit === "words" ? model[side].words : model[side].pieces);
  const place = (side) => (state.unit === "words" ? model[side].word_of : range(model[side].pieces.length));

  function setUp() {
    stage.dataset.kind = state.kind;
    kinds.select.value = state.kind;
    for (const [field, host, word, n] of [["layer", layers, "layer", attention().layers], ["head", heads, "head", attention().heads]]) {
      const select = choice(word[0].toUpperCase() + word.slice(1), numbered(word, n), change(field));
      select.select.value = state[field];
      host.replaceChildren(select.box);
    }
    for (const side of ["source", "target"]) {
      const named = labels(side), ends = named.length - 1;
      const names = side === "target" ? [model.target.start, ...named] : named;
      chips[side] = names.map((text, i) => {
        const at = side === "target" ? i - 1 : i, last = at === ends && text.startsWith("<");
        return el("span", {
          class: `token${at < 0 || last ? " special" : ""}`, role: "option", "aria-selected": "false", dir: "auto",
          "aria-label": at < 0 ? `start: ${text}` : `${text}, ${at + 1} of ${named.length}`,
          onpointerenter: () => show([side, at]), onfocus: () => { chosen = [side, at]; hovered = null; mark(); },
          onclick: () => chips[side][i].focus(),
        }, text);
      });
      lines[side].replaceChildren(...chips[side]);
      lines[side].classList.toggle("long", names.length > 150);
    }
    const across = (line) => (key, at) => (key === "ArrowUp" || key === "ArrowDown" ? chips[line][Math.min(at, chips[line].length - 1)] : null);
    roving(chips.source, 0, across("target"));
    roving(chips.target, 0, across("source"));
    update();
  }
  function show(what) { hovered = what; mark(); }
  stage.addEventListener("pointerleave", () => show(null));
  stage.addEventListener("keydown", (event) => { if (event.key === "Escape") { chosen = hovered = null; mark(); } });

  function update() {
    const [from, to] = { cross: ["target", "source"], encoder: ["source", "source"], decoder: ["target", "target"] }[state.kind];
    const raw = attention().over(state.layer, state.head, state.how);
    let rowOf = place(from), columnOf = place(to);
    // The decoder reads the start token and all but the last: keys stand one place later.
    if (state.kind === "decoder") columnOf = [0, ...columnOf.slice(0, -1).map((word) => word + 1)];
    weights = ofWords(raw, rowOf, columnOf);
    Object.assign(weights, { from, to, rows: rowOf.at(-1) + 1, columns: columnOf.at(-1) + 1 });
    mark();
  }
  /** Chips on the line of the keys; the translation's begins with the start token. */
  const keyChip = (column) => chips[weights.to][weights.to === "target" && state.kind !== "decoder" ? column + 1 : column];
  const queryChip = (row) => chips[weights.from][weights.from === "target" ? row + 1 : row];

  function mark() {
    const active = hovered ?? chosen, found = [];
    for (const line of Object.values(chips)) for (const chip of line) {
      chip.style.setProperty("--w", 0);
      chip.classList.remove("active");
      chip.setAttribute("aria-selected", "false");
    }
    const { from, to, rows, columns } = weights;
    let scale = 0.7;
    const name = active && (active[1] < 0 ? model.target.start : labels(active[0])[active[1]]);
    if (active) {
      const chip = chips[active[0]][active[0] === "target" ? active[1] + 1 : active[1]];
      chip.classList.add("active");
      chip.setAttribute("aria-selected", "true");
      if (active[0] === from && active[1] >= 0) {
        for (const column of range(columns)) found.push([weights[active[1] * columns + column], active[1], column, keyChip(column)]);
      } else if (active[0] === to && from !== to) {
        for (const row of range(rows)) found.push([weights[row * columns + active[1]], row, active[1], queryChip(row)]);
      }
      // What is spread thin would not be seen: the strongest has a quarter of full strength or more.
      scale = 1 / Math.max(0.25, ...found.map(([w]) => w));
      for (const [w, , , other] of found) other.style.setProperty("--w", w * scale);
    } else if (rows * columns <= 10000) {
      for (const row of range(rows)) for (const column of range(columns)) {
        const w = weights[row * columns + column];
        if (w > 0.04) found.push([w, row, column]);
      }
    }
    connect(found.filter(([w]) => w * scale > 0.004), scale);
    describe(active, name, found);
  }
  function connect(found, scale) {
    const stageBox = stage.getBoundingClientRect();
    const boxes = new Map(), visible = (box, chip) => {
      const line = chip.parentElement.getBoundingClientRect();
      return box.bottom > line.top && box.top < line.bottom;
    };
    const box = (chip) => boxes.get(chip) ?? boxes.set(chip, chip.getBoundingClientRect()).get(chip);
    drawing.replaceChildren(...found.flatMap(([w, row, column]) => {
      const query = queryChip(row), key = keyChip(column), a = box(query), b = box(key);
      if (query === key || !visible(a, query) || !visible(b, key)) return [];
      const [x1, x2] = [a, b].map((each) => each.left + each.width / 2 - stageBox.left);
      const same = weights.from === weights.to;
      const y1 = a.top - stageBox.top, y2 = (same ? b.top : b.bottom) - stageBox.top;
      const lift = same ? Math.min(62, 14 + Math.abs(x1 - x2) * 0.16) : (y1 - y2) / 2;
      const d = `M${x1} ${y1} C${x1} ${y1 - lift} ${x2} ${same ? y2 - lift : y2 + lift} ${x2} ${y2}`;
      return [svg("path", { d, "stroke-opacity": (w * scale).toFixed(3) })];
    }));
  }
  function describe(active, name, found) {
    detail.replaceChildren();
    if (!active) {
      told.textContent = "Point at a token, or reach it with Tab and the arrow keys.";
      return;
    }
    const strongest = [...found].sort((a, b) => b[0] - a[0]).slice(0, 6).filter(([w]) => w > 0.0005);
    const looking = active[0] === weights.from, label = (entry) => entry[3].textContent;
    const where = `${KINDS[state.kind]}, ${state.layer === "all" ? "all layers" : `layer ${+state.layer + 1}`}, ${state.head === "all" ? "all heads" : `head ${+state.head + 1}`}`;
    const predicting = looking && weights.from === "target" ? "To write " : "";
    told.textContent = found.length
      ? `${predicting}${quoted(name)} ${predicting ? "the model looked" : looking ? "looks" : "is looked"} at ${looking ? "" : "by "}${strongest.slice(0, 3).map((entry) => `${quoted(label(entry))} ${number(entry[0], 2)}`).join(", ")}.`
      : `${quoted(name)} asks nothing in ${KINDS[state.kind].toLowerCase()}.`;
    if (found.length) detail.append(el("div", {}, el("h3", {}, where), bars(strongest.map((entry) => [label(entry), entry[0]]))));
    if (active[0] === "target" && active[1] >= 0) {
      const pieces = range(model.target.pieces.length).filter((i) => place("target")[i] === active[1]);
      for (const i of pieces.slice(0, 4)) {
        const piece = model.target.pieces[i];
        detail.append(el("div", {}, el("h3", {}, `${quoted(piece)} had ${percent(Math.exp(model.target.log_probs[i]))}; likeliest here`), bars(probabilities(model.target.likeliest[i]).slice(0, 6), piece)));
      }
    }
  }
  new ResizeObserver(() => weights && mark()).observe(stage);
  for (const line of Object.values(lines)) line.addEventListener("scroll", () => mark());
  const view = section("Who looks at whom", "Lines run from the token that asks to those that it looks at; the stronger, the more. The translation is shown as it is written: each token with what the model looked at to write it.",
    el("div", { class: "controls" }, kinds.box, layers, heads, how.box, units.box), stage, told, detail);
  setUp();
  const select = (kind, layer, head) => {
    Object.assign(state, { kind, layer: String(layer), head: String(head) });
    setUp();
    view.scrollIntoView({ block: "start" });
  };
  return { view, select };
}

/** All heads of all layers as small maps, which open. */
function headsView(model, showInText) {
  const status = el("p", { class: "readout", role: "status" }, "Open a map with a click or Enter.");
  const figures = Object.keys(KINDS).map((kind) => {
    const attention = model.attention[kind], maps = [];
    const grid = el("div", { class: "heads", role: "group", "aria-label": `${KINDS[kind]}: maps of all heads` });
    grid.style.gridTemplateColumns = `1.6rem repeat(${attention.heads}, minmax(0, 6.5rem))`;
    grid.append(el("span"), ...range(attention.heads).map((h) => el("span", { class: "across" }, h + 1)));
    for (const layer of range(attention.layers)) {
      grid.append(el("span", { class: "down" }, `L${layer + 1}`));
      for (const head of range(attention.heads)) {
        const { entropy, distance, diagonal } = attention.statistics;
        const said = `${KINDS[kind]}, layer ${layer + 1}, head ${head + 1}: entropy ${number(entropy[layer][head], 2)} bits, mean distance ${number(distance[layer][head], 2)}, diagonal ${percent(diagonal[layer][head])}`;
        const canvas = el("canvas", { "aria-hidden": "true" });
        const paint = () => { const w = attention.head(layer, head); pixels(canvas, attention.rows, attention.columns, "weight", (i) => w[i]); };
        paint();
        repaint.add(paint);
        const tell = () => { status.textContent = said; };
        const button = el("button", { class: "head", "aria-label": said, onclick: () => openHead(model, kind, layer, head, showInText), onpointerenter: tell, onfocus: tell }, canvas);
        maps.push(button);
        grid.append(button);
      }
    }
    roving(maps, attention.heads);
    return el("div", {}, el("h3", {}, KINDS[kind]), grid);
  });
  return section("All heads", "A row for each layer, a column for each head; in a map a row for each query, a column for each key. Colour grows with the square root of the weight.", el("div", { class: "grids" }, ...figures), status);
}

const dialog = document.getElementById("matrix");
function openHead(model, kind, layer, head, showInText) {
  const attention = model.attention[kind], [rows, columns] = axes(model, kind), weights = attention.head(layer, head);
  const title = `${KINDS[kind]}, layer ${layer + 1}, head ${head + 1}`, n = attention.layers * attention.heads;
  const step = (by) => {
    const to = (layer * attention.heads + head + by + n) % n;
    openHead(model, kind, Math.floor(to / attention.heads), to % attention.heads, showInText);
  };
  const button = (text, onclick) => el("button", { class: "button", type: "button", onclick }, text);
  dialog.replaceChildren(el("h2", { id: "matrix-title" }, title),
    el("div", { class: "controls" }, button("Previous", () => step(-1)), button("Next", () => step(1)),
      button("Show in the text", () => { dialog.close(); showInText(kind, layer, head); }), button("Close", () => dialog.close())),
    matrix({ title, rows, columns, value: (i, j) => weights[i * columns.length + j], scale: "weight", rowName: attention.query_name, columnName: attention.key_name, width: Math.min(innerWidth * 0.96 - 60, 1100) }));
  if (!dialog.open) dialog.showModal();
  dialog.querySelector("canvas").focus();
}

// ----------------------------------------------------------------------------------- the search

const FATES = {
  lives: ["\u2192", "goes on", "among the best that go on"],
  ended: ["\u25a0", "finished", "ended among the first of the step: a finished translation"],
  late: ["\u00d7", "pruned", "ended, but behind the beam's width, where an end does not count"],
  outranked: ["\u00d7", "pruned", "better candidates fill the beam"],
  cut_off: ["\u2026", "cut off", "as long as a translation may be"],
  overtaken: ["\u2013", "given up", "it would go on, but could no longer win"],
};

function searchView(model) {
  const { nodes, steps, results, beam_size, n_best, alpha, longest, own } = model.search;
  const COLUMN = 118, ROW = 40, WIDTH = 92, HEIGHT = 33;
  let step = steps.length, slot = 0, result = 0;
  const prefix = (node) => {
    const pieces = [];
    for (let at = node; nodes[at].parent !== null; at = nodes[at].parent) pieces.unshift(nodes[at].piece);
    return plain(pieces.join("")).trim();
  };
  const pathOf = (node) => {
    const path = new Set();
    for (let at = node; at !== null; at = nodes[at].parent) path.add(at);
    return path;
  };
  const places = new Map([[0, [0, 0]]]);
  steps.forEach(({ made: each }, i) => each.forEach((node, rank) => places.set(node, [i + 1, rank])));
  const short = (text) => (text.length > 10 ? text.slice(0, 9) + "\u2026" : text);
  const highest = Math.max(1, ...steps.map((each) => each.made.length));
  const [x, y] = [(node) => 10 + places.get(node)[0] * COLUMN, (node) => 10 + places.get(node)[1] * ROW];

  const drawing = svg("svg", { role: "img" });
  const tree = el("div", { class: "tree", tabindex: 0, role: "group", "aria-label": "The beam as a tree: left and right arrow keys step through it, up and down choose a hypothesis" }, drawing);
  const slider = el("input", { type: "range", min: 1, max: steps.length, "aria-label": "Step of the search", oninput: () => go(Number(slider.value)) });
  const summary = el("p", { class: "told", role: "status" }), candidates = el("div", { class: "table" }), next = el("div"), found = el("div", { class: "table" });

  function draw() {
    const path = pathOf(results[result].node), extended = steps[step - 1].live[slot];
    const shown = [...places.keys()].filter((node) => places.get(node)[0] <= step);
    const edges = shown.filter((node) => node !== 0).map((node) => {
      const from = nodes[node].parent, [x1, y1, x2, y2] = [x(from) + WIDTH, y(from) + HEIGHT / 2, x(node), y(node) + HEIGHT / 2];
      return svg("path", { d: `M${x1} ${y1} C${x1 + 14} ${y1} ${x2 - 14} ${y2} ${x2} ${y2}`, class: `${nodes[node].fate} ${path.has(node) ? "path" : ""}` });
    });
    edges.sort((a, b) => a.classList.contains("path") - b.classList.contains("path"));
    const boxes = shown.map((node) => {
      const { piece, fate, sum } = nodes[node], mark = fate ? FATES[fate][0] : "";
      return svg("g", { class: `node ${fate ?? "lives"} ${path.has(node) ? "path" : ""} ${node === extended ? "chosen" : ""}`, transform: `translate(${x(node)} ${y(node)})`, onclick: () => pick(node) },
        svg("title", {}, fate ? `${prefix(node)}: ${FATES[fate][1]}, ${FATES[fate][2]}` : "the start"),
        svg("rect", { width: WIDTH, height: HEIGHT }), svg("text", { x: 8, y: 14.5 }, short(piece)),
        svg("text", { x: 8, y: 27.5, class: "sum" }, fate ? `${mark} ${number(sum, 2)}` : ""));
    });
    drawing.replaceChildren(...edges, ...boxes);
    const width = 20 + WIDTH + COLUMN * steps.length, height = 20 + ROW * highest;
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) drawing.setAttribute(name, value);
    drawing.setAttribute("aria-label", `Search tree up to step ${step} of ${steps.length}`);
  }
  /** A node's own step, or the one that extends it where it lives on. */
  function pick(node) {
    const at = places.get(node)[0], extends_ = steps[at]?.live.indexOf(node) ?? -1;
    if (extends_ >= 0) go(at + 1, extends_);
    else go(Math.max(1, at), at ? steps[at - 1].live.indexOf(nodes[node].parent) : 0);
  }
  function go(to, chosen = 0) {
    step = clamp(to, 1, steps.length);
    const now = steps[step - 1], count = (fate) => now.made.filter((node) => nodes[node].fate === fate).length;
    slot = clamp(chosen, 0, now.live.length - 1);
    slider.value = step;
    slider.setAttribute("aria-valuetext", `step ${step} of ${steps.length}`);
    draw();
    const counts = Object.entries({ "go on": count("lives"), "finished": count("ended"), "pruned": count("outranked") + count("late"), "cut off": count("cut_off"), "given up": count("overtaken") });
    const end = now.last === null ? "" : now.last >= now.bound
      ? ` The search ends: number ${n_best} of the finished has ${number(now.last, 2)}, and what lives can reach ${number(now.bound, 2)} at most.`
      : ` Number ${n_best} of the finished has ${number(now.last, 2)}; what lives can still reach ${number(now.bound, 2)}.`;
    summary.textContent = `Step ${step} of ${steps.length}: ${now.live.length} extended; ${counts.filter(([, n]) => n).map(([text, n]) => `${n} ${text}`).join(", ")}.${end}`;
    candidates.replaceChildren(table(["#", "candidate", "log p", "p", "sum", "fate"], now.made.map((node) => {
      const { rank, log_prob, sum, fate } = nodes[node];
      return { on: nodes[node].parent === now.live[slot], cells: [rank, ending(prefix(nodes[node].parent)) + "\u2009\u00b7\u2009" + nodes[node].piece, number(log_prob, 2), percent(Math.exp(log_prob)), number(sum, 2), `${FATES[fate][0]} ${FATES[fate][1]}: ${FATES[fate][2]}`] };
    }), [0, 2, 3, 4]));
    const before = prefix(now.live[slot]);
    next.replaceChildren(el("h3", {}, `Likeliest after ${before ? quoted(ending(before)) : "the start"} (hypothesis ${slot + 1} of ${now.live.length})`), bars(probabilities(now.likeliest[slot])));
    const edge = 10 + step * COLUMN + WIDTH;
    if (edge > tree.scrollLeft + tree.clientWidth || edge - 2 * COLUMN < tree.scrollLeft) tree.scrollLeft = edge - tree.clientWidth + 20;
  }
  function showResults() {
    found.replaceChildren(table(["#", "translation", "score", "log p", ""], results.map((each, i) => ({
      on: i === result,
      cells: [i + 1, el("button", { type: "button", "aria-pressed": String(i === result), onclick: () => { result = i; showResults(); go(step, slot); } }, each.text || "(nothing)"), number(each.score, 4), number(each.log_prob, 4), each.finished ? "" : "cut off"],
    })), [0, 2, 3]));
  }
  tree.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: [step + 1], ArrowLeft: [step - 1], Home: [1], End: [steps.length], ArrowDown: [step, slot + 1], ArrowUp: [step, slot - 1] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    go(...moves[event.key]);
  });
  const legend = el("ul", { class: "legend" }, ...["lives", "ended", "outranked", "cut_off", "overtaken"].map((fate) => el("li", {}, `${FATES[fate][0]} ${FATES[fate][1]}`)));
  const button = (text, label, by) => el("button", { class: "button", type: "button", "aria-label": label, onclick: () => go(step + by) }, text);
  const how = `Beam search with ${beam_size} hypotheses, length penalty ${alpha}, at most ${longest} tokens. Under each token stands the sum of log-probabilities; a score is that sum over the length penalty.` + (own ? "" : " This run itself searches in another way.");
  const view = section("The search", how,
    el("div", { class: "controls" }, button("\u2190", "Previous step", -1), slider, button("\u2192", "Next step", 1), el("span", { class: "side" }, el("kbd", {}, "\u2190"), " ", el("kbd", {}, "\u2192"), " step, ", el("kbd", {}, "\u2191"), " ", el("kbd", {}, "\u2193"), " choose a hypothesis")),
    tree, legend, summary, el("div", { class: "row" }, next, el("div", {}, el("h3", {}, "What was found"), found)), el("h3", {}, "Candidates of this step"), candidates);
  showResults();
  go(step);
  return { view, shown: () => go(step, slot) };
}

function table(heads, rows, numeric = []) {
  const kind = (i) => (numeric.includes(i) ? "number" : ["", "text"][i] ?? "wide");
  return el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((head, i) => el("th", { class: kind(i), scope: "col" }, head)))),
    el("tbody", {}, ...rows.map(({ on, cells }) => el("tr", { class: on ? "on" : null }, ...cells.map((cell, i) => el("td", { class: kind(i), dir: i === 1 ? "auto" : null }, cell))))));
}

// --------------------------------------------------------------------------------- positions

const FORMS = { table: "added to the embeddings", rotation: "rotation of queries and keys", bias: "added to the logits" };

function positionsView(model) {
  const { scheme, state, content, parts } = model.position;
  const notes = [`${scheme} (${state}), for ${model.source.pieces.length} source and ${model.target.pieces.length} target tokens.`];
  if (content.length) notes.push(`In the ${content.join(" and the ")} it adds terms that depend on the words too, which no picture of positions shows.`);
  if (!parts.length && !content.length) notes.push("Nothing is added or turned: only the decoder's mask tells places apart.");
  const boxes = parts.map((part) => {
    const values = new Packed(part.values), host = el("div"), { form, stack } = part, state = { layer: 0, head: 0 };
    const labels = axes(model, stack)[0].map((text, i) => `${i} ${text}`);
    const [layers, heads] = form === "bias" ? values.shape : form === "rotation" ? [1, values.shape[0]] : [1, 1];
    const controls = [["layer", form === "bias" ? model.attention[stack].layers : 1], ["head", heads]].filter(([, n]) => n > 1)
      .map(([field, n]) => choice(field[0].toUpperCase() + field.slice(1), range(n).map((i) => [i, `${field} ${i + 1}`]), (value) => { state[field] = Number(value); draw(); }).box);
    const draw = () => host.replaceChildren(PARTS[form]({ model, part, values, labels, layers, ...state, width: Math.max(280, host.clientWidth || 600) }));
    repaint.add(draw);
    const box = el("div", { class: form }, el("h3", {}, `${STACK[stack]}: ${FORMS[form]}`), el("div", { class: "controls" }, ...controls), host);
    new ResizeObserver(([entry]) => { if (entry.contentRect.width !== host.last) { host.last = entry.contentRect.width; draw(); } }).observe(box);
    draw();
    return box;
  });
  return section("Positions", notes.join(" "), el("div", { class: "parts" }, ...boxes));
}

const largest = (n, value) => { let most = 1e-9; for (let i = 0; i < n; i++) most = Math.max(most, Math.abs(value(i)) || 0); return most; };

const PARTS = {
  table({ values, labels, width }) {
    const [rows, columns] = values.shape;
    return matrix({ title: "Vectors of the positions", rows: labels, columns: range(columns).map(String), value: (i, j) => values.at(i, j), scale: "signed", unit: largest(rows * columns, (i) => values.value(values.codes[i])), square: false, width, rowName: "position", columnName: "dimension", say: (i, j, v) => `position ${isolated(labels[i])}, dimension ${j}: ${number(v)}` });
  },
  rotation({ part, values, labels, head, width }) {
    const factors = part.factors && new Packed(part.factors);
    return matrix({ title: "Angles", rows: labels, columns: range(values.shape[2]).map(String), value: (i, j) => values.at(head, i, j), scale: "angle", square: false, width, rowName: "position", columnName: "pair of dimensions, from fast to slow",
      say: (i, j, v) => `position ${isolated(labels[i])}, pair ${j}: turned by ${number(v)} rad (${number((v * 180) / Math.PI, 0)}\u00b0)${factors ? `, stretched by ${number(factors.at(head, i, j))}` : ""}` });
  },
  /** Logits with the bias, the bias, and logits without it, each less the mean of its row. */
  bias({ model, part, values, labels, layers, layer, head, width }) {
    const { logits, columns: n } = model.attention[part.stack], own = Math.min(layer, layers - 1);
    const seen = (i, j) => !Number.isNaN(values.at(own, head, i, j)) && !Number.isNaN(logits.at(layer, head, i, j));
    const centred = (value) => {
      const grid = new Float64Array(n * n).fill(NaN);
      for (const i of range(n)) {
        const there = range(n).filter((j) => seen(i, j)), mean = there.reduce((sum, j) => sum + value(i, j), 0) / there.length;
        for (const j of there) grid[i * n + j] = value(i, j) - mean;
      }
      return grid;
    };
    const bias = (i, j) => values.at(own, head, i, j), all = (i, j) => logits.at(layer, head, i, j);
    const grids = { "logits with the bias": centred(all), "logits without it": centred((i, j) => all(i, j) - bias(i, j)) };
    const unit = largest(n * n, (i) => grids["logits with the bias"][i]), each = Math.max(260, width / 3 - 20);
    const one = (title, value, full) => el("div", {}, el("p", { class: "side" }, title), matrix({ title, rows: labels, columns: labels, value, scale: "signed", unit: full, width: each, rowName: "query", columnName: "key", say: (i, j, v) => `${isolated(labels[i])} \u2192 ${isolated(labels[j])}: ${number(v)}` }));
    return el("div", { class: "row" }, one("the bias itself", bias, largest(n * n, (i) => bias(Math.floor(i / n), i % n))),
      ...Object.entries(grids).map(([title, grid]) => one(`${title}, from the mean of the row`, (i, j) => grid[i * n + j], unit)));
  },
};

// ------------------------------------------------------------------------------------- numbers

function numbersView(model) {
  const rows = Object.keys(KINDS).flatMap((kind) => range(model.attention[kind].layers).flatMap((layer) => range(model.attention[kind].heads).map((head) => {
    const { entropy, distance, diagonal } = model.attention[kind].statistics;
    return [KINDS[kind], layer + 1, head + 1, entropy[layer][head], distance[layer][head], diagonal[layer][head]];
  })));
  const heads = ["attention", "layer", "head", "entropy (bits)", "mean distance", "share of the diagonal"];
  const box = el("div", { class: "table tall", tabindex: 0, role: "region", "aria-label": "Statistics of every head" });
  let by = null, down = false;
  function draw() {
    const order = by === null ? rows : [...rows].sort((a, b) => (down ? -1 : 1) * (a[by] > b[by] ? 1 : a[by] < b[by] ? -1 : 0));
    box.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((head, i) => el("th", { scope: "col", class: i ? "number" : null, "aria-sort": by === i ? (down ? "descending" : "ascending") : null },
      el("button", { type: "button", onclick: () => { down = by === i && !down; by = i; draw(); box.querySelectorAll("th button")[i].focus(); } }, head + (by === i ? (down ? " \u2193" : " \u2191") : "")))))),
      el("tbody", {}, ...order.map((row) => el("tr", {}, ...row.map((cell, i) => el("td", { class: i ? "number" : null }, i < 3 ? cell : i === 5 ? percent(cell) : number(cell, 2))))))));
  }
  draw();
  return section("The heads in numbers", "Means over the queries. Entropy: 0 bits where a query looks at one key alone. Distance: from the query's own place, in cross-attention from the diagonal. Share of the diagonal: what is within half a token of that place.", box);
}

// --------------------------------------------------------------------------------------- begin

const models = JSON.parse(document.getElementById("data").textContent);
document.getElementById("sentence").textContent = models[0].source.text;
document.title = `${models[0].source.text} \u2013 translation explorer`;
const main = document.getElementById("models");
main.classList.toggle("pair", models.length > 1);
for (const model of models) {
  for (const kind of Object.keys(KINDS)) model.attention[kind] = new Attention(kind, model.attention[kind]);
  const tokens = tokensView(model), search = searchView(model);
  main.append(el("article", { class: "model", "aria-label": model.name },
    el("p", { class: "translation", dir: "auto" }, model.target.text || "(nothing)"),
    el("p", { class: "about" }, `${model.name} \u00b7 ${model.about} \u00b7 ${model.position.scheme}`),
    tokens.view, headsView(model, tokens.select), search.view, positionsView(model), numbersView(model)));
  search.shown();
}
document.documentElement.dataset.ready = "true";
