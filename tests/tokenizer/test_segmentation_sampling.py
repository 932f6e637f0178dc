"""Random segmentation: the right distribution, the same text, drawn from (seed, epoch, row)."""

import dataclasses
import itertools
import math
from collections import ChainMap, Counter, defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import marian_files
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from configs.schema import DataConfig, Marian, Saved, Subword
from data.batching import Batch, make_train_loader
from data.cache import TokenizedSplit, tokenize_split
from data.corpora.base import ParallelText
from data.resampling import Resampler
from tokenizer.build import build_samplers, build_tokenizer
from tokenizer.sampling import REMEMBERED, BpeDropout, Ids, UnigramSampling
from tokenizer.subword import SubwordTokenizer
from utils.errors import ConfigError

FRENCH, ENGLISH = (texts[::40] for texts in (marian_files.FRENCH, marian_files.ENGLISH))
ODD = ["", " ", "Привет, l'homme", "a\u0000b 👩‍👩‍👧"]
ODD += ["жж жaж", "</s> <unk> ▁", "½ … «\u00a0x\u00a0»"]
UNK = 0


@cache
def trained(algorithm: Any = "bpe", vocab_size: int = 400) -> SubwordTokenizer:
    config = Subword(algorithm=algorithm, vocab_size=vocab_size)
    return SubwordTokenizer.train(FRENCH + ENGLISH, config)


@pytest.fixture(params=[("bpe", 400), ("unigram", 400), ("bpe", 700), ("unigram", 700)], ids=str)
def tokenizer(request: pytest.FixtureRequest) -> SubwordTokenizer:
    """Without and with byte pieces."""
    return trained(*request.param)


def rng_of(*key: int) -> np.random.Generator:
    return np.random.default_rng(key)


# ------------------------------------------------------------------------------------- text and ids


@pytest.mark.parametrize(("algorithm", "strength"), [("bpe", 1e-300), ("unigram", 1e4)])
def test_without_chance_the_ids_are_the_deterministic_ones(algorithm: str, strength: float) -> None:
    sampler = trained(algorithm).sampler(strength)
    drawn = [sampler(text, rng_of(0)) for text in FRENCH + ODD]
    assert drawn == trained(algorithm).encode_src_batch(FRENCH + ODD)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(text=st.sampled_from(FRENCH + ENGLISH + ODD) | st.text(max_size=30), seed=st.integers(0, 5))
def test_any_segmentation_decodes_to_the_same_text(
    tokenizer: SubwordTokenizer, text: str, seed: int
) -> None:
    drawn = tokenizer.sampler(0.4)(text, rng_of(seed))
    assert drawn[-1] == tokenizer.eos_id
    assert tokenizer.decode(drawn) == tokenizer.decode(tokenizer.encode_src(text))


def test_the_words_that_are_segmented_make_up_the_text(tokenizer: SubwordTokenizer) -> None:
    words = "▁L'|homme|▁|▁a|▁vu|▁1|0|▁€|."
    assert tokenizer.cut("L'homme  a vu 10 €.") == words.split("|")


def test_a_draw_repeats_with_its_numbers_whatever_is_remembered(
    tokenizer: SubwordTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = tokenizer.sampler(0.05)
    keys = [(text, seed) for text in FRENCH[:4] for seed in range(10)]
    drawn = [sampler(text, rng_of(seed)) for text, seed in keys]
    assert len(set(map(tuple, drawn[:10]))) > 4
    for remembered in (300_000, 3):
        for bound in ("REMEMBERED", "LATTICES"):
            monkeypatch.setattr(f"tokenizer.sampling.{bound}", remembered)
        again = tokenizer.sampler(0.05)  # with nothing remembered yet
        assert [again(text, rng_of(seed)) for text, seed in reversed(keys)] == drawn[::-1]


def test_no_room_is_taken_by_words_that_are_too_long_to_be_remembered() -> None:
    merges = {(1, 1): (0, 2), (2, 2): (1, 3)}
    dropout = BpeDropout(lambda char: (1,), merges, UNK, 0.2)
    for word, taken in (("a" * 60, False), ("a" * 40, True)):
        assert len(dropout.segment(word, iter(dropout.draws(60, rng_of(0))))) < 40
        assert (dropout._room < REMEMBERED) == taken


def test_no_more_is_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenizer.sampling.REMEMBERED", 3)
    dropout = BpeDropout(lambda char: (ord(char),), {(97, 97): (0, 98)}, UNK, 0.5)
    for n in range(1, 9):
        dropout.segment("a" * n, iter(dropout.draws(60, rng_of(n))))
    assert dropout._room == 0
    assert len(dropout._first) <= 3


def test_vocabulary_and_fingerprint_do_not_know_of_sampling() -> None:
    config = Subword(vocab_size=400, sampling=0.1)
    sampled = build_tokenizer(config, lambda: (FRENCH, ENGLISH), src_lang="fr", tgt_lang="en")
    assert sampled.fingerprint() == trained().fingerprint()
    assert sampled.encode_src_batch(FRENCH) == trained().encode_src_batch(FRENCH)
    assert build_samplers(config, sampled) is not None
    for without in (Subword(vocab_size=400), Marian()):
        assert build_samplers(without, sampled) is None


def test_a_probability_of_one_is_refused_for_bpe_alone() -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.sampling = 1\.0: a probability below 1"):
        Subword(sampling=1.0)
    assert Subword(algorithm="unigram", sampling=1.0).sampling == 1.0
    with pytest.raises(ConfigError, match=r"tokenizer\.sampling = -0\.1"):
        Subword(sampling=-0.1)


@pytest.mark.parametrize(("algorithm", "strength"), [("bpe", 0.3), ("unigram", 0.3)])
def test_a_saved_tokenizer_draws_as_it_would_where_it_was_trained(
    algorithm: str, strength: float, tmp_path: Path
) -> None:
    trained(algorithm).save(tmp_path)
    config = Saved(path=str(tmp_path), sampling=strength)
    saved = build_tokenizer(config, list, src_lang="fr", tgt_lang="en")
    assert saved.fingerprint() == trained(algorithm).fingerprint()
    samplers = build_samplers(config, saved)
    assert samplers is not None
    both = samplers[0], trained(algorithm).sampler(strength)
    drawn = [[sampler(text, rng_of(1)) for text in FRENCH] for sampler in both]
    assert drawn[0] == drawn[1] != trained(algorithm).encode_src_batch(FRENCH)


# ------------------------------------------------------------------------------------ distributions


def assert_frequencies(
    sampler: BpeDropout | UnigramSampling, word: str, expected: Mapping[Ids, float]
) -> None:
    rng, n = rng_of(7), 20_000
    draws = (iter(sampler.draws(len(word), rng)) for _ in range(n))
    counts = Counter(sampler.segment(word, drawn) for drawn in draws)
    assert set(counts) <= set(expected)
    assert math.isclose(sum(expected.values()), 1.0)
    for outcome, p in expected.items():
        assert abs(counts[outcome] / n - p) < 5 * math.sqrt(p * (1 - p) / n), outcome


@pytest.mark.parametrize("word", ["abab", "aab", "bcabc"])
def test_bpe_dropout_follows_algorithm_1(word: str) -> None:
    """Against all subsets of left-out merges at every step, with their probabilities."""
    ids = {"a": 1, "b": 2, "c": 3}
    merges = {(1, 2): (0, 4), (4, 4): (1, 5), (4, 3): (2, 6), (1, 1): (3, 7), (2, 6): (4, 8)}
    p = 0.35

    def outcomes(state: Ids) -> dict[Ids, float]:
        possible = [i for i in range(len(state) - 1) if state[i : i + 2] in merges]
        found: dict[Ids, float] = defaultdict(float)
        for kept in itertools.product((False, True), repeat=len(possible)):
            probability = math.prod(1 - p if keep else p for keep in kept)
            left = [(*merges[state[i], state[i + 1]], i) for i, keep in zip(possible, kept) if keep]
            if not left:
                found[state] += probability
                continue
            _, merged, i = min(left)
            for outcome, rest in outcomes((*state[:i], merged, *state[i + 2 :])).items():
                found[outcome] += probability * rest
        return found

    sampler = BpeDropout(lambda char: (ids[char],), merges, unk_id=UNK, probability=p)
    assert_frequencies(sampler, word, outcomes(tuple(ids[char] for char in word)))


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_unigram_sampling_has_the_posterior_to_the_power_of_alpha(alpha: float) -> None:
    """Against all segmentations of the word with their weights."""
    pieces = {"a": (1, -3.0), "b": (2, -2.5), "ab": (3, -3.5), "ba": (4, -4.0), "aba": (5, -6.0)}
    pieces["xa"] = 6, -6.0
    word = "aabaxxab"  # x alone is unknown, and unknown ones in a row are one
    scores: dict[Ids, float] = {}
    for cuts in itertools.product((False, True), repeat=len(word) - 1):
        ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [len(word)]
        parts = [word[start:end] for start, end in zip([0, *ends], ends)]
        if all(part in pieces or part == "x" for part in parts):
            found = [pieces.get(part, (UNK, -16.0))[0] for part in parts]
            ids = tuple(i for before, i in zip([-1, *found], found) if not before == i == UNK)
            scores[ids] = alpha * sum(pieces.get(part, (UNK, -16.0))[1] for part in parts)
    total = math.log(sum(map(math.exp, scores.values())))
    sampler = UnigramSampling(lambda char: (UNK,), pieces, unk_id=UNK, alpha=alpha)
    expected = {ids: math.exp(score - total) for ids, score in scores.items()}
    assert len(expected) == 12
    assert_frequencies(sampler, word, expected)


# ------------------------------------------------------------------------------- epochs and loaders


def training(folder: Path, *, max_len: int = 60) -> tuple[TokenizedSplit, Resampler]:
    text = ParallelText(FRENCH, ENGLISH)
    ids = tokenize_split(text, trained(), max_len=max_len, too_long="drop", cache_dir=folder)
    samplers = (trained().sampler(0.3),) * 2
    return ids, Resampler(text, ids, samplers, seed=3, max_len=max_len)


def epoch_of(
    folder: Path, epoch: int, *, start: int = 0, workers: int = 0, rank: int = 0, n: int = 1
) -> list[Batch]:
    ids, resampler = training(folder)
    config = DataConfig(batch_by="sentences", batch_size=4, num_workers=workers)
    run: dict[str, Any] = {"pad_id": 0, "bos_id": 1, "accumulate": 2, "seed": 3}
    loader = make_train_loader(ids, config, rank=rank, world_size=n, resampler=resampler, **run)
    loader.sampler.set_position(epoch, start)
    return [batch for group in loader for batch in group]


def rows_of(batches: list[Batch]) -> dict[int, tuple[list[int], list[int]]]:
    """Row -> its ids on both sides, without padding."""
    return {
        row: ([i for i in src if i], [i for i in tgt if i])
        for batch in batches
        for row, src, tgt in zip(*(x.tolist() for x in (batch.indices, batch.src, batch.tgt_out)))
        if row >= 0
    }


def test_an_epoch_draws_anew_and_all_ranks_draw_alike(tmp_path: Path) -> None:
    first, second = (rows_of(epoch_of(tmp_path, epoch)) for epoch in (0, 1))
    assert first.keys() == second.keys() == set(range(len(FRENCH)))
    for side in (0, 1):
        assert sum(first[row][side] != second[row][side] for row in first) > len(FRENCH) / 2
    # more of them than a batch has rows
    shards = [rows_of(epoch_of(tmp_path, 1, rank=rank, n=5)) for rank in range(5)]
    assert dict(ChainMap(*shards)) == second


def test_workers_and_the_place_where_an_epoch_is_taken_up_change_no_draw(tmp_path: Path) -> None:
    whole = epoch_of(tmp_path, 2)
    for start, workers in ((0, 2), (1, 0), (1, 2)):
        part = epoch_of(tmp_path, 2, start=start, workers=workers)
        for a, b in zip(part, whole[2 * start :], strict=True):
            torch.testing.assert_close(dataclasses.asdict(a), dataclasses.asdict(b), rtol=0, atol=0)
            assert a.n_tokens == int((a.tgt_out != 0).sum())


def test_draws_are_of_the_rows_that_are_asked_for(tmp_path: Path) -> None:
    encoded = (trained().encode_src_batch(text) for text in (FRENCH, ENGLISH))
    lengths = [max(map(len, pair)) for pair in zip(*encoded)]
    ids, resampler = training(tmp_path, max_len=max(lengths[:4]) - 1)  # an early pair is dropped
    resampler = dataclasses.replace(resampler, max_len=999)
    drawn = resampler.draw([4, 0], epoch=1)
    lines = ids.kept[[4, 0]].tolist()
    assert lines[0] > 4
    assert trained().decode_batch([drawn.src(0), drawn.src(1)]) == [FRENCH[i] for i in lines]
    assert trained().decode_batch([drawn.tgt(0), drawn.tgt(1)]) == [ENGLISH[i] for i in lines]
    assert drawn.kept.tolist() == lines
    other = dataclasses.replace(resampler, seed=4).draw([4, 0], epoch=1)
    assert other.src_ids.tolist() != drawn.src_ids.tolist()


def test_a_draw_that_is_too_long_gives_way_to_the_deterministic_form(tmp_path: Path) -> None:
    longest = max(map(len, trained().encode_src_batch(FRENCH + ENGLISH)))
    ids, resampler = training(tmp_path, max_len=longest)
    unbound = dataclasses.replace(resampler, max_len=999)
    replaced = 0
    for row, epoch in itertools.product(range(len(ids)), range(10)):
        free, drawn = (r.draw([row], epoch) for r in (unbound, resampler))
        fits = max(len(free.src(0)), len(free.tgt(0))) <= longest
        expected = (free.src(0), free.tgt(0)) if fits else (ids.src(row), ids.tgt(row))
        assert all(map(np.array_equal, (drawn.src(0), drawn.tgt(0)), expected))
        replaced += not fits
    assert replaced > 0
