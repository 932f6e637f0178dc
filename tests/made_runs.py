"""Runs made from a trained one without training, and scripts run in this process."""

import dataclasses
import io
import pickle
import runpy
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from conftest import ROOT

from checkpoints.content import checkpoint_config, read_checkpoint
from checkpoints.run import Run
from configs.serialize import to_dict
from models.build import build_model
from tokenizer.build import load_tokenizer
from utils.cli import run_main
from utils.errors import UserError


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    def error(self) -> str:
        """The one line of a user's mistake, without "error: "."""
        assert self.code == 2, self
        assert self.out == ""
        assert self.err.startswith("error: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.removeprefix("error: ").rstrip("\n")


class Scripts:
    """Runs a script's main in this process, as the command line does; a new one takes seconds."""

    def __init__(
        self, main: Callable[[list[str]], None], capsys: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.main, self.capsys, self.monkeypatch = main, capsys, monkeypatch

    def __call__(self, *args: str | Path, stdin: bytes = b"") -> Ended:
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = 0
        try:
            run_main(lambda: self.main([str(arg) for arg in args]))
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Ended(code, *self.capsys.readouterr())


def as_file(name: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Scripts:
    """A script as `python FILE` runs it: its folder first on the path, the root not on it."""
    path = ROOT / name
    others = [p for p in sys.path if Path(p).resolve() != ROOT]

    def run(argv: list[str]) -> None:
        monkeypatch.setattr(sys, "argv", [str(path), *argv])
        monkeypatch.setattr(sys, "path", [str(path.parent), *others])
        try:
            runpy.run_path(str(path), run_name="__main__")
        except UserError as error:
            raise AssertionError("it leaves its mistakes to others") from error
        finally:
            assert sys.path[0] == str(ROOT)

    return Scripts(run, capsys, monkeypatch)


def in_this_process(
    noted: list[Any], stack: ExitStack, device: torch.device, make: Callable[..., Any], *args: Any
) -> Callable[..., Any]:
    """In place of benchmarks.common.apart, whose processes take seconds to start.

    What would go to one or come back is pickled; `noted` gets what is made.
    """
    noted.append((make, *args))
    make, args = pickle.loads(pickle.dumps((make, args)))
    made = make(*args)

    def call(*given: Any) -> Any:
        return pickle.loads(pickle.dumps(made(*pickle.loads(pickle.dumps(given)))))

    return call


def scripted(main: Callable[[list[str]], None]) -> Any:
    """A fixture: Scripts of this main."""

    @pytest.fixture
    def scripts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Scripts:
        return Scripts(main, capsys, monkeypatch)

    return scripts


def best_of(run: Path) -> Path:
    best = Run(run).best()
    assert best is not None
    return best


def copy_run(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / run.name))


def untrained_run(run: Path, folder: Path, **model_changes: Any) -> Path:
    """A run like `run` with another, freshly initialised model."""
    payload = read_checkpoint(best_of(run))
    config = checkpoint_config(payload)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, **model_changes))
    torch.manual_seed(0)
    model = build_model(config.model, load_tokenizer(Run(run).tokenizer))
    made = Run(folder / f"made_20200101_00000{len(list(folder.iterdir()))}")
    made.checkpoints.mkdir(parents=True)
    shutil.copytree(Run(run).tokenizer, made.tokenizer)
    payload.update(config=to_dict(config), model=model.state_dict())
    torch.save(payload, made.checkpoints / "best_checkpoint_1_loss=-1.0000.pt")
    return made.path
