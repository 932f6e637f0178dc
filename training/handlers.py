"""Handlers of the training engine other than checkpoints: progress, log, signals."""

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Self

import ignite.distributed as idist
from ignite.engine import Engine, Events
from torch.utils.data import DataLoader

from data.batching import Batch
from training.log import RunLog
from training.start import Progress
from utils.cli import signals_to, stops
from utils.progress import Bar

logger = logging.getLogger(__name__)


def attach_progress(trainer: Engine, loader: DataLoader[list[Batch]], progress: Progress) -> None:
    """Make the place in the data and a checkpoint's counts follow the engine's count."""
    sampler: Any = loader.sampler

    @trainer.on(Events.EPOCH_STARTED)
    def set_position(engine: Engine) -> None:
        epoch = engine.state.epoch - 1
        sampler.set_position(epoch, engine.state.iteration - epoch * progress.epoch_length)

    @trainer.on(Events.ITERATION_COMPLETED)
    def count(engine: Engine) -> None:
        progress.go_to(engine.state.iteration)
        progress.skipped += engine.state.output["rescaled"]
        if not engine.state.output["skipped"]:
            progress.skipped_in_a_row = 0


def after_updates(
    trainer: Engine, handler: Callable[[Engine], object], due: Callable[[Engine], bool]
) -> None:
    """Call `handler` after the updates that are `due`; after an epoch's last with what ends it."""

    def within(engine: Engine, step: int) -> bool:
        return step % engine.state.epoch_length != 0 and due(engine)

    trainer.add_event_handler(Events.ITERATION_COMPLETED(event_filter=within), handler)
    at_the_end = Events.EPOCH_COMPLETED(event_filter=lambda engine, _: due(engine))
    trainer.add_event_handler(at_the_end, handler)


def attach_log(
    trainer: Engine, log: RunLog, bar: "ProgressBar", progress: Progress, *, every: int
) -> None:
    """Log the figures after every `every` updates, and each update that was left out."""

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


class StopSignals:
    """SIGTERM, Ctrl-C and the like end the run after an update; a second one ends it at once.

    A signal often comes twice, from the terminal or the batch system and from the process that
    launched this one: a second one counts only if it comes more than 1 s later.
    """

    def __init__(self) -> None:
        self.received: int | None = None  # by this process, at any time
        self.stopped: int | None = None  # the signal at which all processes left
        self._received_at = 0.0
        self._hearing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._hearing.enter_context(signals_to(self._receive, *stops()))
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the earlier signal handlers."""
        self._hearing.close()

    def _receive(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._received_at = number, now
            if idist.get_rank() == 0:
                name = signal.Signals(number).name
                said = f"\n{name}: saving after this update or validation (again: stop at once)\n"
                with contextlib.suppress(OSError):  # Ctrl-C ends `| tee` too
                    os.write(2, said.encode())  # not print: the signal may interrupt one
        elif now - self._received_at > 1:
            self.__exit__()
            os.kill(os.getpid(), number)

    def attach(self, trainer: Engine, *, total_steps: int) -> None:
        """End the run at the last update or a signal; at an epoch's end, after its work."""

        def end(engine: Engine) -> None:
            # A signal to any process: all leave at the same update.
            received = int(idist.all_reduce(self.received or 0, op="MAX"))
            if received:
                self.stopped = received
            if received or engine.state.iteration >= total_steps:
                engine.terminate()

        after_updates(trainer, end, lambda _: True)


class ProgressBar:
    """One bar over all updates of the run: epoch, loss, tokens a second, time left.

    Without a terminal, a line every `line_every` seconds. The loss is that of the last updates,
    fifty or so, as are tokens/s, where waiting for data counts; validation and checkpoints count
    only in the time left.
    """

    def __init__(
        self, trainer: Engine, *, first_step: int, total_steps: int, line_every: float = 30.0
    ) -> None:
        self.first, self.total = first_step, total_steps
        self.line_every = line_every
        self.bar = Bar(
            total=total_steps,
            initial=first_step,
            unit="step",
            dynamic_ncols=True,
            disable=True if idist.get_rank() else None,  # None: disabled without a terminal
        )
        self._began = self._last_line = self._update_began = time.perf_counter()
        self._tokens = self._seconds = self._nll = 0.0  # decaying sums over about fifty updates
        trainer.add_event_handler(Events.GET_BATCH_STARTED, self._begin_update)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, self._end_update)

    @property
    def tokens_per_second(self) -> float:
        """Target tokens without padding, of the last updates."""
        return self._tokens / max(self._seconds, 1e-9)

    @property
    def loss(self) -> float:
        """Nats a target token, of the same updates."""
        return self._nll / max(self._tokens, 1)

    def _begin_update(self) -> None:
        self._update_began = time.perf_counter()

    def _end_update(self, engine: Engine) -> None:
        out, now, step = engine.state.output, time.perf_counter(), engine.state.iteration
        nll = self.loss * out["n_tokens"] if out["skipped"] else out["nll"]
        self._nll = 0.98 * self._nll + nll
        self._tokens = 0.98 * self._tokens + out["n_tokens"]
        self._seconds = 0.98 * self._seconds + now - self._update_began
        last = min(engine.state.max_epochs, -(-self.total // engine.state.epoch_length))
        epoch = f"epoch {engine.state.epoch}/{last}"
        figures = (
            f"loss {self.loss:.3f} | {self.tokens_per_second:,.0f} tokens/s | lr {out['lr']:.2e}"
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
