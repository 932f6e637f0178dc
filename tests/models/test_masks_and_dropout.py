"""Mask polarity, and dropout that draws four decisions from one number."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from models.dropout import Dropout, JointDropout
from models.masks import as_bias, causal_attn_mask, key_padding_mask, padding_attn_mask


def test_masks_have_the_polarity_that_their_names_say() -> None:
    padding = key_padding_mask(torch.tensor([[5, 0, 9], [0, 9, 9]]), 9)
    assert padding.tolist() == [[False, False, True], [False, True, True]]
    mask = padding_attn_mask(padding)
    assert mask.shape == (2, 1, 1, 3)
    assert mask[:, 0, 0].tolist() == [[True, True, False], [True, False, False]]
    causal = causal_attn_mask(torch.tensor([2, 3]), torch.arange(5))  # its own and earlier ones
    assert causal.tolist() == [[True, True, True, False, False], [True, True, True, True, False]]
    bias = as_bias(torch.tensor([[True, False]]), torch.float64)
    assert bias.dtype == torch.float64
    assert bias.tolist() == [[0.0, -math.inf]]


def drop(p: float, n: int, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return Dropout(p).train()(torch.ones(n, dtype=torch.float64))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_drops_at_its_rate_and_keeps_the_mean(p: float) -> None:
    n = 400_000
    out = drop(p, n)
    sigma = math.sqrt(p * (1 - p) / n)
    assert abs((out == 0).double().mean().item() - p) < 4 * sigma + 1 / 65536
    assert abs(out.mean().item() - 1) < 4 * sigma / (1 - p) + 1e-4
    kept = out[out != 0]
    assert (kept == kept[0]).all()
    assert kept[0].item() == pytest.approx(1 / (1 - p), rel=2e-4)


def test_dropout_decides_on_neighbours_independently() -> None:
    n, p = 400_000, 0.3
    dropped = (drop(p, n) == 0).double() - p
    lanes = dropped.view(-1, 4) / math.sqrt(p * (1 - p))
    rows = len(lanes)
    assert (lanes.mean(dim=0).abs() < 4.5 / math.sqrt(rows)).all()  # each lane has the same rate
    correlation = lanes.T @ lanes / rows
    assert (correlation - torch.eye(4)).abs().max() < 0.02
    for lag in (1, 2, 3, 4, 5, 8):
        correlation = (dropped[:-lag] * dropped[lag:]).mean() / (p * (1 - p))
        assert abs(correlation.item()) < 4.5 / math.sqrt(n - lag)


def test_dropout_is_the_identity_in_evaluation_and_for_p_zero() -> None:
    x = torch.randn(3, 5)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0).train()(x), x)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (0, 4), (2, 3, 5), (7, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dropout_keeps_odd_shapes_and_types(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    out = Dropout(0.5).train()(torch.ones(shape, dtype=dtype))
    assert out.shape == shape
    assert out.dtype == dtype
    assert set(out.flatten().tolist()) <= {0.0, 2.0}


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan")])
def test_dropout_refuses_an_impossible_rate(p: float) -> None:
    for make in (Dropout, partial(JointDropout, shared=1)):
        with pytest.raises(ValueError, match=r"dropout p = .*: allowed: 0 <= p < 1"):
            make(p)


def test_dropout_works_up_to_the_largest_rate_below_one() -> None:
    assert drop(0.9999999, 1000).isfinite().all()
