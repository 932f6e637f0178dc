"""Shaw et al. 2018, equations 3-5: a trained vector for each clipped distance on keys and values.

i is a query's position, j a key's; a distance of more than `clip` to either side counts as `clip`:

    logits_ij = q_i . (k_j + a^K_ij) / sqrt(Dh)        out_i = sum_j weights_ij (v_j + a^V_ij)

Only the terms with a^K and a^V are here; q.k and weights.v belong to the kernel.
"""

import torch
from torch import Tensor, nn

from models.positional_encodings.base import AttentionPosition, Places, exact_dtype


def clipped_index(q_positions: Tensor, k_positions: Tensor, clip: int) -> Tensor:
    """clip(j - i, -clip, clip) + clip, [Tq,Tk]: rows of a table [2 clip + 1, Dh]."""
    return (k_positions[None, :] - q_positions[:, None]).clamp(-clip, clip) + clip


def _check(table: Tensor, clip: int, dim: int | None = None) -> None:
    if table.shape[0] != 2 * clip + 1 or (dim is not None and table.shape[1] != dim):
        wanted = f"[{2 * clip + 1}, {'Dh' if dim is None else dim}]"
        raise ValueError(f"clip = {clip} needs a table {wanted}: got {list(table.shape)}")


def shaw_logits(
    q: Tensor, table: Tensor, q_positions: Tensor, k_positions: Tensor, clip: int
) -> Tensor:
    """q . a^K of the clipped distance, not yet divided by sqrt(Dh).

    q [B,H,Tq,Dh], table [2 clip + 1, Dh], integer positions [Tq] and [Tk] -> [B,H,Tq,Tk]. No
    vector is ever formed for a pair. Raises ValueError where the table does not fit.
    """
    _check(table, clip, q.shape[-1])
    index = clipped_index(q_positions, k_positions, clip)
    return torch.matmul(q, table.T).gather(-1, index.expand(*q.shape[:-1], -1))


def shaw_values(
    weights: Tensor, table: Tensor, q_positions: Tensor, k_positions: Tensor, clip: int
) -> Tensor:
    """sum_j weights_ij a^V of the clipped distance.

    weights [B,H,Tq,Tk], table [2 clip + 1, Dh], integer positions [Tq] and [Tk] -> [B,H,Tq,Dh].
    The weights of equal distances are summed first, in float32 or better. Raises ValueError where
    the table does not fit.
    """
    _check(table, clip)
    index = clipped_index(q_positions, k_positions, clip)
    exact = weights.to(exact_dtype(weights.dtype))
    nothing = exact.new_zeros(*weights.shape[:-1], 2 * clip + 1)
    sums = nothing.scatter_add(-1, index.expand_as(weights), exact)
    return torch.matmul(sums.to(weights.dtype), table)


class Shaw(AttentionPosition):
    """The tables of one layer, shared by its heads: for the keys and, with `values`, the values.

    The paper's big model shares them so; its base model has tables for each head (section 4.1).
    They start Xavier-uniform, as the projections beside them: a fraction of q.k at first.
    """

    def __init__(self, *, head_dim: int, clip: int, values: bool = True) -> None:
        super().__init__()
        self.clip = clip
        self.needs_weights = values
        self.key_table = nn.Parameter(torch.empty(2 * clip + 1, head_dim))
        nn.init.xavier_uniform_(self.key_table)
        if values:
            self.value_table = nn.Parameter(torch.empty(2 * clip + 1, head_dim))
            nn.init.xavier_uniform_(self.value_table)

    def logit_term(self, q: Tensor, k: Tensor, places: Places, state: Tensor | None) -> Tensor:
        logits = shaw_logits(q, self.key_table, places.q_positions, places.k_positions, self.clip)
        return logits * self.logit_scale(q.shape[-1], places)

    def value_term(self, weights: Tensor, places: Places) -> Tensor:
        if not self.needs_weights:
            return super().value_term(weights, places)
        return shaw_values(
            weights, self.value_table, places.q_positions, places.k_positions, self.clip
        )
