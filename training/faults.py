"""What ends or disturbs a training: a loss or gradient that is no number, and memory that does not
suffice.

The batch of a bad update is saved for study; the run stops or leaves the update out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine

from checkpoints.content import write_checkpoint
from checkpoints.run import Run
from configs.schema import BadNumbers, Config, SkipBadNumbers
from data.batching import Batch
from training.start import Progress
from utils.errors import UserError
from utils.machine import is_out_of_memory

NON_FINITE_REMEDY = "Try a lower learning rate, a longer warm-up or --set optim.grad_clip=1.0"
MOST_FILES = 100  # of saved batches in a run


class NonFiniteError(UserError):
    """The loss, the gradient or the weights are no longer numbers: training cannot go on."""


# Asked with the engine, the batches of the update, their loss and the norm of the gradient.
BadUpdate = Callable[[Engine, list[Batch], float, float], None]


def describe(engine: Engine, group: list[Batch], loss: float, grad_norm: float) -> str:
    """The update in words, with the first rows of its batches."""
    rows = [str(row) for batch in group for row in batch.indices.tolist() if row >= 0]
    state = engine.state
    return (
        f"update {state.iteration} (epoch {state.epoch}): loss {loss:.4g}, gradient norm {grad_norm:.4g}; "
        f"rows {', '.join(rows[:4])}{' ...' if len(rows) > 4 else ''} of the training split"
    )


def refuse(engine: Engine, group: list[Batch], loss: float, grad_norm: float) -> None:
    """Raises NonFiniteError."""
    raise NonFiniteError(f"{describe(engine, group, loss, grad_norm)}. {NON_FINITE_REMEDY}")


class BadUpdates:
    """What the training engine asks at such an update, before it touches the weights.

    All processes ask at the same updates, since loss and norm are those of all of them.
    """

    def __init__(
        self, config: BadNumbers, run: Run, progress: Progress, say: Callable[[str], None]
    ) -> None:
        self.config = config
        self.run = run
        self.progress = progress
        self.say = say

    def __call__(self, engine: Engine, group: list[Batch], loss: float, grad_norm: float) -> None:
        """Save the batch and return where the update is to be left out. Raises NonFiniteError where
        the run stops.
        """
        what = describe(engine, group, loss, grad_norm) + self._save(
            engine.state, group, loss, grad_norm
        )
        if not isinstance(self.config, SkipBadNumbers):
            raise NonFiniteError(
                f"{what}. {NON_FINITE_REMEDY}, or leave such updates out: --set optim.bad_numbers=skip"
            )
        self.progress.skipped += 1
        self.progress.skipped_in_a_row += 1
        if self.progress.skipped_in_a_row >= self.config.in_a_row:
            raise NonFiniteError(
                f"{what}. It is number {self.progress.skipped_in_a_row} in a row (optim.bad_numbers.in_a_row): the "
                f"weights have broken down. {NON_FINITE_REMEDY}"
            )
        if idist.get_rank() == 0:
            self.say(f"left out, number {self.progress.skipped} of the run: {what}")

    def went_well(self) -> None:
        """An update was made."""
        self.progress.skipped_in_a_row = 0

    def _save(self, state: Any, group: list[Batch], loss: float, grad_norm: float) -> str:
        """Write the batches of all processes to one file of tensors and plain values; where it is,
        in words.
        """
        mine = [
            {
                "rows": batch.indices,
                "src": batch.src,
                "tgt_in": batch.tgt_in,
                "tgt_out": batch.tgt_out,
            }
            for batch in group
        ]
        shares: list[Any] = [mine]
        if idist.get_world_size() > 1:
            shares = [None] * idist.get_world_size()
            torch.distributed.all_gather_object(shares, mine)
        folder = self.run.bad_batches
        path = folder / f"update_{state.iteration}.pt"
        if idist.get_rank() > 0:
            return f"; saved in {path}"
        about = {
            "step": state.iteration,
            "epoch": state.epoch,
            "loss": loss,
            "grad_norm": grad_norm,
        }
        try:
            if len(list(folder.glob("*.pt"))) >= MOST_FILES:
                return f"; {MOST_FILES} such batches are in {folder} already"
            write_checkpoint(path, {**about, "processes": shares})
        except UserError as error:
            return f"; {error}"
        return f"; saved in {path}"


@contextlib.contextmanager
def training_memory(config: Config) -> Iterator[None]:
    """Raises UserError with the remedy where the memory does not suffice to train as `config` says."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = (
            str(error).strip().splitlines()[0][:160]
            if str(error).strip()
            else "the machine has no more"
        )
        raise UserError(
            f"not enough memory to train ({reason}): {smaller_batches(config)}"
        ) from error


def smaller_batches(config: Config) -> str:
    """The change of the config that takes less memory and learns the same."""
    data, accumulate = config.data, config.optim.accumulate
    least = data.max_len if data.batch_by == "tokens" else 1
    half = max(least, data.batch_size // 2)
    if half == data.batch_size:
        return (
            f"data.batch_size = {half} is the least for data.max_len = {data.max_len}; use a smaller data.max_len "
            "or a smaller model"
        )
    times = -(-data.batch_size // half)
    return (
        f"use --set data.batch_size={half} --set optim.accumulate={accumulate * times}, which makes updates of the "
        "same size, or a smaller model"
    )
