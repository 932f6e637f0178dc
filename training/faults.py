"""What ends or disturbs a training: losses or gradients that are no numbers, too little memory.

The batch of a bad update is saved for study; the run stops or skips the update.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ignite.distributed as idist
from ignite.engine import Engine

from checkpoints.content import write_checkpoint
from checkpoints.run import Run
from configs.schema import BadNumbers, Config, SkipBadNumbers
from data.batching import Batch
from training.start import Progress
from utils.errors import UserError, one_line
from utils.machine import is_out_of_memory

logger = logging.getLogger(__name__)

MOST_FILES = 100  # of saved bad batches in a run

# Called with the engine, the batches of the update, their loss and the norm of the gradient.
BadUpdate = Callable[[Engine, list[Batch], float, float], None]


class NonFiniteError(UserError):
    """The loss, the gradient or the weights are no longer numbers: training cannot go on."""

    def __str__(self) -> str:  # not in __init__, which unpickling calls once more
        settings = "a lower learning rate, a longer warm-up or a smaller optim.grad_clip"
        return f"{super().__str__()}. Begin a new run with {settings}: a resumed run keeps its own"


def describe(engine: Engine, group: list[Batch], loss: float, grad_norm: float) -> str:
    """The update in words, with the first rows of its batches."""
    rows = [str(row) for batch in group for row in batch.indices.tolist() if row >= 0]
    return (
        f"update {engine.state.iteration} (epoch {engine.state.epoch}): loss {loss:.4g}, "
        f"gradient norm {grad_norm:.4g}; rows {', '.join(rows[:4])}"
        f"{' ...' if len(rows) > 4 else ''} of the pairs trained on"
    )


def refuse(engine: Engine, group: list[Batch], loss: float, grad_norm: float) -> None:
    """Raises NonFiniteError."""
    raise NonFiniteError(describe(engine, group, loss, grad_norm))


@dataclass(frozen=True, slots=True)
class BadUpdates:
    """What the training engine calls at a bad update, before it touches the weights.

    All processes call it at the same updates, since they share loss and norm.
    """

    config: BadNumbers
    run: Run
    progress: Progress

    def __call__(self, engine: Engine, group: list[Batch], loss: float, grad_norm: float) -> None:
        """Save the batch and return if the update is to be left out, or raise NonFiniteError."""
        saved = self._save(engine, group, loss, grad_norm)
        what = f"{describe(engine, group, loss, grad_norm)}; {saved}"
        if not isinstance(self.config, SkipBadNumbers):
            raise NonFiniteError(f"{what}; --set optim.bad_numbers=skip leaves such updates out")
        progress = self.progress
        progress.skipped += 1
        progress.skipped_in_a_row += 1
        if progress.skipped_in_a_row >= self.config.in_a_row:
            raise NonFiniteError(
                f"{what}. It is number {progress.skipped_in_a_row} in a row "
                "(optim.bad_numbers.in_a_row): the weights have broken down"
            )
        logger.info("left out, number %d in this run: %s", progress.skipped, what)

    def _save(self, engine: Engine, group: list[Batch], loss: float, grad_norm: float) -> str:
        """Write the batches of all processes to one file; returns its place in words."""
        names = {"rows": "indices", "src": "src", "tgt_in": "tgt_in", "tgt_out": "tgt_out"}
        mine = [{key: getattr(batch, name) for key, name in names.items()} for batch in group]
        content = {
            "step": engine.state.iteration,
            "epoch": engine.state.epoch,
            "loss": loss,
            "grad_norm": grad_norm,
            "processes": idist.all_gather(mine),
        }
        folder = self.run.bad_batches
        path = folder / f"update_{engine.state.iteration}.pt"
        if idist.get_rank() == 0:
            if len(list(folder.glob("*.pt"))) >= MOST_FILES:
                return f"not saved: {folder} already has {MOST_FILES} such batches"
            try:
                write_checkpoint(path, content)
            except UserError as error:
                return str(error)
        return f"saved in {path}"


@contextlib.contextmanager
def remedies_named(config: Config, resumed: Path | None = None) -> Iterator[None]:
    """Raises UserError with a remedy where memory or compiler are not enough for `config`.

    `resumed`: the run that is resumed, if any.
    """
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            remedy = smaller_batches(config)
            if resumed is not None:
                remedy = (
                    "a resumed run keeps its own batches: give it more memory, or more devices "
                    "(--nproc_per_node), or begin a new run with its weights (--init_from "
                    f"{resumed}); there {remedy}"
                )
            if config.train.cuda_graphs:
                remedy = f"use --set train.cuda_graphs=false, which needs less memory; or {remedy}"
            raise UserError(f"not enough memory to train ({one_line(error)}): {remedy}") from error
        if "does not have a deterministic implementation" in str(error):
            use = "use --set train.deterministic=false or another model.position"
            raise UserError(f"train.deterministic = True: {one_line(error)}; {use}") from error
        if "DataLoader worker (pid" in str(error):  # killed, not an error within it
            use = "memory or shared memory ran out, as a rule; use --set data.num_workers=0"
            raise UserError(f"{one_line(error)}: {use}") from error
        capturing = config.train.cuda_graphs and isinstance(error, RuntimeError)
        if capturing and "captur" in str(error):
            use = "use --set train.cuda_graphs=false"
            raise UserError(f"train.cuda_graphs = True: {one_line(error)}; {use}") from error
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise UserError(
                f"train.compile = True: {one_line(error)}; use --set train.compile=false"
            ) from error
        raise


@contextlib.contextmanager
def text_fits() -> Iterator[None]:
    """Raises UserError where the text, its tokenizer and its ids do not fit into memory."""
    try:
        yield
    except MemoryError as error:
        raise UserError(
            f"not enough memory for the text ({one_line(error)}): train on fewer pairs or, "
            "with tokenizer.sampling, in fewer processes: each then reads all pairs"
        ) from error


def smaller_batches(config: Config) -> str:
    """A change of the config that takes less memory and learns the same, or nearly the same."""
    data = config.data
    half = max(data.max_len if data.batch_by == "tokens" else 1, -(-data.batch_size // 2))
    if half == data.batch_size:
        return (
            f"data.batch_size = {half} is the smallest for data.max_len = {data.max_len}; use a "
            "smaller data.max_len or a smaller model"
        )
    parts = -(-data.batch_size // half)
    times = parts * half / data.batch_size
    size = "the same size" if times == 1 else f"{times:.2g} times the size"
    return (
        f"use --set data.batch_size={half} --set optim.accumulate={parts * config.optim.accumulate}"
        f", which makes updates of {size}, or a smaller model"
    )
