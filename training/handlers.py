"""What hangs on the training engine: checkpoints, signals, the progress bar."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint
from ignite.handlers.checkpoint import BaseSaveHandler
from tqdm import tqdm

from checkpoints.content import write_checkpoint
from checkpoints.run import BEST, LAST_WEIGHTS, REGULAR, STEP, Run
from training.faults import NON_FINITE_REMEDY, NonFiniteError
from utils.errors import UserError
from utils.files import remove_leftovers

logger = logging.getLogger(__name__)


class Constant:
    """A plain value that is written into every checkpoint (the configuration, the format)."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        self.value = dict(value)

    def state_dict(self) -> dict[str, Any]:
        return self.value


class AtomicSaver(BaseSaveHandler):
    """Writes checkpoints aside and renames them; one process writes. What a new one replaces goes
    when it is there.
    """

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
        """ignite asks for it before it saves; then the new checkpoint could fail and the old one be
        gone.
        """
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
            f"not a number in {', '.join(broken[:3])}{' ...' if len(broken) > 3 else ''}: the weights have broken "
            f"down, and no checkpoint is made of them; the earlier ones are kept. {NON_FINITE_REMEDY}"
        )


def _tensors(values: Mapping[Any, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of nested dicts, by name."""
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            yield str(name), value
        elif isinstance(value, Mapping):
            yield from ((f"{name} {inner}", tensor) for inner, tensor in _tensors(value))


class Checkpoints:
    """The three kinds of checkpoint of a run: best by validation loss, regular by epoch, and by
    step.

    Files are found by their names when a run goes on, so that the numbers to keep hold across
    interruptions. `before` is called before each is written.
    """

    def __init__(
        self,
        run: Run,
        to_save: dict[str, Any],
        *,
        trainer: Engine,
        keep_best: int,
        keep_regular: int,
        before: Callable[[], None],
    ) -> None:
        self._saver = AtomicSaver(run.checkpoints, before)
        self.run = run
        self._last_step: int | None = None  # of the last regular or step checkpoint

        def handler(
            pattern: str, keep: int, step: Callable, score: Callable | None = None
        ) -> Checkpoint:
            return Checkpoint(
                to_save,
                self._saver,
                filename_pattern=pattern,
                n_saved=keep,
                global_step_transform=step,
                score_function=score,
                score_name="loss" if score else None,
            )

        def epoch(*_: Any) -> int:
            return trainer.state.epoch

        def iteration(*_: Any) -> int:
            return trainer.state.iteration

        # Rounded as in the file name, so that a resumed run ranks old and new files by the same
        # figures.
        self.best = handler(
            "best_checkpoint_{global_step}_{score_name}={score}.{ext}",
            keep_best,
            epoch,
            lambda evaluator: -round(evaluator.state.metrics["loss"], 4),
        )
        self.regular = handler("regular_checkpoint_{global_step}.{ext}", keep_regular, epoch)
        self.step = handler("step_checkpoint_{global_step}.{ext}", 2, iteration)

    def has_regular(self, epoch: int) -> bool:
        return (self.run.checkpoints / f"regular_checkpoint_{epoch}.pt").is_file()

    def save_epoch(self, trainer: Engine) -> None:
        """The regular checkpoint of the epoch that has just ended."""
        self.regular(trainer)
        self._last_step = trainer.state.iteration

    def save_step(self, trainer: Engine) -> None:
        """A checkpoint in the middle of an epoch."""
        self.step(trainer)
        self._last_step = trainer.state.iteration

    def save_where_it_stopped(self, trainer: Engine) -> None:
        """What is needed to go on from here, unless it is there already."""
        if self._last_step != trainer.state.iteration:
            if trainer.state.iteration % trainer.state.epoch_length:
                self.save_step(trainer)
            else:
                self.save_epoch(trainer)

    def adopt_files(self, *, epoch: int, step: int) -> None:
        """Take up the files of a run that goes on after `epoch` epochs and `step` updates.

        Later ones are of a course that the run may not take again: they are put into a folder of
        their own, the newest first, so that at any time the newest that is left has all before it.
        """
        kinds = ((self.best, BEST, epoch), (self.regular, REGULAR, epoch), (self.step, STEP, step))
        later: set[Path] = set()
        for kept, pattern, bound in kinds:
            found = [(m, p) for p in self.run.files(pattern) if (m := pattern.fullmatch(p.name))]
            later.update(p for m, p in found if int(m[1]) > bound)
            saved = sorted(
                Checkpoint.Item(float(m["score"]) if pattern is BEST else int(m[1]), p.name)
                for m, p in found
                if int(m[1]) <= bound
            )
            kept._saved = saved[-kept.n_saved :]
            for item in saved[: -kept.n_saved]:  # a process was killed before it could remove it
                self._saver.remove(item.filename)
        if later and idist.get_rank() == 0:
            folder = self.run.checkpoints / f"left_after_update_{step}"
            try:
                folder.mkdir(exist_ok=True)
                for path in reversed(self.run.by_age()):
                    if path in later:
                        os.replace(path, folder / path.name)
            except OSError as error:
                raise UserError(
                    f"cannot move the later checkpoints to {folder}: {error.strerror}; is it read-only?"
                ) from error
            logger.warning(
                "checkpoints after update %d are now in %s: going on will make others", step, folder
            )


class StopSignals:
    """SIGTERM and Ctrl-C end the run where it is asked next, after an update; a second one ends it
    at once.

    With several processes a signal often comes twice, from the terminal and from the launcher:
    there the second one counts when a second has passed.
    """

    def __init__(self, trainer: Engine) -> None:
        self.received: int | None = None  # by this process, at any time
        self.stopped: int | None = None  # the signal at which all processes left
        self._received_at = 0.0
        self._previous: dict[int, Any] = {}
        trainer.add_event_handler(Events.STARTED, self._install)

    def _install(self, engine: Engine) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._receive)

    def restore(self) -> None:
        """Give the signals back to whom they belonged."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _receive(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._received_at = number, now
            if idist.get_rank() == 0:
                # Not print: the signal may have come in the middle of one.
                os.write(
                    2,
                    f"\n{signal.Signals(number).name}: saving after this update (again: stop at once)\n".encode(),
                )
        elif idist.get_world_size() == 1 or now - self._received_at > 1:
            self.restore()
            os.kill(os.getpid(), number)

    def __call__(self, engine: Engine) -> None:
        """Terminate the engine if a signal has come to any process."""
        received = self.received or 0
        if idist.get_world_size() > 1:  # all processes leave at the same update
            received = int(idist.all_reduce(received, op="MAX"))
        if received:
            self.stopped = received
            engine.terminate()


class ProgressBar:
    """One bar over all updates of the run: epoch, loss, tokens a second, time left.

    Where the output is no terminal, a line every `line_every` seconds. Waiting for data counts for
    tokens/s; validation and checkpoints count for the time left alone.
    """

    def __init__(self, trainer: Engine, *, total_steps: int, line_every: float = 30.0) -> None:
        self.total = total_steps
        self.line_every = line_every
        self.bar: tqdm | None = None
        self._began = self._last_line = self._update_began = 0.0
        self._first_step = 0
        self._tokens = self._seconds = 0.0  # fading sums over about fifty updates
        trainer.add_event_handler(Events.STARTED, self._start)
        trainer.add_event_handler(Events.GET_BATCH_STARTED, self._begin_update)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, self._end_update)

    @property
    def tokens_per_second(self) -> float:
        """Target tokens without padding, of the last updates."""
        return self._tokens / max(self._seconds, 1e-9)

    def _start(self, engine: Engine) -> None:
        self._first_step = engine.state.iteration
        self._began = self._last_line = time.perf_counter()
        if sys.stderr.isatty():
            self.bar = tqdm(
                total=self.total, initial=self._first_step, unit="step", dynamic_ncols=True
            )

    def _begin_update(self, engine: Engine) -> None:
        self._update_began = time.perf_counter()

    def _end_update(self, engine: Engine) -> None:
        out, now = engine.state.output, time.perf_counter()
        step, epoch = engine.state.iteration, engine.state.epoch
        self._tokens = 0.98 * self._tokens + out["n_tokens"]
        self._seconds = 0.98 * self._seconds + now - self._update_began
        figures = (
            f"loss {out['nll'] / max(out['n_tokens'], 1):.3f} | {self.tokens_per_second:,.0f} tokens/s"
            f" | lr {out['lr']:.2e}"
        )
        if self.bar is not None:
            self.bar.set_description_str(f"epoch {epoch}/{engine.state.max_epochs}", refresh=False)
            self.bar.set_postfix_str(figures, refresh=False)
            self.bar.update(1)
        elif now - self._last_line >= self.line_every:
            self._last_line = now
            seconds = int((now - self._began) / (step - self._first_step) * (self.total - step))
            left = f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
            self.say(
                f"epoch {epoch}/{engine.state.max_epochs} step {step}/{self.total} | {figures} | {left} left"
            )

    def say(self, line: str) -> None:
        """Print a line without breaking the bar."""
        if self.bar is not None:
            tqdm.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
