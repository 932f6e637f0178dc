"""The embedded corpus: French-English sentence pairs of the project's own making.

`data/phrasebook.tsv.gz` holds the first 30,000 distinct pairs that its grammar made from seed 0, in
their order. Commit 60e90db wrote them, and is the last to hold the grammar.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from configs.schema import Phrasebook
from data.corpora.base import ParallelText
from data.corpora.text import read_packed
from utils.errors import UserError

FILE = Path(__file__).parents[1] / "phrasebook.tsv.gz"


class PhrasebookCorpus:
    """The embedded corpus as a reader: src_lang and tgt_lang are fr and en, in either order."""

    train = "train"
    validation = "validation"
    test = ("test",)

    def __init__(self, config: Phrasebook, src_lang: str = "fr", tgt_lang: str = "en") -> None:
        if {src_lang, tgt_lang} != {"fr", "en"}:
            raise UserError(
                f"the phrasebook corpus has French (fr) and English (en), not {src_lang}-{tgt_lang}"
            )
        self.config = config
        self.src_lang = src_lang

    def load(self, split: str) -> ParallelText:
        """One split; UserError for an unknown one, or where it has fewer sentences than asked."""
        splits = _splits(self.config)
        if split not in splits:
            raise UserError(f"the phrasebook has no split {split!r}: train, validation or test")
        fr, en = zip(*splits[split])
        return ParallelText(fr, en) if self.src_lang == "fr" else ParallelText(en, fr)


@cache
def read_pairs() -> list[list[str]]:
    """All pairs of the file, [French, English]."""
    return [line.split("\t") for line in read_packed(FILE).decode().splitlines()]


def _splits(config: Phrasebook) -> dict[str, list[list[str]]]:
    """Validation and test are cut off before train, so that they do not change with its size."""
    pairs, limit = read_pairs(), config.train_max_words
    n = {"validation": config.n_validation, "test": config.n_test, "train": config.n_train}
    if limit is None:
        pools = {"validation": pairs, "test": pairs[n["validation"] :]}
        pools["train"] = pools["test"][n["test"] :]
    else:
        short = [pair for pair in pairs if len(pair[0].split()) <= limit]
        long = [pair for pair in pairs if len(pair[0].split()) > limit]
        pools = {"validation": short, "test": long, "train": short[n["validation"] :]}
    for name, pool in pools.items():
        if len(pool) < n[name]:
            bound = "" if limit is None else f" with data.corpus.train_max_words = {limit}"
            raise UserError(
                f"data.corpus.n_{name} = {n[name]}: the phrasebook has {len(pool):,} sentences "
                f"for it{bound}; ask for fewer"
            )
    return {name: pool[: n[name]] for name, pool in pools.items()}
