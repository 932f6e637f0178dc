"""Minimum Bayes risk: of several candidates, the one that is most like the others."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from configs.schema import DecodeConfig, Sampling, Search
from models.decoding.hypothesis import Hypothesis

Metric = Literal["chrf", "bleu"]


def least_risk_first(
    hypotheses: Sequence[Hypothesis], texts: Sequence[str], decode: DecodeConfig
) -> list[Hypothesis]:
    """The candidates of one sentence by their expected utility, which becomes their score."""
    assert decode.mbr is not None
    weights = candidate_weights(hypotheses, decode.search)
    ranked = minimum_bayes_risk(texts, weights, decode.mbr)
    return [replace(hypotheses[index], score=utility) for index, utility in ranked]


def candidate_weights(hypotheses: Sequence[Hypothesis], search: Search) -> list[float]:
    """How probable each candidate of one sentence counts as being; the sum is 1.

    Samples come as often as they are probable, so each counts alike (Eikema and Aziz 2020). What a
    beam finds has the model's probabilities, normalised over the list (Kumar and Byrne 2004).
    """
    if isinstance(search, Sampling):
        return [1 / len(hypotheses)] * len(hypotheses)
    most = max(h.log_prob for h in hypotheses)
    raw = [math.exp(h.log_prob - most) for h in hypotheses]
    return [value / sum(raw) for value in raw]


def minimum_bayes_risk(
    texts: Sequence[str], weights: Sequence[float], metric: Metric
) -> list[tuple[int, float]]:
    """(index, expected utility) of the candidates, highest utility first, of equals the earlier.

    The utility of a candidate h is expected over all candidates r, itself among them, as
    references: sum_r weight(r) metric(h, r), with sacreBLEU's sentence score, 0..100: chrF2, or
    BLEU of effective order.
    """
    from sacrebleu.metrics import BLEU, CHRF

    score = (CHRF() if metric == "chrf" else BLEU(effective_order=True, force=True)).sentence_score
    mass: dict[str, float] = defaultdict(float)  # equal texts are compared once
    for text, weight in zip(texts, weights):
        mass[text] += weight
    utility = {
        text: math.fsum(
            weight * score(text, [reference]).score for reference, weight in mass.items()
        )
        for text in mass
    }
    ranked = [(i, utility[text]) for i, text in enumerate(texts)]
    return sorted(ranked, key=lambda candidate: -candidate[1])
