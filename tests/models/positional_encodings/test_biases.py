"""Biases by distance: the papers' formulas, other implementations, any places, known mistakes."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial
from typing import Any

import pytest
import torch
from references import ANYWHERE, DOUBLE, catches, distances, normal
from tiny_models import close, configured, tiny_config
from torch import Tensor
from transformers import T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention
from x_transformers.x_transformers import AlibiPositionalBias, RelativePositionBias

import configs.positions as config
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
from models.positional_encodings.t5 import T5Bias, t5_buckets

H, HEAD_DIM, C, L = 8, 4, 0.25, 5.0
SHAPE = {"d_model": H * HEAD_DIM, "n_heads": H}
BiasOf = Callable[[Tensor, Tensor], Tensor]  # positions of queries and keys -> [H,Tq,Tk]
Formula = Callable[[int, int, int], float]  # of head h, from 1, of query i and key j
SLOPES = alibi_slopes(H, dtype=DOUBLE)
BIASES: dict[str, config.Position] = {
    "alibi": config.Alibi(),
    "alibi_asymmetric": config.Alibi(asymmetry=0.75),
    "t5": config.T5(),
    "t5_causal": config.T5(),
    "kerple_log": config.Kerple(),
    "kerple_power": config.Kerple(form="power"),
    "fire": config.Fire(width=6, c=C, threshold=L),
    "sandwich": config.Sandwich(),
    "sandwich_small": config.Sandwich(width=6, base=50.0),
}
every_bias = pytest.mark.parametrize("name", BIASES)
both_forms: Any = pytest.mark.parametrize("form", ["log", "power"])


def module_of(name: str, dtype: torch.dtype = DOUBLE) -> AttentionPosition:
    torch.manual_seed(3)
    kind: Any = "decoder" if name == "t5_causal" else "encoder"
    return configured(BIASES[name], kind, **SHAPE).to(dtype)


def bias_of(module: AttentionPosition, *, causal: bool = False) -> BiasOf:
    return lambda q, k: module.bias(Places(q, k, causal=causal))


def whole(bias: BiasOf, length: int) -> Tensor:
    return bias(torch.arange(length), torch.arange(length))


def check_anywhere(bias: BiasOf, *, absolute: bool = False) -> None:
    """Queries and keys at any places, one token or a few, get their entries of the whole bias."""
    for q, k in ANYWHERE.values():
        both = torch.cat((q, k))
        first = 0 if absolute else int(both.min())
        full = whole(bias, int(both.max()) - first + 1)
        close(bias(q, k), full[:, q - first][:, :, k - first])


# ----------------------------------------------------------------------------------------- formulas


def asymmetric(side: Callable[[int], bool], h: int, i: int, j: int) -> float:
    return 2.0**-h * (0.75 * side(i - j) - abs(i - j))


def sandwich(
    h: int, i: int, j: int, width=6, base=50.0, first: int = 1, shift: float = 0.5, wave=math.cos
) -> float:
    exponents = (-2 * pair / width for pair in range(first, first + width // 2))
    return (sum(wave((i - j) * base**e) for e in exponents) - shift * width) / (8 * h / H)


def log_psi(x: float) -> float:
    return math.log(abs(C * x) + 1)


def ratio_of_fire(i: int, j: int, psi: Any = log_psi, later: Any = max, least=L) -> float:
    return psi(i - j) / psi(max(least, later(i, j)))  # i alone in the paper, where j <= i


@cache
def fire_network() -> Any:
    return module_of("fire").requires_grad_(False)


def fire(h: int, i: int, j: int, **changes: Any) -> float:
    module, ratio = fire_network(), ratio_of_fire(i, j, **changes)
    units = zip(module.hidden.weight[:, 0], module.hidden.bias, module.out.weight[h - 1])
    hidden = (out * max(0.0, float(w * ratio + b)) for w, b, out in units)
    return float(module.out.bias[h - 1] + sum(hidden))


# KERPLE's parameters start at the centres of H equal parts of 0 .. 2 (p) and 0 .. 1 (a).
FORMULAS: dict[str, Formula] = {
    "alibi": lambda h, i, j: -(2.0**-h) * abs(i - j),
    "alibi_asymmetric": partial(asymmetric, lambda d: d > 0),
    "kerple_log": lambda h, i, j: -(2 * h - 1) / H * math.log(1 + (h - 0.5) / H * abs(i - j)),
    "kerple_power": lambda h, i, j: -(h - 0.5) / H * abs(i - j) ** ((2 * h - 1) / H),
    "fire": fire,
    "sandwich": partial(sandwich, width=128, base=10000.0),
    "sandwich_small": sandwich,
}


def check_formula(name: str, formula: Formula) -> None:
    t, full = range(9), whole(bias_of(module_of(name)), 9)
    expected = [[[formula(h, i, j) for j in t] for i in t] for h in range(1, H + 1)]
    close(full, torch.tensor(expected, dtype=DOUBLE))


@pytest.mark.parametrize("name", FORMULAS)
def test_a_bias_follows_the_papers_formula(name: str) -> None:
    check_formula(name, FORMULAS[name])


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


def check_behind_a_mask(name: str) -> None:
    """There is one side alone, and no symmetry to break."""
    masked = bias_of(module_of("alibi_asymmetric"), causal=True)
    close(whole(masked, 9), whole(bias_of(module_of(name)), 9))


def test_asymmetric_alibi_is_alibi_behind_a_causal_mask() -> None:
    check_behind_a_mask("alibi")


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
    assert asked == [len(q) + len(k) - 1, len(k), 7]


# ------------------------------------------------------------------------------ KERPLE's parameters


def check_trained(kernel: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
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
    check_trained(kernel)


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
    module, power = Kerple(n_heads=2, form=form).double(), form == "power"
    module.p.data = torch.tensor([-0.3, 2.5], dtype=DOUBLE)
    module.a.data = torch.tensor([0.4, -1.0], dtype=DOUBLE)
    kernel, before = power_kernel if power else kerple_log_bias, module.p.clone()
    clamped = scalars(0.01, 2.0 if power else 2.5), scalars(0.4, 0.01)
    close(whole(bias_of(module), 6), kernel(distances(6), *map(torch.stack, clamped)))
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


# ------------------------------------------------------------------------------------- T5's buckets

# buckets, largest distance
SETTINGS = [(32, 128), (32, 256), (16, 128), (8, 20), (64, 512), (4, 5), (12, 96), (10, 40)]


def check_buckets(buckets_of: Callable[..., Tensor]) -> None:
    """The definition, in rational numbers, at every distance up to beyond the largest."""
    for (n_buckets, far), bidirectional in itertools.product(SETTINGS, (False, True)):
        side = n_buckets // 2 if bidirectional else n_buckets
        exact = side // 2
        thresholds = [Fraction(far, exact) ** k for k in range(side - exact)]
        past = [*range(exact)]
        for n in range(exact, far + 40):
            power = Fraction(n, exact) ** (side - exact)
            past.append(exact - 1 + sum(power >= t for t in thresholds))
        distance = torch.arange(far + 40)
        sizes = {"n_buckets": n_buckets, "max_distance": far, "bidirectional": bidirectional}
        assert buckets_of(-distance, **sizes).tolist() == past
        future = [0, *(side + b if bidirectional else 0 for b in past[1:])]
        assert buckets_of(distance, **sizes).tolist() == future


def test_t5s_buckets_follow_the_definition_exactly() -> None:
    check_buckets(t5_buckets)


# One more of either, and tokens 20 apart fall into other buckets.
SIZES = {"num_buckets": 16, "max_distance": 20}


def t5(scaled: bool) -> Callable[[Any], T5Bias]:
    """What makes the module of a stack."""
    position = config.T5(n_buckets=16, max_distance=20, scaled=scaled)
    return lambda kind: configured(position, kind, **SHAPE)


def t5_attention(bidirectional: bool, d_model: int = H * HEAD_DIM) -> T5Attention:
    shape = {"d_model": d_model, "d_kv": HEAD_DIM, "num_heads": H, "dropout_rate": 0.0}
    shape |= {f"relative_attention_{name}": SIZES[name] for name in SIZES}
    settings = T5Config(**shape, is_decoder=not bidirectional, use_cache=False)
    attention = T5Attention(settings, has_relative_attention_bias=True, layer_idx=0)
    return attention.requires_grad_(False)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5s_bias_is_that_of_others(bidirectional: bool) -> None:
    torch.manual_seed(3)
    module = t5(True)("encoder" if bidirectional else "decoder")
    theirs = t5_attention(bidirectional)
    other = RelativePositionBias(scale=1.0, causal=not bidirectional, heads=H, **SIZES)
    for table in (theirs.relative_attention_bias, other.relative_attention_bias):
        table.weight.data = module.table.data
    bias, keys = bias_of(module), torch.arange(153)
    assert torch.equal(whole(bias, 200), theirs.compute_bias(200, 200)[0])
    assert torch.equal(bias(keys[-3:], keys), other(3, 153))
    assert torch.equal(bias(keys[-1:], keys), theirs.compute_bias(1, 153, past_seen_tokens=152)[0])


def test_a_decoder_of_t5_spends_all_its_buckets_on_the_past() -> None:
    assert whole(bias_of(module_of("t5")), 140)[0].unique().numel() == 31
    assert whole(bias_of(module_of("t5_causal")), 140)[0, -1].unique().numel() == 32


def check_attention(make: Callable[[Any], T5Bias], *, scaled: bool, factor: float = 1.0) -> None:
    """A whole self-attention of ours, on either side, returns what T5's does with its weights.

    T5 leaves out 1/sqrt(Dh); divided queries put it back, beside its bias times the factor.
    """
    n, shape = 21, tiny_config(d_model=H * HEAD_DIM, n_heads=H, bias=False)
    x, at = normal(2, n, shape.d_model, seed=5), torch.arange(n)
    future = torch.full((n, n), -torch.inf, dtype=DOUBLE).triu(1)[None, None]
    for kind, mask in (("encoder", None), ("decoder", future)):
        torch.manual_seed(4)
        module, theirs = make(kind).double(), t5_attention(mask is None).double()
        torch.nn.init.normal_(module.table)
        theirs.relative_attention_bias.weight.data = factor * module.table.data
        ours: Any = SelfAttention(shape, kind=kind, layer=0).double()
        weights = theirs.q.weight, theirs.k.weight, theirs.v.weight
        ours.qkv_proj.weight.data, ours.out_proj.weight = torch.cat(weights), theirs.o.weight
        if scaled:
            theirs.q.weight /= math.sqrt(HEAD_DIM)
        places = Places(at, at, causal=mask is not None)
        close(ours(x, position=module, places=places), theirs(x, mask=mask)[0])


SCALED, UNSCALED = (partial(check_attention, scaled=scaled) for scaled in (True, False))


@pytest.mark.parametrize("scaled", [True, False])
def test_an_attention_with_the_bias_is_t5s(scaled: bool) -> None:
    check_attention(t5(scaled), scaled=scaled)


# ----------------------------------------------------------------------------------------- mistakes


def powers(first: int) -> Callable[[int], Tensor]:
    return lambda n: 2.0 ** (-8 * torch.arange(first, n + first, dtype=DOUBLE) / n)


def scaled_in_place() -> BiasOf:
    """Slopes multiplied in place by every call (NeMo's ALiBi)."""
    slopes = 2 * SLOPES
    return lambda q, k: alibi_bias(q[:, None] - k, slopes.mul_(0.5), causal=False)


class SlicedFromTheFront:
    """A bias of the greatest length so far, of which every call gets the first rows."""

    def __init__(self, bias: BiasOf) -> None:
        self.bias, self.cached = bias, torch.zeros(1, 0, 0)

    def __call__(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        n_queries, n_keys = len(q_positions), len(k_positions)
        if self.cached.shape[1] < max(n_queries, n_keys):
            self.cached = whole(self.bias, max(n_queries, n_keys))
        return self.cached[:, :n_queries, :n_keys]


def power_by_logarithm(distance: Tensor, p: Tensor, a: Tensor) -> Tensor:
    """|d|^p as exp(p ln |d|): its gradient at distance 0 is 0 times infinity."""
    d = distance.abs().to(a.dtype)
    return -a[:, None, None] * torch.exp(p[:, None, None] * d.log())


def fire_by_rows(q: Tensor, k: Tensor) -> Tensor:
    return fire_ratio(torch.arange(len(q)), k, *scalars(C, L))[None]


def float_buckets(rel: Tensor, n_buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    """Logarithms subtracted in float64, which rounds some boundaries down."""
    side = n_buckets // 2 if bidirectional else n_buckets
    n = rel.abs() if bidirectional else rel.neg().clamp(min=0)
    exact = side // 2
    share = (n.double().log() - math.log(exact)) / (math.log(max_distance) - math.log(exact))
    far = (exact + (share.clamp(min=0) * (side - exact)).long()).clamp(max=side - 1)
    return torch.where(n < exact, n, far) + (side * (rel > 0) if bidirectional else 0)


def in_one_half(rel: Tensor, n_buckets: int, bidirectional: bool, **far: int) -> Tensor:
    n_buckets = n_buckets // 2 if bidirectional else n_buckets
    rel = -rel.abs() if bidirectional else rel
    return t5_buckets(rel, n_buckets=n_buckets, bidirectional=False, **far)


# A bias, to be held to another formula.
ALIBI, ASYMMETRIC = partial(check_formula, "alibi"), partial(check_formula, "alibi_asymmetric")
LOG, POWER = partial(check_formula, "kerple_log"), partial(check_formula, "kerple_power")
SANDWICH, FIRE = partial(check_formula, "sandwich_small"), partial(check_formula, "fire")
MISTAKES: dict[str, tuple[Callable[..., None], Any]] = {
    "alibi: slopes of a power of two for any number": (check_slopes, powers(1)),
    "alibi: slopes from one on": (check_slopes, powers(0)),
    "alibi: the sign reversed": (ALIBI, lambda h, i, j: 2.0**-h * abs(i - j)),
    "alibi: one-sided": (ALIBI, lambda h, i, j: -(2.0**-h) * max(i - j, 0)),
    # slope * (j - i): right in a decoder, a reward for the far future in an encoder
    "alibi: its sign kept": (ALIBI, lambda h, i, j: -(2.0**-h) * (i - j)),
    "alibi: slopes scaled in place": (check_anywhere, scaled_in_place()),
    "alibi: sliced from the front": (check_anywhere, SlicedFromTheFront(bias_of(Alibi(n_heads=H)))),
    "alibi: bonus for the future": (ASYMMETRIC, partial(asymmetric, lambda d: d < 0)),
    "alibi: bonus for the own place": (ASYMMETRIC, partial(asymmetric, lambda d: d >= 0)),
    "alibi: bonus for both sides": (ASYMMETRIC, partial(asymmetric, lambda d: d != 0)),
    "alibi: bonus without the slope": (
        ASYMMETRIC,
        lambda h, i, j: 0.75 * (i > j) - 2.0**-h * abs(i - j),
    ),
    "alibi: bonus in the decoder": (check_behind_a_mask, "alibi_asymmetric"),
    # NeMo's KERPLE
    "kerple: a zero for a": (check_trained, lambda d, p, a: kerple_log_bias(d, p, a.new_zeros(3))),
    "kerple: NaN for a gradient at distance 0": (check_trained, power_by_logarithm),
    "kerple: power of everything": (
        POWER,
        lambda h, i, j: -(((h - 0.5) / H * abs(i - j)) ** ((2 * h - 1) / H)),
    ),
    "kerple: the sign reversed": (LOG, lambda *at: -FORMULAS["kerple_log"](*at)),
    "kerple: one-sided": (LOG, lambda h, i, j: FORMULAS["kerple_log"](h, max(i, j), j)),
    "sandwich: frequencies from zero on": (SANDWICH, partial(sandwich, first=0)),
    "sandwich: no shift to zero": (SANDWICH, partial(sandwich, shift=0)),
    "sandwich: shift by the width": (SANDWICH, partial(sandwich, shift=1)),
    "sandwich: all heads alike": (SANDWICH, lambda h, i, j: sandwich(1, i, j)),
    "sandwich: sine of the distance": (SANDWICH, partial(sandwich, wave=math.sin)),
    "t5: logarithms in floating point": (check_buckets, float_buckets),
    "t5: past and future swapped": (check_buckets, lambda rel, **sizes: t5_buckets(-rel, **sizes)),
    "t5: both sides in the same half": (check_buckets, in_one_half),
    "t5: the encoder's buckets in the decoder": (
        check_buckets,
        lambda rel, bidirectional, **sizes: t5_buckets(rel, bidirectional=True, **sizes),
    ),
    "t5: logits divided where T5 does not": (UNSCALED, t5(True)),
    "t5: logits not divided where they should be": (SCALED, t5(False)),
    # the reading of x-transformers
    "t5: bias times the root for unscaled logits": (partial(SCALED, factor=2.0), t5(False)),
    "t5: bias divided by the root too": (partial(SCALED, factor=0.5), t5(True)),
    "fire: without the threshold": (FIRE, partial(fire, least=1.0)),
    "fire: divided by the query alone": (FIRE, partial(fire, later=lambda i, j: i)),
    "fire: no absolute value": (FIRE, partial(fire, psi=lambda x: math.log(max(C * x + 1, 1e-9)))),
    "fire: no logarithm": (FIRE, partial(fire, psi=abs)),
    "fire: divided by the length": (FIRE, partial(fire, later=lambda i, j: 8)),
    "fire: positions counted from zero": (partial(check_anywhere, absolute=True), fire_by_rows),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(*MISTAKES[mistake])
