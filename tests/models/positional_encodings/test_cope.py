"""CoPE: the equations pair by pair, x-transformers, what may not be counted, known mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from references import DOUBLE, NEWEST, catches, close, dot, normal
from torch import Tensor, nn
from x_transformers.x_transformers import CoPE

from models.masks import causal_attn_mask
from models.positional_encodings.base import Places
from models.positional_encodings.cope import Cope, cope_logits, cope_positions

B, H, DH = 2, 2, 6


def queries_and_keys(n_queries: int, n_keys: int) -> tuple[Tensor, Tensor]:
    return normal(B, H, n_queries, DH, seed=1), normal(B, H, n_keys, DH, seed=2)


def plain_logits(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / math.sqrt(DH)


def logits_by_loop(q: Tensor, k: Tensor, table: Tensor, m: Tensor, n: Tensor) -> Tensor:
    """Keys in the order of their positions; 0 for the pairs that a causal mask forbids."""
    out = torch.zeros(B, H, len(m), len(n), dtype=DOUBLE)
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, out.shape)).tolist():
        seen = [s for s in range(j, len(n)) if n[s] <= m[i]]
        if seen:
            logits = (dot(q[b, h, i], k[b, h, s]) / math.sqrt(DH) for s in seen)
            p = min(math.fsum(1 / (1 + math.exp(-x)) for x in logits), len(table) - 1)
            low, high = math.floor(p), math.ceil(p)
            row = (p - low) * table[high] + (1 - p + low) * table[low]
            out[b, h, i, j] = dot(q[b, h, i], row)
    return out


def module_logits(q: Tensor, k: Tensor, table: Tensor, places: Places) -> Tensor:
    module = Cope(head_dim=DH, n_positions=len(table)).double()
    module.table.data = table
    return module.logit_term(q, k, places, None)


def check_logits(implementation: Callable[[Tensor, Tensor, Tensor, Places], Tensor]) -> None:
    for n_positions in (9, 3):  # enough for every count, and too few for the largest
        table = normal(n_positions, DH, seed=3)
        for where in NEWEST.values():
            q, k = queries_and_keys(*map(len, where))
            got = implementation(q, k, table, Places(*where, causal=True))
            close(got * causal_attn_mask(*where), logits_by_loop(q, k, table, *where))
            assert torch.isfinite(got).all()


def test_the_papers_equations_hold() -> None:
    check_logits(module_logits)


@pytest.mark.parametrize("n_positions", [4, 12])
def test_the_logits_are_those_of_x_transformers(n_positions: int) -> None:
    where = torch.arange(9)
    q, k = queries_and_keys(9, 9)
    theirs = CoPE(dim=DH, heads=H, max_pos=n_positions).double()
    nn.init.normal_(theirs.pos_emb, generator=torch.Generator().manual_seed(0))
    allowed = causal_attn_mask(where, where)
    masked = plain_logits(q, k).masked_fill(~allowed, -torch.finfo(DOUBLE).max)
    close(cope_logits(q, plain_logits(q, k), theirs.pos_emb, allowed), theirs(q, masked))


def test_open_gates_count_tokens() -> None:
    n, n_positions = 6, 5
    allowed = causal_attn_mask(torch.arange(n), torch.arange(n))
    counts = cope_positions(torch.full((1, 1, n, n), 50.0).double(), allowed, n_positions)[0, 0]
    expected = [[min(max(i - j + 1, 0), n_positions - 1) for j in range(n)] for i in range(n)]
    close(counts, torch.tensor(expected, dtype=DOUBLE))


def test_gates_do_not_count_padding_or_the_future() -> None:
    where, n, table = torch.arange(6), 6, normal(4, DH, seed=3)
    q, k = queries_and_keys(n, n)
    changed, moved = k.clone(), k.clone()
    changed[:, :, 4:] += 3
    moved[:, :, 2] += 3
    padding = torch.ones(B, 1, 1, n, dtype=torch.bool)
    padding[..., 2] = False
    causal = Places(where, where, causal=True)
    before, after = (module_logits(q, key, table, causal) for key in (k, changed))
    close(after[:, :, :4, :4], before[:, :, :4, :4])
    assert (after[:, :, 4:] - before[:, :, 4:]).abs().max() > 1e-3
    padded = Places(where, where, causal=True, padding=padding)
    close(*(module_logits(q, key, table, padded) for key in (k, moved)))


def test_positions_count_past_what_bfloat16_can_count() -> None:
    gates = torch.full((1, 1, 1, 300), 50.0, dtype=torch.bfloat16)
    positions = cope_positions(gates, torch.ones(1, 300).bool(), 400)
    assert positions.flatten().tolist() == list(range(300, 0, -1))


# ----------------------------------------------------------------------------------------- mistakes


def counts_the_future(q: Tensor, qk: Tensor, table: Tensor, allowed: Tensor) -> Tensor:
    return cope_logits(q, qk, table, torch.ones_like(allowed))


def counts_from_the_start(q: Tensor, qk: Tensor, table: Tensor, allowed: Tensor) -> Tensor:
    everyone = torch.ones_like(allowed).expand_as(qk)
    return cope_logits(q, qk.masked_fill(~allowed, -1e9).flip(-1), table, everyone).flip(-1)


def bare_logits(q: Tensor, qk: Tensor, table: Tensor, allowed: Tensor) -> Tensor:
    return cope_logits(q, qk * math.sqrt(DH), table, allowed)


def no_interpolation(q: Tensor, qk: Tensor, table: Tensor, allowed: Tensor) -> Tensor:
    whole = cope_positions(qk, allowed, len(table)).round().long()
    return (q @ table.T).gather(-1, whole)


MISTAKES = [counts_the_future, counts_from_the_start, bare_logits, no_interpolation]


@pytest.mark.parametrize("logits", [cope_logits, *MISTAKES])
def test_a_known_mistake_is_caught(logits: Callable[..., Tensor]) -> None:
    def implementation(q: Tensor, k: Tensor, table: Tensor, places: Places) -> Tensor:
        allowed = causal_attn_mask(places.q_positions, places.k_positions)
        return logits(q, plain_logits(q, k), table, allowed)

    if logits is cope_logits:  # without a mistake
        check_logits(implementation)
    else:
        catches(lambda: check_logits(implementation))
