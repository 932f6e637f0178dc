"""Shaw's terms on keys and values: the equations pair by pair, wav2vec2-BERT, known mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from references import ANYWHERE, DOUBLE, attention, bounded, catches, close, normal
from torch import Tensor, nn
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import (
    _apply_relative_key_position_encoding,
)

from models.positional_encodings.base import Places
from models.positional_encodings.shaw import Shaw, clipped_index, shaw_logits, shaw_values

B, H, DH, CLIP = 2, 2, 6, 3
Terms = Callable[..., Tensor]


def row(m: int, n: int) -> int:
    return bounded(n - m, -CLIP, CLIP) + CLIP


def check_logits(implementation: Terms) -> None:
    table = normal(2 * CLIP + 1, DH, seed=3)
    for q_positions, k_positions in ANYWHERE.values():
        q = normal(B, H, len(q_positions), DH, seed=1)
        expected = torch.zeros(B, H, len(q_positions), len(k_positions), dtype=DOUBLE)
        for i, m in enumerate(q_positions.tolist()):
            for j, n in enumerate(k_positions.tolist()):
                expected[:, :, i, j] = (q[:, :, i] * table[row(m, n)]).sum(-1)
        close(implementation(q, table, q_positions, k_positions, CLIP), expected)


def check_values(implementation: Terms) -> None:
    table = normal(2 * CLIP + 1, DH, seed=4)
    for q_positions, k_positions in ANYWHERE.values():
        weights = normal(B, H, len(q_positions), len(k_positions), seed=5).softmax(-1)
        expected = torch.zeros(B, H, len(q_positions), DH, dtype=DOUBLE)
        for i, m in enumerate(q_positions.tolist()):
            for j, n in enumerate(k_positions.tolist()):
                expected[:, :, i] += weights[:, :, i, j, None] * table[row(m, n)]
        close(implementation(weights, table, q_positions, k_positions, CLIP), expected)


def attention_by_loop(module: Shaw, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor:
    """Equations 3 and 4, softmax(q (k + a^K) / sqrt(Dh)) (v + a^V), each pair by itself."""
    rows = []
    for i, m in enumerate(places.q_positions.tolist()):
        keys, values = [], []
        for j, n in enumerate(places.k_positions.tolist()):
            if places.causal and n > m:
                continue
            keys.append(k[:, :, j] + module.key_table[row(m, n)])
            added = module.value_table[row(m, n)] if module.needs_weights else 0
            values.append(v[:, :, j] + added)
        logits = torch.stack([(q[:, :, i] * key).sum(-1) for key in keys], dim=-1) / math.sqrt(DH)
        weights = logits.softmax(-1).unbind(-1)
        rows.append(sum(w[..., None] * value for w, value in zip(weights, values, strict=True)))
    return torch.stack(rows, dim=-2)


def check_attention(make: Callable[[], Shaw]) -> None:
    """What an attention returns, and the gradients of q, k, v and the tables: the kernel that forms
    weights for a term on the values is the eager one, so no comparison of kernels stands behind it.
    """
    torch.manual_seed(0)
    module = make().double()
    for where in ANYWHERE.values():
        n_queries, n_keys = map(len, where)
        shapes = (n_queries, n_keys, n_keys)
        q, k, v = (normal(B, H, n, DH, seed=seed).requires_grad_() for seed, n in enumerate(shapes))
        weight, trained = normal(B, H, n_queries, DH, seed=7), [q, k, v, *module.parameters()]
        for causal in (False, True):
            places = Places(*where, causal=causal)
            results = [f(module, q, k, v, places) for f in (attention, attention_by_loop)]
            close(*results)
            got, expected = (
                torch.autograd.grad(out, trained, weight, materialize_grads=True) for out in results
            )
            for a, b in zip(got, expected, strict=True):
                assert b.abs().max() > 1e-3
                close(a, b)


@pytest.mark.parametrize(
    ("check", "implementation"),
    [
        (check_logits, shaw_logits),
        (check_values, shaw_values),
        (check_attention, lambda: Shaw(head_dim=DH, clip=CLIP)),
        (check_attention, lambda: Shaw(head_dim=DH, clip=CLIP, values=False)),
    ],
)
def test_the_papers_equations_hold(check, implementation) -> None:
    check(implementation)


def test_the_logits_are_those_of_wav2vec2_bert() -> None:
    where = torch.arange(11)
    q, k = normal(B, H, 11, DH, seed=1), normal(B, H, 11, DH, seed=2)
    theirs = nn.Module()
    theirs.left_max_position_embeddings = theirs.right_max_position_embeddings = CLIP
    theirs.scaling = 1 / math.sqrt(DH)
    theirs.distance_embedding = nn.Embedding(2 * CLIP + 1, DH, dtype=DOUBLE)
    table = theirs.distance_embedding.weight.detach()
    _, expected = _apply_relative_key_position_encoding(theirs, q, k)
    close(shaw_logits(q, table, where, where, CLIP) / math.sqrt(DH), expected.detach())


def test_a_table_that_does_not_fit_is_refused_with_the_numbers() -> None:
    where, q = torch.arange(4), normal(B, H, 4, DH)
    with pytest.raises(ValueError, match=r"clip = 3 needs a table \[7, 6\].*\[8, 6\]"):
        shaw_logits(q, normal(8, DH), where, where, 3)
    with pytest.raises(ValueError, match=r"clip = 3 needs a table \[7, Dh\].*\[8, 6\]"):
        shaw_values(q @ q.mT, normal(8, DH), where, where, 3)
    with pytest.raises(TypeError, match="no value term"):
        Shaw(head_dim=DH, clip=2, values=False).value_term(q @ q.mT, Places(where, where))


# ----------------------------------------------------------------------------------------- mistakes


def gathered(q: Tensor, table: Tensor, index: Tensor) -> Tensor:
    return (q @ table.T).gather(-1, index.expand(*q.shape[:-1], -1))


def without_clip(q: Tensor, table: Tensor, m: Tensor, n: Tensor, clip: int) -> Tensor:
    # Rows before the first are taken from the end of the table, as negative indices are.
    return gathered(q, table, (n[None] - m[:, None] + clip) % len(table))


def backwards(q: Tensor, table: Tensor, m: Tensor, n: Tensor, clip: int) -> Tensor:
    return gathered(q, table, clipped_index(n, m, clip).T)


def values_from_zero(weights: Tensor, table: Tensor, m: Tensor, n: Tensor, clip: int) -> Tensor:
    return shaw_values(weights, table, torch.arange(len(m)), torch.arange(len(n)), clip)


class OneTable(Shaw):
    def value_term(self, weights: Tensor, places: Places) -> Tensor:
        where = places.q_positions, places.k_positions
        return shaw_values(weights, self.key_table, *where, self.clip)


class Unscaled(Shaw):
    def logit_term(self, q: Tensor, *rest) -> Tensor:
        return super().logit_term(q, *rest) * math.sqrt(DH)


class DetachedWeights(Shaw):
    """The right numbers, but the term on the values does not train what the weights come from."""

    def value_term(self, weights: Tensor, places: Places) -> Tensor:
        return super().value_term(weights.detach(), places)


def module_of(cls: type[Shaw]) -> Callable[[], None]:
    return lambda: check_attention(lambda: cls(head_dim=DH, clip=CLIP))


MISTAKES: dict[str, Callable[[], None]] = {
    "no clip": lambda: check_logits(without_clip),
    "the distance reversed": lambda: check_logits(backwards),
    "a step counted from 0": lambda: check_values(values_from_zero),
    "one table for keys and values": module_of(OneTable),
    "the key term not scaled": module_of(Unscaled),
    "the weights of the values not trained": module_of(DetachedWeights),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(MISTAKES[mistake])
