"""DAPE, data-adaptive positions (Zheng et al. 2024): a small network adapts a bias to the logits.

With A = q.k / sqrt(Dh) and the bias B of another scheme, for one query and key in all H heads:

    logits = A + B + f(A, B)        f(A, B) = W2 leaky_relu(W1 [A; B] + b1)

W2 has no bias, since the softmax would not see it; the authors' program has one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.positional_encodings.base import AttentionPosition, Places, exact_dtype


def dape_term(logits: Tensor, bias: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """f(A, B) over the heads of each pair, in float32 or better also under autocast.

    logits A [B,H,Tq,Tk]; bias B, broadcast to [H,Tq,Tk]; w1 [W,2H], b1 [W], w2 [H,W]
    -> [B,H,Tq,Tk].
    """
    with torch.autocast(device_type=logits.device.type, enabled=False):
        exact = exact_dtype(logits.dtype)
        logits, bias, w1, b1, w2 = (x.to(exact) for x in (logits, bias, w1, b1, w2))
        of_logits, of_bias = w1.chunk(2, dim=1)
        fixed = torch.einsum("wh,hqk->wqk", of_bias, bias) + b1[:, None, None]
        hidden = F.leaky_relu(torch.einsum("wh,bhqk->bwqk", of_logits, logits) + fixed)
        return torch.einsum("hw,bwqk->bhqk", w2, hidden)


class Dape(AttentionPosition):
    """One layer: `inner`, which has a bias, and the network 2H -> width -> H."""

    def __init__(self, inner: AttentionPosition, *, n_heads: int, width: int = 32) -> None:
        super().__init__()
        self.inner = inner
        self.hidden = nn.Linear(2 * n_heads, width)
        self.out = nn.Linear(width, n_heads, bias=False)

    def logit_scale(self, head_dim: int, places: Places) -> float | Tensor:
        return self.inner.logit_scale(head_dim, places)

    def bias(self, places: Places) -> Tensor:
        bias = self.inner.bias(places)
        assert bias is not None
        return bias

    def logit_term(self, q: Tensor, k: Tensor, places: Places, state: Tensor | None) -> Tensor:
        bias = places.once(("bias", id(self)), lambda: self.bias(places))
        with torch.autocast(device_type=q.device.type, enabled=False):
            exact = exact_dtype(q.dtype)
            scaled = q.to(exact) * self.logit_scale(q.shape[-1], places)
            logits = torch.matmul(scaled, k.to(exact).mT)
        return dape_term(logits, bias, self.hidden.weight, self.hidden.bias, self.out.weight)
