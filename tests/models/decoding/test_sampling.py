"""Sampling: what is drawn from, how often, and that only seed and number decide."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tiny_models import BOS, EOS, LIMITS, PAD, forced_log_prob, lively, sources
from torch import Tensor

from configs.schema import Sampling
from models.decoding.hypothesis import Hypothesis
from models.decoding.stepwise import draw, greedy_search, sample_search, truncated
from models.transformer import TranslationTransformer


def sample(
    model: TranslationTransformer, src: Tensor, numbers: list[int] | None = None, **how
) -> list[list[Hypothesis]]:
    sampling = Sampling(**{"seed": 3, **how})
    numbers = list(range(len(src))) if numbers is None else numbers
    return sample_search(model, src, LIMITS, sampling, n_samples=6, numbers=numbers)


def by_definition(log_probs: list[float], sampling: Sampling) -> list[float]:
    """The distribution that is drawn from, with lists and loops."""
    powers = [math.exp(value / sampling.temperature) for value in log_probs]
    probs = [power / sum(powers) for power in powers]
    kept = sorted(range(len(probs)), key=lambda i: (-probs[i], i))[: sampling.top_k or len(probs)]
    mass = sum(probs[i] for i in kept)
    if sampling.top_p is not None:
        nucleus: list[int] = []
        while sum(probs[i] for i in nucleus) / mass < sampling.top_p:
            nucleus.append(kept[len(nucleus)])
        kept, mass = nucleus, sum(probs[i] for i in nucleus)
    return [probs[i] / mass if i in kept else 0.0 for i in range(len(probs))]


CUTS = ({}, {"top_k": 3}, {"top_k": 1}, {"top_k": 40}, {"top_p": 0.6}, {"top_p": 1e-9})
CUTS += ({"top_k": 4, "top_p": 0.7}, {"top_k": 2, "top_p": 1.0})


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_what_is_drawn_from_is_the_definition(temperature: float, cut: dict) -> None:
    sampling = Sampling(temperature=temperature, **cut)
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randn(6, 12, dtype=torch.float64, generator=generator).log_softmax(-1)
    log_probs[:, 5] = -torch.inf  # a token that is never generated
    probs, ids = truncated(log_probs[None], sampling)
    [found] = torch.zeros_like(log_probs[None]).scatter_(-1, ids, probs)
    for row, of_row in zip(found, log_probs):
        assert row.tolist() == pytest.approx(by_definition(of_row.tolist(), sampling), abs=1e-12)


def test_a_draw_inverts_the_distribution_function_and_never_takes_the_impossible() -> None:
    probs = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0], dtype=torch.float64)
    uniform = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53], dtype=torch.float64)
    assert draw(probs.expand(6, 6), uniform).tolist() == [1, 1, 3, 3, 4, 4]


def test_the_first_tokens_come_as_often_as_they_are_probable() -> None:
    model, src, n = lively(), sources(4), 20_000
    with torch.no_grad():
        logits = model(src, torch.tensor([[BOS]]))[0, -1].index_fill(0, torch.tensor([PAD]), -1e9)
    limits, hot = replace(LIMITS, max_len=1), Sampling(temperature=1.3)
    [found] = sample_search(model, src, limits, hot, n_samples=n, numbers=[0])
    counts = Counter(h.ids[0] if h.ids else EOS for h in found)
    for token, probability in enumerate((logits / 1.3).softmax(-1).tolist()):
        deviation = math.sqrt(probability * (1 - probability) / n)
        assert abs(counts[token] / n - probability) <= 4.5 * deviation, token


@pytest.mark.parametrize("name", ["rope", "torch", "fox"])
def test_samples_depend_on_seed_and_number_alone(name: str) -> None:
    model, src = lively(name), sources(5, 3, 7, 4)
    together = sample(model, src)
    for number, sentence in enumerate(src):
        alone = sample(model, sentence[sentence != PAD][None], numbers=[number])[0]
        assert [h.ids for h in alone] == [h.ids for h in together[number]]
    own = replace(LIMITS, max_len=40)  # each sentence has a limit of its own
    short, beside_longer = (
        sample_search(model, of, own, Sampling(seed=3), n_samples=6, numbers=range(len(of)))[0]
        for of in (src[1:2, :3], src[1:])
    )
    assert [h.ids for h in short] == [h.ids for h in beside_longer]
    backwards = sample(model, src.flip(0), numbers=[3, 2, 1, 0])[::-1]
    assert [[h.ids for h in row] for row in backwards] == [[h.ids for h in row] for row in together]
    assert sample(model, src) == together
    assert sample(model, src, seed=4) != together
    same = sources(5).expand(2, -1)
    later, other = (sample(model, same[:1], numbers=[n], seed=5 - n) for n in (1, 0))
    assert later != other
    for numbers, alike in (([0, 1], False), ([1, 1], True)):
        one, other = ([h.ids for h in found] for found in sample(model, same, numbers=numbers))
        assert (one == other) == alike


def test_scores_are_the_models_own_and_sorted() -> None:
    model, src = lively(), sources(5, 7)
    for sentence, found in zip(src, sample(model, src, temperature=2.0, top_k=4)):
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
        assert len({h.ids for h in found}) > 1
        for h in found:
            forced, length = forced_log_prob(model, sentence, h), len(h.ids) + h.finished
            assert h.log_prob == pytest.approx(forced, abs=1e-10)
            assert h.score == pytest.approx(forced / ((5 + length) / 6) ** 0.6, abs=1e-10)


def test_one_token_to_choose_from_is_greedy_search() -> None:
    model, src = lively(), sources(5, 3, 7)
    greedy = greedy_search(model, src, LIMITS)
    for only in ({"top_k": 1}, {"top_p": 1e-9}):
        for [best], found in zip(greedy, sample(model, src, **only)):
            assert {h.ids for h in found} == {best.ids}
            assert found[0].log_prob == pytest.approx(best.log_prob, abs=1e-10)
