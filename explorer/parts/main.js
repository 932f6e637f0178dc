// A column for each model.

const models = JSON.parse(document.getElementById("data").textContent);
const [{ source: { text: sentence } }] = models;
document.getElementById("sentence").append(sentence);
document.title = `${sentence} \u2013 translation explorer`;
const main = document.getElementById("models");
main.classList.toggle("pair", models.length > 1);
for (const model of models) {
  for (const kind of Object.keys(KINDS)) {
    model.attention[kind] = new Attention(model.attention[kind]);
  }
  const tokens = tokensView(model), search = searchView(model);
  const about = `${model.name} \u00b7 ${model.about} \u00b7 ${model.position.scheme}`;
  main.append(el("article.model", { "aria-label": model.name },
    el("p.translation", { dir: "auto" }, model.target.text || "(nothing)"), el("p.about", about),
    tokens.view, headsView(model, tokens.select), search.view, positionsView(model),
    numbersView(model)));
  search.start();
}
