"""Length-bucketed batches, in an order that any run can resume at any step.

The batches of a run are formed once; an epoch shuffles their order. One optimizer update takes a
group of `accumulate` consecutive batches of that order. Batches are global: with several processes
each takes its rows of every batch, so that neither the number of steps nor the place in the epoch
depends on the number of processes.
"""

import copyreg
import gc
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from configs.schema import DataConfig
from data.cache import TokenizedSplit
from data.resampling import Resampler

TENSORS = ("src", "tgt_in", "tgt_out", "indices", "flat")  # of a batch
# Padded tokens allowed for each sentence of a batch in evaluation or search: a few very long lines
# then make smaller batches instead of filling the memory.
TOKENS_OF_A_SENTENCE = 256
BANDS = (2, 3, 4, 6, 8, 12, 16)  # widths, in batches, of the length bands that `form_batches` tries
MANY = 1_000_000  # rows, of which only the widest bands are tried: each order takes half a second


@dataclass(slots=True)
class Batch:
    """Right-padded ids, int64: tgt_out is the target, tgt_in is BOS and the target without its end.

    A process without a row of a batch holds one that counts for nothing: index -1, tgt_out all pad.
    """

    src: Tensor  # [B,S]
    tgt_in: Tensor  # [B,T]
    tgt_out: Tensor  # [B,T]
    indices: Tensor  # [B], rows of the split
    flat: Tensor  # [N], the places of target tokens without padding in the flattened tgt_out
    n_group: int | None = None  # such tokens in the whole group and all processes, if known

    @property
    def n_tokens(self) -> int:
        """Target tokens without padding."""
        return len(self.flat)

    @property
    def targets(self) -> Tensor:
        """The target tokens without padding, [N]."""
        return self.tgt_out.flatten().index_select(0, self.flat)

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on a device; the copy overlaps with computation only from pinned memory."""
        return self._map(lambda x: x.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """The batch in page-locked memory; the DataLoader calls this by its name."""
        return self._map(Tensor.pin_memory)

    def halves(self, pad_id: int) -> list["Batch"]:
        """Two batches with half of the rows each, and no more padding than they need."""
        middle = len(self.indices) // 2
        halves = []
        for rows in (slice(middle), slice(middle, None)):
            src, tgt_in, tgt_out = self.src[rows], self.tgt_in[rows], self.tgt_out[rows]
            s, t = (int((ids != pad_id).sum(dim=1).max()) for ids in (src, tgt_out))
            sides = src[:, :s], tgt_in[:, :t], tgt_out[:, :t]
            flat = (sides[2] != pad_id).flatten().nonzero()[:, 0]
            halves.append(Batch(*sides, self.indices[rows], flat))
        return halves

    def _map(self, move: Callable[[Tensor], Tensor]) -> "Batch":
        moved: dict[str, Any] = {name: move(getattr(self, name)) for name in TENSORS}
        return replace(self, **moved)


def _of_arrays(arrays: dict[str, np.ndarray], n_group: int | None) -> Batch:
    tensors: dict[str, Any] = {name: torch.from_numpy(each) for name, each in arrays.items()}
    return Batch(**tensors, n_group=n_group)


def _by_value(batch: Batch) -> tuple[Any, ...]:
    return _of_arrays, ({name: getattr(batch, name).numpy() for name in TENSORS}, batch.n_group)


# From a worker to its process: each tensor that is shared would take two open files until it is
# fetched, and updates of many batches would run out of them.
copyreg.pickle(Batch, _by_value)


# ---------------------------------------------------------------------------------- forming batches


def form_batches(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    *,
    batch_by: Literal["tokens", "sentences"],
    batch_size: int,
    seed: int,
) -> list[np.ndarray]:
    """All rows, each in one batch, rows of like length together; the same for the same arguments.

    batch_by="tokens": rows * (longest side of the batch) <= batch_size, except for a single row
    that is longer; "sentences": rows <= batch_size. Of several orders that with the least padding
    is taken: by the longer side, or in bands by one length, within them by the other (every second
    backwards: bands meet at like lengths). Rows of equal lengths come in an order drawn by seed.
    """
    tie = np.random.default_rng(seed).permutation(len(src_lengths))
    longest = np.maximum(src_lengths, tgt_lengths)
    costs = longest if batch_by == "tokens" else np.ones_like(longest)

    def banded(first: np.ndarray, second: np.ndarray, width: int) -> np.ndarray:
        order = np.lexsort((tie, second, first))
        band = (np.cumsum(costs[order]) - 1) // (batch_size * width)
        within = np.where(band % 2, -second[order], second[order])
        return order[np.lexsort((tie[order], within, band))]

    def orders() -> Iterator[np.ndarray]:
        yield np.lexsort((tie, np.minimum(src_lengths, tgt_lengths), longest))
        for width in BANDS if len(tie) < MANY else BANDS[-1:]:
            yield banded(src_lengths, tgt_lengths, width)
            yield banded(longest, src_lengths - tgt_lengths, width)

    candidates = (cut_batches(order, longest, batch_by, batch_size) for order in orders())
    return min(candidates, key=lambda batches: padded_tokens(batches, src_lengths, tgt_lengths))


def padded_tokens(
    batches: Sequence[np.ndarray], src_lengths: np.ndarray, tgt_lengths: np.ndarray
) -> int:
    """Positions of both sides of all batches, padding included."""
    return sum(
        len(rows) * int(src_lengths[rows].max() + tgt_lengths[rows].max()) for rows in batches
    )


def cut_batches(
    order: np.ndarray, longest: np.ndarray, batch_by: str, batch_size: int
) -> list[np.ndarray]:
    """Cut an order of the rows into the fewest runs that keep the budget."""
    if batch_by == "sentences":
        return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    cuts, start, width = [], 0, 0
    for stop, length in enumerate(longest[order].tolist()):
        width = max(width, length)
        if stop > start and (stop + 1 - start) * width > batch_size:
            cuts.append(stop)
            start, width = stop, length
    return np.split(order, cuts) if len(order) else []


# --------------------------------------------------------------------------------- order and shards


class Group(NamedTuple):
    """What an update takes: rows of the split, batch by batch, and their tokens in all processes.

    Each epoch may segment the same rows in another way.
    """

    epoch: int
    batches: list[list[int]]
    n_tokens: int | None


@dataclass(eq=False)
class GroupSampler(Sampler[Group]):
    """The groups of an epoch: of each batch the rows of this rank, or none.

    The order is drawn from (seed, epoch) alone. `set_position` sets the epoch of the next iteration
    and how many of its groups are done already; it holds until it is set anew. `row_tokens`: the
    target tokens of every row, if a group's are to be counted.
    """

    batches: Sequence[np.ndarray]
    accumulate: int
    seed: int
    row_tokens: np.ndarray | None = None
    rank: int = 0
    world_size: int = 1
    epoch: int = field(default=0, init=False)
    start: int = field(default=0, init=False)

    def __len__(self) -> int:
        """The groups in a whole epoch, wherever the next iteration starts."""
        return -(-len(self.batches) // self.accumulate)

    def set_position(self, epoch: int, start: int = 0) -> None:
        self.epoch, self.start = epoch, start

    def __iter__(self) -> Iterator[Group]:
        epoch = self.epoch
        order = np.arange(len(self.batches))
        np.random.default_rng([self.seed, epoch]).shuffle(order)
        for first in range(self.start * self.accumulate, len(order), self.accumulate):
            group = [self.batches[i] for i in order[first : first + self.accumulate]]
            count = self.row_tokens
            n_group = None if count is None else int(count[np.concatenate(group)].sum())
            shares = [rows[self.rank :: self.world_size].tolist() for rows in group]
            yield Group(epoch, shares, n_group)


# ------------------------------------------------------------------------------------------ loaders


def collate(split: TokenizedSplit, rows: Sequence[int], *, pad_id: int, bos_id: int) -> Batch:
    """The rows as one batch, padded on the right; no rows: one row that counts for nothing."""
    index = np.array(rows or [0], np.int64)
    src = _padded(split.src_ids, split.src_offsets, index, pad_id)
    tgt_out = _padded(split.tgt_ids, split.tgt_offsets, index, pad_id)
    tgt_in = np.full_like(tgt_out, bos_id)
    tgt_in[:, 1:] = np.where(tgt_out[:, 1:] == pad_id, pad_id, tgt_out[:, :-1])
    if not rows:
        tgt_out.fill(pad_id)
        index.fill(-1)
    return Batch(
        src=torch.from_numpy(src),
        tgt_in=torch.from_numpy(tgt_in),
        tgt_out=torch.from_numpy(tgt_out),
        indices=torch.from_numpy(index),
        # Made here: counting a mask on the device would make the program wait for it.
        flat=torch.from_numpy(np.flatnonzero(tgt_out != pad_id)),
    )


def _padded(ids: np.ndarray, offsets: np.ndarray, index: np.ndarray, pad_id: int) -> np.ndarray:
    """The sequences of `index` as int64 [B,L], padded on the right."""
    starts, lengths = offsets[index], offsets[index + 1] - offsets[index]
    columns = np.arange(lengths.max())
    flat = np.minimum(starts[:, None] + columns, len(ids) - 1)  # those beyond are not used below
    return np.where(columns < lengths[:, None], ids[flat], pad_id).astype(np.int64)


@dataclass(eq=False)
class _Groups(Dataset[list[Batch]]):
    """Turns a Group into a list of batches.

    With a resampler, ids are drawn for that epoch. Sequences are then longer, so the rows of the
    group are cut into batches anew: the budget holds, and the sum over the rows is the same.
    """

    split: TokenizedSplit
    collate: Callable[[TokenizedSplit, Sequence[int]], Batch]
    resampler: Resampler | None
    budget: dict[str, Any]

    def __getitem__(self, group: Group) -> list[Batch]:
        if self.resampler is None:
            batches = [self.collate(self.split, rows) for rows in group.batches]
            return [replace(batch, n_group=group.n_tokens) for batch in batches]
        rows = [row for batch in group.batches for row in batch]
        if not rows:
            return [self.collate(self.split, rows)]
        drawn = self.resampler.draw(rows, group.epoch)
        parts = form_batches(drawn.src_lengths, drawn.tgt_lengths, **self.budget, seed=0)
        batches = [self.collate(drawn, part.tolist()) for part in parts]
        for batch in batches:
            batch.indices = torch.tensor(rows)[batch.indices]
        return batches


def make_train_loader(
    split: TokenizedSplit,
    config: DataConfig,
    *,
    pad_id: int,
    bos_id: int,
    accumulate: int,
    seed: int,
    rank: int = 0,
    world_size: int = 1,
    device: str = "cpu",
    resampler: Resampler | None = None,
) -> DataLoader[list[Batch]]:
    """A loader of groups of batches, alike for any num_workers; `loader.sampler` is a GroupSampler.

    With a resampler a group has the same rows, perhaps in more batches, each within the budget.
    Batches for the device "cuda" come in pinned memory.
    """
    workers = config.workers_on(device)
    by, size = config.batch_by, config.batch_size
    lengths = split.src_lengths, split.tgt_lengths
    batches = form_batches(*lengths, batch_by=by, batch_size=size, seed=seed)
    share = {"batch_by": by, "batch_size": -(-size // world_size)}  # of this process
    return DataLoader(
        _Groups(split, partial(collate, pad_id=pad_id, bos_id=bos_id), resampler, share),
        sampler=GroupSampler(
            batches,
            accumulate=accumulate,
            seed=seed,
            row_tokens=split.tgt_lengths if resampler is None else None,  # as drawn by each process
            rank=rank,
            world_size=world_size,
        ),
        batch_size=None,  # the sampler yields whole groups
        num_workers=workers,
        # Python 3.14's default would send them the whole corpus.
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        persistent_workers=workers > 0,
        pin_memory=device == "cuda",
        worker_init_fn=_begin_worker,
    )


def largest_batches(loader: DataLoader[list[Batch]]) -> list[Batch]:
    """This process's rows of the batches of `make_train_loader` that take the most memory.

    They are the batches with the most padded tokens of both sides, the most target tokens (which
    have logits), and the most pairs of tokens (which have attention). With a resampler they are as
    in one draw; others may be longer.
    """
    sampler: Any = loader.sampler
    split: TokenizedSplit = loader.dataset.split  # type: ignore[attr-defined]
    src_lengths, tgt_lengths = split.src_lengths, split.tgt_lengths  # each access computes all rows
    sizes = [
        (len(rows), int(src_lengths[rows].max()), int(tgt_lengths[rows].max()))
        for rows in sampler.batches
    ]
    costs = [
        [n * (src + tgt) for n, src, tgt in sizes],
        [n * tgt for n, _, tgt in sizes],
        [n * (src * src + src * tgt + tgt * tgt) for n, src, tgt in sizes],
    ]
    largest = sorted({cost.index(max(cost)) for cost in costs})
    shards = [sampler.batches[i][sampler.rank :: sampler.world_size] for i in largest]
    return [batch for rows in shards for batch in loader.dataset[Group(0, [rows.tolist()], None)]]


def next_batch(lengths: Sequence[int], order: Sequence[int], most: int) -> Sequence[int]:
    """The first rows of `order` to compute together: `most`, or fewer if they are very long."""
    longest = max((lengths[row] for row in order[:most]), default=1)
    return order[: max(1, min(TOKENS_OF_A_SENTENCE * most // longest, most))]


def make_eval_loader(
    split: TokenizedSplit,
    *,
    batch_size: int,
    pad_id: int,
    bos_id: int,
    rank: int = 0,
    world_size: int = 1,
) -> DataLoader[Batch]:
    """A loader of batches of `batch_size` sentences, fewer of very long ones, longest source first.

    Ranks take whole batches in turn: each row comes once, and a rank may have a batch less.
    """
    rows = np.lexsort((split.tgt_lengths, split.src_lengths))[::-1].tolist()
    lengths = np.maximum(split.src_lengths, split.tgt_lengths).tolist()
    batches: Any = []
    start = 0
    while batch := next_batch(lengths, rows[start : start + batch_size], batch_size):
        batches.append(batch)
        start += len(batch)
    collated = partial(collate, split, pad_id=pad_id, bos_id=bos_id)
    return DataLoader(batches[rank::world_size], batch_size=None, collate_fn=collated)


def _begin_worker(worker_id: int) -> None:
    """Leave signals and inherited objects to the parent.

    Ctrl-C and a batch system's signals reach all processes; the training process saves first. A
    worker that died meanwhile would be an error there. At exit the worker's own SIGTERM comes twice
    (from torch, then from multiprocessing): the second one always ends it.
    """
    gc.freeze()  # a forked worker that collected the parent's GPU tensors would abort
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))
