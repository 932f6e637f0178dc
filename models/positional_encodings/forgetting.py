"""Forgetting attention (Lin et al. 2025, "Forgetting Transformer"): each head forgets at a rate
that the tokens set.

Token l lets a head keep the fraction f_l = sigmoid(w . x_l + b) of what lies before it. A query at
i sees a key at j through all the tokens between, the query's own included and the key's own not:

    logits_ij = q_i . k_j / sqrt(Dh) + D_ij      D_ij = sum_{l=j+1..i} ln f_l

Causal. With f = 1 nothing is forgotten; a constant f is ALiBi with the slope -ln f.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.positional_encodings.base import AttentionPosition, Places


def fox_bias(log_gates: Tensor, n_queries: int) -> Tensor:
    """D of the last n_queries tokens as queries and all tokens as keys.

    log_gates [B,H,Tk] = ln f of every token in the order of their positions -> [B,H,n_queries,Tk],
    float32 or better. 0 where a key lies after its query: such pairs have no meaning and must be
    masked. Raises ValueError for more queries than tokens.
    """
    n_keys = log_gates.shape[-1]
    if n_queries > n_keys:
        raise ValueError(f"{n_queries} queries cannot be the last of {n_keys} tokens")
    total = log_gates.to(torch.promote_types(log_gates.dtype, torch.float32)).cumsum(-1)
    # No pair of a query and an earlier key is above 0. Without the bound, the sums of the others
    # overflow in float16.
    return (total[..., n_keys - n_queries :, None] - total[..., None, :]).clamp(max=0)


class ForgetGate(AttentionPosition):
    """The gates of one layer, w [H,d] and b [H]. For causal attention; the queries are the newest
    tokens.

    b starts at 5 and w small (normal, 0.02): f is near 0.993, so that a head at first halves the
    weight of what lies about a hundred tokens back and forgets next to nothing within a sentence.
    """

    def __init__(self, *, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, n_heads)
        nn.init.normal_(self.gate.weight, std=0.02)
        nn.init.constant_(self.gate.bias, 5.0)

    def token_state(self, x: Tensor) -> Tensor:
        """x [B,T,d_model] -> ln f [B,H,T], float32 or better also under autocast: sums over a
        sequence keep it.
        """
        exact = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            gates = F.linear(x.to(exact), self.gate.weight.to(exact), self.gate.bias.to(exact))
        return F.logsigmoid(gates).transpose(-2, -1)

    def logit_term(self, q: Tensor, k: Tensor, places: Places, state: Tensor | None) -> Tensor:
        if state is None:
            raise ValueError(
                "forgetting attention needs the state of the keys: it serves self-attention only"
            )
        return fox_bias(state, q.shape[-2])
