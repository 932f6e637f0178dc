"""Figures from arrays: heat-maps, curves, points; and how they are written to files.

Figures are matplotlib objects without pyplot: nothing is kept open, and no display is needed.
`labels` of a function are the title, x_label and y_label of `panel_figure`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pictures.text import font_of, visible, width_of, wrap, write_text
from utils.errors import UserError
from utils.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 120
MARGIN = 0.15  # inches
_LONGEST_NAME = 40  # characters of a name in a legend
# By suffix: dates and program versions would make equal pictures differ.
_METADATA: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".pdf": {"Creator": None, "Producer": None, "CreationDate": None},
    ".svg": {"Creator": None, "Date": None},
}


def encoding_heatmap(table: np.ndarray, *, centre: float = 0.0, **labels: str) -> Figure:
    """A table [T,D] with position 0 at the top and colours symmetric around `centre` (white)."""
    if table.ndim != 2 or not table.size or not np.isfinite(table).all():
        raise ValueError(f"an encoding table is [T,D], finite and not empty, not {table.shape}")
    figure, [axes] = _panels(1, 1, size=(8.0, 4.5), **labels)
    limit = float(np.abs(table - centre).max()) or 1.0
    image = axes.imshow(
        table,
        cmap="RdBu_r",
        vmin=centre - limit,
        vmax=centre + limit,
        aspect="auto",
        origin="upper",
    )
    _integer_ticks(axes, 9)
    figure.colorbar(image, ax=axes, label="value", pad=0.02)
    return figure


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
    size: tuple[float, float] = (6.5, 2.4),
    legend: bool = True,
    **labels: str,
) -> Figure:
    """Panels of lines {panel: {name: curve}}.

    A name has one colour in all panels, and one legend beside them says which. Raises ValueError
    for no curve, and for a curve whose x and y differ in length.
    """
    from matplotlib import colormaps

    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    widest = max(width_of(visible(name, _LONGEST_NAME), 10) for name in names)
    room = widest + 0.7 if legend else 0.4
    figure, axes = _panels(len(panels), columns, size=size, room=room, **labels)
    many = list(colormaps["turbo"](np.linspace(0.05, 0.95, len(names))))
    colours = dict(zip(names, many if len(names) > 10 else (f"C{i}" for i in range(10))))
    lines: dict[str, Any] = {}
    for place, (panel, curves) in zip(axes, panels.items()):
        for name, curve in curves.items():
            marker, colour = "o" if len(curve.x) < 30 else None, colours[name]
            [lines[name]] = place.plot(
                curve.x, curve.y, color=colour, marker=marker, markersize=3.5, linewidth=1.6
            )
            if curve.low is not None and curve.high is not None:
                place.fill_between(
                    curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0
                )
        place.grid(alpha=0.3)
        panel_title(place, panel, size[0] - 0.5)
    if legend:
        # Names are set afterwards: matplotlib drops labels that begin with an underscore.
        handles, numbers = [lines[name] for name in names], [str(i) for i in range(len(names))]
        box = figure.legend(handles, numbers, loc="outside right center", frameon=False)
        for text, name in zip(box.get_texts(), names):
            write_text(text, name, limit=_LONGEST_NAME)
    return figure


def matrix_panels(
    matrices: np.ndarray,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str],
    bar_label: str,
    first_row: int = 0,
    **labels: str,
) -> Figure:
    """Matrices [R,C,Tq,Tk] as heat-maps with one colour scale in which 0 is white and NaN grey.

    Args:
        rows, columns: the names of R and C; without rows, R is 1 and four panels stand in a line.
        first_row: y of the first row of a matrix.

    Raises ValueError where the names do not fit, or no number is there.
    """
    from matplotlib import colormaps

    expected = (len(rows) or 1, len(columns))
    if matrices.shape[:-2] != expected or not np.isfinite(matrices).any():
        raise ValueError(
            f"matrices [R,C,Tq,Tk] of {expected} names must hold numbers, not {matrices.shape}"
        )
    n_columns = len(columns) if rows else min(len(columns), 4)
    side = {1: 4.2, 2: 3.2, 3: 2.6, 4: 2.2}.get(n_columns, 1.7)
    title_lines = max(len(wrap(name, 10, side - 0.5)) for name in columns)
    flat = matrices.reshape(-1, *matrices.shape[2:])
    size = (side, side + 0.2 * title_lines)
    figure, axes = _panels(len(flat), n_columns, size=size, sharex=True, sharey=True, **labels)
    low, high = float(np.nanmin(matrices)), float(np.nanmax(matrices))
    limit = max(-low, high) or 1.0
    if high <= 0:  # numbers of one sign take the whole scale
        scale, low, high = "Blues_r", -limit, 0.0
    elif low >= 0:
        scale, low, high = "Reds", 0.0, limit
    else:
        scale, low, high = "RdBu_r", -limit, limit
    colours = colormaps[scale].with_extremes(bad="0.82")
    n_queries, n_keys = flat.shape[1:]
    extent = (-0.5, n_keys - 0.5, first_row + n_queries - 0.5, first_row - 0.5)
    for number, (place, matrix) in enumerate(zip(axes, flat)):
        image = place.imshow(
            np.ma.masked_invalid(matrix),
            cmap=colours,
            vmin=low,
            vmax=high,
            extent=extent,
            aspect="auto",
        )
        _integer_ticks(place, 4)
        if not rows or number < n_columns:
            panel_title(place, columns[number], side - 0.5)
        if rows and number % n_columns == 0:
            write_text(place.yaxis.label, rows[number // n_columns])
    _colour_bar(figure, image, bar_label)
    return figure


def point_panels(
    panels: Mapping[str, np.ndarray],
    *,
    columns: int,
    side: float = 3.4,
    limit: float | None = None,
    circle: bool = False,
    bar_label: str = "position",
    **labels: str,
) -> Figure:
    """Points [T,2] of the positions 0 .. T-1, a panel for each name: joined, coloured by position.

    Args:
        side: inches of a panel, which is square and centred at 0.
        limit: the length of half an axis (None: what the points of the panel need).
        circle: draw the unit circle behind the points, and join position 0 alone, to the centre.
        bar_label: what the numbers 0 .. T-1 are, where they are not positions.
    """
    from matplotlib.colors import Normalize
    from matplotlib.patches import Circle

    figure, axes = _panels(len(panels), columns, size=(side, side + 0.2), **labels)
    scale = Normalize(0, max(map(len, panels.values())) - 1)
    for place, (name, points) in zip(axes, panels.items()):
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
        panel_title(place, name, side - 0.3)
    _colour_bar(figure, dots, bar_label)
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

    The title stands above all, the axis names below and at the left of all; `room` inches are left
    for a legend or a colour bar at the right. `subplots` is for matplotlib's function of the name.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    width = max(n_columns * size[0] + room, 5.0)
    title_lines = wrap(title, 13, width - 2 * MARGIN)
    height = n_rows * size[1] + 0.5 + 0.25 * (len(title_lines) - 1)
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1, wspace=0.02, hspace=0.02)
    figure = Figure(figsize=(width, height), dpi=DPI, layout=layout)
    axes = figure.subplots(n_rows, n_columns, squeeze=False, **subplots)
    figure.suptitle("\n".join(title_lines), fontproperties=font_of(13), parse_math=False)
    if n_rows == n_columns == 1:
        write_text(axes[0, 0].xaxis.label, x_label)
        write_text(axes[0, 0].yaxis.label, y_label)
    else:
        figure.supxlabel(visible(x_label), fontproperties=font_of(10), parse_math=False)
        figure.supylabel(visible(y_label), fontproperties=font_of(10), parse_math=False)
    return figure, axes


def panel_title(axes: Axes, title: str, width: float) -> None:
    """A title above one panel, in lines of at most `width` inches."""
    axes.set_title("\n".join(wrap(title, 10, width)), fontproperties=font_of(10), parse_math=False)


def _panels(n: int, columns: int, **how: Any) -> tuple[Figure, list[Axes]]:
    """`panel_figure` of n panels, `columns` in a line; places that are left over stay empty."""
    figure, axes = panel_figure(math.ceil(n / columns), columns, **how)
    for place in axes.flat[n:]:
        place.set_axis_off()
    return figure, list(axes.flat[:n])


def _integer_ticks(axes: Axes, n: int) -> None:
    """At most n ticks on either axis, at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=n, integer=True, min_n_ticks=1))


def _colour_bar(figure: Figure, drawn: Any, label: str) -> None:
    """One bar for all panels."""
    bar = figure.colorbar(drawn, ax=figure.axes, pad=0.02, aspect=30)
    write_text(bar.ax.yaxis.label, label)


# ------------------------------------------------------------------------------------------- saving


def save_figure(figure: Figure, path: Path) -> Path:
    """Write the figure as .png, .pdf or .svg, as the suffix says; equal figures give equal bytes.

    Raises UserError for another suffix, or where the file cannot be written.
    """
    import matplotlib

    suffix = path.suffix.lower()
    if suffix not in _METADATA:
        raise UserError(
            f"cannot draw to {str(path)!r}: the suffix {path.suffix!r} is not one of "
            f"{', '.join(_METADATA)}"
        )
    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "figure"}):
        figure.savefig(content, format=suffix[1:], metadata=_METADATA[suffix])
    return write_bytes(path, content.getvalue())


def save_animation(figures: Sequence[Figure], path: Path) -> Path:
    """Write figures of one size as the frames of an endless GIF; equal figures give equal bytes.

    A frame stays for 0.8 seconds, the last for three times that. Raises ValueError for no figure or
    figures of several sizes, UserError where the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    frames = []
    for figure in figures:
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        frames.append(np.asarray(canvas.buffer_rgba())[..., :3].copy())
    sizes = {frame.shape[:2] for frame in frames}
    if len(sizes) != 1:
        raise ValueError(f"the frames of an animation have one size, not {sorted(sizes)}")
    [(height, width)] = sizes
    # One palette for all: with one for each frame equal colours would flicker.
    film = Image.fromarray(np.concatenate(frames)).quantize(256, dither=Image.Dither.NONE)
    first, *others = [
        film.crop((0, n * height, width, (n + 1) * height)) for n in range(len(frames))
    ]
    content = io.BytesIO()
    duration = [800] * len(others) + [2400]
    first.save(content, "GIF", save_all=True, append_images=others, duration=duration, loop=0)
    return write_bytes(path, content.getvalue())
