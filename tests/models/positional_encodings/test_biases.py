"""Biases by distance: the papers' formulas, other implementations, any places, known mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from references import (
    DOUBLE,
    BiasOf,
    SlicedFromTheFront,
    bias_of,
    catches,
    check_anywhere,
    close,
    distances,
    whole,
)
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from x_transformers.x_transformers import AlibiPositionalBias

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
from models.positional_encodings.sandwich import Sandwich
from models.positional_encodings.t5 import T5Bias

H, C, L = 8, 0.25, 5.0
SLOPES = alibi_slopes(H, dtype=DOUBLE)
BIASES: dict[str, Callable[[], AttentionPosition]] = {
    "alibi": lambda: Alibi(n_heads=H),
    "alibi_asymmetric": lambda: Alibi(n_heads=H, asymmetry=0.5),
    "t5": lambda: T5Bias(n_heads=H, bidirectional=True),
    "t5_causal": lambda: T5Bias(n_heads=H, bidirectional=False),
    "kerple_log": lambda: Kerple(n_heads=H, form="log"),
    "kerple_power": lambda: Kerple(n_heads=H, form="power"),
    "fire": lambda: Fire(n_heads=H, width=6, c=C, threshold=L),
    "sandwich": lambda: Sandwich(n_heads=H),
    "sandwich_small": lambda: Sandwich(n_heads=H, width=6, base=50.0),
}
every_bias = pytest.mark.parametrize("name", BIASES)
both_forms: Any = pytest.mark.parametrize("form", ["log", "power"])


def module_of(name: str, dtype: torch.dtype = DOUBLE) -> AttentionPosition:
    torch.manual_seed(3)
    return BIASES[name]().to(dtype)


# ----------------------------------------------------------------------------------------- formulas


def sandwich(h: int, i: int, j: int, width: int = 128, base: float = 10000.0) -> float:
    exponents = (-2 * pair / width for pair in range(1, width // 2 + 1))
    return (sum(math.cos((i - j) * base**e) for e in exponents) - width / 2) / (8 * h / H)


def psi(x: float) -> float:
    return math.log(abs(C * x) + 1)


def ratio_of_fire(h: int, i: int, j: int) -> float:
    return psi(i - j) / psi(max(L, i, j))  # i alone in the paper, where j <= i


def fire(h: int, i: int, j: int) -> float:
    module: Any = module_of("fire").requires_grad_(False)
    units = zip(module.hidden.weight[:, 0], module.hidden.bias, module.out.weight[h - 1])
    hidden = (out * max(0.0, float(w * ratio_of_fire(h, i, j) + b)) for w, b, out in units)
    return float(module.out.bias[h - 1] + sum(hidden))


# Head h, from 1, of query i and key j. KERPLE's parameters start at the centres of H equal parts of
# 0 .. 2 (p) and 0 .. 1 (a).
FORMULAS: dict[str, Callable[[int, int, int], float]] = {
    "alibi": lambda h, i, j: -(2.0**-h) * abs(i - j),
    "alibi_asymmetric": lambda h, i, j: 2.0**-h * (0.5 * (i > j) - abs(i - j)),
    "kerple_log": lambda h, i, j: -(2 * h - 1) / H * math.log(1 + (h - 0.5) / H * abs(i - j)),
    "kerple_power": lambda h, i, j: -(h - 0.5) / H * abs(i - j) ** ((2 * h - 1) / H),
    "fire": fire,
    "fire_ratio": ratio_of_fire,
    "sandwich": sandwich,
    "sandwich_small": partial(sandwich, width=6, base=50.0),
}


def check_formula(name: str, bias: BiasOf, length: int = 9) -> None:
    t, full = range(length), whole(bias, length)
    heads = range(1, len(full) + 1)
    expected = [[[FORMULAS[name](h, i, j) for j in t] for i in t] for h in heads]
    close(full, torch.tensor(expected, dtype=DOUBLE))


@pytest.mark.parametrize("name", [name for name in BIASES if name in FORMULAS])
def test_a_bias_follows_the_papers_formula(name: str) -> None:
    check_formula(name, bias_of(module_of(name)))


def check_slopes(slopes_of: Callable[[int], Tensor]) -> None:
    for n in (1, 2, 3, 4, 5, 6, 8, 12, 13, 16, 20, 24, 32):
        theirs = torch.tensor(AlibiPositionalBias._get_slopes(n), dtype=DOUBLE)
        close(slopes_of(n), theirs)


def test_alibi_is_that_of_x_transformers_bloom_and_mpt() -> None:
    check_slopes(partial(alibi_slopes, dtype=DOUBLE))
    n = 11
    for heads in (3, 8):
        ours = whole(bias_of(Alibi(n_heads=heads)), n)
        close(ours, AlibiPositionalBias(heads=heads)(n, n), 1e-6)
        # The others add slope * j, which differs from the bias of the last query by a constant.
        bloom = build_alibi_tensor(torch.ones(1, n), heads, torch.float32)[:, 0]
        close(ours[:, -1], bloom - bloom[:, -1:], 1e-6)
        close(ours[:, -1], build_mpt_alibi_tensor(heads, n)[:, 0], 1e-6)


def check_behind_a_mask(cls: type[Alibi]) -> None:
    """There is one side alone, and no symmetry to break."""
    check_formula("alibi", bias_of(cls(n_heads=H, asymmetry=0.5).double(), causal=True))


def test_asymmetric_alibi_is_alibi_behind_a_causal_mask() -> None:
    check_behind_a_mask(Alibi)


def test_sandwich_is_a_product_of_sinusoids() -> None:
    """sin and cos of both positions, multiplied and summed: a cosine of the distance."""
    theta = 10000.0 ** (-torch.arange(1, 65, dtype=DOUBLE) / 64)
    angles = torch.arange(12, dtype=DOUBLE)[:, None] * theta
    encoding = torch.cat((angles.sin(), angles.cos()), dim=1)
    close(whole(bias_of(module_of("sandwich")), 12)[H - 1] * 8, encoding @ encoding.T - 64)


# --------------------------------------------------------------------------------------- any places


@every_bias
def test_places_with_gaps_or_without_order_get_their_entries_of_the_whole(name: str) -> None:
    check_anywhere(bias_of(module_of(name)), absolute=name == "fire")


@every_bias
def test_positions_may_lie_very_far_apart(name: str) -> None:
    bias = bias_of(module_of(name))
    positions = torch.tensor([0, 5, 10**6])
    each = [bias(positions[i : i + 1], positions[j : j + 1]) for i in range(3) for j in range(3)]
    close(bias(positions, positions), torch.cat(each, dim=2).view(H, 3, 3))


@every_bias
def test_the_type_follows_the_module_and_is_float32_or_better(name: str) -> None:
    types = (DOUBLE, torch.float32, torch.bfloat16)
    exact, single, half = (whole(bias_of(module_of(name, dtype)), 300) for dtype in types)
    assert (exact.dtype, single.dtype, half.dtype) == (DOUBLE, torch.float32, torch.float32)
    assert exact.shape == (H, 300, 300)
    close(single.double(), exact, 1e-5)
    if not list(module_of(name).parameters()):
        assert torch.equal(half, single)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(whole(bias_of(module_of(name, torch.float32)), 300), single)


def test_each_distance_is_evaluated_once() -> None:
    asked: list[int] = []

    def values(distance: Tensor) -> Tensor:
        asked.append(len(distance))
        return torch.stack((distance, distance**2))

    q, k = torch.arange(3, 40), torch.arange(25)
    out, d = by_distance(Places(q, k), values), q[:, None] - k
    assert torch.equal(out, torch.stack((d, d**2)))
    by_distance(Places(q[-1:], k), values)
    far = torch.tensor([0, 5, 1000])
    by_distance(Places(far, far), values)
    assert asked == [len(q) + len(k) - 1, len(k), 9]


# ------------------------------------------------------------------------------ KERPLE's parameters


def check_kernel_is_trained(kernel: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Distances, p and a: both get gradients that agree with finite differences, also at 0."""
    a = torch.tensor([0.05, 0.4, 0.9], dtype=DOUBLE, requires_grad=True)
    p = torch.tensor([0.2, 1.0, 1.7], dtype=DOUBLE, requires_grad=True)
    of_distances = partial(kernel, distances(5))
    assert torch.autograd.gradcheck(of_distances, (p, a), raise_exception=False)
    gradients = torch.autograd.grad(of_distances(p, a).sum(), (p, a), allow_unused=True)
    assert all(g is not None and g.abs().min() > 1e-3 for g in gradients)


def power_kernel(distance: Tensor, p: Tensor, a: Tensor) -> Tensor:
    return kerple_power_bias(distance, a, p)


@pytest.mark.parametrize("kernel", [kerple_log_bias, power_kernel])
def test_kerples_parameters_are_trained(kernel: Any) -> None:
    check_kernel_is_trained(kernel)


@both_forms
@pytest.mark.parametrize("n_heads", [1, 2, 8])
def test_kerples_heads_start_apart_and_within_bounds(form, n_heads: int) -> None:
    module = Kerple(n_heads=n_heads, form=form)
    assert ((module.p > 1e-2) & (module.p < 2)).all()
    assert ((module.a > 1e-2) & (module.a < 1)).all()
    far = bias_of(module.double())(torch.tensor([5]), torch.tensor([0])).flatten()
    assert (far.diff() < -0.05).all()


@both_forms
def test_kerples_parameters_act_clamped_and_find_the_way_back(form) -> None:
    module, clamped = (Kerple(n_heads=2, form=form).double() for _ in range(2))
    for parameter, values in (
        (module.p, [-0.3, 2.5]),
        (module.a, [0.4, -1.0]),
        (clamped.p, [0.01, 2.0 if form == "power" else 2.5]),
        (clamped.a, [0.4, 0.01]),
    ):
        parameter.data = torch.tensor(values, dtype=DOUBLE)
    before = module.p.clone()
    close(whole(bias_of(module), 6), whole(bias_of(clamped), 6))
    assert torch.equal(module.p, before)
    # A loss that wants far keys lower asks for more of p in head 0, which lies below its bound.
    for sign in (1, -1):
        (gradient,) = torch.autograd.grad(sign * whole(bias_of(module), 6).sum(), module.p)
        assert gradient[0] < 0 if sign == 1 else gradient[0] == 0


def test_a_clamped_value_takes_gradients_that_lead_back_and_no_others() -> None:
    x = torch.tensor([-1.0, 0.5, 3.0], requires_grad=True)
    inside = kept_within(x, 0.0, 2.0)
    assert inside.tolist() == [0.0, 0.5, 2.0]
    for sign, expected in ((1, [0.0, 1.0, 1.0]), (-1, [-1.0, -1.0, 0.0])):
        (gradient,) = torch.autograd.grad(sign * inside.sum(), x, retain_graph=True)
        assert gradient.tolist() == expected


# -------------------------------------------------------------------------------- FIRE's parameters


def scalars(*values: float) -> list[Tensor]:
    return [torch.tensor(x, dtype=DOUBLE, requires_grad=True) for x in values]


def test_what_fire_trains_acts_by_its_size_alone() -> None:
    module: Any = module_of("fire")
    before, weights = whole(bias_of(module), 20), [*module.hidden.parameters()]
    module.threshold, module.threshold_factor.data = 2 * L, torch.tensor(-0.5, dtype=DOUBLE)
    module.c.data.neg_()
    close(whole(bias_of(module), 20), before)
    at = torch.arange(20)
    close(fire_bias(at, at, *scalars(-C, -L), *weights, *module.out.parameters()), before)


def test_fire_starts_as_in_the_paper() -> None:
    module = Fire(n_heads=8)
    assert module.c.item() == pytest.approx(0.1)
    assert module.threshold * module.threshold_factor.item() == 512.0
    assert (module.hidden.out_features, module.out.out_features) == (32, 8)


@pytest.mark.parametrize(("c", "threshold"), [(0.0, 16.0), (0.1, 0.0), (0.0, 0.0), (1e-9, 1e-9)])
def test_fire_stays_finite_where_its_formula_is_not_defined(c: float, threshold: float) -> None:
    at, trained = torch.arange(60), scalars(c, threshold)
    ratio = fire_ratio(at, at, *trained)
    assert ((ratio >= 0) & (ratio <= 1)).all()
    assert all(torch.isfinite(g) for g in torch.autograd.grad(ratio.sum(), trained))


# ----------------------------------------------------------------------------------------- mistakes


def powers(first: int) -> Callable[[int], Tensor]:
    return lambda n: 2.0 ** (-8 * torch.arange(first, n + first, dtype=DOUBLE) / n)


def of_distance(change: Callable[[Tensor], Tensor], sign: int = 1) -> BiasOf:
    return lambda q, k: sign * alibi_bias(change(q[:, None] - k), SLOPES, causal=False)


def scaled_in_place() -> BiasOf:
    """Slopes multiplied in place by every call (NeMo's ALiBi)."""
    slopes = 2 * SLOPES
    return lambda q, k: alibi_bias(q[:, None] - k, slopes.mul_(0.5), causal=False)


def with_bonus(side: Callable[[Tensor], Tensor], *, sloped: bool = True) -> BiasOf:
    """Symmetric ALiBi and half a step for the distances i - j that `side` chooses."""
    scale = SLOPES[:, None, None] if sloped else 1.0
    return lambda q, k: of_distance(lambda d: d)(q, k) + 0.5 * scale * side(q[:, None] - k)


class BonusBehindTheMask(Alibi):
    """The encoder's asymmetry in the decoder."""

    def bias(self, places: Places) -> Tensor:
        return super().bias(Places(places.q_positions, places.k_positions))


def of_kernel(kernel: Callable[[Tensor, Tensor, Tensor], Tensor]) -> BiasOf:
    """A kernel of |distance| [Tq,Tk] with the p and a [H,1,1] that KERPLE starts with."""
    p, a = (x.detach()[:, None, None].double() for x in Kerple(n_heads=H).parameters())
    return lambda q, k: kernel((q[:, None] - k).abs().to(DOUBLE), p, a)


def power_by_logarithm(distance: Tensor, p: Tensor, a: Tensor) -> Tensor:
    """|d|^p as exp(p ln |d|): its gradient at distance 0 is 0 times infinity."""
    d = distance.abs().to(a.dtype)
    return -a[:, None, None] * torch.exp(p[:, None, None] * d.log())


def other_sandwich(
    first: int = 1, shift: float = 0.5, heads: bool = True, wave: Any = torch.cos
) -> BiasOf:
    width = 6
    theta = 50.0 ** (-2 * torch.arange(first, first + width // 2, dtype=DOUBLE) / width)
    scale = torch.arange(1, H + 1, dtype=DOUBLE) if heads else torch.ones(H)

    def bias(q: Tensor, k: Tensor) -> Tensor:
        angles = (q[:, None] - k).to(DOUBLE)[..., None] * theta
        return (wave(angles).sum(-1) - shift * width) / (8 * scale[:, None, None] / H)

    return bias


def other_fire(
    numerator: Callable[[Tensor], Tensor] = lambda d: torch.log1p((C * d).abs()),
    later: Callable[[Tensor, Tensor], Tensor] = lambda q, k: torch.maximum(q[:, None], k),
    denominator: Callable[[Tensor], Tensor] = lambda x: torch.log1p(C * x.clamp(min=L)),
) -> BiasOf:
    """psi(i - j) / psi(max(L, later(i, j))) with a part of it changed, for one head."""

    def ratio(q: Tensor, k: Tensor) -> Tensor:
        return (numerator((q[:, None] - k).to(DOUBLE)) / denominator(later(q, k).to(DOUBLE)))[None]

    return ratio


def fire_by_rows(q: Tensor, k: Tensor) -> Tensor:
    return fire_ratio(torch.arange(len(q)), k, *scalars(C, L))[None]


check = {name: partial(check_formula, name) for name in FORMULAS}
MADE_RIGHT: list[tuple[Callable[..., None], Any]] = [
    (check["alibi"], of_distance(lambda d: d)),
    (check["alibi_asymmetric"], with_bonus(lambda d: d > 0)),
    (check["kerple_log"], of_kernel(lambda d, p, a: -p * torch.log1p(a * d))),
    (check["sandwich_small"], other_sandwich()),
    (check["fire_ratio"], other_fire()),
]
MISTAKES: dict[str, tuple[Callable[..., None], Any]] = {
    "alibi: slopes of a power of two for any number": (check_slopes, powers(1)),
    "alibi: slopes from one on": (check_slopes, powers(0)),
    "alibi: the sign reversed": (check["alibi"], of_distance(lambda d: d, -1)),
    "alibi: one-sided": (check["alibi"], of_distance(lambda d: d.clamp(min=0))),
    # slope * (j - i): right in a decoder, a reward for the far future in an encoder
    "alibi: the distance with its sign": (
        check["alibi"],
        lambda q, k: -SLOPES[:, None, None] * (q[:, None] - k),
    ),
    "alibi: slopes scaled in place": (check_anywhere, scaled_in_place()),
    "alibi: sliced from the front": (check_anywhere, SlicedFromTheFront(bias_of(Alibi(n_heads=H)))),
    "alibi: bonus for the future": (check["alibi_asymmetric"], with_bonus(lambda d: d < 0)),
    "alibi: bonus for the own place": (check["alibi_asymmetric"], with_bonus(lambda d: d >= 0)),
    "alibi: bonus for both sides": (check["alibi_asymmetric"], with_bonus(lambda d: d != 0)),
    "alibi: bonus without the slope": (
        check["alibi_asymmetric"],
        with_bonus(lambda d: d > 0, sloped=False),
    ),
    "alibi: bonus in the decoder": (check_behind_a_mask, BonusBehindTheMask),
    # NeMo's KERPLE
    "kerple: a is zero and no parameter": (
        check_kernel_is_trained,
        lambda d, p, a: kerple_log_bias(d, p, torch.zeros_like(a).detach()),
    ),
    "kerple: NaN for a gradient at distance 0": (check_kernel_is_trained, power_by_logarithm),
    "kerple: power of everything": (
        check["kerple_power"],
        of_kernel(lambda d, p, a: -((a * d) ** p)),
    ),
    "kerple: the sign reversed": (
        check["kerple_log"],
        of_kernel(lambda d, p, a: p * torch.log1p(a * d)),
    ),
    "sandwich: frequencies from zero on": (check["sandwich_small"], other_sandwich(first=0)),
    "sandwich: no shift to zero": (check["sandwich_small"], other_sandwich(shift=0)),
    "sandwich: shift by the width": (check["sandwich_small"], other_sandwich(shift=1)),
    "sandwich: all heads alike": (check["sandwich_small"], other_sandwich(heads=False)),
    "sandwich: sine of the distance": (check["sandwich_small"], other_sandwich(wave=torch.sin)),
    "fire: without the threshold": (
        check["fire_ratio"],
        other_fire(denominator=lambda x: torch.log1p(C * x.clamp(min=1))),
    ),
    "fire: divided by the query alone": (
        check["fire_ratio"],
        other_fire(later=lambda q, k: q[:, None]),
    ),
    "fire: no absolute value": (check["fire_ratio"], other_fire(lambda d: torch.log(C * d + 1))),
    "fire: no logarithm": (
        check["fire_ratio"],
        other_fire(torch.abs, denominator=lambda x: x.clamp(min=L)),
    ),
    "fire: divided by the length": (check["fire_ratio"], other_fire(later=lambda q, k: k.max())),
    "fire: positions counted from zero": (partial(check_anywhere, absolute=True), fire_by_rows),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(*MISTAKES[mistake])


def test_the_made_mistakes_are_the_only_fault() -> None:
    for right, made in MADE_RIGHT:
        right(made)
