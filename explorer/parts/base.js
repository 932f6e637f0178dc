"use strict";
// All text reaches the page as text nodes, never as markup.

/** element("p.note", { lang: "en" }, child, ...); attributes may be left out, "onclick" listens. */
function maker(create) {
  return (name, ...rest) => {
    const [tag, ...classes] = name.split("."), node = create(tag);
    const attributes = rest[0]?.constructor === Object ? rest.shift() : {};
    if (classes.length) node.setAttribute("class", classes.join(" "));
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (value !== null) node.setAttribute(key, value);
    }
    node.append(...rest);
    return node;
  };
}
const el = maker((tag) => document.createElement(tag));
const svg = maker((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));

const range = (n) => Array.from({ length: n }, (_, i) => i);
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
/** No "-0.00": packed numbers are not exactly 0. */
const number = (x, digits = 3) =>
  x.toFixed(digits).replace(/^-(?=[0.]+$)/, "").replace("-", "\u2212");
const percent = (p) => `${p >= 0.0995 ? (100 * p).toFixed(0) : (100 * p).toPrecision(2)} %`;
/** Text that runs in its own direction, whatever stands around it. */
const isolated = (text) => `\u2068${text}\u2069`;
const quoted = (text) => `\u201c${isolated(text)}\u201d`;
const rightToLeft = /^[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/;
/** That of the first letter. */
const direction = (text) => (rightToLeft.test(text.match(/\p{L}/u)?.[0]) ? "rtl" : "ltr");
/** Whether a key is the browser's or a screen reader's, not the page's. */
const isShortcut = (event) => event.altKey || event.ctrlKey || event.metaKey;
/** The end of a long text, and the beginning of one, in whole characters. */
const ending = (text) => {
  const all = [...text];
  return all.length > 44 ? `\u2026${all.slice(-43).join("")}` : text;
};
const beginning = (text, most) => {
  const all = [...text];
  return all.length > most ? `${all.slice(0, most - 1).join("")}\u2026` : text;
};
const capital = (text) => text[0].toUpperCase() + text.slice(1);

const KINDS = {
  cross: "Cross-attention",
  encoder: "Encoder self-attention",
  decoder: "Decoder self-attention",
};

let ids = 0;
function section(title, note, ...children) {
  const id = `section-${++ids}`;
  const head = [el("h2", { id }, title), el("p.note", note)];
  return el("section.view", { "aria-labelledby": id }, ...head, ...children);
}

function button(text, onclick, attributes = {}) {
  return el("button.button", { type: "button", onclick, ...attributes }, text);
}

function choice(label, options, onchange) {
  const shown = options.map(([value, text]) => el("option", { value }, text));
  const select = el("select", { onchange: () => onchange(select.value) }, ...shown);
  return { box: el("label", label, select), select };
}

function bars(entries, lang, chosen = null) {
  return el("ul.bars", ...entries.map(([name, p]) => {
    const filled = el("i"), bar = el("span.bar", { "aria-hidden": "true" }, filled);
    filled.style.width = `${100 * p}%`;
    const called = el("span.name", { dir: "auto", lang }, name);
    return el(name === chosen ? "li.chosen" : "li", called, bar, el("span.number", percent(p)));
  }));
}
const likeliestBars = (likeliest, lang, chosen) =>
  bars(likeliest.map(([piece, logProb]) => [piece, Math.exp(logProb)]), lang, chosen);

/** Rows { on, cells }; classes are those of the columns. */
function table(heads, classes, rows) {
  const cell = (tag, i, ...rest) => el(tag + (classes[i] && `.${classes[i]}`), ...rest);
  return el("table",
    el("thead", el("tr", ...heads.map((head, i) => cell("th", i, { scope: "col" }, head)))),
    el("tbody", ...rows.map(({ on, cells }) => el(on ? "tr.on" : "tr", { "aria-current": on || null },
      ...cells.map((content, i) => cell("td", i, { dir: "auto" }, content))))));
}

/**
 * Of items in a row one is reached by Tab, the others by arrow keys; `step` items make a row of a
 * grid, and `also(key, at)` may name another item to go to.
 */
function roving(items, step, also = () => null) {
  items.forEach((item, at) => {
    item.tabIndex = at ? -1 : 0;
    item.addEventListener("focus", () => items.forEach((each) => {
      each.tabIndex = each === item ? 0 : -1;
    }));
    item.addEventListener("keydown", (event) => {
      const forward = item.parentElement.dir === "rtl" ? -1 : 1;
      const moves = { ArrowLeft: at - forward, ArrowRight: at + forward, Home: 0 };
      moves.End = items.length - 1;
      if (step) Object.assign(moves, { ArrowUp: at - step, ArrowDown: at + step });
      const to = event.key in moves ? items[moves[event.key]] : also(event.key, at);
      if (!to || isShortcut(event)) return;
      event.preventDefault();
      to.focus();
    });
  });
}

/** What packed.py wrote: at(i, j, ...) is a number, or NaN. */
class Packed {
  constructor({ shape, lo, step, codes }) {
    const bytes = Uint8Array.from(atob(codes), (char) => char.charCodeAt(0));
    Object.assign(this, { shape, lo, step, codes: new Uint16Array(bytes.buffer) });
  }
  value(code) {
    return code === 65535 ? NaN : this.lo + this.step * code;
  }
  at(...place) {
    return this.value(this.codes[place.reduce((sum, i, axis) => sum * this.shape[axis] + i, 0)]);
  }
}

/** Attention weights [L,H,Tq,Tk] of one kind. */
class Attention {
  constructor(trace) {
    Object.assign(this, trace, { logits: new Packed(trace.log_weights) });
    [this.layers, this.heads, this.rows, this.columns] = this.logits.shape;
    const weight = (_, code) => Math.exp(this.logits.value(code)) || 0;
    this.weights = Float32Array.from({ length: 65536 }, weight);
  }
  head(layer, head) {
    const size = this.rows * this.columns, start = (layer * this.heads + head) * size;
    const codes = this.logits.codes.subarray(start, start + size);
    return Float32Array.from(codes, (code) => this.weights[code]);
  }
  /** One head, or the mean or the maximum over all of a layer or of all layers, of folded weights. */
  over(layer, head, how, fold) {
    const layers = layer === "all" ? range(this.layers) : [Number(layer)];
    const heads = head === "all" ? range(this.heads) : [Number(head)];
    const n = layers.length * heads.length;
    let total = null;
    for (const l of layers) for (const h of heads) {
      const weights = fold(this.head(l, h));
      total ??= new Float32Array(weights.length);
      weights.forEach((w, i) => {
        total[i] = how === "maximum" ? Math.max(total[i], w) : total[i] + w / n;
      });
    }
    return total;
  }
}

/** Weights of pieces -> of words: the sum over a word's keys, the mean over its queries. */
function ofWords(weights, rowOf, columnOf) {
  const rows = rowOf.at(-1) + 1, columns = columnOf.at(-1) + 1, sizes = new Float32Array(rows);
  for (const row of rowOf) sizes[row]++;
  const total = new Float32Array(rows * columns);
  weights.forEach((w, i) => {
    const row = rowOf[Math.floor(i / columnOf.length)];
    total[row * columns + columnOf[i % columnOf.length]] += w / sizes[row];
  });
  return total;
}
