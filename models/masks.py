"""The one place where mask polarity is decided.

`*_key_padding_mask` [B,S] bool: True = padding. `attn_mask` bool, broadcast to [B,H,Tq,Tk]: True =
may attend.
"""

import torch
from torch import Tensor


def key_padding_mask(ids: Tensor, pad_id: int) -> Tensor:
    """[B,S] source ids -> [B,S] bool, True at padding. A target may start with pad_id (Marian)."""
    return ids == pad_id


def padding_attn_mask(padding: Tensor) -> Tensor:
    """[B,S] bool (True = padding) -> [B,1,1,S] bool (True = may attend)."""
    return ~padding[:, None, None, :]


def causal_attn_mask(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """[Tq], [Tk] -> [Tq,Tk] bool: a query may attend to its own and to earlier positions."""
    return k_positions[None, :] <= q_positions[:, None]


def as_bias(attn_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Bool attn_mask -> float of its shape, 0 where attention is allowed and -inf elsewhere."""
    zeros = torch.zeros(attn_mask.shape, dtype=dtype, device=attn_mask.device)
    return zeros.masked_fill_(~attn_mask, -torch.inf)
