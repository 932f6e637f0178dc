"""ALiBi against its formula, three other implementations and known mistakes of public code."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from references import (
    DOUBLE,
    BiasOf,
    SlicedFromTheFront,
    bias_of,
    catches,
    check_near_keys_win,
    check_rows_do_not_depend_on_the_other_queries,
    close,
    loop,
    whole,
)
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from x_transformers.x_transformers import AlibiPositionalBias

from models.positional_encodings.alibi import Alibi, alibi_bias, alibi_slopes
from models.positional_encodings.base import Places

H = 8
SLOPES = alibi_slopes(H, dtype=DOUBLE)


def alibi(asymmetry: float = 0.0, *, causal: bool = False) -> BiasOf:
    return bias_of(Alibi(n_heads=H, asymmetry=asymmetry).double(), causal=causal)


def check_slopes(slopes_of: Callable[[int], Tensor]) -> None:
    """Geometric from 2^(-8/H) to 2^-8 for powers of two; else those of the lower power and more."""
    for n in (1, 2, 4, 8, 16, 32):
        slopes = slopes_of(n)
        close(slopes[-1], torch.tensor(2.0**-8, dtype=DOUBLE))
        close(slopes[1:] / slopes[:-1], torch.full((n - 1,), 2 ** (-8 / n), dtype=DOUBLE))
    for n in (3, 5, 6, 12, 13, 20):
        power = 2 ** int(math.log2(n))
        slopes = slopes_of(n)
        close(slopes[:power], slopes_of(power))
        close(slopes[power:], slopes_of(2 * power)[::2][: n - power])


def test_slopes_are_geometric() -> None:
    check_slopes(lambda n: alibi_slopes(n, dtype=DOUBLE))


def test_the_bias_follows_the_papers_formula() -> None:
    expected = loop(9, lambda h, i, j: -(2.0 ** -(h / 2)) * abs(i - j), 16)
    close(whole(bias_of(Alibi(n_heads=16).double()), 9), expected)


@pytest.mark.parametrize("n_heads", [1, 2, 3, 4, 6, 8, 12, 16, 24])
def test_the_bias_equals_other_implementations(n_heads: int) -> None:
    length = 11
    ours = whole(bias_of(Alibi(n_heads=n_heads)), length)
    close(ours, AlibiPositionalBias(heads=n_heads)(length, length), 1e-6)
    # BLOOM and MPT add slope * j, which differs from the bias of the last query by a constant only.
    bloom = build_alibi_tensor(torch.ones(1, length), n_heads, torch.float32)[:, 0]
    close(ours[:, -1], bloom - bloom[:, -1:], 1e-6)
    close(ours[:, -1], build_mpt_alibi_tensor(n_heads, length)[:, 0], 1e-6)


def check_asymmetry(bias: BiasOf) -> None:
    """That of the code for randomized positions: -1 for each step, 0.5 on the lower triangle."""
    n = 7
    steps = -sum(np.tri(n, k=-i) + np.tri(n, k=-i).T for i in range(1, n)) + 0.5 * np.tri(n, k=-1)
    close(whole(bias, n), SLOPES[:, None, None] * torch.from_numpy(steps))


def check_nothing_is_added_behind_a_causal_mask(bias: BiasOf) -> None:
    """There is one side alone, and no symmetry to break."""
    close(whole(bias, 7), whole(alibi(), 7))


def check_calls_agree(bias: BiasOf) -> None:
    first = whole(bias, 9).clone()
    assert torch.equal(whole(bias, 9), first)


def test_asymmetric_alibi_is_that_of_the_randomized_positions_code() -> None:
    check_asymmetry(alibi(0.5))
    check_nothing_is_added_behind_a_causal_mask(alibi(0.5, causal=True))


# ----------------------------------------------------------------------------------------- mistakes


class ScaledInPlace:
    """Slopes multiplied in place by every call (NeMo's ALiBi)."""

    def __init__(self) -> None:
        self.slopes = SLOPES.clone()

    def __call__(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        self.slopes *= 1 / 2
        return alibi_bias(q_positions[:, None] - k_positions, self.slopes, causal=False)


def of_distance(change: Callable[[Tensor], Tensor], sign: int = 1) -> BiasOf:
    return lambda q, k: sign * alibi_bias(change(q[:, None] - k), SLOPES, causal=False)


def signed_distance(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """slope * (j - i): right in a decoder, a reward for the far future in an encoder."""
    return -SLOPES[:, None, None] * (q_positions[:, None] - k_positions)


def with_bonus(side: Callable[[Tensor], Tensor], *, sloped: bool = True) -> BiasOf:
    """Symmetric ALiBi and half a step for the distances i - j that `side` chooses."""

    def bias(q_positions: Tensor, k_positions: Tensor) -> Tensor:
        distance = q_positions[:, None] - k_positions
        scale = SLOPES[:, None, None] if sloped else 1.0
        return alibi_bias(distance, SLOPES, causal=False) + 0.5 * scale * side(distance)

    return bias


class BonusBehindTheMask(Alibi):
    """The encoder's asymmetry in the decoder."""

    def bias(self, places: Places) -> Tensor:
        return super().bias(Places(places.q_positions, places.k_positions))


def powers(first: int) -> Callable[[int], Tensor]:
    return lambda n: 2.0 ** (-8 * torch.arange(first, n + first, dtype=DOUBLE) / n)


MISTAKES: dict[str, Callable[[], None]] = {
    "the sign reversed": lambda: check_near_keys_win(of_distance(lambda d: d, -1)),
    "one-sided": lambda: check_near_keys_win(of_distance(lambda d: d.clamp(min=0))),
    "the distance with its sign": lambda: check_near_keys_win(signed_distance),
    "sliced from the front": lambda: check_rows_do_not_depend_on_the_other_queries(
        SlicedFromTheFront(alibi())
    ),
    "bonus for the future": lambda: check_asymmetry(with_bonus(lambda d: d < 0)),
    "bonus for the own place too": lambda: check_asymmetry(with_bonus(lambda d: d >= 0)),
    "bonus for both sides": lambda: check_asymmetry(with_bonus(lambda d: d != 0)),
    "bonus without the slope": lambda: check_asymmetry(with_bonus(lambda d: d > 0, sloped=False)),
    "bonus in the decoder": lambda: check_nothing_is_added_behind_a_causal_mask(
        bias_of(BonusBehindTheMask(n_heads=H, asymmetry=0.5).double(), causal=True)
    ),
    "slopes scaled in place": lambda: check_calls_agree(ScaledInPlace()),
    "slopes of a power of two for any number": lambda: check_slopes(powers(1)),
    "slopes from one on": lambda: check_slopes(powers(0)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(MISTAKES[mistake])


def test_the_made_mistakes_are_the_only_fault() -> None:
    """Without its mistake, what the mistakes are made from passes."""
    check_near_keys_win(of_distance(lambda d: d))
    check_asymmetry(with_bonus(lambda d: d > 0))
