"""The exception for mistakes that a user can fix, and the text of other errors."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input: the message names the value and the remedy, in one line. Scripts end with it."""


class ConfigError(UserError):
    """A configuration that cannot be built: names the field, its value and the allowed ones."""


def one_line(error: Exception, most: int = 160) -> str:
    """Another library's error as part of a message: its kind and its text, on one line."""
    text = " ".join(str(error).split())
    if text.startswith("Weights only load failed"):  # torch.load: advice for developers follows
        return "it is another kind of file, or holds more than tensors and plain values"
    return f"{type(error).__name__}: {text[:most]}{'...' if len(text) > most else ''}"


def closest_first(word: str, names: Iterable[str]) -> list[str]:
    """`names`, those most like a mistyped word first."""

    def likeness(name: str) -> float:
        return difflib.SequenceMatcher(None, word.lower(), name.lower()).ratio()

    return sorted(names, key=likeness, reverse=True)
