"""PoPE: its equation pair by pair, x-transformers, decoding, precision, known mistakes."""

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from references import ANYWHERE, by_pair, catches, logits_of, normal
from tiny_models import N_HEADS, close, configured, sources, tiny_model
from torch import Tensor
from x_transformers.x_transformers import PolarEmbedding, apply_polar_pos_emb

import configs.positions as config
from models.positional_encodings.base import Places

BASE, DH = 100.0, 8
ROPE, POPE = config.Rope(), config.Pope()
Q, K = normal(2, N_HEADS, 9, DH, seed=1), normal(2, N_HEADS, 9, DH, seed=2)


def module() -> Any:
    """With phases on both sides of their bounds."""
    made = configured(config.Pope(base=BASE)).double()
    with torch.no_grad():
        made.delta.copy_(-3 + 4 * normal(N_HEADS, DH, seed=3))
    return made


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def bounded(phase: float) -> float:
    return min(0.0, max(-2 * math.pi, phase))


def paper(m: int, n: int, c: int, phase: float) -> float:
    return (n - m) * BASE ** (-c / DH) + bounded(phase)


def check_logits(
    made: Any, angle: Any = paper, magnitude: Any = softplus, scale: float = DH**-0.5
) -> None:
    """Element by element: magnitudes, and the cosine of the distance and the bounded phase."""
    for where in ANYWHERE.values():
        q, k, places = Q[:, :, : len(where[0])], K[:, :, : len(where[1])], Places(*where)

        def entry(i: int, j: int, m: int, n: int, q: Tensor = q, k: Tensor = k) -> Tensor:
            logit = torch.zeros(q.shape[:2], dtype=q.dtype)
            for b, h, c in itertools.product(*map(range, (len(q), N_HEADS, DH))):
                size = magnitude(q[b, h, i, c].item()) * magnitude(k[b, h, j, c].item())
                logit[b, h] += size * math.cos(angle(m, n, c, made.delta[h, c].item()))
            return scale * logit

        close(logits_of(made, q, k, places), by_pair(*where, entry))


def test_logits_are_those_of_the_paper() -> None:
    assert module().delta.min() < -2 * math.pi
    assert module().delta.max() > 0
    check_logits(module())


def test_rotated_queries_and_keys_are_those_of_x_transformers() -> None:
    made, at = module(), torch.tensor([0, 3, 4, 9])
    theirs = PolarEmbedding(DH, N_HEADS, base=BASE)
    theirs.learned_bias.data.copy_(made.delta[:, None])
    frequencies, phases = theirs(at)
    q, k = Q[:, :, :4], K[:, :, :4]
    for x, role, angles in ((q, "query", frequencies), (k, "key", frequencies + phases)):
        close(made.rotate(x, at, role), apply_polar_pos_emb(x, angles), 2e-5)  # in float32


def test_a_phase_past_its_bound_finds_the_way_back() -> None:
    """The clamp passes gradients whose descent leads inside, and no others."""
    made = module()
    past = made.delta.detach().clone() > 0
    for sign in (1.0, -1.0):
        rotated = made.rotate(K, torch.arange(9), "key")
        (grad,) = torch.autograd.grad(sign * rotated.sum(), made.delta)
        assert (grad[past] > 0).any()
        assert not (grad[past] < 0).any()


def test_it_starts_without_phases_and_a_cache_is_as_wide_as_the_widest_layer() -> None:
    assert not configured(config.Pope()).delta.any()
    mixed = (config.Interleaved(others=a, nth=b) for a, b in itertools.permutations((ROPE, POPE)))
    for position, width in ((ROPE, DH), *((each, 2 * DH) for each in (POPE, *mixed))):
        model = tiny_model(position)
        state = model.init_state(model.encode(sources(4)), beam_size=1, max_len=3)
        assert state.cache.held.shape[-1] == width


def test_magnitudes_and_angles_are_computed_in_full_precision() -> None:
    made, at = configured(config.Pope()).bfloat16(), torch.arange(1000, 1003)
    x = Q[:, :, :3].bfloat16()
    exact = configured(config.Pope()).double().rotate(x.double(), at, "key")
    got = made.rotate(x, at, "key")
    assert got.dtype == torch.bfloat16
    close(got.double(), exact, 2**-8)


# ----------------------------------------------------------------------------------------- mistakes


MISTAKES: dict[str, dict[str, Any]] = {
    "frequencies of RoPE's pairs": {"angle": lambda m, n, c, p: paper(m, n, 2 * c, p)},
    "pairs share a frequency": {"angle": lambda m, n, c, p: paper(m, n, c - c % 2, p)},
    "the phase at both sides": {"angle": lambda m, n, c, p: paper(m, n, c, 0.0)},
    "the phase reversed": {"angle": lambda m, n, c, p: paper(m, n, c, 0.0) - bounded(p)},
    "the phase turns with position": {
        "angle": lambda m, n, c, p: paper(m, n, c, 0.0) + n * bounded(p)
    },
    "signed magnitudes": {"magnitude": lambda x: x},
    "relu": {"magnitude": lambda x: max(0.0, x)},
    "unbounded": {"angle": lambda m, n, c, p: paper(m, n, c, 0.0) + p},
    "scaled by its width": {"scale": (2 * DH) ** -0.5},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(partial(check_logits, **MISTAKES[mistake]), module())
