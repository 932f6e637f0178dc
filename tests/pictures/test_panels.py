"""Figures from arrays: what is drawn, whether it can be read, and how it is written."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from drawn import assert_legible, colour_bars, panels, points
from matplotlib.figure import Figure
from matplotlib.text import Text

from pictures.panels import (
    Curve,
    curve_panels,
    encoding_heatmap,
    matrix_panels,
    point_panels,
    save_animation,
    save_figure,
)
from pictures.text import visible, width_of, wrap
from utils.errors import UserError

LABELS = {"title": "t", "x_label": "x", "y_label": "y"}


# --------------------------------------------------------------------------------------------- text


def test_the_last_line_of_a_title_is_not_a_lone_word_where_the_line_before_can_spare_one() -> None:
    one_line = "the encoding of a run, epoch"
    for text, widest, lines in (
        ("the encoding of a run, epoch 6)", one_line, ["the encoding of a run,", "epoch 6)"]),
        (one_line, one_line, [one_line]),
        ("a word", "word", ["a", "word"]),  # nothing to spare
        ("a 1234567 1234", "a 1234567", ["a 1234567", "1234"]),  # no room below
        ("x" * 12, "x" * 5, ["xxxxx", "xxxxx", "xx"]),
    ):
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
        ("", ""),
    ],
)
def test_a_text_that_cannot_be_drawn_as_it_is_is_spelled_out(text: str, shown: str) -> None:
    assert visible(text, 20) == shown


# ------------------------------------------------------------------------------------------- panels


def test_an_encoding_heatmap_is_symmetric_around_its_centre_and_legible() -> None:
    table = np.sin(np.arange(60)[:, None] / np.arange(1, 33)) * 0.7
    labels = {"title": "Sinusoids", "x_label": "dimension", "y_label": "position"}
    figure = encoding_heatmap(table, **labels)
    assert {*labels.values(), "value"} <= set(assert_legible(figure))
    image = figure.axes[0].images[0]
    assert image.get_clim() == (-np.abs(table).max(), np.abs(table).max())
    assert image.origin == "upper"
    assert len(colour_bars(figure)) == 1
    assert sum(encoding_heatmap(table, centre=1, **LABELS).axes[0].images[0].get_clim()) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for flat in (np.zeros((3, 4)), np.ones((1, 8))):
            assert_legible(encoding_heatmap(flat, **LABELS))


def test_curves_have_one_colour_and_a_legend_with_every_name_even_an_odd_one() -> None:
    x = np.arange(40)
    above = {"_hidden": Curve([0, 1, 2], [3.0, 2.0, 1.0]), "$rope$": Curve(x, -x)}
    below = {"$rope$": Curve(x, x, x - 1, x + 1), "one": Curve([1], [2])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = curve_panels(
            {"above": above, "a title " * 14: below},
            title="Validation loss " + "of each " * 20,
            x_label="epoch",
            y_label="loss ($l$)",
        )
        texts = assert_legible(figure)
    assert {"above", "_hidden", "$rope$", "one", "epoch", "loss ($l$)"} <= set(texts)
    [title] = [text for text in texts if text.startswith("Validation loss")]
    assert title.replace("\n", " ") == ("Validation loss " + "of each " * 20).strip()
    assert not any(text.get_parse_math() for text in figure.findobj(Text) if "$" in text.get_text())
    (hidden, rope), (again, one) = (axes.lines for axes in panels(figure))
    np.testing.assert_array_equal(rope.get_ydata(), -x)
    assert rope.get_color() == again.get_color()
    assert len({hidden.get_color(), rope.get_color(), one.get_color()}) == 3
    [band] = panels(figure)[1].collections
    assert {tuple(corner) for corner in band.get_paths()[0].vertices} >= {(5, 4), (5, 6)}


def test_more_names_than_colours_still_differ() -> None:
    series = {f"head {n}": Curve([0, 1], [n, n]) for n in range(16)}
    lines = curve_panels({"": series}, **LABELS).axes[0].lines
    assert len({str(line.get_color()) for line in lines}) == 16


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
    drawn = panels(figure)
    assert len(drawn) == n_rows * columns
    for axes, matrix in zip(drawn, matrices.reshape(-1, 5, 6)):
        np.testing.assert_array_equal(axes.images[0].get_array(), matrix)
        assert axes.images[0].get_extent() == [-0.5, 5.5, 2.5, -2.5]
    assert [axes.get_title() for axes in drawn[:columns]] == heads
    assert [axes.get_ylabel() for axes in drawn[::columns]] == list(rows or [drawn[0].get_ylabel()])


def test_zero_is_white_whatever_the_signs_and_what_is_missing_is_grey() -> None:
    def colour(matrix: list[list[float]], value: float) -> np.ndarray:
        figure = matrix_panels(np.array([[matrix]], float), columns=["a"], bar_label="b", **LABELS)
        image = panels(figure)[0].images[0]
        return image.cmap(image.norm(np.ma.masked_invalid(np.array([value]))))[0]

    for matrix in ([[-3, 0]], [[0, 5]], [[-3, 5]], [[0, 0]]):
        assert colour(matrix, 0.0)[:3].min() > 0.94, matrix
    assert colour([[-3, 0]], -3.0)[2] > 2 * colour([[-3, 0]], -3.0)[0]  # blue lowers, red raises
    assert colour([[-3, 5]], 5.0)[0] > 2 * colour([[-3, 5]], 5.0)[2]
    assert (colour([[-5, 3]], -5.0) != colour([[-5, 3]], -4.0)).any()  # none is out of the scale
    assert colour([[-3, np.nan]], np.nan) == pytest.approx([0.82, 0.82, 0.82, 1])


@pytest.mark.parametrize("circle", [False, True])
def test_points_are_square_coloured_by_position_and_inside(circle: bool) -> None:
    angles = np.linspace(0, 5, 20)
    drawn = np.stack((3 * np.cos(angles), np.sin(angles)), axis=1)
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


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda: encoding_heatmap(np.ones(3), **LABELS), r"\[T,D\].*\(3,\)"),
        (lambda: encoding_heatmap(np.full((2, 2), np.nan), **LABELS), "finite"),
        (lambda: curve_panels({"": {"a": Curve([1, 2], [1])}}, **LABELS), r"\(2,\) and \(1,\)"),
        (lambda: curve_panels({}, **LABELS), "empty"),
        (
            lambda: matrix_panels(
                np.full((1, 1, 2, 2), np.nan), columns="a", bar_label="", **LABELS
            ),
            "hold numbers",
        ),
        (
            lambda: matrix_panels(np.ones((1, 2, 2, 2)), columns="a", bar_label="", **LABELS),
            "of \\(1, 1\\) names",
        ),
    ],
)
def test_arrays_that_cannot_be_drawn_are_refused(draw, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        draw()


# ------------------------------------------------------------------------------------------- saving


def small(k: float = 0.0) -> Figure:
    """A figure that depends on k."""
    return point_panels({"a": np.array([[0, 0], [k, 1], [1, 1]])}, columns=1, limit=4.0, **LABELS)


@pytest.mark.parametrize(
    ("suffix", "start"),
    [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml"), (".PNG", b"\x89PNG")],
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
    for figures in ([], [small(), curve_panels({"": {"a": Curve([0], [1])}}, **LABELS)]):
        with pytest.raises(ValueError, match="one size"):
            save_animation(figures, tmp_path / "c")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("map.gif", r"\.png, \.pdf, \.svg"),
        ("map", r"\.png, \.pdf, \.svg"),
        ("map.png.txt", r"\.png, \.pdf, \.svg"),
        ("file/map.png", "cannot write .*file/map.png: "),
        ("folder.png", "cannot write .*folder.png: "),
    ],
)
def test_a_path_that_cannot_be_drawn_to_is_one_line(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError, match=said) as error:
        save_figure(small(), tmp_path / name)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder.png"]
