"""The one exception for mistakes that a user can mend, and how other errors are told."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input: the message names the value and the remedy, in one line. Scripts end with it."""


class ConfigError(UserError):
    """A configuration that cannot be built: names the field, the value and the allowed ones."""


def one_line(error: Exception, most: int = 160) -> str:
    """An error of another library within a message: its kind, and what it says on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:most]}{'...' if len(text) > most else ''}"


def closest_first(word: str, names: Iterable[str]) -> list[str]:
    """`names`, those that are most like a mistyped word first."""

    def likeness(name: str) -> float:
        return difflib.SequenceMatcher(None, word.lower(), name.lower()).ratio()

    return sorted(names, key=likeness, reverse=True)
