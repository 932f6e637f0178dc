"""Figures from arrays: heat-maps, curves, points; and how they are written to files.

Figures are matplotlib objects without pyplot, so that nothing is kept open and no display is
needed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pictures.text import font_of, visible, width_of, wrap, write_text
from utils.errors import UserError
from utils.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")
DPI = 120
MARGIN = 0.15  # inches
_LONGEST_NAME = 40  # characters of a name in a legend


def encoding_heatmap(
    table: np.ndarray,
    *,
    title: str,
    x_label: str = "embedding dimension",
    y_label: str = "position",
    centre: float = 0.0,
) -> Figure:
    """A table of encodings [T, D]: position 0 at the top, colours symmetric around `centre`
    (white).
    """
    table = np.asarray(table)
    if table.ndim != 2 or not table.size or not np.isfinite(table).all():
        raise ValueError(
            f"an encoding table must be [T, D], not empty and finite, not {table.shape}"
        )
    figure, [[axes]] = panel_figure(
        1, 1, size=(8.0, 4.5), title=title, x_label=x_label, y_label=y_label
    )
    limit = float(np.abs(table - centre).max()) or 1.0
    image = axes.imshow(
        table,
        cmap="RdBu_r",
        vmin=centre - limit,
        vmax=centre + limit,
        aspect="auto",
        origin="upper",
    )
    integer_ticks(axes)
    figure.colorbar(image, ax=axes, label="value", pad=0.02)
    return figure


def curves(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    title: str,
    x_label: str,
    y_label: str,
) -> Figure:
    """Lines y over x, one for each name, with a legend beside the axes. NaN leaves a gap."""
    lines = {name: Curve(xs, ys) for name, (xs, ys) in series.items()}
    return curve_panels({"": lines}, title=title, x_label=x_label, y_label=y_label, size=(6.5, 4.5))


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
    title: str,
    x_label: str,
    y_label: str = "",
    columns: int = 1,
    size: tuple[float, float] = (6.5, 2.4),
    legend: bool = True,
) -> Figure:
    """Panels of lines, each under its name; a line's name has one colour in all of them and one
    legend beside them.

    Raises ValueError where a curve's values do not fit each other, and where there is nothing to
    draw.
    """
    from matplotlib import colormaps

    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    if not names:
        raise ValueError("no curve to draw: series is empty")
    room = (
        max(width_of(visible(name, _LONGEST_NAME), 10) for name in names) + 0.7 if legend else 0.4
    )
    rows = math.ceil(len(panels) / columns)
    figure, axes = panel_figure(
        rows, columns, size=size, title=title, x_label=x_label, y_label=y_label, room=room
    )
    drawn: dict[str, Any] = {}
    many = colormaps["turbo"](np.linspace(0.05, 0.95, len(names)))
    colours = [f"C{i}" for i in range(len(names))] if len(names) <= 10 else list(many)
    for place, (panel, lines) in zip(axes.flat, panels.items()):
        for name, curve in lines.items():
            if len(curve.x) != len(curve.y):
                raise ValueError(
                    f"curve {name!r} has {len(curve.x)} x values and {len(curve.y)} y values"
                )
            colour = colours[names.index(name)]
            markers = {"marker": "o" if len(curve.x) < 30 else None, "markersize": 3.5}
            [drawn[name]] = place.plot(curve.x, curve.y, linewidth=1.6, color=colour, **markers)
            if curve.low is not None and curve.high is not None:
                place.fill_between(
                    curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0
                )
        place.grid(alpha=0.3)
        panel_title(place, panel, size[0] - 0.5)
    for place in axes.flat[len(panels) :]:
        place.set_axis_off()
    if legend:
        # Names are set afterwards: matplotlib drops labels that begin with an underscore.
        handles, numbers = [drawn[name] for name in names], [str(i) for i in range(len(names))]
        box = figure.legend(handles, numbers, loc="outside right center", frameon=False)
        for text, name in zip(box.get_texts(), names):
            write_text(text, name, limit=_LONGEST_NAME)
    return figure


def matrix_panels(
    matrices: np.ndarray,
    *,
    title: str,
    rows: Sequence[str] = (),
    columns: Sequence[str],
    x_label: str,
    y_label: str,
    bar_label: str,
    first_row: int = 0,
) -> Figure:
    """Matrices [R, C, Tq, Tk] as heat-maps with one colour scale in which 0 is white; NaN is grey.

    rows and columns name them; without rows there is one row, and the panels are wrapped to four in
    a line. The first row of a matrix stands at y = first_row. Raises ValueError where the names do
    not fit.
    """
    from matplotlib import colormaps

    matrices = np.asarray(matrices)
    expected = (len(rows) or 1, len(columns))
    if matrices.ndim != 4 or matrices.shape[:2] != expected or not np.isfinite(matrices).any():
        raise ValueError(
            f"matrices [R, C, Tq, Tk] for {expected} names must hold numbers; their shape is {matrices.shape}"
        )
    n_columns = len(columns) if rows else min(len(columns), 4)
    n_rows = len(rows) or math.ceil(len(columns) / n_columns)
    side = {1: 4.2, 2: 3.2, 3: 2.6, 4: 2.2}.get(n_columns, 1.7)
    lines = max(len(wrap(name, 10, side - 0.5)) for name in columns)
    figure, axes = panel_figure(
        n_rows,
        n_columns,
        size=(side, side + 0.2 * lines),
        title=title,
        x_label=x_label,
        y_label=y_label,
        sharex=True,
        sharey=True,
    )
    low, high = float(np.nanmin(matrices)), float(np.nanmax(matrices))
    limit = max(-low, high) or 1.0
    # Numbers of one sign take the whole scale.
    scale, bottom, top = (
        ("Blues_r", -limit, 0.0)
        if high <= 0
        else ("Reds", 0.0, limit)
        if low >= 0
        else ("RdBu_r", -limit, limit)
    )
    colours = colormaps[scale].with_extremes(bad="0.82")
    n_queries, n_keys = matrices.shape[2:]
    extent = (-0.5, n_keys - 0.5, first_row + n_queries - 0.5, first_row - 0.5)
    flat = matrices.reshape(-1, *matrices.shape[2:])
    for number, (place, matrix) in enumerate(zip(axes.flat, flat)):
        image = place.imshow(
            np.ma.masked_invalid(matrix),
            cmap=colours,
            vmin=bottom,
            vmax=top,
            extent=extent,
            aspect="auto",
        )
        integer_ticks(place, 4)
        if not rows or number < n_columns:
            panel_title(place, columns[number], side - 0.5)
        if rows and number % n_columns == 0:
            write_text(place.yaxis.label, rows[number // n_columns])
    for place in axes.flat[len(flat) :]:
        place.set_axis_off()
    bar = figure.colorbar(image, ax=axes, pad=0.02, aspect=30)
    write_text(bar.ax.yaxis.label, bar_label)
    return figure


def point_panels(
    panels: Mapping[str, np.ndarray],
    *,
    title: str,
    x_label: str,
    y_label: str,
    columns: int,
    side: float = 3.4,
    limit: float | None = None,
    circle: bool = False,
    bar_label: str = "position",
) -> Figure:
    """Points [T, 2] of the positions 0 .. T-1, one panel for each name: joined by a line, coloured
    by position.

    Every panel is square and centred at 0; `limit` is the length of its half axes (None: what its
    points need). circle: the unit circle is drawn behind the points, and position 0 is joined to
    the centre. bar_label: what the numbers 0 .. T-1 are, where they are not positions.
    """
    from matplotlib.colors import Normalize
    from matplotlib.patches import Circle

    n_rows = math.ceil(len(panels) / columns)
    figure, axes = panel_figure(
        n_rows, columns, size=(side, side + 0.2), title=title, x_label=x_label, y_label=y_label
    )
    scale = Normalize(0, max(len(points) for points in panels.values()) - 1)
    for place, (name, points) in zip(axes.flat, panels.items()):
        if circle:
            place.add_patch(Circle((0, 0), 1, fill=False, color="0.8"))
            place.plot([0, points[0, 0]], [0, points[0, 1]], color="0.5", linewidth=1)
        else:
            place.plot(points[:, 0], points[:, 1], color="0.75", linewidth=0.8, zorder=1)
        dots = place.scatter(
            points[:, 0],
            points[:, 1],
            c=range(len(points)),
            cmap="viridis",
            norm=scale,
            s=22,
            zorder=2,
        )
        half = limit or 1.08 * float(np.abs(points).max()) or 1.0
        place.set(xlim=(-half, half), ylim=(-half, half), aspect="equal")
        place.locator_params(nbins=5)
        place.tick_params(labelsize=8)
        place.grid(alpha=0.3)
        panel_title(place, name, side - 0.3)
    for place in axes.flat[len(panels) :]:
        place.set_axis_off()
    bar = figure.colorbar(dots, ax=axes, pad=0.02, aspect=30)
    write_text(bar.ax.yaxis.label, bar_label)
    return figure


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write the figure as .png, .pdf or .svg, as the suffix says; the same figure gives the same
    bytes.

    The folder is made. The file is written aside and then renamed, so that it is never seen
    half-written. Raises UserError for another suffix or where the file cannot be written.
    """
    import matplotlib

    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(
            f"cannot draw to {str(path)!r}: the suffix {path.suffix!r} is not one of {', '.join(SUFFIXES)}"
        )
    # Dates and program versions would make equal pictures differ.
    metadata = {
        ".png": {"Software": None},
        ".pdf": {"Creator": None, "Producer": None, "CreationDate": None},
        ".svg": {"Creator": None, "Date": None},
    }[suffix]
    with _written_aside(path) as aside, matplotlib.rc_context({"svg.hashsalt": "figure"}):
        figure.savefig(aside, format=suffix[1:], metadata=metadata)
    return path


def save_animation(figures: Sequence[Figure], path: str | Path, *, seconds: float = 0.8) -> Path:
    """Write figures of one size as the frames of an endless GIF, `seconds` each and three times
    that for the last.

    Equal figures give equal bytes. Written aside as in save_figure. Raises UserError where the file
    cannot be written, ValueError for no figure or figures of several sizes.
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
    indexed = [film.crop((0, n * height, width, (n + 1) * height)) for n in range(len(frames))]
    path = Path(path)
    durations = [*[round(1000 * seconds)] * (len(frames) - 1), round(3000 * seconds)]
    with _written_aside(path) as aside:
        indexed[0].save(
            aside,
            format="GIF",
            save_all=True,
            append_images=indexed[1:],
            duration=durations,
            loop=0,
        )
    return path


@contextlib.contextmanager
def _written_aside(path: Path) -> Iterator[Path]:
    """A name beside `path` that is renamed to it at the end; the folder is made. Raises UserError
    where that fails.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as aside:
            yield aside
    except OSError as error:
        raise UserError(
            f"cannot write {str(path)!r}: {error.strerror or error}; choose another path"
        ) from error


# ------------------------------------------------------------------------------------------- layout


def panel_figure(
    n_rows: int,
    n_columns: int,
    *,
    size: tuple[float, float],
    title: str,
    x_label: str,
    y_label: str,
    room: float = 1.0,
    **subplots: Any,
) -> tuple[Figure, Any]:
    """An empty figure of n_rows x n_columns axes of about `size` inches, and the array of them.

    The title stands above all, the axis names below and at the left of all; `room` inches are left
    for a legend or a colour bar at the right.
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


def integer_ticks(axes: Axes, n: int = 9) -> None:
    """At most n ticks on either axis, at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=n, integer=True, min_n_ticks=1))
