"""Selective RoPE (Movahedi et al. 2026): every token says how far each pair turns at it.

    turn_t = sum_{l <= t} (W x_l + b)        q_t and k_t turn by theta * turn_t, pair by pair

with W of low rank and theta of RoPE. The angle between a query at i and a key at j is theta times
the sum of the steps of tokens j+1 .. i. If all tokens take the same steps b, this is RoPE with
frequencies theta * b; in the authors' code b is an option, off by default. Left out is what it puts
before the sum: a convolution over four tokens, normalised inputs, optionally an activation, a gate.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.positional_encodings.base import (
    AttentionPosition,
    ExactParameters,
    Heads,
    Places,
    exact_dtype,
)
from models.positional_encodings.rope import form_for, inverse_frequencies, rotation, turned


class TurnedByState(ExactParameters, AttentionPosition):
    """Pair i of a token's q and k turns by its state, [B,H,T,Dh/2] or [B,H,T,1], times theta_i.

    For self-attention alone: elsewhere tokens have no state, and nothing turns.
    """

    def __init__(self, *, base: float) -> None:
        super().__init__()
        self.base = base

    def rotate_heads(self, qkv: Tensor, places: Places, state: Tensor | None = None) -> Heads:
        if state is None:
            raise ValueError("rotations by content need the state of the tokens")
        exact, dim = exact_dtype(qkv.dtype), qkv.shape[-1]

        def theta() -> Tensor:
            return inverse_frequencies(dim, base=self.base, dtype=exact, device=qkv.device)

        angles = state.to(exact) * places.once(("theta", self.base, dim, exact), theta)
        form = form_for(qkv, "auto", "interleaved")
        by = rotation(angles.transpose(1, 2)[:, :, None], 1.0, "interleaved", form)
        q, k = turned(qkv[:, :, :2], by, "interleaved").unbind(2)
        return q.transpose(1, 2), k.transpose(1, 2), qkv[:, :, 2].transpose(1, 2)


class SelectiveRotary(TurnedByState):
    """The steps of one layer: W = up down, with down [rank,d] and up [d/2,rank]; b [d/2].

    b starts at 1, so that training begins near RoPE.
    """

    def __init__(self, *, d_model: int, n_heads: int, base: float, rank: int) -> None:
        super().__init__(base=base)
        self.n_heads = n_heads
        self.down = nn.Linear(d_model, rank, bias=False)
        self.up = nn.Linear(rank, d_model // 2)
        nn.init.ones_(self.up.bias)

    def token_state(self, x: Tensor, last: Tensor | float = 0.0) -> Tensor:
        """x [B,T,d_model] -> turns [B,H,T,Dh/2], in float32 or better also under autocast."""
        exact = exact_dtype(x.dtype)
        down, up, b = (w.to(exact) for w in (self.down.weight, self.up.weight, self.up.bias))
        with torch.autocast(x.device.type, enabled=False):
            steps = F.linear(F.linear(x.to(exact), down), up, b)
        return steps.unflatten(-1, (self.n_heads, -1)).transpose(1, 2).cumsum(2) + last
