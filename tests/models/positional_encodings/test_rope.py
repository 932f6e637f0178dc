"""RoPE and xPos: their equations, Llama, GPT-J and x-transformers, known mistakes."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from references import (
    DOUBLE,
    catches,
    causal_logits,
    normal,
    pairs,
    rotated,
    stepwise_logits,
    theta_of,
)
from tiny_models import POSITIONS, close, configured
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj_rotate
from transformers.models.llama.modeling_llama import (
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb as llama_rotate,
)
from x_transformers.x_transformers import (
    RotaryEmbedding as XTransformersRotary,
    apply_rotary_pos_emb as x_transformers_rotate,
)

import configs.positions as config
from models.positional_encodings.base import AttentionPosition, Places
from models.positional_encodings.rope import inverse_frequencies, rotate, rotate_by
from models.positional_encodings.xpos import XPos, xpos_scale

AT, AT_9 = torch.tensor([0, 3, 4, 9]), torch.arange(9)
LAYOUTS, FORMS = ("interleaved", "half"), ("real", "complex")
Turn = Callable[[Tensor, Tensor], Tensor]  # x [B,H,T,Dh], positions [T] -> x, turned
every_form: Any = pytest.mark.parametrize("form", FORMS)
every_way = pytest.mark.parametrize(("form", "layout"), [*itertools.product(FORMS, LAYOUTS)])


def rotary(**changes: Any) -> AttentionPosition:
    return configured(config.Rope(**{"form": "real", **changes}))


def queries(**changes: Any) -> Turn:
    return lambda x, positions: rotary(**changes).rotate(x, positions, "query")


def check_rope(turn: Turn, layout: str = "interleaved") -> None:
    """Its equation and invariants, on more heads and tokens than one and far from position 0."""
    x, y = normal(2, 3, 5, 16), normal(2, 3, 5, 16, seed=1)
    positions = torch.tensor([0, 3, 4, 11, 2047])
    close(turn(x[:, :, :1], positions[:1]), x[:, :, :1])
    close(turn(x, positions).norm(dim=-1), x.norm(dim=-1))
    close(turn(turn(x, positions), positions.flip(0)), turn(x, positions + positions.flip(0)), 1e-9)
    close(turn(x[:, :, 3:4], positions[3:4]), turn(x, positions)[:, :, 3:4])
    scores = [turn(x, positions + shift) @ turn(y, positions + shift).mT for shift in (0, 37)]
    close(scores[0], scores[1], 1e-9)
    alike = turn(x[:, :1].expand_as(x), positions)
    close(alike, alike[:, :1].expand_as(alike))
    close(turn(x, positions), rotated(x, positions, theta_of(16), layout))


@every_way
def test_rope_has_the_invariants_of_the_paper_and_follows_equation_34(form, layout) -> None:
    check_rope(queries(form=form, layout=layout), layout)
    position = rotary(form=form, layout=layout, base=300.0)
    x, positions = normal(2, 3, 4, 8), torch.tensor([0, 7, 2, 63])
    expected = rotated(x, positions, theta_of(8, 300.0), layout)
    for role in ("query", "key"):
        close(position.rotate(x, positions, role), expected)


@every_way
def test_rope_dim_model_is_a_rotation_before_the_head_split(form, layout) -> None:
    heads, dim, positions = 4, 6, torch.tensor([0, 1, 9])
    vectors = normal(2, 1, 3, heads * dim)

    def split(x: Tensor) -> Tensor:
        return x[:, 0].unflatten(-1, (heads, dim)).transpose(1, 2)

    order = torch.cat(pairs("interleaved", dim)) if layout == "half" else torch.arange(dim)
    given, turned = (
        split(x)[..., order] for x in (vectors, rotated(vectors, positions, theta_of(heads * dim)))
    )
    close(queries(form=form, layout=layout, rope_dim="model")(given, positions), turned)
    assert (queries(form=form, layout=layout)(given, positions) - turned).abs().max() > 0.1


@every_form
def test_the_half_layout_is_that_of_llama(form) -> None:
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


@every_form
def test_the_interleaved_layout_is_that_of_gptj_and_x_transformers(form) -> None:
    x, positions = normal(2, 3, 9, 16), torch.arange(9)
    out = queries(form=form)(x, positions)
    angles = (positions[:, None] * theta_of(16))[None]
    close(out.transpose(1, 2), gptj_rotate(x.transpose(1, 2), angles.sin(), angles.cos()))
    theirs = XTransformersRotary(16)
    close(theirs.inv_freq, inverse_frequencies(16), 1e-6)
    theirs.inv_freq = theta_of(16)
    close(out, x_transformers_rotate(x, *theirs(positions)))


SHAPES = [(5, 4), (3, 5, 4), (2, 1, 5, 4), (2, 3, 5, 4)]  # all alike, by head, by row, by both


@pytest.mark.parametrize(("layout", "shape"), itertools.product(LAYOUTS, SHAPES), ids=str)
def test_complex_and_real_agree_with_gradients_for_angles_of_every_shape(
    layout: Any, shape: tuple[int, ...]
) -> None:
    x, weight = normal(2, 3, 5, 8).requires_grad_(), normal(2, 3, 5, 8, seed=1)
    angles = normal(*shape, seed=2).requires_grad_()
    magnitude = normal(5, 4, seed=3).exp().requires_grad_()
    a, b = pairs(layout, 8)
    product = torch.complex(x[..., a], x[..., b]) * torch.exp(1j * angles) * magnitude
    expected = torch.empty_like(x).index_copy(-1, a, product.real).index_copy(-1, b, product.imag)
    leaves = (x, angles, magnitude)
    wanted = torch.autograd.grad((expected * weight).sum(), leaves)
    for form in ("real", "complex"):
        out = rotate_by(x, angles, layout=layout, magnitude=magnitude, form=form)
        close(out, expected)
        for gradient, right in zip(torch.autograd.grad((out * weight).sum(), leaves), wanted):
            close(gradient, right)


@pytest.mark.parametrize("form", ["real", "complex"])
def test_a_rotation_is_computed_in_the_finer_type_and_returned_in_that_of_x(form) -> None:
    x, angles, turn = normal(1, 1, 3, 4), normal(3, 2), partial(rotate_by, form=form)
    assert turn(x, angles.float()).dtype == DOUBLE
    close(turn(x, angles.float()), turn(x, angles.float().double()), 1e-6)
    close(turn(x, torch.zeros(3, 2)), x, 0.0)
    assert turn(x.bfloat16(), angles.float()).dtype == torch.bfloat16


@every_form
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rotation_at_given_positions_takes_any_float_type(form, dtype: torch.dtype) -> None:
    x, at, theta = normal(2, 3, 4, 6), AT, theta_of(6)
    got = rotate(x.to(dtype), at, theta.to(dtype), form=form)
    assert got.dtype == dtype
    # angles of up to 9 radians carry the rounding of theta
    difference = (got.double() - rotated(x, at, theta)).abs().max()
    assert difference < 60 * torch.finfo(dtype).eps


ROTARY = [name for name in POSITIONS if "rope" in name or "xpos" in name]
ROTARY.remove("selective_rope")  # by the state of tokens


@every_form
@pytest.mark.parametrize("name", ROTARY)
def test_heads_turned_in_one_product_are_those_turned_each_for_itself(name: str, form: str) -> None:
    module = configured(POSITIONS[name], "decoder")
    module.form = form
    qkv, weights, at = normal(2, 4, 3, 2, 8).requires_grad_(), normal(3, 2, 2, 4, 8), AT
    places = Places(at, at, causal=True)
    together = torch.stack(module.rotate_heads(qkv, places))
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    each = torch.stack((module.rotate(q, at, "query"), module.rotate(k, at, "key"), v))
    close(together, each)
    gradients = [torch.autograd.grad((out * weights).sum(), qkv)[0] for out in (together, each)]
    close(*gradients)
    assert module.rotate_heads(qkv.detach().bfloat16(), places)[0].dtype == torch.bfloat16


# ------------------------------------------------------------------ p-RoPE and learned frequencies


@pytest.mark.parametrize("share", [0.0, 0.2, 0.25, 0.7, 1.0])
def test_p_rope_turns_the_fastest_pairs_as_transformers_has_it(share: float) -> None:
    settings = {"rope_type": "proportional", "rope_theta": 300.0, "partial_rotary_factor": share}
    theirs, _ = ROPE_INIT_FUNCTIONS["proportional"](
        LlamaConfig(hidden_size=48, num_attention_heads=3, head_dim=16, rope_parameters=settings)
    )
    theta = theta_of(16, 300.0) * (torch.arange(8) < int(share * 8))
    close(theta.float(), theirs, 1e-6)
    x, at = normal(2, 3, 4, 16), torch.tensor([0, 7, 2, 63])
    for form, layout in itertools.product(FORMS, LAYOUTS):
        position = rotary(share=share, base=300.0, form=form, layout=layout)
        close(position.rotate(x, at, "key"), rotated(x, at, theta, layout), 1e-12)


@every_way
def test_heads_learn_frequencies_of_their_own_from_those_of_the_paper(form, layout) -> None:
    rests = {"share": 0.75, "clipped": 0.75}  # the last of four pairs; the third is half as fast
    position = rotary(learn_frequencies=True, form=form, layout=layout, base=300.0, **rests)
    [log_theta] = position.parameters()
    close(log_theta, theta_of(8, 300.0).log().float().expand(2, -1), 1e-6)
    log_theta.data = normal(2, 4, seed=3)
    x, at = normal(2, 2, 4, 8), torch.tensor([0, 7, 2, 63])
    turned = position.rotate(x, at, "query")
    for head in range(2):
        theta = log_theta[head].exp() * torch.tensor([1, 1, 0.5, 0])
        close(turned[:, head], rotated(x[:, head], at, theta, layout))


def test_an_odd_size_is_refused() -> None:
    with pytest.raises(ValueError, match="dim = 7 must be even"):
        inverse_frequencies(7)


def test_frequencies_that_a_search_asked_for_serve_a_training() -> None:
    with torch.inference_mode():
        inverse_frequencies(10, base=77.0)
    x = torch.ones(5, requires_grad=True)
    (x * inverse_frequencies(10, base=77.0)).sum().backward()
    assert torch.equal(x.grad, inverse_frequencies(10, base=77.0))


# --------------------------------------------------------------------------------------------- xPos

DIM = 8
Scores = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, their positions -> [B,H,Tq,Tk]


def xpos(kind: Any = "decoder", cls: Any = None, **changes: Any) -> AttentionPosition:
    return configured(config.XPos(**{"form": "real", **changes}), kind, cls=cls)


def scores_of(position: AttentionPosition) -> Scores:
    return lambda q, k, m, n: position.rotate(q, m, "query") @ position.rotate(k, n, "key").mT


def check_xpos(scores: Scores) -> None:
    """RoPE times zeta^((m-n)/S) pair by pair: it decays for m > n, grows for n > m, is relative."""
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


@every_form
def test_xpos_is_rope_that_decays_towards_the_past_and_grows_towards_the_future(form) -> None:
    check_xpos(scores_of(xpos(form=form)))
    x, at = normal(1, 2, 9, DIM), torch.arange(0, 900, 100)
    # with gamma towards infinity it is RoPE, as it is in the encoder
    for kind, gamma in (("decoder", 1e14), ("encoder", 0.4)):
        for role in ("query", "key"):
            turned = xpos(kind, gamma=gamma, base=300.0, form=form).rotate(x, at, role)
            close(turned, rotated(x, at, theta_of(DIM, 300.0)))


def test_the_scale_of_xpos_follows_its_formula() -> None:
    scale = xpos_scale(torch.tensor([0, 100, -512]), 6, gamma=0.7, scale_base=256.0, dtype=DOUBLE)
    expected = [[((i / 3 + 0.7) / 1.7) ** (m / 256) for i in range(3)] for m in (0, 100, -512)]
    close(scale, torch.tensor(expected, dtype=DOUBLE))
    assert xpos_scale(torch.tensor([2]), 6, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_xpos_is_that_of_x_transformers() -> None:
    theirs = XTransformersRotary(16, use_xpos=True)
    scale = xpos_scale(torch.tensor([512]), 16, dtype=DOUBLE)[0]
    close(theirs.scale, scale.float(), 1e-6)
    theirs.inv_freq, theirs.scale = theta_of(16), scale
    q, k, at = normal(2, 3, 40, 16), normal(2, 3, 40, 16, seed=1), torch.arange(40)
    angles, scale = theirs(at)  # centred at 20, which cancels
    turned_q, turned_k = (
        x_transformers_rotate(x, angles, s) for x, s in ((q, scale), (k, scale**-1))
    )
    close(scores_of(xpos())(q, k, at, at), turned_q @ turned_k.mT)


def test_xpos_is_finite_up_to_its_bound() -> None:
    position = config.XPos(scale_base=1.0)
    bound = position.bound("target")
    assert bound is not None
    module = configured(position, "decoder")
    for beyond, finite in ((0, True), (20, False)):
        at = torch.tensor([bound.length + beyond])
        key = module.rotate(100 * normal(1, 1, 1, 8).float(), at, "key")
        assert bool(key.isfinite().all()) == finite


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
    return rotate_by(x, angles.double())


def _positions_along_the_heads(x: Tensor, positions: Tensor) -> Tensor:
    return queries()(x.transpose(1, 2), torch.arange(x.shape[1])).transpose(1, 2)


def _xpos(
    q_sign: int, k_sign: int, exponent: Callable[[Tensor], Tensor] = lambda x: x, zeta_of: int = 1
) -> Scores:
    def turned(x: Tensor, positions: Tensor, sign: int) -> Tensor:
        scale = xpos_scale(sign * exponent(positions), DIM, dtype=DOUBLE) ** zeta_of
        return rotate_by(x, positions[:, None] * theta_of(DIM), magnitude=scale)

    return lambda q, k, m, n: turned(q, m, q_sign) @ turned(k, n, k_sign).mT


MISTAKES: dict[str, tuple[Callable[..., None], Any]] = {
    "rotation of d_model before the head split": (check_rope, queries(rope_dim="model")),
    "cos and sin of the wrong pair": (check_rope, _cos_of_the_wrong_pair),
    "(-x_{d-1}, x_d) at the end": (check_rope, _sign_slip_in_the_last_pair),
    "angles in bfloat16": (check_rope, _positions_in_bfloat16),
    "counted from 0 at every step": (check_rope, lambda x, at: queries()(x, torch.arange(len(at)))),
    "positions along the heads": (check_rope, _positions_along_the_heads),
    "heads taken for positions, silently nothing": (check_rope, lambda x, positions: x),
    "half layout where neighbours are meant": (check_rope, queries(layout="half")),
    "clockwise": (check_rope, lambda x, positions: queries()(x, -positions)),
    "xpos: q and k both scaled by zeta^+": (check_xpos, _xpos(1, 1)),
    "xpos: q and k exchanged": (check_xpos, _xpos(-1, 1)),
    "xpos: k not scaled": (check_xpos, _xpos(1, 0)),
    "xpos: no common centre": (check_xpos, _xpos(1, -1, lambda at: at - (at.max() + 1) // 2)),
    "xpos: zeta squared": (check_xpos, _xpos(1, -1, zeta_of=2)),
    "xpos: plain RoPE": (check_xpos, _xpos(0, 0)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(*MISTAKES[mistake])


class _CentreAtHalfTheLength(XPos):
    """As public code has it: harmless in one pass, wrong with keys cached at an earlier length."""

    def rotate(self, x: Tensor, positions: Tensor, role) -> Tensor:
        steps = positions - (int(positions.max()) + 1) // 2
        signed = steps if role == "query" else -steps
        scale = xpos_scale(signed, DIM, scale_base=20.0, dtype=DOUBLE)
        return self.turn(x, positions, theta_of(DIM), scale)


def test_a_known_mistake_is_caught_a_centre_of_xpos_that_moves() -> None:
    check_xpos(_xpos(1, -1))  # the only fault of the mistakes above is the one they name
    right, moving = (xpos(cls=cls, scale_base=20.0) for cls in (XPos, _CentreAtHalfTheLength))
    q, k = normal(2, 3, 12, DIM), normal(2, 3, 12, DIM, seed=1)
    expected = causal_logits(right, q, k)
    close(stepwise_logits(right, q, k, [5, 4, 3]), expected)
    close(causal_logits(moving, q, k), expected)
    catches(lambda: close(stepwise_logits(moving, q, k, [1] * 12), expected))
