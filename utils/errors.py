"""The one exception for mistakes that a user can mend, and how other errors are told."""


class UserError(Exception):
    """Bad input: the message names the value and the remedy, in one line. Scripts print it and exit
    with 2.
    """


class ConfigError(UserError):
    """A configuration that cannot be built: names the field, the value and the allowed ones."""


def one_line(error: Exception, most: int = 160) -> str:
    """An error of another library within a message: its kind, and what it says on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:most]}{'...' if len(text) > most else ''}"
