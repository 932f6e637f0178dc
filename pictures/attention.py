"""Figures of attention weights: grids of heat-maps with the tokens at their edges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pictures.panels import DPI, MARGIN
from pictures.text import font_of, visible, width_of, wrap

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

MAX_LABEL = 20  # characters of a token that are shown

# Lengths in inches.
_GAP = 0.12  # between two maps
_LINE = 1.3  # line height / font size
_TOKEN_LINE = 1.25  # the same where lines are dense
_SMALLEST_MAP = 1.0
_LARGEST_GRID = (
    32.0  # token labels are thinned beyond this, so that the picture stays within bounds
)
_LARGEST_MAP = 12.0


@dataclass(frozen=True, slots=True)
class AttentionMaps:
    """Attention weights [L, H, Tq, Tk] of one sentence pair with what is written around them.

    layers and heads are the numbers to print, from 1; query_name and key_name say what stands on
    the axes. Raises ValueError where maps, labels and numbers do not fit.
    """

    maps: np.ndarray
    query_labels: Sequence[str]
    key_labels: Sequence[str]
    title: str
    layers: Sequence[int]
    heads: Sequence[int]
    query_name: str = "query"
    key_name: str = "key"

    def __post_init__(self) -> None:
        shape = np.shape(self.maps)
        expected = (len(self.layers), len(self.heads), len(self.query_labels), len(self.key_labels))
        if shape != expected:
            raise ValueError(
                f"attention maps are {shape}, but layers, heads, queries and keys number {expected}"
            )


def attention_grid(*runs: AttentionMaps) -> Figure:
    """Attention weights as a grid of heat-maps: a row for each layer, a column for each head; grids
    side by side.

    All maps share one colour scale from 0 to the largest weight. Tokens stand at the left column
    and the bottom row. Side by side, layers begin level and a query token is equally high in every
    grid. The figure grows with maps and tokens; labels are thinned only where there is no room, and
    the picture says so.
    """
    sizes = (max(len(run.query_labels) for run in runs), max(len(run.layers) for run in runs))
    return _draw_side_by_side(
        [
            _Grid(
                np.asarray(run.maps),
                run.query_labels,
                run.key_labels,
                (run.query_name, run.key_name),
                title=run.title,
                rows=[f"layer {number}" for number in run.layers],
                columns=[f"head {number}" for number in run.heads],
                token_size=7,
                largest=sizes,
            )
            for run in runs
        ]
    )


def attention_map(
    weights: np.ndarray, query_labels: Sequence[str], key_labels: Sequence[str], *, title: str
) -> Figure:
    """One map of attention weights [Tq, Tk] with tokens on both axes. Raises ValueError as
    AttentionMaps.
    """
    weights = np.asarray(weights)
    expected = (len(query_labels), len(key_labels))
    if weights.shape != expected:
        raise ValueError(
            f"the attention map is {weights.shape}, but queries and keys number {expected}"
        )
    names = ("query", "key")
    grid = _Grid(
        weights[None, None],
        query_labels,
        key_labels,
        names,
        title=title,
        rows=[],
        columns=[],
        token_size=10,
        largest=(len(query_labels), 1),
    )
    return _draw_side_by_side([grid])


def _map_side(n_tokens: int, n_maps: int, token_size: float) -> tuple[float, int]:
    """Inches of a map's side with n_maps of them in a line, and k where only every k-th token has
    room for a label.
    """
    wanted = n_tokens * token_size * _TOKEN_LINE / 72
    smallest = max(_SMALLEST_MAP, min(3.0 / n_maps, 0.6 * n_tokens))
    largest = max(smallest, min(_LARGEST_MAP, _LARGEST_GRID / n_maps - _GAP))
    side = min(max(wanted, smallest), largest)
    return side, math.ceil(wanted / side - 1e-9)


def _token_ticks(
    axis: Any, labels: Sequence[str], step: int, size: float, rotation: float = 0
) -> None:
    """A tick at every step-th token, with the token."""
    positions = range(0, len(labels), step)
    axis.set_ticks(
        positions,
        labels=labels[::step],
        fontproperties=font_of(size),
        rotation=rotation,
        parse_math=False,
    )


def _thinning_note(query_step: int, key_step: int) -> str:
    parts = [
        f"1 in {step} {name}"
        for step, name in ((query_step, "queries"), (key_step, "keys"))
        if step > 1
    ]
    return f"labelled: {' and '.join(parts)}" if parts else ""


class _Grid:
    """Heat-maps [R, C, Tq, Tk]. Everything is placed in inches from measured text, so that nothing
    overlaps or is cut.

    Every row of maps has a band of height `band`. That is what the longest of the grids beside each
    other needs (largest: the most queries and the most rows among them); fewer queries fill a part
    of it, from the top. `width`, and the heights above the maps and from there down, are known
    before anything is drawn.
    """

    def __init__(
        self,
        maps: np.ndarray,
        query_labels: Sequence[str],
        key_labels: Sequence[str],
        names: tuple[str, str],
        *,
        title: str,
        rows: Sequence[str],
        columns: Sequence[str],
        token_size: float,
        largest: tuple[int, int],
    ) -> None:
        if not maps.size or not np.isfinite(maps).all():
            raise ValueError(
                f"attention maps must be finite and not empty; their shape is {maps.shape}"
            )
        self.maps, self.names, self.rows, self.columns, self.token_size = (
            maps,
            names,
            rows,
            columns,
            token_size,
        )
        n_rows, n_columns, n_queries, n_keys = maps.shape
        self.queries = [visible(label, MAX_LABEL) for label in query_labels]
        self.keys = [visible(label, MAX_LABEL) for label in key_labels]

        # The maps: a token takes one line of text, unless the picture would then grow too large.
        self.map_w, self.key_step = _map_side(n_keys, n_columns, token_size)
        self.band, self.query_step = _map_side(*largest, token_size)
        self.map_h = self.band * n_queries / largest[0]
        self.grid_w = n_columns * (self.map_w + _GAP) - _GAP
        self.bands_h = n_rows * (self.band + _GAP) - _GAP
        self.grid_h = self.bands_h - self.band + self.map_h

        # Names and title grow with the picture, which is looked at from further away.
        size = min(9 + 0.3 * max(self.grid_w, self.bands_h), 20.0)
        widest = max((width_of(text, size) for text in (*rows, *columns)), default=0.0)
        self.name_size = size * (
            min(1.0, 0.95 * min(self.map_w, self.band) / widest) if widest else 1.0
        )
        self.title_size = 1.25 * self.name_size
        self.name, title_line = self.name_size * _LINE / 72, self.title_size * _LINE / 72

        # The bands around the grid. Left: axis name, layers, tokens. Below: tokens, axis name,
        # note. Right: colour bar.
        self.token_w, self.token_h = (
            max(width_of(label, token_size) for label in labels) + 0.1
            for labels in (self.queries, self.keys)
        )
        self.bar_w = min(0.12 + 0.01 * self.grid_w, 0.3)
        self.left = MARGIN + self.name + (self.name if rows else 0) + self.token_w
        self.right = (
            0.2 + self.bar_w + 0.15 + width_of("0.000", self.name_size) + self.name + MARGIN
        )
        self.width = max(self.left + self.grid_w + self.right, 5.0)
        self.note = _thinning_note(self.query_step, self.key_step)
        self.bottom = MARGIN + (self.name if self.note else 0) + self.name + self.token_h
        self.title_lines = wrap(title, self.title_size, self.width - 2 * MARGIN)
        self.above = (
            (self.name + 0.04 if columns else 0)
            + 0.08
            + len(self.title_lines) * title_line
            + MARGIN
        )
        self.below = self.bands_h + self.bottom

    def draw(self, figure: Figure | SubFigure, height: float, above: float, top: float) -> None:
        """Draw onto a figure of self.width x `height` inches; colours go from 0 to `top`.

        The title begins at the upper edge of the figure, the maps `above` inches below that.
        """
        from matplotlib.colors import Normalize
        from matplotlib.ticker import MaxNLocator

        width, name, map_w, map_h = self.width, self.name, self.map_w, self.map_h
        n_rows, n_columns = self.maps.shape[:2]
        # The grid: its left, upper and lower edge.
        x0, y1 = self.left + (width - self.left - self.grid_w - self.right) / 2, height - above
        y0, middle_x = y1 - self.grid_h, x0 + self.grid_w / 2

        def middle_y(length: float) -> float:
            """The middle of what stands beside the grid: that of the grid, or lower for what is
            longer than it.
            """
            return y1 - max(self.grid_h, min(length, self.bands_h)) / 2

        def write(
            x: float, y: float, content: str, size: float = self.name_size, **how: Any
        ) -> None:
            how = {"ha": "center", "va": "center", **how}
            figure.text(
                x / width,
                y / height,
                content,
                fontproperties=font_of(size),
                parse_math=False,
                **how,
            )

        write(width / 2, height - MARGIN, "\n".join(self.title_lines), self.title_size, va="top")
        # Axis names reach a little beyond a small grid.
        query_w, key_w = (width_of(axis_name, self.name_size) for axis_name in self.names)
        x = x0 - self.token_w - (name if self.rows else 0) - name / 2
        size = self.name_size * min(1.0, (self.bands_h + 0.6) / query_w)
        write(x, middle_y(query_w), self.names[0], size, rotation=90)
        size = self.name_size * min(1.0, (self.grid_w + 0.6) / key_w)
        write(middle_x, y0 - self.token_h - name / 2, self.names[1], size)
        if self.note:
            write(middle_x, y0 - self.bottom + MARGIN + name / 2, self.note, color="0.35")

        scale = Normalize(0.0, top if top > 0 else 1.0)
        for row, column in itertools.product(range(n_rows), range(n_columns)):
            x = x0 + column * (map_w + _GAP)
            y = y1 - row * (self.band + _GAP)  # the upper edge
            axes = figure.add_axes((x / width, (y - map_h) / height, map_w / width, map_h / height))
            image = axes.imshow(
                self.maps[row, column],
                cmap="viridis",
                aspect="auto",
                interpolation="nearest",
                norm=scale,
            )
            axes.tick_params(length=2, pad=2)
            _token_ticks(
                axes.yaxis, self.queries if column == 0 else [], self.query_step, self.token_size
            )
            keys = self.keys if row == n_rows - 1 else []
            _token_ticks(axes.xaxis, keys, self.key_step, self.token_size, rotation=90)
            if self.rows and column == 0:
                taken = max(map_h, width_of(self.rows[row], self.name_size))
                write(x0 - self.token_w - name / 2, y - taken / 2, self.rows[row], rotation=90)
            if self.columns and row == 0:
                write(x + map_w / 2, y + 0.04, self.columns[column], va="bottom")

        bar_x, bar_h = x0 + self.grid_w + 0.2, min(self.bands_h, max(3.0, 0.5 * self.bands_h))
        bar_y = middle_y(bar_h)
        bar_place = (
            bar_x / width,
            (bar_y - bar_h / 2) / height,
            self.bar_w / width,
            bar_h / height,
        )
        bar_axes = figure.add_axes(bar_place)
        bar_axes.set_label("<colorbar>")
        bar = figure.colorbar(image, cax=bar_axes, ticks=MaxNLocator(5 if bar_h > 1.5 else 3))
        bar.ax.tick_params(labelsize=self.name_size)
        write(
            x0 + self.grid_w + self.right - MARGIN - name / 2,
            bar_y,
            "attention weight",
            rotation=90,
        )


def _draw_side_by_side(grids: Sequence[_Grid]) -> Figure:
    """One figure of all grids from left to right, titles and upper edges of maps level, with one
    colour scale.
    """
    from matplotlib.figure import Figure

    widths, above = [grid.width for grid in grids], max(grid.above for grid in grids)
    height = above + max(grid.below for grid in grids)
    top = max(float(grid.maps.max()) for grid in grids)
    figure = Figure(figsize=(sum(widths), height), dpi=DPI)
    places: Any = (
        [figure]
        if len(grids) == 1
        else figure.subfigures(1, len(grids), wspace=0, width_ratios=widths)
    )
    for grid, place in zip(grids, places):
        grid.draw(place, height, above, top)
    return figure
