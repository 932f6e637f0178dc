"""Corpus scores against figures worked out by hand, nltk and sacreBLEU themselves."""

import math
import random
import re
import warnings

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings, strategies as st
from nltk.translate.bleu_score import corpus_bleu

from translation import metrics
from translation.metrics import (
    chrf_score,
    format_scores,
    human_agreement,
    paired_bootstrap,
    sacrebleu_score,
    score_corpus,
)
from utils.errors import UserError

TEXT = "the a dog cat man woman red blue house street runs sits sees on in with and two small , ."
WORDS = TEXT.split()


def make_corpus(n: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(4, 24))) for _ in range(n)]


def damage(lines: list[str], probability: float, seed: int) -> list[str]:
    """Replace or drop words at random: a system of known relative quality."""
    rng = random.Random(seed)

    def spoilt(word: str) -> str:
        return rng.choice([*WORDS, ""]) if rng.random() < probability else word

    return [" ".join(map(spoilt, line.split())) for line in lines]


def score(hypotheses, references, sources=None, **options):
    options = {"length_buckets": (), "bootstrap_samples": 50, **options}
    return score_corpus(hypotheses, references, sources or references, **options)


def test_the_scores_equal_the_figures_worked_out_by_hand():
    # 6 of 7 words; n-grams matched / offered: 5/6, 4/5, 3/4, 2/3 ("the" twice in both, "cat" once).
    hypothesis, reference = "the cat sat on the hat", "the cat sat on the mat today"
    result = score([hypothesis], [reference])
    expected = math.exp(1 - 7 / 6) * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25
    assert result.brevity_penalty == pytest.approx(math.exp(1 - 7 / 6), abs=1e-12)
    assert result.length_ratio == pytest.approx(6 / 7, abs=1e-12)
    assert result.bleu4 == pytest.approx(expected, abs=1e-12)
    assert result.sacrebleu == pytest.approx(100 * expected, abs=1e-9)
    # the: 2 of 4 count; bigrams 0 of 3, trigrams 0 of 2, 4-grams 0 of 1, smoothed to 1/2, 1/4 and
    # 1/8 of a match.
    repeated = score(["the the the the"], ["the dog sees the"])
    expected = 100 * (2 / 4 * (1 / 2) / 3 * (1 / 4) / 2 * (1 / 8) / 1) ** 0.25
    assert repeated.sacrebleu == pytest.approx(expected, abs=1e-9)
    # Tokens are sacreBLEU's: punctuation stands apart.
    apart = score(["the man, he runs home now."], ["the man , he runs home now ."])
    assert (apart.bleu4, apart.sacrebleu) == pytest.approx((1.0, 100.0))


def test_strings_handed_to_nltk_score_characters_and_only_char_bleu_says_so():
    references = make_corpus(20)
    hypotheses = damage(references, 0.3, seed=1)
    without, result = score(hypotheses, references), score(hypotheses, references, char_bleu=True)
    as_original = corpus_bleu([[reference] for reference in references], hypotheses)
    assert without.char_bleu is None
    assert result.char_bleu == pytest.approx(as_original, abs=1e-12)
    assert result.char_bleu > result.bleu4 + 0.1
    assert result.bleu4 == without.bleu4


def test_multi30ks_protocol_lowers_and_tokenises_as_moses():
    hypotheses = ["A dog isn't “here”, is it?", "Two Men walk down a street"]
    references = ['A DOG isn\'t "here," is it?', "two men walk down the street"]
    result = score(hypotheses, references, multi30k="en")
    # a dog isn &apos;t &quot; here , &quot; is it ? | two men walk down a street
    expected = (16 / 17 * 13 / 15 * 11 / 13 * 9 / 11) ** 0.25
    assert result.multi30k_bleu == pytest.approx(100 * expected, abs=1e-9)
    assert result.sacrebleu < result.multi30k_bleu < 100
    # In Czech commas stay where they are.
    assert score(hypotheses, references, multi30k="cs").multi30k_bleu < result.multi30k_bleu
    assert score(hypotheses, references).multi30k_bleu is None
    assert score(["a red dog ran"], ["a red cat ran"], multi30k="en").multi30k_bleu == 0


def test_people_agree_more_the_further_apart_systems_are():
    assert human_agreement(0.6) == human_agreement(-0.6) == pytest.approx(56.6, abs=0.1)
    assert human_agreement(0.0) == human_agreement(0.2) == 50
    assert human_agreement(0.1) < human_agreement(1.0) < human_agreement(4.0) < 89


def test_scores_and_signatures_are_sacrebleus_own():
    references = make_corpus(60)
    hypotheses = damage(references, 0.25, seed=2)
    result = score(hypotheses, references)
    assert result.sacrebleu == sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert result.sacrebleu == sacrebleu_score(hypotheses, references)
    assert result.chrf == chrf_score(hypotheses, references)
    assert result.bleu4 == pytest.approx(result.sacrebleu / 100, abs=1e-9)
    assert result.chrf == sacrebleu.corpus_chrf(hypotheses, [references]).score
    version = f"version:{sacrebleu.__version__}"
    assert result.signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{version}"
    assert result.chrf_signature == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|{version}"
    assert result.n == 60


def test_text_without_spaces_is_cut_as_sacrebleu_cuts_its_language(monkeypatch, caplog):
    hypotheses, references = ["猫在椅子上睡觉。"], ["猫在椅子上睡着了。"]
    result = score(hypotheses, references, language="zh_CN")
    theirs = sacrebleu.BLEU(trg_lang="zh")
    assert result.sacrebleu == theirs.corpus_score(hypotheses, [references]).score > 50
    assert "|tok:zh|" in result.signature
    assert result.bleu4 == pytest.approx(result.sacrebleu / 100, abs=1e-9)
    assert result.interval == pytest.approx((result.sacrebleu,) * 2)
    assert sacrebleu_score(hypotheses, references, "zho") == result.sacrebleu
    assert sacrebleu_score(hypotheses, references, "de") == 0
    paired = paired_bootstrap(hypotheses, references, references, samples=9, seed=0, language="cn")
    assert (paired.score_a, paired.score_b) == pytest.approx((result.sacrebleu, 100))
    assert metrics.bleu_tokenizer("jap") == metrics.bleu_tokenizer("ja")  # as opus-mt-en-jap says
    # Where MeCab is missing, characters are counted, and the signature says so.
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    assert metrics.bleu_tokenizer.__wrapped__("ja") == "char"
    assert "pip install 'sacrebleu[ja]'" in caplog.text


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(*[st.lists(st.sampled_from("abc"), max_size=7)] * 2), min_size=1, max_size=4)
)
def test_vectorised_scores_equal_sacrebleu_with_its_smoothing_on_any_corpus(pairs):
    hypotheses, references = ([" ".join(side) for side in sides] for sides in zip(*pairs))
    ours = float(metrics.summed_bleu(metrics.sentence_statistics(hypotheses, references).sum(0)))
    assert ours == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [references]).score, abs=1e-9)
    ours = float(metrics.summed_chrf(metrics.chrf_statistics(hypotheses, references).sum(0)))
    assert ours == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [references]).score, abs=1e-9)


def test_interval_is_close_to_sacrebleus_own_bootstrap_and_holds_the_score():
    references = make_corpus(300)
    hypotheses = damage(references, 0.2, seed=3)
    result = score(hypotheses, references, bootstrap_samples=2000)
    assert metrics.quantile_interval(np.arange(1001.0)) == (25, 975)
    assert score(hypotheses, references, bootstrap_samples=2000).interval == result.interval
    for metric, value, (low, high) in (
        (sacrebleu.BLEU(), result.sacrebleu, result.interval),
        (sacrebleu.CHRF(), result.chrf, result.chrf_interval),
    ):
        theirs = metric.corpus_score(hypotheses, [references], n_bootstrap=1000)
        assert low < value < high
        assert (low + high) / 2 == pytest.approx(theirs._mean, abs=0.25)
        assert (high - low) / 2 == pytest.approx(theirs._ci, rel=0.12)


def test_resampling_in_chunks_draws_whole_samples_and_the_same_for_every_system(monkeypatch):
    references = make_corpus(40)
    statistics = metrics.sentence_statistics(damage(references, 0.3, seed=4), references)
    # 7 samples at once: 50 is no multiple.
    monkeypatch.setattr(metrics, "_RESAMPLED_PER_CHUNK", 40 * 7)
    first, second = metrics.resampled_scores([statistics, statistics], 50, seed=0)
    whole = float(metrics.summed_bleu(statistics.sum(0)))
    assert np.array_equal(first, second)
    assert len(np.unique(first)) > 45
    assert abs(first.mean() - whole) < 3 * first.std()


def test_buckets_hold_every_sentence_once_with_the_sacrebleu_of_its_own():
    sources = [" ".join(["mot"] * n) for n in (1, 4, 5, 6, 9, 0, 5)]
    references = make_corpus(7)
    hypotheses = damage(references, 0.2, seed=5)
    buckets = score(hypotheses, references, sources, length_buckets=(5, 7, 8)).buckets
    spans = [(1, 5, 5), (6, 7, 1), (8, 8, 0), (9, None, 1)]
    assert [(b.low, b.high, b.n) for b in buckets] == spans
    short = [0, 1, 2, 5, 6]
    ours, theirs = ([lines[i] for i in short] for lines in (hypotheses, references))
    expected = sacrebleu.corpus_bleu(ours, [theirs]).score
    assert buckets[0].bleu == pytest.approx(expected, abs=1e-9)
    assert buckets[2].bleu is None
    # No ends given: one open bucket.
    assert score(hypotheses, references, sources).buckets[0].n == 7


def test_empty_and_short_hypotheses_score_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        empty = score(["", ""], ["a dog runs home", "a cat"], char_bleu=True)
        short = score(["dog", "a cat"], ["a dog runs home", "a cat"], char_bleu=True)
    assert (empty.bleu4, empty.sacrebleu, empty.chrf, empty.char_bleu) == (0, 0, 0, 0)
    assert empty.chrf_interval == (0, 0)
    assert (empty.brevity_penalty, empty.length_ratio, empty.interval) == (0, 0, (0, 0))
    assert 0 <= short.bleu4 < 1e-50  # nltk's value without smoothing: no 4-gram, no score
    assert short.chrf > 0
    with warnings.catch_warnings(record=True) as caught:  # others are left alone
        warnings.simplefilter("always")
        metrics._nltk_corpus_bleu([["dog"]], [["dog"]])
        warnings.warn("mine", stacklevel=1)
    assert [str(w.message) for w in caught] == ["mine"]


def test_a_pair_is_compared_by_the_formula_both_ways_and_identical_systems_are_equal():
    references = make_corpus(60)
    a, b = damage(references, 0.3, seed=11), damage(references, 0.25, seed=12)
    forth, back, same = (
        paired_bootstrap(*pair, references, samples=200, seed=3)
        for pair in ((a, b), (b, a), (a, a))
    )
    statistics = [metrics.sentence_statistics(lines, references) for lines in (a, b)]
    scores_a, scores_b = metrics.resampled_scores(statistics, 200, seed=3)
    against = min((scores_b <= scores_a).sum(), (scores_b >= scores_a).sum())
    assert 0 < against < 100
    assert forth.p_value == back.p_value == pytest.approx(2 * (against + 1) / 201)
    assert forth.interval == tuple(np.quantile(scores_b - scores_a, (0.025, 0.975)))
    assert (forth.score_a, forth.score_b) == pytest.approx(
        [sacrebleu_score(lines, references) for lines in (a, b)], abs=1e-9
    )
    assert forth.difference == forth.score_b - forth.score_a == -back.difference
    assert forth.n == 60
    assert (same.p_value, same.difference, same.interval) == (1.0, 0.0, (0.0, 0.0))


@pytest.mark.parametrize(
    ("scored", "words"),
    [
        (lambda: score(["a"], ["a", "b"], ["x", "y"]), "1 hypotheses, 2 references, 2 sources;"),
        (lambda: score(["a", "b"], ["a", "b"], ["x"]), "2 hypotheses, 2 references, 1 sources;"),
        (lambda: score([], []), "nothing to score: 0 hypotheses"),
        (lambda: sacrebleu_score(["a"], ["a", "b"]), "1 hypotheses, 2 references"),
        (
            lambda: paired_bootstrap(["a", "b"], ["a"], ["a"], samples=10, seed=0),
            "2 hypotheses_a, 1 hypotheses_b, 1 references",
        ),
    ],
)
def test_input_that_does_not_fit_is_named(scored, words):
    with pytest.raises(UserError, match=words):
        scored()


def test_scores_are_printed_as_aligned_rows():
    references = make_corpus(30)
    hypotheses = damage(references, 0.2, seed=14)
    result = score(hypotheses, references, length_buckets=(1, 9, 10), char_bleu=True)
    text = format_scores(result)
    assert f"{result.sacrebleu:.2f}  95% interval" in text
    assert f"{result.chrf:.2f}  95% interval {result.chrf_interval[0]:.2f} to" in text
    spans = re.findall(r"sacreBLEU, (.*? words?) ", text)
    assert spans == ["1 word", "2 to 9 words", "10 words", "11 or more words"]
    names = ("BLEU-4", "chrF", "length ratio", "character BLEU")
    rows = [line for line in text.splitlines() if line.startswith(names)]
    shown = [f"{result.bleu4:.4f}", f"{result.chrf:.2f}", f"{result.length_ratio:.4f}"]
    shown.append(f"{result.char_bleu:.4f}")
    ends = [row.index(figure) + len(figure) for row, figure in zip(rows, shown, strict=True)]
    assert len(set(ends)) == 1
