"""Run folders and checkpoint files: where they are, what is in them, and how they are written and read.

    runs/<name>_<YYYYMMDD_HHMMSS>/config.json, tokenizer/, checkpoints/, logs/, results/

A run stands for its best checkpoint, or for its newest where it goes on. What average.py writes into checkpoints/ is
never meant by a run's name: it is used where it is named itself.

A folder that export.py wrote is a run without checkpoints/, with its weights in model.safetensors.

A checkpoint is a dict of tensors and plain values: nothing in it is ever executed (`weights_only=True`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from configs.errors import UserError
from configs.schema import Config
from configs.serialize import from_dict

WEIGHTS = "model.safetensors"  # of an exported run
FORMAT = 1  # of a checkpoint's keys; raised when an older program could not read it
BEST = re.compile(r"best_checkpoint_(?P<epoch>\d+)_loss=(?P<score>-?[\d.]+)\.pt")
REGULAR = re.compile(r"regular_checkpoint_(?P<epoch>\d+)\.pt")
STEP = re.compile(r"step_checkpoint_(?P<step>\d+)\.pt")


@dataclass(frozen=True, slots=True)
class Run:
    """A run's folder."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    @property
    def results(self) -> Path:
        return self.path / "results"

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    def files(self, pattern: re.Pattern[str]) -> list[Path]:
        """Checkpoints whose name fits, oldest epoch or step first."""
        if not self.checkpoints.is_dir():
            return []
        found = [(m, p) for p in self.checkpoints.iterdir() if (m := pattern.fullmatch(p.name))]
        return [path for _, path in sorted(found, key=lambda item: int(item[0][1]))]

    def best_first(self) -> list[Path]:
        """The best checkpoints, lowest validation loss first, by their names; of two equals the newer first."""
        newest_first = self.files(BEST)[::-1]
        return sorted(newest_first, key=lambda path: -float(BEST.fullmatch(path.name)["score"]))  # type: ignore[index]

    def best(self) -> Path | None:
        """The checkpoint with the lowest validation loss."""
        return next(iter(self.best_first()), None)

    def by_age(self) -> list[Path]:
        """All checkpoints, the one that was written last at the end."""
        files = [p for pattern in (BEST, REGULAR, STEP) for p in self.files(pattern)]
        return sorted(files, key=lambda p: (p.stat().st_mtime_ns, p.name))

    def newest(self) -> Path | None:
        """The checkpoint that was written last: the one to go on from."""
        files = self.by_age()
        return files[-1] if files else None


def create_run(runs_dir: str | Path, name: str) -> Run:
    """A new folder `<runs_dir>/<name>_<YYYYMMDD_HHMMSS>` with its subfolders."""
    stamp = datetime.now().strftime("%Y%m%d_%H%M%S")
    for suffix in ("", *(f"_{n}" for n in range(2, 100))):
        run = Run(Path(runs_dir) / f"{name}_{stamp}{suffix}")
        try:
            run.path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(
                f"cannot make the run folder {run.path}: {error.strerror}; choose another with "
                "--set train.runs_dir=FOLDER"
            ) from error
        run.checkpoints.mkdir()
        run.logs.mkdir()
        return run
    raise UserError(f"too many runs named {name}_{stamp} in {runs_dir}")


def newest_run(runs_dir: str | Path) -> Run:
    """The run under runs_dir that was begun last and has a checkpoint."""
    root = Path(runs_dir)
    folders = [p for p in root.iterdir() if p.is_dir()] if root.is_dir() else []
    runs = [run for run in map(Run, folders) if run.newest() is not None]
    if not runs:
        raise UserError(f"no run with a checkpoint in {root}/: train one first (python train.py), or give --model_path")
    # By the time stamp that ends the name: copying a run must not make it newer.
    return max(runs, key=lambda run: (_stamp(run.path.name), run.path.name))


def _stamp(name: str) -> str:
    stamps = re.findall(r"\d{8}_\d{6}", name)
    return stamps[-1] if stamps else ""


def resolve_checkpoint(path: str | Path | None, *, runs_dir: str | Path, prefer: str) -> tuple[Path, Run]:
    """The checkpoint file meant by a user, and its run.

    `path` is a checkpoint, a run folder, or None for the newest run. In a run, prefer="best" takes the lowest
    validation loss (the newest file if there is none) and prefer="newest" the one to go on from.
    """
    if path is None:
        run = newest_run(runs_dir)
    else:
        given = Path(path)
        if given.is_file():
            folder = given.resolve().parent
            return given, Run(folder if given.name == WEIGHTS else folder.parent)
        if not given.is_dir():
            raise UserError(f"{given}: no such checkpoint or run folder")
        run = Run(given.parent if given.name == "checkpoints" else given)
    found = (run.best() or run.newest()) if prefer == "best" else run.newest()
    if found is None and prefer == "best" and (run.path / WEIGHTS).is_file():
        found = run.path / WEIGHTS
    if found is None:
        raise UserError(f"{run.path}: no checkpoint in {run.checkpoints}; give the folder of a run that has saved one")
    return found, run


def write_aside(path: Path, payload: Any) -> None:
    """torch.save under another name, synced, then renamed: a reader never sees half a file."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("wb") as file:
            torch.save(payload, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        raise UserError(f"cannot write {path}: {error}; free some space: the earlier checkpoints are whole") from error
    finally:
        aside.unlink(missing_ok=True)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU.

    Raises UserError for a file that is missing, damaged, of another kind, or of a newer format.
    """
    if path.name == WEIGHTS:
        from utils.export import read_safetensors

        return read_safetensors(path)
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path}: no such checkpoint") from None
    except Exception as error:  # torch raises many kinds: zip, pickle, EOF, runtime
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if reason.startswith("Weights only load failed"):  # torch's long advice is not for this reader
            reason = "it is another kind of file, or holds more than tensors and plain values"
        others = [other for other in Run(path.parent.parent).by_age() if other.name != path.name]
        remedy = f"the one before it is {others[-1]}" if others else f"there is no other one in {path.parent}"
        raise UserError(f"{path}: not a whole checkpoint ({reason[:120]}); {remedy}") from error
    about = payload.get("format") if isinstance(payload, dict) else None
    version = about.get("version") if isinstance(about, dict) else None
    if not isinstance(version, int) or not {"config", "model", "tokenizer"} <= payload.keys():
        raise UserError(f"{path}: a torch file, but not a checkpoint of this project")
    if version > FORMAT:
        raise UserError(f"{path}: checkpoint format {version} is newer than this program's {FORMAT}: update the code")
    return payload


def checkpoint_config(payload: Mapping[str, Any]) -> Config:
    """The resolved configuration inside a checkpoint; data, never executed."""
    return from_dict(payload["config"])
