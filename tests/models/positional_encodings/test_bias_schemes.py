"""The schemes that are a bias on the logits, whatever the words: ALiBi, T5, KERPLE, FIRE and
Sandwich.

Against other people's implementations where a package has one, against loops over the papers'
equations elsewhere; and each scheme's invariants as `check_...` functions, which known mistakes of
public code must fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention
from x_transformers.x_transformers import AlibiPositionalBias, RelativePositionBias

from models.attention.multi_head import SelfAttention
from models.positional_encodings.alibi import Alibi, alibi_bias, alibi_slopes
from models.positional_encodings.base import AttentionPosition, Places
from models.positional_encodings.fire import Fire, fire_bias, fire_ratio
from models.positional_encodings.kerple import (
    Kerple,
    kept_within,
    kerple_log_bias,
    kerple_power_bias,
)
from models.positional_encodings.relative import by_distance
from models.positional_encodings.sandwich import Sandwich, sandwich_bias
from models.positional_encodings.t5 import T5Bias, t5_bias, t5_boundaries, t5_buckets

DOUBLE = torch.float64
H = 8
BiasOf = Callable[[Tensor, Tensor], Tensor]  # positions of queries and keys -> [H,Tq,Tk]

MODULES: dict[str, Callable[[], AttentionPosition]] = {
    "alibi": lambda: Alibi(n_heads=H),
    "alibi_asymmetric": lambda: Alibi(n_heads=H, asymmetry=0.5),
    "t5": lambda: T5Bias(n_heads=H, bidirectional=True),
    "t5_causal": lambda: T5Bias(n_heads=H, bidirectional=False),
    "kerple_log": lambda: Kerple(n_heads=H, form="log"),
    "kerple_power": lambda: Kerple(n_heads=H, form="power"),
    "fire": lambda: Fire(n_heads=H, threshold=12.0),
    "sandwich": lambda: Sandwich(n_heads=H),
}
WITHOUT_PARAMETERS = ["alibi", "alibi_asymmetric", "sandwich"]
all_modules = pytest.mark.parametrize("name", MODULES)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def module_of(name: str, dtype: torch.dtype = DOUBLE) -> AttentionPosition:
    torch.manual_seed(3)
    return MODULES[name]().to(dtype)


def bias_of(module: AttentionPosition, *, causal: bool = False) -> BiasOf:
    def bias(q_positions: Tensor, k_positions: Tensor) -> Tensor:
        made = module.bias(Places(q_positions, k_positions, causal=causal))
        assert made is not None
        return made

    return bias


def whole(bias: BiasOf, length: int) -> Tensor:
    return bias(torch.arange(length), torch.arange(length))


def loop(length: int, entry: Callable[[int, int, int], float], n_heads: int = H) -> Tensor:
    """entry(head from 1, i, j) for all heads and pairs, [H,T,T]."""
    out = torch.empty(n_heads, length, length, dtype=DOUBLE)
    for h in range(n_heads):
        for i in range(length):
            for j in range(length):
                out[h, i, j] = entry(h + 1, i, j)
    return out


def distances(length: int) -> Tensor:
    return torch.arange(length)[:, None] - torch.arange(length)


# ---------------------------------------------------------------------- what every scheme must hold


def check_rows_do_not_depend_on_the_other_queries(bias: BiasOf) -> None:
    """Decoding one token, or a few, gets the last rows of the whole bias."""
    full = whole(bias, 24)
    for start, end in [(23, 24), (0, 1), (9, 10), (17, 24), (3, 8)]:
        close(bias(torch.arange(start, end), torch.arange(end)), full[:, start:end, :end])


def check_calls_agree(bias: BiasOf) -> None:
    """Two calls, and a short one after a long one, return the same numbers."""
    first, short = whole(bias, 9).clone(), whole(bias, 5).clone()
    assert torch.equal(whole(bias, 9), first)
    whole(bias, 30)
    assert torch.equal(whole(bias, 5), short)
    close(short, first[:, :5, :5])


def check_near_keys_win(bias: BiasOf) -> None:
    """Zero at the query's own place, and falling with the distance on both sides alike in every
    head.
    """
    full = whole(bias, 12)
    assert torch.equal(full.diagonal(dim1=1, dim2=2), torch.zeros(len(full), 12, dtype=full.dtype))
    close(full, full.transpose(1, 2), 1e-14)
    row = full[:, 0]
    assert (row[:, 1:] < row[:, :-1]).all()


@all_modules
@pytest.mark.parametrize("causal", [False, True])
def test_one_row_is_the_last_row_of_the_whole_bias(name: str, causal: bool) -> None:
    check_rows_do_not_depend_on_the_other_queries(bias_of(module_of(name), causal=causal))


@all_modules
def test_a_call_does_not_depend_on_earlier_calls(name: str) -> None:
    module = module_of(name)
    state = [x.clone() for x in (*module.parameters(), *module.buffers())]
    check_calls_agree(bias_of(module))
    assert all(torch.equal(a, b) for a, b in zip(state, (*module.parameters(), *module.buffers())))


@pytest.mark.parametrize("name", ["alibi", "kerple_log", "kerple_power", "sandwich"])
def test_near_keys_win_on_both_sides(name: str) -> None:
    check_near_keys_win(bias_of(module_of(name)))


@all_modules
def test_a_common_shift_changes_nothing(name: str) -> None:
    module = module_of(name)
    positions = torch.tensor([0, 1, 2, 4, 5])
    bias, far = bias_of(module), 6 if name == "fire" else 10_000  # FIRE: within its threshold of 12
    close(bias(positions + far, positions + far), bias(positions, positions))


def test_beyond_its_threshold_fire_interpolates() -> None:
    bias = bias_of(module_of("fire"))
    positions = torch.arange(6)
    assert (bias(positions + 40, positions + 40) - bias(positions, positions)).abs().max() > 1e-3


@all_modules
def test_positions_may_have_gaps_and_lengths_may_differ(name: str) -> None:
    bias = bias_of(module_of(name))
    q, k = torch.tensor([1, 2, 9, 30, 31]), torch.tensor([0, 4, 5, 9, 28, 29, 33])
    close(bias(q, k), whole(bias, 34)[:, q][:, :, k])


@all_modules
def test_positions_may_lie_very_far_apart(name: str) -> None:
    bias = bias_of(module_of(name))
    positions = torch.tensor([0, 5, 10**6])
    each = [bias(positions[i : i + 1], positions[j : j + 1]) for i in range(3) for j in range(3)]
    close(bias(positions, positions), torch.cat(each, dim=2).view(H, 3, 3))


@all_modules
def test_the_type_follows_the_module_and_is_float32_or_better(name: str) -> None:
    positions = torch.arange(300)
    exact = bias_of(module_of(name))(positions, positions)
    assert exact.dtype == DOUBLE
    assert exact.shape == (H, 300, 300)
    single = bias_of(module_of(name, torch.float32))(positions, positions)
    assert single.dtype == torch.float32
    close(single.double(), exact, 1e-5)
    half = module_of(name, torch.bfloat16)
    assert bias_of(half)(positions, positions).dtype == torch.float32


@pytest.mark.parametrize("name", WITHOUT_PARAMETERS)
def test_a_bias_without_parameters_is_exact_in_a_bfloat16_model(name: str) -> None:
    positions = torch.arange(300)
    half = bias_of(module_of(name, torch.bfloat16))(positions, positions)
    assert torch.equal(half, bias_of(module_of(name, torch.float32))(positions, positions))


@all_modules
def test_autocast_does_not_touch_a_bias(name: str) -> None:
    bias = bias_of(module_of(name, torch.float32))
    plain = whole(bias, 40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast_bias = whole(bias, 40)
    assert cast_bias.dtype == torch.float32
    assert torch.equal(cast_bias, plain)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *((name, 0) for name in WITHOUT_PARAMETERS),
        ("t5", 256),
        ("t5_causal", 256),
        ("kerple_log", 2 * H),
        ("kerple_power", 2 * H),
        ("fire", 330),
    ],
)
def test_parameters_are_counted_and_nothing_else_is_saved(name: str, count: int) -> None:
    module = module_of(name)
    assert sum(p.numel() for p in module.parameters()) == count
    assert set(module.state_dict()) == {n for n, _ in module.named_parameters()}


@pytest.mark.parametrize("name", [name for name in MODULES if name not in WITHOUT_PARAMETERS])
@pytest.mark.parametrize("one_row", [False, True])
def test_a_gradient_reaches_every_parameter(name: str, one_row: bool) -> None:
    module = module_of(name)
    positions = torch.arange(6)
    made = bias_of(module)(positions[-1:] if one_row else positions, positions)
    (made * torch.randn_like(made)).sum().backward()
    for parameter in module.parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.abs().max() > 0


@all_modules
def test_a_size_without_sense_is_refused(name: str) -> None:
    kind = type(MODULES[name]())
    arguments = {"bidirectional": True} if kind is T5Bias else {}
    with pytest.raises(ValueError, match="n_heads = 0"):
        kind(n_heads=0, **arguments)  # type: ignore[call-arg]


def test_the_shared_helper_evaluates_each_distance_once() -> None:
    asked: list[int] = []

    def values(distance: Tensor) -> Tensor:
        asked.append(len(distance))
        return torch.stack((distance, distance**2))

    q, k = torch.arange(3, 40), torch.arange(25)
    out = by_distance(Places(q, k), values)
    d = q[:, None] - k
    assert torch.equal(out, torch.stack((d, d**2)))
    by_distance(Places(q[-1:], k), values)
    far = torch.tensor([0, 5, 1000])
    by_distance(Places(far, far), values)
    assert asked == [len(q) + len(k) - 1, len(k), 9]


# -------------------------------------------------------------------------------------------- ALiBi


def check_slopes(slopes_of: Callable[[int], Tensor]) -> None:
    """Geometric from 2^(-8/H) to 2^-8 for powers of two; otherwise these of the lower power and
    some in between.
    """
    for n in (1, 2, 4, 8, 16, 32):
        slopes = slopes_of(n)
        close(slopes[-1], torch.tensor(2.0**-8, dtype=DOUBLE))
        close(slopes[1:] / slopes[:-1], torch.full((n - 1,), 2 ** (-8 / n), dtype=DOUBLE))
    for n in (3, 5, 6, 12, 13, 20):
        power = 2 ** int(math.log2(n))
        slopes = slopes_of(n)
        close(slopes[:power], slopes_of(power))
        close(slopes[power:], slopes_of(2 * power)[::2][: n - power])


def test_alibi_slopes_are_geometric() -> None:
    check_slopes(lambda n: alibi_slopes(n, dtype=DOUBLE))


def test_twelve_heads_contain_the_slopes_of_eight() -> None:
    assert torch.equal(alibi_slopes(12, dtype=DOUBLE)[:8], alibi_slopes(8, dtype=DOUBLE))
    assert alibi_slopes(8).tolist() == [
        1 / 2,
        1 / 4,
        1 / 8,
        1 / 16,
        1 / 32,
        1 / 64,
        1 / 128,
        1 / 256,
    ]


def test_alibi_follows_the_papers_formula() -> None:
    slope = [2.0 ** -(h / 2) for h in range(1, 17)]
    expected = loop(9, lambda h, i, j: -slope[h - 1] * abs(i - j), 16)
    close(whole(bias_of(Alibi(n_heads=16).double()), 9), expected)


@pytest.mark.parametrize("n_heads", [1, 2, 3, 4, 6, 8, 12, 16, 24])
def test_alibi_equals_other_implementations(n_heads: int) -> None:
    length = 11
    ours = whole(bias_of(Alibi(n_heads=n_heads)), length)
    close(ours, AlibiPositionalBias(heads=n_heads)(length, length), 1e-6)
    # BLOOM and MPT add slope * j, which differs from the bias of the last query by a constant only.
    bloom = build_alibi_tensor(torch.ones(1, length), n_heads, torch.float32)[:, 0]
    close(ours[:, -1], bloom - bloom[:, -1:], 1e-6)
    close(ours[:, -1], build_mpt_alibi_tensor(n_heads, length)[:, 0], 1e-6)


def check_asymmetry(bias: BiasOf) -> None:
    """The bias of the code for randomized positions, in its triangular matrices: -1 for each step
    apart, and 0.5 on the lower triangle.
    """
    n = 7
    steps = -sum(np.tri(n, k=-i) + np.tri(n, k=-i).T for i in range(1, n)) + 0.5 * np.tri(n, k=-1)
    close(whole(bias, n), alibi_slopes(H, dtype=DOUBLE)[:, None, None] * torch.from_numpy(steps))


def check_nothing_is_added_behind_a_causal_mask(module: AttentionPosition) -> None:
    """There is one side alone, and no symmetry to break."""
    close(whole(bias_of(module, causal=True), 7), whole(bias_of(module_of("alibi")), 7))


def test_asymmetric_alibi_is_that_of_the_randomized_positions_code() -> None:
    module = module_of("alibi_asymmetric")
    check_asymmetry(bias_of(module))
    check_nothing_is_added_behind_a_causal_mask(module)


def test_slopes_of_no_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="n_heads = 0"):
        alibi_slopes(0)


class SlicedFromTheFront:
    """A bias of the greatest length so far, of which every call gets the first rows (OpenNMT's
    ALiBi).
    """

    def __init__(self, bias: BiasOf) -> None:
        self.bias, self.cached = bias, torch.zeros(1, 0, 0)

    def __call__(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        n_queries, n_keys = len(q_positions), len(k_positions)
        if self.cached.shape[1] < max(n_queries, n_keys):
            self.cached = whole(self.bias, max(n_queries, n_keys))
        return self.cached[:, :n_queries, :n_keys]


class ScaledInPlace:
    """Slopes multiplied in place by every call (NeMo's ALiBi)."""

    def __init__(self) -> None:
        self.slopes = alibi_slopes(H, dtype=DOUBLE)

    def __call__(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        self.slopes *= 1 / 2
        return alibi_bias(q_positions[:, None] - k_positions, self.slopes, causal=False)


def one_sided(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """The decoder's bias in an encoder: no penalty on the future."""
    distance = (q_positions[:, None] - k_positions).clamp(min=0)
    return alibi_bias(distance, alibi_slopes(H, dtype=DOUBLE), causal=False)


def reversed_sign(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """The far keys win (the first version of PyTorch's text on FlexAttention)."""
    return -alibi_bias(
        q_positions[:, None] - k_positions, alibi_slopes(H, dtype=DOUBLE), causal=False
    )


def signed_distance(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """slope * (j - i) without the absolute value: right in a decoder, a reward for the far future
    in an encoder.
    """
    distance = (q_positions[:, None] - k_positions).to(DOUBLE)
    return -alibi_slopes(H, dtype=DOUBLE)[:, None, None] * distance


def with_bonus(side: Callable[[Tensor], Tensor], *, sloped: bool = True) -> BiasOf:
    """Symmetric ALiBi and half a step for the distances i - j that `side` chooses."""

    def bias(q_positions: Tensor, k_positions: Tensor) -> Tensor:
        distance, slopes = q_positions[:, None] - k_positions, alibi_slopes(H, dtype=DOUBLE)
        scale = slopes[:, None, None] if sloped else 1.0
        return alibi_bias(distance, slopes, causal=False) + 0.5 * scale * side(distance)

    return bias


class BonusBehindTheMask(Alibi):
    """The encoder's asymmetry in the decoder."""

    def bias(self, places: Places) -> Tensor:
        return super().bias(Places(places.q_positions, places.k_positions))


def rows_of(name: str) -> BiasOf:
    return bias_of(module_of(name))


ALIBI_MISTAKES: dict[str, Callable[[], None]] = {
    "reversed_sign": lambda: check_near_keys_win(reversed_sign),
    "one_sided": lambda: check_near_keys_win(one_sided),
    "signed_distance": lambda: check_near_keys_win(signed_distance),
    "sliced_from_the_front": lambda: check_rows_do_not_depend_on_the_other_queries(
        SlicedFromTheFront(rows_of("alibi"))
    ),
    "bonus_for_the_future": lambda: check_asymmetry(with_bonus(lambda distance: distance < 0)),
    "bonus_for_the_own_place_too": lambda: check_asymmetry(
        with_bonus(lambda distance: distance >= 0)
    ),
    "bonus_for_both_sides": lambda: check_asymmetry(with_bonus(lambda distance: distance != 0)),
    "bonus_without_the_slope": lambda: check_asymmetry(
        with_bonus(lambda distance: distance > 0, sloped=False)
    ),
    "bonus_in_the_decoder": lambda: check_nothing_is_added_behind_a_causal_mask(
        BonusBehindTheMask(n_heads=H, asymmetry=0.5).double()
    ),
    "slopes_scaled_in_place": lambda: check_calls_agree(ScaledInPlace()),
    "slopes_of_a_power_of_two_for_any_number": lambda: check_slopes(
        lambda n: 2.0 ** (-8 * torch.arange(1, n + 1, dtype=DOUBLE) / n)
    ),
    "slopes_from_one_on": lambda: check_slopes(
        lambda n: 2.0 ** (-8 * torch.arange(n, dtype=DOUBLE) / n)
    ),
}


# ----------------------------------------------------------------------------------------------- T5

SETTINGS = [(32, 128), (32, 256), (16, 128), (8, 20), (64, 512), (4, 5), (12, 96), (10, 40)]
T5_HEAD_DIM = 4
BucketsOf = Callable[[Tensor, int, int, bool], Tensor]


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


def check_bucket_invariants(buckets_of: BucketsOf) -> None:
    """Monotone on each side, halves disjoint, future in bucket 0 where causal, bucket 31 from
    distance 113 on.
    """
    distance = torch.arange(1, 300)
    past, future = (buckets_of(sign * distance, 32, 128, True) for sign in (-1, 1))
    assert (past.diff() >= 0).all()
    assert (future.diff() >= 0).all()
    assert set(past.tolist()) | {0} == set(range(16))
    assert set(future.tolist()) | {16} == set(range(16, 32))
    causal = buckets_of(-distance, 32, 128, False)
    assert (causal.diff() >= 0).all()
    assert torch.equal(causal == 31, distance >= 113)
    assert (buckets_of(torch.arange(0, 300), 32, 128, False) == 0).all()


def test_buckets_follow_the_definition_exactly() -> None:
    check_buckets(our_buckets)


def test_bucket_invariants() -> None:
    check_bucket_invariants(our_buckets)


@pytest.mark.parametrize("bidirectional", [False, True])
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


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_t5_bias_equals_other_implementations(bidirectional: bool) -> None:
    module = cast(T5Bias, module_of("t5" if bidirectional else "t5_causal", torch.float32))
    config = T5Config(
        d_model=16, d_kv=2, num_heads=H, is_decoder=not bidirectional, use_cache=False
    )
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    other = RelativePositionBias(scale=1.0, causal=not bidirectional, heads=H)
    with torch.no_grad():
        theirs.relative_attention_bias.weight.copy_(module.table)
        other.relative_attention_bias.weight.copy_(module.table)
    bias = bias_of(module)
    assert torch.equal(whole(bias, 200), theirs.compute_bias(200, 200)[0])
    assert torch.equal(bias(torch.arange(150, 153), torch.arange(153)), other(3, 153))
    assert torch.equal(
        bias(torch.tensor([152]), torch.arange(153)),
        theirs.compute_bias(1, 153, past_seen_tokens=152)[0],
    )


def test_the_bias_is_the_tables_entry() -> None:
    torch.manual_seed(0)
    table = torch.randn(32, 3, dtype=DOUBLE)
    buckets = torch.randint(0, 32, (4, 5))
    out = t5_bias(table, buckets)
    assert all(
        out[h, i, j] == table[buckets[i, j], h]
        for h in range(3)
        for i in range(4)
        for j in range(5)
    )


def test_every_bucket_but_an_impossible_one_is_trained() -> None:
    """Bucket 16 is that of a key in the future at distance 0."""
    for name, idle in (("t5", [16]), ("t5_causal", [])):
        module = cast(T5Bias, module_of(name))
        whole(bias_of(module), 140).square().sum().backward()
        assert module.table.grad is not None
        assert (module.table.grad.abs().amax(dim=1) == 0).nonzero().flatten().tolist() == idle


def check_t5_attention(make: Callable[[bool], T5Bias], *, scaled: bool) -> None:
    """A whole self-attention of ours, on either side, returns what T5's does with the same weights.

    T5 leaves out 1/sqrt(Dh); divided queries put it back, beside a bias that stays as it is.
    """
    n, d_model = 9, H * T5_HEAD_DIM
    x = torch.randn(2, n, d_model, dtype=DOUBLE, generator=torch.Generator().manual_seed(5))
    positions = torch.arange(n)
    for bidirectional in (True, False):
        torch.manual_seed(4)
        module = make(bidirectional).double()
        torch.nn.init.normal_(module.table)
        config = T5Config(
            d_model=d_model,
            d_kv=T5_HEAD_DIM,
            num_heads=H,
            is_decoder=not bidirectional,
            dropout_rate=0.0,
        )
        theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
        attention = SelfAttention(
            d_model=d_model,
            n_heads=H,
            dropout=0.0,
            bias=False,
            kind="encoder" if bidirectional else "decoder",
            layer=0,
        ).double()
        with torch.no_grad():
            theirs.relative_attention_bias.weight.copy_(module.table)
            attention.qkv_proj.weight.copy_(
                torch.cat((theirs.q.weight, theirs.k.weight, theirs.v.weight))
            )
            attention.out_proj.weight.copy_(theirs.o.weight)
            if scaled:
                theirs.q.weight /= math.sqrt(T5_HEAD_DIM)
            mask = (
                None
                if bidirectional
                else torch.full((n, n), -torch.inf, dtype=DOUBLE).triu(1)[None, None]
            )
            places = Places(positions, positions, causal=not bidirectional)
            close(attention(x, position=module, places=places), theirs(x, mask=mask)[0])


def our_t5(scaled: bool, cls: type[T5Bias] = T5Bias) -> Callable[[bool], T5Bias]:
    return lambda bidirectional: cls(n_heads=H, bidirectional=bidirectional, scaled=scaled)


@pytest.mark.parametrize("scaled", [True, False])
def test_an_attention_with_the_t5_bias_is_t5s(scaled: bool) -> None:
    check_t5_attention(our_t5(scaled), scaled=scaled)


def test_t5_may_leave_the_logits_unscaled() -> None:
    assert T5Bias(n_heads=2, bidirectional=True).logit_scale(64) == 1 / 8
    assert T5Bias(n_heads=2, bidirectional=True, scaled=False).logit_scale(64) == 1.0


@pytest.mark.parametrize(
    ("n_buckets", "max_distance", "bidirectional"),
    [
        (1, 128, False),
        (0, 128, False),
        (2, 128, True),
        (7, 128, True),
        (32, 16, False),
        (32, 8, True),
        (32, -1, True),
    ],
)
def test_bucket_settings_without_sense_are_refused(
    n_buckets: int, max_distance: int, bidirectional: bool
) -> None:
    settings = {
        "n_buckets": n_buckets,
        "max_distance": max_distance,
        "bidirectional": bidirectional,
    }
    for make in (
        lambda: t5_boundaries(**settings),  # type: ignore[arg-type]
        lambda: t5_buckets(torch.arange(3), **settings),  # type: ignore[arg-type]
        lambda: T5Bias(n_heads=2, **settings),  # type: ignore[arg-type]
    ):
        with pytest.raises(
            ValueError, match=str(n_buckets) if max_distance == 128 else str(max_distance)
        ):
            make()


def float_buckets(rel: Tensor, n_buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    """Logarithms subtracted in float64, which rounds some boundaries down."""
    side = n_buckets // 2 if bidirectional else n_buckets
    n = rel.abs() if bidirectional else rel.neg().clamp(min=0)
    exact = side // 2
    share = (n.double().log() - math.log(exact)) / (math.log(max_distance) - math.log(exact))
    far = (exact + (share.clamp(min=0) * (side - exact)).long()).clamp(max=side - 1)
    return torch.where(n < exact, n, far) + (side * (rel > 0) if bidirectional else 0)


class BiasTimesTheRoot(T5Bias):
    """q.k / sqrt(Dh) + bias sqrt(Dh), the reading of x-transformers."""

    def bias(self, places: Places) -> Tensor:
        return super().bias(places) * math.sqrt(T5_HEAD_DIM)


class BiasDivided(T5Bias):
    """(q.k + bias) / sqrt(Dh)."""

    def bias(self, places: Places) -> Tensor:
        return super().bias(places) / math.sqrt(T5_HEAD_DIM)


T5_MISTAKES: dict[str, Callable[[], None]] = {
    "logarithms_in_floating_point": lambda: check_buckets(float_buckets),
    "past_and_future_swapped": lambda: check_bucket_invariants(
        lambda rel, n, far, both: our_buckets(-rel, n, far, both)
    ),
    "both_sides_in_the_same_half": lambda: check_bucket_invariants(
        lambda rel, n, far, both: (
            our_buckets(-rel.abs(), n // 2, far, False) if both else our_buckets(rel, n, far, both)
        )
    ),
    "logits_divided_by_the_root_where_t5_does_not": lambda: check_t5_attention(
        our_t5(scaled=True), scaled=False
    ),
    "logits_not_divided_where_they_should_be": lambda: check_t5_attention(
        our_t5(scaled=False), scaled=True
    ),
    "bias_times_the_root_in_place_of_unscaled_logits": lambda: check_t5_attention(
        our_t5(True, BiasTimesTheRoot), scaled=False
    ),
    "bias_divided_by_the_root_too": lambda: check_t5_attention(
        our_t5(True, BiasDivided), scaled=True
    ),
    "encoders_buckets_in_the_decoder": lambda: check_bucket_invariants(
        lambda rel, n, far, both: our_buckets(rel, n, far, True)
    ),
    "sliced_from_the_front": lambda: check_rows_do_not_depend_on_the_other_queries(
        SlicedFromTheFront(rows_of("t5_causal"))
    ),
}


# ------------------------------------------------------------------------------------------- KERPLE

KernelOf = Callable[[Tensor, Tensor, Tensor], Tensor]  # distances, a [H], p [H] -> [H,...]


def our_log_kernel(distance: Tensor, a: Tensor, p: Tensor) -> Tensor:
    return kerple_log_bias(distance, p, a)


def check_kernel_is_trained(kernel: KernelOf) -> None:
    """A kernel is not zero, and p and a get finite gradients that agree with finite differences,
    also at distance 0.
    """
    distance = distances(5)
    a = torch.tensor([0.05, 0.4, 0.9], dtype=DOUBLE, requires_grad=True)
    p = torch.tensor([0.2, 1.0, 1.7], dtype=DOUBLE, requires_grad=True)
    out = kernel(distance, a, p)
    assert out.abs().max() > 0
    assert out.requires_grad
    gradients = torch.autograd.grad(out.sum(), (a, p), allow_unused=True)
    for index, gradient in enumerate(gradients):
        assert gradient is not None
        assert torch.isfinite(gradient).all()
        for h in range(3):
            step = torch.zeros(3, dtype=DOUBLE)
            step[h] = 1e-6
            with torch.no_grad():
                up, down = ((a + s * step, p) if index == 0 else (a, p + s * step) for s in (1, -1))
                slope = (kernel(distance, *up).sum() - kernel(distance, *down).sum()) / 2e-6
            close(gradient[h], slope, 1e-6)
            assert gradient[h].abs() > 1e-3


def check_power_kernel(kernel: KernelOf) -> None:
    """With p = 1 it is ALiBi, and the exponent is the distance's, not the slope's."""
    slopes = alibi_slopes(H, dtype=DOUBLE)
    close(
        kernel(distances(9), slopes, torch.ones_like(slopes)),
        alibi_bias(distances(9), slopes, causal=False),
    )
    close(kernel(torch.tensor([3]), slopes, 2 * torch.ones_like(slopes))[:, 0], -9 * slopes)


@pytest.mark.parametrize("form", ["log", "power"])
def test_kerple_follows_the_papers_formula(form: str) -> None:
    module = cast(Kerple, module_of(f"kerple_{form}"))
    p, a = module.p.tolist(), module.a.tolist()

    def entry(h: int, i: int, j: int) -> float:
        d = abs(i - j)
        if form == "log":
            return -p[h - 1] * math.log(1 + a[h - 1] * d)
        return -a[h - 1] * d ** p[h - 1]

    close(whole(bias_of(module), 12), loop(12, entry))


def test_kerples_power_kernel_contains_alibi() -> None:
    check_power_kernel(kerple_power_bias)


@pytest.mark.parametrize("kernel", [our_log_kernel, kerple_power_bias])
def test_kerples_parameters_are_trained(kernel: KernelOf) -> None:
    check_kernel_is_trained(kernel)


@pytest.mark.parametrize("form", ["log", "power"])
def test_kerples_heads_start_apart_and_within_bounds(form: str) -> None:
    for n_heads in (1, 2, 8):
        module = Kerple(n_heads=n_heads, form=form)  # type: ignore[arg-type]
        assert ((module.p > 1e-2) & (module.p < 2)).all()
        assert ((module.a > 1e-2) & (module.a < 1)).all()
        far = bias_of(module.double())(torch.tensor([5]), torch.tensor([0])).flatten()
        assert (far.diff() < -0.05).all()


@pytest.mark.parametrize("form", ["log", "power"])
def test_kerples_parameters_act_clamped_and_find_the_way_back(form: str) -> None:
    module = Kerple(n_heads=2, form=form).double()  # type: ignore[arg-type]
    clamped = Kerple(n_heads=2, form=form).double()  # type: ignore[arg-type]
    with torch.no_grad():
        module.p.copy_(torch.tensor([-0.3, 2.5]))
        module.a.copy_(torch.tensor([0.4, -1.0]))
        clamped.p.copy_(torch.tensor([0.01, 2.0 if form == "power" else 2.5]))
        clamped.a.copy_(torch.tensor([0.4, 0.01]))
    before = module.p.clone()
    close(whole(bias_of(module), 6), whole(bias_of(clamped), 6))
    assert torch.equal(module.p, before)
    # A loss that wants far keys lower asks for more of p in head 0, which lies below its bound.
    whole(bias_of(module), 6).sum().backward()
    assert module.p.grad is not None
    assert module.p.grad[0] < 0
    module.zero_grad()
    whole(bias_of(module), 6).sum().neg().backward()
    assert module.p.grad[0] == 0


def test_a_clamped_value_takes_gradients_that_lead_back_and_no_others() -> None:
    x = torch.tensor([-1.0, 0.5, 3.0], requires_grad=True)
    inside = kept_within(x, 0.0, 2.0)
    assert inside.tolist() == [0.0, 0.5, 2.0]
    for sign, expected in ((1, [0.0, 1.0, 1.0]), (-1, [-1.0, -1.0, 0.0])):
        (gradient,) = torch.autograd.grad(sign * inside.sum(), x, retain_graph=True)
        assert gradient.tolist() == expected


def zero_without_gradient(distance: Tensor, a: Tensor, p: Tensor) -> Tensor:
    """a is a zero, and no parameter (NeMo's KERPLE)."""
    return kerple_log_bias(distance, p, torch.zeros_like(a).detach())


def power_by_logarithm(distance: Tensor, a: Tensor, p: Tensor) -> Tensor:
    """|d|^p as exp(p ln |d|): its gradient at distance 0 is 0 times infinity."""
    d = distance.abs().to(a.dtype)
    return -a[:, None, None] * torch.exp(p[:, None, None] * d.log())


def power_of_everything(distance: Tensor, a: Tensor, p: Tensor) -> Tensor:
    """-(a |d|)^p."""
    shape = (-1, *[1] * distance.dim())
    return -((a.view(shape) * distance.abs()) ** p.view(shape))


KERPLE_MISTAKES: dict[str, Callable[[], None]] = {
    "a_is_zero_and_no_parameter": lambda: check_kernel_is_trained(zero_without_gradient),
    "nan_gradient_at_distance_zero": lambda: check_kernel_is_trained(power_by_logarithm),
    "power_of_everything": lambda: check_power_kernel(power_of_everything),
    "reversed_sign": lambda: check_near_keys_win(
        lambda q, k: -kerple_power_bias(q[:, None] - k, torch.ones(2), torch.ones(2))
    ),
    "signed_distance": lambda: check_near_keys_win(
        lambda q, k: -torch.log1p(0.1 * (q[:, None] - k).clamp(min=0).to(DOUBLE))[None]
    ),
}


# --------------------------------------------------------------------------------------------- FIRE

RatioOf = Callable[
    [Tensor, Tensor, Tensor, Tensor], Tensor
]  # q_positions, k_positions, c, threshold -> [Tq,Tk]
C, L = torch.tensor(0.1, dtype=DOUBLE), torch.tensor(16.0, dtype=DOUBLE)


def check_fire_ratio(ratio_of: RatioOf) -> None:
    """0 at the own place, then growing ever more slowly, within 0..1 on both sides; by distance
    alone up to L.
    """
    positions = torch.arange(60)
    ratio = ratio_of(positions, positions, C, L)
    assert torch.isfinite(ratio).all()
    assert (ratio.diagonal() == 0).all()
    assert ratio.min() == 0
    assert ratio.max() <= 1
    assert (ratio[-1].diff() < 0).all()
    assert (ratio[-1].flip(0).diff().diff() < 0).all()
    near = ratio[:17, :17]
    close(near[1:, 1:], near[:-1, :-1])
    assert (ratio[31:, 1:31] - ratio[30:-1, :30]).abs().max() > 1e-3
    # The farthest key is at 1 from L on, whatever the length.
    close(ratio[16:, 0], torch.ones(44, dtype=DOUBLE))


def check_fire_does_not_see_the_length(ratio_of: RatioOf) -> None:
    short, long = torch.arange(20), torch.arange(50)
    close(ratio_of(long, long, C, L)[:20, :20], ratio_of(short, short, C, L))
    close(ratio_of(long[-1:], long, C, L), ratio_of(long, long, C, L)[-1:])


@pytest.mark.parametrize("threshold", [512.0, 5.0, -5.0])
def test_fire_follows_the_papers_formula(threshold: float) -> None:
    torch.manual_seed(2)
    c, width, length = 0.3, 6, 13
    w1, b1 = torch.randn(width, 1, dtype=DOUBLE), torch.randn(width, dtype=DOUBLE)
    w2, b2 = torch.randn(3, width, dtype=DOUBLE), torch.randn(3, dtype=DOUBLE)

    def psi(x: float) -> float:
        return math.log(abs(c * x) + 1)

    def entry(h: int, i: int, j: int) -> float:
        ratio = psi(i - j) / psi(max(abs(threshold), i, j))  # i alone in the paper, where j <= i
        hidden = [max(0.0, float(w1[n, 0]) * ratio + float(b1[n])) for n in range(width)]
        return float(b2[h - 1]) + sum(float(w2[h - 1, n]) * x for n, x in enumerate(hidden))

    positions = torch.arange(length)
    scalars = torch.tensor(c, dtype=DOUBLE), torch.tensor(threshold, dtype=DOUBLE)
    close(fire_bias(positions, positions, *scalars, w1, b1, w2, b2), loop(length, entry, 3))


def test_the_fire_module_hands_over_what_it_trains() -> None:
    module = cast(Fire, module_of("fire"))
    with torch.no_grad():
        module.threshold_factor.fill_(0.5)
        module.c.fill_(-0.2)
    ratio = fire_ratio(
        torch.arange(20), torch.arange(20), torch.tensor(0.2), torch.tensor(6.0)
    ).double()
    expected = module.out(module.hidden(ratio[..., None]).relu()).permute(2, 0, 1)
    close(whole(bias_of(module), 20), expected, 1e-6)


def test_fire_starts_as_in_the_paper() -> None:
    module = Fire(n_heads=H)
    assert (module.c.item(), module.threshold * module.threshold_factor.item()) == (
        pytest.approx(0.1),
        512.0,
    )
    assert (module.hidden.out_features, module.out.out_features) == (32, H)


def test_the_ratio_of_fire() -> None:
    check_fire_ratio(fire_ratio)
    check_fire_does_not_see_the_length(fire_ratio)


@pytest.mark.parametrize(("c", "threshold"), [(0.0, 16.0), (0.1, 0.0), (0.0, 0.0), (1e-9, 1e-9)])
def test_fire_stays_finite_where_its_formula_is_not_defined(c: float, threshold: float) -> None:
    scalars = [torch.tensor(x, requires_grad=True) for x in (c, threshold)]
    ratio = fire_ratio(torch.arange(9), torch.arange(9), *scalars)
    assert torch.isfinite(ratio).all()
    assert ((ratio >= 0) & (ratio <= 1)).all()
    assert all(torch.isfinite(g) for g in torch.autograd.grad(ratio.sum(), scalars))


@pytest.mark.parametrize("wrong", [{"width": 0}, {"c": 0.0}, {"c": -1.0}, {"threshold": 0.0}])
def test_fire_settings_without_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} = "):
        Fire(n_heads=2, **wrong)  # type: ignore[arg-type]


def psi(x: Tensor, c: Tensor) -> Tensor:
    return torch.log1p((c * x).abs())


def without_threshold(q: Tensor, k: Tensor, c: Tensor, threshold: Tensor) -> Tensor:
    later = torch.maximum(q[:, None], k).clamp(min=1).to(DOUBLE)
    return psi((q[:, None] - k).to(DOUBLE), c) / psi(later, c)


def by_the_query_alone(q: Tensor, k: Tensor, c: Tensor, threshold: Tensor) -> Tensor:
    """The causal formula in an encoder: more than 1 where a key is far behind its query."""
    return psi((q[:, None] - k).to(DOUBLE), c) / psi(
        torch.maximum(q.to(DOUBLE)[:, None], threshold), c
    )


def without_absolute_value(q: Tensor, k: Tensor, c: Tensor, threshold: Tensor) -> Tensor:
    later = torch.maximum(torch.maximum(q[:, None], k).to(DOUBLE), threshold)
    return torch.log(c * (q[:, None] - k) + 1) / psi(later, c)


def without_logarithm(q: Tensor, k: Tensor, c: Tensor, threshold: Tensor) -> Tensor:
    later = torch.maximum(torch.maximum(q[:, None], k).to(DOUBLE), threshold)
    return (q[:, None] - k).abs() / later


def by_the_length(q: Tensor, k: Tensor, c: Tensor, threshold: Tensor) -> Tensor:
    """Divided by the sequence's length, so that padding and the tokens to come change the bias."""
    return psi((q[:, None] - k).to(DOUBLE), c) / psi(
        torch.maximum(k.max().to(DOUBLE), threshold), c
    )


def counted_from_zero(q: Tensor, k: Tensor, c: Tensor, threshold: Tensor) -> Tensor:
    """The number of the row for the query's position: wrong for the single row of a decoding step."""
    return fire_ratio(torch.arange(len(q)), k, c, threshold)


FIRE_MISTAKES: dict[str, Callable[[], None]] = {
    "without_the_threshold": lambda: check_fire_ratio(without_threshold),
    "divided_by_the_query_alone": lambda: check_fire_ratio(by_the_query_alone),
    "no_absolute_value": lambda: check_fire_ratio(without_absolute_value),
    "no_logarithm": lambda: check_fire_ratio(without_logarithm),
    "divided_by_the_length": lambda: check_fire_does_not_see_the_length(by_the_length),
    "positions_counted_from_zero": lambda: check_fire_does_not_see_the_length(counted_from_zero),
}


# ----------------------------------------------------------------------------------------- Sandwich

SandwichOf = Callable[[Tensor, int, int], Tensor]  # distances, heads, width -> [H,...]


def our_sandwich(distance: Tensor, n_heads: int, width: int) -> Tensor:
    return sandwich_bias(distance, n_heads, width=width, dtype=DOUBLE)


def check_sandwich(sandwich: SandwichOf) -> None:
    """0 at distance 0 and nowhere positive; heads as 1 : 1/2 : 1/3 ...; a single pair has the
    frequency 1/base.
    """
    bias = sandwich(distances(30), 4, 16)
    assert (bias.diagonal(dim1=1, dim2=2) == 0).all()
    assert (bias <= 0).all()
    assert torch.equal(bias, bias.transpose(1, 2))
    far = bias[:, 20, 3]
    close(far[:1] / far, torch.arange(1, 5, dtype=DOUBLE))
    single = sandwich(torch.tensor([3000]), 1, 2)[0, 0]
    close(single, torch.tensor((math.cos(0.3) - 1) / 8, dtype=DOUBLE))


@pytest.mark.parametrize(("width", "base"), [(128, 10000.0), (6, 50.0)])
def test_sandwich_follows_its_formula(width: int, base: float) -> None:
    def entry(h: int, i: int, j: int) -> float:
        cosines = sum(
            math.cos((i - j) * base ** (-2 * pair / width)) for pair in range(1, width // 2 + 1)
        )
        return (cosines - width / 2) / (8 * h / H)

    close(whole(bias_of(Sandwich(n_heads=H, width=width, base=base).double()), 10), loop(10, entry))


def test_sandwich_is_a_product_of_sinusoids() -> None:
    """sin and cos of both positions, multiplied and summed: what the formula shortens to a cosine
    of the distance.
    """
    width, n = 32, 12
    theta = 10000.0 ** (-2 * torch.arange(1, width // 2 + 1, dtype=DOUBLE) / width)
    angles = torch.arange(n, dtype=DOUBLE)[:, None] * theta
    encoding = torch.cat((angles.sin(), angles.cos()), dim=1)
    close(our_sandwich(distances(n), 8, width)[0], encoding @ encoding.T - width / 2)


def test_the_invariants_of_sandwich() -> None:
    check_sandwich(our_sandwich)


@pytest.mark.parametrize("width", [0, 3, -2])
def test_an_odd_or_empty_width_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match=f"width = {width}"):
        sandwich_bias(torch.arange(3), 2, width=width)
    with pytest.raises(ValueError, match=f"width = {width}"):
        Sandwich(n_heads=2, width=width)


def mistaken_sandwich(
    first: int = 1, shift: float = 0.5, heads: bool = True, sine: bool = False
) -> SandwichOf:
    def bias(distance: Tensor, n_heads: int, width: int) -> Tensor:
        theta = 10000.0 ** (-2 * torch.arange(first, first + width // 2, dtype=DOUBLE) / width)
        angles = distance.to(DOUBLE)[..., None] * theta
        total = (angles.sin() if sine else angles.cos()).sum(-1) - shift * width
        scale = (
            torch.arange(1, n_heads + 1, dtype=DOUBLE)
            if heads
            else torch.ones(n_heads, dtype=DOUBLE)
        )
        return total / (8 * scale / n_heads).view(-1, *[1] * distance.dim())

    return bias


SANDWICH_MISTAKES: dict[str, Callable[[], None]] = {
    "frequencies_from_zero_on": lambda: check_sandwich(mistaken_sandwich(first=0)),
    "no_shift_to_zero": lambda: check_sandwich(mistaken_sandwich(shift=0)),
    "shift_by_the_width": lambda: check_sandwich(mistaken_sandwich(shift=1)),
    "all_heads_alike": lambda: check_sandwich(mistaken_sandwich(heads=False)),
    "sine_of_the_distance": lambda: check_sandwich(mistaken_sandwich(sine=True)),
    "sliced_from_the_front": lambda: check_rows_do_not_depend_on_the_other_queries(
        SlicedFromTheFront(rows_of("sandwich"))
    ),
}


# ------------------------------------------------------------------------------ a test of the tests

MISTAKES = {
    f"{scheme}-{name}": check
    for scheme, mistakes in {
        "alibi": ALIBI_MISTAKES,
        "t5": T5_MISTAKES,
        "kerple": KERPLE_MISTAKES,
        "fire": FIRE_MISTAKES,
        "sandwich": SANDWICH_MISTAKES,
    }.items()
    for name, check in mistakes.items()
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    with pytest.raises(AssertionError):
        MISTAKES[mistake]()


def test_the_made_mistakes_are_the_only_fault() -> None:
    """Without its mistake, what the mistakes are made from passes."""
    check_sandwich(mistaken_sandwich())
    check_kernel_is_trained(lambda distance, a, p: kerple_log_bias(distance, p, a))
    check_near_keys_win(
        lambda q, k: alibi_bias(q[:, None] - k, alibi_slopes(H, dtype=DOUBLE), causal=False)
    )
    check_near_keys_win(
        lambda q, k: kerple_power_bias(q[:, None] - k, torch.ones(2), torch.ones(2))
    )
    check_asymmetry(with_bonus(lambda distance: distance > 0))
