"""Small text rules that every corpus shares: what a line is, and what white space is."""

from __future__ import annotations

import codecs


def split_lines(raw: bytes) -> list[bytes]:
    r"""The lines of a file: separated by "\n" alone, a trailing "\r" and a byte order mark at the start removed.

    Not `str.splitlines`: that also cuts at U+2028, U+0085, "\v" and "\f", which stand inside sentences of real
    corpora, and one such cut shifts the two sides against each other from there on.
    """
    lines = raw.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


def normalize_whitespace(text: str) -> str:
    """Runs of white space become one plain space, none at the ends.

    No-break spaces (U+00A0, U+202F, as before French punctuation) and line separators (U+2028, U+0085) count as white
    space, so that a sentence is one line and the same sentence has one spelling.
    """
    return " ".join(text.split())
