"""The checkpoints of a run: their content, when they are written, which are kept."""

import itertools
import logging
import math
import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, EarlyStopping, global_step_from_engine
from ignite.handlers.checkpoint import BaseSaveHandler

from checkpoints.content import write_checkpoint
from checkpoints.run import BEST, FORMAT, LAST_WEIGHTS, LEFT, REGULAR, STEP, Run
from configs.schema import Config
from configs.serialize import to_dict
from tokenizer.base import BaseTokenizer
from training.faults import NonFiniteError
from training.handlers import after_updates
from training.prepare import Learner, TrainingData
from training.start import MODELS, Progress
from utils.machine import provenance

logger = logging.getLogger(__name__)


def constant(**value: Any) -> SimpleNamespace:
    """A plain value that is written into every checkpoint (the configuration, the format)."""
    return SimpleNamespace(state_dict=lambda: value)


def checkpoint_parts(
    config: Config,
    tokenizer: BaseTokenizer,
    data: TrainingData,
    learner: Learner,
    progress: Progress,
    stopping: EarlyStopping | None,
    device: torch.device,
) -> dict[str, Any]:
    """All that a checkpoint holds, by name: constants, and objects with a state_dict."""
    parts: dict[str, Any] = {
        "format": constant(version=FORMAT, **provenance(device)),
        "config": constant(**to_dict(config)),
        "tokenizer": constant(
            fingerprint=tokenizer.fingerprint(),
            src_vocab_size=tokenizer.src_vocab_size,
            tgt_vocab_size=tokenizer.tgt_vocab_size,
        ),
        "data": constant(
            fingerprint=data.fingerprint, validation=data.validation_text.fingerprint()
        ),
        "model": learner.evaluated,
        "optimizer": learner.optimizer,
        "scheduler": learner.scheduler,
        "scaler": learner.scaler,
        "progress": progress,
    }
    if learner.average is not None:
        parts[LAST_WEIGHTS] = learner.model
    if stopping is not None:
        parts["early_stopping"] = stopping
    return parts


class AtomicSaver(BaseSaveHandler):
    """Writes whole checkpoints, in one process. An old one is removed once its successor exists."""

    def __init__(self, folder: Path, before: Callable[[], None]) -> None:
        self.folder, self.before = folder, before
        self._replaced: list[str] = []

    def __call__(self, checkpoint: Mapping, filename: str, metadata: Mapping | None = None) -> None:
        _require_finite(checkpoint)
        if idist.get_rank() > 0:
            return
        try:
            self.before()
        finally:  # whatever went wrong before: the checkpoint is worth more
            write_checkpoint(self.folder / filename, dict(checkpoint))
        self.remove_replaced(but=filename)

    def remove(self, filename: str) -> None:
        """ignite calls this before saving; if that failed, a file removed here would be lost."""
        self._replaced.append(filename)

    @idist.one_rank_only()
    def remove_replaced(self, *, but: str = "") -> None:
        for name in self._replaced:
            if name != but:
                (self.folder / name).unlink(missing_ok=True)
        self._replaced.clear()


def _require_finite(checkpoint: Mapping[str, Any]) -> None:
    """Raises NonFiniteError where a weight, or the optimizer's state of one, is no number."""
    states = checkpoint["optimizer"]["state"]
    parts = {name: checkpoint[name] for name in MODELS if name in checkpoint}
    parts |= {f"optimizer {number}": state for number, state in states.items()}
    tensors = {
        f"{part} {name}": value
        for part, values in parts.items()
        for name, value in values.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    }
    finite = torch.stack([tensor.isfinite().all().cpu() for tensor in tensors.values()]).tolist()
    broken = [name for name, whole in zip(tensors, finite) if not whole]
    if broken:
        raise NonFiniteError(
            f"not a number in {', '.join(broken[:3])}{' ...' if len(broken) > 3 else ''}: the "
            "weights have broken down, and no checkpoint is made of them; the earlier ones are kept"
        )


class Checkpoints:
    """The three kinds of checkpoint of a run: best by validation, regular by epoch, by step.

    Existing files are found by their names, so that the numbers to keep hold across interruptions.
    `before` is called before each write.
    """

    def __init__(
        self,
        run: Run,
        parts: Mapping[str, Any],
        trainer: Engine,
        config: Config,
        *,
        before: Callable[[], None],
    ) -> None:
        train, choose_by = config.train, config.evaluate.choose_by
        self._every = {None: config.evaluate.every_epochs, "_step": config.evaluate.every_steps}
        self.run, self.trainer, self.config = run, trainer, train
        self._saver = AtomicSaver(run.checkpoints, before)
        self._last_step: int | None = None  # of the last regular or step checkpoint
        kind = partial(Checkpoint, parts, self._saver)
        epoch = global_step_from_engine(trainer, Events.EPOCH_COMPLETED)
        step = global_step_from_engine(trainer, Events.ITERATION_COMPLETED)
        self.best = kind(
            "best_step" if config.evaluate.every_steps else "best",
            # Rounded as in the name, so that a resumed run ranks old and new files alike.
            lambda evaluator: round(score(evaluator, choose_by), 4),
            choose_by,
            n_saved=train.keep_best,
            greater_or_equal=choose_by != "loss",  # the newer of equals: early BLEU is 0
            global_step_transform=step if config.evaluate.every_steps else epoch,
        )
        self.regular = kind("regular", n_saved=train.keep_regular, global_step_transform=epoch)
        self.step = kind("step", n_saved=train.keep_steps, global_step_transform=step)

    def attach(self) -> None:
        """Regular and step checkpoints where they are due, and one wherever the run stops."""
        every, config = self.config.checkpoint_every_steps, self.config

        def due(engine: Engine) -> bool:
            epoch, within = divmod(engine.state.iteration, engine.state.epoch_length)
            regular = is_due(epoch, config.checkpoint_every_epochs, config.max_epochs)
            by_step = every is not None and engine.state.iteration % every == 0
            return by_step or (regular and not within)

        def complete(engine: Engine) -> None:
            if engine.state.iteration and due(engine):
                self.complete(engine)

        self.trainer.add_event_handler(Events.STARTED, complete)
        after_updates(self.trainer, self.save, due)
        self.trainer.add_event_handler(Events.TERMINATE, self.save)

    def save(self, trainer: Engine) -> None:
        """Save a checkpoint to resume from, once: regular at an epoch's end, by step within."""
        step = trainer.state.iteration
        if self._last_step != step:
            (self.step if step % trainer.state.epoch_length else self.regular)(trainer)
            self._last_step = step

    def complete(self, trainer: Engine) -> None:
        """Do the work after this update that a kill between two writes prevented."""
        if not self.run.saved_at(trainer.state.iteration, trainer.state.epoch_length).is_file():
            self.save(trainer)
        self._saver.remove_replaced()

    def resume(self, progress: Progress, *, over: bool, damaged: Collection[Path] = ()) -> None:
        """Take over the files of a resumed run.

        Later files are of a course that it might not repeat. They are moved to a folder of
        their own, the newest first, so that at any time the newest that is left has all before it.
        So are damaged ones, which would be kept in place of whole ones.
        """
        later: set[Path] = set()
        # The last validation of a run that is over may have come within an epoch.
        validated = -(-progress.step // progress.epoch_length) if over else progress.epoch
        best = -math.inf if progress.best_score is None else round(progress.best_score, 4)
        for kind, pattern, bound in (
            (self.best, BEST, validated),
            (self.regular, REGULAR, progress.epoch),
            (self.step, STEP, progress.step),
        ):
            items = []
            for path in self.run.files(pattern):
                match = pattern.fullmatch(path.name)
                assert match is not None
                number, unit = int(match["number"]), match["step"] if pattern is BEST else None
                score = float(match["score"]) if pattern is BEST else number
                last, every = progress.step if unit else bound, self._every[unit] or 1
                # Of the end by a limit that has been raised, where no validation was due.
                uncounted = score > best or (number % every != 0 and score != best)
                # Beside it lies the checkpoint of that end; without one it is what is resumed.
                beside = self.run.saved_at(progress.step, progress.epoch_length).is_file()
                of_an_end = pattern is BEST and number == last and not over and uncounted and beside
                if number > last or of_an_end or path in damaged:
                    later.add(path)
                else:
                    items.append(Checkpoint.Item(score, path.name))
            items.sort(key=lambda item: item.priority)  # stable: the oldest of equals goes first
            kind._saved = items[-kind.n_saved :]
            for item in items[: -kind.n_saved]:  # left by a process killed before it removed it
                self._saver.remove(item.filename)
        if not later or idist.get_rank() > 0:
            return
        names = (f"{LEFT}{progress.step}{f'_{n}' * (n > 1)}" for n in itertools.count(1))
        folders = map(self.run.checkpoints.joinpath, names)
        folder = next(each for each in folders if not each.exists())
        folder.mkdir()
        for path in reversed(self.run.by_age()):
            if path in later:
                os.replace(path, folder / path.name)
        said = "checkpoints from after update %d, and damaged ones, were moved to %s: the run will "
        said += "write others"
        logger.warning(said, progress.step, folder)


def score(evaluator: Engine, choose_by: str) -> float:
    """The score of the last validation, the higher the better: minus the loss, or a metric."""
    figure = evaluator.state.metrics[choose_by]
    return -figure if choose_by == "loss" else figure


def is_due(epoch: int, every: int, last: int) -> bool:
    """Whether something is due at the end of this epoch: every `every` epochs, and the last."""
    return epoch % every == 0 or epoch == last
