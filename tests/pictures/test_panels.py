"""Figures from arrays: what is drawn, whether it can be read, and how it is written."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from drawn import assert_legible, colour_bars, panels, points, suptitle
from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from pictures.panels import (
    Curve,
    curve_panels,
    dot_panels,
    matrix_panels,
    point_panels,
    save_animation,
    save_figure,
)
from pictures.text import visible, width_of, wrap

LABELS = {"title": "t", "x_label": "x", "y_label": "y"}


# --------------------------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("text", "widest", "lines"),
    [
        ("the encoding of a run", "the encoding of a run", ["the encoding of a run"]),
        ("one two three four six", "one two three four", ["one two three", "four six"]),  # evenly
        ("a self-made word", "self-made", ["a", "self-made", "word"]),
        ("x" * 12, "x" * 5, ["xxxxx", "xxxxx", "xx"]),
        ("", "x", [""]),
    ],
)
def test_a_title_takes_few_lines_and_fills_them_evenly(text, widest, lines) -> None:
    assert wrap(text, 10, width_of(widest, 10)) == lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\n", "a\\tb\\n"),
        (" ", "␣"),
        ("▁pont", "_pont"),
        ("\ud83d\u200d", "U+D83DU+200D"),
        ("\U000f0001", "U+F0001"),  # private use: no font has it, and tokens stay distinct
        ("Donaudampfschifffahrtsgesellschaft", "Donaudampfschifffah…"),
        ("of twenty characters", "of twenty characters"),
        ("", ""),
    ],
)
def test_a_text_that_cannot_be_drawn_as_it_is_is_spelled_out(text: str, shown: str) -> None:
    assert visible(text, 20) == shown


def test_a_font_named_behind_the_first_draws_what_that_lacks(monkeypatch) -> None:
    assert visible("𝒜a") == "U+1D49Ca"
    monkeypatch.setitem(rcParams, "font.family", ["DejaVu Sans", "STIXGeneral"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert width_of(visible("𝒜a"), 10) > width_of("a", 10) + 0.05
    assert visible("𝒜a中") == "𝒜aU+4E2D"


# ------------------------------------------------------------------------------------------- panels


def test_curves_have_one_colour_and_a_legend_with_every_name() -> None:
    x = np.arange(40)
    above = {"rope": Curve(x, -x), **{f"head {n}": Curve([0, 1], [n, n]) for n in range(16)}}
    below = {"rope": Curve(x, x, x - 1, x + 1)}
    long = "Validation loss " + "of $each$ " * 20
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        panels_of = {"above": above, "a title " * 14: below}
        figure = curve_panels(panels_of, title=long, x_label="epoch", y_label="loss")
        texts = assert_legible(figure)
        FigureCanvasAgg(figure).draw()
    assert {"above", *above, "epoch", "loss"} <= set(texts)
    assert suptitle(figure) == long.strip()
    assert not any(text.get_parse_math() for text in figure.findobj(Text) if "$" in text.get_text())
    (rope, *others), [again] = (axes.lines for axes in panels(figure))
    np.testing.assert_array_equal(rope.get_ydata(), -x)
    assert rope.get_color() == again.get_color()
    assert [line.get_linestyle() for line in (rope, *others)][:4] == ["-", "--", ":", "-"]
    assert again.get_linestyle() == "-"
    assert len({str(line.get_color()) for line in (rope, *others)}) == 17
    [band] = panels(figure)[1].collections
    assert {tuple(corner) for corner in band.get_paths()[0].vertices} >= {(5, 4), (5, 6)}


def test_dots_stand_in_their_rows_and_equal_ones_show_as_rings() -> None:
    left = {"rope": {"layer 1": 2.0, "layer 2": 2.0}, "none": {"layer 2": 3.0}}
    right = {"alibi": {"layer 1": 1.0}, "rope": {"layer 1": 4.0}}
    figure = dot_panels({"left": left, "right": right}, columns=2, width=2.0, title="t")
    texts = assert_legible(figure)
    assert {"left", "right", "layer 1", "layer 2"} <= set(texts)
    first, second = panels(figure)
    assert [tick.get_text() for tick in first.get_yticklabels()] == ["rope", "none", "alibi"]
    assert [c.get_offsets().tolist() for c in first.collections] == [[[2, 0]], [[2, 0], [3, 1]]]
    assert [c.get_offsets().tolist() for c in second.collections] == [[[1, 2], [4, 0]], []]
    below, above = first.collections
    assert below.get_sizes()[0] > above.get_sizes()[0]
    assert below.get_facecolor()[0].tolist() != above.get_facecolor()[0].tolist()
    assert first.get_ylim()[0] > first.get_ylim()[1]  # the first row is on top


@pytest.mark.parametrize(
    ("rows", "columns"), [((), 1), ((), 6), (("layer 1", "layer 2"), 5)], ids=str
)
def test_each_matrix_stands_under_its_name(rows: tuple[str, ...], columns: int) -> None:
    n_rows = len(rows) or 1
    matrices = np.arange(n_rows * columns * 30.0).reshape(n_rows, columns, 5, 6) - 40
    heads = [f"head {n}" for n in range(1, columns + 1)]
    labels = {"title": "Bias", "x_label": "key", "y_label": "query", "bar_label": "added"}
    figure = matrix_panels(matrices, rows=rows, columns=heads, first_row=-2, **labels)
    assert {*heads, *rows, *labels.values()} <= set(assert_legible(figure))
    assert len(colour_bars(figure)) == 1
    drawn = panels(figure)
    assert len(drawn) == n_rows * columns
    for axes, matrix in zip(drawn, matrices.reshape(-1, 5, 6)):
        np.testing.assert_array_equal(axes.images[0].get_array(), matrix)
        assert axes.images[0].get_extent() == [-0.5, 5.5, 2.5, -2.5]
    assert [axes.get_title() for axes in drawn[:columns]] == heads
    assert [axes.get_ylabel() for axes in drawn[::columns]] == list(rows or [drawn[0].get_ylabel()])
    lowest = drawn[-(columns if rows else min(columns, 4)) :]
    assert all(axes.xaxis.get_tick_params()["labelbottom"] for axes in lowest)


@pytest.mark.parametrize(
    ("row", "centre"),
    [([-3, 0], 0.0), ([-5, 3], 0.0), ([0, 0], 0.0), ([0.8, 1.4], 1.0), ([0, np.nan], 0.0)],
)
def test_the_centre_is_white_above_is_red_and_what_is_missing_grey(row, centre: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = matrix_panels(np.array([[[row]]]), centre=centre, **LABELS)
        assert_legible(figure)
        FigureCanvasAgg(figure).draw()
    image = panels(figure)[0].images[0]
    low, high = image.get_clim()
    assert (low + high) / 2 == pytest.approx(centre)
    assert low <= np.nanmin(row)
    assert high >= np.nanmax(row)
    white, red, blue = (image.cmap(image.norm(value))[:3] for value in (centre, high, low))
    assert min(white) > 0.94
    assert red[0] > 2 * red[2]
    assert blue[2] > 2 * blue[0]
    assert image.cmap(np.ma.masked_invalid([np.nan]))[0] == pytest.approx([0.82, 0.82, 0.82, 1])


@pytest.mark.parametrize("circle", [False, True])
def test_points_are_square_coloured_by_position_and_inside(circle: bool) -> None:
    angles = np.linspace(0, 5, 20)
    drawn = np.stack((-3 * np.cos(angles), np.sin(angles)), axis=1)
    three = {"PCA, source side": drawn, "MDS": drawn / 2, "third": drawn}
    figure = point_panels(three, columns=2, circle=circle, **LABELS)
    assert {"PCA, source side", "MDS", "position"} <= set(assert_legible(figure))
    first, second, _ = panels(figure)
    np.testing.assert_array_equal(points(first), drawn)
    np.testing.assert_array_equal(first.collections[0].get_array(), np.arange(20))
    assert first.get_xlim() == first.get_ylim() == pytest.approx((-3.24, 3.24))
    assert second.get_xlim() == pytest.approx((-1.62, 1.62))
    assert bool(first.patches) is circle
    assert point_panels(three, columns=3, limit=9, **LABELS).axes[1].get_ylim() == (-9, 9)


# ------------------------------------------------------------------------------------------- saving


def small(k: float = 0.0) -> Figure:
    """A figure that depends on k."""
    return point_panels({"a": np.array([[0, 0], [k, 1], [1, 1]])}, columns=1, limit=4.0, **LABELS)


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")]
)
def test_equal_figures_are_equal_files(tmp_path: Path, suffix: str, start: bytes) -> None:
    folder = tmp_path / "new" / "folder"
    first, second = (save_figure(small(), folder / f"{name}{suffix}") for name in "ab")
    assert first.read_bytes().startswith(start)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(folder.iterdir()) == [first, second]


def test_an_animation_has_a_frame_for_each_figure_and_is_the_same_each_time(tmp_path: Path) -> None:
    from PIL import Image

    one, two = (save_animation([small(k) for k in range(3)], tmp_path / name) for name in "ab")
    assert one.read_bytes() == two.read_bytes()
    frames, durations = [], []
    with Image.open(one) as image:
        assert (image.format, image.n_frames, image.info["loop"]) == ("GIF", 3, 0)
        for k in range(3):
            image.seek(k)
            durations.append(image.info["duration"])
            frames.append(np.asarray(image.convert("RGB")))
    assert durations == [800, 800, 2400]
    assert min(frame[0, 0].min() for frame in frames) == 255  # the background stays white
    assert all((a != b).any() for a, b in zip(frames, frames[1:]))
