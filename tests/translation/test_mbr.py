"""Minimum Bayes risk against brute force."""

import math
from typing import Literal

import pytest
from sacrebleu.metrics import BLEU, CHRF

from configs.schema import Beam, DecodeConfig, DiverseBeam, Sampling, Search
from models.decoding.hypothesis import Hypothesis
from translation.mbr import least_risk_first

TEXTS = ["the cat sleeps", "a cat is sleeping", "the cat sleeps", "the dog sleeps", ""]
TEXTS += ["the cat sleeps here now"]
CHINESE = ["猫在睡觉。", "一只猫在睡觉。", "猫在睡觉。", "狗在睡觉。", "", "猫现在在这里睡觉。"]
LOG_PROBS = [-803.0, -800.0, -803.5, -801.0, -801.0, -800.5]


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
@pytest.mark.parametrize("search", [Beam(), DiverseBeam(), Sampling()])
@pytest.mark.parametrize(("language", "texts"), [("en", TEXTS), ("zh", CHINESE)])
def test_the_order_is_that_of_the_expected_utility_by_brute_force(
    metric: Literal["chrf", "bleu"], search: Search, language: str, texts: list[str]
) -> None:
    """Samples count alike, what a beam finds by its probability; what was cut off is last."""
    scorer = CHRF() if metric == "chrf" else BLEU(effective_order=True, trg_lang=language)
    weights = [1.0 if search == Sampling() else math.exp(value + 800) for value in LOG_PROBS]
    expected = [
        sum(w * scorer.sentence_score(text, [other]).score for w, other in zip(weights, texts))
        / sum(weights)
        for text in texts
    ]
    found = [Hypothesis((i,), value, -i, i != 1) for i, value in enumerate(LOG_PROBS)]
    decode = DecodeConfig(search=search, mbr=metric)
    ranked = least_risk_first(found, texts, decode, language)
    order = [h.ids[0] for h in ranked]
    assert order == sorted(
        range(6), key=lambda i: (i == 1 and search != Sampling(), -round(expected[i], 9))
    )
    assert [h.score for h in ranked] == pytest.approx([expected[i] for i in order], abs=1e-9)
    assert [h.log_prob for h in ranked] == [LOG_PROBS[i] for i in order]
