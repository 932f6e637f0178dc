"""Figures are measured after drawing: nothing overlaps, nothing is cut, odd text is safe."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from configs.errors import UserError
from utils.plots import attention_grid, attention_map, curves, encoding_heatmap, save_figure

ROOT = Path(__file__).parents[1]
TEXT = "▁une ▁fenêtre ▁ouverte ▁sur ▁la ▁mer , ▁où ▁dort ▁mon ▁chat . ▁aujourd ' hui ▁anticonstitutionnellement"
PIECES = TEXT.split()


def pieces(n: int) -> list[str]:
    return [*(PIECES[i % len(PIECES)] for i in range(n - 1)), "</s>"]


def weights(*shape: int) -> np.ndarray:
    values = np.random.default_rng(0).gamma(0.3, size=shape) + 1e-6
    return values / values.sum(-1, keepdims=True)


def draw(figure) -> list[tuple[str, object]]:
    """Every visible text with its box in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    # Ticks outside the axes' limits are kept by matplotlib but not drawn.
    drawn = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            ticks = axis._update_ticks()
            shown = {id(label) for tick in ticks for label in (tick.label1, tick.label2)}
            every = {id(label) for tick in axis.majorTicks for label in (tick.label1, tick.label2)}
            drawn.append((shown, every))
    hidden = set().union(*(every - shown for shown, every in drawn))
    return [(t.get_text(), t.get_window_extent(renderer)) for t in found if id(t) not in hidden]


def assert_legible(figure) -> list[str]:
    texts = draw(figure)
    width, height = figure.get_size_inches() * figure.dpi
    for content, box in texts:
        assert box.x0 >= 0, f"{content!r} is cut at the left"
        assert box.y0 >= 0, f"{content!r} is cut below"
        assert box.x1 <= width, f"{content!r} is cut at the right"
        assert box.y1 <= height, f"{content!r} is cut above"
    boxes = np.array([box.extents for _, box in texts])
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    overlap = np.minimum(high, boxes[None, :, 2:]) - np.maximum(low, boxes[None, :, :2])
    clash = np.argwhere(np.triu((overlap > 0.5).all(-1), k=1))
    assert not len(clash), [(texts[i][0], texts[j][0]) for i, j in clash[:5]]
    maps = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    for axes in maps:
        area = axes.get_window_extent().extents
        inside = np.minimum(area[2:], boxes[:, 2:]) - np.maximum(area[:2], boxes[:, :2])
        hit = np.flatnonzero((inside > 0.5).all(-1))
        assert not len(hit), f"{texts[hit[0]][0]!r} lies on a picture"
    return [content for content, _ in texts]


def colour_bars(figure) -> list:
    return [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]


@pytest.mark.parametrize(
    ("n_layers", "n_heads", "n_queries", "n_keys"),
    [(1, 1, 4, 4), (1, 8, 5, 30), (6, 1, 30, 4), (4, 4, 12, 12), (2, 3, 1, 7), (1, 1, 1, 1), (6, 8, 30, 30)],
)
def test_grid_has_all_its_labels_and_none_overlap(n_layers, n_heads, n_queries, n_keys):
    queries, keys = pieces(n_queries), pieces(n_keys)
    layers, heads = list(range(1, n_layers + 1)), list(range(1, n_heads + 1))
    figure = attention_grid(
        weights(n_layers, n_heads, n_queries, n_keys),
        queries,
        keys,
        title="Cross-attention",
        layers=layers,
        heads=heads,
    )
    texts = assert_legible(figure)
    assert "Cross-attention" in texts
    assert {f"layer {n}" for n in layers} | {f"head {n}" for n in heads} | {"query", "key"} <= set(texts)
    assert texts.count("</s>") == n_layers + n_heads  # once a row at the left, once a column below
    assert not any(text.startswith("labelled") for text in texts)
    assert len(figure.axes) == n_layers * n_heads + 1
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= 6


def test_grid_prints_the_chosen_layers_and_heads_and_puts_each_map_in_its_place():
    maps = weights(2, 2, 3, 5)
    figure = attention_grid(maps, pieces(3), pieces(5), title="t", layers=[2, 6], heads=[1, 8])
    texts = assert_legible(figure)
    assert {"layer 2", "layer 6", "head 1", "head 8"} <= set(texts)
    cells = [axes for axes in figure.axes if axes.images]
    for axes in cells:
        row = int(axes.get_position().y0 < 0.5)
        column = int(axes.get_position().x0 > min(cell.get_position().x0 for cell in cells) + 0.01)
        assert np.array_equal(axes.images[0].get_array(), maps[row, column])
        assert axes.images[0].origin == "upper"


def test_all_maps_share_one_colour_scale_and_one_bar_from_zero():
    maps = weights(2, 3, 6, 6)
    figure = attention_grid(maps, pieces(6), pieces(6), title="t", layers=[1, 2], heads=[1, 2, 3])
    limits = {axes.images[0].get_clim() for axes in figure.axes if axes.images}
    assert limits == {(0.0, maps.max())}
    assert len(colour_bars(figure)) == 1
    assert "attention weight" in assert_legible(figure)


def test_figure_grows_with_tokens_and_maps():
    def size(n_layers, n_heads, n):
        maps = weights(n_layers, n_heads, n, n)
        layers, heads = range(1, n_layers + 1), range(1, n_heads + 1)
        return attention_grid(maps, pieces(n), pieces(n), title="t", layers=layers, heads=heads).get_size_inches()

    assert (size(2, 2, 30) > size(2, 2, 12) + 1).all()
    assert (size(4, 4, 12) > size(2, 2, 12) + 1).all()


def test_labels_are_thinned_only_where_there_is_no_room_and_the_picture_says_so():
    figure = attention_grid(
        weights(1, 8, 10, 80), pieces(10), [f"k{i}" for i in range(80)], title="t", layers=[1], heads=range(1, 9)
    )
    texts = assert_legible(figure)
    note = next(text for text in texts if text.startswith("labelled"))
    step = int(note.split()[3])
    assert note == f"labelled: 1 in {step} keys"
    assert step > 1
    assert texts.count(f"k{step}") == 8
    assert "k1" not in texts


def test_long_titles_are_wrapped_inside_the_picture():
    title = "Decoder self-attention of a sentence that goes on and on: " + "and on " * 20 + "x" * 120
    texts = assert_legible(attention_map(weights(4, 4), pieces(4), pieces(4), title=title))
    wrapped = next(text for text in texts if text.startswith("Decoder"))
    assert wrapped.count("\n") >= 3
    assert wrapped.replace("\n", "").replace(" ", "") == title.replace(" ", "")


@pytest.mark.parametrize(("n_queries", "n_keys"), [(4, 4), (12, 9), (40, 40), (1, 30)])
def test_single_map_is_legible_with_a_bar_and_a_title(n_queries, n_keys):
    figure = attention_map(weights(n_queries, n_keys), pieces(n_queries), pieces(n_keys), title="Layer 2, head 5")
    texts = assert_legible(figure)
    assert "Layer 2, head 5" in texts
    assert "layer 1" not in texts
    assert len(colour_bars(figure)) == 1


def test_odd_tokens_are_drawn_as_they_are_without_mathtext_or_warnings(tmp_path):
    odd = [
        "$x$",
        "$\\frac{1}$",
        "$",
        "a\tb\n",
        " ",
        "",
        "😀",
        "🦄",
        "你好",
        "_a^b_",
        "e\u0301",
        "\ud83d",
        "\u200d",
        "ع",
        "%&#",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = attention_map(weights(len(odd), len(odd)), odd, odd, title="$\\broken{ 🦄 你")
        texts = assert_legible(figure)
        for suffix in (".png", ".pdf", ".svg"):
            save_figure(figure, tmp_path / f"odd{suffix}")
    assert {"$x$", "$\\frac{1}$", "$", "a\\tb\\n", "␣", "_a^b_", "U+D83D", "U+200D", "%&#"} <= set(texts)
    assert not any(text.get_parse_math() for text in figure.findobj(Text) if "$" in text.get_text())


def test_upright_labels_stand_straight_under_their_columns():
    figure = attention_map(weights(3, 3), "abc", ["▁pont", "pont", "▁"], title="t")
    boxes = dict(draw(figure))
    axes = figure.axes[0]
    for column, label in enumerate(("_pont", "pont", "_")):
        expected = axes.transData.transform((column, 0))[0]
        assert (boxes[label].x0 + boxes[label].x1) / 2 == pytest.approx(expected, abs=1.5)
    widths = [boxes[label].width for label in ("_pont", "pont", "_")]
    assert max(widths) - min(widths) <= 1  # pixels: none hangs out sideways


def test_a_character_without_a_glyph_is_named_so_that_tokens_stay_distinct():
    # Private-use characters: no font of the list has both.
    texts = draw(attention_map(weights(2, 2), ["\U000f0001", "\U000f0002"], ["a", "b"], title="t"))
    assert {"U+F0001", "U+F0002"} <= {content for content, _ in texts}


def test_very_long_tokens_are_shortened():
    long = "Donaudampfschifffahrtsgesellschaftskapitän"
    texts = assert_legible(attention_map(weights(2, 2), [long, "a"], [long, "b"], title="t"))
    shortened = next(text for text in texts if text.startswith("Donau"))
    assert shortened.endswith("…")
    assert len(shortened) <= 20


def test_encoding_heatmap_is_symmetric_around_zero_and_legible():
    positions, pairs = np.arange(256)[:, None], np.arange(256)
    angles = positions / 10000 ** (2 * pairs / 512)
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(256, 512) * 0.7
    figure = encoding_heatmap(table, title="Sinusoidal encoding")
    texts = assert_legible(figure)
    assert {"Sinusoidal encoding", "embedding dimension", "position", "value"} <= set(texts)
    image = figure.axes[0].images[0]
    assert image.get_clim() == (-np.abs(table).max(), np.abs(table).max())
    assert image.origin == "upper"
    assert len(colour_bars(figure)) == 1


def test_encoding_heatmap_of_zeros_and_of_one_row_can_be_drawn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_legible(encoding_heatmap(np.zeros((3, 4)), title="nothing"))
        assert_legible(encoding_heatmap(np.ones((1, 8)), title="one"))


def test_curves_have_a_legend_with_every_name_even_an_odd_one():
    series = {
        "_hidden": ([0, 1, 2], [3.0, 2.0, 1.0]),
        "$rope$": (np.arange(50), np.linspace(3, 1, 50)),
        "one": ([1], [2]),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = curves(series, title="Validation loss " + "of each " * 20, x_label="epoch", y_label="loss ($l$)")
        texts = assert_legible(figure)
    assert {"_hidden", "$rope$", "one", "epoch", "loss ($l$)"} <= set(texts)
    assert any(text.startswith("Validation loss") for text in texts)
    assert not any(text.get_parse_math() for text in figure.findobj(Text) if "$" in text.get_text())
    lines = figure.axes[0].lines
    assert np.array_equal(lines[1].get_ydata(), np.linspace(3, 1, 50))
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")]
)
def test_files_are_written_whole_and_the_same_each_time(tmp_path, suffix, start):
    written = []
    for name in ("a", "b"):
        figure = attention_map(weights(4, 4), pieces(4), pieces(4), title="t")
        path = save_figure(figure, tmp_path / "new" / "folder" / f"{name}{suffix}")
        written.append(path.read_bytes())
    assert written[0].startswith(start)
    assert written[0] == written[1]
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == [f"a{suffix}", f"b{suffix}"]


@pytest.mark.parametrize("name", ["map.gif", "map", "map.png.txt"])
def test_another_suffix_is_refused_and_the_allowed_ones_are_named(tmp_path, name):
    figure = attention_map(weights(2, 2), "ab", "cd", title="t")
    with pytest.raises(UserError, match=r"\.png, \.pdf, \.svg"):
        save_figure(figure, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_path_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.png").mkdir()
    figure = attention_map(weights(2, 2), "ab", "cd", title="t")
    for path in (tmp_path / "file" / "map.png", tmp_path / "folder.png"):
        with pytest.raises(UserError, match="cannot write") as error:
            save_figure(figure, path)
        assert "\n" not in str(error.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.png"]


def test_arrays_that_do_not_fit_their_labels_are_refused():
    with pytest.raises(ValueError, match=r"\(1, 2, 3, 4\).*\(1, 2, 3, 3\)"):
        attention_grid(weights(1, 2, 3, 4), "abc", "abc", title="t", layers=[1], heads=[1, 2])
    with pytest.raises(ValueError, match=r"\(3, 4\).*\(4, 3\)"):
        attention_map(weights(3, 4), "abcd", "abc", title="t")
    with pytest.raises(ValueError, match="finite"):
        attention_map(np.full((2, 2), np.nan), "ab", "ab", title="t")
    with pytest.raises(ValueError, match="finite"):
        attention_map(np.ones((0, 2)), "", "ab", title="t")
    with pytest.raises(ValueError, match=r"\[T, D\]"):
        encoding_heatmap(np.ones(3), title="t")
    with pytest.raises(ValueError, match="'a' has 2 x values and 1"):
        curves({"a": ([1, 2], [1])}, title="t", x_label="x", y_label="y")
    with pytest.raises(ValueError, match="empty"):
        curves({}, title="t", x_label="x", y_label="y")


def test_matplotlib_is_loaded_on_use_and_pyplot_never():
    code = (
        "import sys, numpy, utils.plots as p\n"
        "assert 'matplotlib' not in sys.modules\n"
        "p.attention_map(numpy.ones((1, 1)), 'a', 'b', title='t')\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
