"""Scripts that stand in for train.py and test.py: they make the same files in no time."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import toy_runs
from conftest import ROOT
from toy_runs import toy_command

from configs.load import read_config_json
from configs.serialize import to_dict
from experiments import compare_positions, trials
from utils.tables import read_csv


def both(*names: str) -> list[str]:
    """The calls of a trial by its name."""
    return [f"{script} {name}" for name in names for script in ("train", "test")]


class StandIn:
    """The scripts in `folder`, and what became of them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.output = folder / "out"
        here = Path(__file__).parent
        shutil.copy(here / "fake_train.py", folder / "train.py")
        shutil.copy(here / "fake_scorer.py", folder / "test.py")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setattr(trials, "ROOT", folder)
        monkeypatch.setattr(trials, "POLL_S", 0.02)
        no_limit = [each for each in toy_runs.TOY if "max_epochs" not in each]  # --rounds has it
        monkeypatch.setattr(toy_runs, "TOY", no_limit)
        self.fates()

    def fates(self, **fates: str) -> None:
        """What becomes of the training of a scheme: error, killed or slow (once); or it ends."""
        (self.folder / "fates.json").write_text(json.dumps(fates))

    def calls(self) -> list[str]:
        """The scripts that were run since the last time, in order."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def arguments(self, *more: str) -> list[str]:
        command = toy_command(self.folder)[1:]
        return [*command, "--output_dir", str(self.output), "--threads", "1", *more]

    def compare(self, positions: str, *more: str) -> int:
        return compare_positions.main(self.arguments("--positions", positions, *more))

    def table(self, name: str = "comparison.csv") -> list[dict[str, str]]:
        return read_csv(self.output / name)

    def forget(self) -> None:
        """Remove the store: what was measured is in the folders of the runs alone."""
        (self.output / "comparison.jsonl").unlink()

    def text(self, name: str = "comparison.md") -> str:
        return (self.output / name).read_text("utf-8")

    def trial_folder(self, name: str) -> Path:
        [folder] = (self.output / "runs").glob(f"{name}_seed0_*")
        return folder

    def config(self, name: str) -> dict[str, Any]:
        return to_dict(read_config_json(self.trial_folder(name) / "config.json"))
