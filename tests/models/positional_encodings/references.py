"""What the tests of the schemes share: the papers' equations as plain loops, and one attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from models.attention.kernels import attend
from models.masks import causal_attn_mask
from models.positional_encodings.base import AttentionPosition, Places

DOUBLE = torch.float64
BiasOf = Callable[[Tensor, Tensor], Tensor]  # positions of queries and keys -> [H,Tq,Tk]

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


def close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def distances(length: int) -> Tensor:
    return torch.arange(length)[:, None] - torch.arange(length)


def loop(length: int, entry: Callable[[int, int, int], float], n_heads: int) -> Tensor:
    """entry(head from 1, i, j) for all heads and pairs, [H,T,T]."""
    t, heads = range(length), range(1, n_heads + 1)
    return torch.tensor([[[entry(h, i, j) for j in t] for i in t] for h in heads], dtype=DOUBLE)


def bounded(x: int, low: int, high: int) -> int:
    return low if x < low else high if x > high else x


def dot(a: Tensor | list[float], b: Tensor | list[float]) -> float:
    a, b = (x.tolist() if isinstance(x, Tensor) else x for x in (a, b))
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def catches(check: Callable[[], object]) -> None:
    """The check must fail, as it does by what it compares and not by an error of its own."""
    with pytest.raises(AssertionError):
        check()


# ----------------------------------------------------------------------------- sinusoids, rotations


def theta_of(dim: int, base: float = 10000.0) -> Tensor:
    return torch.tensor([base ** (-2 * i / dim) for i in range(dim // 2)], dtype=DOUBLE)


def sinusoids(t: int, d: int, base: float = 10000.0) -> list[float]:
    """All sines and then all cosines of the integer t."""
    angles = [t / base ** (2 * i / d) for i in range(d // 2)]
    return [*map(math.sin, angles), *map(math.cos, angles)]


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
    q = position.rotate(q, places.q_positions, "query")
    k = position.rotate(k, places.k_positions, "key")
    logits = position.logit_scale(q.shape[-1]) * q @ k.mT
    for term in (position.bias(places), position.logit_term(q, k, places, None)):
        logits = logits if term is None else logits + term
    return logits


def attention(module: AttentionPosition, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor:
    """What an attention with this module gives, [B,H,Tq,Dh]."""
    out, _ = attend(
        q,
        k,
        v,
        mask=causal_attn_mask(places.q_positions, places.k_positions) if places.causal else None,
        bias=module.logit_term(q, k, places, None),
        scale=module.logit_scale(q.shape[-1]),
        value_term=(lambda w: module.value_term(w, places)) if module.needs_weights else None,
    )
    return out


class CachedKeys:
    """A decoder's steps over keys that were rotated when they came; the logits of every step."""

    def __init__(self, position: AttentionPosition) -> None:
        self.position = position

    def __call__(self, q: Tensor, k: Tensor, chunks: list[int]) -> Tensor:
        return torch.cat(list(self.steps(q, k, chunks)), dim=2).tril()

    def steps(self, q: Tensor, k: Tensor, chunks: list[int]) -> Iterator[Tensor]:
        n, keys, start = q.shape[2], k[:, :, :0], 0
        for size in chunks:
            end = start + size
            at = torch.arange(end)
            places = Places(at[start:], at, causal=True, newest=size == 1)
            new_k = self.position.rotate(k[:, :, start:end], at[start:], "key")
            new_q = self.position.rotate(q[:, :, start:end], at[start:], "query")
            keys = torch.cat((keys, new_k), dim=2)
            term = self.position.logit_term(new_q, keys, places, None)
            logits = self.position.logit_scale(q.shape[-1]) * new_q @ keys.mT
            logits = logits if term is None else logits + term
            yield torch.nn.functional.pad(logits, (0, n - end))
            start = end


def causal_logits(position: AttentionPosition, q: Tensor, k: Tensor) -> Tensor:
    """One pass over the whole sequence; what the mask forbids is left out."""
    at = torch.arange(q.shape[2])
    return logits_of(position, q, k, Places(at, at, causal=True)).tril()


# ------------------------------------------------------------------------------- biases by distance


def bias_of(module: AttentionPosition, *, causal: bool = False) -> BiasOf:
    def bias(q_positions: Tensor, k_positions: Tensor) -> Tensor:
        made = module.bias(Places(q_positions, k_positions, causal=causal))
        assert made is not None
        return made

    return bias


def whole(bias: BiasOf, length: int) -> Tensor:
    return bias(torch.arange(length), torch.arange(length))


def check_rows_do_not_depend_on_the_other_queries(bias: BiasOf) -> None:
    """Decoding one token, or a few, gets the last rows of the whole bias."""
    full = whole(bias, 24)
    for start, end in [(23, 24), (0, 1), (9, 10), (17, 24), (3, 8)]:
        close(bias(torch.arange(start, end), torch.arange(end)), full[:, start:end, :end])


def check_near_keys_win(bias: BiasOf) -> None:
    """Zero at the query's own place, and falling with the distance on both sides in every head."""
    full = whole(bias, 12)
    assert not full.diagonal(dim1=1, dim2=2).any()
    close(full, full.transpose(1, 2), 1e-14)
    row = full[:, 0]
    assert (row[:, 1:] < row[:, :-1]).all()


class SlicedFromTheFront:
    """A bias of the greatest length so far, of which every call gets the first rows."""

    def __init__(self, bias: BiasOf) -> None:
        self.bias, self.cached = bias, torch.zeros(1, 0, 0)

    def __call__(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        n_queries, n_keys = len(q_positions), len(k_positions)
        if self.cached.shape[1] < max(n_queries, n_keys):
            self.cached = whole(self.bias, max(n_queries, n_keys))
        return self.cached[:, :n_queries, :n_keys]
