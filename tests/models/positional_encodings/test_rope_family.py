"""Sinusoid layouts, rotations, their scalings and xPos: against public implementations, equations
and invariants.

An invariant that a known public mistake breaks is a function `check_...` of an implementation; the
mistake is then put in on purpose, and the same check has to fail.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj_rotate
from transformers.models.llama.modeling_llama import (
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb as llama_rotate,
)
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.xlnet.modeling_xlnet import XLNetModel
from x_transformers.x_transformers import (
    RotaryEmbedding as XTransformersRotary,
    apply_rotary_pos_emb as x_transformers_rotate,
)

from models.positional_encodings.base import AttentionPosition, Places
from models.positional_encodings.rope import (
    Rotary,
    inverse_frequencies,
    rotate_complex,
    rotate_real,
)
from models.positional_encodings.rope_scaling import (
    DynamicNtkRotary,
    LinearScaling,
    NtkScaling,
    YarnScaling,
    dynamic_ntk_frequencies,
    linear_frequencies,
    ntk_frequencies,
    yarn_attention_factor,
    yarn_frequencies,
    yarn_index_ramp,
)
from models.positional_encodings.sinusoidal import (
    SinusoidalInput,
    SinusoidalScheme,
    SinusoidLayout,
    sinusoid_table,
)
from models.positional_encodings.xpos import XPos, xpos_scale, xpos_scores

DOUBLE = torch.float64
LAYOUTS = ("interleaved", "half")
FORMS = ("real", "complex")

Table = Callable[[Tensor, int], Tensor]  # positions [T], d -> [T,d]
BaseTable = Callable[[Tensor, int, float], Tensor]  # positions [T], d, base -> [T,d]
Turn = Callable[[Tensor, Tensor], Tensor]  # x [B,H,T,Dh], positions [T] -> x, turned
Frequencies = Callable[..., Tensor]
OfAngles = Callable[[Tensor], Tensor]


def close(a: Tensor, b: Tensor, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def rotary(**changes) -> Rotary:
    return Rotary(**{"base": 10000.0, "form": "real", "rope_dim": "head", **changes})


def dynamic(cls: type[DynamicNtkRotary] = DynamicNtkRotary, **changes) -> DynamicNtkRotary:
    settings = {
        "base": 10000.0,
        "form": "real",
        "rope_dim": "head",
        "factor": 2.0,
        "trained_length": 6,
    }
    return cls(**{**settings, **changes})


def xpos(**changes) -> XPos:
    return XPos(**{"base": 10000.0, "gamma": 0.4, "scale_base": 512.0, "form": "real", **changes})


def queries(position: AttentionPosition) -> Turn:
    return lambda x, positions: position.rotate(x, positions, "query")


def pairs(layout: str, dim: int) -> tuple[Tensor, Tensor]:
    """Which dimensions make the pairs 0 .. dim/2 - 1."""
    i = torch.arange(dim // 2)
    return (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + dim // 2)


def theta_of(dim: int, base: float = 10000.0) -> Tensor:
    return torch.tensor([base ** (-2 * i / dim) for i in range(dim // 2)], dtype=DOUBLE)


def from_the_equation(
    x: Tensor, positions: Tensor, theta: Tensor, layout: str = "interleaved"
) -> Tensor:
    """RoFormer, equation 34, pair by pair."""
    out = torch.empty_like(x)
    for t, m in enumerate(positions.tolist()):
        for a, b, w in zip(
            *(index.tolist() for index in pairs(layout, x.shape[-1])), theta.tolist()
        ):
            cos, sin = math.cos(m * w), math.sin(m * w)
            out[..., t, a] = x[..., t, a] * cos - x[..., t, b] * sin
            out[..., t, b] = x[..., t, a] * sin + x[..., t, b] * cos
    return out


# ---------------------------------------------------------------------------------------- sinusoids


def check_table(table: Table) -> None:
    """Specification, invariants of a sinusoid table in the paper's layout; it must know positions,
    not rows.
    """
    d, positions = 32, torch.arange(3, 43)
    rows = table(positions, d)
    close(rows.pow(2).sum(-1), torch.full((40,), d / 2, dtype=DOUBLE))
    omega = theta_of(d)
    for k in (1, 7):
        close((rows[k:] * rows[:-k]).sum(-1), torch.cos(k * omega).sum().expand(40 - k))
        # M(k) PE(t) = PE(t+k), with sin(a+b) = sin a cos b + cos a sin b and cos(a+b) = cos a cos b
        # - sin a sin b
        cos, sin = torch.cos(k * omega), torch.sin(k * omega)
        shift = torch.block_diag(
            *torch.stack((torch.stack((cos, sin), -1), torch.stack((-sin, cos), -1)), -2)
        )
        close(rows[:-k] @ shift.T, rows[k:])
    close(table(positions[11:12], d), rows[11:12])
    close(table(torch.tensor([0]), d)[0], torch.tensor([0.0, 1.0] * (d // 2), dtype=DOUBLE))


def test_the_table_has_the_invariants_of_the_paper() -> None:
    check_table(lambda positions, d: sinusoid_table(positions, d, dtype=DOUBLE))
    scheme = SinusoidalScheme(base=10000.0)
    check_table(lambda p, d: scheme.input("target")(torch.zeros(1, len(p), d, dtype=DOUBLE), p)[0])


def _sinusoids(angles: Tensor) -> Tensor:
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


SINUSOID_MISTAKES: dict[str, Table] = {
    # exponent 2i/d with i that already counts in steps of two
    "exponent counted twice": lambda p, d: _sinusoids(
        p[:, None] * 10000 ** (-2 * torch.arange(0, d, 2).double() / d)
    ),
    # pe[:, :x.size(1)]: the rows are counted, the positions not looked at
    "table sliced from the front": lambda p, d: sinusoid_table(
        torch.arange(len(p)), d, dtype=DOUBLE
    ),
    "sine and cosine exchanged": lambda p, d: sinusoid_table(p, d, dtype=DOUBLE)[
        :, torch.arange(d) ^ 1
    ],
    "frequencies that do not decrease": lambda p, d: _sinusoids(p[:, None] * theta_of(d).flip(0)),
    "another layout": lambda p, d: sinusoid_table(p, d, layout="half", dtype=DOUBLE),
    "tensor2tensor's frequencies": lambda p, d: _sinusoids(
        p[:, None] * 10000 ** -torch.linspace(0, 1, d // 2, dtype=DOUBLE)
    ),
}


@pytest.mark.parametrize("mistake", SINUSOID_MISTAKES)
def test_a_known_mistake_is_caught_sinusoids(mistake: str) -> None:
    with pytest.raises(AssertionError):
        check_table(SINUSOID_MISTAKES[mistake])


def check_half(table: BaseTable) -> None:
    """Marian's table, and XLNet's of distances that are negative too."""
    marian = MarianSinusoidalPositionalEmbedding(60, 16)
    torch.testing.assert_close(
        table(torch.arange(60), 16, 10000.0).float(), marian.create_weight(), rtol=0, atol=1e-7
    )
    distances = torch.arange(9, -9, -1)
    xlnet = XLNetModel.positional_embedding(
        distances.double(), 1 / 500 ** (torch.arange(0, 16, 2).double() / 16)
    )
    close(table(distances, 16, 500.0), xlnet[:, 0])


def check_t2t(table: BaseTable) -> None:
    """M2M100's table, and the formula with another base at some positions."""
    theirs = M2M100SinusoidalPositionalEmbedding.get_embedding(60, 16)
    ours = table(torch.arange(60), 16, 10000.0)
    torch.testing.assert_close(
        ours.float(), theirs, rtol=0, atol=2e-5
    )  # theirs are angles of float32
    expected = [
        [f(t * 500.0 ** (-i / 4)) for f in (math.sin, math.cos) for i in range(5)]
        for t in (0, 3, 50)
    ]
    close(table(torch.tensor([0, 3, 50]), 10, 500.0), torch.tensor(expected, dtype=DOUBLE))


def our_table(layout: SinusoidLayout) -> BaseTable:
    return lambda positions, d, base: sinusoid_table(
        positions, d, base=base, layout=layout, dtype=DOUBLE
    )


def test_the_half_layout_is_that_of_marian_and_xlnet() -> None:
    check_half(our_table("half"))


def test_the_t2t_layout_is_that_of_m2m100_and_of_the_formula() -> None:
    check_t2t(our_table("t2t"))


def _halves(
    exponents: Callable[[int], Tensor], first: OfAngles = torch.sin, second: OfAngles = torch.cos
) -> BaseTable:
    """first of all angles, then second; exponents of the base for n frequencies."""

    def table(positions: Tensor, d: int, base: float) -> Tensor:
        angles = positions[:, None] * base ** -exponents(d // 2)
        return torch.cat((first(angles), second(angles)), dim=-1)

    return table


def _of_half(n: int) -> Tensor:
    return torch.arange(n, dtype=DOUBLE) / n


def _of_t2t(n: int) -> Tensor:
    return torch.arange(n, dtype=DOUBLE) / (n - 1)


LAYOUT_MISTAKES: dict[str, tuple[Callable[[BaseTable], None], BaseTable]] = {
    "half: the paper's order": (check_half, our_table("interleaved")),
    "half: cosines first": (check_half, _halves(_of_half, torch.cos, torch.sin)),
    "half: exponents over d/2 - 1": (check_half, _halves(_of_t2t)),
    "half: the last frequencies first": (check_half, _halves(lambda n: _of_half(n).flip(0))),
    "half: distances without their sign": (
        check_half,
        lambda p, d, base: our_table("half")(p.abs(), d, base),
    ),
    "t2t: the paper's order": (
        check_t2t,
        lambda p, d, base: our_table("t2t")(p, d, base)[:, torch.arange(d).view(2, -1).T.flatten()],
    ),
    "t2t: cosines first": (check_t2t, _halves(_of_t2t, torch.cos, torch.sin)),
    "t2t: exponents over d/2": (check_t2t, _halves(_of_half)),
    "t2t: exponents over d - 1": (
        check_t2t,
        _halves(lambda n: 2 * torch.arange(n, dtype=DOUBLE) / (2 * n - 1)),
    ),
    # Where padding has id 1, fairseq and its heirs give the first token position 2.
    "t2t: counted from the padding": (
        check_t2t,
        lambda p, d, base: our_table("t2t")(p + 2, d, base),
    ),
}


@pytest.mark.parametrize("mistake", LAYOUT_MISTAKES)
def test_a_known_mistake_is_caught_layouts(mistake: str) -> None:
    check, mistaken = LAYOUT_MISTAKES[mistake]
    with pytest.raises(AssertionError, match="not close"):
        check(mistaken)


def test_the_made_mistakes_of_layouts_are_the_only_fault() -> None:
    check_half(_halves(_of_half))
    check_t2t(_halves(_of_t2t))


def test_the_half_layout_is_the_papers_in_another_order() -> None:
    positions = torch.tensor([0, 5, 900])
    plain = sinusoid_table(positions, 12, base=300.0, dtype=DOUBLE)
    half = sinusoid_table(positions, 12, base=300.0, layout="half", dtype=DOUBLE)
    assert torch.equal(half, torch.cat((plain[:, 0::2], plain[:, 1::2]), dim=-1))


@pytest.mark.parametrize("layout", ["interleaved", "half", "t2t"])
def test_the_input_module_adds_the_table_of_its_layout(layout) -> None:
    x, positions = normal(2, 3, 8), torch.tensor([4, 5, 6])
    table = sinusoid_table(positions, 8, base=50.0, layout=layout, dtype=DOUBLE)
    close(SinusoidalInput(base=50.0, layout=layout)(x, positions), x + table)
    scheme = SinusoidalScheme(base=50.0, layout=layout)
    for side in ("source", "target"):
        close(scheme.input(side)(x, positions), x + table)


# ----------------------------------------------------------------------------------------- rotation


def check_rope(turn: Turn, layout: str = "interleaved", dim: int = 16) -> None:
    """Specification, invariants of RoPE, on more heads and tokens than one and far from position 0."""
    heads, base = 3, 10000.0
    x, y = normal(2, heads, 5, dim), normal(2, heads, 5, dim, seed=1)
    positions = torch.tensor([0, 3, 4, 11, 2047])
    close(turn(x[:, :, :1], positions[:1]), x[:, :, :1])
    close(turn(x, positions).norm(dim=-1), x.norm(dim=-1))
    close(turn(turn(x, positions), positions.flip(0)), turn(x, positions + positions.flip(0)), 1e-9)
    close(turn(x[:, :, 3:4], positions[3:4]), turn(x, positions)[:, :, 3:4])
    scores = [turn(x, positions + shift) @ turn(y, positions + shift).mT for shift in (0, 37)]
    close(scores[0], scores[1], 1e-9)
    alike = turn(x[:, :1].expand_as(x), positions)
    close(alike, alike[:, :1].expand_as(alike))
    # Pair i of every head turns by m theta_i, anticlockwise.
    a, b = pairs(layout, dim)
    unit = torch.zeros(1, heads, 1, dim, dtype=DOUBLE)
    unit[..., a] = 1.0
    for m in (1, 5):
        out = turn(unit, torch.tensor([m]))[0, :, 0]
        close(out[:, a], torch.cos(m * theta_of(dim, base)).expand(heads, -1))
        close(out[:, b], torch.sin(m * theta_of(dim, base)).expand(heads, -1))


@pytest.mark.parametrize(("form", "layout"), itertools.product(FORMS, LAYOUTS))
def test_rope_has_the_invariants_of_the_paper(form: str, layout: str) -> None:
    check_rope(queries(rotary(form=form, layout=layout)), layout)
    position = rotary(form=form, layout=layout)
    check_rope(lambda x, positions: position.rotate(x, positions, "key"), layout)


def _before_the_split(x: Tensor, positions: Tensor) -> Tensor:
    return rotary(rope_dim="model").rotate(x, positions, "query")


def _cos_of_the_wrong_pair(x: Tensor, positions: Tensor) -> Tensor:
    angles = positions[:, None] * theta_of(x.shape[-1])
    cos, sin = (
        angles.cos().repeat(1, 2),
        angles.sin().repeat(1, 2),
    )  # laid out for halves, used on neighbours
    other = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
    return x * cos + other * sin


def _sign_slip_in_the_last_pair(x: Tensor, positions: Tensor) -> Tensor:
    angles = (positions[:, None] * theta_of(x.shape[-1])).repeat_interleave(2, dim=-1)
    other = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
    other[..., -2:] = torch.stack(
        (-x[..., -2], x[..., -1]), dim=-1
    )  # (-x_{d-1}, x_d) in place of (-x_d, x_{d-1})
    return x * angles.cos() + other * angles.sin()


def _positions_in_bfloat16(x: Tensor, positions: Tensor) -> Tensor:
    angles = positions.bfloat16()[:, None] * theta_of(x.shape[-1]).bfloat16()
    return rotate_real(x, angles.double())


def _positions_along_the_heads(x: Tensor, positions: Tensor) -> Tensor:
    heads = torch.arange(x.shape[1])
    return rotary().rotate(x.transpose(1, 2), heads, "query").transpose(1, 2)


def _clockwise(x: Tensor, positions: Tensor) -> Tensor:
    return rotate_real(x, -positions[:, None] * theta_of(x.shape[-1]))


ROPE_MISTAKES: dict[str, Turn] = {
    "rotation of d_model before the head split": _before_the_split,
    "cos and sin of the wrong pair": _cos_of_the_wrong_pair,
    "(-x_{d-1}, x_d) at the end": _sign_slip_in_the_last_pair,
    "angles in bfloat16": _positions_in_bfloat16,
    "positions counted from 0 at every step": lambda x, p: rotary().rotate(
        x, torch.arange(len(p)), "query"
    ),
    "positions along the heads": _positions_along_the_heads,
    "heads taken for positions, silently nothing": lambda x, p: x,
    "half layout where neighbours are meant": queries(rotary(layout="half")),
    "clockwise": _clockwise,
}


@pytest.mark.parametrize("mistake", ROPE_MISTAKES)
def test_a_known_mistake_is_caught_rope(mistake: str) -> None:
    with pytest.raises(AssertionError):
        check_rope(ROPE_MISTAKES[mistake])


@pytest.mark.parametrize(("form", "layout"), itertools.product(FORMS, LAYOUTS))
def test_rope_follows_equation_34(form: str, layout: str) -> None:
    x, positions = normal(2, 3, 4, 8), torch.tensor([0, 7, 2, 63])
    out = rotary(form=form, layout=layout, base=300.0).rotate(x, positions, "key")
    close(out, from_the_equation(x, positions, theta_of(8, 300.0), layout))


@pytest.mark.parametrize("form", FORMS)
def test_the_half_layout_is_that_of_llama(form: str) -> None:
    q, k, positions = normal(2, 3, 9, 16), normal(2, 3, 9, 16, seed=1), torch.arange(4, 13)
    angles = (positions[:, None] * theta_of(16)).repeat(1, 2)
    expected = llama_rotate(q, k, angles.cos()[None], angles.sin()[None])
    position = rotary(form=form, layout="half")
    close(position.rotate(q, positions, "query"), expected[0])
    close(position.rotate(k, positions, "key"), expected[1])
    # and their own cosines, which are float32
    config = LlamaConfig(hidden_size=48, num_attention_heads=3, head_dim=16)
    cos, sin = LlamaRotaryEmbedding(config)(q.float(), positions[None])
    theirs = llama_rotate(q.float(), k.float(), cos, sin)[0]
    torch.testing.assert_close(
        position.rotate(q.float(), positions, "query"), theirs, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("form", FORMS)
def test_the_interleaved_layout_is_that_of_gptj_and_x_transformers(form: str) -> None:
    x, positions = normal(2, 3, 9, 16), torch.arange(9)
    out = rotary(form=form).rotate(x, positions, "query")
    angles = (positions[:, None] * theta_of(16))[None]
    close(out.transpose(1, 2), gptj_rotate(x.transpose(1, 2), angles.sin(), angles.cos()))
    theirs = XTransformersRotary(16)
    torch.testing.assert_close(theirs.inv_freq, inverse_frequencies(16))
    theirs.inv_freq = theta_of(16)
    close(out, x_transformers_rotate(x, *theirs(positions)))


@pytest.mark.parametrize("rope_dim", ["head", "model"])
def test_interleaved_equals_half_up_to_a_permutation_within_heads(rope_dim: str) -> None:
    q, k, positions = normal(2, 3, 5, 8), normal(2, 3, 5, 8, seed=1), torch.tensor([0, 2, 3, 9, 40])
    order = torch.cat(pairs("interleaved", 8))
    plain, half = rotary(rope_dim=rope_dim), rotary(rope_dim=rope_dim, layout="half")
    assert torch.equal(
        plain.rotate(q, positions, "query")[..., order],
        half.rotate(q[..., order], positions, "query"),
    )
    scores = [
        position.rotate(a, positions, "query") @ position.rotate(b, positions, "key").mT
        for position, a, b in ((plain, q, k), (half, q[..., order], k[..., order]))
    ]
    close(*scores)
    assert (
        scores[0] - half.rotate(q, positions, "query") @ half.rotate(k, positions, "key").mT
    ).abs().max() > 0.1


SHAPES = {
    "all alike": (5, 4),
    "by head": (3, 5, 4),
    "by row": (2, 1, 5, 4),
    "by row and head": (2, 3, 5, 4),
}


@pytest.mark.parametrize(("layout", "shape"), itertools.product(LAYOUTS, SHAPES))
def test_complex_and_real_agree_with_gradients_for_angles_of_every_shape(
    layout, shape: str
) -> None:
    x, weight = normal(2, 3, 5, 8).requires_grad_(), normal(2, 3, 5, 8, seed=1)
    angles = normal(*SHAPES[shape], seed=2).requires_grad_()
    magnitude = normal(5, 4, seed=3).exp().requires_grad_()
    results = [
        turn(x, angles, layout=layout, magnitude=magnitude)
        for turn in (rotate_real, rotate_complex)
    ]
    close(*results)
    a, b = pairs(layout, 8)
    complex_x = torch.complex(x[..., a], x[..., b]) * torch.exp(1j * angles) * magnitude
    close(results[0][..., a], complex_x.real)
    close(results[0][..., b], complex_x.imag)
    gradients = [
        torch.autograd.grad((out * weight).sum(), (x, angles, magnitude)) for out in results
    ]
    for real, complex_ in zip(*gradients):
        close(real, complex_)
        assert real.abs().max() > 0.1


@pytest.mark.parametrize("turn", [rotate_real, rotate_complex])
def test_a_rotation_is_computed_in_the_finer_type_and_returned_in_that_of_x(turn) -> None:
    x, angles = normal(1, 1, 3, 4), normal(3, 2)
    assert turn(x, angles.float()).dtype == DOUBLE
    close(turn(x, angles.float()), turn(x, angles.float().double()), 1e-6)
    close(turn(x, torch.zeros(3, 2)), x, 0.0)
    assert turn(x.bfloat16(), angles.float()).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="layout = 'quarter'"):
        turn(x, angles, layout="quarter")


SCHEMES: dict[str, Callable[[], AttentionPosition]] = {
    "rope": rotary,
    "rope complex half": lambda: rotary(form="complex", layout="half"),
    "linear": lambda: rotary(scaling=LinearScaling(4.0)),
    "ntk": lambda: rotary(scaling=NtkScaling(4.0)),
    "dynamic ntk": dynamic,
    "yarn": lambda: rotary(scaling=YarnScaling(4.0, 64)),
    "xpos": xpos,
}


@pytest.mark.parametrize("name", SCHEMES)
def test_bfloat16_input_leaves_the_angles_exact(name: str) -> None:
    x = normal(1, 1, 1, 64).bfloat16().expand(1, 2, 2, 64)
    positions = torch.tensor([2047, 2048])
    for role in ("query", "key"):
        out = SCHEMES[name]().rotate(x, positions, role)
        assert out.dtype == torch.bfloat16
        exact = SCHEMES[name]().rotate(x.double(), positions, role)
        # one rounding to bfloat16, and float32 angles of some thousand radians
        torch.testing.assert_close(
            out.double(), exact, rtol=2**-8, atol=2e-3 * exact.abs().max().item()
        )
        assert not torch.equal(out[:, :, 0], out[:, :, 1])


@pytest.mark.parametrize("name", SCHEMES)
def test_a_rotation_has_no_parameters_and_leaves_no_trace(name: str) -> None:
    position = SCHEMES[name]()
    before = dict(vars(position))
    x, long = normal(1, 2, 5, 8), normal(1, 2, 50, 8)
    first = position.rotate(x, torch.arange(5), "query")
    position.rotate(long, torch.arange(50), "key")
    position.logit_term(long, long, Places(torch.arange(50), torch.arange(50), causal=True), None)
    assert torch.equal(position.rotate(x, torch.arange(5), "query"), first)
    assert vars(position) == before
    assert not position.state_dict()
    assert not list(position.buffers())
    assert position.bias(Places(torch.arange(5), torch.arange(5))) is None
    assert position.logit_scale(64) == 0.125


# -------------------------------------------------------------------------------- linear, NTK, YaRN


def hf(
    kind: str,
    dim: int,
    *,
    base: float = 10000.0,
    length: int | None = None,
    max_length: int = 2048,
    **scaling,
):
    """The inverse frequencies and attention factor of transformers."""
    parameters = {"rope_type": kind, "rope_theta": base, **scaling}
    config = LlamaConfig(
        hidden_size=2 * dim,
        num_attention_heads=2,
        head_dim=dim,
        max_position_embeddings=max_length,
        rope_parameters=parameters,
    )
    return ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)


def check_linear(frequencies: Frequencies) -> None:
    """Position s m behaves as m did."""
    for dim, base, factor in ((16, 10000.0, 4.0), (8, 500.0, 1.5)):
        close(
            factor * 30 * frequencies(dim, base=base, factor=factor, dtype=DOUBLE),
            30 * theta_of(dim, base),
        )


def check_ntk(frequencies: Frequencies) -> None:
    """The first frequency is kept, the last is position interpolation's, and it is one geometric
    series.
    """
    for dim, base, factor in ((16, 10000.0, 4.0), (8, 500.0, 1.5)):
        theta = frequencies(dim, base=base, factor=factor, dtype=DOUBLE)
        assert theta[0] == 1.0
        close(theta[-1], theta_of(dim, base)[-1] / factor)
        close(theta[1:] / theta[:-1], theta[1].expand(dim // 2 - 1))


def test_linear_scaling_is_position_interpolation() -> None:
    check_linear(linear_frequencies)
    x, positions = normal(1, 2, 5, 8), torch.arange(5)
    scaled = rotary(scaling=LinearScaling(4.0))
    close(scaled.rotate(x, 4 * positions, "query"), rotary().rotate(x, positions, "query"))
    assert scaled.scaling.magnitude == 1.0
    for dim, base, factor in ((64, 10000.0, 4.0), (8, 500.0, 1.5)):
        theirs, attention = hf("linear", dim, base=base, factor=factor)
        torch.testing.assert_close(
            linear_frequencies(dim, base=base, factor=factor), theirs, rtol=1e-6, atol=0
        )
        assert attention == 1.0
    freqs, _ = XTransformersRotary(16, interpolation_factor=4.0)(torch.arange(20))
    ours = torch.arange(20)[:, None] * linear_frequencies(16, factor=4.0)
    torch.testing.assert_close(freqs[0, :, ::2], ours)


def test_ntk_scaling_keeps_the_first_frequency_and_interpolates_the_last() -> None:
    check_ntk(ntk_frequencies)
    for dim, factor in ((64, 4.0), (8, 1.5)):
        close(
            ntk_frequencies(dim, factor=factor, dtype=DOUBLE),
            theta_of(dim, 10000 * factor ** (dim / (dim - 2))),
            1e-12,
        )
        theirs = XTransformersRotary(dim, base_rescale_factor=factor).inv_freq
        torch.testing.assert_close(ntk_frequencies(dim, factor=factor), theirs, rtol=1e-6, atol=0)
    x, positions = normal(1, 2, 5, 8), torch.arange(5)
    expected = from_the_equation(x, positions, theta_of(8, 10000 * 4 ** (8 / 6)))
    close(rotary(scaling=NtkScaling(4.0)).rotate(x, positions, "key"), expected)


def _wrong_base(rule: Callable[[float, float, int], float]) -> Frequencies:
    return lambda dim, *, base, factor, dtype: theta_of(dim, rule(base, factor, dim))


SCALING_MISTAKES: dict[str, tuple[Callable, Frequencies]] = {
    "positions multiplied": (
        check_linear,
        lambda dim, *, base, factor, dtype: theta_of(dim, base) * factor,
    ),
    "the base divided": (check_linear, _wrong_base(lambda b, s, d: b / s)),
    "NTK without an exponent": (check_ntk, _wrong_base(lambda b, s, d: b * s)),
    "NTK with (D-2)/D": (check_ntk, _wrong_base(lambda b, s, d: b * s ** ((d - 2) / d))),
    "linear for NTK": (check_ntk, linear_frequencies),
}


@pytest.mark.parametrize("mistake", SCALING_MISTAKES)
def test_a_known_mistake_is_caught_scaling(mistake: str) -> None:
    check, frequencies = SCALING_MISTAKES[mistake]
    with pytest.raises(AssertionError):
        check(frequencies)


# (dim, base, factor, trained length, beta_fast, beta_slow)
YARN_SETTINGS = [
    (64, 10000.0, 4.0, 256, 32.0, 1.0),
    (128, 10000.0, 16.0, 4096, 32.0, 1.0),
    (128, 1e6, 8.0, 2048, 16.0, 2.0),
    (32, 10000.0, 2.0, 20, 32.0, 1.0),
    (8, 500.0, 3.0, 7, 32.0, 1.0),
    (16, 20.0, 4.0, 2535, 32.0, 1.0),  # the ramp would end past the last dimension
]


def check_yarn(frequencies: Frequencies) -> None:
    """The frequencies are those of the public code: pairs that turn often kept, slow ones
    interpolated.
    """
    for dim, base, factor, length, fast, slow in YARN_SETTINGS:
        theta = frequencies(
            dim,
            base=base,
            factor=factor,
            trained_length=length,
            beta_fast=fast,
            beta_slow=slow,
            dtype=DOUBLE,
        )
        given = {"original_max_position_embeddings": length, "beta_fast": fast, "beta_slow": slow}
        theirs, _ = hf("yarn", dim, base=base, factor=factor, **given)
        torch.testing.assert_close(theta.float(), theirs, rtol=2e-6, atol=0)


def _yarn_with_the_ramp_of_equation_18(
    dim, *, base, factor, trained_length, beta_fast=32.0, beta_slow=1.0, dtype=DOUBLE
) -> Tensor:
    theta = theta_of(dim, base)
    turns = trained_length * theta / (2 * math.pi)
    kept = ((turns - beta_slow) / (beta_fast - beta_slow)).clamp(0, 1)
    return theta * kept + theta / factor * (1 - kept)


def _yarn_upside_down(dim, *, factor, base, dtype, **settings) -> Tensor:
    ramp = yarn_index_ramp(dim, base=base, dtype=dtype, **settings)
    return theta_of(dim, base) * ramp + theta_of(dim, base) / factor * (1 - ramp)


YARN_MISTAKES: dict[str, Frequencies] = {
    "the ramp of equation 18": _yarn_with_the_ramp_of_equation_18,
    "kept and interpolated exchanged": _yarn_upside_down,
    "interpolation alone": lambda dim, *, base, factor, dtype, **_: theta_of(dim, base) / factor,
}


def test_yarn_is_that_of_the_public_code() -> None:
    check_yarn(yarn_frequencies)
    for dim, _, factor, length, *_ in YARN_SETTINGS:
        attention = hf("yarn", dim, factor=factor, original_max_position_embeddings=length)[1]
        assert yarn_attention_factor(factor) == pytest.approx(attention, abs=1e-12)
    assert yarn_attention_factor(1.0) == 1.0


@pytest.mark.parametrize("mistake", YARN_MISTAKES)
def test_a_known_mistake_is_caught_yarn(mistake: str) -> None:
    with pytest.raises(AssertionError):
        check_yarn(YARN_MISTAKES[mistake])


def test_yarn_end_points_and_its_distance_from_the_paper() -> None:
    settings = {"factor": 4.0, "trained_length": 256, "dtype": DOUBLE}
    theta, plain = yarn_frequencies(64, **settings), theta_of(64)
    turns = 256 * plain / (2 * math.pi)
    close(theta[turns > 32], plain[turns > 32])
    # the public code rounds the end of its ramp up, so the first pair below one turn is not quite
    # interpolated
    slow = (turns < 1).nonzero()[1:, 0]
    close(theta[slow], plain[slow] / 4)
    assert ((theta < plain) & (theta > plain / 4)).sum() >= 10
    paper = _yarn_with_the_ramp_of_equation_18(64, base=10000.0, factor=4.0, trained_length=256)
    assert (
        paper[2:] <= theta[2:] + 1e-15
    ).all()  # pair 1 is still within the rounding of the public ramp's beginning
    assert (theta / paper - 1).max() == pytest.approx(0.67, abs=0.01)
    close(yarn_frequencies(64, factor=1.0, trained_length=256, dtype=DOUBLE), plain)


def test_a_trained_length_within_one_turn_interpolates_all_but_the_first_pair() -> None:
    theta = yarn_frequencies(16, factor=2.0, trained_length=2, dtype=DOUBLE)
    close(theta, torch.cat((theta_of(16)[:1], theta_of(16)[1:] / 2)))


def check_yarn_logits(rotated: Callable[[Tensor, Tensor, str], Tensor]) -> None:
    """The logits are (0.1 ln s + 1)^2 times those of the same frequencies, at every position."""
    q, k, positions = (
        normal(1, 2, 6, 16),
        normal(1, 2, 6, 16, seed=1),
        torch.tensor([0, 1, 5, 30, 100, 101]),
    )
    theta = yarn_frequencies(16, factor=4.0, trained_length=64, dtype=DOUBLE)
    plain = (
        rotate_real(q, positions[:, None] * theta) @ rotate_real(k, positions[:, None] * theta).mT
    )
    logits = rotated(q, positions, "query") @ rotated(k, positions, "key").mT
    close(logits, plain * (0.1 * math.log(4.0) + 1) ** 2)


@pytest.mark.parametrize(("form", "layout"), itertools.product(FORMS, LAYOUTS))
def test_yarn_multiplies_the_logits(form: str, layout: str) -> None:
    position = rotary(form=form, layout=layout, scaling=YarnScaling(4.0, 64))
    order = torch.cat(pairs("interleaved", 16)) if layout == "half" else torch.arange(16)
    check_yarn_logits(lambda x, positions, role: position.rotate(x[..., order], positions, role))


def _yarn_magnitude_on_the_cosine_alone(x: Tensor, positions: Tensor, role: str) -> Tensor:
    angles = positions[:, None] * yarn_frequencies(16, factor=4.0, trained_length=64, dtype=DOUBLE)
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos() * yarn_attention_factor(4.0), angles.sin()
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


def _yarn_magnitude_on_queries_alone(x: Tensor, positions: Tensor, role: str) -> Tensor:
    angles = positions[:, None] * yarn_frequencies(16, factor=4.0, trained_length=64, dtype=DOUBLE)
    return rotate_real(x, angles, magnitude=yarn_attention_factor(4.0) if role == "query" else 1.0)


@pytest.mark.parametrize(
    "mistake", [_yarn_magnitude_on_the_cosine_alone, _yarn_magnitude_on_queries_alone]
)
def test_a_known_mistake_is_caught_yarn_logits(mistake) -> None:
    with pytest.raises(AssertionError):
        check_yarn_logits(mistake)


# -------------------------------------------------------------------------------------- dynamic NTK

L, FACTOR, DIM = 6, 2.0, 8  # the settings of `dynamic()`


def theta_at(length: int) -> Tensor:
    growth = FACTOR * max(length, L) / L - (FACTOR - 1)
    return theta_of(DIM, 10000.0 * growth ** (DIM / (DIM - 2)))


def logits_of(position: AttentionPosition, q: Tensor, k: Tensor, places: Places) -> Tensor:
    """What the attention computes; k is rotated as it would be before it is cached."""
    q = position.rotate(q, places.q_positions, "query")
    k = position.rotate(k, places.k_positions, "key")
    term = position.logit_term(q, k, places, None)
    return position.logit_scale(q.shape[-1]) * q @ k.mT + (0.0 if term is None else term)


def check_dynamic_frequencies(frequencies: Frequencies) -> None:
    """Exactly the unscaled ones up to the trained length, then a base that grows."""
    lengths = torch.tensor([[1, 3, 6], [7, 12, 600]])
    for dim, factor in ((DIM, 2.0), (64, 1.1), (4, 3.3)):
        theta = frequencies(dim, factor=factor, trained_length=6, length=lengths, dtype=DOUBLE)
        plain = inverse_frequencies(dim, dtype=DOUBLE)
        assert torch.equal(theta[0], plain.expand(3, dim // 2))
        for row, length in zip(theta[1], (7, 12, 600)):
            grown = 10000 * (factor * length / 6 - (factor - 1)) ** (dim / (dim - 2))
            close(row, theta_of(dim, grown), 1e-12)
            assert torch.equal(
                row,
                frequencies(
                    dim, factor=factor, trained_length=6, length=torch.tensor(length), dtype=DOUBLE
                ),
            )


def test_dynamic_frequencies_are_the_default_up_to_the_trained_length() -> None:
    check_dynamic_frequencies(dynamic_ntk_frequencies)
    close(
        dynamic_ntk_frequencies(DIM, factor=3.0, trained_length=10, length=20, dtype=DOUBLE),
        ntk_frequencies(DIM, factor=4.0, dtype=DOUBLE),
    )
    for dim, length in ((64, 100), (64, 129), (32, 1000)):
        theirs, _ = hf("dynamic", dim, length=length, max_length=128, factor=2.5)
        ours = dynamic_ntk_frequencies(dim, factor=2.5, trained_length=128, length=length)
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=0)


def _scaled_inside_the_trained_length(dim, *, factor, trained_length, length, dtype) -> Tensor:
    return ntk_frequencies(dim, factor=factor, dtype=dtype).expand(
        *torch.as_tensor(length).shape, dim // 2
    )


def _not_clamped(dim, *, factor, trained_length, length, dtype) -> Tensor:
    growth = (factor * length.to(dtype) / trained_length - (factor - 1)).abs()[..., None]
    return (10000.0 * growth ** (dim / (dim - 2))) ** (-torch.arange(0, dim, 2, dtype=dtype) / dim)


def _without_the_factor_less_one(dim, *, factor, trained_length, length, dtype) -> Tensor:
    growth = (factor * length.to(dtype) / trained_length).clamp(min=1)[..., None]
    return (10000.0 * growth ** (dim / (dim - 2))) ** (-torch.arange(0, dim, 2, dtype=dtype) / dim)


@pytest.mark.parametrize(
    "mistake", [_scaled_inside_the_trained_length, _not_clamped, _without_the_factor_less_one]
)
def test_a_known_mistake_is_caught_dynamic_frequencies(mistake: Frequencies) -> None:
    with pytest.raises(AssertionError):
        check_dynamic_frequencies(mistake)


def causal_logits(position: AttentionPosition, q: Tensor, k: Tensor) -> Tensor:
    """One pass over the whole sequence; what the mask forbids is left out."""
    at = torch.arange(q.shape[2])
    return logits_of(position, q, k, Places(at, at, causal=True)).tril()


class _CachedKeys:
    """A decoder's steps over keys that were rotated when they came, the newest token's logits each."""

    def __init__(self, position: AttentionPosition) -> None:
        self.position = position

    def __call__(self, q: Tensor, k: Tensor, chunks: list[int]) -> Tensor:
        n, cache, rows, start = q.shape[2], [], [], 0
        for size in chunks:
            end = start + size
            at = torch.arange(end)
            places = Places(at[start:], at, causal=True, newest=size == 1)
            cache.append(self.position.rotate(k[:, :, start:end], at[start:], "key"))
            keys = torch.cat(cache, dim=2)
            new_q = self.position.rotate(q[:, :, start:end], at[start:], "query")
            term = self.position.logit_term(new_q, keys, places, None)
            logits = self.position.logit_scale(DIM) * new_q @ keys.mT + (
                0.0 if term is None else term
            )
            rows.append(nn.functional.pad(logits, (0, n - end)))
            start = end
        return torch.cat(rows, dim=2).tril()


def check_dynamic_steps(steps: Callable[[Tensor, Tensor, list[int]], Tensor]) -> None:
    """Decoding in steps gives every query the frequencies of the length it sees, for all of its
    keys.
    """
    n = 14
    q, k = normal(2, 3, n, DIM), normal(2, 3, n, DIM, seed=1)
    expected = torch.zeros(2, 3, n, n, dtype=DOUBLE)
    for i in range(n):
        theta = theta_at(i + 1)
        keys = from_the_equation(k[:, :, : i + 1], torch.arange(i + 1), theta)
        query = from_the_equation(q[:, :, i : i + 1], torch.tensor([i]), theta)
        expected[:, :, i, : i + 1] = (query @ keys.mT)[:, :, 0] * DIM**-0.5
    for chunks in ([1] * n, [5, 5, 4], [n]):
        close(steps(q, k, chunks), expected)


@pytest.mark.parametrize("form", FORMS)
def test_dynamic_ntk_gives_every_causal_query_its_own_length_cached_or_not(form: str) -> None:
    position = dynamic(form=form)
    check_dynamic_steps(_CachedKeys(position))
    check_dynamic_steps(lambda q, k, chunks: causal_logits(position, q, k))


class _KeysRotatedForTheLengthOfTheirStep(Rotary):
    """Cached keys keep the frequencies that were right when they came."""

    def rotate(self, x: Tensor, positions: Tensor, role) -> Tensor:
        return self.turn(x, positions, theta_at(int(positions[-1]) + 1))


class _OneLengthForTheWholePass(DynamicNtkRotary):
    """The length of the longest of the batch's rows and queries, so that a full pass differs from
    steps.
    """

    def _lengths(self, places: Places) -> Tensor | None:
        lengths = super()._lengths(places)
        return None if lengths is None else lengths.max().expand_as(lengths)


class _CorrectionOfUnscaledLogits(DynamicNtkRotary):
    def logit_term(
        self, q: Tensor, k: Tensor, places: Places, state: Tensor | None
    ) -> Tensor | None:
        term = super().logit_term(q, k, places, state)
        return None if term is None else term * DIM**0.5


DYNAMIC_MISTAKES: dict[str, Callable[[], AttentionPosition]] = {
    "keys cached as they were rotated": lambda: _KeysRotatedForTheLengthOfTheirStep(
        base=10000.0, form="real", rope_dim="head"
    ),
    "one length for a whole pass": lambda: dynamic(_OneLengthForTheWholePass),
    "no correction": rotary,
    "correction not scaled as the logits are": lambda: dynamic(_CorrectionOfUnscaledLogits),
}


@pytest.mark.parametrize("mistake", DYNAMIC_MISTAKES)
def test_a_known_mistake_is_caught_dynamic_steps(mistake: str) -> None:
    with pytest.raises(AssertionError):
        check_dynamic_steps(_CachedKeys(DYNAMIC_MISTAKES[mistake]()))


def check_dynamic_rows(position: DynamicNtkRotary) -> None:
    """Without a causal mask a row's length is that of its sentence: not of the batch, not of the
    padding.
    """
    ends = [4, 9, 13]
    q, k = normal(3, 2, 13, DIM), normal(3, 2, 13, DIM, seed=1)
    at = torch.arange(13)
    whole = logits_of(position, q, k, Places(at, at, k_end=torch.tensor(ends)))
    assert torch.isfinite(whole).all()
    for b, end in enumerate(ends):
        theta = theta_at(end)
        query = from_the_equation(q[b : b + 1, :, :end], at[:end], theta)
        expected = query @ from_the_equation(k[b : b + 1, :, :end], at[:end], theta).mT * DIM**-0.5
        close(whole[b : b + 1, :, :end, :end], expected)
        alone = Places(at[:end], at[:end], k_end=torch.tensor([end]))
        close(logits_of(position, q[b : b + 1, :, :end], k[b : b + 1, :, :end], alone), expected)


@pytest.mark.parametrize("form", FORMS)
def test_dynamic_ntk_gives_every_row_its_own_length_whatever_the_padding(form: str) -> None:
    check_dynamic_rows(dynamic(form=form))


class _PaddingCounts(DynamicNtkRotary):
    def _lengths(self, places: Places) -> Tensor | None:
        return places.k_positions[-1:] + 1


class _LongestRowCounts(DynamicNtkRotary):
    def _lengths(self, places: Places) -> Tensor | None:
        assert places.k_end is not None
        return places.k_end.max().expand_as(places.k_end)


@pytest.mark.parametrize("mistake", [_PaddingCounts, _LongestRowCounts])
def test_a_known_mistake_is_caught_dynamic_rows(mistake: type[DynamicNtkRotary]) -> None:
    with pytest.raises(AssertionError):
        check_dynamic_rows(dynamic(mistake))


def test_dynamic_ntk_without_row_ends_takes_the_last_key() -> None:
    q, k, at = normal(2, 2, 9, DIM), normal(2, 2, 9, DIM, seed=1), torch.arange(9)
    close(
        logits_of(dynamic(), q, k, Places(at, at)),
        from_the_equation(q, at, theta_at(9))
        @ from_the_equation(k, at, theta_at(9)).mT
        * DIM**-0.5,
    )


@pytest.mark.parametrize("causal", [False, True])
def test_dynamic_ntk_knows_frequencies_that_are_spread_over_the_model(causal: bool) -> None:
    q, k, at = normal(2, 3, 9, DIM), normal(2, 3, 9, DIM, seed=1), torch.arange(9)
    grown = 10000.0 * (FACTOR * 9 / L - (FACTOR - 1)) ** (3 * DIM / (3 * DIM - 2))
    places = Places(at, at, causal=causal)
    expected = logits_of(rotary(rope_dim="model", base=grown), q, k, places)
    close(logits_of(dynamic(rope_dim="model"), q, k, places)[:, :, -1:], expected[:, :, -1:])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dynamic_ntk_of_the_last_query_is_that_of_transformers(layout: str) -> None:
    n = 20
    q, k = normal(1, 2, n, DIM).float(), normal(1, 2, n, DIM, seed=1).float()
    parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": FACTOR}
    config = LlamaConfig(
        hidden_size=16,
        num_attention_heads=2,
        head_dim=DIM,
        max_position_embeddings=L,
        rope_parameters=parameters,
    )
    cos, sin = LlamaRotaryEmbedding(config)(q, torch.arange(n)[None])
    order = torch.cat(pairs(layout, DIM))
    theirs_q, theirs_k = llama_rotate(q[..., order], k[..., order], cos, sin)
    expected = theirs_q @ theirs_k.mT * DIM**-0.5
    at = torch.arange(n)
    position = dynamic(layout=layout)
    causal = logits_of(position, q, k, Places(at, at, causal=True))
    torch.testing.assert_close(causal[:, :, -1], expected[:, :, -1], rtol=1e-5, atol=1e-5)
    assert (
        causal[:, :, -2, :-1] - expected[:, :, -2, :-1]
    ).abs().max() > 1e-3  # theirs has one length for all
    both_sides = logits_of(position, q, k, Places(at, at, k_end=torch.tensor([n])))
    torch.testing.assert_close(both_sides, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_dynamic_ntk_is_default_within_the_trained_length(causal: bool) -> None:
    position, at = dynamic(), torch.arange(9)
    q, k = normal(2, 2, 9, DIM), normal(2, 2, 9, DIM, seed=1)
    within = Places(at[:L], at[:L], causal=causal, k_end=None if causal else torch.tensor([3, L]))
    assert position.logit_term(q[:, :, :L], k[:, :, :L], within, None) is None
    assert torch.equal(position.rotate(q, at, "query"), rotary().rotate(q, at, "query"))
    past = Places(at, at, causal=causal, k_end=None if causal else torch.tensor([L, 9]))
    term = position.logit_term(q, k, past, None)
    assert term is not None
    untouched, corrected = (term[:, :, :L], term[:, :, L:]) if causal else (term[:1], term[1:])
    assert not untouched.any()
    assert corrected.abs().max() > 0.05


@pytest.mark.parametrize("causal", [False, True])
def test_dynamic_ntk_passes_gradients_through_its_correction(causal: bool) -> None:
    position, at = dynamic(trained_length=3), torch.arange(5)
    q, k = normal(2, 1, 5, 4).requires_grad_(), normal(2, 1, 5, 4, seed=1).requires_grad_()
    places = Places(at, at, causal=causal, k_end=None if causal else torch.tensor([2, 5]))

    def term(a: Tensor, b: Tensor) -> Tensor:
        out = position.logit_term(a, b, places, None)
        assert out is not None
        return out

    assert torch.autograd.gradcheck(term, (q, k))
    assert all(g.abs().max() > 1e-3 for g in torch.autograd.grad(term(q, k).pow(2).sum(), (q, k)))


@pytest.mark.parametrize("causal", [False, True])
def test_dynamic_ntk_computes_its_correction_in_float32_under_autocast(causal: bool) -> None:
    position, at = dynamic(), torch.arange(12)
    q, k = normal(1, 2, 12, DIM).bfloat16(), normal(1, 2, 12, DIM, seed=1).bfloat16()
    exact = position.logit_term(q.double(), k.double(), Places(at, at, causal=causal), None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        term = position.logit_term(q, k, Places(at, at, causal=causal), None)
    assert term is not None
    assert exact is not None
    assert term.dtype == torch.float32
    torch.testing.assert_close(term.double(), exact, rtol=1e-5, atol=1e-5)


def test_dynamic_ntk_finds_its_lengths_once_for_all_layers() -> None:
    class Counting(DynamicNtkRotary):
        asked = 0

        def _lengths(self, places: Places) -> Tensor | None:
            self.asked += 1
            return super()._lengths(places)

    position = dynamic(Counting)
    for n in (4, 9):
        at, q = torch.arange(n), normal(1, 1, n, DIM)
        places = Places(at, at, causal=True)
        for _ in range(3):
            position.logit_term(q, q, places, None)
    assert position.asked == 2


# --------------------------------------------------------------------------------------------- xPos

Scores = Callable[
    [Tensor, Tensor, Tensor, Tensor], Tensor
]  # q, k, q_positions, k_positions -> [B,H,Tq,Tk]


def check_xpos(scores: Scores) -> None:
    """Depends on m - n alone; RoPE times zeta^((m-n)/S) pair by pair, so it decays for m > n and
    grows for n > m.
    """
    q, k = normal(2, 2, 4, DIM), normal(2, 2, 4, DIM, seed=1)
    m, n = torch.tensor([3, 50, 51, 200]), torch.tensor([0, 4, 50, 150])
    close(scores(q, k, m, n), scores(q, k, m + 90, n + 90), 1e-9)
    single = [scores(q[:, :, i : i + 1], k, m[i : i + 1], n) for i in range(4)]
    close(torch.cat(single, dim=2), scores(q, k, m, n))
    zeta = [(2 * i / DIM + 0.4) / 1.4 for i in range(DIM // 2)]
    for i, theta in enumerate(theta_of(DIM).tolist()):
        unit = torch.zeros(1, 1, 1, DIM, dtype=DOUBLE)
        unit[..., 2 * i] = 1.0
        for far in (64, 1000):
            past, future = (
                scores(unit, unit, *torch.tensor(at)[:, None]).item() for at in ((far, 0), (0, far))
            )
            turned = math.cos(far * theta)
            assert past == pytest.approx(turned * zeta[i] ** (far / 512), rel=1e-9)
            assert future == pytest.approx(turned * zeta[i] ** (-far / 512), rel=1e-9)
            assert abs(past) < abs(turned) < abs(future)


def test_xpos_is_rope_that_decays_towards_the_past_and_grows_towards_the_future() -> None:
    check_xpos(xpos_scores)
    for form in FORMS:
        position = xpos(form=form)
        check_xpos(
            lambda q, k, m, n, p=position: p.rotate(q, m, "query") @ p.rotate(k, n, "key").mT
        )


def _xpos(
    q_sign: int, k_sign: int, exponent: Callable[[Tensor], Tensor] = lambda x: x, zeta_of: int = 1
) -> Scores:
    def scores(q: Tensor, k: Tensor, m: Tensor, n: Tensor) -> Tensor:
        def turned(x: Tensor, positions: Tensor, sign: int) -> Tensor:
            scale = xpos_scale(sign * exponent(positions), DIM, dtype=DOUBLE) ** zeta_of
            return rotate_real(x, positions[:, None] * theta_of(DIM), magnitude=scale)

        return turned(q, m, q_sign) @ turned(k, n, k_sign).mT

    return scores


XPOS_MISTAKES: dict[str, Scores] = {
    "q and k both scaled by zeta^+": _xpos(1, 1),
    "q and k exchanged": _xpos(-1, 1),
    "k not scaled": _xpos(1, 0),
    "a centre that q and k do not share": _xpos(1, -1, lambda p: p - (p.max() + 1) // 2),
    "zeta squared": _xpos(1, -1, zeta_of=2),
    "plain RoPE": _xpos(0, 0),
}


@pytest.mark.parametrize("mistake", XPOS_MISTAKES)
def test_a_known_mistake_is_caught_xpos(mistake: str) -> None:
    check_xpos(_xpos(1, -1))
    with pytest.raises(AssertionError):
        check_xpos(XPOS_MISTAKES[mistake])


def test_xpos_scale_follows_its_formula() -> None:
    scale = xpos_scale(torch.tensor([0, 100, -512]), 6, gamma=0.7, scale_base=256.0, dtype=DOUBLE)
    expected = [[((i / 3 + 0.7) / 1.7) ** (m / 256) for i in range(3)] for m in (0, 100, -512)]
    close(scale, torch.tensor(expected, dtype=DOUBLE))
    assert xpos_scale(torch.tensor([2]), 6, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_xpos_scores_are_those_of_x_transformers() -> None:
    theirs = XTransformersRotary(16, use_xpos=True)
    torch.testing.assert_close(
        theirs.scale, xpos_scale(torch.tensor([512]), 16, dtype=torch.float32)[0]
    )
    theirs.inv_freq, theirs.scale = (
        theta_of(16),
        xpos_scale(torch.tensor([512]), 16, dtype=DOUBLE)[0],
    )
    q, k, at = normal(2, 3, 40, 16), normal(2, 3, 40, 16, seed=1), torch.arange(40)
    angles, scale = theirs(at)  # centred at 20, which cancels
    expected = (
        x_transformers_rotate(q, angles, scale) @ x_transformers_rotate(k, angles, scale**-1).mT
    )
    close(xpos_scores(q, k, at, at), expected)
    close(xpos().rotate(q, at, "query") @ xpos().rotate(k, at, "key").mT, expected)


@pytest.mark.parametrize("form", FORMS)
def test_xpos_with_gamma_towards_infinity_is_rope(form: str) -> None:
    q, k, at = normal(1, 2, 9, DIM), normal(1, 2, 9, DIM, seed=1), torch.arange(0, 900, 100)
    rope = rotary().rotate(q, at, "query") @ rotary().rotate(k, at, "key").mT
    close(xpos_scores(q, k, at, at, gamma=1e14), rope)
    limit = xpos(gamma=1e14, form=form)
    close(limit.rotate(q, at, "query"), rotary().rotate(q, at, "query"))
    assert (xpos_scores(q, k, at, at) - rope).abs().max() > 0.1


def test_xpos_leaves_position_zero_and_keeps_cached_keys_right() -> None:
    position, at = xpos(scale_base=20.0), torch.arange(12)
    q, k = normal(2, 3, 12, DIM), normal(2, 3, 12, DIM, seed=1)
    for role in ("query", "key"):
        assert torch.equal(position.rotate(q[:, :, :1], at[:1], role), q[:, :, :1])
    whole = causal_logits(position, q, k)
    steps = _CachedKeys(position)
    for chunks in ([1] * 12, [5, 4, 3]):
        close(steps(q, k, chunks), whole)


class _CentreAtHalfTheLength(XPos):
    """As public code has it: harmless in one pass, wrong with keys cached at an earlier length."""

    def rotate(self, x: Tensor, positions: Tensor, role) -> Tensor:
        centre = (int(positions.max()) + 1) // 2
        scale = xpos_scale(
            (positions - centre) * (1 if role == "query" else -1),
            DIM,
            scale_base=20.0,
            dtype=DOUBLE,
        )
        return self.turn(x, positions, theta_of(DIM), scale)


def test_a_known_mistake_is_caught_xpos_centre_that_moves() -> None:
    position = _CentreAtHalfTheLength(base=10000.0, gamma=0.4, scale_base=20.0, form="real")
    q, k = normal(2, 3, 12, DIM), normal(2, 3, 12, DIM, seed=1)
    whole = causal_logits(position, q, k)
    close(whole, causal_logits(xpos(scale_base=20.0), q, k))
    with pytest.raises(AssertionError):
        close(_CachedKeys(position)(q, k, [1] * 12), whole)


# ----------------------------------------------------------------------------------------- refusals

REFUSED: list[tuple[Callable[[], object], str]] = [
    (
        lambda: sinusoid_table(torch.arange(3), 7, layout="half", dtype=DOUBLE),
        "d_model = 7 must be even",
    ),
    (lambda: sinusoid_table(torch.arange(3), 2, layout="t2t", dtype=DOUBLE), "d_model = 2"),
    (lambda: sinusoid_table(torch.arange(3), 8, layout="whole", dtype=DOUBLE), "layout = 'whole'"),  # type: ignore[arg-type]
    (lambda: linear_frequencies(8, factor=0.5), "factor = 0.5"),
    (lambda: linear_frequencies(7, factor=2.0), "dim = 7 must be even"),
    (lambda: ntk_frequencies(8, factor=0.5), "factor = 0.5"),
    (lambda: ntk_frequencies(2, factor=2.0), "dim = 2"),
    (lambda: dynamic_ntk_frequencies(2, factor=2.0, trained_length=4, length=8), "dim = 2"),
    (lambda: dynamic_ntk_frequencies(8, factor=0.5, trained_length=4, length=8), "factor = 0.5"),
    (
        lambda: dynamic_ntk_frequencies(8, factor=2.0, trained_length=0, length=8),
        "trained_length = 0",
    ),
    (lambda: yarn_frequencies(8, factor=0.5, trained_length=8), "factor = 0.5"),
    (lambda: yarn_frequencies(8, factor=2.0, trained_length=0), "trained_length = 0"),
    (lambda: yarn_frequencies(8, factor=2.0, trained_length=8, beta_fast=1.0), "beta_fast = 1.0"),
    (lambda: yarn_frequencies(7, factor=2.0, trained_length=8), "dim = 7 must be even"),
    (lambda: yarn_attention_factor(0.9), "factor = 0.9"),
    (lambda: xpos_scale(torch.arange(3), 7, dtype=DOUBLE), "head_dim = 7 must be even"),
    (lambda: xpos_scale(torch.arange(3), 8, gamma=0.0, dtype=DOUBLE), "gamma = 0.0"),
    (lambda: xpos_scale(torch.arange(3), 8, scale_base=0.0, dtype=DOUBLE), "scale_base = 0.0"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_be_is_refused_with_its_value(number: int) -> None:
    make, message = REFUSED[number]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_frequencies_come_in_the_type_that_is_asked_for(dtype: torch.dtype) -> None:
    made = [
        linear_frequencies(8, factor=2.0, dtype=dtype),
        ntk_frequencies(8, factor=2.0, dtype=dtype),
        dynamic_ntk_frequencies(8, factor=2.0, trained_length=4, length=9, dtype=dtype),
        yarn_frequencies(8, factor=2.0, trained_length=40, dtype=dtype),
        *(s.frequencies(8, base=1e4, dtype=dtype, device=torch.device("cpu"))
          for s in (LinearScaling(2.0), NtkScaling(2.0), YarnScaling(2.0, 40))),
    ]  # fmt: skip
    assert {theta.dtype for theta in made} == {dtype}
    assert {tuple(theta.shape) for theta in made} == {(4,)}
    for named, scaling in zip((made[0], made[1], made[3]), made[4:]):
        np.testing.assert_array_equal(named, scaling)
