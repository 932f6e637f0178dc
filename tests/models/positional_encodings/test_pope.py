"""PoPE: its equation pair by pair, x-transformers, decoding, precision, known mistakes."""

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import ANYWHERE, by_pair, catches, close, logits_of, normal
from tiny_models import N_HEADS, configured, sources, tiny_model
from torch import Tensor
from x_transformers.x_transformers import PolarEmbedding, apply_polar_pos_emb

import configs.positions as config
from models.positional_encodings.base import Places, Role
from models.positional_encodings.pope import Pope, polar

BASE, DH = 100.0, 8
ROPE, POPE = config.Rope(), config.Pope()
Q, K = normal(2, N_HEADS, 9, DH, seed=1), normal(2, N_HEADS, 9, DH, seed=2)


def module(cls: Any = None) -> Any:
    """With phases on both sides of their bounds."""
    made = configured(config.Pope(base=BASE), cls=cls).double()
    with torch.no_grad():
        made.delta.copy_(-3 + 4 * normal(N_HEADS, DH, seed=3))
    return made


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def pope_by_pair(q: Tensor, k: Tensor, delta: Tensor, places: Places) -> Tensor:
    """Element by element: magnitudes, and the cosine of the distance and the bounded phase."""

    def entry(i: int, j: int, m: int, n: int) -> Tensor:
        logit = torch.zeros(q.shape[:2], dtype=q.dtype)
        for b in range(q.shape[0]):
            for h in range(N_HEADS):
                for c in range(DH):
                    phase = min(0.0, max(-2 * math.pi, delta[h, c].item()))
                    magnitude = softplus(q[b, h, i, c].item()) * softplus(k[b, h, j, c].item())
                    logit[b, h] += magnitude * math.cos((n - m) * BASE ** (-c / DH) + phase)
        return logit / math.sqrt(DH)

    return by_pair(places.q_positions, places.k_positions, entry)


def check_logits(made: Any) -> None:
    for where in ANYWHERE.values():
        q, k, places = Q[:, :, : len(where[0])], K[:, :, : len(where[1])], Places(*where)
        close(logits_of(made, q, k, places), pope_by_pair(q, k, made.delta, places))


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


def rotated_by(angles: Any, magnitude: Any = F.softplus) -> Any:
    """A Pope whose angles are angles(positions, c, delta or 0 for queries), [H,T,Dh]."""

    class Mistaken(Pope):
        def rotate(self, x: Tensor, positions: Tensor, role: Role) -> Tensor:
            bounded = self.delta.clamp(-2 * math.pi, 0)[:, None]
            phase = bounded if role == "key" else 0 * bounded
            by = angles(positions[:, None], torch.arange(DH).to(x), phase)
            return torch.cat((magnitude(x) * by.cos(), magnitude(x) * by.sin()), dim=-1)

    return Mistaken


class _UnboundedPhase(Pope):
    def rotate(self, x: Tensor, positions: Tensor, role: Role) -> Tensor:
        theta = BASE ** (-torch.arange(DH).to(x) / DH)
        return polar(x, positions[:, None] * theta + (role == "key") * self.delta[:, None])


class _ScaledByItsWidth(Pope):
    def logit_scale(self, head_dim: int, places: Places) -> float:
        return (2 * head_dim) ** -0.5


def right(at: Tensor, c: Tensor, phase: Tensor) -> Tensor:
    return at * BASE ** (-c / DH) + phase


MISTAKES = {
    "frequencies of RoPE's pairs": rotated_by(lambda at, c, p: at * BASE ** (-2 * c / DH) + p),
    "pairs share a frequency": rotated_by(lambda at, c, p: right(at, c - c % 2, p)),
    "the phase at both sides": rotated_by(lambda at, c, p: at * BASE ** (-c / DH)),
    "the phase reversed": rotated_by(lambda at, c, p: right(at, c, -p)),
    "the phase turns with position": rotated_by(lambda at, c, p: at * (BASE ** (-c / DH) + p)),
    "signed magnitudes": rotated_by(right, lambda x: x),
    "relu": rotated_by(right, torch.relu),
    "unbounded": _UnboundedPhase,
    "scaled by its width": _ScaledByItsWidth,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    check_logits(module(rotated_by(right)))
    catches(check_logits, module(MISTAKES[mistake]))
