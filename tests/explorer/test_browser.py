"""The explorer in a real browser, from disk: pointed at, and used by keyboard alone."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import WIDTHS, chromium, complaints, dark, overflow, requested
from made_runs import untrained_run
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait
from test_trace import SENTENCE, traced, unpacked
from tiny_models import LIMITS, tiny_model

from configs.positions import Alibi, Rope
from explorer.packed import pack
from explorer.page import page
from explorer.tree import searched

pytestmark = pytest.mark.slow

ODD = "</script><script>window.hit=1</script> <img src=x onerror=window.hit=1> \"q\" 'q' &amp; ${x}"
ODD += " $data 😀 👩‍👩‍👧 שלום مرحبا"


class Page:
    """An open page; `close` finds what no page may do."""

    def __init__(self, driver: Any, file: Path) -> None:
        self.driver, self.file = driver, file
        overflow(driver, 1024)
        dark(driver, False)
        driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
        driver.get(file.as_uri())
        # The driver does not always wait for the script at the end of a large file.
        WebDriverWait(driver, 20).until(lambda _: self.run("document.readyState") == "complete")

    def run(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def all(self, css: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def texts(self, css: str) -> list[str]:
        """As the DOM has them, without the marks that keep a direction to itself."""
        found = self.run(f"Array.from(document.querySelectorAll({css!r}), e => e.textContent)")
        return [text.replace("\u2068", "").replace("\u2069", "") for text in found]

    def text(self, css: str) -> str:
        [text] = self.texts(css)
        return text

    def keys(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def choose(self, label: str, value: str) -> None:
        script = f"""Array.from(document.querySelectorAll("label")).find(
            label => label.firstChild.textContent === {label!r}).querySelector("select")"""
        self.driver.execute_script(
            f"const s = {script}; s.value = {value!r}; s.dispatchEvent(new Event('change'))"
        )

    def close(self) -> None:
        assert complaints(self.driver) == []
        assert requested(self.driver) == {self.file.as_uri()}


Show = Callable[..., Page]
Traces = list[dict[str, Any]]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


@pytest.fixture(scope="module")
def traces(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """Of the trained run, and of one with a bias on its logits."""
    biased = untrained_run(trained_run, tmp_path_factory.mktemp("biased"), position=Alibi())
    return [traced(run, tgt_text="She is tired.") for run in (trained_run, biased)]


@pytest.fixture
def show(driver: Any, tmp_path: Path) -> Iterator[Show]:
    shown = []

    def show(*traces: dict[str, Any]) -> Page:
        file = tmp_path / "page.html"
        file.write_text(page(traces), "utf-8")
        shown.append(Page(driver, file))
        return shown[-1]

    yield show
    for each in shown:
        each.close()


def percent(p: float) -> str:
    return f"{100 * p:.0f} %" if p >= 0.0995 else f"{100 * p:.2g} %"


@pytest.mark.parametrize("n_models", [1, 2])
def test_it_fits_every_width_in_light_and_dark(show: Show, traces: Traces, n_models: int) -> None:
    opened, grounds = show(*traces[:n_models]), set()
    assert opened.texts("article .about") == [
        f"{t['name']} · {t['about']} · {t['position']['scheme']}" for t in traces[:n_models]
    ]
    opened.keys(Keys.TAB)
    for pixels in WIDTHS:
        for by_night in (False, True):
            dark(opened.driver, by_night)
            assert overflow(opened.driver, pixels) == 0
            # What is wider scrolls in a box of its own, and nothing sticks out of a section.
            out = """Array.from(document.querySelectorAll("section.view > *")).filter(e =>
                e.getBoundingClientRect().right > e.parentElement.getBoundingClientRect().right + 1
            ).map(e => e.className)"""
            assert opened.run(out) == []
            grounds.add(opened.run("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2
    side_by_side = (
        "new Set(Array.from(document.querySelectorAll('article'), e => e.offsetLeft)).size"
    )
    assert opened.run(side_by_side) == n_models


def test_pointing_at_a_token_shows_what_it_looks_at(show: Show, traces: Traces) -> None:
    opened, trace = show(traces[0]), traces[0]
    opened.choose("Show", "pieces")
    opened.choose("Layer", "1")
    opened.choose("Head", "0")
    token = opened.all(".tokens.target .token")[3]  # the start stands before them
    ActionChains(opened.driver).move_to_element(token).perform()
    weights = np.exp(unpacked(trace["attention"]["cross"]["log_weights"]))[1, 0, 2]
    best = np.argsort(-weights)[:6]
    pieces = trace["source"]["pieces"]
    assert opened.texts(".detail > :first-child .name") == [pieces[i] for i in best]
    assert opened.texts(".detail > :first-child .number") == [percent(weights[i]) for i in best]
    piece = trace["target"]["pieces"][2]
    assert f"To write “{piece}” the model looked at “{pieces[best[0]]}”" in opened.text(
        ".stage ~ .told"
    )
    assert opened.texts(".detail > :last-child .name") == [
        name for name, _ in trace["target"]["likeliest"][2][:6]
    ]
    # The strongest line runs from the strongest source piece to the token.
    ends = opened.run(
        """Array.from(document.querySelectorAll(".stage path"), p => [+p.getAttribute(
        "stroke-opacity"), ...p.getAttribute("d").match(/[-.\\d]+/g).map(Number)])"""
    )
    strongest = max(ends)
    chip = "document.querySelector('.tokens.{}').children[{}]"
    middle = f"(e => e.offsetLeft + e.offsetWidth / 2)({chip})"
    assert strongest[1] == pytest.approx(opened.run(middle.format("target", 3)), abs=1.5)
    assert strongest[-2] == pytest.approx(opened.run(middle.format("source", best[0])), abs=1.5)
    # The mean over all heads of a word, the sum of its pieces.
    opened.choose("Show", "words")
    opened.choose("Layer", "all")
    opened.choose("Head", "all")
    token = opened.all(".tokens.source .token")[2]
    ActionChains(opened.driver).move_to_element(token).perform()
    mean = np.exp(unpacked(trace["attention"]["cross"]["log_weights"])).mean((0, 1))
    of_word = np.array(trace["source"]["word_of"]) == 2
    rows = np.array(trace["target"]["word_of"])
    expected = [mean[rows == row][:, of_word].sum(1).mean() for row in range(max(rows) + 1)]
    assert opened.texts(".detail .number") == [percent(p) for p in sorted(expected)[::-1][:6]]
    # And the maximum over the heads, of a word too: never more than the whole.
    opened.choose("Over several", "maximum")
    heads = np.exp(unpacked(trace["attention"]["cross"]["log_weights"])).reshape(-1, *mean.shape)
    expected = [
        max(head[rows == row][:, of_word].sum(1).mean() for head in heads)
        for row in range(max(rows) + 1)
    ]
    assert opened.texts(".detail .number") == [percent(p) for p in sorted(expected)[::-1][:6]]


def test_everything_is_reached_and_read_by_keyboard(show: Show, traces: Traces) -> None:
    opened, trace = show(traces[0]), traces[0]
    active = opened.driver.switch_to
    stops = []
    for _ in range(80):
        opened.keys(Keys.TAB)
        stop = active.active_element
        if stop.tag_name == "body":
            break
        stops.append((stop.get_attribute("class") or "", stop.aria_role, stop.accessible_name))
    assert all(name for _, _, name in stops)
    assert {"token", "head", "tree"} <= {css.split(" ")[0] for css, _, _ in stops}
    assert ("", "slider", "Step of the search") in stops
    assert len(stops) < 40  # rows of things are one stop: arrow keys lead through them
    # Tokens.
    opened.run("document.querySelector('.tokens.source .token').focus()")
    opened.keys(Keys.ARROW_RIGHT)
    words = trace["source"]["words"]
    assert active.active_element.accessible_name == f"{words[1]}, 2 of {len(words)}"
    assert opened.text(".stage ~ .told").startswith(f"“{words[1]}” is looked at by “")
    opened.keys(Keys.ESCAPE)
    assert opened.text(".stage ~ .told").startswith("Point at a token")
    # What its columns leave of the width is never exceeded: there would be a bar to scroll by.
    wider = """Array.from({length: 40}, (_, i) => 300 + i).filter(width => parseFloat(matrix({
        title: "", rows: ["a"], columns: Array(16).fill("b"), names: ["", ""], scale: "weight",
        value: () => 0, square: false, width}).querySelector("canvas").style.width) > width)"""
    assert opened.run(wider) == []
    # A head's matrix.
    opened.run("document.querySelector('.head').focus()")
    opened.keys(Keys.ARROW_RIGHT, Keys.ENTER)
    assert opened.run("document.querySelector('dialog').open")
    assert opened.text("dialog h2") == "Cross-attention, layer 1, head 2"
    opened.keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    weights = np.exp(unpacked(trace["attention"]["cross"]["log_weights"]))
    pieces = trace["target"]["pieces"][1], trace["source"]["pieces"][1]
    cell = f"{pieces[0]} → {pieces[1]}: {weights[0, 1, 1, 1]:.3f}"
    assert opened.text("dialog .readout") == cell
    # The matrix has the colours of the small map.
    drawn = """Array.from(new Set(new Uint32Array((c => c.getContext('2d').getImageData(
        0, 0, c.width, c.height).data.buffer)(document.querySelectorAll({!r})[{}]))))"""
    small, large = (
        set(opened.run(drawn.format(*at))) for at in ((".head canvas", 1), ("dialog canvas", 0))
    )
    assert len(small) > 10
    assert small <= large
    # Next can be pressed again.
    opened.run("document.querySelectorAll('dialog button')[1].focus()")
    opened.keys(Keys.ENTER)
    assert opened.text("dialog h2") == "Cross-attention, layer 2, head 1"
    assert opened.run("document.activeElement.textContent") == "Next"
    opened.keys(Keys.ESCAPE)
    assert not opened.run("document.querySelector('dialog').open")
    assert "head" in active.active_element.get_attribute("class")
    # What is chosen keeps the focus, and so does what shows a head in the text.
    opened.run("document.querySelectorAll('td button')[1].focus()")
    opened.keys(Keys.ENTER)
    assert active.active_element.get_attribute("aria-pressed") == "true"
    assert active.active_element.text == trace["search"]["results"][1]["text"]
    opened.run("document.querySelector('.head').focus()")
    opened.keys(Keys.ENTER)
    opened.run("document.querySelectorAll('dialog button')[2].focus()")
    opened.keys(Keys.ENTER)
    assert active.active_element.accessible_name == "Attention"


def test_arrow_keys_step_through_the_search(show: Show, traces: Traces) -> None:
    opened, search = show(traces[0]), traces[0]["search"]
    nodes, steps = search["nodes"], search["steps"]
    opened.run("document.querySelector('.tree').focus()")
    opened.keys(Keys.HOME)
    assert f"Step 1 of {len(steps)}: 1 extended" in opened.text(".legend ~ .told")
    assert len(opened.all(".tree .node")) == 1 + len(steps[0]["made"])
    opened.driver.execute_script("""const key = { key: "ArrowRight", altKey: true, bubbles: true };
        document.activeElement.dispatchEvent(new KeyboardEvent("keydown", key));""")
    assert f"Step 1 of {len(steps)}: " in opened.text(".legend ~ .told")  # the browser's own key
    opened.keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    told = opened.text(".legend ~ .told")
    assert f"Step 2 of {len(steps)}: 5 extended" in told
    assert "5 go on" in told
    shown = opened.texts(".legend ~ .table td:nth-child(5)")
    made = [nodes[node] for node in steps[1]["made"]]
    assert shown == [f"{node['sum']:.2f}".replace("-", "−") for node in made]
    fates = opened.texts(".legend ~ .table td:nth-child(6)")
    words = {"lives": "→ goes on", "outranked": "× pruned", "ended": "■ finished"}
    assert [fate.split(":")[0] for fate in fates] == [words[node["fate"]] for node in made]
    likeliest = steps[1]["likeliest"][1]  # of the second hypothesis
    assert opened.texts(".legend ~ .row .name") == [piece for piece, _ in likeliest]
    assert opened.texts(".legend ~ .row .bars .number") == [
        percent(np.exp(p)) for _, p in likeliest
    ]
    opened.run("document.querySelector('.tree').style.maxHeight = '6rem'")  # as of a wide beam
    opened.keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert opened.run("document.querySelector('.tree').scrollTop") > 0
    opened.keys(Keys.END)
    assert f"Step {len(steps)} of {len(steps)}" in opened.text(".legend ~ .told")
    assert len(opened.all(".tree .node")) == len(nodes)
    winner, path = search["results"][0]["node"], []
    while winner is not None:
        path.insert(0, winner)
        winner = nodes[winner]["parent"]
    assert len(opened.all(".tree g.path")) == len(path)
    assert opened.texts(".legend ~ .row td.text") == [
        result["text"] or "(nothing)" for result in search["results"]
    ]
    # Another result, another path.
    opened.all(".legend ~ .row td.text button")[1].click()
    second = search["results"][1]["node"]
    depth = len([step for step in steps if any(n <= second for n in step["made"])])
    assert len(opened.all(".tree g.path")) == 1 + depth


@pytest.mark.parametrize(
    ("beam_size", "fate", "end"),
    [
        (1, "the only hypothesis has ended", "The search ends: its only hypothesis has ended."),
        (4, "it would go on, but could no longer win", "and live hypotheses can reach −2.41 at"),
    ],
)
def test_the_search_says_why_it_ended(
    show: Show, traces: Traces, beam_size: int, fate: str, end: str
) -> None:
    tree, results = searched(
        tiny_model(Rope(), seed=5),
        torch.tensor([[3, 4, 5, 2, 0]]),
        LIMITS,
        beam_size=beam_size,
        n_best=1,
        pieces=lambda ids: [str(i) for i in ids],
    )
    search = {"beam_size": beam_size, "n_best": 1, "nodes": tree.nodes, "steps": tree.steps}
    search["results"] = [{**result, "text": "found"} for result in results]
    opened = show({**traces[0], "search": traces[0]["search"] | search})
    assert end in opened.text(".legend ~ .told")
    assert f"– given up: {fate}" in opened.texts(".legend ~ .table td:nth-child(6)")


def test_the_bias_is_shown_with_the_logits_with_and_without_it(show: Show, traces: Traces) -> None:
    trace = traces[1]
    logits = unpacked(trace["attention"]["encoder"]["log_weights"])
    logits[0, 0, 0, 3] = -np.inf  # as by a steep slope, of a key that nothing hides
    encoder = trace["attention"]["encoder"] | {"log_weights": pack(logits)}
    opened = show({**trace, "attention": trace["attention"] | {"encoder": encoder}})
    boxes = ".parts .bias:first-child .matrix"
    assert len(opened.all(boxes)) == 3
    bias = unpacked(trace["position"]["parts"][0]["values"])[0, 0]
    own = f"query down, key across; full colour: {np.abs(bias).max():.2g}."
    assert opened.texts(f"{boxes} .readout")[0] == own
    for canvas in opened.all(f"{boxes} canvas"):
        canvas.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    readouts = opened.texts(f"{boxes} .readout")
    values = [float(text.split(": ")[-1].replace("−", "-")) for text in readouts]
    row = logits[0, 0, 2]
    expected = [bias[2, 0], row[0] - row.mean()]
    expected.append(expected[1] - (bias[2, 0] - bias[2].mean()))
    assert values == pytest.approx(expected, abs=2e-3)
    opened.all(".parts .bias:last-child canvas")[0].send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert "Blue is above 0 and orange below" in opened.texts(".note")[3]
    readout = opened.texts(".parts .bias:last-child .readout")[0]
    assert readout.endswith(": hidden by the mask")
    to_it = [Keys.ARROW_UP] * 2 + [Keys.ARROW_RIGHT] * 3
    opened.all(f"{boxes} canvas")[1].send_keys(*to_it)
    assert opened.texts(f"{boxes} .readout")[1].endswith(": its weight is 0 in float32")


def test_any_text_is_shown_as_text(show: Show, trained_run: Path) -> None:
    opened = show(traced(trained_run, ODD, ODD))
    for css in ("h1", ".translation"):
        assert opened.text(css) == ODD
    assert opened.texts(".tokens.source .token")[:-1] == ODD.split(" ")
    assert opened.run("[window.hit, document.scripts.length, document.images.length]") == [
        None,
        2,
        0,
    ]
    opened.run("document.querySelectorAll('.tokens.source .token')[1].focus()")
    assert opened.text(".stage ~ .told").startswith("“<img” is looked at by")
    assert (
        opened.run("getComputedStyle(document.querySelector('.tokens.source')).direction") == "ltr"
    )


def test_right_to_left_and_500_tokens(show: Show, trained_run: Path) -> None:
    text = " ".join(["مرحبا بالعالم"] * 20)
    found = traced(trained_run, text)
    assert len(found["source"]["pieces"]) >= 480
    opened = show(found)
    assert opened.text("h1") == text
    lefts = opened.run(
        "Array.from(document.querySelector('.tokens.source').children, e => e.offsetLeft)"
    )
    assert lefts[0] > lefts[1] > lefts[2]
    said = opened.run("['\\ufeffBon', '\\u0661 Bon', '1 \\u05d0'].map(text => direction(text))")
    assert said == ["ltr", "ltr", "rtl"]  # the first letter says, not a mark or a digit
    opened.choose("Show", "pieces")
    assert len(opened.all(".tokens.source .token")) == len(found["source"]["pieces"])
    assert overflow(opened.driver, 360) == 0
    # The keys that lead through a large map scroll to where they lead.
    opened.run("document.querySelector('.head').focus()")
    opened.keys(Keys.ENTER, *[Keys.ARROW_RIGHT] * 150)
    box = "document.querySelector('dialog .scroll')"
    assert opened.run(f"{box}.clientWidth < 400 && {box}.scrollLeft > 50")


def test_two_models_stand_side_by_side_and_answer_for_themselves(
    show: Show, traces: Traces
) -> None:
    opened = show(*traces)
    for place, trace in enumerate(traces, start=1):
        column = f"article:nth-child({place})"
        opened.run(f"document.querySelector('{column} .tokens.target .token:nth-child(2)').focus()")
        mean = np.exp(unpacked(trace["attention"]["cross"]["log_weights"])).mean((0, 1))
        rows, columns = (np.array(trace[side]["word_of"]) for side in ("target", "source"))
        first = mean[rows == 0].mean(0)
        best = max(first[columns == word].sum() for word in range(max(columns) + 1))
        assert opened.texts(f"{column} .detail > :first-child .number")[0] == percent(best)
    assert opened.text("h1") == SENTENCE


def test_what_is_in_another_language_says_so(show: Show, traces: Traces) -> None:
    opened = show(traces[0])
    for css, lang in {
        "h1": "fr",
        ".translation": "en",
        ".tokens.source .token:not(.special)": "fr",
        ".tokens.target .token:not(.special)": "en",
        ".detail .name": "en",
        ".tree svg g text:not(.sum)": "en",
        ".legend ~ .table td.text > *": "en",
    }.items():
        script = f"Array.from(document.querySelectorAll({css!r}), e => e.getAttribute('lang'))"
        assert set(opened.run(script)) == {lang}, css
