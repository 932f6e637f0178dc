// The page: what is typed is translated when the typing rests; every text is set as text.
"use strict";

const PAUSE = 250; // milliseconds without a key before a request goes out
const AGAIN = 2000; // milliseconds before the server is asked again for its models
const MOST_LINKED = 20; // sentences
const at = (id) => document.getElementById(id);
const text = at("text");
let models = [], most = 0, timer = 0, under_way = null;

function element(name, words, className) {
  const made = document.createElement(name);
  if (words !== undefined) made.textContent = words;
  if (className) made.className = className;
  return made;
}

function say(words, bad) {
  at("status").textContent = words;
  at("status").className = bad ? "bad" : "";
}

async function ask(path, body, signal) {
  const how = body && {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
  };
  const response = await fetch(path, how);
  const nothing = { error: `the server answered ${response.status}` }; // a proxy
  const answer = await response.json().catch((error) => {
    if (error instanceof TypeError) throw error; // the answer breaks off
    return nothing;
  });
  if (!response.ok || answer === nothing) {
    const later = Number(response.headers.get("Retry-After")); // seconds, of a busy server
    throw Object.assign(new Error(answer?.error || nothing.error), { later });
  }
  return answer;
}

// A TypeError is what `fetch` raises, and reading its answer.
const told = (error) => (error instanceof TypeError ? "the server does not answer" : error.message);

const tag = (code) => code.replaceAll("_", "-"); // "zh_CN", as files are named

function language(code) {
  try { return new Intl.DisplayNames(["en"], { type: "language" }).of(tag(code)); } catch { return code; }
}

const chosen = () => models[at("model").selectedIndex]; // an option's text loses white space

function setModel() {
  const model = chosen();
  at("source-name").textContent = language(model.source);
  at("target-name").textContent = language(model.target);
  document.title = `${language(model.source)} to ${language(model.target)}`;
  text.lang = tag(model.source);
  text.placeholder = `Type or paste ${language(model.source)}`;
  at("prefix").placeholder = `Optional: how the ${language(model.target)} should begin`;
  const score = model.mbr
    ? `Best first. Expected ${model.mbr} against all translations found, itself included, summed over the sentences: higher is better.`
    : "Best first. Log-probability over the length penalty, summed over the sentences: nearer to zero is likelier.";
  const last = model.searches[0] === "sample" ? "" : " Those cut off at the greatest length come last.";
  at("ranked-note").textContent = score + last;
  at("best").lang = at("prefix").lang = tag(model.target);
  const search = at("search").value; // kept where this model has it
  at("search").replaceChildren(...model.searches.map((name) => element("option", name)));
  if (model.searches.includes(search)) at("search").value = search;
}

// ---------------------------------------------------------------------------------- translating

function later() {
  clearTimeout(timer);
  at("copy").disabled = true; // what stands there is of another text
  for (const box of [text, at("prefix")]) sessionStorage.setItem(box.id, box.value); // for a reload
  const n = [...text.value, ...at("prefix").value].length; // whole characters, as the server counts
  at("length").textContent = `${n.toLocaleString("en")} of ${most.toLocaleString("en")} characters`;
  at("length").className = n > most ? "bad" : "";
  offer();
  timer = setTimeout(translate, PAUSE);
}

function offer(first = text.value.trim().split("\n")[0]) {
  at("explore").hidden = !first || !chosen().attention;
  at("explore").href = `explore?${new URLSearchParams({ text: first, model: chosen().name })}`;
}

async function translate() {
  if (under_way) under_way.abort(); // the server then leaves it out
  const q = text.value, here = new AbortController();
  under_way = here;
  const search = at("search").value, greedy = search === "greedy";
  at("count").disabled = greedy; // it finds one
  if (!q.trim()) {
    show([]);
    say("");
    return;
  }
  at("best").classList.add("waiting");
  at("copy").disabled = true;
  const body = {
    q, source: chosen().source, target: chosen().target, format: "text", model: chosen().name,
    prefix: at("prefix").value, search, alternatives: greedy ? 0 : Number(at("count").value) - 1, details: true,
  };
  const begun = performance.now(), slow = setTimeout(say, 700, "translating\u2026");
  try {
    const answer = await ask("translate", body, here.signal).finally(() => clearTimeout(slow));
    if (here !== under_way) return;
    show(answer.hypotheses);
    const cut = answer.hypotheses[0].finished ? "" : "cut off at the greatest length; ";
    const other = answer.reads_as_source ? "" : `this does not read like ${language(chosen().source)}; `;
    say(`${other}${cut}${Math.round(performance.now() - begun)} ms`);
    if (text.value === q) offer(answer.sentences[0]?.[0]);
    if (chosen().attention) await link(answer.sentences, here);
  } catch (error) {
    if (here !== under_way || error.name === "AbortError") return;
    show([]); // what stood there is of another text
    say(told(error), true);
    const pause = error instanceof TypeError ? AGAIN : 1000 * error.later;
    if (pause) timer = setTimeout(translate, pause);
  }
}

function show(hypotheses) {
  const best = at("best");
  best.classList.remove("waiting");
  best.textContent = hypotheses.length ? hypotheses[0].text : "";
  at("copy").disabled = !hypotheses.length;
  at("ranked-part").hidden = hypotheses.length < 2;
  at("ranked").replaceChildren(...hypotheses.map((found) => {
    const item = element("li");
    item.lang = at("best").lang;
    const words = element("span", found.text);
    words.dir = "auto";
    item.append(element("span", found.score.toFixed(3)), words);
    return item;
  }));
  at("words-part").hidden = true;
  at("words").replaceChildren();
}

// ------------------------------------------------------------------------------------- alignments

async function link(pairs, here) {
  for (const [src, tgt] of pairs.filter(([, t]) => t.trim()).slice(0, MOST_LINKED)) {
    // A translation stands where its words cannot be linked.
    const found = await ask("align", { src, tgt, model: chosen().name }, here.signal).catch(() => null);
    if (here !== under_way) return;
    if (!found) continue;
    at("words").append(linked(found));
    at("words-part").hidden = false;
  }
}

function linked({ src, tgt, pairs }) {
  const line = element("div", undefined, "line");
  const sides = [src, tgt].map((words, side) => words.map((word, i) => {
    const made = element("span", word, "word");
    const partners = pairs.filter((pair) => pair[side] === i).map((pair) => pair[1 - side]);
    const others = partners.map((j) => [src, tgt][1 - side][j]);
    made.setAttribute("role", "note");
    made.setAttribute("aria-label", others.length ? `${word}: ${others.join(" ")}` : `${word}: no word`);
    made.partners = partners.map((j) => [1 - side, j]);
    for (const event of ["mouseenter", "focus", "mouseleave", "blur"]) {
      made.addEventListener(event, light);
    }
    return made;
  }));
  function light() { // of the word under the pointer and the one in focus
    for (const word of sides.flat()) word.classList.remove("here", "lit");
    for (const word of sides.flat().filter((each) => each.matches(":hover, :focus"))) {
      word.classList.add("here");
      for (const [side, j] of word.partners) sides[side][j].classList.add("lit");
    }
  }
  for (const [side, words] of sides.entries()) {
    const row = element("p");
    row.lang = side ? at("best").lang : text.lang;
    row.dir = "auto";
    for (const word of words) row.append(word, " ");
    line.append(row);
  }
  const words = sides.flat();
  words.forEach((word, i) => { // Tab reaches a line, arrow keys its words
    word.tabIndex = i ? -1 : 0;
    word.addEventListener("keydown", (event) => {
      const forward = getComputedStyle(word.parentElement).direction === "rtl" ? -1 : 1;
      const to = words[i + { ArrowRight: forward, ArrowLeft: -forward }[event.key]];
      if (!to || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      to.focus();
    });
  });
  return line;
}

// ------------------------------------------------------------------------------------------ start

async function start() {
  const offered = await ask("models");
  models = offered.models;
  most = offered.max_chars;
  at("model").replaceChildren(...models.map((model) => element("option", model.name)));
  setModel();
  for (const box of [text, at("prefix")]) {
    box.value ||= sessionStorage.getItem(box.id) ?? "";
    box.addEventListener("input", later);
  }
  text.addEventListener("input", () => { // a beginning is of one text
    if (!text.value.trim()) at("prefix").value = "";
  });
  at("model").addEventListener("change", () => { setModel(); offer(); translate(); });
  at("search").addEventListener("change", translate);
  at("count").addEventListener("change", translate);
  at("copy").addEventListener("click", async () => {
    getSelection().selectAllChildren(at("best")); // where there is no clipboard: over plain http
    const copied = navigator.clipboard
      ? navigator.clipboard.writeText(at("best").textContent).then(() => true, () => false)
      : document.execCommand("copy");
    if (await copied) say("copied");
    else say("the browser does not allow copying", true);
  });
  later();
}

function begin() {
  start().catch((error) => {
    say(told(error), true);
    setTimeout(begin, AGAIN);
  });
}

begin();
