"""Files that are whole or not there, and whose fault it is where one cannot be written."""

from pathlib import Path

import pytest

from utils.errors import UserError
from utils.files import atomic_path
from utils.lines import writer


def test_two_writers_of_one_process_do_not_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with atomic_path(path) as one, atomic_path(path) as other:
        one.write_text("one")
        other.write_text("the other")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UserError, match=r"write \.: give the name of"), atomic_path(Path(".")):
        pass


def test_a_writer_answers_for_its_own_file_alone(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="elsewhere"), writer(tmp_path / "out"):
        raise OSError("elsewhere")
    assert list(tmp_path.iterdir()) == []
    full = Path("/dev/full")
    with pytest.raises(UserError, match=f"cannot write {full}: No space"), writer(full) as write:
        write(["a"])
