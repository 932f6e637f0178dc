"""Command lines, and how scripts end: one line and an exit code for a user's mistake."""

import argparse
import atexit
import contextlib
import gc
import io
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

from utils.errors import UserError, one_line

# Thresholds of the garbage collector. Imports make half a million objects that stay, and are looked
# through again and again: a third of the time of a short command.
OFTEN, SELDOM = gc.get_threshold(), 200_000
MOST_THREADS = 1024  # with more than a machine can give, the process ends without a message


class Parser(argparse.ArgumentParser):
    """Reports a bad command line as a UserError: one line and exit code 2, as for any mistake.

    --beam-size is read as --beam_size.
    """

    def _parse_optional(self, arg_string: str) -> Any:
        name, given, value = arg_string.partition("=")
        known = name.replace("-", "_").replace("__", "--", 1)
        if known in self._option_string_actions:
            arg_string = known + given + value
        return super()._parse_optional(arg_string)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def integer(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Reads an integer from `least` to `most`; argparse reports anything else."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r}: must be an integer >= {least}")
        if value > most:
            raise argparse.ArgumentTypeError(f"{text!r}: must be at most {most}")
        return value

    return read


def number(most: float) -> Callable[[str], float]:
    """Reads a number from 0 to `most`; argparse reports anything else."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: must be a number >= 0 and <= {most}")
        return value

    return read


at_most = partial(integer, 1)
positive = at_most(2**63 - 1)
threads = at_most(MOST_THREADS)
# More would divide the time of the cores and fill the memory, and gain nothing.
processes = at_most(8 * (os.cpu_count() or 1))


def cores() -> int:
    """The number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_shapes(n: int) -> None:
    """Make oneDNN and torch keep preparations for n shapes of a product. Call before torch import.

    The default is 1,024 shapes: up to a gigabyte, which batches of all sizes would fill.
    """
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(cache, str(n))


def run_main(main: Callable[[], None]) -> None:
    """Run a script's main and end the process accordingly.

    UserError and OSError (a forbidden folder, a full disk): the message on one line, exit code 2.
    Too little memory: the same. Ctrl-C: 130. A closed pipe: 0.
    """
    if sys.stderr is None:  # closed: its messages would go to standard output, among results
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.set_inheritable(2, True)  # for other processes of the script
        sys.stderr = os.fdopen(2, "w", errors="backslashreplace")
    if "OMP_WAIT_POLICY" not in os.environ:
        # Otherwise the threads of a product (GNU OpenMP) spin for milliseconds when another program
        # takes the core of one, and everything is many times as slow (benchmarks/README.md).
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if "torch" not in sys.modules:  # the imports are to come
        gc.set_threshold(SELDOM)
    atexit.register(gc.freeze)  # the end would look through all modules once more
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A folder's name may not be valid UTF-8.
        sys.stdout.reconfigure(errors="backslashreplace")
    if os.getpid() == 1 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # The first process of a container ignores what has no handler.
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        main()
    except (UserError, KeyboardInterrupt) as error:
        sys.exit(report(error))
    except BrokenPipeError:
        # The reader has gone (`| head`): print nothing more, and flush nothing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except UnicodeEncodeError as error:
        shown = ascii(error.object[max(0, error.start - 40) : error.start + 40])
        said = f"text that is not valid Unicode: {shown}; give names and text in UTF-8"
        sys.exit(report(UserError(said)))
    except OSError as error:
        name = error.filename  # TensorBoard gives bytes
        where = f"{os.fsdecode(name)}: " if isinstance(name, (bytes, str)) else ""
        sys.exit(report(UserError(f"{where}{error.strerror or error}")))
    except (MemoryError, RuntimeError) as error:
        from utils.machine import is_out_of_memory  # imports torch

        if not is_out_of_memory(error):
            raise
        said = f"not enough memory ({one_line(error)}): take a smaller model, or less at once"
        sys.exit(report(UserError(said)))


def imported() -> None:
    """Garbage is collected as usual from here on, but not among what a script imported: SELDOM."""
    if gc.get_threshold()[0] == SELDOM:
        gc.freeze()
    gc.set_threshold(*OFTEN)


def stops() -> list[int]:
    """The signals that end a training or an experiment early: a batch system's, a terminal's.

    Not those that are ignored: by nohup, or of a program in a script's background.
    """
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


@contextlib.contextmanager
def signals_to(handler: Callable[[int, Any], object], *numbers: int) -> Iterator[None]:
    """Send these signals to the handler; in the main thread alone, as Python requires."""
    hears = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if hears}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def report(error: UserError | KeyboardInterrupt) -> int:
    """Report in one line on standard error what ended the script; returns the exit code."""
    if isinstance(error, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return 130
    message = " ".join(str(error).split())
    print(f"error: {message}", file=sys.stderr)
    return 2
