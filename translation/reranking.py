"""The n best translations of a line ranked anew by what a model of the other direction says.

Noisy-channel reranking (Yee et al. 2019, "Simple and effective noisy channel modeling for neural
machine translation"), without a language model: score(y|x) + weight * score(x|y). Both are
log-probabilities over the GNMT length penalty, which does for the length of y what theirs does.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from translation.answers import Candidate, Translated
from translation.metrics import compare_statistics, sentence_statistics
from translation.translator import Translator
from utils.errors import UserError
from utils.tables import markdown_table

CHUNK = 64  # lines whose candidates are scored together
SAMPLES = 1000  # of the paired bootstrap


@dataclass(frozen=True, slots=True)
class Scored:
    """A line's candidates, and for each the score of the source as a translation of it."""

    found: Translated
    reverse: list[float]

    def ranked(self, weight: float) -> Translated:
        """Best first; the sum becomes their score."""
        pairs = zip(self.found.beam, self.reverse)
        beam = [replace(each, score=each.score + weight * other) for each, other in pairs]
        return replace(self.found, beam=sorted(beam, key=lambda each: -each.score))


def read_nbest(lines: Iterable[str], name: str) -> Iterator[Translated]:
    """What `inference.py --json` writes. Raises UserError naming a line that is something else."""
    for number, line in enumerate(lines, start=1):
        try:
            yield _translated(json.loads(line))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            wanted = "not as inference.py --json --n_best N writes, by a beam or samples"
            raise UserError(f"{name}, line {number:,}: {wanted}") from None


def _translated(read: dict[str, Any]) -> Translated:
    """Raises what `read_nbest` catches for what is no line of translations."""
    beam = [Candidate(**each) for each in read["beam"]]
    texts = [read["src"], *(each.text for each in beam)]
    as_they_are = all(isinstance(text, str) for text in texts)
    if not (beam and as_they_are and all(math.isfinite(each.score) for each in beam)):
        raise ValueError
    return Translated(read["src"], None, beam)


def score_reverse(reverse: Translator, items: Iterable[Translated]) -> Iterator[list[Scored]]:
    """A list for each CHUNK lines. Raises UserError for what is too long for `reverse`."""
    rest = iter(items)
    while chunk := list(islice(rest, CHUNK)):
        pairs = [(each.text, item.src) for item in chunk for each in item.beam]
        [found] = reverse.score_stream(*zip(*pairs), chunk=len(pairs))
        scores = iter([each.best.score for each in found])
        yield [Scored(item, list(islice(scores, len(item.beam)))) for item in chunk]


def weights_table(
    scored: Sequence[Scored], references: Sequence[str], weights: Sequence[float]
) -> str:
    """sacreBLEU by weight, the best bold; each beside the first by paired bootstrap.

    Raises UserError where there are not as many references as lines.
    """
    if len(scored) != len(references) or not scored:
        raise UserError(f"{len(references):,} references for {len(scored):,} lines of translations")
    best = [[each.ranked(weight).best.text for each in scored] for weight in weights]
    first, *_ = statistics = [sentence_statistics(texts, references) for texts in best]
    compared = [compare_statistics(first, each, samples=SAMPLES, seed=0) for each in statistics]
    top = max(each.bleu_b for each in compared)
    rows: list[list[str]] = []
    for weight, paired in zip(weights, compared):
        bleu = f"{paired.bleu_b:.2f}"
        low, high = paired.interval
        beside = f"{paired.difference:+.2f} ({low:+.2f} to {high:+.2f})", f"{paired.p_value:.3f}"
        shown = beside if rows else ("", "")
        rows.append([f"{weight:g}", f"**{bleu}**" if paired.bleu_b == top else bleu, *shown])
    return markdown_table(["weight", "sacreBLEU", "beside the first", "p"], rows)
