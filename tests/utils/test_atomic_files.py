"""Files that are whole or not there, and whose fault it is where one cannot be written."""

import errno
import fcntl
import gzip
import os
import signal
import stat
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from utils import files
from utils.errors import UserError
from utils.files import atomic_path, made_once
from utils.lines import output_path, writer


def test_two_writers_of_one_process_do_not_share_a_file(tmp_path: Path) -> None:
    path, told = tmp_path / "a", mock.Mock()
    with (
        mock.patch.object(files, "sync", told.sync),
        mock.patch.object(files.os, "replace", told.replace),
    ):
        told.replace.side_effect = Path.rename
        with atomic_path(path) as one, atomic_path(path) as other:
            one.write_text("one")
            other.write_text("the other")
    call = mock.call  # whole before it has its name, and then the name
    made = ([call.sync(a), call.replace(a, path), call.sync(tmp_path)] for a in (other, one))
    assert told.mock_calls == [each for of_one in made for each in of_one]
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]
    path.chmod(0o600)  # the text of others
    with atomic_path(path) as aside:
        assert stat.S_IMODE(aside.stat().st_mode) == 0o600
        aside.write_text("again")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o444)  # who may write into the folder may replace it
    with atomic_path(path) as aside:
        assert stat.S_IMODE(aside.stat().st_mode) == 0o644
        aside.write_text("again")
    with pytest.raises(UserError, match=r"write \.: give the name of"), atomic_path(Path(".")):
        pass


def test_a_file_system_may_lack_locks_and_the_sync_of_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(descriptor: int, *_: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(files.os, "fsync", fail)
    monkeypatch.setattr(fcntl, "flock", mock.Mock(side_effect=OSError(errno.ENOSYS, "none")))
    (tmp_path / ".none.0af.tmp").mkdir()  # of a process that may be at work
    made_once(tmp_path / "made", bool, is_whole=Path.is_dir, stale="none")
    with atomic_path(tmp_path / "a") as aside:
        aside.touch()
    monkeypatch.setattr(fcntl, "lockf", mock.Mock(side_effect=OSError(errno.ENOLCK, "none")))
    with files.held(tmp_path):
        assert caplog.messages == [
            f"{tmp_path}: no locks on this file system (none): see that no other process writes it"
        ]
    monkeypatch.setattr(files.os, "fsync", mock.Mock(side_effect=OSError(errno.EINVAL, "broken")))
    with pytest.raises(UserError, match="broken"), atomic_path(tmp_path / "b") as aside:
        aside.touch()
    assert {path.name for path in tmp_path.iterdir()} == {"made", "a", ".lock", ".none.0af.tmp"}


def test_a_writer_answers_for_its_own_file_alone_and_keeps_what_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    for ends in (signal.SIGTERM, signal.SIGHUP):  # nohup ignores the second
        before = signal.signal(ends, signal.SIG_DFL)
        request.addfinalizer(partial(signal.signal, ends, before))
    with pytest.raises(OSError, match="elsewhere"), writer(tmp_path / "out"):
        raise OSError("elsewhere")
    assert list(tmp_path.iterdir()) == []

    def written(number: signal.Signals) -> None:
        with writer(tmp_path / "out.gz") as write:
            write(["a", "é"])
            signal.raise_signal(number)

    for number, error in (
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGTERM, SystemExit),
        (signal.SIGHUP, SystemExit),
    ):
        for earlier in tmp_path.iterdir():  # which would stay
            earlier.unlink()
        with pytest.raises(error) as ended:
            written(number)
        assert getattr(ended.value, "code", 128 + number) == 128 + number
        [kept] = tmp_path.iterdir()
        assert kept.name == "out.gz.partial"
        assert gzip.decompress(kept.read_bytes()) == "a\né\n".encode()
        assert capsys.readouterr().err == f"the first 2 lines are in {kept}\n"
    with writer(tmp_path / "out.gz") as write:
        write(["a"])
    assert kept.exists()  # it may be the longer one
    with pytest.raises(UserError, match=r"out\.gz\.partial is the input itself"):
        writer(tmp_path / "out.gz", never=[kept]).__enter__()
    kept.unlink()
    with pytest.raises(UserError, match="Is a directory"):
        output_path(tmp_path)  # before anything is translated


def test_what_another_process_made_meanwhile_is_taken_and_what_is_stale_goes(
    tmp_path: Path,
) -> None:
    folder, answers = tmp_path / "made_3", iter([False, True, False, False])
    is_whole = lambda _: next(answers)  # noqa: E731
    made: list[Path] = []
    made_once(folder, made.append, is_whole=is_whole, stale=r"made_\d")
    assert not made
    for name in ("made_2", ".made_1.0af.tmp", "made_22", ".made_1.0af"):
        (tmp_path / name).mkdir()
    made_once(folder, lambda aside: (aside / "a").touch(), is_whole=is_whole, stale=r"made_\d")
    assert (folder / "a").is_file()
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        "made_3",
        "made_22",
        ".made_1.0af",
    }
