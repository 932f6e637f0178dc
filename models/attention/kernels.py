"""Scaled dot-product attention: an eager form that shows its weights, and PyTorch's fused one.

Vaswani et al. 2017, equation 1, with an additive bias on the scaled logits:
softmax(scale q k^T + bias, over allowed keys) v.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.masks import as_bias
from utils.machine import is_intel

_SHORT, _MANY, _SOME = 16, 256, 128  # queries of a head; queries of all heads and rows
_LONG = 128  # tokens of a head, the geometric mean of queries and keys
_FEWEST = 2 if is_intel() else 1  # queries of a head


def attend_eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    bias: Tensor | None,
    is_causal: bool,
    scale: float,
    dropout_p: float,
    value_term: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention step by step. Returns (out, weights before dropout); arguments as in `attend`."""
    logits = torch.matmul(q, k.transpose(-2, -1)).mul_(scale)
    if bias is not None:
        logits += bias
    if is_causal:
        ones = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device)
        logits.masked_fill_(~ones.tril(), -torch.inf)
    if mask is not None:
        logits.masked_fill_(~mask, -torch.inf)
    exact = logits if logits.dtype == torch.float64 else logits.float()
    weights = exact.softmax(dim=-1).to(v.dtype)
    dropped = F.dropout(weights, dropout_p, training=dropout_p > 0)
    out = torch.matmul(dropped, v)
    if value_term is not None:
        out = out + value_term(dropped)
    return out, weights


def attend_sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None,
    bias: Tensor | None,
    is_causal: bool,
    scale: float,
    dropout_p: float,
) -> Tensor:
    """Attention by torch's fused kernel; arguments as in `attend`."""
    # The fused call takes either a mask or is_causal, and a float mask where there is a bias.
    if is_causal and (bias is not None or mask is not None):
        causal = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        mask = causal if mask is None else mask & causal
        is_causal = False
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias if mask is None else bias + as_bias(mask, q.dtype)
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale=scale)


def _eager_is_faster(q: Tensor, k: Tensor) -> bool:
    """Whether the eager kernel is the faster one, as measured on CPUs (benchmarks/README.md).

    The fused kernel makes its blocks for many queries a head: a beam search step over many rows
    takes twice as long in it. In bfloat16 its forward and backward pass take 2.7 to 7.7 times as
    long, except for long sequences and for very few queries. On Intel's processors the fused kernel
    takes single queries.
    """
    if q.device.type != "cpu" or q.shape[-2] < _FEWEST:
        return False
    queries = q.shape[:-1].numel()
    if q.dtype == torch.bfloat16:
        return q.shape[-2] * k.shape[-2] <= _LONG**2 and queries >= _SOME
    return q.shape[-2] <= _SHORT and queries >= _MANY and not torch.is_grad_enabled()


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    is_causal: bool = False,
    scale: float | Tensor,
    dropout_p: float = 0.0,
    need_weights: bool = False,
    value_term: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention by the fastest kernel that can do what is asked.

    q [B,H,Tq,R]; k [B,H,Tk,R]; v [B,H,Tk,Dh]; mask bool, True = may attend, and bias float, added
    to the scaled logits, both broadcast to [B,H,Tq,Tk]. is_causal stands for the lower triangle and
    needs Tq == Tk (torch aligns it to the top left: a single query would see key 0 alone). Every
    query must be allowed at least one key. scale is a number, or one for each query, broadcast to
    [B,H,Tq,1]. value_term maps the weights after dropout to a term [B,H,Tq,Dh] of the output.

    Returns (out [B,H,Tq,Dh], weights [B,H,Tq,Tk] before dropout if need_weights, else None).
    Raises ValueError for is_causal with Tq != Tk.
    """
    if is_causal and q.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"is_causal needs as many queries as keys: {q.shape[-2]} against {k.shape[-2]}"
        )
    if isinstance(scale, Tensor):  # the fused kernel takes a number alone
        q, scale = (q * scale).to(q.dtype), 1.0
    settings: dict[str, Any] = {"mask": mask, "bias": bias, "is_causal": is_causal}
    settings |= {"scale": scale, "dropout_p": dropout_p}
    if need_weights or value_term is not None or _eager_is_faster(q, k):
        out, weights = attend_eager(q, k, v, **settings, value_term=value_term)
        return out, weights if need_weights else None
    return attend_sdpa(q, k, v, **settings), None
