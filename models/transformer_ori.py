"""torch.nn.Transformer under the protocol of `transformer_backend`, for comparison.

It has no place for positions inside attention and keeps no key-value cache: a decoding step runs
over the whole prefix.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.schema import ModelConfig
from models.attention.tap import AttentionTap
from models.decode_state import Memory
from models.positional_encodings.base import PositionScheme
from models.transformer_backend import final_norm
from utils.errors import UserError


def _no_tap(tap: AttentionTap | None) -> None:
    if tap is not None:
        shows = 'a model of backend "torch" does not show its attention'
        raise UserError(f"{shows}; train one with model.backend=scratch")


def _layer_arguments(config: ModelConfig) -> dict[str, Any]:
    return {
        "d_model": config.d_model,
        "nhead": config.n_heads,
        "dim_feedforward": config.d_ff,
        "dropout": config.dropout,
        "activation": getattr(F, config.activation),
        "batch_first": True,
        "norm_first": config.norm == "pre",
        "bias": config.bias,
    }


class TorchEncoder(nn.Module):
    """torch.nn.TransformerEncoder with the signature of `transformer_backend.Encoder`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(**_layer_arguments(config))
        self.stack = nn.TransformerEncoder(
            layer, config.n_encoder_layers, final_norm(config), enable_nested_tensor=False
        )

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


class UncachedState:
    """What a decoder without a cache remembers: embedded prefixes [B*K,t,D] and the memory."""

    def __init__(self, memory: Memory, beam_size: int) -> None:
        self.memory = memory
        self.beam_size = beam_size
        n_sentences, _, d_model = memory.states.shape
        self.prefix = memory.states.new_empty(n_sentences * beam_size, 0, d_model)

    @property
    def length(self) -> int:
        return self.prefix.shape[1]

    def reorder(self, beam_index: Tensor) -> None:
        first = torch.arange(0, len(self.prefix), self.beam_size, device=beam_index.device)
        self.prefix = self.prefix[(first[:, None] + beam_index).flatten()]

    def select(self, alive: Tensor) -> None:
        states, padding = self.memory.states[alive], self.memory.padding[alive]
        self.memory = replace(self.memory, states=states, padding=padding)
        self.prefix = self.prefix.unflatten(0, (-1, self.beam_size))[alive].flatten(0, 1)


class TorchDecoder(nn.Module):
    """torch.nn.TransformerDecoder with the signature of `transformer_backend.Decoder`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(**_layer_arguments(config))
        self.stack = nn.TransformerDecoder(layer, config.n_decoder_layers, final_norm(config))

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
    ) -> UncachedState:
        return UncachedState(memory, beam_size)

    def step(
        self, y: Tensor, state: UncachedState, *, scheme: PositionScheme, positions: Tensor
    ) -> Tensor:
        state.prefix = torch.cat((state.prefix, y), dim=1)
        memory = replace(
            state.memory,
            states=state.memory.states.repeat_interleave(state.beam_size, dim=0),
            padding=state.memory.padding.repeat_interleave(state.beam_size, dim=0),
        )
        hidden = self(state.prefix, memory, scheme=scheme, positions=positions)
        return hidden[:, -y.shape[1] :]
