"""Figures from arrays: attention maps, encodings, curves; and how they are written to files.

Figures are matplotlib objects without pyplot, so that nothing is kept open and no display is needed.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from configs.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.text import Text

SUFFIXES = (".png", ".pdf", ".svg")
DPI = 120
MAX_LABEL = 20  # characters of a token that are shown
# Fonts for the scripts that DejaVu Sans (which comes with matplotlib) lacks, used where they are installed.
_FALLBACK_FONTS = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "WenQuanYi Micro Hei",
    "Hiragino Sans",
    "Yu Gothic",
    "Microsoft YaHei",
    "Noto Sans Symbols2",
    "Noto Emoji",
    "Symbola",
)

# Lengths in inches.
_MARGIN = 0.15
_GAP = 0.12  # between two maps
_LINE = 1.3  # line height / font size
_TOKEN_LINE = 1.25  # the same where lines are dense
_SMALLEST_MAP = 1.0
_LARGEST_GRID = 32.0  # token labels are thinned beyond this, so that the picture stays within bounds
_LARGEST_MAP = 12.0


def attention_grid(
    maps: np.ndarray,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    *,
    title: str,
    layers: Sequence[int],
    heads: Sequence[int],
    query_name: str = "query",
    key_name: str = "key",
) -> Figure:
    """Attention weights [L, H, Tq, Tk] as a grid of heat-maps: a row for each layer, a column for each head.

    layers and heads are the numbers to print, from 1; query_name and key_name say what stands on the axes. All maps
    share one colour scale from 0 to the largest weight. Tokens stand at the left column and the bottom row. The figure
    grows with maps and tokens; labels are thinned only where there is no room, and the picture says so. Raises
    ValueError where maps, labels and numbers do not fit.
    """
    maps = np.asarray(maps)
    expected = (len(layers), len(heads), len(query_labels), len(key_labels))
    if maps.shape != expected:
        raise ValueError(f"attention maps are {maps.shape}, but layers, heads, queries and keys number {expected}")
    rows = [f"layer {number}" for number in layers]
    columns = [f"head {number}" for number in heads]
    names = (query_name, key_name)
    return _grid(maps, query_labels, key_labels, names, title=title, rows=rows, columns=columns, token_size=7)


def attention_map(weights: np.ndarray, query_labels: Sequence[str], key_labels: Sequence[str], *, title: str) -> Figure:
    """One map of attention weights [Tq, Tk] with tokens on both axes. Raises ValueError as attention_grid."""
    weights = np.asarray(weights)
    expected = (len(query_labels), len(key_labels))
    if weights.shape != expected:
        raise ValueError(f"the attention map is {weights.shape}, but queries and keys number {expected}")
    names = ("query", "key")
    return _grid(weights[None, None], query_labels, key_labels, names, title=title, rows=[], columns=[], token_size=10)


def encoding_heatmap(
    table: np.ndarray, *, title: str, x_label: str = "embedding dimension", y_label: str = "position"
) -> Figure:
    """A table of encodings [T, D]: position 0 at the top, colours symmetric around 0."""
    table = np.asarray(table)
    if table.ndim != 2 or not table.size or not np.isfinite(table).all():
        raise ValueError(f"an encoding table must be [T, D], not empty and finite, not {table.shape}")
    figure, axes = _single_axes(title, x_label, y_label)
    limit = float(np.abs(table).max()) or 1.0
    image = axes.imshow(table, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", origin="upper")
    _integer_ticks(axes)
    figure.colorbar(image, ax=axes, label="value", pad=0.02)
    return figure


def curves(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, title: str, x_label: str, y_label: str
) -> Figure:
    """Lines y over x, one for each name, with a legend beside the axes. NaN leaves a gap."""
    if not series:
        raise ValueError("no curve to draw: series is empty")
    figure, axes = _single_axes(title, x_label, y_label)
    lines = []
    for name, (xs, ys) in series.items():
        if len(xs) != len(ys):
            raise ValueError(f"curve {name!r} has {len(xs)} x values and {len(ys)} y values")
        lines += axes.plot(xs, ys, linewidth=1.6, marker="o" if len(xs) < 30 else None, markersize=3.5)
    axes.grid(alpha=0.3)
    # Names are set afterwards: matplotlib drops labels that begin with an underscore.
    legend = figure.legend(lines, [str(i) for i in range(len(lines))], loc="outside right center", frameon=False)
    for text, name in zip(legend.get_texts(), series):
        _write(text, name, limit=40)
    return figure


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write the figure as .png, .pdf or .svg, as the suffix says; the same figure gives the same bytes.

    The folder is made. The file is written aside and then renamed, so that it is never seen half-written.
    Raises UserError for another suffix or where the file cannot be written.
    """
    import matplotlib

    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"cannot draw to {str(path)!r}: the suffix {path.suffix!r} is not one of {', '.join(SUFFIXES)}")
    # Dates and program versions would make equal pictures differ.
    metadata = {
        ".png": {"Software": None},
        ".pdf": {"Creator": None, "Producer": None, "CreationDate": None},
        ".svg": {"Creator": None, "Date": None},
    }[suffix]
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({"svg.hashsalt": "figure"}):
            figure.savefig(aside, format=suffix[1:], metadata=metadata)
        aside.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {str(path)!r}: {error.strerror or error}; choose another path") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
    return path


# ----------------------------------------------------------------------------------------------------- text


@cache
def _families() -> tuple[str, ...]:
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return ("DejaVu Sans", *(name for name in _FALLBACK_FONTS if name in installed))


@cache
def _has_glyph(character: str) -> bool:
    from matplotlib.font_manager import findfont, get_font

    return any(get_font(findfont(family)).get_char_index(ord(character)) for family in _families())


@cache
def _font(size: float) -> FontProperties:
    from matplotlib.font_manager import FontProperties

    return FontProperties(family=list(_families()), size=size)


def _visible(text: str, limit: int | None = None) -> str:
    """The text as it can be drawn: on one line, lone spaces visible, U+XXXX for a character that no font has.

    Such a character would otherwise be a box like any other, and a warning. SentencePiece's ▁ becomes _, since in
    DejaVu Sans it hangs far below the line and pushes upright labels out of their column.
    """
    escapes = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "▁": "_"}
    if text.isspace():
        text = text.replace(" ", "␣")
    pieces = [escapes.get(c) or (c if c.isprintable() and _has_glyph(c) else f"U+{ord(c):04X}") for c in text]
    if limit is None or sum(map(len, pieces)) <= limit:
        return "".join(pieces)
    ends = itertools.accumulate(map(len, pieces))
    return "".join(piece for piece, end in zip(pieces, ends) if end < limit) + "…"


def _write(text: Text, content: str, limit: int | None = None) -> None:
    """Put the content into a text object: `$` is a character there, not the start of mathematics."""
    text.set_parse_math(False)
    size = text.get_fontsize()
    text.set_fontproperties(_font(size))
    text.set_text(_visible(content, limit))


@cache
def _renderer() -> Any:
    from matplotlib.backends.backend_agg import RendererAgg

    return RendererAgg(10, 10, 72)


def _width(text: str, size: float) -> float:
    """Inches that a line of (visible) text takes at this font size."""
    return _renderer().get_text_width_height_descent(text, _font(size), ismath=False)[0] / 72


def _wrap(text: str, size: float, width: float) -> list[str]:
    """Lines of at most `width` inches; a longer word is broken."""
    lines = [""]
    for word in _visible(text.replace("\n", " ")).split():
        joined = f"{lines[-1]} {word}".strip()
        if _width(joined, size) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        for character in word:
            if lines[-1] and _width(lines[-1] + character, size) > width:
                lines.append("")
            lines[-1] += character
    return lines


# --------------------------------------------------------------------------------------------------- layout


def _single_axes(title: str, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    width = 8.5
    figure = Figure(figsize=(width, 5.0), dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
    axes = figure.add_subplot()
    figure.suptitle("\n".join(_wrap(title, 13, width - 2 * _MARGIN)), fontproperties=_font(13), parse_math=False)
    _write(axes.xaxis.label, x_label)
    _write(axes.yaxis.label, y_label)
    return figure, axes


def _integer_ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=9, integer=True, min_n_ticks=1))


def _map_side(n_tokens: int, n_maps: int, token_size: float) -> tuple[float, int]:
    """Inches of a map's side with n_maps of them in a line, and k where only every k-th token has room for a label."""
    wanted = n_tokens * token_size * _TOKEN_LINE / 72
    smallest = max(_SMALLEST_MAP, min(3.0 / n_maps, 0.6 * n_tokens))
    largest = max(smallest, min(_LARGEST_MAP, _LARGEST_GRID / n_maps - _GAP))
    side = min(max(wanted, smallest), largest)
    return side, math.ceil(wanted / side - 1e-9)


def _token_ticks(axis: Any, labels: Sequence[str], step: int, size: float, rotation: float = 0) -> None:
    """A tick at every step-th token, with the token."""
    positions = range(0, len(labels), step)
    axis.set_ticks(positions, labels=labels[::step], fontproperties=_font(size), rotation=rotation, parse_math=False)


def _thinning_note(query_step: int, key_step: int) -> str:
    parts = [f"1 in {step} {name}" for step, name in ((query_step, "queries"), (key_step, "keys")) if step > 1]
    return f"labelled: {' and '.join(parts)}" if parts else ""


def _grid(
    maps: np.ndarray,
    query_labels: Sequence[str],
    key_labels: Sequence[str],
    names: tuple[str, str],
    *,
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    token_size: float,
) -> Figure:
    """Draw [R, C, Tq, Tk]. Everything is placed in inches from measured text, so that nothing overlaps or is cut."""
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    if not maps.size or not np.isfinite(maps).all():
        raise ValueError(f"attention maps must be finite and not empty; their shape is {maps.shape}")
    n_rows, n_columns, n_queries, n_keys = maps.shape
    queries = [_visible(label, MAX_LABEL) for label in query_labels]
    keys = [_visible(label, MAX_LABEL) for label in key_labels]

    # The maps: a token takes one line of text, unless the picture would then grow too large.
    map_w, key_step = _map_side(n_keys, n_columns, token_size)
    map_h, query_step = _map_side(n_queries, n_rows, token_size)
    grid_w = n_columns * (map_w + _GAP) - _GAP
    grid_h = n_rows * (map_h + _GAP) - _GAP

    # Names and title grow with the picture, which is looked at from further away.
    name_size = min(9 + 0.3 * max(grid_w, grid_h), 20.0)
    widest = max((_width(text, name_size) for text in (*rows, *columns)), default=0.0)
    name_size *= min(1.0, 0.95 * min(map_w, map_h) / widest) if widest else 1.0
    title_size = 1.25 * name_size
    name, title_line = name_size * _LINE / 72, title_size * _LINE / 72

    # The bands around the grid. Left: axis name, layers, tokens. Below: tokens, axis name, note. Right: colour bar.
    token_w, token_h = (max(_width(label, token_size) for label in labels) + 0.1 for labels in (queries, keys))
    bar_w = min(0.12 + 0.01 * grid_w, 0.3)
    left = _MARGIN + name + (name if rows else 0) + token_w
    right = 0.2 + bar_w + 0.15 + _width("0.000", name_size) + name + _MARGIN
    width = max(left + grid_w + right, 5.0)
    note = _thinning_note(query_step, key_step)
    bottom = _MARGIN + (name if note else 0) + name + token_h
    title_lines = _wrap(title, title_size, width - 2 * _MARGIN)
    height = bottom + grid_h + (name + 0.04 if columns else 0) + 0.08 + len(title_lines) * title_line + _MARGIN

    x0, y0 = left + (width - left - grid_w - right) / 2, bottom  # the lower left corner of the grid
    middle_x, middle_y = x0 + grid_w / 2, y0 + grid_h / 2
    figure = Figure(figsize=(width, height), dpi=DPI)

    def write(x: float, y: float, content: str, size: float = name_size, **how: Any) -> None:
        how = {"ha": "center", "va": "center", **how}
        figure.text(x / width, y / height, content, fontproperties=_font(size), parse_math=False, **how)

    write(width / 2, height - _MARGIN, "\n".join(title_lines), title_size, va="top")
    for axis_name, x, y, room, rotation in (
        (names[0], x0 - token_w - (name if rows else 0) - name / 2, middle_y, grid_h, 90),
        (names[1], middle_x, y0 - token_h - name / 2, grid_w, 0),
    ):
        fitting = name_size * min(1.0, (room + 0.6) / _width(axis_name, name_size))  # a little beyond a small grid
        write(x, y, axis_name, fitting, rotation=rotation)
    if note:
        write(middle_x, _MARGIN + name / 2, note, color="0.35")

    top = float(maps.max())
    scale = Normalize(0.0, top if top > 0 else 1.0)
    for row, column in itertools.product(range(n_rows), range(n_columns)):
        x = x0 + column * (map_w + _GAP)
        y = y0 + (n_rows - 1 - row) * (map_h + _GAP)
        axes = figure.add_axes((x / width, y / height, map_w / width, map_h / height))
        image = axes.imshow(maps[row, column], cmap="viridis", aspect="auto", interpolation="nearest", norm=scale)
        axes.tick_params(length=2, pad=2)
        _token_ticks(axes.yaxis, queries if column == 0 else [], query_step, token_size)
        _token_ticks(axes.xaxis, keys if row == n_rows - 1 else [], key_step, token_size, rotation=90)
        if rows and column == 0:
            write(x0 - token_w - name / 2, y + map_h / 2, rows[row], rotation=90)
        if columns and row == 0:
            write(x + map_w / 2, y + map_h + 0.04, columns[column], va="bottom")

    bar_x, bar_h = x0 + grid_w + 0.2, min(grid_h, max(3.0, 0.5 * grid_h))
    bar_axes = figure.add_axes((bar_x / width, (middle_y - bar_h / 2) / height, bar_w / width, bar_h / height))
    bar_axes.set_label("<colorbar>")
    bar = figure.colorbar(image, cax=bar_axes, ticks=MaxNLocator(5 if bar_h > 1.5 else 3))
    bar.ax.tick_params(labelsize=name_size)
    write(x0 + grid_w + right - _MARGIN - name / 2, middle_y, "attention weight", rotation=90)
    return figure
