"""RoPE's scalings: against transformers and x-transformers, equations, steps, known mistakes."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from references import DOUBLE, catches, logits_of, normal, pairs, rotated, stepwise_logits, theta_of
from tiny_models import close, configured
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb as llama_rotate,
)
from x_transformers.x_transformers import RotaryEmbedding as XTransformersRotary

from configs.positions import DynamicNtkScaling, LinearScaling, NtkScaling, Rope, YarnScaling
from models.positional_encodings.base import Places
from models.positional_encodings.rope import Rotary, inverse_frequencies
from models.positional_encodings.rope_scaling import (
    DynamicNtkRotary,
    dynamic_ntk_frequencies,
    linear_frequencies,
    ntk_frequencies,
    yarn_attention_factor,
    yarn_frequencies,
)

Frequencies = Callable[..., Tensor]
PLAIN = {"base": 10000.0, "form": "real", "rope_dim": "head"}
CPU = torch.device("cpu")
either_mask = pytest.mark.parametrize("causal", [False, True])
WAYS = itertools.product(("real", "complex"), ("interleaved", "half"))
every_way: Any = pytest.mark.parametrize(("form", "layout"), [*WAYS])


def rotary(**changes: Any) -> Any:
    return configured(Rope(**{"form": "real", **changes}))


def frequencies_of(scaling: Any) -> Frequencies:
    """Those of the module that a configuration with the fields of such a scaling asks for."""

    def frequencies(dim: int, *, base: float, dtype: torch.dtype, **fields: Any) -> Tensor:
        return rotary(base=base, scaling=scaling(**fields)).frequencies(dim, dtype, CPU)

    return frequencies


def llama(kind: str, dim: int, base: float = 10000.0, length: int = 2048, **scaling: Any):
    return LlamaConfig(
        hidden_size=2 * dim,
        num_attention_heads=2,
        head_dim=dim,
        max_position_embeddings=length,
        rope_parameters={"rope_type": kind, "rope_theta": base, **scaling},
    )


def hf(kind: str, dim: int, *, seq_len: int | None = None, **settings: Any):
    """The inverse frequencies and attention factor of transformers."""
    return ROPE_INIT_FUNCTIONS[kind](llama(kind, dim, **settings), "cpu", seq_len=seq_len)


def test_frequencies_come_in_the_type_asked_for_rounded_once() -> None:
    assert inverse_frequencies(128, dtype=DOUBLE).dtype == DOUBLE
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        assert torch.equal(
            inverse_frequencies(128, dtype=dtype), inverse_frequencies(128).to(dtype)
        )


# -------------------------------------------------------------------------------------- linear, NTK


def check_linear(frequencies: Frequencies) -> None:
    """Position s m behaves as m did."""
    for dim, base, factor in ((16, 10000.0, 4.0), (8, 500.0, 1.5)):
        theta = frequencies(dim, base=base, factor=factor, dtype=DOUBLE)
        close(factor * 30 * theta, 30 * theta_of(dim, base))


def check_ntk(frequencies: Frequencies) -> None:
    """The first frequency is kept, the last is linear scaling's, in one geometric series."""
    for dim, base, factor in ((16, 10000.0, 4.0), (8, 500.0, 1.5)):
        theta = frequencies(dim, base=base, factor=factor, dtype=DOUBLE)
        close(theta, theta_of(dim, base * factor ** (dim / (dim - 2))), 1e-12)
        assert theta[0] == 1.0
        close(theta[-1], theta_of(dim, base)[-1] / factor)


def test_linear_scaling_is_position_interpolation() -> None:
    check_linear(frequencies_of(LinearScaling))
    for dim, base, factor in ((64, 10000.0, 4.0), (8, 500.0, 1.5)):
        theirs, magnitude = hf("linear", dim, base=base, factor=factor)
        close(linear_frequencies(theta_of(dim, base), factor=factor).float(), theirs, 1e-6)
        assert magnitude == 1.0
    freqs, _ = XTransformersRotary(16, interpolation_factor=4.0)(torch.arange(20))
    ours = torch.arange(20)[:, None] * linear_frequencies(theta_of(16), factor=4.0)
    close(freqs[0, :, ::2], ours.float(), 1e-6)


def test_ntk_scaling_keeps_the_first_frequency_and_interpolates_the_last() -> None:
    check_ntk(frequencies_of(NtkScaling))
    close(ntk_frequencies(theta_of(2), factor=3.0), theta_of(2))  # one pair keeps its own
    for dim, factor in ((64, 4.0), (8, 1.5)):
        theirs = XTransformersRotary(dim, base_rescale_factor=factor).inv_freq
        ours = ntk_frequencies(theta_of(dim), factor=factor).float()
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


# --------------------------------------------------------------------------------------------- YaRN

YARN: Any = {"base": 10000.0, "factor": 3.0, "trained_length": 64}
# (dim, base, factor, trained length, beta_fast, beta_slow)
YARN_SETTINGS = [
    (64, 10000.0, 4.0, 256, 32.0, 1.0),
    (128, 10000.0, 16.0, 4096, 32.0, 1.0),
    (128, 1e6, 8.0, 2048, 16.0, 2.0),
    (32, 10000.0, 2.0, 20, 32.0, 1.0),
    (8, 500.0, 3.0, 29, 32.0, 1.0),  # one longer, and the ramp ends a pair later
    (16, 20.0, 4.0, 2535, 32.0, 1.0),  # the ramp would end past the last dimension
]


def check_yarn(frequencies: Frequencies) -> None:
    """Those of the public code: pairs that turn often kept, slow ones interpolated."""
    for dim, base, factor, length, fast, slow in YARN_SETTINGS:
        betas = {"beta_fast": fast, "beta_slow": slow}
        given = {"base": base, "factor": factor, **betas}
        theta = frequencies(dim, **given, trained_length=length, dtype=DOUBLE)
        theirs, magnitude = hf("yarn", dim, **given, original_max_position_embeddings=length)
        torch.testing.assert_close(theta.float(), theirs, rtol=2e-6, atol=0)
        assert yarn_attention_factor(factor) == pytest.approx(magnitude, abs=1e-12)


def check_yarn_logits(turn: Callable[[Tensor, Tensor, str], Tensor]) -> None:
    """The logits are (0.1 ln s + 1)^2 times those of the same frequencies, at every position."""
    q, k = normal(1, 2, 6, 16), normal(1, 2, 6, 16, seed=1)
    positions = torch.tensor([0, 1, 5, 30, 100, 101])
    theta = yarn_frequencies(theta_of(16), **YARN)
    plain = rotated(q, positions, theta) @ rotated(k, positions, theta).mT
    logits = turn(q, positions, "query") @ turn(k, positions, "key").mT
    close(logits, plain * (0.1 * math.log(3.0) + 1) ** 2)


def test_yarn_is_that_of_the_public_code() -> None:
    check_yarn(frequencies_of(YarnScaling))
    # Within one turn all but the first pair are interpolated.
    theta = yarn_frequencies(theta_of(16), base=10000.0, factor=2.0, trained_length=2)
    close(theta, torch.cat((theta_of(16)[:1], theta_of(16)[1:] / 2)))


@every_way
def test_yarn_multiplies_the_logits(form, layout) -> None:
    scaling = YarnScaling(factor=3.0, trained_length=64)
    position = rotary(form=form, layout=layout, scaling=scaling)
    order = torch.cat(pairs("interleaved", 16)) if layout == "half" else torch.arange(16)
    check_yarn_logits(lambda x, positions, role: position.rotate(x[..., order], positions, role))


# -------------------------------------------------------------------------------------- dynamic NTK

L, FACTOR, DIM = 6, 2.0, 8
STRETCHED = DynamicNtkScaling(factor=FACTOR, trained_length=L)


def dynamic(cls: type[DynamicNtkRotary] = DynamicNtkRotary, **changes: Any) -> Any:
    return configured(Rope(**{"form": "real", "scaling": STRETCHED, **changes}), cls=cls)


def growth(length: int, factor: float, trained: int) -> float:
    return max(1.0, factor * length / trained - (factor - 1))


def grown(length: int) -> float:
    return 10000.0 * growth(length, FACTOR, L) ** (DIM / (DIM - 2))


def logits_at(
    length: int, q: Tensor, k: Tensor, q_at: Tensor, k_at: Tensor, layout: str = "interleaved"
) -> Tensor:
    theta = theta_of(DIM, grown(length))
    return rotated(q, q_at, theta, layout) @ rotated(k, k_at, theta, layout).mT * DIM**-0.5


def check_growth(growth: Callable[[int, float, int], float]) -> None:
    """Exactly the unscaled ones up to the trained length, then a base that grows."""
    lengths = torch.tensor([[1, 3, 6], [7, 12, 600]])
    for dim, factor in ((DIM, 2.0), (64, 1.1), (4, 3.3)):
        plain = theta_of(dim)
        of = partial(dynamic_ntk_frequencies, plain, factor=factor, trained_length=6)
        theta = of(length=lengths)
        assert torch.equal(theta[0], plain.expand(3, dim // 2))
        for row, length in zip(theta.flatten(0, 1), lengths.flatten()):
            base = 10000 * growth(length.item(), factor, 6) ** (dim / (dim - 2))
            close(row, theta_of(dim, base), 1e-12)
            assert torch.equal(row, of(length=length))


def test_dynamic_frequencies_are_the_default_up_to_the_trained_length() -> None:
    check_growth(growth)
    theta = theta_of(DIM)
    twice = dynamic_ntk_frequencies(theta, factor=3.0, trained_length=10, length=20)
    close(twice, ntk_frequencies(theta, factor=4.0))
    for dim, length in ((64, 100), (64, 129), (32, 1000)):
        theirs, _ = hf("dynamic", dim, seq_len=length, length=128, factor=2.5)
        theta = theta_of(dim)
        ours = dynamic_ntk_frequencies(theta, factor=2.5, trained_length=128, length=length)
        torch.testing.assert_close(ours.float(), theirs, rtol=2e-6, atol=0)


def check_steps(position: Any) -> None:
    """In steps every query gets the frequencies of the length it sees, for all of its keys."""
    n, at = 14, torch.arange(14)
    q, k = normal(2, 3, n, DIM), normal(2, 3, n, DIM, seed=1)
    layout = position.layout
    rows = [logits_at(i + 1, q[:, :, i, None], k, at[i, None], at, layout) for i in range(n)]
    expected = torch.cat(rows, dim=2).tril()
    for chunks, ranged in itertools.product(([1] * n, [5, 5, 4], [n]), (False, True)):
        close(stepwise_logits(position, q, k, chunks, ranged=ranged), expected)


def rows_of(ends: list[int], at: Tensor) -> Tensor:
    """The padding [B,1,1,T] of rows that end before these positions."""
    return (at < torch.tensor(ends)[:, None])[:, None, None]


def check_rows(position: Any) -> None:
    """Without a causal mask a row's length is its sentence's: not that of padding."""
    ends, at = [4, 9, 13], torch.arange(13)
    q, k = normal(3, 2, 13, DIM), normal(3, 2, 13, DIM, seed=1)
    places = Places(at, at, real_keys=rows_of(ends, at), k_span=(0, 13))
    whole = logits_of(position, q, k, places)
    assert torch.isfinite(whole).all()
    for b, end in enumerate(ends):
        own_q, own_k, own = q[b : b + 1, :, :end], k[b : b + 1, :, :end], at[:end]
        expected = logits_at(end, own_q, own_k, own, own, position.layout)
        close(whole[b : b + 1, :, :end, :end], expected)
        close(logits_of(position, own_q, own_k, Places(own, own)), expected)


@every_way
@pytest.mark.parametrize("check", [check_steps, check_rows])
def test_every_causal_query_and_every_row_has_its_own_length(check, form, layout) -> None:
    """Cached or not, whatever the padding."""
    check(dynamic(form=form, layout=layout))


@either_mask
def test_queries_and_keys_stand_where_their_positions_say(causal: bool) -> None:
    """Keys with gaps, and queries that are some of them."""
    keys = torch.tensor([1, 2, 5, 9, 12])
    chosen = torch.tensor([2, 4])
    q, k = normal(1, 2, 2, DIM), normal(1, 2, 5, DIM, seed=1)
    logits = logits_of(dynamic(), q, k, Places(keys[chosen], keys, causal=causal))
    for row, i in enumerate(keys[chosen].tolist()):
        seen = int((keys <= i).sum()) if causal else 5
        length, query = i + 1 if causal else 13, q[:, :, row, None]
        expected = logits_at(length, query, k[:, :, :seen], torch.tensor([i]), keys[:seen])
        close(logits[:, :, row, None, :seen], expected)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_the_last_query_is_that_of_transformers(layout: str) -> None:
    n = 20
    q, k, at = normal(1, 2, n, DIM).float(), normal(1, 2, n, DIM, seed=1).float(), torch.arange(n)
    theirs = LlamaRotaryEmbedding(llama("dynamic", DIM, length=L, factor=FACTOR))
    cos, sin = theirs(q, at[None])
    order = torch.cat(pairs(layout, DIM))
    theirs_q, theirs_k = llama_rotate(q[..., order], k[..., order], cos, sin)
    expected = theirs_q @ theirs_k.mT * DIM**-0.5
    position = dynamic(layout=layout)
    causal = logits_of(position, q, k, Places(at, at, causal=True))
    close(causal[:, :, -1], expected[:, :, -1], 1e-5)
    # theirs has one length for all
    assert (causal[:, :, -2, :-1] - expected[:, :, -2, :-1]).abs().max() > 1e-3
    close(logits_of(position, q, k, Places(at, at)), expected, 1e-5)


@either_mask
def test_within_the_trained_length_there_is_nothing_to_correct(causal: bool) -> None:
    q, at = normal(2, 2, L, DIM), torch.arange(L)
    padding = None if causal else rows_of([3, L], at)
    places = Places(at, at, causal=causal, real_keys=padding)
    assert dynamic().logit_term(q, q, places, None) is None


@either_mask
def test_gradients_pass_through_the_correction(causal: bool) -> None:
    position, at = dynamic(scaling=replace(STRETCHED, trained_length=3)), torch.arange(5)
    q, k = normal(2, 1, 5, 4).requires_grad_(), normal(2, 1, 5, 4, seed=1).requires_grad_()
    places = Places(at, at, causal=causal, real_keys=None if causal else rows_of([2, 5], at))

    def term(a: Tensor, b: Tensor) -> Tensor:
        return position.logit_term(a, b, places, None)

    assert torch.autograd.gradcheck(term, (q, k))
    assert all(g.abs().max() > 1e-3 for g in torch.autograd.grad(term(q, k).pow(2).sum(), (q, k)))


@either_mask
def test_the_correction_is_computed_in_float32_under_autocast(causal: bool) -> None:
    position, at = dynamic(), torch.arange(12)
    q, k = normal(1, 2, 12, DIM).bfloat16(), normal(1, 2, 12, DIM, seed=1).bfloat16()
    exact = position.logit_term(q.double(), k.double(), Places(at, at, causal=causal), None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        term = position.logit_term(q, k, Places(at, at, causal=causal), None)
    assert term.dtype == torch.float32
    close(term.double(), exact, 1e-5)


# ----------------------------------------------------------------------------------------- mistakes


def _of_base(rule: Callable[[float, float, int], float]) -> Frequencies:
    return lambda dim, *, base, factor, dtype: theta_of(dim, rule(base, factor, dim))


def _stretched(dim, *, base, factor, power, **_) -> Tensor:
    return theta_of(dim, base) * factor**power


def _upside_down(dim, *, factor, base, dtype, **settings) -> Tensor:
    theta = theta_of(dim, base)
    return theta * (1 + 1 / factor) - yarn_frequencies(theta, base=base, factor=factor, **settings)


def _equation_18(dim, *, base, factor, trained_length, beta_fast, beta_slow, dtype) -> Tensor:
    theta = theta_of(dim, base)
    turns = trained_length * theta / (2 * math.pi)
    kept = ((turns - beta_slow) / (beta_fast - beta_slow)).clamp(0, 1)
    return theta * kept + theta / factor * (1 - kept)


def _magnitude_on(
    cosine: float, sine: float, keys: float
) -> Callable[[Tensor, Tensor, str], Tensor]:
    """YaRN's factor to these powers: on the cosine, on the sine, and on whole keys."""

    def turn(x: Tensor, positions: Tensor, role: str) -> Tensor:
        theta = yarn_frequencies(theta_of(16), **YARN)
        angles, m = positions[:, None] * theta, yarn_attention_factor(3.0)
        cos, sin = angles.cos() * m**cosine, angles.sin() * m**sine
        a, b = x[..., 0::2], x[..., 1::2]
        out = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
        return out / m ** (1 - keys) if role == "key" else out

    return turn


class _KeysTurnedOnce(Rotary):
    """Cached keys keep the frequencies that were right when they came."""

    def rotate(self, x: Tensor, positions: Tensor, role) -> Tensor:
        return self.turn(x, positions, theta_of(DIM, grown(int(positions[-1]) + 1)))


class _LongestCounts(DynamicNtkRotary):
    """The length of the longest of the batch's rows, or of the pass's queries."""

    def _lengths(self, places: Places) -> Tensor | None:
        lengths = super()._lengths(places)
        return None if lengths is None else lengths.max().expand_as(lengths)


class _PaddingCounts(DynamicNtkRotary):
    def _lengths(self, places: Places) -> Tensor | None:
        return places.k_positions[-1:] + 1


class _CorrectionOfUnscaledLogits(DynamicNtkRotary):
    def logit_term(self, *arguments: Any) -> Tensor | None:
        term = super().logit_term(*arguments)
        return None if term is None else term * DIM**0.5


MISTAKES: dict[str, tuple[Callable[..., None], Any]] = {
    "positions multiplied": (check_linear, partial(_stretched, power=1)),
    "the base divided": (check_linear, _of_base(lambda b, s, d: b / s)),
    "NTK without an exponent": (check_ntk, _of_base(lambda b, s, d: b * s)),
    "NTK with (D-2)/D": (check_ntk, _of_base(lambda b, s, d: b * s ** ((d - 2) / d))),
    "linear for NTK": (check_ntk, frequencies_of(LinearScaling)),
    "YaRN: the ramp of equation 18": (check_yarn, _equation_18),
    "YaRN: kept and interpolated exchanged": (check_yarn, _upside_down),
    "YaRN: interpolation alone": (check_yarn, partial(_stretched, power=-1)),
    "YaRN: magnitude on the cosine alone": (check_yarn_logits, _magnitude_on(1, 0, 1)),
    "YaRN: magnitude on queries alone": (check_yarn_logits, _magnitude_on(1, 1, 0)),
    "dynamic: scaled inside L": (check_growth, lambda t, s, n: s),
    "dynamic: not clamped": (check_growth, lambda t, s, n: abs(s * t / n - (s - 1))),
    "dynamic: without s - 1": (check_growth, lambda t, s, n: max(1, s * t / n)),
    "dynamic: keys cached as they were rotated": (check_steps, _KeysTurnedOnce(**PLAIN)),
    "dynamic: one length for a whole pass": (check_steps, dynamic(_LongestCounts)),
    "dynamic: no correction": (check_steps, Rotary(**PLAIN)),
    "dynamic: correction not scaled": (check_steps, dynamic(_CorrectionOfUnscaledLogits)),
    "dynamic: padding counts": (check_rows, dynamic(_PaddingCounts)),
    "dynamic: the longest row counts": (check_rows, dynamic(_LongestCounts)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(*MISTAKES[mistake])


def test_the_made_mistakes_are_the_only_fault() -> None:
    check_yarn_logits(_magnitude_on(1, 1, 1))
