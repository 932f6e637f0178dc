"""A disk that is full, read-only or gone, under every script that writes: one line, nothing lost.

Of training see `training/test_faults.py`, of the token cache `data/test_cache.py`.
"""

import contextlib
import gc
import importlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from made_runs import copy_run
from toy_runs import run_here, toy_config

SCORED = "--limit 2 --device cpu --set evaluate.bootstrap_samples=2"
LINES = "--src_file DISK/text --search greedy --device cpu"
SCRIPTS = (
    f"test {SCORED} --set decode.n_best=1 --set decode.beam_size=1",
    "tune --limit 2 --device cpu --beam 1 --length_penalty 0.6 --markdown DISK/made/table.md",
    f"inference {LINES} --output DISK/made/lines",
    f"back_translate {LINES} --output DISK/made/lines",
    "rerank --nbest_file DISK/nbest --device cpu --output DISK/made/lines",
    "export --format safetensors --output_dir DISK/made/exported",
    "export --format transformers --output_dir DISK/made/exported",
    "export --format ctranslate2 --output_dir DISK/made/exported",
    "average --last 2",
    "visualize attention --src_text chat --kind cross",
    "visualize explore --src_text chat",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    short = "train.max_epochs=2 optim.schedule.lr=0.02 model.norm=post model.dropout=0.0"
    return run_here(toy_config(tmp_path_factory.mktemp("disks"), short)).run.path


@pytest.fixture
def disk(small_disk: Path, run: Path) -> Iterator[Path]:
    """With the run and a text on it."""
    folder = small_disk
    copy_run(run, folder).rename(folder / "run")
    (folder / "text").write_text("le chat\nle chien\n", "utf-8")
    candidate = {"text": "the cat", "score": -1, "log_prob": -1, "finished": True}
    line = json.dumps({"src": "le chat", "beam": [candidate]})
    (folder / "nbest").write_text(f"{line}\n", "utf-8")
    (folder / "made").mkdir()
    gc.freeze()  # what is older is not looked through again
    yield folder
    gc.collect()  # Python 3.13 closes what frames of an error hold when it collects them
    gc.unfreeze()


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    yield
    ballast.unlink()


@contextlib.contextmanager
def read_only(disk: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    yield
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


@contextlib.contextmanager
def vanishing(disk: Path) -> Iterator[None]:
    """Folders go just before a file is opened in one."""

    def vanish(n: int) -> str:
        for folder in ("made", "run/results", "run/checkpoints"):
            shutil.rmtree(disk / folder, ignore_errors=True)
        return "0" * n

    with mock.patch("secrets.token_hex", vanish):
        yield


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("command", SCRIPTS, ids=lambda command: command.partition(" --")[0])
def test_a_script_that_cannot_write_says_so_and_leaves_what_was_there(
    disk: Path, command: str, in_process: Any
) -> None:
    if "ctranslate2" in command:
        pytest.importorskip("ctranslate2")
    name, *rest = command.replace("DISK", str(disk)).split()
    run_it = in_process(importlib.import_module(name).main)
    arguments = [*rest, "--model_path", disk / "run"]
    before = files(disk)
    if name != "export":  # which takes a new folder alone
        ended = run_it(*arguments)
        assert ended.code == 0, ended
        assert files(disk).keys() > before.keys()
        before = files(disk)
    if name == "back_translate":  # the same pairs are not made again
        arguments.append("--tag")
    broken: list[Callable[[Path], contextlib.AbstractContextManager]] = [full, read_only, vanishing]
    for fault in broken:
        with fault(disk):
            ended = run_it(*arguments)
        assert "Traceback" not in ended.err
        assert ended.code == 2, (fault, ended)
        *_, line = ended.err.splitlines()
        assert line.startswith("error: "), (fault, ended)
        assert str(disk) in line
        assert fault is vanishing or files(disk) == before, fault
