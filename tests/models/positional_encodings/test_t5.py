"""T5's buckets in rational numbers, its bias and a whole attention against T5's own code."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from references import (
    DOUBLE,
    SlicedFromTheFront,
    bias_of,
    catches,
    check_anywhere,
    close,
    normal,
    whole,
)
from torch import Tensor
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention
from x_transformers.x_transformers import RelativePositionBias

import configs.positions as config
from configs.schema import ModelConfig
from models.attention.multi_head import SelfAttention
from models.positional_encodings.base import Places
from models.positional_encodings.t5 import T5Bias, t5_buckets
from models.schemes import build_scheme

H, HEAD_DIM = 8, 4
SETTINGS = [(32, 128), (32, 256), (16, 128), (8, 20), (64, 512), (4, 5), (12, 96), (10, 40)]
BucketsOf = Callable[[Tensor, int, int, bool], Tensor]
both_kinds = pytest.mark.parametrize("bidirectional", [False, True])


def our_buckets(rel: Tensor, n_buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    return t5_buckets(
        rel, n_buckets=n_buckets, max_distance=max_distance, bidirectional=bidirectional
    )


def check_buckets(buckets_of: BucketsOf) -> None:
    """The definition, in rational numbers, at every distance up to beyond the largest."""
    for n_buckets, max_distance in SETTINGS:
        for bidirectional in (False, True):
            side = n_buckets // 2 if bidirectional else n_buckets
            exact = side // 2
            wide = side - exact
            thresholds = [Fraction(max_distance, exact) ** k for k in range(wide)]
            past = []
            for n in range(max_distance + 40):
                power = Fraction(n, exact) ** wide
                past.append(n if n < exact else exact - 1 + sum(power >= t for t in thresholds))
            distance = torch.arange(max_distance + 40)
            assert buckets_of(-distance, n_buckets, max_distance, bidirectional).tolist() == past
            future = [0, *(side + b if bidirectional else 0 for b in past[1:])]
            assert buckets_of(distance, n_buckets, max_distance, bidirectional).tolist() == future


def test_buckets_follow_the_definition_exactly() -> None:
    check_buckets(our_buckets)


@both_kinds
@pytest.mark.parametrize(("n_buckets", "max_distance"), SETTINGS[:5])
def test_buckets_equal_other_implementations(
    n_buckets: int, max_distance: int, bidirectional: bool
) -> None:
    rel = torch.arange(-2 * max_distance, 2 * max_distance + 1)
    ours = our_buckets(rel, n_buckets, max_distance, bidirectional)
    theirs = T5Attention._relative_position_bucket(rel, bidirectional, n_buckets, max_distance)
    assert torch.equal(ours, theirs)
    other = RelativePositionBias._relative_position_bucket(
        rel, not bidirectional, n_buckets, max_distance
    )
    assert torch.equal(ours, other)


@both_kinds
def test_the_bias_equals_other_implementations(bidirectional: bool) -> None:
    torch.manual_seed(3)
    module = T5Bias(n_heads=H, bidirectional=bidirectional)
    settings = T5Config(
        d_model=16, d_kv=2, num_heads=H, is_decoder=not bidirectional, use_cache=False
    )
    theirs = T5Attention(settings, has_relative_attention_bias=True, layer_idx=0)
    other = RelativePositionBias(scale=1.0, causal=not bidirectional, heads=H)
    with torch.no_grad():
        theirs.relative_attention_bias.weight.copy_(module.table)
        other.relative_attention_bias.weight.copy_(module.table)
    bias, last, keys = bias_of(module), torch.tensor([152]), torch.arange(153)
    assert torch.equal(whole(bias, 200), theirs.compute_bias(200, 200)[0])
    assert torch.equal(bias(keys[-3:], keys), other(3, 153))
    assert torch.equal(bias(last, keys), theirs.compute_bias(1, 153, past_seen_tokens=152)[0])


def test_a_decoder_spends_all_its_buckets_on_the_past() -> None:
    scheme, at = build_scheme(ModelConfig(position=config.T5())), torch.arange(140)
    for kind, values in (("encoder", 31), ("decoder", 32)):
        bias = whole(bias_of(scheme.attention(kind, 0), causal=kind == "decoder"), len(at))
        seen = bias[0] if kind == "encoder" else bias[0].tril()[-1]
        assert seen.unique().numel() == values


def check_attention(make: Callable[[bool], T5Bias], *, scaled: bool) -> None:
    """A whole self-attention of ours, on either side, returns what T5's does with its weights.

    T5 leaves out 1/sqrt(Dh); divided queries put it back, beside a bias that stays as it is.
    """
    n, d_model, bare = 9, H * HEAD_DIM, {"dropout": 0.0, "bias": False, "layer": 0}
    x, at = normal(2, n, d_model, seed=5), torch.arange(n)
    future = torch.full((n, n), -torch.inf, dtype=DOUBLE).triu(1)[None, None]
    for bidirectional in (True, False):
        torch.manual_seed(4)
        module = make(bidirectional).double()
        torch.nn.init.normal_(module.table)
        shape = {"d_model": d_model, "d_kv": HEAD_DIM, "num_heads": H, "dropout_rate": 0.0}
        settings = T5Config(**shape, is_decoder=not bidirectional)
        theirs = T5Attention(settings, has_relative_attention_bias=True, layer_idx=0).double()
        kind = "encoder" if bidirectional else "decoder"
        ours = SelfAttention(d_model=d_model, n_heads=H, **bare, kind=kind).double()
        with torch.no_grad():
            theirs.relative_attention_bias.weight.copy_(module.table)
            weights = (theirs.q.weight, theirs.k.weight, theirs.v.weight)
            ours.qkv_proj.weight.copy_(torch.cat(weights))
            ours.out_proj.weight.copy_(theirs.o.weight)
            if scaled:
                theirs.q.weight /= math.sqrt(HEAD_DIM)
            expected = theirs(x, mask=None if bidirectional else future)[0]
            places = Places(at, at, causal=not bidirectional)
            close(ours(x, position=module, places=places), expected)


check_scaled, check_unscaled = (partial(check_attention, scaled=scaled) for scaled in (True, False))


def our_t5(scaled: bool, cls: type[T5Bias] = T5Bias) -> Callable[[bool], T5Bias]:
    return lambda bidirectional: cls(n_heads=H, bidirectional=bidirectional, scaled=scaled)


@pytest.mark.parametrize("scaled", [True, False])
def test_an_attention_with_the_bias_is_t5s(scaled: bool) -> None:
    check_attention(our_t5(scaled), scaled=scaled)


# ----------------------------------------------------------------------------------------- mistakes


def float_buckets(rel: Tensor, n_buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    """Logarithms subtracted in float64, which rounds some boundaries down."""
    side = n_buckets // 2 if bidirectional else n_buckets
    n = rel.abs() if bidirectional else rel.neg().clamp(min=0)
    exact = side // 2
    share = (n.double().log() - math.log(exact)) / (math.log(max_distance) - math.log(exact))
    far = (exact + (share.clamp(min=0) * (side - exact)).long()).clamp(max=side - 1)
    return torch.where(n < exact, n, far) + (side * (rel > 0) if bidirectional else 0)


def in_one_half(rel: Tensor, n_buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    if not bidirectional:
        return our_buckets(rel, n_buckets, max_distance, bidirectional)
    return our_buckets(-rel.abs(), n_buckets // 2, max_distance, False)


class BiasTimesTheRoot(T5Bias):
    """q.k / sqrt(Dh) + bias sqrt(Dh), the reading of x-transformers."""

    def bias(self, places: Places) -> Tensor:
        return super().bias(places) * math.sqrt(HEAD_DIM)


class BiasDivided(T5Bias):
    """(q.k + bias) / sqrt(Dh)."""

    def bias(self, places: Places) -> Tensor:
        return super().bias(places) / math.sqrt(HEAD_DIM)


MISTAKES: dict[str, tuple[Callable[..., None], Any]] = {
    "logarithms in floating point": (check_buckets, float_buckets),
    "past and future swapped": (check_buckets, lambda rel, *sizes: our_buckets(-rel, *sizes)),
    "both sides in the same half": (check_buckets, in_one_half),
    "the encoder's buckets in the decoder": (
        check_buckets,
        lambda rel, n, far, both: our_buckets(rel, n, far, True),
    ),
    "logits divided where T5 does not": (check_unscaled, our_t5(True)),
    "logits not divided where they should be": (check_scaled, our_t5(False)),
    "bias times the root in place of unscaled logits": (
        check_unscaled,
        our_t5(True, BiasTimesTheRoot),
    ),
    "bias divided by the root too": (check_scaled, our_t5(True, BiasDivided)),
    "sliced from the front": (
        check_anywhere,
        SlicedFromTheFront(bias_of(T5Bias(n_heads=H, bidirectional=False))),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(*MISTAKES[mistake])
