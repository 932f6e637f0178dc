"""torch.nn.Transformer under the protocol of `transformer_backend`, for comparison.

It has no place for positions inside attention and keeps no key-value cache: a decoding step runs
over the whole prefix.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from models.attention.tap import AttentionTap
from models.positional_encodings.base import PositionScheme
from models.transformer_backend import LayerShape, Memory


def _no_tap(tap: AttentionTap | None) -> None:
    if tap is not None:
        raise ValueError(
            'torch.nn.Transformer does not show its attention: use model.backend = "scratch"'
        )


class TorchEncoder(nn.Module):
    """torch.nn.TransformerEncoder with the signature of `transformer_backend.Encoder`."""

    def __init__(self, shape: LayerShape, *, n_layers: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            shape.d_model,
            shape.n_heads,
            shape.d_ff,
            shape.dropout,
            shape.activation,
            batch_first=True,
            norm_first=shape.norm == "pre",
            bias=shape.bias,
        )
        norm = shape.layer_norm() if shape.norm == "pre" else None
        self.stack = nn.TransformerEncoder(layer, n_layers, norm, enable_nested_tensor=False)

    def forward(
        self,
        x: Tensor,
        *,
        scheme: PositionScheme,
        positions: Tensor,
        padding: Tensor,
        tap: AttentionTap | None = None,
    ) -> Tensor:
        _no_tap(tap)
        return self.stack(x, src_key_padding_mask=padding)


class PrefixState:
    """The embedded prefixes [B*K,t,D] and the memory; what a decoder without a cache has to
    remember.
    """

    def __init__(self, memory: Memory, beam_size: int) -> None:
        self.memory = memory
        self.beam_size = beam_size
        self.prefix: Tensor | None = None

    @property
    def length(self) -> int:
        return 0 if self.prefix is None else self.prefix.shape[1]

    def reorder(self, beam_index: Tensor) -> None:
        """Beam k of each sentence goes on from its beam beam_index[b,k] ([B,K])."""
        if self.prefix is not None:
            first = (
                torch.arange(beam_index.shape[0], device=beam_index.device)[:, None]
                * self.beam_size
            )
            self.prefix = self.prefix[(first + beam_index).flatten()]

    def select(self, alive: Tensor) -> None:
        """Keep the given sentences ([B'] indices) with all their beams."""
        self.memory = replace(
            self.memory, states=self.memory.states[alive], padding=self.memory.padding[alive]
        )
        if self.prefix is not None:
            self.prefix = self.prefix.unflatten(0, (-1, self.beam_size))[alive].flatten(0, 1)


class TorchDecoder(nn.Module):
    """torch.nn.TransformerDecoder with the signature of `transformer_backend.Decoder`."""

    def __init__(self, shape: LayerShape, *, n_layers: int) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(
            shape.d_model,
            shape.n_heads,
            shape.d_ff,
            shape.dropout,
            shape.activation,
            batch_first=True,
            norm_first=shape.norm == "pre",
            bias=shape.bias,
        )
        norm = shape.layer_norm() if shape.norm == "pre" else None
        self.stack = nn.TransformerDecoder(layer, n_layers, norm)

    def forward(
        self,
        y: Tensor,
        memory: Memory,
        *,
        scheme: PositionScheme,
        positions: Tensor,
        tap: AttentionTap | None = None,
    ) -> Tensor:
        _no_tap(tap)
        # torch's bool masks say where NOT to attend.
        future = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool, device=y.device).triu(1)
        return self.stack(
            y,
            memory.states,
            tgt_mask=future,
            tgt_is_causal=True,
            memory_key_padding_mask=memory.padding,
        )

    def init_state(
        self, memory: Memory, *, scheme: PositionScheme, beam_size: int, max_len: int
    ) -> PrefixState:
        return PrefixState(memory, beam_size)

    def step(
        self, y: Tensor, state: PrefixState, *, scheme: PositionScheme, positions: Tensor
    ) -> Tensor:
        prefix = y if state.prefix is None else torch.cat((state.prefix, y), dim=1)
        state.prefix = prefix
        memory = replace(
            state.memory,
            states=state.memory.states.repeat_interleave(state.beam_size, dim=0),
            padding=state.memory.padding.repeat_interleave(state.beam_size, dim=0),
        )
        hidden = self(
            prefix, memory, scheme=scheme, positions=torch.arange(prefix.shape[1], device=y.device)
        )
        return hidden[:, -y.shape[1] :]
