"""Sentences line by line, from a file or standard input to a file or standard output."""

from __future__ import annotations

import codecs
import io
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

from utils.errors import UserError
from utils.files import atomic_path, write_errors

STANDARD_INPUT = "standard input"
MAX_LINE = 1 << 20  # bytes: a file that is no text may have one line of any length
CHUNK = 1 << 20


def open_source(path: Path | None) -> tuple[IO[bytes], str]:
    """A file of lines, or standard input, and its name in messages. Raises UserError."""
    if path is not None:
        try:
            return path.open("rb"), str(path)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be read: {error.strerror}; give --src_file a text file"
            ) from None
    if sys.stdin is None:
        raise UserError("standard input is closed: give --src_text or --src_file")
    if sys.stdin.isatty():
        print("reading from the terminal, a sentence a line; end with Ctrl-D", file=sys.stderr)
    return sys.stdin.buffer, STANDARD_INPUT


def bounded_lines(file: IO[bytes], name: str) -> Iterator[bytes]:
    """The lines of a file as they come. Raises UserError for one of more than MAX_LINE bytes."""
    for number in itertools.count(1):
        line = file.readline(MAX_LINE + 1)
        if len(line) > MAX_LINE:
            raise UserError(
                f"{name}, line {number:,}: more than {MAX_LINE:,} bytes; is it text, a sentence a "
                "line?"
            )
        if not line:
            return
        yield line


def read_lines(raw: Iterable[bytes], name: str) -> Iterator[str]:
    r"""Text of raw lines, cut at "\n" alone, without a trailing "\r" or a first byte order mark.

    Raises UserError naming the line for one that is not UTF-8, and where reading breaks off.
    """
    number = 0
    try:
        for number, line in enumerate(raw, start=1):
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            yield line.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        raise UserError(
            f"{name}, line {number:,}: not UTF-8; convert it (iconv -t UTF-8)"
        ) from None
    except OSError as error:
        raise UserError(f"{name}, line {number + 1:,}: cannot be read: {error.strerror}") from None


def count_lines(path: Path) -> int | None:
    """How many lines a file has; None for a pipe, which can be read only once."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        ends, last = 0, b"\n"
        while chunk := file.read(CHUNK):
            ends += chunk.count(b"\n")
            last = chunk[-1:]
    return ends + (last != b"\n")


@contextmanager
def writer(
    path: Path | None, *, never: Path | None = None
) -> Iterator[Callable[[list[str]], None]]:
    r"""A function that writes lines as UTF-8 and "\n", and flushes them; to standard output where
    path is None.

    A file is written aside and takes its name when the block ends without an error; pipes and
    devices are written directly. Raises UserError where that fails and where `path` is `never`.
    """
    if path is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield lambda lines: print(*lines, sep="\n", flush=True)
        return
    special = path.exists() and not path.is_file()
    path = path if special else Path(os.path.realpath(path))  # through a link
    if never is not None and path.exists() and never.exists() and path.samefile(never):
        raise UserError(f"--output {path} is the input itself: give another file")
    with nullcontext(path) if special else atomic_path(path) as to:
        with write_errors(path):
            file = to.open("w", encoding="utf-8", newline="\n")

        def write(lines: list[str]) -> None:
            with write_errors(path):
                print(*lines, sep="\n", file=file, flush=True)

        try:
            yield write
        finally:
            with write_errors(path):
                file.close()


def as_line(text: str) -> str:
    """A translation as one line: a model that spells in bytes may spell a line break."""
    return text.replace("\n", " ").replace("\r", " ")
