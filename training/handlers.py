"""What hangs on the training engine: progress, log, checkpoints, signals."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, EarlyStopping
from ignite.handlers.checkpoint import BaseSaveHandler
from torch.utils.data import DataLoader
from tqdm import tqdm

from checkpoints.content import write_checkpoint
from checkpoints.run import BEST, LAST_WEIGHTS, REGULAR, STEP, Run
from configs.schema import TrainConfig
from data.batching import Batch
from training.faults import NON_FINITE_REMEDY, NonFiniteError
from training.log import RunLog
from training.start import Progress
from utils.files import remove_leftovers

logger = logging.getLogger(__name__)


def epochs(every: int, last: int) -> Events:
    """The end of every so many epochs, and of the last one."""
    return Events.EPOCH_COMPLETED(event_filter=lambda _, epoch: is_due(epoch, every, last))


def is_due(epoch: int, every: int, last: int) -> bool:
    return epoch % every == 0 or epoch == last


def attach_progress(trainer: Engine, loader: DataLoader[list[Batch]], progress: Progress) -> None:
    """The place in the data, and the counts of a checkpoint, follow the engine's count."""
    sampler: Any = loader.sampler

    @trainer.on(Events.EPOCH_STARTED)
    def set_position(engine: Engine) -> None:
        epoch = engine.state.epoch - 1
        sampler.set_position(epoch, engine.state.iteration - epoch * progress.epoch_length)

    @trainer.on(Events.ITERATION_COMPLETED)
    def count(engine: Engine) -> None:
        progress.go_to(engine.state.iteration)
        if not engine.state.output["skipped"]:
            progress.skipped_in_a_row = 0


def attach_log(
    trainer: Engine, log: RunLog, bar: ProgressBar, progress: Progress, *, every: int
) -> None:
    """The figures of every so many updates, and each update that was left out."""

    @trainer.on(Events.ITERATION_COMPLETED)
    def write(engine: Engine) -> None:
        step, epoch, out = engine.state.iteration, engine.state.epoch, engine.state.output
        if out["skipped"]:
            skipped = {"total": progress.skipped, "in_a_row": progress.skipped_in_a_row}
            log.scalars("skipped", skipped, step=step, epoch=epoch)
        elif step % every == 0 or step == 1:
            figures = {
                "loss": out["nll"] / out["n_tokens"],
                "accuracy": out["n_correct"] / out["n_tokens"],
                "grad_norm": out["grad_norm"],
                "learning_rate": out["lr"],
                "tokens_per_second": bar.tokens_per_second,
            }
            log.scalars("train", figures, step=step, epoch=epoch)


def attach_checkpoints(trainer: Engine, checkpoints: Checkpoints, config: TrainConfig) -> None:
    """Regular and step checkpoints where they are due, and one wherever the run stops."""
    save = checkpoints.save

    def due_by_step(engine: Engine) -> bool:
        every = config.checkpoint_every_steps
        return every is not None and engine.state.iteration % every == 0

    def due_within(engine: Engine, step: int) -> bool:
        # At an epoch's last update schedule and validation are still to come: there it waits.
        return due_by_step(engine) and step % engine.state.epoch_length != 0

    def due_at_the_end(engine: Engine, epoch: int) -> bool:
        regular = is_due(epoch, config.checkpoint_every_epochs, config.max_epochs)
        return regular or due_by_step(engine)

    @trainer.on(Events.STARTED)
    def complete(engine: Engine) -> None:
        # A process may have been killed between an epoch's best checkpoint and its regular one.
        epoch, within = divmod(engine.state.iteration, engine.state.epoch_length)
        at_an_end = epoch > 0 and within == 0
        if at_an_end and due_at_the_end(engine, epoch) and not checkpoints.has_regular(epoch):
            save(engine)

    trainer.add_event_handler(Events.ITERATION_COMPLETED(event_filter=due_within), save)
    trainer.add_event_handler(Events.EPOCH_COMPLETED(event_filter=due_at_the_end), save)
    trainer.add_event_handler(Events.TERMINATE, save)


def attach_limits(trainer: Engine, stop: StopSignals, *, total_steps: int) -> None:
    """A last update or a signal ends the run: at an epoch's last update after the epoch's work."""

    def end(engine: Engine) -> None:
        if engine.state.iteration >= total_steps:
            engine.terminate()
        stop(engine)

    def within(engine: Engine, step: int) -> bool:
        return step % engine.state.epoch_length != 0

    trainer.add_event_handler(Events.ITERATION_COMPLETED(event_filter=within), end)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, end)


def early_stopping(trainer: Engine, patience: int) -> EarlyStopping:
    """Ends the run after so many evaluations without a lower validation loss."""
    stopping = EarlyStopping(
        patience, lambda evaluator: -evaluator.state.metrics["loss"], trainer, min_delta=0.0
    )
    stopping.logger.setLevel(logging.ERROR)
    return stopping


class Constant:
    """A plain value that is written into every checkpoint (the configuration, the format)."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        self.value = dict(value)

    def state_dict(self) -> dict[str, Any]:
        return self.value


class AtomicSaver(BaseSaveHandler):
    """Writes whole checkpoints, in one process. What a new one replaces goes when it is there."""

    def __init__(self, folder: Path, before: Callable[[], None]) -> None:
        self.folder = folder
        self.before = before
        self._replaced: list[str] = []
        if idist.get_rank() == 0:
            remove_leftovers(folder)

    def __call__(self, checkpoint: Mapping, filename: str, metadata: Mapping | None = None) -> None:
        _require_finite(checkpoint)
        if idist.get_rank() > 0:
            return
        try:
            self.before()
        finally:  # whatever was wrong: the checkpoint is worth more
            write_checkpoint(self.folder / filename, dict(checkpoint))
        for name in self._replaced:
            if name != filename:
                (self.folder / name).unlink(missing_ok=True)
        self._replaced.clear()

    def remove(self, filename: str) -> None:
        """Asked for by ignite before it saves; if saving failed then, the old one would be gone."""
        self._replaced.append(filename)


def _require_finite(checkpoint: Mapping[str, Any]) -> None:
    """Raises NonFiniteError where a weight, or what the optimizer knows of one, is no number."""
    parts = {name: checkpoint[name] for name in ("model", LAST_WEIGHTS) if name in checkpoint}
    parts["optimizer"] = checkpoint["optimizer"]["state"]
    tensors = {
        f"{part} {name}": tensor
        for part, values in parts.items()
        for name, tensor in _tensors(values)
        if tensor.is_floating_point()
    }
    finite = torch.stack([tensor.isfinite().all().cpu() for tensor in tensors.values()]).tolist()
    broken = [name for name, whole in zip(tensors, finite) if not whole]
    if broken:
        raise NonFiniteError(
            f"not a number in {', '.join(broken[:3])}{' ...' if len(broken) > 3 else ''}: the "
            "weights have broken down, and no checkpoint is made of them; the earlier ones are "
            "kept. "
            f"{NON_FINITE_REMEDY}"
        )


def _tensors(values: Mapping[Any, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of nested dicts, by name."""
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            yield str(name), value
        elif isinstance(value, Mapping):
            yield from ((f"{name} {inner}", tensor) for inner, tensor in _tensors(value))


class Checkpoints:
    """The three kinds of checkpoint of a run: best by validation loss, regular by epoch, by step.

    The files that are there are found by their names, so that the numbers to keep hold across
    interruptions. `before` is called before each is written.
    """

    def __init__(
        self,
        run: Run,
        parts: Mapping[str, Any],
        trainer: Engine,
        *,
        config: TrainConfig,
        before: Callable[[], None],
    ) -> None:
        self.run = run
        self._saver = AtomicSaver(run.checkpoints, before)
        self._last_step: int | None = None  # of the last regular or step checkpoint

        def kind(name: str, keep: int, step: Callable, **score: Any) -> Checkpoint:
            return Checkpoint(
                parts,
                self._saver,
                filename_pattern=f"{name}.{{ext}}",
                n_saved=keep,
                global_step_transform=step,
                **score,
            )

        def epoch(*_: Any) -> int:
            return trainer.state.epoch

        def iteration(*_: Any) -> int:
            return trainer.state.iteration

        def score(evaluator: Engine) -> float:
            # Rounded as in the name, so that a resumed run ranks old and new files alike.
            return -round(evaluator.state.metrics["loss"], 4)

        self.best = kind(
            "best_checkpoint_{global_step}_{score_name}={score}",
            config.keep_best,
            epoch,
            score_function=score,
            score_name="loss",
        )
        self.regular = kind("regular_checkpoint_{global_step}", config.keep_regular, epoch)
        self.step = kind("step_checkpoint_{global_step}", 2, iteration)

    def has_regular(self, epoch: int) -> bool:
        return (self.run.checkpoints / f"regular_checkpoint_{epoch}.pt").is_file()

    def save(self, trainer: Engine) -> None:
        """What it takes to go on from here: regular at an epoch's end, by step within; once."""
        step = trainer.state.iteration
        if self._last_step != step:
            (self.step if step % trainer.state.epoch_length else self.regular)(trainer)
            self._last_step = step

    def resume(self, progress: Progress) -> None:
        """Take the files of a run that goes on for its own.

        Later ones are of a course that the run may not take again: they are put into a folder of
        their own, the newest first, so that at any time the newest that is left has all before it.
        """
        later: set[Path] = set()
        for kind, pattern, bound in (
            (self.best, BEST, progress.epoch),
            (self.regular, REGULAR, progress.epoch),
            (self.step, STEP, progress.step),
        ):
            items = []
            for path in self.run.files(pattern):
                match = pattern.fullmatch(path.name)
                assert match is not None
                number = int(match[1])
                if number > bound:
                    later.add(path)
                else:
                    score = float(match["score"]) if pattern is BEST else number
                    items.append(Checkpoint.Item(score, path.name))
            items.sort()
            kind._saved = items[-kind.n_saved :]
            for item in items[: -kind.n_saved]:  # a process was killed before it could remove it
                self._saver.remove(item.filename)
        if not later or idist.get_rank() > 0:
            return
        folder = self.run.checkpoints / f"left_after_update_{progress.step}"
        folder.mkdir(exist_ok=True)
        for path in reversed(self.run.by_age()):
            if path in later:
                os.replace(path, folder / path.name)
        logger.warning(
            "checkpoints after update %d are now in %s: going on will make others",
            progress.step,
            folder,
        )


class StopSignals:
    """SIGTERM and Ctrl-C end the run after an update; a second one ends it at once.

    With several processes a signal often comes twice, from the terminal and from the launcher:
    there the second one counts when a second has passed.
    """

    def __init__(self) -> None:
        self.received: int | None = None  # by this process, at any time
        self.stopped: int | None = None  # the signal at which all processes left
        self._received_at = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back to whom they belonged."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _receive(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._received_at = number, now
            if idist.get_rank() == 0:
                name = signal.Signals(number).name
                said = f"\n{name}: saving after this update (again: stop at once)\n"
                os.write(2, said.encode())  # not print: the signal may have come in one's middle
        elif idist.get_world_size() == 1 or now - self._received_at > 1:
            self.__exit__()
            os.kill(os.getpid(), number)

    def __call__(self, engine: Engine) -> None:
        """Terminate the engine if a signal has come to any process: all leave at one update."""
        received = int(idist.all_reduce(self.received or 0, op="MAX"))
        if received:
            self.stopped = received
            engine.terminate()


class ProgressBar:
    """One bar over all updates of the run: epoch, loss, tokens a second, time left.

    Where the output is no terminal, a line every `line_every` seconds. Waiting for data counts for
    tokens/s; validation and checkpoints count for the time left alone.
    """

    def __init__(
        self, trainer: Engine, *, first_step: int, total_steps: int, line_every: float = 30.0
    ) -> None:
        self.first, self.total = first_step, total_steps
        self.line_every = line_every
        # Its own lock is a semaphore of the system, which a killed process leaves behind.
        tqdm.set_lock(threading.RLock())
        self.bar = tqdm(
            total=total_steps,
            initial=first_step,
            unit="step",
            dynamic_ncols=True,
            disable=True if idist.get_rank() else None,  # None: where there is no terminal
        )
        self._began = self._last_line = self._update_began = time.perf_counter()
        self._tokens = self._seconds = 0.0  # fading sums over about fifty updates
        trainer.add_event_handler(Events.GET_BATCH_STARTED, self._begin_update)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, self._end_update)

    @property
    def tokens_per_second(self) -> float:
        """Target tokens without padding, of the last updates."""
        return self._tokens / max(self._seconds, 1e-9)

    def _begin_update(self, engine: Engine) -> None:
        self._update_began = time.perf_counter()

    def _end_update(self, engine: Engine) -> None:
        out, now, step = engine.state.output, time.perf_counter(), engine.state.iteration
        self._tokens = 0.98 * self._tokens + out["n_tokens"]
        self._seconds = 0.98 * self._seconds + now - self._update_began
        epoch = f"epoch {engine.state.epoch}/{engine.state.max_epochs}"
        figures = (
            f"loss {out['nll'] / max(out['n_tokens'], 1):.3f} | "
            f"{self.tokens_per_second:,.0f} tokens/s | lr {out['lr']:.2e}"
        )
        if not self.bar.disable:
            self.bar.set_description_str(epoch, refresh=False)
            self.bar.set_postfix_str(figures, refresh=False)
            self.bar.update(1)
        elif now - self._last_line >= self.line_every:
            self._last_line = now
            seconds = int((now - self._began) / (step - self.first) * (self.total - step))
            left = timedelta(seconds=seconds)
            logger.info("%s step %d/%d | %s | %s left", epoch, step, self.total, figures, left)

    def close(self) -> None:
        self.bar.close()
