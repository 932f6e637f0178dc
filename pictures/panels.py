"""Figures from arrays: curves, heat-maps, points; and writing them to files.

Figures are matplotlib objects without pyplot: nothing stays open, and no display is needed.
A function's `labels` are the title, x_label and y_label of `panel_figure`.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pictures.text import width_of, wrap
from utils.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 120
MARGIN = 0.15  # inches
# Line styles: some readers confuse colours, such as red and green, and all do in grey.
LINES = ("-", "--", ":")
# By suffix: dates and program versions would make equal pictures differ.
_METADATA: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".pdf": {"Creator": None, "Producer": None, "CreationDate": None},
    ".svg": {"Creator": None, "Date": None},
}


@dataclass(frozen=True, slots=True)
class Curve:
    """y over x, with a shaded band from `low` to `high` where they are given. NaN leaves a gap."""

    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    low: Sequence[float] | np.ndarray | None = None
    high: Sequence[float] | np.ndarray | None = None


def curve_panels(
    panels: Mapping[str, Mapping[str, Curve]],
    *,
    columns: int = 1,
    size: tuple[float, float] = (6.5, 2.2),
    **labels: str,
) -> Figure:
    """Panels of lines {panel: {name: curve}}.

    A name has the same colour and line style in all panels, shown in one legend beside them.
    """
    from matplotlib import colormaps

    names = list(dict.fromkeys(itertools.chain(*panels.values())))
    room = 0.7 + max(width_of(name, 10) for name in names)
    figure, axes = _panels(list(panels), columns, size=size, room=room, **labels)
    many = colormaps["turbo"](np.linspace(0.05, 0.95, len(names)))
    # In this order colours of one line style are furthest apart, to all eyes and in grey.
    palette = many if len(names) > 10 else colormaps["tab10"]([3, 0, 1, 6, 2, 4, 7, 9, 5, 8])
    colours = dict(zip(names, palette.tolist()))
    kinds = dict(zip(names, itertools.cycle(LINES)))
    lines: dict[str, Any] = {}
    for place, curves in zip(axes, panels.values()):
        for name, curve in curves.items():
            marker, colour = "o" if len(curve.x) < 30 else None, colours[name]
            how: Any = {"marker": marker, "markersize": 3.5, "linewidth": 1.6}
            [lines[name]] = place.plot(curve.x, curve.y, kinds[name], color=colour, **how)
            if curve.low is not None and curve.high is not None:
                place.fill_between(
                    curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0
                )
        place.grid(alpha=0.3)
    handles = list(lines.values())
    figure.legend(handles, list(lines), loc="outside right center", frameon=False)
    return figure


def dot_panels(
    panels: Mapping[str, Mapping[str, Mapping[str, float]]],
    *,
    columns: int = 1,
    width: float = 6.5,
    **labels: str,
) -> Figure:
    """Panels of dots {panel: {row: {name: value}}}: the rows below each other, the values across.

    A name has the same colour in all panels, shown in one legend beside them. A panel is `width`
    inches wide, and as high as its rows need.
    """
    from matplotlib import colormaps

    rows = list(dict.fromkeys(itertools.chain(*panels.values())))
    of_rows = [dots for each in panels.values() for dots in each.values()]
    names = list(dict.fromkeys(itertools.chain(*of_rows)))
    size = (width, max(1.6, 0.2 * len(rows) + 0.4))
    room = 0.7 + max(width_of(name, 10) for name in names)
    figure, axes = _panels(list(panels), columns, size=size, room=room, sharey=True, **labels)
    colours = colormaps["viridis"](np.linspace(0, 0.9, len(names))).tolist()
    areas = np.linspace(50, 12, len(names))  # equal values are all visible, as rings
    handles: dict[str, Any] = {}
    for place, each in zip(axes, panels.values()):
        for name, colour, area in zip(names, colours, areas):
            found = {row: dots[name] for row, dots in each.items() if name in dots}
            heights = [rows.index(row) for row in found]
            how: Any = {"color": [colour], "edgecolors": "0.25", "linewidths": 0.5}
            handles[name] = place.scatter(list(found.values()), heights, area, **how)
        place.set_yticks(range(len(rows)), labels=rows, fontsize=8)
        place.set_ylim(len(rows) - 0.4, -0.6)
        place.set_axisbelow(True)
        place.grid(alpha=0.3)
        place.locator_params(axis="x", nbins=min(9, round(2 * width)))
    figure.legend(handles.values(), handles, loc="outside right center", frameon=False)
    return figure


def matrix_panels(
    matrices: np.ndarray,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = ("",),
    size: tuple[float, float] | None = None,
    first_row: int = 0,
    centre: float = 0.0,
    bar_label: str = "value",
    **labels: str,
) -> Figure:
    """Matrices [R,C,Tq,Tk] as heat-maps with one colour scale; NaN is grey.

    Args:
        rows, columns: the names of R and C; without rows, R is 1 and four panels form a line.
        size: inches of a panel (None: square, smaller if there are many).
        first_row: y of the first row of a matrix.
        centre: the white value; red is above it, and blue as far below.
    """
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    n_rows, n_columns, n_queries, n_keys = matrices.shape
    in_line = n_columns if rows else min(n_columns, 4)
    side = {1: 4.2, 2: 3.2, 3: 2.6, 4: 2.2}.get(in_line, 1.7)
    names = [*columns, *[""] * n_columns * (n_rows - 1)]
    size = size or (side, side)
    figure, axes = _panels(names, in_line, size=size, sharex=True, sharey=True, **labels)
    limit = float(np.nanmax(np.abs(matrices - centre))) or 1.0
    for place, matrix in zip(axes, matrices.reshape(-1, n_queries, n_keys)):
        image = place.imshow(
            np.ma.masked_invalid(matrix),
            cmap=colormaps["RdBu_r"].with_extremes(bad="0.82"),
            vmin=centre - limit,
            vmax=centre + limit,
            extent=(-0.5, n_keys - 0.5, first_row + n_queries - 0.5, first_row - 0.5),
            aspect="auto",
        )
        for axis in (place.xaxis, place.yaxis):
            whole = MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
            axis.set_major_locator(whole)
    for place, row in zip(axes[::in_line], rows):
        place.set_ylabel(row)
    figure.colorbar(image, ax=figure.axes, pad=0.02, aspect=30, label=bar_label)
    return figure


def point_panels(
    panels: Mapping[str, np.ndarray],
    *,
    columns: int,
    side: float = 3.4,
    limit: float | None = None,
    circle: bool = False,
    **labels: str,
) -> Figure:
    """Points [T,2] of the positions 0 .. T-1, a panel for each name: joined, coloured by position.

    Args:
        side: inches of a panel, which is square and centred at 0.
        limit: the length of half an axis (None: as the points of the panel need).
        circle: draw the unit circle behind the points, and join only position 0, to the centre.
    """
    from matplotlib.colors import Normalize
    from matplotlib.patches import Circle

    figure, axes = _panels(list(panels), columns, size=(side, side), **labels)
    scale = Normalize(0, max(map(len, panels.values())) - 1)
    for place, points in zip(axes, panels.values()):
        x, y = points.T
        if circle:
            place.add_patch(Circle((0, 0), 1, fill=False, color="0.8"))
            place.plot([0, x[0]], [0, y[0]], color="0.5", linewidth=1)
        else:
            place.plot(x, y, color="0.75", linewidth=0.8, zorder=1)
        numbers = range(len(points))
        dots = place.scatter(x, y, c=numbers, cmap="viridis", norm=scale, s=22, zorder=2)
        half = limit or 1.08 * float(np.abs(points).max()) or 1.0
        place.set(xlim=(-half, half), ylim=(-half, half), aspect="equal")
        place.locator_params(nbins=5)
        place.tick_params(labelsize=8)
        place.grid(alpha=0.3)
    figure.colorbar(dots, ax=figure.axes, pad=0.02, aspect=30, label="position")
    return figure


# ------------------------------------------------------------------------------------------- layout


def panel_figure(
    n_rows: int,
    n_columns: int,
    *,
    size: tuple[float, float],
    title: str,
    x_label: str = "",
    y_label: str = "",
    room: float = 1.0,
    **subplots: Any,
) -> tuple[Figure, Any]:
    """An empty figure and its array [n_rows,n_columns] of axes of about `size` inches.

    The title is above all axes, the axis names are below and at the left; `room` inches are left
    for a legend or a colour bar at the right. `subplots` goes to matplotlib's `subplots`.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    width = max(n_columns * size[0] + room, 5.0)
    title_lines = wrap(title, 13, width - 2 * MARGIN)
    height = n_rows * size[1] + 0.5 + 0.25 * (len(title_lines) - 1)
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1, wspace=0.02, hspace=0.02)
    figure = Figure(figsize=(width, height), dpi=DPI, layout=layout)
    axes = figure.subplots(n_rows, n_columns, squeeze=False, **subplots)
    figure.suptitle("\n".join(title_lines), fontsize=13, parse_math=False)
    if n_rows == n_columns == 1:
        axes[0, 0].set(xlabel=x_label, ylabel=y_label)
    else:
        figure.supxlabel(x_label, fontsize=10)
        figure.supylabel(y_label, fontsize=10)
    return figure, axes


def _panels(
    names: Sequence[str], columns: int, *, size: tuple[float, float], **how: Any
) -> tuple[Figure, list[Axes]]:
    """`panel_figure` with a name above each panel and `columns` in a line; no empty axes."""
    wrapped = [wrap(name, 10, size[0] - 0.5) for name in names]
    size = (size[0], size[1] + 0.2 * max(map(len, wrapped)))
    figure, axes = panel_figure(math.ceil(len(names) / columns), columns, size=size, **how)
    for number, (place, lines) in enumerate(itertools.zip_longest(axes.flat, wrapped)):
        if lines is None:
            place.set_axis_off()
            axes.flat[number - columns].tick_params(labelbottom=True)  # now the last of its column
        else:
            place.set_title("\n".join(lines), fontsize=10)
    return figure, list(axes.flat[: len(names)])


# ------------------------------------------------------------------------------------------- saving


def save_figure(figure: Figure, path: Path) -> Path:
    """Write the figure as .png, .pdf or .svg, by its suffix; equal figures give equal bytes.

    Raises UserError where the file cannot be written.
    """
    import matplotlib

    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "figure"}):
        figure.savefig(content, format=path.suffix[1:], metadata=_METADATA[path.suffix])
    return write_bytes(path, content.getvalue())


def save_animation(figures: Sequence[Figure], path: Path) -> Path:
    """Write figures of one size as the frames of an endless GIF; equal figures give equal bytes.

    A frame lasts 0.8 seconds, the last one three times that. Raises UserError where the file cannot
    be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    frames = []
    for figure in figures:
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        frames.append(np.asarray(canvas.buffer_rgba())[..., :3].copy())
    # One palette for all: with one for each frame, equal colours would flicker.
    film = Image.fromarray(np.concatenate(np.stack(frames))).quantize(256, dither=Image.Dither.NONE)
    width, height = film.width, film.height // len(frames)
    first, *others = [film.crop((0, y, width, y + height)) for y in range(0, film.height, height)]
    content = io.BytesIO()
    duration = [800] * len(others) + [2400]
    first.save(content, "GIF", save_all=True, append_images=others, duration=duration, loop=0)
    return write_bytes(path, content.getvalue())
