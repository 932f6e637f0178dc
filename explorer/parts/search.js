// The beam search as a tree, step by step.

const FATES = {
  lives: ["\u2192", "goes on", "among the best that go on"],
  ended: ["\u25a0", "finished", "ended among the first of the step"],
  late: ["\u00d7", "pruned", "ended, but below the beam's width, where an end does not count"],
  outranked: ["\u00d7", "pruned", "better candidates fill the beam"],
  cut_off: ["\u2026", "cut off", "as long as a translation may be"],
  overtaken: ["\u2013", "given up", "it would go on, but could no longer win"],
};
const GREEDY = { ...FATES, overtaken: ["\u2013", "given up", "the only hypothesis has ended"] };
const COLUMN = 118, ROW = 40, WIDTH = 92, HEIGHT = 33, MARGIN = 10; // pixels of the tree

function searchView(model) {
  const { nodes, steps, results, beam_size, n_best, alpha, longest, own } = model.search;
  const { lang } = model.target, fates = beam_size > 1 ? FATES : GREEDY;
  let step = steps.length, slot = 0, result = 0;
  const path = (node) => (node === null ? [] : [...path(nodes[node].parent), node]);
  const prefix = (node) =>
    path(node).slice(1).map((each) => nodes[each].piece).join("").replaceAll("\u2581", " ").trim();
  const places = new Map([[0, [0, 0]]]); // of a node: its step and its rank
  steps.forEach(({ made }, i) => made.forEach((node, rank) => places.set(node, [i + 1, rank])));
  const most = Math.max(1, ...steps.map(({ made }) => made.length));
  const x = (node) => MARGIN + places.get(node)[0] * COLUMN;
  const y = (node) => MARGIN + places.get(node)[1] * ROW;
  const size = [2 * MARGIN + WIDTH + COLUMN * steps.length, 2 * MARGIN + ROW * most];

  const drawing = svg("svg", {
    role: "img", width: size[0], height: size[1], viewBox: `0 0 ${size[0]} ${size[1]}`,
  });
  const label = "The beam as a tree: left and right arrow keys step through it, up and down " +
    "choose a hypothesis";
  const tree = el("div.tree", { tabindex: 0, role: "application", "aria-label": label }, drawing);
  const slider = el("input", {
    type: "range", min: 1, max: steps.length, "aria-label": "Step of the search",
    oninput: () => go(Number(slider.value)),
  });
  const summary = el("p.told", { role: "status" }), next = el("div");
  const candidates = el("div.table"), found = el("div.table");

  function draw() {
    const winning = new Set(path(results[result].node)), extended = steps[step - 1].live[slot];
    const shown = [...places.keys()].filter((node) => places.get(node)[0] <= step);
    const classes = (node) => [
      nodes[node].fate ?? "lives",
      ...(winning.has(node) ? ["path"] : []),
      ...(node === extended ? ["chosen"] : []),
    ].join(".");
    const edges = shown.slice(1).map((node) => {
      const from = nodes[node].parent;
      const [x1, y1] = [x(from) + WIDTH, y(from) + HEIGHT / 2];
      const [x2, y2] = [x(node), y(node) + HEIGHT / 2];
      const d = `M${x1} ${y1} C${x1 + 14} ${y1} ${x2 - 14} ${y2} ${x2} ${y2}`;
      return svg(`path.${classes(node)}`, { d });
    });
    edges.sort((a, b) => a.classList.contains("path") - b.classList.contains("path"));
    const boxes = shown.map((node) => {
      const { piece, fate, sum } = nodes[node], [mark, is, why] = fates[fate] ?? [];
      const at = { transform: `translate(${x(node)} ${y(node)})`, onclick: () => pick(node) };
      return svg(`g.node.${classes(node)}`, at,
        svg("title", fate ? `${prefix(node)}: ${is}, ${why}` : "the start"),
        svg("rect", { width: WIDTH, height: HEIGHT }),
        svg("text", { x: 8, y: 14.5, lang }, beginning(piece, 10)),
        svg("text.sum", { x: 8, y: 27.5 }, fate ? `${mark} ${number(sum, 2)}` : ""));
    });
    drawing.replaceChildren(...edges, ...boxes);
    drawing.setAttribute("aria-label", `Search tree up to step ${step} of ${steps.length}`);
  }
  /** The step that extends a node where it lives on, else the one that made it. */
  function pick(node) {
    const [at] = places.get(node), live = steps[at]?.live.indexOf(node) ?? -1;
    if (live >= 0) go(at + 1, live);
    else go(at, steps[at - 1].live.indexOf(nodes[node].parent));
  }
  function go(to, chosen = 0) {
    step = clamp(to, 1, steps.length);
    const { live, made, likeliest, bound, last } = steps[step - 1];
    slot = clamp(chosen, 0, live.length - 1);
    slider.value = step;
    slider.setAttribute("aria-valuetext", `step ${step} of ${steps.length}`);
    draw();
    const counts = new Map();
    for (const node of made) {
      const [, is] = fates[nodes[node].fate];
      counts.set(is, (counts.get(is) ?? 0) + 1);
    }
    const each = ([is, n]) => `${n} ${n > 1 ? is.replace("goes", "go") : is}`;
    const became = [...counts].map(each).join(", ");
    let said = `Step ${step} of ${steps.length}: ${live.length} extended; ${became}.`;
    const now = new Set(made.map((node) => nodes[node].fate));
    const nth = () => `number ${n_best} of the finished has ${number(last, 2)}`;
    if (now.has("overtaken")) {
      said += beam_size === 1 ? " The search ends: its only hypothesis has ended."
        : ` The search ends: ${nth()}, and live hypotheses can reach ${number(bound, 2)} at most.`;
    } else if (now.has("cut_off")) said += " The search ends: no translation may be longer.";
    else if (last !== null) {
      said += ` ${capital(nth())}; live hypotheses can still reach ${number(bound, 2)}.`;
    }
    summary.textContent = said;
    const rows = made.map((node) => {
      const { parent, piece, rank, log_prob, sum, fate } = nodes[node];
      const [mark, is, why] = fates[fate];
      const text = el("span", { lang }, `${ending(prefix(parent))}\u2009\u00b7\u2009${piece}`);
      const numbers = [number(log_prob, 2), percent(Math.exp(log_prob)), number(sum, 2)];
      const told = `${mark} ${is}: ${why}`;
      return { on: parent === live[slot], cells: [rank, text, ...numbers, told] };
    });
    candidates.replaceChildren(table(["#", "candidate", "log p", "p", "sum", "fate"],
      ["number", "text", "number", "number", "number", "wide"], rows));
    const before = ending(prefix(live[slot])), which = `hypothesis ${slot + 1} of ${live.length}`;
    const head = `Likeliest after ${before ? quoted(before) : "the start"} (${which})`;
    next.replaceChildren(el("h3", head), likeliestBars(likeliest[slot], lang));
    const right = MARGIN + step * COLUMN + WIDTH, { scrollLeft, clientWidth } = tree;
    if (right > scrollLeft + clientWidth || right - 2 * COLUMN < scrollLeft) {
      tree.scrollLeft = right - clientWidth + 2 * MARGIN;
    }
    tree.scrollTop = y(live[slot]) - tree.clientHeight / 2;
  }
  function showResults() {
    const rows = results.map(({ text, score, log_prob, finished }, i) => {
      const onclick = () => {
        result = i;
        showResults();
        draw();
        found.querySelectorAll("button")[i].focus();
      };
      const pressed = { type: "button", "aria-pressed": i === result, onclick };
      const name = el("button", { ...pressed, lang: text ? lang : null }, text || "(nothing)");
      const numbers = [number(score, 4), number(log_prob, 4)];
      return { on: i === result, cells: [i + 1, name, ...numbers, finished ? "" : "cut off"] };
    });
    found.replaceChildren(table(["#", "translation", "score", "log p", ""],
      ["number", "text", "number", "number", ""], rows));
  }
  tree.addEventListener("keydown", (event) => {
    const to = {
      ArrowRight: [step + 1], ArrowLeft: [step - 1], Home: [1], End: [steps.length],
      ArrowDown: [step, slot + 1], ArrowUp: [step, slot - 1],
    }[event.key];
    if (!to || isShortcut(event)) return;
    event.preventDefault();
    go(...to);
  });

  const arrow = (text, name, by) => button(text, () => go(step + by), { "aria-label": name });
  const keys = ["\u2190", "\u2192", "\u2191", "\u2193"].map((key) => el("kbd", key));
  const hint = el("span.side", keys[0], " ", keys[1], " step, ", keys[2], " ", keys[3],
    " choose a hypothesis");
  const controls = el("div.controls", arrow("\u2190", "Previous step", -1), slider,
    arrow("\u2192", "Next step", 1), hint);
  const legend = el("ul.legend", ...["lives", "ended", "outranked", "cut_off", "overtaken"].map(
    (fate) => el("li", fates[fate].slice(0, 2).join(" "))));
  const note = `Beam search with ${beam_size} hypotheses, length penalty ${alpha}, at most ` +
    `${longest} tokens. Under each token stands the sum of log-probabilities; a score is that ` +
    `sum over the length penalty.${own ? "" : " The run itself uses another search."}`;
  const view = section("The search", note, controls, tree, legend, summary,
    el("div.row", next, el("div", el("h3", "What was found"), found)),
    el("h3", "Candidates of this step"), candidates);
  showResults();
  return { view, start: () => go(steps.length) };
}
