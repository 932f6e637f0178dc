"""Reranks the n best translations of a line with a model of the other direction.

Noisy-channel reranking (Yee et al. 2019, "Simple and effective noisy channel modeling for neural
machine translation"), without a language model: score(y|x) + weight * score(x|y). Both are
log-probabilities over the GNMT length penalty, which takes the place of theirs for the length of y.
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

CHUNK = 64  # lines whose candidates are scored together, in batches of 32
SAMPLES = 1000  # of the paired bootstrap


@dataclass(frozen=True)
class Reranked(Candidate):
    """A candidate with the score of the source as its translation; `score` is the sum."""

    reverse: float


@dataclass(frozen=True, slots=True)
class Scored:
    """A line's candidates, and for each the score of the source as a translation of it."""

    found: Translated
    reverse: list[float]

    def ranked(self, weight: float) -> Translated:
        """Best first, by the sums; cut-off ones come last: they have not paid for their end."""
        beam: list[Candidate] = []
        for each, other in zip(self.found.beam, self.reverse):
            fields = {**vars(each), "score": each.score + weight * other}
            beam.append(Reranked(**fields, reverse=other))
        return replace(
            self.found, beam=sorted(beam, key=lambda each: (not each.finished, -each.score))
        )


def read_nbest(lines: Iterable[str], name: str) -> Iterator[Translated]:
    """Read the output of `inference.py --json`. Raises UserError naming a line of another kind."""
    for number, line in enumerate(lines, start=1):
        try:
            found = _translated(json.loads(line))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            wanted = "not as inference.py --json --n_best N writes (beam or samples, not reranked)"
            raise UserError(f"{name}, line {number:,}: {wanted}") from None
        if any(each.score > 0 for each in found.beam):
            why = "a score above 0 is not a log-probability: search without --mbr"
            raise UserError(f"{name}, line {number:,}: {why}")
        yield found


def _translated(read: dict[str, Any]) -> Translated:
    """Raises, for anything but a line of translations, errors that `read_nbest` catches."""
    beam = [Candidate(**each) for each in read["beam"]]
    greedy = read.get("greedy") and Candidate(**read["greedy"])
    texts = [read["src"], *(each.text for each in beam)]
    numbers = [number for each in beam for number in (each.score, each.log_prob)]
    as_they_are = all(isinstance(text, str) for text in texts)
    if not (beam and as_they_are and all(map(math.isfinite, numbers))):
        raise ValueError
    return Translated(read["src"], greedy, beam)


def score_reverse(reverse: Translator, items: Iterable[Translated]) -> Iterator[list[Scored]]:
    """Yields a list for each CHUNK lines or more; equal candidates are scored once.

    Raises UserError naming the line of a candidate that is too long for `reverse`.
    """
    rest, done, most = iter(items), 0, reverse.most_tokens("source", "target")
    size = reverse.decode.chunk_on(reverse.searcher.device.type, CHUNK)
    while chunk := list(islice(rest, size)):
        lines = {
            (each.text, item.src): number
            for number, item in enumerate(chunk, start=done + 1)
            for each in item.beam
        }

        def watch(place: int, n_tokens: int, numbers: Sequence[int] = (*lines.values(),)) -> None:
            if n_tokens > most:
                line = f"line {numbers[place - 1]:,} of the translations: {n_tokens:,} tokens"
                raise UserError(f"{line}, and the model takes {most:,} at most; leave it out")

        [found] = reverse.score_stream(*zip(*lines), chunk=len(lines), watch=watch)
        scores = {pair: each.best.score for pair, each in zip(lines, found)}
        yield [Scored(item, [scores[each.text, item.src] for each in item.beam]) for item in chunk]
        done += len(chunk)


def weights_table(
    scored: Sequence[Scored],
    references: Sequence[str],
    weights: Sequence[float],
    language: str = "",
) -> str:
    """sacreBLEU by weight, the best bold; each compared with the first by paired bootstrap."""
    best = [[each.ranked(weight).best.text for each in scored] for weight in weights]
    first, *_ = statistics = [sentence_statistics(x, references, language) for x in best]
    compared = [compare_statistics(first, each, samples=SAMPLES, seed=0) for each in statistics]
    top = max(each.score_b for each in compared)
    rows: list[list[str]] = []
    for weight, paired in zip(weights, compared):
        bleu = f"{paired.score_b:.2f}"
        low, high = paired.interval
        beside = f"{paired.difference:+.2f} ({low:+.2f} to {high:+.2f})", f"{paired.p_value:.3f}"
        shown = beside if rows else ("", "")
        rows.append([f"{weight:g}", f"**{bleu}**" if paired.score_b == top else bleu, *shown])
    return markdown_table(["weight", "sacreBLEU", f"beside weight {weights[0]:g}", "p"], rows)
