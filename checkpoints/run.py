"""Run folders: where they are, what is in them, and which of their checkpoints is meant.

    runs/<name>_<YYYYMMDD_HHMMSS>/config.json, tokenizer/, checkpoints/, logs/, results/

A run stands for its best checkpoint, or for its newest when it is resumed. A file of average.py is
used only where it is named itself. A folder of export.py is a run without checkpoints/, with its
weights in model.safetensors. Imports torch only to read a checkpoint.
"""

import contextlib
import itertools
import logging
import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from utils.errors import UserError
from utils.files import write_errors
from utils.hub import is_hub_name

logger = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"  # of an exported run
FORMAT = 1  # of a checkpoint's keys; raise it when an older program could not read it
# In a checkpoint whose `model` is a moving average: the weights that training continues from.
LAST_WEIGHTS = "last_weights"
LEFT = "left_after_update_"  # begins the name of a folder of checkpoints that were set aside
# The higher the score, the better: minus the loss, or a metric (evaluate.choose_by).
# By the epoch, or where validation comes every so many updates (evaluate.every_steps) the update.
BEST = re.compile(
    r"best(?P<step>_step)?_checkpoint_(?P<number>\d+)_(?:loss|bleu|chrf)="
    r"(?P<score>-?\d+(?:\.\d+)?)\.pt"
)
REGULAR = re.compile(r"regular_checkpoint_(?P<number>\d+)\.pt")
STEP = re.compile(r"step_checkpoint_(?P<number>\d+)\.pt")


class DamagedError(UserError):
    """A checkpoint that is no longer what was written."""


class FinishedError(UserError):
    """A run with nothing left to do."""


class Run:
    """A run's folder, and the places in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.json"
        self.checkpoints, self.logs = path / "checkpoints", path / "logs"
        self.tokenizer, self.results = path / "tokenizer", path / "results"
        self.bad_batches = path / "bad_batches"
        self.name = path.resolve().name

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def files(self, *patterns: re.Pattern[str]) -> list[Path]:
        """Checkpoints whose name fits a pattern; for each pattern, the oldest first."""
        there = sorted(self.checkpoints.iterdir()) if self.checkpoints.is_dir() else []
        fitting = ([path for path in there if each.fullmatch(path.name)] for each in patterns)
        return [path for paths in fitting for path in sorted(paths, key=_number)]

    def best_first(self) -> list[Path]:
        """The best checkpoints, best first, by their names; the newer of equals first."""

        def rank(path: Path) -> tuple[float, int]:
            return float(path.stem.partition("=")[2]), _number(path)

        return sorted(self.files(BEST), key=rank, reverse=True)

    def best(self) -> Path | None:
        """The checkpoint with the lowest validation loss, or the highest score."""
        return next(iter(self.best_first()), None)

    def saved_at(self, step: int, epoch_length: int) -> Path:
        """The path of the checkpoint to resume from after this update."""
        epoch, within = divmod(step, epoch_length)
        name = f"step_checkpoint_{step}.pt" if within else f"regular_checkpoint_{epoch}.pt"
        return self.checkpoints / name

    def by_age(self) -> list[Path]:
        """All checkpoints by the update they were written after, the newest at the end.

        It needs no time stamps, which copying changes, and tolerates damaged files. After the same
        update the best one comes first.
        """
        progress = {path: read_progress(path) for path in self.files(BEST, REGULAR, STEP)}
        epoch_length = next((saved["epoch_length"] for saved in progress.values() if saved), 1)

        def step(path: Path) -> int:
            if (saved := progress[path]) is not None:
                return saved["step"]
            return _number(path) * (1 if "step_" in path.name else epoch_length)

        return sorted(progress, key=step)

    def newest(self) -> Path | None:
        """The checkpoint to resume from, whole or not."""
        return next(reversed(self.by_age()), None)

    def ends(self) -> list[Path]:
        """The regular checkpoints, and the newest of all if it is within an epoch, by age."""
        newest = self.newest()
        within = [newest] if newest is not None and "step_" in newest.name else []
        return [*self.files(REGULAR), *within]


def _number(checkpoint: Path) -> int:
    """The epoch or step in the name of a checkpoint."""
    return int(re.findall(r"checkpoint_(\d+)", checkpoint.name)[0])


def read_progress(path: Path) -> Mapping[str, int] | None:
    """Step and epoch length of a checkpoint, without its weights; None where they can't be read."""
    import torch

    try:
        progress = torch.load(path, map_location="cpu", weights_only=True, mmap=True)["progress"]
        return {name: int(progress[name]) for name in ("step", "epoch_length")}
    except Exception:  # torch raises many kinds: zip, pickle, EOF, runtime
        return None


def create_run(runs_dir: str | Path, name: str) -> Run:
    """A new folder `<runs_dir>/<name>_<YYYYMMDD_HHMMSS>` with subfolders. Raises UserError.

    Its name makes it the newest there, whatever the clock says: if an older run has as late a
    stamp, it takes that stamp and the next number, as in `..._2`.
    """
    folder = Path(os.path.expanduser(runs_dir))
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now().strftime("%Y%m%d_%H%M%S")
    latest, taken, last = max(map(begun, folder.glob("*")), default=("", 0, ""))
    if latest > now:
        said = "%s is dated later than the clock: the new run takes that time and a number"
        logger.warning(said, folder / last)
    stamp = max(latest, now)
    for number in itertools.count(taken + 1 if stamp == latest else 1):
        run = Run(folder / f"{name}_{stamp}{f'_{number}' * (number > 1)}")
        with write_errors(run.path), contextlib.suppress(FileExistsError):
            run.path.mkdir()
            break
    run.checkpoints.mkdir()
    run.logs.mkdir()
    return run


def begun(run: Path) -> tuple[str, int, str]:
    """Stamp, number and name, which rank runs: a copy must not be newer."""
    stamps = re.findall(r"(?<!\d)(\d{8}_\d{6})(?!\d)(?:_(\d{1,9})$)?", run.name)
    stamp, number = stamps[-1] if stamps else ("", "")
    return stamp, int(number or run.name.endswith(stamp)), run.name


def newest_first(runs_dir: str | Path) -> list[Run]:
    """The runs under runs_dir that have a checkpoint; the one started last comes first."""
    folder = Path(os.path.expanduser(runs_dir))
    runs = [run for run in map(Run, folder.glob("*")) if run.files(BEST, REGULAR, STEP)]
    return sorted(runs, key=lambda run: begun(run.path), reverse=True)


def newest_run(runs_dir: str | Path) -> Run:
    """The first of `newest_first`. Raises UserError where there is none."""
    runs = newest_first(runs_dir)
    if not runs:
        raise UserError(
            f"no run with a checkpoint in {Path(runs_dir)}/: train one first (python train.py), or "
            "give --model_path"
        )
    return runs[0]


def hub_name(path: Path) -> str | None:
    """OWNER/NAME, if a path that does not exist can be a name on the hub; else None.

    Paths into an existing folder or into runs/, and .json, .pt, .py or .safetensors files, cannot.
    """
    local = path.exists() or path.parent.is_dir() or str(path.parent) == "runs"
    local, name = local or path.suffix in (".json", ".pt", ".py", ".safetensors"), path.as_posix()
    return name if "/" in name and not local and is_hub_name(name) else None


def require_there(path: Path) -> None:
    """Raises UserError for a path that neither exists nor can be a name on the hub."""
    if not path.exists() and hub_name(path) is None:
        raise UserError(f"{path}: no such checkpoint or run folder")
