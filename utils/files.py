"""Files that are whole or not there: written under another name, brought to disk, then renamed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; at the end the file is synced and becomes `path`. After an
    error it is gone.

    A reader finds the old file or the new one, whatever is killed, and after a power cut too.
    OSError: as raised.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield aside
        sync(aside)
        os.replace(aside, path)
        sync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    """A whole file, or none."""
    with written_aside(path) as aside:
        aside.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    r"""A whole file in UTF-8 with "\n", or none."""
    write_bytes(path, text.encode())


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that were killed while they wrote left in `folder`."""
    for left in folder.glob(".*.tmp"):
        left.unlink(missing_ok=True)
