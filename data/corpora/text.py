"""What every corpus shares: what a line is, what white space is, how text comes out of .gz."""

from __future__ import annotations

import codecs
import gzip
import zlib
from pathlib import Path

from utils.errors import UserError

# What a .gz may unpack to: so many times its size, or so much where that is less. Text packs to a
# fifth or so; a file of zeros to a thousandth, and would fill any memory.
MAX_RATIO = 100
ALWAYS_ALLOWED = 1 << 26
CHUNK = 1 << 20


def split_lines(raw: bytes) -> list[bytes]:
    r"""The lines of a file: cut at "\n" alone, without a trailing "\r" and a byte order mark.

    Not `str.splitlines`: that also cuts at U+2028, U+0085, "\v" and "\f", which stand inside
    sentences of real corpora; one such cut shifts the two sides against each other to the end.
    """
    lines = raw.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


def normalize_whitespace(text: str) -> str:
    """Runs of white space become one plain space, none at the ends.

    No-break spaces (as before French punctuation) and line separators count as white space, so that
    a sentence is one line and has one spelling.
    """
    return " ".join(text.split())


def read_packed(path: Path) -> bytes:
    """The content of a .gz file. UserError: it is damaged, or unpacks without end."""
    try:
        most = max(ALWAYS_ALLOWED, MAX_RATIO * path.stat().st_size)
        parts, size = [], 0
        with gzip.open(path) as file:
            while part := file.read(CHUNK):
                parts.append(part)
                size += len(part)
                if size > most:
                    raise UserError(
                        f"{path}: more than {MAX_RATIO} times its size once unpacked, which no "
                        "text is; unpack it yourself (gunzip) if it is what you mean"
                    )
        return b"".join(parts)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{path}: a damaged or truncated gzip file ({error}); copy it anew"
        ) from error
