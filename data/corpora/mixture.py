"""Several corpora as one: training pairs mixed by weights, other splits side by side."""

import logging
from collections.abc import Sequence

import numpy as np

from configs.schema import Mixture
from data.corpora.base import CorpusReader, ParallelText
from utils.errors import UserError

logger = logging.getLogger(__name__)


class MixtureCorpus(CorpusReader):
    """The training split holds every part's pairs as often as the weights say, part after part."""

    train = "train"

    def __init__(self, config: Mixture, parts: Sequence[CorpusReader]) -> None:
        self.config = config
        self.parts = dict(zip(config.names, parts))
        main = self.parts[config.evaluated]
        self.validation = main.validation
        self.others = {name: part for name, part in self.parts.items() if part is not main}
        beside = (f"{name}.{split}" for name, part in self.others.items() for split in part.test)
        self.test = (*main.test, *beside)
        if self.train in (self.validation, *main.test):
            self.train = "the mixture"  # not the name of any file

    @property
    def splits(self) -> tuple[str, ...]:
        beside = (f"{name}.{part.validation}" for name, part in self.others.items())
        return (*super().splits, *beside)

    def load(self, split: str) -> ParallelText:
        """The mixture for `train`; else a split of the evaluated part, or NAME.SPLIT."""
        if split == self.train:
            return self._mixed()
        name, _, rest = split.partition(".")
        own = split in (self.validation, *self.parts[self.config.evaluated].test)
        if rest and name in self.parts and not own:
            return self._load(name, rest)
        return self._load(self.config.evaluated, split)

    def _load(self, name: str, split: str) -> ParallelText:
        """A part's split. Raises UserError with the part's name and with the keys of a part."""
        try:
            return self.parts[name].load(split)
        except UserError as error:
            place = f"data.corpus.parts.{self.config.names.index(name)}.corpus."
            told = str(error).replace("data.corpus.", place)
            raise UserError(f"part {name} of the mixture: {told}") from error

    def _mixed(self) -> ParallelText:
        texts = [self._load(name, part.train) for name, part in self.parts.items()]
        counts = epoch_counts(self.config, [len(text) for text in texts])
        mixed = [
            (text, _rows(len(text), count, seed=[self.config.seed, number]))
            for number, (text, count) in enumerate(zip(texts, counts))
        ]
        src = tuple(text.src[row] for text, rows in mixed for row in rows)
        tgt = tuple(text.tgt[row] for text, rows in mixed for row in rows)
        skipped = {
            f"{name}.{reason}": n
            for name, text in zip(self.parts, texts)
            for reason, n in text.skipped.items()
        }
        if not src:
            remedy = "raise them, or give larger files"
            raise UserError(f"data.corpus.parts: the weights leave no pair of any part; {remedy}")
        for name, text, count in zip(self.parts, texts, counts):
            if count:
                logger.info(f"part {name}: {count:,} pairs in the mixture, of {len(text):,}")
            else:
                logger.warning("part %s: its weight leaves none of its %d pairs", name, len(text))
        return ParallelText(src, tgt, skipped)


def epoch_counts(config: Mixture, sizes: Sequence[int]) -> list[int]:
    """The pairs of each part in an epoch: weight * size, or a share by weight * size^(1/T)."""
    weights = [part.weight for part in config.parts]
    if config.temperature is None:
        return [round(weight * size) for weight, size in zip(weights, sizes)]
    power = 1 / config.temperature
    shares = np.array([weight * size**power for weight, size in zip(weights, sizes)])
    return [round(share) for share in (sum(sizes) * shares / (shares.sum() or 1)).tolist()]


def _rows(size: int, count: int, *, seed: list[int]) -> list[int]:
    """`count` of `size` rows, in their order: all equally often, and the remainder drawn."""
    repeats, rest = divmod(count, size)
    times = np.full(size, repeats)
    times[np.random.default_rng(seed).permutation(size)[:rest]] += 1
    return np.repeat(np.arange(size), times).tolist()
