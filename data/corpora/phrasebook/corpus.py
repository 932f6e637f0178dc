"""The phrasebook corpus: distinct sentence pairs from the grammar, cut into splits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from configs.schema import Phrasebook
from data.corpora.base import ParallelText
from data.corpora.phrasebook.grammar import Grammar, Pair
from utils.errors import UserError

# Where so many candidates in a row bring nothing new, the grammar is taken to be exhausted.
MAX_FRUITLESS = 20000


def distinct_pairs(seed: int) -> Iterator[Pair | None]:
    """Pairs that share neither their French nor their English with an earlier one; None for each
    candidate refused.
    """
    grammar = Grammar(seed)
    french: set[str] = set()
    english: set[str] = set()
    while True:
        pair = grammar.pair()
        src, tgt = pair.fr.casefold(), pair.en.casefold()
        if src in french or tgt in english:
            yield None
            continue
        french.add(src)
        english.add(tgt)
        yield pair


@lru_cache(maxsize=2)
def _splits(config: Phrasebook) -> dict[str, tuple[Pair, ...]]:
    """validation and test are filled before train, so that they do not change with its size."""
    wanted = {"validation": config.n_validation, "test": config.n_test, "train": config.n_train}
    splits: dict[str, list[Pair]] = {name: [] for name in wanted}
    limit = config.train_max_words
    fruitless = 0
    for pair in distinct_pairs(config.seed):
        fruitless += 1
        if pair is not None:
            if limit is None:
                order: tuple[str, ...] = ("validation", "test", "train")
            else:
                order = ("validation", "train") if len(pair.fr.split()) <= limit else ("test",)
            for name in order:
                if len(splits[name]) < wanted[name]:
                    splits[name].append(pair)
                    fruitless = 0
                    break
        short = [name for name in wanted if len(splits[name]) < wanted[name]]
        if not short:
            break
        if fruitless > MAX_FRUITLESS:
            name = short[0]
            bound = "" if limit is None else f" with data.corpus.train_max_words = {limit}"
            raise UserError(
                f"data.corpus.n_{name} = {wanted[name]}: the phrasebook grammar made only {len(splits[name])} "
                f"such sentences{bound}; ask for fewer"
            )
    return {name: tuple(pairs) for name, pairs in splits.items()}


class PhrasebookCorpus:
    """The embedded corpus as a reader. src_lang and tgt_lang are fr and en, in either order."""

    train = "train"
    validation = "validation"
    test = ("test",)

    def __init__(self, config: Phrasebook, *, src_lang: str = "fr", tgt_lang: str = "en") -> None:
        if {src_lang, tgt_lang} != {"fr", "en"}:
            raise UserError(
                f"the phrasebook corpus has French (fr) and English (en), not {src_lang}-{tgt_lang}"
            )
        self.config = config
        self.src_lang = src_lang

    def load(self, split: str) -> ParallelText:
        """One split; UserError for an unknown one, or where the grammar cannot make as many
        sentences as asked.
        """
        names = (self.train, self.validation, *self.test)
        if split not in names:
            raise UserError(
                f"the phrasebook corpus has no split {split!r}: choose one of {', '.join(names)}"
            )
        pairs = _splits(self.config)[split]
        french, english = tuple(pair.fr for pair in pairs), tuple(pair.en for pair in pairs)
        return (
            ParallelText(french, english)
            if self.src_lang == "fr"
            else ParallelText(english, french)
        )
