"""What the tests of the schemes share: the papers' equations as plain loops, and one attention."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from models.attention.kernels import attend
from models.masks import causal_attn_mask
from models.positional_encodings.base import AttentionPosition, Places

DOUBLE = torch.float64

# Query and key positions: a whole sequence, its newest tokens against all of it, positions with
# gaps, far from 0.
NEWEST = {
    "whole": (torch.arange(7), torch.arange(7)),
    "newest": (torch.arange(4, 7), torch.arange(7)),
    "one": (torch.tensor([6]), torch.arange(7)),
    "gaps": (torch.tensor([4, 9, 11]), torch.tensor([0, 1, 4, 9, 11])),
    "far": (torch.arange(1004, 1007), torch.arange(1000, 1007)),
}
# What is defined on both sides of a query also knows queries that are not the last of the keys.
ANYWHERE = {
    **NEWEST,
    "first": (torch.arange(3), torch.arange(9)),
    "middle": (torch.tensor([2, 3]), torch.arange(7)),
    "unsorted": (torch.tensor([5, 0, 3]), torch.tensor([3, 8, 0, 5])),
}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def distances(length: int) -> Tensor:
    return torch.arange(length)[:, None] - torch.arange(length)


def loud(module: Any, least_dim: int = 1) -> Any:
    """In float64, with parameters large enough to be seen."""
    with torch.no_grad():
        for parameter in module.double().eval().parameters():
            if parameter.dim() >= least_dim:
                parameter.add_(0.5 * torch.randn_like(parameter))
    return module


def catches(check: Callable[..., object], *mistaken: object) -> None:
    """The check must fail, as it does by what it compares and not by an error of its own."""
    with pytest.raises(AssertionError):
        check(*mistaken)


def by_pair(
    q_positions: Tensor, k_positions: Tensor, entry: Callable[[int, int, int, int], Tensor]
) -> Tensor:
    """entry(i, j, m, n) [...] of every query i at m and key j at n, as [...,Tq,Tk]."""
    queries, keys = list(enumerate(q_positions.tolist())), list(enumerate(k_positions.tolist()))
    rows = [torch.stack([entry(i, j, m, n) for j, n in keys], dim=-1) for i, m in queries]
    return torch.stack(rows, dim=-2)


# ----------------------------------------------------------------------------- sinusoids, rotations


def theta_of(dim: int, base: float = 10000.0) -> Tensor:
    return torch.tensor([base ** (-2 * i / dim) for i in range(dim // 2)], dtype=DOUBLE)


def sinusoids(t: int, d: int, base: float = 10000.0) -> list[float]:
    """All sines and then all cosines of the integer t."""
    angles = [t / base ** (2 * i / d) for i in range(d // 2)]
    return [*map(math.sin, angles), *map(math.cos, angles)]


def shift_matrix(k: int, d: int) -> Tensor:
    """M(k) with M(k) PE(t) = PE(t+k): sin(a+b) = sin a cos b + cos a sin b, and
    cos(a+b) = cos a cos b - sin a sin b.
    """
    cos, sin = torch.cos(k * theta_of(d)), torch.sin(k * theta_of(d))
    return torch.block_diag(*torch.stack((cos, sin, -sin, cos), dim=-1).view(-1, 2, 2))


def pairs(layout: str, dim: int) -> tuple[Tensor, Tensor]:
    """Which dimensions make the pairs 0 .. dim/2 - 1."""
    i = torch.arange(dim // 2)
    return (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + dim // 2)


def rotated(x: Tensor, positions: Tensor, theta: Tensor, layout: str = "interleaved") -> Tensor:
    """RoFormer, equation 34, pair by pair."""
    out = torch.empty_like(x)
    first, second = (index.tolist() for index in pairs(layout, x.shape[-1]))
    for t, m in enumerate(positions.tolist()):
        for a, b, w in zip(first, second, theta.tolist()):
            cos, sin = math.cos(m * w), math.sin(m * w)
            out[..., t, a] = x[..., t, a] * cos - x[..., t, b] * sin
            out[..., t, b] = x[..., t, a] * sin + x[..., t, b] * cos
    return out


# ---------------------------------------------------------------------------------------- attention


def logits_of(position: AttentionPosition, q: Tensor, k: Tensor, places: Places) -> Tensor:
    """The scaled logits with what the module adds; k is rotated as it is before it is cached."""
    k = position.rotate(k, places.k_positions, "key")
    return logits_of_cached(position, q, k, places)


def logits_of_cached(position: AttentionPosition, q: Tensor, k: Tensor, places: Places) -> Tensor:
    scale = position.logit_scale(q.shape[-1], places)
    q = position.rotate(q, places.q_positions, "query")
    logits = (scale * q) @ k.mT
    for term in (position.bias(places), position.logit_term(q, k, places, None)):
        logits = logits if term is None else logits + term
    return logits


def stepwise_logits(
    position: AttentionPosition, q: Tensor, k: Tensor, chunks: list[int], *, ranged: bool = False
) -> Tensor:
    """The logits of a decoder's steps over keys that were rotated when they came.

    ranged: with the ranges of positions, as a model has them.
    """
    keys: list[Tensor] = []
    end, steps = 0, []
    for size in chunks:
        start, end = end, end + size
        at = torch.arange(end)
        spans: Any = {"q_span": (start, end), "k_span": (0, end)} if ranged else {}
        places = Places(at[start:], at, causal=True, newest=size == 1, **spans)
        keys.append(position.rotate(k[:, :, start:end], at[start:], "key"))
        logits = logits_of_cached(position, q[:, :, start:end], torch.cat(keys, dim=2), places)
        steps.append(F.pad(logits, (0, q.shape[2] - end)))
    return torch.cat(steps, dim=2).tril()


def causal_logits(position: AttentionPosition, q: Tensor, k: Tensor) -> Tensor:
    """One pass over the whole sequence; what the mask forbids is left out."""
    at = torch.arange(q.shape[2])
    return logits_of(position, q, k, Places(at, at, causal=True)).tril()


def attention(module: AttentionPosition, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor:
    """What an attention with this module gives, [B,H,Tq,Dh]."""
    out, _ = attend(
        q,
        k,
        v,
        mask=causal_attn_mask(places.q_positions, places.k_positions) if places.causal else None,
        bias=module.logit_term(q, k, places, None),
        scale=module.logit_scale(q.shape[-1], places),
        value_term=(lambda w: module.value_term(w, places)) if module.needs_weights else None,
    )
    return out
