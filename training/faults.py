"""What ends or disturbs a training: numbers that are none, memory that does not suffice.

The batch of a bad update is saved for study; the run stops or leaves the update out.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import ignite.distributed as idist
from ignite.engine import Engine

from checkpoints.content import write_checkpoint
from checkpoints.run import Run
from configs.schema import BadNumbers, Config, SkipBadNumbers
from data.batching import Batch
from training.start import Progress
from utils.errors import UserError
from utils.machine import is_out_of_memory

logger = logging.getLogger(__name__)

NON_FINITE_REMEDY = "Try a lower learning rate, a longer warm-up or --set optim.grad_clip=1.0"
MOST_FILES = 100  # of saved batches in a run


class NonFiniteError(UserError):
    """The loss, the gradient or the weights are no longer numbers: training cannot go on."""


# Asked with the engine, the batches of the update, their loss and the norm of the gradient.
BadUpdate = Callable[[Engine, list[Batch], float, float], None]


def describe(engine: Engine, group: list[Batch], loss: float, grad_norm: float) -> str:
    """The update in words, with the first rows of its batches."""
    rows = [str(row) for batch in group for row in batch.indices.tolist() if row >= 0]
    return (
        f"update {engine.state.iteration} (epoch {engine.state.epoch}): loss {loss:.4g}, "
        f"gradient norm {grad_norm:.4g}; rows {', '.join(rows[:4])}"
        f"{' ...' if len(rows) > 4 else ''} of the training split"
    )


def refuse(engine: Engine, group: list[Batch], loss: float, grad_norm: float) -> None:
    """Raises NonFiniteError."""
    raise NonFiniteError(f"{describe(engine, group, loss, grad_norm)}. {NON_FINITE_REMEDY}")


class BadUpdates:
    """What the training engine asks at such an update, before it touches the weights.

    All processes ask at the same updates, since loss and norm are those of all of them.
    """

    def __init__(self, config: BadNumbers, run: Run, progress: Progress) -> None:
        self.config = config
        self.run = run
        self.progress = progress

    def __call__(self, engine: Engine, group: list[Batch], loss: float, grad_norm: float) -> None:
        """Save the batch; return where the update is to be left out. Raises NonFiniteError."""
        figures = {
            "step": engine.state.iteration,
            "epoch": engine.state.epoch,
            "loss": loss,
            "grad_norm": grad_norm,
        }
        what = f"{describe(engine, group, loss, grad_norm)}; {self._save(group, figures)}"
        if not isinstance(self.config, SkipBadNumbers):
            raise NonFiniteError(
                f"{what}. {NON_FINITE_REMEDY}, or leave such updates out: "
                "--set optim.bad_numbers=skip"
            )
        self.progress.skipped += 1
        self.progress.skipped_in_a_row += 1
        if self.progress.skipped_in_a_row >= self.config.in_a_row:
            raise NonFiniteError(
                f"{what}. It is number {self.progress.skipped_in_a_row} in a row "
                "(optim.bad_numbers.in_a_row): the weights have broken down. "
                f"{NON_FINITE_REMEDY}"
            )
        logger.info("left out, number %d of the run: %s", self.progress.skipped, what)

    def _save(self, group: list[Batch], figures: dict[str, Any]) -> str:
        """Write the batches of all processes to one file; where it is, in words."""
        names = {"rows": "indices", "src": "src", "tgt_in": "tgt_in", "tgt_out": "tgt_out"}
        mine = [{key: getattr(batch, name) for key, name in names.items()} for batch in group]
        processes = idist.all_gather(mine)
        folder = self.run.bad_batches
        path = folder / f"update_{figures['step']}.pt"
        if idist.get_rank() == 0:
            try:
                if len(list(folder.glob("*.pt"))) >= MOST_FILES:
                    return f"{MOST_FILES} such batches are in {folder} already"
                write_checkpoint(path, {**figures, "processes": processes})
            except UserError as error:
                return str(error)
        return f"saved in {path}"


@contextlib.contextmanager
def remedies_named(config: Config) -> Iterator[None]:
    """Raises UserError with a remedy where memory or compiler do not suffice for `config`."""
    try:
        yield
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "the machine has no more")
        if is_out_of_memory(error):
            raise UserError(
                f"not enough memory to train ({reason[:160]}): {smaller_batches(config)}"
            ) from error
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise UserError(
                f"train.compile = True: {reason[:200]}; use --set train.compile=false"
            ) from error
        raise


def smaller_batches(config: Config) -> str:
    """The change of the config that takes less memory and learns the same."""
    data, accumulate = config.data, config.optim.accumulate
    least = data.max_len if data.batch_by == "tokens" else 1
    half = max(least, data.batch_size // 2)
    if half == data.batch_size:
        return (
            f"data.batch_size = {half} is the least for data.max_len = {data.max_len}; use a "
            "smaller data.max_len or a smaller model"
        )
    times = -(-data.batch_size // half)
    return (
        f"use --set data.batch_size={half} --set optim.accumulate={accumulate * times}, which "
        "makes updates of the same size, or a smaller model"
    )
