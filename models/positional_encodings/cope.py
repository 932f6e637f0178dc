"""CoPE, contextual positions (Golovneva et al. 2024): a query counts what it finds worth counting.

    g_ij = sigmoid(q_i . k_j / sqrt(Dh)) for j <= i
    p_ij = sum_{l=j..i} g_il, at most n_positions - 1
    logits_ij = q_i . k_j / sqrt(Dh) + q_i . e[p_ij], linear between the whole numbers next to p_ij

q.e is added undivided, as in the paper's listing; the authors' program divides it by sqrt(Dh) too,
unless told otherwise. Causal: a gate of a later token must not count, or the past would depend on
the future.
"""

import torch
from torch import Tensor, nn

from models.positional_encodings.base import AttentionPosition, Places, exact_dtype


def cope_positions(qk_logits: Tensor, allowed: Tensor, n_positions: int) -> Tensor:
    """p_ij of scaled logits q.k, for keys in the order of their positions; in float32 or better.

    qk_logits [B,H,Tq,Tk]; allowed: bool, broadcast to it, True where the gate counts, that is for
    real keys up to the query -> [B,H,Tq,Tk], meaningless but finite where allowed is False.
    """
    gates = qk_logits.to(exact_dtype(qk_logits.dtype)).sigmoid() * allowed
    return gates.flip(-1).cumsum(-1).flip(-1).clamp(max=n_positions - 1)


def cope_logits(q: Tensor, qk_logits: Tensor, table: Tensor, allowed: Tensor) -> Tensor:
    """q . e[p], to be added to the scaled logits.

    q [B,H,Tq,Dh], qk_logits [B,H,Tq,Tk] = q.k / sqrt(Dh), table e [n_positions,Dh], allowed as in
    `cope_positions` -> [B,H,Tq,Tk] in q's type.
    """
    positions = cope_positions(qk_logits, allowed, table.shape[0])
    at_whole = torch.matmul(q, table.T)  # [B,H,Tq,n_positions]
    below, above = positions.floor(), positions.ceil()
    fraction = positions - below
    upper, lower = (at_whole.gather(-1, whole.long()) for whole in (above, below))
    return (upper * fraction + lower * (1 - fraction)).to(q.dtype)


class Cope(AttentionPosition):
    """The table [n_positions,Dh] of one layer, shared by its heads. For causal attention.

    It starts normal(0, 0.02), close to no positions, with which causal attention still works (the
    paper's listing: 0).
    """

    def __init__(self, *, head_dim: int, n_positions: int) -> None:
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(n_positions, head_dim))

    def logit_term(self, q: Tensor, k: Tensor, places: Places, state: Tensor | None) -> Tensor:
        # Not places.mask: for a single query it assumes that no key follows.
        allowed = places.once("countable", places.countable)
        qk_logits = torch.matmul(q, k.transpose(-2, -1)) * self.logit_scale(q.shape[-1], places)
        return cope_logits(q, qk_logits, self.table, allowed)
