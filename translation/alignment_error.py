"""Alignments against manual ones: precision, recall, and the alignment error rate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from translation.alignment import HeadChoice, Link, WordAttention
from utils.errors import UserError
from utils.lines import open_source, read_lines
from utils.tables import markdown_table

WHEN = ("produced", "read")  # the target word; see HeadChoice
LINK = re.compile(r"([1-9]\d{0,8})([-p])([1-9]\d{0,8})")


@dataclass(frozen=True, slots=True)
class Gold:
    """The links of a sentence pair, source and target word from 0; sure ones are possible too."""

    sure: frozenset[Link]
    possible: frozenset[Link]


@dataclass(frozen=True, slots=True)
class AlignmentScores:
    """For links A, sure links S and possible links P (Och and Ney 2003, section 5).

    precision |A and P| / |A|, recall |A and S| / |S|, AER 1 - (|A and S| + |A and P|) / (|A| +
    |S|), each from the counts over all pairs.
    """

    precision: float
    recall: float
    aer: float

    def __str__(self) -> str:
        told = zip(("precision", "recall", "AER"), (self.precision, self.recall, self.aer))
        return ", ".join(f"{name} {100 * value:.1f}" for name, value in told)


def alignment_scores(pairs: Iterable[tuple[Iterable[Link], Gold]]) -> AlignmentScores:
    """The scores of links found for sentence pairs, each with its gold links."""
    n_found = n_sure = found_sure = found_possible = 0
    for links, gold in pairs:
        found = set(links)
        n_found, n_sure = n_found + len(found), n_sure + len(gold.sure)
        found_sure += len(found & gold.sure)
        found_possible += len(found & gold.possible)
    return AlignmentScores(
        found_possible / max(n_found, 1),
        found_sure / max(n_sure, 1),
        1 - (found_sure + found_possible) / max(n_found + n_sure, 1),
    )


def read_gold(path: Path, src: Sequence[str], tgt: Sequence[str]) -> list[Gold]:
    """A line of links for each pair: `1-2` sure, `1p2` possible, words counted from 1.

    The sentences show which number is the source's: only in one order do all links lie inside them.
    Raises UserError if that holds for neither order or both, and for a line of another form.
    """
    lines = list(read_lines(*open_source(path)))
    if len(lines) != len(src):
        raise UserError(f"{path}: {len(lines):,} lines of links for {len(src):,} sentence pairs")
    rows: list[list[tuple[int, str, int]]] = []
    for number, line in enumerate(lines, start=1):
        links = []
        for part in line.split():
            if (link := LINK.fullmatch(part)) is None:
                raise UserError(f"{path}, line {number}: {part!r} is no link: 1-2 (sure) or 1p2")
            links.append((int(link[1]) - 1, link[2], int(link[3]) - 1))
        rows.append(links)

    def outside(first: Sequence[str], second: Sequence[str]) -> int | None:
        """The first line with a link beyond the words."""
        for number, (of_pair, a, b) in enumerate(zip(rows, first, second), start=1):
            n_a, n_b = len(a.split()), len(b.split())
            if any(i >= n_a or j >= n_b for i, _, j in of_pair):
                return number
        return None

    straight, turned = outside(src, tgt), outside(tgt, src)
    if straight and turned:
        worst = max(straight, turned)
        raise UserError(f"{path}, line {worst}: a link to a word that its sentence lacks")
    if not straight and not turned and any(i != j for of_pair in rows for i, _, j in of_pair):
        raise UserError(f"{path}: both orders of the numbers fit the words; give more pairs")
    if straight:
        rows = [[(j, kind, i) for i, kind, j in of_pair] for of_pair in rows]
    return [
        Gold(
            frozenset((i, j) for i, kind, j in of_pair if kind == "-"),
            frozenset((i, j) for i, _, j in of_pair),
        )
        for of_pair in rows
    ]


def read_gold_pairs(
    links: Path, text: Path, src_lang: str, tgt_lang: str
) -> tuple[list[str], list[str], list[Gold]]:
    """Sources, translations and gold links of a file and of TEXT.LANGUAGE. Raises UserError."""
    src, tgt = (
        list(read_lines(*open_source(Path(f"{text}.{language}"))))
        for language in (src_lang, tgt_lang)
    )
    if len(src) != len(tgt) or not src:
        raise UserError(f"{text}: {len(src):,} lines on one side and {len(tgt):,} on the other")
    return src, tgt, read_gold(links, src, tgt)


@dataclass(frozen=True, slots=True)
class GoldPairs:
    """Sentence pairs, the attention of a model between their words, and their gold links."""

    attention: Sequence[WordAttention]
    gold: Sequence[Gold]

    def __getitem__(self, part: slice) -> GoldPairs:
        return GoldPairs(self.attention[part], self.gold[part])

    def scores(self, choice: HeadChoice) -> AlignmentScores:
        pairs = zip(self.attention, self.gold, strict=True)
        return alignment_scores((each.aligned(choice).links, gold) for each, gold in pairs)

    def by_layer(self) -> str:
        """A table by layer, for the mean of all heads."""
        columns = ("precision", "recall", "AER")
        header = ["layer", *(f"{name} {when}" for when in WHEN for name in columns)]
        rows = []
        for layer in range(1, len(self.attention[0].produced) + 1):
            found = [self.scores(HeadChoice(layer, None, shift)) for shift in (False, True)]
            values = (v for each in found for v in (each.precision, each.recall, each.aer))
            rows.append([layer, *(f"{100 * value:.1f}" for value in values)])
        return markdown_table(header, rows)

    def best(self) -> HeadChoice:
        """The choice of the lowest AER among each layer's n best heads, with and without shift.

        Heads are ranked by their own AER; n runs from 1 to all.
        """

        def error(choice: HeadChoice) -> float:
            return self.scores(choice).aer

        n_layers, n_heads = self.attention[0].produced.shape[:2]
        candidates = []
        for shift in (False, True):
            for layer in range(1, n_layers + 1):
                alone = {head: HeadChoice(layer, (head,), shift) for head in range(1, n_heads + 1)}
                ranked = sorted(alone, key=lambda head: error(alone[head]))
                several = (tuple(sorted(ranked[:n])) for n in range(1, n_heads + 1))
                candidates += [HeadChoice(layer, heads, shift) for heads in several]
        return min(candidates, key=error)
