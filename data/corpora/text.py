"""Shared by the corpora: the forms of characters and white space, and reading .gz files."""

import gzip
import logging
import re
import unicodedata
import zlib
from collections.abc import Sequence
from pathlib import Path

from utils.errors import UserError

logger = logging.getLogger(__name__)

# A .gz may unpack to MAX_RATIO times its size, or to ALWAYS_ALLOWED bytes if that is more. Text
# packs to a fifth or so; a file of zeros to a thousandth.
MAX_RATIO = 100
ALWAYS_ALLOWED = 1 << 26
CHUNK = 1 << 20
# Soft hyphen, zero-width space (where it does not divide the words of Thai, Lao, Burmese or Khmer),
# word joiner, byte order mark, and the control characters that are no white space.
INVISIBLE = re.compile(
    r"[\u00ad\u2060\ufeff\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]"
    r"|\u200b(?![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])"
)


def normalize_whitespace(text: str) -> str:
    """Runs of white space become one plain space, none at the ends.

    No-break spaces and line separators count as white space: a sentence is one line, in one form.
    """
    text = text.strip()
    if text.isprintable() and "  " not in text:  # as nearly all is; three times as fast
        return text
    return " ".join(text.split())


def plain_text(text: str) -> str:
    """What a user gives, with white space as in training, and without the characters that nobody
    sees: web pages and word processors leave them, and a model has hardly met them.
    """
    return normalize_whitespace(text if text.isprintable() else INVISIBLE.sub("", text))


def warn_of_form(split: str, references: Sequence[str]) -> None:
    """Warn of references in which accents are characters of their own: translations have none."""
    n = sum(not unicodedata.is_normalized("NFC", line) for line in references)
    if n:
        said = "%s: %d of %d references are not in Unicode's form NFC, as translations are: their "
        said += "scores are too low; convert the file (uconv -x any-nfc)"
        logger.warning(said, split, n, len(references))


def read_packed(path: Path) -> bytes:
    """The content of a .gz file. UserError: it is damaged, or unpacks to too much."""
    try:
        most = max(ALWAYS_ALLOWED, MAX_RATIO * path.stat().st_size)
        raw = bytearray()
        with gzip.open(path) as file:
            while len(raw) <= most and (part := file.read(CHUNK)):
                raw += part
        if len(raw) > most:
            raise UserError(
                f"{path}: more than {MAX_RATIO} times its size once unpacked, which no text is; "
                "unpack it yourself (gunzip) if that is what you want"
            )
        return bytes(raw)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{path}: a damaged or truncated gzip file ({error}); copy it again"
        ) from error
