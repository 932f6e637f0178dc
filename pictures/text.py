"""Text in figures: any string as it is, measured before it is placed."""

from __future__ import annotations

import itertools
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.font_manager import FontProperties
    from matplotlib.text import Text

# DejaVu Sans comes with matplotlib. The others have the scripts that it lacks, where installed.
_FONTS = [
    "DejaVu Sans",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "WenQuanYi Micro Hei",
    "Hiragino Sans",
    "Yu Gothic",
    "Microsoft YaHei",
    "Noto Sans Symbols2",
    "Noto Emoji",
    "Symbola",
]


@cache
def _families() -> list[str]:
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return [name for name in _FONTS if name in installed]


@cache
def _has_glyph(character: str) -> bool:
    from matplotlib.font_manager import findfont, get_font

    return any(get_font(findfont(family)).get_char_index(ord(character)) for family in _families())


@cache
def font_of(size: float) -> FontProperties:
    from matplotlib.font_manager import FontProperties

    return FontProperties(family=_families(), size=size)


def visible(text: str, limit: int | None = None) -> str:
    """The text as it can be drawn: on one line, with U+XXXX where no font has a glyph.

    A missing glyph would be a box like any other, and a warning. SentencePiece's ▁ becomes _: in
    DejaVu Sans it hangs below the line and pushes upright labels out of their column. Spaces
    alone become visible. limit: the most characters; an ellipsis ends what is longer.
    """
    escapes = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "▁": "_"}
    if text.isspace():
        text = text.replace(" ", "␣")
    pieces = [
        escapes.get(c) or (c if c.isprintable() and _has_glyph(c) else f"U+{ord(c):04X}")
        for c in text
    ]
    ends = list(itertools.accumulate(map(len, pieces)))
    if limit is None or not ends or ends[-1] <= limit:
        return "".join(pieces)
    return "".join(piece for piece, end in zip(pieces, ends) if end < limit) + "…"


def write_text(text: Text, content: str, limit: int | None = None) -> None:
    """Put the content into a text object, where `$` is a character and starts no mathematics."""
    text.set_parse_math(False)
    text.set_fontproperties(font_of(text.get_fontsize()))
    text.set_text(visible(content, limit))


@cache
def _renderer() -> Any:
    from matplotlib.backends.backend_agg import RendererAgg

    return RendererAgg(10, 10, 72)


def width_of(text: str, size: float) -> float:
    """Inches that a line of (visible) text takes at this font size."""
    return _renderer().get_text_width_height_descent(text, font_of(size), ismath=False)[0] / 72


def wrap(text: str, size: float, width: float) -> list[str]:
    """Lines of at most `width` inches; a longer word is broken.

    No word is alone on the last line where the line before can spare one.
    """
    lines = [""]
    for word in visible(text.replace("\n", " ")).split():
        joined = f"{lines[-1]} {word}".strip()
        if width_of(joined, size) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        for character in word:
            if lines[-1] and width_of(lines[-1] + character, size) > width:
                lines.append("")
            lines[-1] += character
    if len(lines) > 1 and " " not in lines[-1]:
        before, _, spared = lines[-2].rpartition(" ")
        if before and width_of(f"{spared} {lines[-1]}", size) <= width:
            lines[-2:] = [before, f"{spared} {lines[-1]}"]
    return lines
