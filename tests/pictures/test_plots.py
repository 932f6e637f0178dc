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

from pictures.attention import AttentionMaps, attention_grid, attention_map
from pictures.panels import (
    Curve,
    curve_panels,
    curves,
    encoding_heatmap,
    matrix_panels,
    point_panels,
    save_animation,
    save_figure,
)
from pictures.text import width_of, wrap
from utils.errors import UserError

ROOT = Path(__file__).parents[2]
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
    found = [
        text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()
    ]
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


def grid(*args, **names):
    return attention_grid(AttentionMaps(*args, **names))


def colour_bars(figure) -> list:
    return [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]


@pytest.mark.parametrize(
    ("n_layers", "n_heads", "n_queries", "n_keys"),
    [
        (1, 1, 4, 4),
        (1, 8, 5, 30),
        (6, 1, 30, 4),
        (4, 4, 12, 12),
        (2, 3, 1, 7),
        (1, 1, 1, 1),
        (6, 8, 30, 30),
    ],
)
def test_grid_has_all_its_labels_and_none_overlap(n_layers, n_heads, n_queries, n_keys):
    queries, keys = pieces(n_queries), pieces(n_keys)
    layers, heads = list(range(1, n_layers + 1)), list(range(1, n_heads + 1))
    figure = grid(
        weights(n_layers, n_heads, n_queries, n_keys),
        queries,
        keys,
        title="Cross-attention",
        layers=layers,
        heads=heads,
    )
    texts = assert_legible(figure)
    assert "Cross-attention" in texts
    assert {f"layer {n}" for n in layers} | {f"head {n}" for n in heads} | {"query", "key"} <= set(
        texts
    )
    assert texts.count("</s>") == n_layers + n_heads  # once a row at the left, once a column below
    assert not any(text.startswith("labelled") for text in texts)
    assert len(figure.axes) == n_layers * n_heads + 1
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= 6


def test_grid_prints_the_chosen_layers_and_heads_and_puts_each_map_in_its_place():
    maps = weights(2, 2, 3, 5)
    figure = grid(maps, pieces(3), pieces(5), title="t", layers=[2, 6], heads=[1, 8])
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
    figure = grid(maps, pieces(6), pieces(6), title="t", layers=[1, 2], heads=[1, 2, 3])
    limits = {axes.images[0].get_clim() for axes in figure.axes if axes.images}
    assert limits == {(0.0, maps.max())}
    assert len(colour_bars(figure)) == 1
    assert "attention weight" in assert_legible(figure)


def test_figure_grows_with_tokens_and_maps():
    def size(n_layers, n_heads, n):
        maps = weights(n_layers, n_heads, n, n)
        layers, heads = range(1, n_layers + 1), range(1, n_heads + 1)
        return grid(
            maps, pieces(n), pieces(n), title="t", layers=layers, heads=heads
        ).get_size_inches()

    assert (size(2, 2, 30) > size(2, 2, 12) + 1).all()
    assert (size(4, 4, 12) > size(2, 2, 12) + 1).all()


def test_labels_are_thinned_only_where_there_is_no_room_and_the_picture_says_so():
    figure = grid(
        weights(1, 8, 10, 80),
        pieces(10),
        [f"k{i}" for i in range(80)],
        title="t",
        layers=[1],
        heads=range(1, 9),
    )
    texts = assert_legible(figure)
    note = next(text for text in texts if text.startswith("labelled"))
    step = int(note.split()[3])
    assert note == f"labelled: 1 in {step} keys"
    assert step > 1
    assert texts.count(f"k{step}") == 8
    assert "k1" not in texts


def test_the_last_line_of_a_title_is_not_a_lone_word_where_the_line_before_can_spare_one():
    width = width_of("the encoding of a run, epoch", 10)
    assert wrap("the encoding of a run, epoch 6)", 10, width) == [
        "the encoding of a run,",
        "epoch 6)",
    ]
    assert wrap("the encoding of a run, epoch", 10, width) == ["the encoding of a run, epoch"]
    assert wrap("a word", 10, width_of("word", 10)) == ["a", "word"]  # nothing to spare
    assert wrap("a 1234567 1234", 10, width_of("a 1234567", 10)) == [
        "a 1234567",
        "1234",
    ]  # no room below


def test_long_titles_are_wrapped_inside_the_picture():
    title = (
        "Decoder self-attention of a sentence that goes on and on: " + "and on " * 20 + "x" * 120
    )
    texts = assert_legible(attention_map(weights(4, 4), pieces(4), pieces(4), title=title))
    wrapped = next(text for text in texts if text.startswith("Decoder"))
    assert wrapped.count("\n") >= 3
    assert wrapped.replace("\n", "").replace(" ", "") == title.replace(" ", "")


@pytest.mark.parametrize(("n_queries", "n_keys"), [(4, 4), (12, 9), (40, 40), (1, 30)])
def test_single_map_is_legible_with_a_bar_and_a_title(n_queries, n_keys):
    figure = attention_map(
        weights(n_queries, n_keys), pieces(n_queries), pieces(n_keys), title="Layer 2, head 5"
    )
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
    assert {"$x$", "$\\frac{1}$", "$", "a\\tb\\n", "␣", "_a^b_", "U+D83D", "U+200D", "%&#"} <= set(
        texts
    )
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
        figure = curves(
            series,
            title="Validation loss " + "of each " * 20,
            x_label="epoch",
            y_label="loss ($l$)",
        )
        texts = assert_legible(figure)
    assert {"_hidden", "$rope$", "one", "epoch", "loss ($l$)"} <= set(texts)
    assert any(text.startswith("Validation loss") for text in texts)
    assert not any(text.get_parse_math() for text in figure.findobj(Text) if "$" in text.get_text())
    lines = figure.axes[0].lines
    assert np.array_equal(lines[1].get_ydata(), np.linspace(3, 1, 50))
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("suffix", "start"),
    [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")],
)
def test_files_are_written_whole_and_the_same_each_time(tmp_path, suffix, start):
    written = []
    for name in ("a", "b"):
        figure = attention_map(weights(4, 4), pieces(4), pieces(4), title="t")
        path = save_figure(figure, tmp_path / "new" / "folder" / f"{name}{suffix}")
        written.append(path.read_bytes())
    assert written[0].startswith(start)
    assert written[0] == written[1]
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == [
        f"a{suffix}",
        f"b{suffix}",
    ]


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
        grid(weights(1, 2, 3, 4), "abc", "abc", title="t", layers=[1], heads=[1, 2])
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
        "import sys, numpy, pictures.attention as p\n"
        "assert 'matplotlib' not in sys.modules\n"
        "p.attention_map(numpy.ones((1, 1)), 'a', 'b', title='t')\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# ------------------------------------------------------------------------------------------- panels


def panels(figure) -> list:
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>" and axes.axison]


@pytest.mark.parametrize(
    ("rows", "columns"), [((), 1), ((), 3), ((), 6), (("layer 1", "layer 2"), 5)]
)
def test_matrix_panels_are_legible_and_each_matrix_stands_under_its_name(rows, columns):
    matrices = (
        np.arange((len(rows) or 1) * columns * 30, dtype=float).reshape(-1, columns, 5, 6) - 40
    )
    heads = [f"head {n}" for n in range(1, columns + 1)]
    figure = matrix_panels(
        matrices,
        title="Bias",
        rows=rows,
        columns=heads,
        x_label="key",
        y_label="query",
        bar_label="added",
    )
    texts = assert_legible(figure)
    assert {*heads, *rows, "Bias", "key", "query", "added"} <= set(texts)
    drawn = panels(figure)
    assert len(drawn) == matrices.shape[0] * columns
    for axes, matrix in zip(drawn, matrices.reshape(-1, 5, 6)):
        np.testing.assert_array_equal(axes.images[0].get_array(), matrix)
    if not rows:
        assert [axes.get_title() for axes in drawn] == heads


def test_zero_is_white_whatever_the_signs_and_what_is_missing_is_grey():
    def colour(matrix, value):
        figure = matrix_panels(
            np.array(matrix, dtype=float)[None, None],
            title="t",
            columns=["a"],
            x_label="x",
            y_label="y",
            bar_label="b",
        )
        image = panels(figure)[0].images[0]
        return image.cmap(image.norm(np.ma.masked_invalid(np.array([value]))))[0]

    for matrix in ([[-3, 0]], [[0, 5]], [[-3, 5]], [[0, 0]]):
        assert colour(matrix, 0.0)[:3].min() > 0.94, matrix
    assert colour([[-3, 0]], -3.0)[2] > 2 * colour([[-3, 0]], -3.0)[0]  # blue lowers, red raises
    assert colour([[-3, 5]], 5.0)[0] > 2 * colour([[-3, 5]], 5.0)[2]
    assert colour([[-3, np.nan]], np.nan) == pytest.approx([0.82, 0.82, 0.82, 1])


def test_rows_of_a_matrix_can_begin_below_zero():
    names = {"title": "t", "columns": ["a"], "x_label": "x", "y_label": "y", "bar_label": "b"}
    axes = panels(matrix_panels(np.ones((1, 1, 5, 3)), first_row=-2, **names))[0]
    assert axes.images[0].get_extent() == [-0.5, 2.5, 2.5, -2.5]
    with pytest.raises(ValueError, match="must hold numbers"):
        matrix_panels(np.full((1, 1, 2, 2), np.nan), **names)
    with pytest.raises(ValueError, match="names"):
        matrix_panels(np.ones((1, 2, 2, 2)), **names)


def test_curve_panels_keep_the_colour_of_a_name_and_draw_bands():
    x = np.arange(40)
    low_high = Curve(x, x, x - 1, x + 1)
    figure = curve_panels(
        {"above": {"a": Curve(x, x), "b": Curve(x, -x)}, "a title " * 14: {"b": low_high}},
        title="t",
        x_label="x",
        y_label="y",
    )
    assert {"above", "a", "b", "x", "y"} <= set(assert_legible(figure))
    above, below = panels(figure)
    assert above.lines[1].get_color() == below.lines[0].get_color() != above.lines[0].get_color()
    [band] = below.collections
    assert {tuple(corner) for corner in band.get_paths()[0].vertices} >= {(5, 4), (5, 6)}


def test_more_names_than_colours_still_differ():
    series = {f"head {n}": ([0, 1], [n, n]) for n in range(16)}
    lines = curves(series, title="t", x_label="x", y_label="y").axes[0].lines
    assert len({str(line.get_color()) for line in lines}) == 16


@pytest.mark.parametrize("circle", [False, True])
def test_points_are_square_coloured_by_position_and_inside(circle):
    angles = np.linspace(0, 5, 20)
    points = np.stack((3 * np.cos(angles), np.sin(angles)), axis=1)
    figure = point_panels(
        {"PCA, source side": points, "MDS": points / 2, "third": points},
        title="t",
        x_label="x",
        y_label="y",
        columns=2,
        circle=circle,
    )
    assert {"PCA, source side", "MDS", "position"} <= set(assert_legible(figure))
    first, second, _ = panels(figure)
    np.testing.assert_array_equal(first.collections[0].get_offsets(), points)
    np.testing.assert_array_equal(first.collections[0].get_array(), np.arange(20))
    assert first.get_xlim() == first.get_ylim() == pytest.approx((-3.24, 3.24))
    assert second.get_xlim() == pytest.approx((-1.62, 1.62))
    assert bool(first.patches) is circle


def frames(n: int) -> list:
    return [
        point_panels(
            {"a": np.array([[0, 0], [k, 1.0], [1, 1]])},
            title=f"epoch {k}",
            x_label="x",
            y_label="y",
            columns=1,
            limit=4.0,
        )
        for k in range(n)
    ]


def test_an_animation_has_a_frame_for_each_figure_and_is_the_same_each_time(tmp_path):
    from PIL import Image

    path = save_animation(frames(3), tmp_path / "new" / "a.gif", seconds=0.5)
    with Image.open(path) as image:
        assert image.format == "GIF"
        assert image.n_frames == 3
        assert image.info["loop"] == 0
        durations, corners, pictures = [], [], []
        for k in range(3):
            image.seek(k)
            durations.append(image.info["duration"])
            picture = np.asarray(image.convert("RGB"))
            corners.append(picture[0, 0].min())
            pictures.append(picture)
    assert durations == [500, 500, 1500]
    assert min(corners) == 255  # the background stays white
    assert all((a != b).any() for a, b in zip(pictures, pictures[1:]))
    assert (
        save_animation(frames(3), tmp_path / "b.gif", seconds=0.5).read_bytes() == path.read_bytes()
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.gif", "new"]


def test_an_animation_of_nothing_or_of_several_sizes_is_refused(tmp_path):
    with pytest.raises(ValueError, match="one size"):
        save_animation([], tmp_path / "a.gif")
    other = curves({"a": ([0], [1])}, title="t", x_label="x", y_label="y")
    with pytest.raises(ValueError, match="one size"):
        save_animation([*frames(1), other], tmp_path / "a.gif")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot write"):
        save_animation(frames(1), tmp_path / "file" / "a.gif")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_grids_stand_side_by_side_with_one_scale():
    a, b = weights(2, 2, 4, 5) * 0.5, weights(1, 3, 9, 3)
    figure = attention_grid(
        AttentionMaps(a, pieces(4), pieces(5), title="left run", layers=[1, 2], heads=[1, 2]),
        AttentionMaps(b, pieces(9), pieces(3), title="right run", layers=[2], heads=[1, 2, 3]),
    )
    assert {"left run", "right run", "head 3"} <= set(assert_legible(figure))
    maps = panels(figure)
    assert [axes.images[0].get_array().shape for axes in maps] == [(4, 5)] * 4 + [(9, 3)] * 3
    assert {axes.images[0].get_clim() for axes in maps} == {(0.0, max(a.max(), b.max()))}
    left, right = (
        np.array([axes.get_window_extent().extents for axes in side])
        for side in (maps[:4], maps[4:])
    )
    assert left[:, 2].max() < right[:, 0].min()
    assert left[:, 3].max() == pytest.approx(right[:, 3].max(), abs=1)  # upper edges level
    np.testing.assert_array_equal(maps[4].images[0].get_array(), b[0, 0])


@pytest.mark.parametrize(("n_queries", "titles"), [(12, 3), (12, 1), (1, 1), (40, 3)])
def test_grids_side_by_side_begin_level_with_rows_of_one_height_whatever_their_titles(
    n_queries, titles
):
    def run(n: int, heads: int, title: str) -> AttentionMaps:
        return AttentionMaps(
            weights(2, heads, n, 5),
            pieces(n),
            pieces(5),
            title=title,
            layers=[1, 2],
            heads=range(1, heads + 1),
            query_name="target token predicted (query)",
        )

    long = "cross-attention (a run with quite a name, epoch 10)"
    figure = attention_grid(run(n_queries, 2, " ".join([long] * titles)), run(11, 3, "right"))
    texts = dict(draw(figure))
    assert_legible(figure)
    left_title = next(text for text in texts if text.startswith("cross"))
    assert left_title.count("\n") >= titles - 1
    assert texts[left_title].y1 == pytest.approx(texts["right"].y1, abs=0.1)
    maps = panels(figure)
    boxes = np.array([axes.get_window_extent().extents for axes in maps])
    left, right = boxes[:4], boxes[4:]
    np.testing.assert_allclose(
        left[[0, 2], 3], right[[0, 3], 3], atol=0.01
    )  # layers begin at one height
    rows = [(box[3] - box[1]) / len(axes.images[0].get_array()) for axes, box in zip(maps, boxes)]
    np.testing.assert_allclose(rows, rows[0])
    assert min(rows) > 7 / 72 * figure.dpi  # a row has room for its token
