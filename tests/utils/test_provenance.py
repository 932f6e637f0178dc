"""Which commit a result says it is of."""

import subprocess
from pathlib import Path

import pytest
import torch

from utils import machine


def test_what_is_in_no_commit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "checkout"
    root.mkdir()
    monkeypatch.setattr(machine, "__file__", str(root / "utils" / "machine.py"))
    commit = machine.commit.__wrapped__

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)

    git("init", "..")  # of whoever has installed this into a folder of theirs
    git("commit", "--allow-empty", "-m", "theirs")
    assert commit() == "unknown"

    module, notes = root / "module.py", root / "notes.txt"
    module.write_text("")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    notes.write_text("changes nothing that runs")
    clean = commit()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(subprocess.CalledProcessError):
        git("describe", "--always")
    assert commit() == clean
    monkeypatch.delenv("GIT_TEST_ASSUME_DIFFERENT_OWNER")
    assert len(clean) >= 7
    assert "-" not in clean
    for path in (root / "config.py", module):
        path.write_text("changed = True")
        assert commit() == f"{clean}-dirty"
        git("clean", "-f", "config.py")


def test_the_threads_that_are_told_are_those_of_now() -> None:
    before = torch.get_num_threads()
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            assert machine.provenance()["hardware"].endswith(f", {n} threads")
    finally:
        torch.set_num_threads(before)
