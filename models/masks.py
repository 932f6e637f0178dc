"""The one place where mask polarity is decided.

`*_key_padding_mask` [B,S] bool: True = padding. `attn_mask` bool, broadcast to [B,H,Tq,Tk]: True =
may attend.
"""

from __future__ import annotations

import torch
from torch import Tensor


def key_padding_mask(ids: Tensor, pad_id: int) -> Tensor:
    """[B,S] ids -> [B,S] bool, True at padding. For source ids only: a target may start with pad_id
    (Marian).
    """
    return ids == pad_id


def padding_attn_mask(padding: Tensor) -> Tensor:
    """[B,S] bool (True = padding) -> [B,1,1,S] bool (True = may attend)."""
    return ~padding[:, None, None, :]


def causal_attn_mask(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """[Tq], [Tk] -> [Tq,Tk] bool: a query may attend to keys at its own and at earlier positions."""
    return k_positions[None, :] <= q_positions[:, None]


def as_bias(attn_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Bool attn_mask -> float of the same shape, 0 where attention is allowed and -inf elsewhere."""
    return torch.zeros(attn_mask.shape, dtype=dtype, device=attn_mask.device).masked_fill_(
        ~attn_mask, -torch.inf
    )
