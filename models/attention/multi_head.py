"""Multi-head attention (Vaswani et al. 2017, section 3.2.2) with the positional seam: self-attention, with an
optional key-value cache, and cross-attention over a memory projected once."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from models.attention.kernels import attend
from models.attention.tap import AttentionTap
from models.masks import causal_attn_mask
from models.positional_encodings.base import AttentionPosition, Kind


class KeyValueCache:
    """Keys and values of the tokens decoded so far, [N,H,max_len,Dh] each, and their positions; allocated once."""

    def __init__(self, n_rows: int, n_heads: int, max_len: int, head_dim: int, like: Tensor) -> None:
        self.k = like.new_empty(n_rows, n_heads, max_len, head_dim)
        self.v = torch.empty_like(self.k)
        self.positions = torch.empty(max_len, dtype=torch.long, device=like.device)
        self.length = 0

    def append(self, k: Tensor, v: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store k, v [N,H,T,Dh] of tokens at positions [T]; all so far: [N,H,length,Dh] twice, and [length].

        Raises ValueError past max_len: torch would silently drop a single position that has no room.
        """
        end = self.length + k.shape[2]
        if end > self.k.shape[2]:
            raise ValueError(f"token {end} does not fit: the cache has room for {self.k.shape[2]}")
        self.k[:, :, self.length : end] = k
        self.v[:, :, self.length : end] = v
        self.positions[self.length : end] = positions
        self.length = end
        return self.k[:, :, :end], self.v[:, :, :end], self.positions[:end]

    def take(self, rows: Tensor) -> None:
        """Keep the given rows [M], in their order, with repetition."""
        n = self.length
        if rows.shape[0] == self.k.shape[0]:
            self.k[:, :, :n] = self.k[rows, :, :n]
            self.v[:, :, :n] = self.v[rows, :, :n]
        else:
            self.k, self.v = self.k[rows], self.v[rows]


class _MultiHead(nn.Module):
    """What both attentions share: the head split, the kernel call with its position terms, the output projection."""

    def __init__(self, *, d_model: int, n_heads: int, dropout: float, bias: bool) -> None:
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"d_model = {d_model} is not a multiple of n_heads = {n_heads}")
        self.d_model = d_model
        self.n_heads = n_heads
        self.head_dim = d_model // n_heads
        self.dropout = dropout
        self.out_proj = nn.Linear(d_model, d_model, bias=bias)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2)  # [B,T,D] -> [B,H,T,Dh]

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        position: AttentionPosition,
        q_positions: Tensor,
        k_positions: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        kind: Kind,
        layer: int,
        tap: AttentionTap | None,
    ) -> Tensor:
        value_term = None
        if position.needs_weights:
            value_term = partial(position.value_term, q_positions=q_positions, k_positions=k_positions)
        out, weights = attend(
            q,
            k,
            v,
            mask=mask,
            bias=position.bias(q, k, q_positions, k_positions),
            is_causal=is_causal,
            scale=position.logit_scale(self.head_dim),
            dropout_p=self.dropout if self.training else 0.0,
            need_weights=tap is not None,
            value_term=value_term,
        )
        if tap is not None and weights is not None:
            tap.record(kind, layer, weights)
        return self.out_proj(out.transpose(1, 2).flatten(-2))


class SelfAttention(_MultiHead):
    """Attention of a sequence to itself; q, k and v come from one product."""

    def __init__(self, *, d_model: int, n_heads: int, dropout: float, bias: bool, causal: bool, layer: int) -> None:
        super().__init__(d_model=d_model, n_heads=n_heads, dropout=dropout, bias=bias)
        self.qkv_proj = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.causal = causal
        self.kind: Kind = "decoder" if causal else "encoder"
        self.layer = layer

    def forward(
        self,
        x: Tensor,
        *,
        position: AttentionPosition,
        positions: Tensor,
        mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
        tap: AttentionTap | None = None,
    ) -> Tensor:
        """x [B,T,D] at positions [T] -> [B,T,D]. With a cache (causal only) x continues what the cache holds."""
        q, k, v = (self._split(part) for part in self.qkv_proj(x).chunk(3, dim=-1))
        q, k = position.rotate(q, positions), position.rotate(k, positions)
        k_positions = positions
        if cache is not None:
            k, v, k_positions = cache.append(k, v, positions)
        is_causal = False
        if self.causal and x.shape[1] > 1:
            if k.shape[2] == x.shape[1]:
                is_causal = True
            else:
                causal = causal_attn_mask(positions, k_positions)
                mask = causal if mask is None else mask & causal
        return self._attend(
            q,
            k,
            v,
            position=position,
            q_positions=positions,
            k_positions=k_positions,
            mask=mask,
            is_causal=is_causal,
            kind=self.kind,
            layer=self.layer,
            tap=tap,
        )


class CrossAttention(_MultiHead):
    """Attention of the target to the memory."""

    def __init__(self, *, d_model: int, n_heads: int, dropout: float, bias: bool, layer: int) -> None:
        super().__init__(d_model=d_model, n_heads=n_heads, dropout=dropout, bias=bias)
        self.q_proj = nn.Linear(d_model, d_model, bias=bias)
        self.kv_proj = nn.Linear(d_model, 2 * d_model, bias=bias)
        self.layer = layer

    def project_memory(
        self, memory: Tensor, *, position: AttentionPosition, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """memory [B,S,D] -> keys (already rotated, where the scheme rotates) and values, [B,H,S,Dh] each."""
        k, v = (self._split(part) for part in self.kv_proj(memory).chunk(2, dim=-1))
        return position.rotate(k, k_positions), v

    def forward(
        self,
        x: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        position: AttentionPosition,
        q_positions: Tensor,
        k_positions: Tensor,
        mask: Tensor | None,
        tap: AttentionTap | None = None,
    ) -> Tensor:
        """x [B,T,D] at q_positions [T]; k, v of `project_memory`; mask [B,1,1,S] -> [B,T,D]."""
        q = position.rotate(self._split(self.q_proj(x)), q_positions)
        return self._attend(
            q,
            k,
            v,
            position=position,
            q_positions=q_positions,
            k_positions=k_positions,
            mask=mask,
            is_causal=False,
            kind="cross",
            layer=self.layer,
            tap=tap,
        )
