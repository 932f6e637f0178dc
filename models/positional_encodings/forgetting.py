"""FoX, the forgetting transformer (Lin et al. 2025): heads forget at a rate that the tokens set.

Token l lets a head keep the fraction f_l = sigmoid(w . x_l + b) of what lies before it. A query at
i sees a key at j through the tokens j+1 .. i, its own included and the key's not:

    logits_ij = q_i . k_j / sqrt(Dh) + D_ij      D_ij = sum_{l=j+1..i} ln f_l

Causal. With f = 1 nothing is forgotten; a constant f is ALiBi with the slope -ln f.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.positional_encodings.base import AttentionPosition, Places, exact_dtype


def fox_bias(log_gates: Tensor, n_queries: int) -> Tensor:
    """D of the last n_queries tokens as queries and all tokens as keys.

    log_gates [B,H,Tk] = ln f in the order of positions -> [B,H,n_queries,Tk], float32 or better.
    0 where a key lies after its query: such pairs have no meaning and must be masked. Raises
    ValueError for more queries than tokens.
    """
    return fox_bias_of_sums(log_gates.to(exact_dtype(log_gates.dtype)).cumsum(-1), n_queries)


def fox_bias_of_sums(total: Tensor, n_queries: int) -> Tensor:
    """`fox_bias` from the running sums of ln f [B,H,Tk] -> [B,H,n_queries,Tk]; raises the same."""
    n_keys = total.shape[-1]
    if n_queries > n_keys:
        raise ValueError(f"{n_queries} queries cannot be the last of {n_keys} tokens")
    # Only pairs that a mask forbids are above 0, and there the sums overflow in float16.
    return (total[..., n_keys - n_queries :, None] - total[..., None, :]).clamp(max=0)


class ForgetGate(AttentionPosition):
    """The gates of one layer, w [H,d] and b [H], of a causal attention whose queries come last.

    b starts at 5 and w normal(0, 0.02): f is near 0.993, so that a head at first halves the weight
    of what lies a hundred tokens back and forgets next to nothing within a sentence. The authors'
    program starts b at 0, f near a half.
    """

    def __init__(self, *, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, n_heads)
        nn.init.normal_(self.gate.weight, std=0.02)
        nn.init.constant_(self.gate.bias, 5.0)

    def token_state(self, x: Tensor, last: Tensor | float = 0.0) -> Tensor:
        """x [B,T,d_model] -> sums of ln f [B,H,T], in float32 or better also under autocast."""
        exact = exact_dtype(x.dtype)
        with torch.autocast(x.device.type, enabled=False):
            gates = F.linear(x.to(exact), self.gate.weight.to(exact), self.gate.bias.to(exact))
        return F.logsigmoid(gates).transpose(-2, -1).cumsum(2) + last

    def logit_term(self, q: Tensor, k: Tensor, places: Places, state: Tensor | None) -> Tensor:
        if state is None:
            raise ValueError(
                "forgetting attention serves self-attention only: no state of the keys"
            )
        return fox_bias_of_sums(state, q.shape[-2])
