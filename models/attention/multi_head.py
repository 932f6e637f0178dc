"""Multi-head attention (Vaswani et al. 2017, section 3.2.2) with the positional seam.

Self-attention, and cross-attention over a memory projected once.
"""

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from configs.schema import ModelConfig
from models.attention.kernels import attend
from models.attention.tap import AttentionTap
from models.linear import Linear
from models.masks import as_bias
from models.positional_encodings.base import AttentionPosition, Kind, Places


class _MultiHead(nn.Module):
    """What both attentions share: the split into heads, the kernel call, the output projection."""

    def __init__(self, config: ModelConfig, *, kind: Kind, layer: int) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        self.head_dim = config.head_dim
        self.dropout = config.attention_dropout
        self.kind = kind
        self.layer = layer
        self.out_proj = Linear(config.d_model, config.d_model, bias=config.bias)

    def _split(self, x: Tensor) -> Tensor:
        """[B,T,D] -> [B,H,T,Dh]."""
        return x.unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        position: AttentionPosition,
        places: Places,
        state: Tensor | None,
        tap: AttentionTap | None = None,
    ) -> Tensor:
        """q [B,H,Tq,R], k [B,H,Tk,R] (rotated), v [B,H,Tk,Dh], `token_state` -> [B,Tq,D]."""
        additive = _additive(position, places, q, k, state)
        value_term = partial(position.value_term, places=places)
        out, weights = attend(
            q,
            k,
            v,
            bias=additive,
            is_causal=additive is None and places.plainly_causal,
            scale=position.logit_scale(self.head_dim, places),
            dropout_p=self.dropout if self.training else 0.0,
            need_weights=tap is not None,
            value_term=value_term if position.needs_weights else None,
        )
        if tap is not None and weights is not None:
            tap.record(self.kind, self.layer, weights)
        return out.transpose(1, 2).flatten(-2)


def _additive(
    position: AttentionPosition, places: Places, q: Tensor, k: Tensor, state: Tensor | None
) -> Tensor | None:
    """All that is added to the scaled logits, masks included; None where a flag is enough.

    What does not depend on q and k is made once for all layers that share the module. So is the
    mask, as numbers: the kernel of each layer would convert booleans again.
    """
    # By id, since torch.compile takes no module as a key. The module outlives this forward pass.
    bias = places.once(("bias", id(position)), lambda: position.bias(places))
    term = position.logit_term(q, k, places, state)
    if bias is None and term is None and places.plainly_causal:
        return None
    dtype = q.dtype

    def make_fixed() -> Tensor | None:
        if bias is not None:
            return _aligned(places.masked(bias.to(dtype)))
        return None if places.mask is None else _aligned(as_bias(places.mask, dtype))

    fixed = places.once(("additive", bias is not None and id(position), dtype), make_fixed)
    if fixed is None or term is None:
        return fixed if term is None else term.to(dtype)
    return fixed + term.to(dtype)


def _aligned(bias: Tensor) -> Tensor:
    """The same; on CUDA its rows begin at multiples of 8, or the kernel would copy it."""
    if bias.device.type != "cuda":
        return bias
    n_keys = bias.shape[-1]
    return F.pad(bias, (0, -n_keys % 8))[..., :n_keys]


class SelfAttention(_MultiHead):
    """Attention of a sequence to itself; q, k and v come from one product."""

    def __init__(self, config: ModelConfig, *, kind: Kind, layer: int) -> None:
        super().__init__(config, kind=kind, layer=layer)
        self.qkv_proj = Linear(config.d_model, 3 * config.d_model, bias=config.bias)

    def forward(
        self,
        x: Tensor,
        *,
        position: AttentionPosition,
        places: Places,
        tap: AttentionTap | None = None,
    ) -> Tensor:
        """x [B,T,D] at places.q_positions -> [B,T,D]."""
        qkv = self.qkv_proj(x).unflatten(-1, (3, self.n_heads, self.head_dim))
        state = position.token_state(x)
        q, k, v = position.rotate_heads(qkv, places, state)
        out = self.attend(q, k, v, position=position, places=places, state=state, tap=tap)
        return self.out_proj(out)


class CrossAttention(_MultiHead):
    """Attention of the target to the memory."""

    def __init__(self, config: ModelConfig, *, layer: int) -> None:
        super().__init__(config, kind="cross", layer=layer)
        self.q_proj = Linear(config.d_model, config.d_model, bias=config.bias)
        self.kv_proj = Linear(config.d_model, 2 * config.d_model, bias=config.bias)

    def place_memory(
        self, kv: Tensor, *, position: AttentionPosition, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """kv_proj of the memory [B,S,2D], positions [S] -> the keys and values for `forward`.

        Keys [B,H,S,R], rotated where the scheme rotates, and values [B,H,S,Dh].
        """
        k, v = (self._split(part) for part in kv.chunk(2, dim=-1))
        return position.rotate(k, k_positions, "key"), v

    def forward(
        self,
        x: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        position: AttentionPosition,
        places: Places,
        tap: AttentionTap | None = None,
    ) -> Tensor:
        """x [B,T,D] at places.q_positions -> [B,T,D]; k, v: see `place_memory`."""
        q = position.rotate(self._split(self.q_proj(x)), places.q_positions, "query")
        out = self.attend(q, k, v, position=position, places=places, state=None, tap=tap)
        return self.out_proj(out)
