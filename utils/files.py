"""Files and folders that are whole or absent: written aside, brought to disk, then renamed."""

import contextlib
import errno
import hashlib
import logging
import os
import re
import secrets
import shutil
import socket
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from utils.errors import UserError

logger = logging.getLogger(__name__)

# What a file system does not have.
_LACKING = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A name beside `path` for a file or folder to be written; at the end it becomes `path`.

    A reader finds the old content or the whole new one, also after a kill or a power cut. After an
    error nothing of the new is left. Raises UserError naming `path` if the end fails, or if it has
    no name; errors of the block are the caller's. Who may read a file that is replaced stays.
    """
    if not path.name:
        raise UserError(f"cannot write {path}: give the name of a new file or folder")
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        if path.is_file():
            with write_errors(path):
                aside.touch(mode=0o600)
                before = path.stat()
                with contextlib.suppress(OSError):  # of a group that is not the writer's
                    os.chown(aside, -1, before.st_gid)
                aside.chmod(stat.S_IMODE(before.st_mode) | 0o600)
        yield aside
        with write_errors(path):
            for written in (*aside.rglob("*"), aside):
                sync(written)
            os.replace(aside, path)
            sync(path.parent)
    finally:
        remove(aside)


def made_once(
    folder: Path, make: Callable[[Path], object], *, is_whole: Callable[[Path], bool], stale: str
) -> Path:
    """The folder, filled by `make` if it is not whole; several processes at once make one.

    Before, leftovers of killed processes and siblings with names that match `stale` are removed, as
    is the folder itself, if `stale` matches it. Raises UserError if it cannot be written.
    """
    if is_whole(folder):
        return folder
    home = folder.parent
    with write_errors(folder):
        home.mkdir(parents=True, exist_ok=True)
        with (home / ".lock").open("w") as file:  # a killed process releases it
            aside = rf"|\.({stale})\.[0-9a-f]+\.tmp" if lock(file) else ""
            if is_whole(folder):
                return folder
            for path in home.iterdir():
                if re.fullmatch(stale + aside, path.name):
                    shutil.rmtree(path)
            with atomic_path(folder) as made:
                made.mkdir()
                make(made)
    return folder


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a UserError: `path` cannot be written, and why."""
    try:
        yield
    except BrokenPipeError:  # the reader has gone: not a mistake
        raise
    except OSError as error:
        remedy = "make sure that it can be written, or free some space"
        taken = FileExistsError | IsADirectoryError | NotADirectoryError
        if isinstance(error, taken) or error.errno == errno.ENOTEMPTY:
            remedy = "give another name"
        raise UserError(f"cannot write {path}: {error.strerror or error}; {remedy}") from error


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a folder, which no other process does meanwhile; one that has ended no longer holds it.

    The file .lock in it names process and machine. A file system without locks holds nothing.
    Raises UserError naming the holder of the folder.
    """
    import fcntl

    with contextlib.ExitStack() as stack:
        with write_errors(folder):
            file = stack.enter_context((folder / ".lock").open("a+", encoding="utf-8"))
            try:
                # Owned by the process and not by its forks, which may outlive it for seconds.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                file.seek(0)
                who = file.read().strip() or "another process"
                raise UserError(f"{folder}: {who} is writing it: wait for it, or stop it") from None
            except OSError as error:
                said = "%s: no locks on this file system (%s): see that no other process writes it"
                logger.warning(said, folder, error.strerror)
            file.truncate(0)
            print(f"process {os.getpid()} on {socket.gethostname()}", file=file, flush=True)
        yield


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a whole file, or none; its folder is made. Returns the path."""
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as aside:
            aside.write_bytes(content)
    return path


def write_text(path: Path, text: str) -> Path:
    r"""As write_bytes, in UTF-8 with "\n"."""
    return write_bytes(path, text.encode())


def sha256(path: Path) -> str:
    """SHA-256 of a whole file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def crc32(path: Path) -> int:
    """CRC-32 of a whole file, read in pieces."""
    crc = 0
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            crc = zlib.crc32(piece, crc)
    return crc


def lock(file: IO[Any], *, wait: bool = True) -> bool:
    """Lock an open file until it is closed. Returns whether the file system has locks.

    Processes that inherit the file hold it too. Raises BlockingIOError with wait=False.
    """
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno not in (*_LACKING, errno.ENOLCK):
            raise
        return False
    return True


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to disk; the latter where the file system can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _LACKING or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove what processes killed while writing have left in `folder`."""
    for left in folder.glob(".*.tmp"):
        remove(left)


def remove(path: Path) -> None:
    """Remove a file or a folder, as far as that is possible."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
