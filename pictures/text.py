"""Text in figures: any string, shown literally and measured before it is placed."""

import textwrap

MOST_TOKENS = 512  # of each side of an attention map: more would be illegible


def _fonts() -> list[str]:
    """Font files in matplotlib's order: a glyph is from the first of `font.family` that has it."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties, findfont

    return [findfont(FontProperties(family=[name])) for name in rcParams["font.family"]]


def visible(text: str, limit: int | None = None) -> str:
    """The text as it can be drawn: on one line, with U+XXXX where no font has a glyph.

    A missing glyph would be a box like any other, with a warning. SentencePiece's ▁ becomes _: in
    DejaVu Sans it hangs below the line and pushes upright labels out of their column. A text of
    spaces alone becomes visible. limit: the most characters; longer text ends in an ellipsis.
    """
    escapes = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "▁": "_"}
    if text.isspace():
        text = text.replace(" ", "␣")
    from matplotlib.font_manager import get_font

    glyphs = [get_font(file).get_char_index for file in _fonts()]
    shown = "".join(
        escapes.get(c)
        or (c if c.isprintable() and any(glyph(ord(c)) for glyph in glyphs) else f"U+{ord(c):04X}")
        for c in text
    )
    return shown if limit is None or len(shown) <= limit else f"{shown[: limit - 1]}…"


def width_of(text: str, size: float) -> float:
    """The width in inches of a line of (visible) text at this font size."""
    from matplotlib.font_manager import get_font

    font = get_font(_fonts())
    font.set_size(size, 72)
    font.set_text(text)
    return font.get_width_height()[0] / 64 / 72


def wrap(text: str, size: float, width: float) -> list[str]:
    """The fewest lines of at most `width` inches, evenly filled; a longer word is broken."""
    text = visible(text)
    lines, n, most = [text], len(text), len(text)
    if n > 1 and width_of(text, size) > width:
        n = 1
        while most - n > 1:
            middle = (n + most) // 2
            found = textwrap.wrap(text, middle, break_on_hyphens=False)
            fits = max(width_of(line, size) for line in found) <= width
            n, most = (middle, most) if fits else (n, middle)
        lines = textwrap.wrap(text, n, break_on_hyphens=False)
    narrowest = max(1, len(text) // len(lines), *map(len, text.split()))
    widths = range(narrowest, n + 1)
    even = (textwrap.wrap(text, w, break_on_hyphens=False) for w in widths)
    return next((found for found in even if len(found) == len(lines)), lines)
