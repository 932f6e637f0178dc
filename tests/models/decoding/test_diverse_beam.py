"""Diverse beam search against beam search, and against the algorithm written out over whole
prefixes.
"""

from __future__ import annotations

import pytest
import torch
from tiny_models import BOS, EOS, PAD, model_with, sources
from torch import Tensor

from models.decoding.beam import beam_search
from models.decoding.diverse_beam import diverse_beam_search
from models.decoding.hypothesis import Hypothesis
from models.transformer import TranslationTransformer

LIMITS = {"bos_id": BOS, "eos_id": EOS, "max_len": 9, "max_len_ratio": 1.0}


def diverse(model: TranslationTransformer, src: Tensor, **changes) -> list[list[Hypothesis]]:
    settings = {"beam_size": 6, "n_best": 6, "groups": 3, "strength": 0.8, "alpha": 0.6}
    return diverse_beam_search(model, src, **LIMITS, **{**settings, **changes})


@torch.no_grad()
def naive(
    model: TranslationTransformer,
    sentence: Tensor,
    *,
    groups: int,
    size: int,
    strength: float,
    alpha: float,
) -> list[Hypothesis]:
    """Algorithm 1 of Vijayakumar et al. for one sentence, over whole prefixes: no cache, no batch,
    lists and tuples.

    A group ends when its pool is full and none of its live hypotheses can overtake the last one in
    it.
    """
    limit = min(9, len(sentence) + 10)
    live: list[list[tuple[float, tuple[int, ...]]]] = [[(0.0, ())] for _ in range(groups)]
    pools: list[list[Hypothesis]] = [[] for _ in range(groups)]

    def normalised(total: float, length: int) -> float:
        return total / ((5 + length) / 6) ** alpha

    for length in range(1, limit + 1):
        used = dict.fromkeys(range(PAD + 1), 0)
        for g in range(groups):
            candidates = []
            for total, ids in live[g]:
                log_probs = (
                    model(sentence[None], torch.tensor([[BOS, *ids]]))[0, -1]
                    .log_softmax(-1)
                    .tolist()
                )
                candidates += [
                    (
                        total + log_probs[token] - strength * used[token],
                        total + log_probs[token],
                        (*ids, token),
                    )
                    for token in range(PAD)
                ]
            candidates.sort(key=lambda candidate: -candidate[0])
            pools[g] += [
                Hypothesis(ids[:-1], total, normalised(total, length), True)
                for _, total, ids in candidates[:size]
                if ids[-1] == EOS
            ]
            pools[g] = sorted(pools[g], key=lambda h: -h.score)[:size]
            live[g] = [(total, ids) for _, total, ids in candidates[: 2 * size] if ids[-1] != EOS][
                :size
            ]
            if live[g] and len(pools[g]) == size:
                ahead = max(total for total, _ in live[g])
                if pools[g][-1].score >= normalised(ahead, limit):
                    live[g] = []
            for _, ids in live[g]:
                used[ids[-1]] += 1
    cut_off = [
        Hypothesis(ids, total, normalised(total, limit), False)
        for group in live
        for total, ids in group
    ]
    found = {(h.ids, h.finished): h for h in [*(h for pool in pools for h in pool), *cut_off]}
    return sorted(found.values(), key=lambda h: (not h.finished, -h.score))


@pytest.mark.parametrize("name", ["rope", "torch", "shaw"])
@pytest.mark.parametrize(("beam_size", "n_best"), [(4, 4), (4, 2), (1, 1)])
def test_one_group_without_strength_is_beam_search(name: str, beam_size: int, n_best: int) -> None:
    model, src = model_with(name, gain=1.2), sources(5, 3, 7)
    sizes = {"beam_size": beam_size, "n_best": n_best}
    assert diverse(model, src, groups=1, strength=0.0, **sizes) == beam_search(
        model, src, **LIMITS, **sizes, alpha=0.6
    )


def test_groups_without_strength_all_find_what_one_finds() -> None:
    model, src = model_with("rope", gain=1.2), sources(5, 3, 7)
    narrow = beam_search(model, src, **LIMITS, beam_size=2, n_best=2, alpha=0.6)
    wide = diverse(model, src, strength=0.0, n_best=2)
    assert [[h.ids for h in found] for found in wide] == [
        [h.ids for h in found] for found in narrow
    ]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("groups", "strength", "alpha"), [(2, 0.3, 0.0), (2, 1.5, 0.6), (3, 0.7, 1.0)]
)
def test_the_list_is_that_of_the_algorithm_written_out(
    seed: int, groups: int, strength: float, alpha: float
) -> None:
    model, src = model_with("rope", gain=1.2, seed=seed), sources(5, 3, 7, seed=seed)
    found = diverse(model, src, strength=strength, alpha=alpha, groups=groups, beam_size=6)
    for sentence, ours in zip(src, found):
        real = sentence[sentence != PAD]
        theirs = naive(model, real, groups=groups, size=6 // groups, strength=strength, alpha=alpha)
        assert [(h.ids, h.finished) for h in ours] == [(h.ids, h.finished) for h in theirs][:6]
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs][:6], abs=1e-10)


def test_strength_sets_the_groups_apart() -> None:
    model, src = model_with("rope", gain=1.2), sources(5, 3, 7, 6)

    def first_tokens(strength: float) -> int:
        found = diverse(model, src, groups=6, strength=strength)
        return sum(len({h.ids[:1] for h in hypotheses}) for hypotheses in found)

    assert first_tokens(0.0) == len(src)
    assert first_tokens(100.0) > first_tokens(0.0) + len(src)


def test_the_list_is_sorted_distinct_and_the_same_alone() -> None:
    model, src = model_with("rope", gain=1.2), sources(5, 3, 7, 6)
    for sentence, found in zip(src, diverse(model, src)):
        assert len({(h.ids, h.finished) for h in found}) == len(found)
        finished = [h for h in found if h.finished]
        assert found[: len(finished)] == sorted(finished, key=lambda h: -h.score)
        alone = diverse(model, sentence[sentence != PAD][None])[0]
        assert [(h.ids, h.finished) for h in alone] == [(h.ids, h.finished) for h in found]


def test_sizes_that_do_not_fit_are_refused() -> None:
    model, src = model_with("rope"), sources(3)
    with pytest.raises(ValueError, match="n_best = 7 is more than beam_size = 6"):
        diverse(model, src, n_best=7)
    with pytest.raises(ValueError, match="beam_size = 6 cannot be shared out to 4 groups"):
        diverse(model, src, groups=4)
