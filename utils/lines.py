"""Sentences line by line, from a file or standard input to a file or standard output."""

import codecs
import errno
import gzip
import io
import itertools
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from signal import SIG_DFL, SIGHUP, SIGTERM, getsignal
from typing import IO

from utils.cli import signals_to
from utils.errors import UserError
from utils.files import atomic_path, write_errors

STANDARD_INPUT = "standard input"
MAX_LINE = 1 << 20  # bytes: a file that is no text may have a line of any length
CHUNK = 1 << 20
NO_TEXT = (b"PK\x03\x04", b"%PDF", b"{\\rtf", b"\xd0\xcf\x11\xe0")  # .docx and .odt, .doc


def open_source(path: Path | None) -> tuple[IO[bytes], str]:
    """A file of lines, plain or .gz, or standard input, and its name for messages. UserError."""
    if path is not None:
        try:
            file: IO[bytes] = path.open("rb")
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}; give a text file") from None
        if path.suffix == ".gz":
            file = io.BufferedReader(gzip.GzipFile(fileobj=file))
        return file, str(path)
    if sys.stdin is None:
        raise UserError("standard input is closed: give --src_text or --src_file")
    if sys.stdin.isatty():
        print("reading from the terminal, a sentence a line; end with Ctrl-D", file=sys.stderr)
    return sys.stdin.buffer, STANDARD_INPUT


def at_terminal() -> bool:
    """Whether a user types the input and reads the output."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def prompted(prompt: str) -> Iterator[str]:
    """The typed lines until Ctrl-D, without blank ones, with line editing and history."""
    with suppress(ImportError):  # some Pythons are built without it
        import readline  # noqa: F401  (gives `input` both)

    while True:
        try:
            line = input(prompt)
        except EOFError:
            print()
            return
        except UnicodeDecodeError:
            print("error: not UTF-8: set the terminal to UTF-8", file=sys.stderr)
            continue
        if line.strip():
            yield line


def read_lines(file: IO[bytes], name: str, skipped: list[int] | None = None) -> Iterator[str]:
    r"""The lines as they come, cut at "\n" alone, without a last "\r" or a first byte order mark.

    Raises UserError naming a line that is not UTF-8, that has more than MAX_LINE bytes, or where
    reading breaks off. skipped: takes the numbers of the first two kinds, which come as "".
    """
    number = 0
    try:
        for number in itertools.count(1):
            line = file.readline(MAX_LINE + 1)
            if not line:
                return
            if len(line.removesuffix(b"\n")) > MAX_LINE and skipped is not None:
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE)
                line = b"\xff"  # is not UTF-8 either
            if len(line.removesuffix(b"\n")) > MAX_LINE:
                reason = f"more than {MAX_LINE:,} bytes; is it text, one sentence a line?"
                raise UserError(f"{name}, line {number:,}: {reason}")
            if number == 1 and line.startswith(NO_TEXT):
                raise UserError(f"{name}: a document or an archive: save it as plain text in UTF-8")
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            if skipped is not None and not is_utf8(line):
                skipped.append(number)
                line = b""
            yield line.decode()
    except UnicodeDecodeError:
        reason = "not UTF-8; convert it (iconv -f ITS_ENCODING -t UTF-8)"
        raise UserError(f"{name}, line {number:,}: {reason}") from None
    except (OSError, EOFError, zlib.error) as error:  # the last two for a damaged .gz
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{name}, line {number:,}: cannot be read: {why}") from None


def is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def count_lines(path: Path) -> int | None:
    """The number of lines of a file; None for a pipe, which can be read only once, and for a .gz.

    Also None where it cannot be read: reading it line by line will report that.
    """
    if not path.is_file() or path.suffix == ".gz":
        return None
    ends, last = 0, b"\n"
    with suppress(OSError), path.open("rb") as file:
        while chunk := file.read(CHUNK):
            ends += chunk.count(b"\n")
            last = chunk[-1:]
        return ends + (last != b"\n")
    return None


def output_path(path: Path, *, never: Sequence[Path | None] = ()) -> Path:
    """The file that `path` leads to, through links; its folder is made.

    Raises UserError if that fails, and if `path` is one of `never`.
    """
    if not path.exists() or path.is_file():
        path = Path(os.path.realpath(path))
    there = [each for each in never if each is not None and each.exists()]
    if path.exists() and any(map(path.samefile, there)):
        raise UserError(f"--output {path} is the input itself: give another file")
    with write_errors(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def writer(
    path: Path | None, *, never: Sequence[Path | None] = (), keep: bool = True
) -> Iterator[Callable[[list[str]], None]]:
    r"""A function that writes lines as UTF-8 and "\n", and flushes them; to standard output where
    path is None or /dev/stdout.

    A file is written aside and renamed when the block ends; after an error or a signal, what was
    written is kept as NAME.partial, if it is to `keep`. Pipes and devices are written directly.
    Raises UserError if that fails, and as `output_path` does.
    """
    file = None  # to `print`: standard output
    n_written = 0

    def write(lines: list[str]) -> None:
        nonlocal n_written
        with write_errors(path or Path("standard output")):
            print(*lines, sep="\n", file=file, flush=True)
        n_written += len(lines)

    if path in (None, Path("/dev/stdout")):
        if sys.stdout is None:
            raise UserError("standard output is closed: give --output FILE")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield write
        return
    zipped, path = path.suffix == ".gz", output_path(path, never=never)
    special = path.exists() and not path.is_file()
    partial = output_path(path.parent / f"{path.name}.partial", never=never) if keep else path
    ends = [n for n in (SIGTERM, SIGHUP) if getsignal(n) is SIG_DFL]  # nohup ignores SIGHUP
    aside = nullcontext(path) if special else atomic_path(path)
    with signals_to(lambda number, _: sys.exit(128 + number), *ends), aside as to:
        with write_errors(path):
            opened = gzip.open if zipped else open
            file = opened(to, "wt", encoding="utf-8", newline="\n")
        try:
            yield write
        except BaseException as error:
            with suppress(OSError):  # a failed write fails here again
                file.close()
            if keep and n_written and not special:
                with write_errors(path):
                    for n in itertools.count(1) if partial.exists() else ():  # an earlier one stays
                        if not (older := partial.with_name(f"{partial.name}.{n}")).exists():
                            os.replace(partial, older)
                            break
                    os.replace(to, partial)
                kept = f"the first {n_written:,} lines are in {partial}"
                if isinstance(error, UserError):
                    error.args = (f"{error}; {kept}",)
                else:
                    print(kept, file=sys.stderr)
            raise
        with write_errors(path):
            file.close()


def as_line(text: str) -> str:
    """A translation as one line: a model that spells in bytes may produce a line break."""
    return text.replace("\n", " ").replace("\r", " ")
