"""xPos: its decay pair by pair, x-transformers, cached keys, and known mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from references import DOUBLE, CachedKeys, catches, causal_logits, close, normal, rotated, theta_of
from tiny_models import tiny_config
from torch import Tensor
from x_transformers.x_transformers import (
    RotaryEmbedding as XTransformersRotary,
    apply_rotary_pos_emb as x_transformers_rotate,
)

import configs.positions as config
from models.positional_encodings.rope import rotate_real
from models.positional_encodings.xpos import XPos, xpos_scale, xpos_scores
from models.schemes import build_scheme

DIM = 8
Scores = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # q, k, their positions -> [B,H,Tq,Tk]
FORMS = ("real", "complex")


def xpos(cls: type[XPos] = XPos, **changes: Any) -> XPos:
    return cls(**{"base": 10000.0, "gamma": 0.4, "scale_base": 512.0, "form": "real", **changes})


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


def test_xpos_is_rope_that_decays_towards_the_past_and_grows_towards_the_future() -> None:
    check_xpos(xpos_scores)
    for form in FORMS:
        p = xpos(form=form)
        check_xpos(lambda q, k, m, n, p=p: p.rotate(q, m, "query") @ p.rotate(k, n, "key").mT)


def test_the_scale_follows_its_formula() -> None:
    scale = xpos_scale(torch.tensor([0, 100, -512]), 6, gamma=0.7, scale_base=256.0, dtype=DOUBLE)
    expected = [[((i / 3 + 0.7) / 1.7) ** (m / 256) for i in range(3)] for m in (0, 100, -512)]
    close(scale, torch.tensor(expected, dtype=DOUBLE))
    assert xpos_scale(torch.tensor([2]), 6, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_the_scores_are_those_of_x_transformers() -> None:
    theirs = XTransformersRotary(16, use_xpos=True)
    scale = xpos_scale(torch.tensor([512]), 16, dtype=DOUBLE)[0]
    close(theirs.scale, scale.float(), 1e-6)
    theirs.inv_freq, theirs.scale = theta_of(16), scale
    q, k, at = normal(2, 3, 40, 16), normal(2, 3, 40, 16, seed=1), torch.arange(40)
    angles, scale = theirs(at)  # centred at 20, which cancels
    turned_q, turned_k = (
        x_transformers_rotate(x, angles, s) for x, s in ((q, scale), (k, scale**-1))
    )
    close(xpos_scores(q, k, at, at), turned_q @ turned_k.mT)


@pytest.mark.parametrize("form", FORMS)
def test_xpos_with_gamma_towards_infinity_is_rope(form: str) -> None:
    q, at = normal(1, 2, 9, DIM), torch.arange(0, 900, 100)
    rope = rotated(q, at, theta_of(DIM))
    for role in ("query", "key"):
        close(xpos(gamma=1e14, form=form).rotate(q, at, role), rope)
        assert (xpos(form=form).rotate(q, at, role) - rope).abs().max() > 0.1


def test_xpos_leaves_position_zero_and_keeps_cached_keys_right() -> None:
    position, at = xpos(scale_base=20.0), torch.arange(12)
    q, k = normal(2, 3, 12, DIM), normal(2, 3, 12, DIM, seed=1)
    for role in ("query", "key"):
        assert torch.equal(position.rotate(q[:, :, :1], at[:1], role), q[:, :, :1])
    for chunks in ([1] * 12, [5, 4, 3]):
        close(CachedKeys(position)(q, k, chunks), causal_logits(position, q, k))


def test_xpos_is_finite_up_to_its_bound() -> None:
    position = config.XPos(scale_base=1.0)
    bound = position.bound("target")
    assert bound is not None
    module = build_scheme(tiny_config(position)).attention("decoder", 0)
    for beyond, finite in ((0, True), (20, False)):
        key = module.rotate(
            100 * normal(1, 1, 1, 8).float(), torch.tensor([bound.length + beyond]), "key"
        )
        assert bool(key.isfinite().all()) == finite


# ----------------------------------------------------------------------------------------- mistakes


def _xpos(
    q_sign: int, k_sign: int, exponent: Callable[[Tensor], Tensor] = lambda x: x, zeta_of: int = 1
) -> Scores:
    def turned(x: Tensor, positions: Tensor, sign: int) -> Tensor:
        scale = xpos_scale(sign * exponent(positions), DIM, dtype=DOUBLE) ** zeta_of
        return rotate_real(x, positions[:, None] * theta_of(DIM), magnitude=scale)

    return lambda q, k, m, n: turned(q, m, q_sign) @ turned(k, n, k_sign).mT


MISTAKES: dict[str, Scores] = {
    "q and k both scaled by zeta^+": _xpos(1, 1),
    "q and k exchanged": _xpos(-1, 1),
    "k not scaled": _xpos(1, 0),
    "a centre that q and k do not share": _xpos(1, -1, lambda p: p - (p.max() + 1) // 2),
    "zeta squared": _xpos(1, -1, zeta_of=2),
    "plain RoPE": _xpos(0, 0),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    check_xpos(_xpos(1, -1))
    catches(lambda: check_xpos(MISTAKES[mistake]))


class _CentreAtHalfTheLength(XPos):
    """As public code has it: harmless in one pass, wrong with keys cached at an earlier length."""

    def rotate(self, x: Tensor, positions: Tensor, role) -> Tensor:
        steps = positions - (int(positions.max()) + 1) // 2
        signed = steps if role == "query" else -steps
        scale = xpos_scale(signed, DIM, scale_base=20.0, dtype=DOUBLE)
        return self.turn(x, positions, theta_of(DIM), scale)


def test_a_known_mistake_is_caught_a_centre_that_moves() -> None:
    position = xpos(_CentreAtHalfTheLength, scale_base=20.0)
    q, k = normal(2, 3, 12, DIM), normal(2, 3, 12, DIM, seed=1)
    whole = causal_logits(position, q, k)
    close(whole, causal_logits(xpos(scale_base=20.0), q, k))
    catches(lambda: close(CachedKeys(position)(q, k, [1] * 12), whole))
