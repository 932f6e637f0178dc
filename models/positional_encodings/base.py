"""What a position scheme can do: two contracts whose defaults mean "no position", and the scheme that hands them out.

A scheme acts at up to four points: added to the embeddings (InputPosition); rotating queries and keys, biasing the
attention logits, and adding a term to the values (AttentionPosition). Positions are integer tensors handed in, never
inferred from sizes.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

Side = Literal["source", "target"]
Kind = Literal["encoder", "decoder", "cross"]


class InputPosition(nn.Module):
    """Acts on embeddings. `max_positions` is the number of positions it knows, None where there is no bound."""

    max_positions: int | None = None

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [B,T,D] after the multiplication with sqrt(d_model), positions [T] -> [B,T,D]."""
        return x


class AttentionPosition(nn.Module):
    """Acts inside one attention. `needs_weights` asks for the attention weights, hence for the eager kernel."""

    needs_weights = False

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """q or k [B,H,T,Dh], positions [T] -> the same shape. Keys are rotated before they are cached."""
        return x

    def logit_scale(self, head_dim: int) -> float:
        """The factor of q.k; 1/sqrt(Dh) unless the scheme says otherwise."""
        return head_dim**-0.5

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """A term added to the scaled logits, broadcast to [B,H,Tq,Tk], or None; q and k come rotated."""
        return None

    def value_term(self, weights: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """weights [B,H,Tq,Tk] (after dropout) -> [B,H,Tq,Dh], added to the output. Asked for if needs_weights."""
        raise TypeError(f"{type(self).__name__} has no value term")


class PositionScheme(nn.Module):
    """Owns the modules of one position scheme and hands them out by place. The defaults are "none".

    Sharing is a matter of handing out one module in several places: it is owned here, so its parameters stand in the
    state_dict once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.no_input = InputPosition()
        self.no_attention = AttentionPosition()

    def input(self, side: Side) -> InputPosition:
        return self.no_input

    def attention(self, kind: Kind, layer: int) -> AttentionPosition:
        return self.no_attention
