"""The embedded corpus: French-English sentence pairs made by a grammar of this project.

`data/phrasebook.tsv.gz` has the first 30,000 distinct pairs that the grammar made from seed 0, in
their order. Commit 60e90db wrote them, and is the last that has the grammar.
"""

import math
from functools import cache
from pathlib import Path

from configs.schema import Phrasebook
from data.corpora.base import CorpusReader, ParallelText
from data.corpora.text import read_packed
from utils.errors import UserError

FILE = Path(__file__).parents[1] / "phrasebook.tsv.gz"


class PhrasebookCorpus(CorpusReader):
    """The embedded corpus as a reader: src_lang and tgt_lang are fr and en, in either order."""

    train, validation, test = "train", "validation", ("test",)

    def __init__(self, config: Phrasebook, src_lang: str = "fr", tgt_lang: str = "en") -> None:
        self.config = config
        self.src_lang = src_lang

    def load(self, split: str) -> ParallelText:
        """One split. UserError for an unknown one, or where it has fewer sentences than asked."""
        splits = _splits(self.config)
        if split not in splits:
            raise UserError(f"the phrasebook has no split {split!r}: train, validation or test")
        fr, en = zip(*splits[split])
        return ParallelText(fr, en) if self.src_lang == "fr" else ParallelText(en, fr)


@cache
def _pairs() -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(line.split("\t")) for line in read_packed(FILE).decode().splitlines())


@cache
def _splits(config: Phrasebook) -> dict[str, list[tuple[str, ...]]]:
    """Validation and test are cut off before train, so that they do not change with its size."""
    limit = config.train_max_words or math.inf
    rest = [pair for pair in _pairs() if len(pair[0].split()) <= limit]
    longer = [pair for pair in _pairs() if len(pair[0].split()) > limit]
    splits = {}
    for name in ("validation", "test", "train"):
        n = getattr(config, f"n_{name}")
        pool = longer if name == "test" and config.train_max_words else rest
        if len(pool) < n:
            bound = f" with data.corpus.train_max_words = {limit}" if limit < math.inf else ""
            raise UserError(
                f"data.corpus.n_{name} = {n}: the phrasebook has {len(pool):,} sentences for it"
                f"{bound}; ask for fewer"
            )
        splits[name] = pool[:n]
        if pool is rest:
            rest = rest[n:]
    return splits
