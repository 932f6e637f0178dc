"""Pictures of attention: every map in its place with its tokens, and nothing overlaps."""

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn import assert_legible, colour_bars, images, panels, texts_of
from matplotlib.figure import Figure
from matplotlib.text import Text

from models.attention.tap import AttentionTap
from pictures.attention import AttentionMaps, attention_grid, attention_maps
from pictures.panels import save_figure
from translation.translator import Translator

pytestmark = pytest.mark.slow

PIECES = "▁une ▁fenêtre ▁ouverte ▁sur , ▁où ▁dort . ▁aujourd ' hui".split()


def pieces(n: int) -> list[str]:
    return [*(PIECES[i % len(PIECES)] for i in range(n - 1)), "</s>"]


def made(
    *shape: int, queries: Sequence[str] = (), keys: Sequence[str] = (), **changes: Any
) -> AttentionMaps:
    """Maps [L,H,Tq,Tk] of random weights."""
    values = np.random.default_rng(0).gamma(0.3, size=shape) + 1e-6
    given = {
        "maps": values / values.sum(-1, keepdims=True),
        "query_labels": queries or pieces(shape[2]),
        "key_labels": keys or pieces(shape[3]),
        "title": "Cross-attention (run, epoch 3)",
        "layers": range(1, shape[0] + 1),
        "heads": range(1, shape[1] + 1),
        "query_name": "target token predicted (query)",
        "key_name": "source token (key)",
    }
    return AttentionMaps(**{**given, **changes})


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (1, 16, 5, 40), (12, 1, 40, 4), (2, 3, 1, 7), (3, 8, 40, 40)], ids=str
)
def test_a_grid_has_all_its_labels_and_none_overlap(shape: tuple[int, ...]) -> None:
    run = made(*shape)
    figure = attention_grid(run)
    texts = assert_legible(figure)
    names = {*(f"layer {n}" for n in run.layers), *(f"head {n}" for n in run.heads)}
    names |= {run.title, run.query_name, run.key_name, "attention weight"}
    assert names <= {text.replace("\n", " ") for text in texts}
    tokens = [*run.query_labels * shape[0], *run.key_labels * shape[1]]  # at the left, below
    assert Counter(tokens) <= Counter(text.replace("_", "▁") for text in texts)
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) >= 6
    assert len(panels(figure)) == shape[0] * shape[1]
    assert {axes.images[0].get_clim() for axes in panels(figure)} == {(0.0, run.maps.max())}
    assert len(colour_bars(figure)) == 1


def test_each_map_stands_in_its_place_under_its_number() -> None:
    run = made(2, 2, 3, 5, layers=[2, 6], heads=[1, 8])
    figure = attention_grid(run)
    assert {"layer 2", "layer 6", "head 1", "head 8"} <= set(assert_legible(figure))
    corners = [axes.get_position() for axes in panels(figure)]
    left, top = min(box.x0 for box in corners), max(box.y0 for box in corners)
    for axes, box in zip(panels(figure), corners):
        row, column = int(box.y0 < top - 0.01), int(box.x0 > left + 0.01)
        assert np.array_equal(axes.images[0].get_array(), run.maps[row, column])
        assert axes.images[0].origin == "upper"


def test_labels_are_thinned_only_where_there_is_no_room() -> None:
    texts = assert_legible(attention_grid(made(1, 8, 10, 80, keys=[f"k{i}" for i in range(80)])))
    numbers = sorted({int(text[1:]) for text in texts if text[0] == "k"})
    assert 10 < len(numbers) < 80
    assert len(set(np.diff(numbers))) == 1
    assert texts.count("k0") == 8


def test_odd_tokens_are_drawn_as_they_are_without_mathtext_or_warnings(tmp_path: Path) -> None:
    odd = ["$x$", "$\\frac{1}$", "$", "a\tb\n", " ", "", "😀", "你好"]
    odd += ["_a^b_", "e\u0301", "\ud83d", "ع"]
    long = "Donaudampfschifffahrtsgesellschaftskapitän"
    n = len(odd) + 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = made(1, 1, n, n, queries=[*odd, long], keys=[*odd, long], title="$\\broken{ 🦄 你")
        figure = attention_grid(run)
        texts = assert_legible(figure)
        for suffix in ("png", "pdf", "svg"):
            save_figure(figure, tmp_path / f"odd.{suffix}")
    shown = {"$x$", "$\\frac{1}$", "$", "a\\tb\\n", "␣", "_a^b_", "U+D83D", "Donaudampfschifffah…"}
    assert shown <= set(texts)
    assert not any(text.get_parse_math() for text in figure.findobj(Text) if "$" in text.get_text())


def test_upright_labels_stand_straight_under_their_columns() -> None:
    keys = ["▁pont", "pont", "▁"]
    figure = attention_grid(made(1, 1, 3, 3, queries="abc", keys=keys))
    boxes = {text.get_text(): box for text, box in texts_of(figure).items()}
    widths = []
    for column, label in enumerate(("_pont", "pont", "_")):
        expected = figure.axes[0].transData.transform((column, 0))[0]
        assert (boxes[label].x0 + boxes[label].x1) / 2 == pytest.approx(expected, abs=1.5)
        widths.append(boxes[label].width)
    assert max(widths) - min(widths) <= 1  # pixels: none hangs out sideways


# ------------------------------------------------------------------------------------- side by side


@pytest.mark.parametrize(("n_queries", "lines"), [(12, 3), (1, 1), (40, 3)])
def test_grids_side_by_side_begin_level_with_rows_of_one_height_and_one_scale(
    n_queries: int, lines: int
) -> None:
    title = " ".join(["cross-attention (a run with quite a name, epoch 10)"] * lines)
    name = "target token predicted (query)"
    one = made(2, 2, n_queries, 5, title=title, query_name=name)
    two = made(2, 3, 11, 4, title="right", query_name=name)
    figure = attention_grid(one, two)
    assert_legible(figure)
    boxes = {text.get_text(): box for text, box in texts_of(figure).items()}
    [left_title] = [text for text in boxes if text.startswith("cross")]
    assert left_title.count("\n") >= lines - 1
    assert boxes[left_title].y1 == pytest.approx(boxes["right"].y1, abs=0.1)
    for drawn, maps in zip(images(figure), [*one.maps.reshape(-1, n_queries, 5), *two.maps[0]]):
        np.testing.assert_array_equal(drawn, maps)
    clims = {axes.images[0].get_clim() for axes in panels(figure)}
    assert clims == {(0.0, max(one.maps.max(), two.maps.max()))}
    places = np.array([axes.get_window_extent().extents for axes in panels(figure)])
    left, right = places[:4], places[4:]
    assert left[:, 2].max() < right[:, 0].min()
    # Layers begin at one height.
    np.testing.assert_allclose(left[[0, 2], 3], right[[0, 3], 3], atol=0.01)
    counts = np.array([len(matrix) for matrix in images(figure)])
    heights = (places[:, 3] - places[:, 1]) / counts
    np.testing.assert_allclose(heights, heights[0])
    assert heights[0] > 7 / 72 * figure.dpi  # a row has room for its token


# --------------------------------------------------------------------------------------- of a model


def tick_labels(figure: Figure) -> tuple[list[str], list[str]]:
    """(rows, columns) of the lower left map."""
    maps = panels(figure)
    rows, columns = (
        next(labels for labels in all_labels if labels)
        for all_labels in ([a.get_yticklabels() for a in maps], [a.get_xticklabels() for a in maps])
    )
    return [text.get_text() for text in rows], [text.get_text() for text in columns]


def test_rows_are_read_tokens_in_self_attention_and_predicted_ones_in_cross_attention(
    translator: Translator,
) -> None:
    tokenizer = translator.tokenizer
    source, target = tokenizer.encode_src("Le chat dort."), tokenizer.encode_tgt("The cat sleeps.")
    maps = attention_maps(translator.attention("Le chat dort.", "The cat\u00a0sleeps."))
    src, tgt = tokenizer.src_pieces(source), tokenizer.tgt_pieces(target)
    assert src[-1] == tgt[-1] == "</s>"
    read = ["<s>", *tgt[:-1]]
    for kind, rows, columns, name in (
        ("encoder", src, src, "source token (query)"),
        ("decoder", read, read, "target token read (query)"),
        ("cross", tgt, src, "target token predicted (query)"),
    ):
        shown = tick_labels(attention_grid(maps[kind]))
        assert shown == tuple([piece.replace("▁", "_") for piece in of] for of in (rows, columns))
        assert maps[kind].query_name == name


def test_the_drawn_weights_are_those_of_the_chosen_layers_and_heads(translator: Translator) -> None:
    attention = translator.attention("Le chat dort.", "The cat sleeps.")
    tokenizer, tap = translator.tokenizer, AttentionTap()
    target = tokenizer.encode_tgt("The cat sleeps.")
    read = torch.tensor([[tokenizer.bos_id, *target[:-1]]])
    translator.searcher.model(torch.tensor([tokenizer.encode_src("Le chat dort.")]), read, tap=tap)
    for kind, maps in attention_maps(attention, layers=[-1], heads=[2, 1]).items():
        drawn = images(attention_grid(maps))
        np.testing.assert_array_equal(drawn, tap.maps(kind)[1, 0].flip(0))
        np.testing.assert_allclose(np.sum(drawn, axis=-1), 1, atol=1e-5)  # no padding takes a share
        assert kind != "decoder" or not np.triu(drawn, 1).any()
