"""Running out of memory: how it shows, and what a user can do about it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from configs.errors import UserError
from configs.schema import Config

# Not every allocator has an exception class of its own; these are of torch's on CPUs (the third for a size that has no
# number), of cuBLAS and of CUDA.
_WORDS = (
    "you tried to allocate",
    "allocate memory",
    "calculation overflowed",
    "ALLOC_FAILED",
    "CUDA error: out of memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
    )


def release_memory(device: torch.device) -> None:
    """Give back what the allocator keeps, so that a smaller attempt does not meet the ruins of a larger one."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextlib.contextmanager
def training_memory(config: Config) -> Iterator[None]:
    """Raises UserError with the remedy where the memory does not suffice to train as `config` says."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else "the machine has no more"
        raise UserError(f"not enough memory to train ({reason}): {smaller_batches(config)}") from error


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
