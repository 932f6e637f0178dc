"""Training pairs in a segmentation drawn anew in each epoch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data.cache import Side, TokenizedSplit
from data.corpora.base import ParallelText
from tokenizer.sampling import Sampler

STREAM = 1  # keeps these draws apart from those of the batches' order, from (seed, epoch)


@dataclass(frozen=True, slots=True)
class Resampler:
    """Random segmentations of the pairs of `ids`, the tokenised `text`.

    The draws of a pair depend on (seed, epoch, row) alone. A pair whose draw has a side of more
    than max_len tokens keeps its deterministic form.
    """

    text: ParallelText
    ids: TokenizedSplit
    samplers: tuple[Sampler, Sampler]  # source and target
    seed: int
    max_len: int

    def draw(self, rows: Sequence[int], epoch: int) -> TokenizedSplit:
        """The pairs of these rows, in their order."""
        src, tgt = Side(), Side()
        for row in rows:
            rng = np.random.default_rng([self.seed, epoch, row, STREAM])
            line = self.ids.kept[row]
            sides = zip(self.samplers, (self.text.src, self.text.tgt))
            drawn = [sampler(text[line], rng) for sampler, text in sides]
            if max(map(len, drawn)) > self.max_len:
                drawn = [self.ids.src(row).tolist(), self.ids.tgt(row).tolist()]
            src.add(drawn[0])
            tgt.add(drawn[1])
        kept = self.ids.kept[list(rows)]
        return TokenizedSplit(*src.arrays(), *tgt.arrays(), kept=kept, n_skipped={})
