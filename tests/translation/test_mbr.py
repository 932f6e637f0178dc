"""Minimum Bayes risk against brute force."""

from __future__ import annotations

import math

import pytest
from sacrebleu.metrics import BLEU, CHRF

from configs.schema import Beam, DecodeConfig, DiverseBeam, Sampling
from models.decoding.hypothesis import Hypothesis
from translation.mbr import Metric, candidate_weights, least_risk_first, minimum_bayes_risk

TEXTS = ["the cat sleeps", "a cat is sleeping", "the cat sleeps", "the dog sleeps", ""]
TEXTS += ["the cat sleeps here now"]


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
@pytest.mark.parametrize("weights", [[1 / 6] * 6, [0.05, 0.5, 0.05, 0.1, 0.1, 0.2]])
def test_the_order_is_that_of_the_expected_utility_by_brute_force(
    metric: Metric, weights: list[float]
) -> None:
    scorer = CHRF() if metric == "chrf" else BLEU(effective_order=True)
    expected = [
        sum(
            weight * scorer.sentence_score(text, [other]).score
            for weight, other in zip(weights, TEXTS)
        )
        for text in TEXTS
    ]
    ranked = minimum_bayes_risk(TEXTS, weights, metric)
    assert [index for index, _ in ranked] == sorted(range(6), key=lambda i: -round(expected[i], 9))
    assert [utility for _, utility in ranked] == pytest.approx(
        [expected[index] for index, _ in ranked], abs=1e-9
    )


def test_samples_count_alike_and_what_a_beam_finds_by_its_probability() -> None:
    found = [
        Hypothesis((i,), log_prob, log_prob, True)
        for i, log_prob in enumerate((-800.0, -801.0, -803.0))
    ]
    assert candidate_weights(found, Sampling()) == [1 / 3] * 3
    total = 1 + math.exp(-1) + math.exp(-3)
    for search in (Beam(), DiverseBeam()):
        expected = [1 / total, math.exp(-1) / total, math.exp(-3) / total]
        assert candidate_weights(found, search) == pytest.approx(expected, abs=1e-12)


def test_the_candidates_are_ranked_by_their_utility_which_becomes_their_score() -> None:
    found = [Hypothesis((i,), -1.0 - i, 0.0, True) for i in range(len(TEXTS))]
    ranked = minimum_bayes_risk(TEXTS, candidate_weights(found, Beam()), "chrf")
    expected = [((index,), utility) for index, utility in ranked]
    best = least_risk_first(found, TEXTS, DecodeConfig(mbr="chrf"))
    assert [(h.ids, h.score) for h in best] == expected
