"""RoPE: equation 34, the paper's invariants, Llama, GPT-J and x-transformers, known mistakes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from references import DOUBLE, catches, close, logits_of, normal, pairs, rotated, theta_of
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj_rotate
from transformers.models.llama.modeling_llama import (
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb as llama_rotate,
)
from x_transformers.x_transformers import (
    RotaryEmbedding as XTransformersRotary,
    apply_rotary_pos_emb as x_transformers_rotate,
)

from models.positional_encodings.base import Places
from models.positional_encodings.rope import (
    Rotary,
    inverse_frequencies,
    rotate,
    rotate_complex,
    rotate_real,
)

LAYOUTS, FORMS = ("interleaved", "half"), ("real", "complex")
Turn = Callable[[Tensor, Tensor], Tensor]  # x [B,H,T,Dh], positions [T] -> x, turned


def rotary(**changes: Any) -> Rotary:
    return Rotary(**{"base": 10000.0, "form": "real", "rope_dim": "head", **changes})


def queries(**changes: Any) -> Turn:
    return lambda x, positions: rotary(**changes).rotate(x, positions, "query")


def check_rope(turn: Turn, layout: str = "interleaved", dim: int = 16) -> None:
    """The invariants of RoPE, on more heads and tokens than one and far from position 0."""
    heads = 3
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
        close(out[:, a], torch.cos(m * theta_of(dim)).expand(heads, -1))
        close(out[:, b], torch.sin(m * theta_of(dim)).expand(heads, -1))


every_way = pytest.mark.parametrize(("form", "layout"), [*itertools.product(FORMS, LAYOUTS)])


@every_way
def test_rope_has_the_invariants_of_the_paper(form: str, layout: str) -> None:
    check_rope(queries(form=form, layout=layout), layout)
    position = rotary(form=form, layout=layout)
    check_rope(lambda x, positions: position.rotate(x, positions, "key"), layout)


@every_way
def test_rope_follows_equation_34(form: str, layout: str) -> None:
    x, positions = normal(2, 3, 4, 8), torch.tensor([0, 7, 2, 63])
    out = rotary(form=form, layout=layout, base=300.0).rotate(x, positions, "key")
    close(out, rotated(x, positions, theta_of(8, 300.0), layout))


@pytest.mark.parametrize("form", FORMS)
def test_rope_dim_model_is_a_rotation_before_the_head_split(form: str) -> None:
    heads, dim, positions = 4, 6, torch.tensor([0, 1, 9])
    vectors = normal(2, 1, 3, heads * dim)

    def split(x: Tensor) -> Tensor:
        return x[:, 0].unflatten(-1, (heads, dim)).transpose(1, 2)

    out = queries(form=form, rope_dim="model")(split(vectors), positions)
    close(out, split(rotated(vectors, positions, theta_of(heads * dim))))
    assert (out - queries(form=form)(split(vectors), positions)).abs().max() > 0.1


def test_scores_know_the_distance_alone_and_its_sign() -> None:
    for rope_dim in ("head", "model"):
        q, k = (normal(1, 2, 1, 8, seed=seed).expand(1, 2, 5, 8) for seed in (0, 1))
        at = torch.arange(5)
        scores = logits_of(rotary(rope_dim=rope_dim), q, k, Places(at, at))
        for offset in range(-4, 5):
            diagonal = scores.diagonal(offset, -2, -1)
            close(diagonal, diagonal[..., :1].expand_as(diagonal))
        assert (scores - scores.mT).abs().max() > 0.1


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
    close(position.rotate(q.float(), positions, "query"), theirs, 1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_the_interleaved_layout_is_that_of_gptj_and_x_transformers(form: str) -> None:
    x, positions = normal(2, 3, 9, 16), torch.arange(9)
    out = queries(form=form)(x, positions)
    angles = (positions[:, None] * theta_of(16))[None]
    close(out.transpose(1, 2), gptj_rotate(x.transpose(1, 2), angles.sin(), angles.cos()))
    theirs = XTransformersRotary(16)
    close(theirs.inv_freq, inverse_frequencies(16), 1e-6)
    theirs.inv_freq = theta_of(16)
    close(out, x_transformers_rotate(x, *theirs(positions)))


@pytest.mark.parametrize("rope_dim", ["head", "model"])
def test_interleaved_equals_half_up_to_a_permutation_within_heads(rope_dim: str) -> None:
    q, k, positions = normal(2, 3, 5, 8), normal(2, 3, 5, 8, seed=1), torch.tensor([0, 2, 3, 9, 40])
    order, places = torch.cat(pairs("interleaved", 8)), Places(positions, positions)
    plain, half = rotary(rope_dim=rope_dim), rotary(rope_dim=rope_dim, layout="half")
    turned = plain.rotate(q, positions, "query")[..., order]
    assert torch.equal(turned, half.rotate(q[..., order], positions, "query"))
    expected = logits_of(plain, q, k, places)
    close(logits_of(half, q[..., order], k[..., order], places), expected)
    assert (logits_of(half, q, k, places) - expected).abs().max() > 0.1


SHAPES = [(5, 4), (3, 5, 4), (2, 1, 5, 4), (2, 3, 5, 4)]  # all alike, by head, by row, by both


@pytest.mark.parametrize(("layout", "shape"), itertools.product(LAYOUTS, SHAPES), ids=str)
def test_complex_and_real_agree_with_gradients_for_angles_of_every_shape(
    layout: Any, shape: tuple[int, ...]
) -> None:
    x, weight = normal(2, 3, 5, 8).requires_grad_(), normal(2, 3, 5, 8, seed=1)
    angles = normal(*shape, seed=2).requires_grad_()
    magnitude = normal(5, 4, seed=3).exp().requires_grad_()
    results = [
        f(x, angles, layout=layout, magnitude=magnitude) for f in (rotate_real, rotate_complex)
    ]
    close(*results)
    a, b = pairs(layout, 8)
    complex_x = torch.complex(x[..., a], x[..., b]) * torch.exp(1j * angles) * magnitude
    close(results[0][..., a], complex_x.real)
    close(results[0][..., b], complex_x.imag)
    leaves = (x, angles, magnitude)
    gradients = [torch.autograd.grad((out * weight).sum(), leaves) for out in results]
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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rotation_at_given_positions_takes_any_float_type(form: Any, dtype: torch.dtype) -> None:
    x, at, theta = normal(2, 3, 4, 6), torch.tensor([0, 3, 4, 9]), theta_of(6)
    got = rotate(x.to(dtype), at, theta.to(dtype), form=form)
    assert got.dtype == dtype
    # angles of up to 9 radians carry the rounding of theta
    difference = (got.double() - rotated(x, at, theta)).abs().max()
    assert difference < 60 * torch.finfo(dtype).eps


def test_an_odd_size_is_refused() -> None:
    with pytest.raises(ValueError, match="dim = 7 must be even"):
        inverse_frequencies(7)


# ----------------------------------------------------------------------------------------- mistakes


def _elementwise(x: Tensor, cos: Tensor, sin: Tensor, *, slip: bool = False) -> Tensor:
    other = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
    if slip:  # (-x_{d-1}, x_d) in place of (-x_d, x_{d-1})
        other[..., -2:] = torch.stack((-x[..., -2], x[..., -1]), dim=-1)
    return x * cos + other * sin


def _cos_of_the_wrong_pair(x: Tensor, positions: Tensor) -> Tensor:
    angles = (positions[:, None] * theta_of(x.shape[-1])).repeat(1, 2)  # for halves, on neighbours
    return _elementwise(x, angles.cos(), angles.sin())


def _sign_slip_in_the_last_pair(x: Tensor, positions: Tensor) -> Tensor:
    angles = (positions[:, None] * theta_of(x.shape[-1])).repeat_interleave(2, dim=-1)
    return _elementwise(x, angles.cos(), angles.sin(), slip=True)


def _positions_in_bfloat16(x: Tensor, positions: Tensor) -> Tensor:
    angles = positions.bfloat16()[:, None] * theta_of(x.shape[-1]).bfloat16()
    return rotate_real(x, angles.double())


def _positions_along_the_heads(x: Tensor, positions: Tensor) -> Tensor:
    heads = torch.arange(x.shape[1])
    return queries()(x.transpose(1, 2), heads).transpose(1, 2)


MISTAKES: dict[str, Turn] = {
    "rotation of d_model before the head split": queries(rope_dim="model"),
    "cos and sin of the wrong pair": _cos_of_the_wrong_pair,
    "(-x_{d-1}, x_d) at the end": _sign_slip_in_the_last_pair,
    "angles in bfloat16": _positions_in_bfloat16,
    "positions counted from 0 at every step": lambda x, p: queries()(x, torch.arange(len(p))),
    "positions along the heads": _positions_along_the_heads,
    "heads taken for positions, silently nothing": lambda x, p: x,
    "half layout where neighbours are meant": queries(layout="half"),
    "clockwise": lambda x, p: rotate_real(x, -p[:, None] * theta_of(x.shape[-1])),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(lambda: check_rope(MISTAKES[mistake]))
