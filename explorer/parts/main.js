// A column for each model.

const models = JSON.parse(document.getElementById("data").textContent);
const [{ source: { text: sentence, lang } }] = models;
Object.assign(document.getElementById("sentence"), { lang }).append(sentence);
document.title = `${sentence} \u2013 translation explorer`;
const main = document.getElementById("models");
main.classList.toggle("pair", models.length > 1);
for (const model of models) {
  for (const kind of Object.keys(KINDS)) {
    model.attention[kind] = new Attention(model.attention[kind]);
  }
  const tokens = tokensView(model), search = searchView(model);
  const { text, lang } = model.target;
  const about = `${model.name} \u00b7 ${model.about} \u00b7 ${model.position.scheme}`;
  main.append(el("article.model", { "aria-label": model.name },
    el("p.translation", { dir: "auto", lang: text ? lang : null }, text || "(nothing)"),
    el("p.about", about), tokens.view, headsView(model, tokens.select), search.view,
    positionsView(model), numbersView(model)));
  search.start();
}
