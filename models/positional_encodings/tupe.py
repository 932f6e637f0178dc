"""TUPE, untied positions (Ke et al. 2021): words and positions are compared by maps of their own.

With p_i a trained vector of position i after a layer norm, U_Q and U_K maps that all layers of a
stack share, and b a bias of another scheme (T5's: TUPE-R, equation 8) or none (TUPE-A, equation 7):

    logits_ij = q_i . k_j / sqrt(2 Dh) + (U_Q p_i) . (U_K p_j) / sqrt(2 Dh) + b_ij

Equation 9 is left out. It gives all pairs with the [CLS] mark one value for each direction; here no
token stands for a sentence, and no position is special.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.positional_encodings.base import AttentionPosition, Places, exact_dtype


def tupe_products(p_q: Tensor, p_k: Tensor, u_q: Tensor, u_k: Tensor, n_heads: int) -> Tensor:
    """(U_Q p_i) . (U_K p_j) of each head, not yet scaled.

    p_q [Tq,d], p_k [Tk,d]; u_q and u_k [d,d], applied as u @ p -> [H,Tq,Tk].
    """
    queries, keys = (
        (p @ u.T).unflatten(-1, (n_heads, -1)).transpose(0, 1) for p, u in ((p_q, u_q), (p_k, u_k))
    )
    return torch.matmul(queries, keys.mT)


class Tupe(AttentionPosition):
    """Table, norm and maps of one stack, for all of its layers; `relative` may add a bias.

    The table starts normal(0, 0.02), as the authors' does, U_Q and U_K Xavier-uniform. Past the
    table there is no vector: `TranslationTransformer` enforces max_positions.
    """

    def __init__(
        self, relative: AttentionPosition, *, d_model: int, n_heads: int, max_positions: int
    ) -> None:
        super().__init__()
        self.relative = relative
        self.n_heads = n_heads
        self.table = nn.Embedding(max_positions, d_model)
        nn.init.normal_(self.table.weight, std=0.02)
        self.norm = nn.LayerNorm(d_model)
        self.u_q = nn.Linear(d_model, d_model, bias=False)
        self.u_k = nn.Linear(d_model, d_model, bias=False)
        for projection in (self.u_q, self.u_k):
            nn.init.xavier_uniform_(projection.weight)

    def logit_scale(self, head_dim: int, places: Places) -> float | Tensor:
        return self.relative.logit_scale(head_dim, places) * 2**-0.5

    def bias(self, places: Places) -> Tensor:
        weights = (self.norm.weight, self.norm.bias, self.u_q.weight, self.u_k.weight)
        table = self.table.weight
        with torch.autocast(device_type=table.device.type, enabled=False):
            exact = exact_dtype(table.dtype)
            gain, shift, u_q, u_k = (weight.to(exact) for weight in weights)
            p_q, p_k = (
                F.layer_norm(self.table(at).to(exact), gain.shape, gain, shift, self.norm.eps)
                for at in (places.q_positions, places.k_positions)
            )
            products = tupe_products(p_q, p_k, u_q, u_k, self.n_heads)
            bias = products * self.logit_scale(len(gain) // self.n_heads, places)
        relative = self.relative.bias(places)
        return bias if relative is None else bias + relative
