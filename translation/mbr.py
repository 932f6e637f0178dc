"""Minimum Bayes risk: the candidate that is most like the others."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from configs.schema import DecodeConfig, Sampling
from models.decoding.hypothesis import Hypothesis
from translation.metrics import bleu_tokenizer


def least_risk_first(
    hypotheses: Sequence[Hypothesis], texts: Sequence[str], decode: DecodeConfig, language: str = ""
) -> list[Hypothesis]:
    """The candidates of one sentence, ranked by expected utility, which becomes their score.

    The expected utility of a candidate h takes all candidates r, h included, as references:
    sum_r p(r) metric(h, r). The metric is sacreBLEU's sentence score, 0..100: chrF2, or BLEU of
    effective order. Samples occur as often as they are probable, so each counts alike (Eikema and
    Aziz 2020). A beam's candidates have the model's probabilities, normalised over the list (Kumar
    and Byrne 2004); those that were cut off come last, as in beam search.
    """
    drawn = isinstance(decode.search, Sampling)
    log_probs = [0.0 if drawn else h.log_prob for h in hypotheses]
    raw = [math.exp(log_prob - max(log_probs)) for log_prob in log_probs]
    mass: dict[str, float] = defaultdict(float)  # equal texts are compared once
    for text, value in zip(texts, raw):
        mass[text] += value / sum(raw)
    alike = _bleu(mass, language) if decode.mbr == "bleu" else _chrf(mass)
    utility = {
        text: math.fsum(p * alike(text, other) for other, p in mass.items()) for text in mass
    }
    scored = [replace(h, score=utility[text]) for h, text in zip(hypotheses, texts)]
    return sorted(scored, key=lambda h: (not (h.finished or drawn), -h.score))


def _bleu(texts: Iterable[str], language: str) -> Callable[[str, str], float]:
    """As BLEU().sentence_score, which would count the n-grams of a text once for each pair."""
    from sacrebleu.metrics import BLEU
    from sacrebleu.metrics.helpers import extract_all_word_ngrams

    metric: Any = BLEU(effective_order=True, force=True, tokenize=bleu_tokenizer(language))
    n_max = metric.max_ngram_order
    grams = {t: extract_all_word_ngrams(metric._preprocess_segment(t), 1, n_max) for t in texts}

    def score(text: str, other: str) -> float:
        (ours, n_ours), (theirs, n_theirs) = grams[text], grams[other]
        correct, total = [0] * n_max, [0] * n_max
        for gram, count in ours.items():
            total[len(gram) - 1] += count
            correct[len(gram) - 1] += min(count, theirs.get(gram, 0))
        return metric._compute_score_from_stats([n_ours, n_theirs, *correct, *total]).score

    return score


def _chrf(texts: Iterable[str]) -> Callable[[str, str], float]:
    """As CHRF().sentence_score; see `_bleu`."""
    from sacrebleu.metrics import CHRF
    from sacrebleu.metrics.helpers import extract_all_char_ngrams

    metric: Any = CHRF()
    grams = {text: extract_all_char_ngrams(text, metric.char_order, False) for text in texts}

    def score(text: str, other: str) -> float:
        orders = map(metric._get_match_statistics, grams[text], grams[other])
        return metric._compute_f_score([count for order in orders for count in order])

    return score
