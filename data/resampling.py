"""Training pairs in a segmentation drawn anew in each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from data.cache import TokenizedSplit
from data.corpora.base import ParallelText
from tokenizer.sampling import SegmentationSampler

_STREAM = (
    1  # keeps these draws apart from the order of the batches, which is drawn from (seed, epoch)
)


class Resampler:
    """Random segmentations of the pairs of `ids`, the tokenised `text`.

    The draws of a pair depend on (seed, epoch, row) alone: not on the batch, the process or what
    was drawn before. A pair with a side of more than max_len tokens in its drawn form keeps the
    deterministic one.
    """

    def __init__(
        self,
        text: ParallelText,
        ids: TokenizedSplit,
        sampler: SegmentationSampler,
        *,
        seed: int,
        max_len: int,
    ) -> None:
        self.text = text
        self.ids = ids
        self.sampler = sampler
        self.seed = seed
        self.max_len = max_len

    def draw(self, rows: Sequence[int], epoch: int) -> TokenizedSplit:
        """The pairs of these rows, in their order."""
        pairs = [self._pair(row, epoch) for row in rows]
        src, tgt = (_joined([pair[side] for pair in pairs]) for side in (0, 1))
        return TokenizedSplit(*src, *tgt, kept=self.ids.kept[list(rows)], n_skipped={})

    def _pair(self, row: int, epoch: int) -> tuple[Sequence[int], Sequence[int]]:
        rng = np.random.default_rng([self.seed, epoch, row, _STREAM])
        line = int(self.ids.kept[row])
        src, tgt = (self.sampler.sample(side[line], rng) for side in (self.text.src, self.text.tgt))
        if max(len(src), len(tgt)) > self.max_len:
            return self.ids.src(row).tolist(), self.ids.tgt(row).tolist()
        return src, tgt


def _joined(sequences: list[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(ids, offsets) as a TokenizedSplit holds them."""
    ids = np.fromiter((i for sequence in sequences for i in sequence), np.int32)
    return ids, np.fromiter(accumulate(map(len, sequences), initial=0), np.int64)
