"""Pictures of a model's attention: grids of heat-maps, with tokens at their edges.

The grids are laid out in inches from measured text, not by matplotlib's layout engine: every token
has a line of its own, all maps have the same size, and rows of adjacent grids are level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from models.positional_encodings.base import Kind
from pictures.panels import DPI, MARGIN
from pictures.text import visible, width_of, wrap
from translation.answers import Attention
from translation.forcing import KINDS
from utils.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_LABEL = 20  # characters of a token that are shown
# Lengths in inches, font sizes in points.
_GAP = 0.12  # between two maps
_BAR_GAP = 0.2  # between the maps and the colour bar
_BAR = 0.2
_LINE = 1.3  # line height / font size
_TOKEN_SIZE = 7
_TOKEN_LINE = 1.25 * _TOKEN_SIZE / 72
_SMALLEST_MAP, _LARGEST_MAP = 1.0, 12.0
_LARGEST_GRID = 32.0  # beyond it labels are thinned
_LABELLED_MAP = 40 * _TOKEN_LINE  # but up to 40 tokens keep all labels


@dataclass(frozen=True, slots=True)
class AttentionMaps:
    """Attention weights [L,H,Tq,Tk] of one sentence pair with the text around them.

    layers and heads are the numbers to print, from 1; query_name and key_name label the axes.
    """

    maps: np.ndarray
    query_labels: Sequence[str]
    key_labels: Sequence[str]
    title: str
    layers: Sequence[int]
    heads: Sequence[int]
    query_name: str
    key_name: str


# ------------------------------------------------------------------------------------ what is shown


def attention_maps(
    attention: Attention,
    *,
    kinds: Sequence[Kind] = KINDS,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    about: str = "",
) -> dict[Kind, AttentionMaps]:
    """The attention of one sentence pair by kind.

    The rows of a self-attention are the tokens that it updates. The rows of the cross-attention are
    the output tokens: row t shows where the model looked when it predicted token t.

    Args:
        layers, heads: numbers from 1, or from -1 for the last (None: all).
        about: ends the titles (which run, which epoch).

    Raises UserError for layers and heads that do not exist.
    """
    encoder = attention.source, "source token"
    decoder = attention.read, "target token read"
    sides = {
        "encoder": ("encoder self-attention", *encoder, *encoder),
        "decoder": ("decoder self-attention", *decoder, *decoder),
        "cross": ("cross-attention", attention.target, "target token predicted", *encoder),
    }
    found = {}
    for kind in kinds:
        title, queries, query_name, keys, key_name = sides[kind]
        weights = getattr(attention, kind)
        stack = "encoder" if kind == "encoder" else "decoder"
        rows = _choose(layers, weights.shape[0], f"{stack} layer", about)
        columns = _choose(heads, weights.shape[1], "head", about)
        found[kind] = AttentionMaps(
            weights[np.ix_(np.array(rows) - 1, np.array(columns) - 1)],
            queries,
            keys,
            title=title + about,
            layers=rows,
            heads=columns,
            query_name=f"{query_name} (query)",
            key_name=f"{key_name} (key)",
        )
    return found


def _choose(wanted: Sequence[int] | None, there_are: int, what: str, about: str) -> list[int]:
    """The wanted numbers from 1, or all. Raises UserError for one that does not exist."""
    for number in wanted or ():
        if not 1 <= abs(number) <= there_are:
            raise UserError(f"there is no {what} {number}{about}: it has {what}s 1 to {there_are}")
    numbers = range(1, there_are + 1)
    return [numbers[n - 1 if n > 0 else n] for n in wanted] if wanted else list(numbers)


# ------------------------------------------------------------------------------------- how it looks


def attention_grid(*runs: AttentionMaps) -> Figure:
    """A grid of heat-maps for each run, side by side: a row for each layer, a column for each head.

    All maps share one colour scale from 0 to the largest weight. Tokens label the left column and
    the bottom row. In all grids layers start level, and query tokens take the same height. The
    figure grows with maps and tokens; labels may be thinned only beyond 40 tokens.
    """
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    most_queries = max(len(run.query_labels) for run in runs)
    most_layers = max(len(run.layers) for run in runs)
    grids = [_Grid(run, most_queries, most_layers) for run in runs]
    above, below = max(grid.above for grid in grids), max(grid.below for grid in grids)
    figure = Figure(figsize=(sum(grid.width for grid in grids), above + below), dpi=DPI)
    scale = Normalize(0.0, max(float(run.maps.max()) for run in runs) or 1.0)
    left = 0.0
    for grid in grids:
        grid.draw(figure, left, below, scale)
        left += grid.width
    return figure


def _map_side(n_tokens: int, n_maps: int) -> tuple[float, int]:
    """Inches of a map's side with n_maps in a line, and k: every k-th token has a label."""
    wanted = n_tokens * _TOKEN_LINE
    smallest = max(_SMALLEST_MAP, min(3.0 / n_maps, 0.6 * n_tokens))
    largest = max(smallest, _LABELLED_MAP, min(_LARGEST_MAP, _LARGEST_GRID / n_maps - _GAP))
    side = min(max(wanted, smallest), largest)
    return side, math.ceil(wanted / side - 1e-9)


class _Grid:
    """The maps of one run, and the space in inches for them and the text around them.

    Every row of maps has a band of height `band`, which the longest of the adjacent grids needs.
    Fewer queries fill a part of it, from the top.
    """

    def __init__(self, run: AttentionMaps, most_queries: int, most_layers: int) -> None:
        self.run = run
        n_rows, n_columns, n_queries, n_keys = run.maps.shape
        self.queries = [visible(label, _MAX_LABEL) for label in run.query_labels]
        self.keys = [visible(label, _MAX_LABEL) for label in run.key_labels]

        # The maps: a token takes one line of text, unless the picture would then grow too large.
        self.map_w, self.key_step = _map_side(n_keys, n_columns)
        self.band, self.query_step = _map_side(most_queries, most_layers)
        self.map_h = self.band * n_queries / most_queries
        self.grid_w = n_columns * (self.map_w + _GAP) - _GAP
        self.grid_h = n_rows * (self.band + _GAP) - _GAP

        # Names and title grow with the picture, since a large one is viewed from further away.
        size = min(9 + 0.3 * max(self.grid_w, self.grid_h), 20.0)
        widest = width_of("layer 12", size)
        self.size = size * min(1.0, 0.95 * min(self.map_w, self.band) / widest)
        self.line = self.size * _LINE / 72

        # Left: axis name, layers, tokens. Below: tokens, axis name. Right: colour bar.
        self.query_room = max(width_of(label, _TOKEN_SIZE) for label in self.queries) + 0.1
        self.key_room = max(width_of(label, _TOKEN_SIZE) for label in self.keys) + 0.1
        left = MARGIN + 2 * self.line + self.query_room
        right = _BAR_GAP + _BAR + 0.15 + width_of("0.000", self.size) + self.line + MARGIN
        self.width = max(left + self.grid_w + right, 5.0)
        self.x = (self.width + left - self.grid_w - right) / 2  # left edge of the maps
        self.title = wrap(run.title, 1.25 * self.size, self.width - 2 * MARGIN)
        self.above = self.line + 0.12 + 1.25 * self.line * len(self.title) + MARGIN
        self.below = self.grid_h + self.key_room + self.line + MARGIN

    def draw(self, figure: Figure, left: float, y: float, scale: Any) -> None:
        """Draw `left` inches from the figure's left edge; the maps start y inches from the bottom.

        The title is at the upper edge of the figure.
        """
        figure_w, figure_h = figure.get_size_inches()
        x, line = left + self.x, self.line
        bottom = y - self.grid_h

        def write(x: float, y: float, text: str, size: float = self.size, **how: Any) -> None:
            how = {"ha": "center", "va": "center", "transform": figure.dpi_scale_trans, **how}
            figure.text(x, y, text, fontsize=size, parse_math=False, **how)

        title_x, title_y = left + self.width / 2, figure_h - MARGIN
        write(title_x, title_y, "\n".join(self.title), 1.25 * self.size, va="top")
        # Axis names may extend a little beyond a small grid.
        query_name, key_name = self.run.query_name, self.run.key_name
        size = self.size * min(1.0, (self.grid_h + 0.6) / width_of(query_name, self.size))
        query_x = x - self.query_room - 1.5 * line
        write(query_x, y - self.grid_h / 2, query_name, size, rotation=90)
        size = self.size * min(1.0, (self.grid_w + 0.6) / width_of(key_name, self.size))
        write(x + self.grid_w / 2, bottom - self.key_room - line / 2, key_name, size)

        def add_axes(x: float, y: float, width: float, height: float) -> Any:
            return figure.add_axes(
                (x / figure_w, y / figure_h, width / figure_w, height / figure_h)
            )

        n_rows, n_columns = self.run.maps.shape[:2]
        for row, column in np.ndindex(n_rows, n_columns):
            map_x = x + column * (self.map_w + _GAP)
            map_y = y - row * (self.band + _GAP)  # the upper edge
            axes = add_axes(map_x, map_y - self.map_h, self.map_w, self.map_h)
            image = axes.imshow(
                self.run.maps[row, column],
                cmap="viridis",
                aspect="auto",
                interpolation="nearest",
                norm=scale,
            )
            axes.tick_params(length=2, pad=2)
            _label_tokens(axes.yaxis, self.queries if column == 0 else [], self.query_step)
            keys = self.keys if row == n_rows - 1 else []
            _label_tokens(axes.xaxis, keys, self.key_step, rotation=90)
            if column == 0:
                row_x = x - self.query_room - line / 2
                write(row_x, map_y - self.band / 2, f"layer {self.run.layers[row]}", rotation=90)
            if row == 0:
                name_x, name = map_x + self.map_w / 2, f"head {self.run.heads[column]}"
                write(name_x, map_y + 0.04, name, va="bottom")

        bar_axes = add_axes(x + self.grid_w + _BAR_GAP, bottom, _BAR, self.grid_h)
        bar = figure.colorbar(image, cax=bar_axes)
        bar.set_label("attention weight", size=self.size)
        bar.ax.tick_params(labelsize=self.size)


def _label_tokens(axis: Any, labels: Sequence[str], step: int, rotation: float = 0) -> None:
    """A tick at every step-th token, with the token."""
    axis.set_ticks(
        range(0, len(labels), step),
        labels=labels[::step],
        fontsize=_TOKEN_SIZE,
        rotation=rotation,
        parse_math=False,
    )
