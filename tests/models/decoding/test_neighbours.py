"""Nearest neighbours against the formula, written out, and a text learned by heart."""

import math
from functools import partial
from unittest import mock

import pytest
import torch
from test_decoding import assert_alike, naive_search
from tiny_models import LIMITS, lively, sources, targets
from torch import Tensor

from models.decoding import neighbours
from models.decoding.neighbours import Datastore, NearestNeighbours
from models.decoding.stepwise import greedy_search
from models.transformer import TranslationTransformer

HOW = {"k": 3, "temperature": 2.0, "weight": 0.3}


def store_of(model: TranslationTransformer, n: int, seed: int = 0) -> Datastore:
    """States of a random text, most of them near those that a search meets."""
    src, tgt_in = sources(5, 3, 7, 6, seed=seed), targets(4, 9, seed=seed)
    hidden = model(src, tgt_in, project=False).detach().flatten(0, 1)[:n]
    values = torch.randint(4, 9, (len(hidden),), generator=torch.Generator().manual_seed(seed))
    return Datastore(hidden[:, : model.output.in_features], values)


def mixed(models: list[TranslationTransformer], stores: list[Datastore]) -> partial[Tensor]:
    """The paper's equations, token by token."""

    def log_probs(src: Tensor, tgt_in: Tensor) -> Tensor:
        logits = torch.stack([model(src, tgt_in) for model in models]).mean(dim=0)
        total = 0.7 * logits.softmax(dim=-1)
        for model, store in zip(models, stores):
            hidden = model(src, tgt_in, project=False)[..., : store.keys.shape[1]]
            for place in torch.cartesian_prod(*map(torch.arange, hidden.shape[:2])).tolist():
                squares = (store.keys - hidden[*place]).square().sum(dim=-1)
                near = squares.argsort()[:3].tolist()
                scale = sum(math.exp(-squares[i] / 2) for i in near)
                for i in near:
                    share = math.exp(-squares[i] / 2) / scale
                    total[*place, store.values[i]] += 0.3 * share / len(models)
        return total.log()

    return partial(log_probs)


@pytest.mark.parametrize("names", [["rope"], ["torch"], ["shaw", "t5"]])
def test_the_search_sees_the_mixture(names: list[str]) -> None:
    models = [lively(name, seed=i, output_bias=i == 1) for i, name in enumerate(names)]
    stores = [store_of(model, 30, seed=i) for i, model in enumerate(models)]
    src, model = sources(5, 3, 7), NearestNeighbours(models, stores, **HOW)
    found = greedy_search(model, src, LIMITS)
    assert found != greedy_search(models[0], src, LIMITS)
    for sentence, hypotheses in zip(src, found):
        expected = naive_search(mixed(models, stores), sentence, size=1, limit=9)
        assert_alike(hypotheses, expected)
    with mock.patch.multiple(neighbours, FEWEST=4, AT_ONCE=1):  # a few keys at a time
        for hypotheses, again in zip(found, greedy_search(model, src, LIMITS)):
            assert_alike(again, hypotheses)


def test_the_nearest_of_a_large_datastore_are_found_in_parts() -> None:
    keys = torch.randn(40_000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    store = Datastore(keys, torch.arange(len(keys)))
    rows = keys[[5, 39_999, 777]] + 1e-3
    tokens, shares = store.nearest(rows, k=4, temperature=0.01)
    squares = (rows[:, None] - keys).square().sum(dim=-1)
    nearest = squares.topk(4, largest=False)
    assert torch.equal(tokens, nearest.indices)
    expected = (-nearest.values / 0.01).softmax(dim=-1)
    torch.testing.assert_close(shares, expected, atol=1e-9, rtol=0)
    few = Datastore(keys[:2], torch.tensor([7, 8]))
    assert torch.equal(few.nearest(rows, k=4, temperature=1.0)[0], 7 + squares[:, :2].argsort())
