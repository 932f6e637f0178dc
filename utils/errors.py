"""The one exception for mistakes that a user can mend."""


class UserError(Exception):
    """Bad input: the message names the value and the remedy, in one line. Scripts print it and exit
    with 2.
    """


class ConfigError(UserError):
    """A configuration that cannot be built: names the field, the value and the allowed ones."""
