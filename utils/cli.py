"""How every script ends: one line for a user's mistake, and the exit code that goes with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from configs.errors import UserError


def run_main(main: Callable[[], None]) -> None:
    """Run a script's main. UserError: its message on one line, exit code 2. Ctrl-C: 130. A closed pipe: 0."""
    try:
        main()
    except (UserError, KeyboardInterrupt) as error:
        sys.exit(report(error))
    except BrokenPipeError:
        # The reader has gone (`| head`): nothing more to say, and nothing to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def report(error: UserError | KeyboardInterrupt) -> int:
    """Say in one line on standard error what ended the script; the exit code."""
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return 130
    message = " ".join(str(error).split())
    print(f"error: {message}", file=sys.stderr)
    return 2
