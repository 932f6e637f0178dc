"""Where a run begins: in a new folder, or at a checkpoint from which it goes on exactly."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ignite.distributed as idist

from checkpoints.content import checkpoint_config, read_checkpoint
from checkpoints.run import DamagedError, Run, create_run, resolve_checkpoint
from configs.schema import Config
from configs.serialize import diff
from utils.errors import UserError

logger = logging.getLogger(__name__)

# What a run that goes on may change: nothing that shapes the model, the data or the course of the
# updates.
MAY_CHANGE = (
    "train.",
    "evaluate.",
    "decode.",
    "optim.bad_numbers",
    "data.num_workers",
    "data.cache_dir",
    "data.corpus.path",
    "data.corpus.root",
)
_PART = re.compile(
    r"(?<=^data\.corpus\.)parts\.\d+\.corpus\."
)  # of a mixture: its places may change as others do
MAY_NOT_CHANGE = ("train.seed", "train.precision", "train.ema_decay", "train.init_from")


@dataclass(slots=True)
class Progress:
    """Where a run is; part of every checkpoint. The place in the epoch follows from `step` and the
    epoch's length.
    """

    step: int = 0
    epoch: int = 0  # whole epochs done
    epoch_length: int = 0
    best_loss: float | None = None
    skipped: int = 0  # updates that were left out because of bad numbers
    skipped_in_a_row: int = 0

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def take_up(self, saved: Mapping[str, Any]) -> None:
        """Go on from what a checkpoint has; an older one may lack counters."""
        for name in ("best_loss", "skipped", "skipped_in_a_row"):
            setattr(self, name, saved.get(name, getattr(self, name)))
        self.go_to(saved["step"])

    def go_to(self, step: int) -> None:
        self.step = step
        self.epoch = step // self.epoch_length


@dataclass(frozen=True, slots=True)
class Start:
    """A run's folder, and the checkpoint to go on from with its content, if there is one."""

    run: Run
    checkpoint: Path | None = None
    payload: Mapping[str, Any] | None = None


def find_checkpoint(path: Path) -> tuple[Path, Run, Mapping[str, Any]]:
    """The checkpoint that --resume means, its run, and its content.

    Of a run: the newest, or where that is damaged the one before, with a warning that names both.
    Raises UserError where there is none, and DamagedError for a damaged one that is named itself.
    """
    checkpoint, run = resolve_checkpoint(path, runs_dir="runs", prefer="newest")
    if path.is_file():
        return checkpoint, run, read_checkpoint(checkpoint)
    damaged: list[str] = []
    first: DamagedError | None = None
    for checkpoint in reversed(run.by_age()):
        try:
            payload = read_checkpoint(checkpoint)
        except DamagedError as error:
            damaged.append(str(checkpoint))
            first = first or error
            continue
        if damaged:
            logger.warning(
                "warning: damaged: %s; going on from the one before, %s",
                ", ".join(damaged),
                checkpoint,
            )
        return checkpoint, run, payload
    assert first is not None
    raise first


def open_run(config: Config, resume: Path | None) -> Start:
    """A new folder, made by the first process; or the checkpoint that `resume` means (of a run: the
    newest).

    Raises UserError where there is nothing to go on from, or where `config` would not continue it.
    """
    if resume is not None:
        checkpoint, run, payload = find_checkpoint(resume)
        if "optimizer" not in payload:  # averaged or exported
            raise UserError(
                f"{checkpoint} holds weights to translate with, and nothing to go on training from: give --resume the "
                "run's folder, or one of its best, regular or step checkpoints"
            )
        with naming_odd_parts(checkpoint):
            check_resume(config, payload, checkpoint)
        return Start(run, checkpoint, payload)
    path = ""
    if idist.get_rank() == 0:
        path = str(create_run(config.train.runs_dir, config.name).path)
    if idist.get_world_size() > 1:
        path = idist.broadcast(path, src=0, safe_mode=True)
    return Start(Run(Path(path)))


@contextlib.contextmanager
def naming_odd_parts(checkpoint: Path | None) -> Iterator[None]:
    """A UserError for parts of a checkpoint that are missing or are of another kind than training
    writes.
    """
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise UserError(
            f"{checkpoint}: the state of the training in it does not fit ({reason}); go on from another checkpoint, or "
            "begin a new run with its weights (--init_from)"
        ) from error


def check_resume(config: Config, payload: Mapping[str, Any], checkpoint: Path) -> None:
    """Raises UserError where going on with `config` would not continue the run, or where the run is
    over.
    """
    for name, old, new in diff(checkpoint_config(payload), config):
        if name in MAY_NOT_CHANGE or not _PART.sub("", name).startswith(MAY_CHANGE):
            raise UserError(
                f"{name} = {new!r}, but {checkpoint} was trained with {old!r}: a run goes on as it began; leave the "
                "change out, or start a new run without --resume"
            )
    step, epoch_length = payload["progress"]["step"], payload["progress"]["epoch_length"]
    done, train = step // epoch_length, config.train
    remedies = []
    if done >= train.max_epochs:
        remedies.append(f"--set train.max_epochs={train.max_epochs + 10}")
    if train.max_steps is not None and step >= train.max_steps:
        remedies.append(f"--set train.max_steps={train.max_steps * 2}")
    stopping = payload.get("early_stopping")
    if (
        stopping is not None
        and train.patience is not None
        and stopping["counter"] >= train.patience
    ):
        remedies.append(f"--set train.patience={train.patience * 2}")
    if remedies:
        raise UserError(
            f"{checkpoint}: this run is finished (epochs: {done}, updates: {step}). To train on, raise the limit: "
            + " ".join(remedies)
        )


def check_data(
    payload: Mapping[str, Any], checkpoint: Path | None, *, epoch_length: int, fingerprint: str
) -> None:
    """Raises UserError where the training data are no longer those that the run began with."""
    saved = payload["progress"]["epoch_length"]
    text = (
        payload["data"]["fingerprint"] if "data" in payload else fingerprint
    )  # the first release did not note it
    if saved != epoch_length or text != fingerprint:
        raise UserError(
            f"{checkpoint}: the training data have changed since (an epoch had {saved} updates, now {epoch_length}): "
            "start a new run without --resume"
        )
