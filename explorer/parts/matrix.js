// Numbers as colours: small maps, and matrices that are read cell by cell.

const dark = matchMedia("(prefers-color-scheme: dark)");
const repaint = new Set(); // what is painted again when light and dark change
let ramps = null;
dark.addEventListener("change", () => {
  ramps = null;
  for (const paint of repaint) paint();
});

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
/** 256 colours from stop to stop. */
function ramp(...names) {
  const hex = (name) => [1, 3, 5].map((i) => parseInt(css(name).slice(i, i + 2), 16));
  const stops = names.map(hex);
  return range(256).map((i) => {
    const at = (i / 255) * (stops.length - 1), k = Math.min(Math.floor(at), stops.length - 2);
    return stops[k].map((c, j) => Math.round(c + (at - k) * (stops[k + 1][j] - c)));
  });
}
const PLACE = { // of a number in its ramp, 0..1
  weight: (w) => Math.sqrt(w), // 0..1
  signed: (x) => (x + 1) / 2, // -1..1
  angle: (x) => x / (2 * Math.PI) + (x < 0 ? 1 : 0), // -pi..pi
};
function colour(scale, x) {
  ramps ??= {
    weight: ramp("--heat-0", "--heat-1", "--heat-2"),
    signed: ramp("--negative", "--middle", "--positive"),
    angle: ramp("--middle", "--positive", "--heat-2", "--negative", "--middle"),
    none: ramp("--void", "--void")[0],
  };
  const place = Math.round(255 * PLACE[scale](x));
  return Number.isNaN(place) ? ramps.none : ramps[scale][clamp(place, 0, 255)];
}
/** One pixel for each cell. */
function pixels(canvas, rows, columns, scale, value) {
  Object.assign(canvas, { width: columns, height: rows });
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  for (const i of range(rows * columns)) image.data.set([...colour(scale, value(i)), 255], 4 * i);
  context.putImageData(image, 0, 0);
  return canvas;
}

const FONT = "11px system-ui, sans-serif";
const shortened = (text) => beginning(text, 16);

/**
 * A labelled matrix: the number of a cell under the pointer, or under the cursor of the arrow keys.
 *
 * rows, columns: labels. value(row, column); `unit` is the value of full colour. names: what stands
 * down and across. width: pixels that there are. say(row, column, value) overrides the readout, and
 * lacks(row, column) what is told of NaN.
 */
function matrix(given) {
  const { title, rows, columns, value, scale, unit = 1, square = true, names, width, say } = given;
  const about = `${rows.length} rows (${names[0]}), ${columns.length} columns (${names[1]})`;
  const label = `${title}: ${about}. Arrow keys read cells.`;
  const canvas = el("canvas", { tabindex: 0, role: "application", "aria-label": label });
  const full = scale === "signed" ? `; full colour: ${+unit.toPrecision(2)}` : "";
  const begun = `${names[0]} down, ${names[1]} across${full}.`;
  const readout = el("p.readout", { role: "status" }, begun);
  const place = el("i"); // of the cursor
  const cells = pixels(el("canvas"), rows.length, columns.length, scale,
    (i) => value(Math.floor(i / columns.length), i % columns.length) / unit);
  const context = canvas.getContext("2d");
  context.font = FONT;
  const room = (labels) =>
    Math.ceil(Math.max(...labels.map((text) => context.measureText(shortened(text)).width))) + 8;
  const left = room(rows), top = room(columns);
  let cw = clamp(Math.floor((width - left - 1) / columns.length), 3, square ? 26 : 44);
  let ch = clamp(Math.floor(620 / rows.length), 3, 26), cursor = null;
  if (square) cw = ch = Math.min(cw, Math.max(ch, 9));

  function draw() {
    const w = left + cw * columns.length + 1, h = top + ch * rows.length + 1;
    const ratio = devicePixelRatio || 1;
    Object.assign(canvas, { width: w * ratio, height: h * ratio });
    Object.assign(canvas.style, { width: `${w}px`, height: `${h}px` });
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    context.drawImage(cells, left, top, cw * columns.length, ch * rows.length);
    Object.assign(context, { fillStyle: css("--ink"), font: FONT, textBaseline: "middle" });
    const labels = (texts, size, write) => {
      const every = Math.ceil(11 / size);
      texts.forEach((text, i) => i % every || write(shortened(text), (i + 0.5) * size));
    };
    context.textAlign = "right";
    labels(rows, ch, (text, y) => context.fillText(text, left - 5, top + y));
    context.textAlign = "left";
    labels(columns, cw, (text, x) => {
      context.save();
      context.translate(left + x, top - 5);
      context.rotate(-Math.PI / 2);
      context.fillText(text, 0, 0);
      context.restore();
    });
    if (!cursor) return;
    for (const [name, lineWidth] of [["--surface", 4], ["--ink", 2]]) { // one shows on any colour
      Object.assign(context, { strokeStyle: css(name), lineWidth });
      context.strokeRect(left + cursor[1] * cw, top + cursor[0] * ch, cw, ch);
    }
  }
  function go(row, column) {
    cursor = [clamp(row, 0, rows.length - 1), clamp(column, 0, columns.length - 1)];
    [row, column] = cursor;
    const x = value(row, column);
    const cell = () => `${isolated(rows[row])} \u2192 ${isolated(columns[column])}`;
    const told = Number.isNaN(x) ? given.lacks(row, column) : number(x);
    readout.textContent = say ? say(row, column, x) : `${cell()}: ${told}`;
    draw();
  }
  const point = (event) => {
    const row = Math.floor((event.offsetY - top) / ch);
    const column = Math.floor((event.offsetX - left) / cw);
    if (row in rows && column in columns) go(row, column);
  };
  for (const event of ["pointermove", "pointerdown"]) canvas.addEventListener(event, point);
  const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    const move = MOVES[event.key];
    if (!move || isShortcut(event)) return;
    event.preventDefault();
    if (cursor) go(cursor[0] + move[0], cursor[1] + move[1]);
    else go(0, 0);
    // The keys that move the cursor are those that would scroll to it.
    place.style.translate = `${left + cursor[1] * cw}px ${top + cursor[0] * ch}px`;
    place.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  draw();
  return el("div.matrix", el("div.scroll", place, canvas), readout);
}
