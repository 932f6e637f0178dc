"""Encoder and decoder of the Transformer (Vaswani et al. 2017, section 3): layers, stacks, and the
decoding state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.attention.multi_head import CrossAttention, KeyValueCache, SelfAttention
from models.attention.tap import AttentionTap
from models.dropout import Dropout, JointDropout
from models.linear import Linear
from models.masks import padding_attn_mask
from models.positional_encodings.base import Kind, Places, PositionScheme


@dataclass(frozen=True, slots=True)
class Memory:
    """What the encoder leaves for the decoder: states [B,S,D], where they stand, and the
    src_key_padding_mask.
    """

    states: Tensor
    padding: Tensor  # [B,S], True = padding
    positions: Tensor  # [S]


class FeedForward(nn.Module):
    """Two linear maps with a nonlinearity between (section 3.3)."""

    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int,
        dropout: float,
        activation: Literal["relu", "gelu"],
        bias: bool,
    ) -> None:
        super().__init__()
        self.linear1 = Linear(d_model, d_ff, bias=bias)
        self.linear2 = Linear(d_ff, d_model, bias=bias)
        self.activation = F.relu if activation == "relu" else F.gelu
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """The sizes and choices that every layer of a stack shares."""

    d_model: int
    n_heads: int
    d_ff: int
    dropout: float
    attention_dropout: float
    activation_dropout: float
    activation: Literal["relu", "gelu"]
    norm: Literal["pre", "post", "deepnorm"]
    bias: bool
    stochastic_depth: float = 0.0
    residual_scale: float = 1.0  # what x counts in the sums of DeepNorm

    def self_attention(self, *, kind: Kind, layer: int) -> SelfAttention:
        return SelfAttention(
            d_model=self.d_model,
            n_heads=self.n_heads,
            dropout=self.attention_dropout,
            bias=self.bias,
            kind=kind,
            layer=layer,
        )

    def cross_attention(self, *, layer: int) -> CrossAttention:
        return CrossAttention(
            d_model=self.d_model,
            n_heads=self.n_heads,
            dropout=self.attention_dropout,
            bias=self.bias,
            layer=layer,
        )

    def feed_forward(self) -> FeedForward:
        return FeedForward(
            d_model=self.d_model,
            d_ff=self.d_ff,
            dropout=self.activation_dropout,
            activation=self.activation,
            bias=self.bias,
        )

    def layer_norm(self) -> nn.LayerNorm:
        return nn.LayerNorm(self.d_model, bias=self.bias)

    def final_norm(self) -> nn.Module:
        """Pre-norm stacks leave their residual stream unnormalised and end in a norm; the others
        need none.
        """
        return self.layer_norm() if self.norm == "pre" else nn.Identity()


class Layer(nn.Module):
    """What layers of both stacks share: how a branch (attention or feed-forward) joins the residual
    stream.

    Norm before the branch (pre) or after the sum (post); DeepNorm (Wang et al. 2022, equation 1) is
    post-norm with x counting residual_scale times in the sum. Dropout on the branch; and stochastic
    depth (Huang et al. 2016), which drops the whole branch of a sentence in training: layer l of L,
    from 1, keeps its branches with p_l = 1 - l/L * stochastic_depth (equation 4). Where the paper
    scales by p_l in evaluation (equation 5), here a kept branch is divided by p_l in training.
    """

    def __init__(self, shape: LayerShape, *, layer: int, n_layers: int) -> None:
        super().__init__()
        self.layer = layer
        self.pre_norm = shape.norm == "pre"
        self.residual_scale = shape.residual_scale
        self.dropout = Dropout(shape.dropout)
        self.branch_dropout = JointDropout(
            shape.stochastic_depth * (layer + 1) / n_layers, shared=2
        )

    def add(self, x: Tensor, norm: nn.Module, branch: Callable[[Tensor], Tensor]) -> Tensor:
        """x [B,T,D] with a branch added -> [B,T,D]."""
        if self.pre_norm:
            return x + self.branch_dropout(self.dropout(branch(norm(x))))
        kept = x if self.residual_scale == 1 else self.residual_scale * x
        return norm(kept + self.branch_dropout(self.dropout(branch(x))))


class EncoderLayer(Layer):
    """Self-attention and feed-forward, each with dropout, residual and norm; see Layer."""

    def __init__(self, shape: LayerShape, *, layer: int, n_layers: int) -> None:
        super().__init__(shape, layer=layer, n_layers=n_layers)
        self.self_attention = shape.self_attention(kind="encoder", layer=layer)
        self.feed_forward = shape.feed_forward()
        self.norm1, self.norm2 = shape.layer_norm(), shape.layer_norm()

    def forward(
        self, x: Tensor, *, scheme: PositionScheme, places: Places, tap: AttentionTap | None
    ) -> Tensor:
        position = scheme.attention("encoder", self.layer)

        def attention(y: Tensor) -> Tensor:
            return self.self_attention(y, position=position, places=places, tap=tap)

        x = self.add(x, self.norm1, attention)
        return self.add(x, self.norm2, self.feed_forward)


class Encoder(nn.Module):
    """A stack of encoder layers."""

    def __init__(self, shape: LayerShape, *, n_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            EncoderLayer(shape, layer=i, n_layers=n_layers) for i in range(n_layers)
        )
        self.norm = shape.final_norm()

    def forward(
        self,
        x: Tensor,
        *,
        scheme: PositionScheme,
        positions: Tensor,
        padding: Tensor,
        tap: AttentionTap | None = None,
    ) -> Tensor:
        """x [B,S,D] at positions [S], padding [B,S] (True = padding) -> [B,S,D]."""
        last = (~padding).sum(dim=1) - 1  # padding is on the right
        places = Places(
            positions,
            positions,
            padding=padding_attn_mask(padding),
            k_end=positions[last.clamp(min=0)] + 1,
        )
        for layer in self.layers:
            x = layer(x, scheme=scheme, places=places, tap=tap)
        return self.norm(x)


class DecodeState:
    """What decoding remembers: one key-value cache a layer [B*K,...], and each layer's projected
    memory [B,...].

    The memory is never repeated for the beams: they fold into the query axis of cross-attention.
    """

    def __init__(
        self,
        caches: list[KeyValueCache],
        memory_kv: list[tuple[Tensor, Tensor]],
        memory: Memory,
        beam_size: int,
    ) -> None:
        self.caches = caches
        self.memory_kv = memory_kv
        self.memory_mask = padding_attn_mask(memory.padding)
        self.memory_positions = memory.positions
        self.beam_size = beam_size
        self.positions = memory.positions[:0]  # [length], of the target tokens decoded so far

    @property
    def length(self) -> int:
        """Target tokens decoded so far."""
        return len(self.positions)

    def places(self, positions: Tensor) -> tuple[Places, Places]:
        """Take note of new tokens at positions [T]: where their self-attention and their
        cross-attention stand.
        """
        # Of a first chunk, queries and keys are the same tokens, and the kernel is told so.
        self.positions = torch.cat((self.positions, positions)) if self.length else positions
        return (
            Places(positions, self.positions, causal=True, newest=len(positions) == 1),
            Places(
                positions.repeat(self.beam_size), self.memory_positions, padding=self.memory_mask
            ),
        )

    def reorder(self, beam_index: Tensor) -> None:
        """Beam k of each sentence goes on from its beam beam_index[b,k] ([B,K])."""
        first = (
            torch.arange(beam_index.shape[0], device=beam_index.device)[:, None] * self.beam_size
        )
        rows = (first + beam_index).flatten()
        for cache in self.caches:
            cache.take(rows)

    def select(self, alive: Tensor) -> None:
        """Keep the given sentences ([B'] indices) with all their beams."""
        beams = torch.arange(self.beam_size, device=alive.device)
        rows = (alive[:, None] * self.beam_size + beams).flatten()
        for cache in self.caches:
            cache.take(rows)
        self.memory_kv = [(k[alive], v[alive]) for k, v in self.memory_kv]
        self.memory_mask = self.memory_mask[alive]


class DecoderLayer(Layer):
    """Causal self-attention, cross-attention and feed-forward, each with dropout, residual and
    norm; see Layer.
    """

    def __init__(self, shape: LayerShape, *, layer: int, n_layers: int) -> None:
        super().__init__(shape, layer=layer, n_layers=n_layers)
        self.self_attention = shape.self_attention(kind="decoder", layer=layer)
        self.cross_attention = shape.cross_attention(layer=layer)
        self.feed_forward = shape.feed_forward()
        self.norm1, self.norm2, self.norm3 = (
            shape.layer_norm(),
            shape.layer_norm(),
            shape.layer_norm(),
        )

    def project_memory(self, memory: Memory, *, scheme: PositionScheme) -> tuple[Tensor, Tensor]:
        """This layer's keys and values [B,H,S,Dh]."""
        return self.cross_attention.project_memory(
            memory.states,
            position=scheme.attention("cross", self.layer),
            k_positions=memory.positions,
        )

    def forward(
        self,
        y: Tensor,
        memory_kv: tuple[Tensor, Tensor],
        *,
        scheme: PositionScheme,
        places: Places,
        cross_places: Places,
        beam_size: int = 1,
        cache: KeyValueCache | None = None,
        tap: AttentionTap | None = None,
    ) -> Tensor:
        """y [B*K,T,D] -> [B*K,T,D]. K > 1 beams share the memory of their sentence.

        memory_kv is that of `project_memory`. The beams of a sentence fold into the query axis of
        cross-attention, and cross_places has K*T queries accordingly.
        """
        self_position = scheme.attention("decoder", self.layer)
        cross_position = scheme.attention("cross", self.layer)
        k, v = memory_kv

        def attention(z: Tensor) -> Tensor:
            return self.self_attention(
                z, position=self_position, places=places, cache=cache, tap=tap
            )

        def cross(z: Tensor) -> Tensor:
            n_rows, length, d_model = z.shape
            folded = z.reshape(n_rows // beam_size, beam_size * length, d_model)
            out = self.cross_attention(
                folded, k, v, position=cross_position, places=cross_places, tap=tap
            )
            return out.view(n_rows, length, d_model)

        y = self.add(y, self.norm1, attention)
        y = self.add(y, self.norm2, cross)
        return self.add(y, self.norm3, self.feed_forward)


class Decoder(nn.Module):
    """A stack of decoder layers: over a whole target (training), or a few tokens at a time with a
    state.
    """

    def __init__(self, shape: LayerShape, *, n_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DecoderLayer(shape, layer=i, n_layers=n_layers) for i in range(n_layers)
        )
        self.norm = shape.final_norm()
        self.n_heads = shape.n_heads
        self.head_dim = shape.d_model // shape.n_heads

    def _layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self.layers))

    def forward(
        self,
        y: Tensor,
        memory: Memory,
        *,
        scheme: PositionScheme,
        positions: Tensor,
        tap: AttentionTap | None = None,
    ) -> Tensor:
        """y [B,T,D] at positions [T] -> [B,T,D].

        Right padding of the target needs no mask: it lies in the future of every real token, and
        the loss omits it.
        """
        places = Places(positions, positions, causal=True)
        cross_places = Places(
            positions, memory.positions, padding=padding_attn_mask(memory.padding)
        )
        for layer in self._layers():
            kv = layer.project_memory(memory, scheme=scheme)
            y = layer(y, kv, scheme=scheme, places=places, cross_places=cross_places, tap=tap)
        return self.norm(y)

    def init_state(
        self, memory: Memory, *, scheme: PositionScheme, beam_size: int, max_len: int
    ) -> DecodeState:
        """An empty state for up to max_len target tokens of beam_size hypotheses a sentence."""
        states = memory.states
        n_rows = states.shape[0] * beam_size
        projected = [layer.project_memory(memory, scheme=scheme) for layer in self._layers()]
        return DecodeState(
            caches=[
                KeyValueCache(n_rows, self.n_heads, max_len, self.head_dim, like=states)
                for _ in self._layers()
            ],
            memory_kv=[
                (k.contiguous(), v.contiguous()) for k, v in projected
            ],  # read at every step
            memory=memory,
            beam_size=beam_size,
        )

    def step(
        self, y: Tensor, state: DecodeState, *, scheme: PositionScheme, positions: Tensor
    ) -> Tensor:
        """The next tokens y [B*K,T,D] at positions [T] -> [B*K,T,D]; the state grows by T."""
        places, cross_places = state.places(positions)
        for layer, kv, cache in zip(self._layers(), state.memory_kv, state.caches):
            y = layer(
                y,
                kv,
                scheme=scheme,
                places=places,
                cross_places=cross_places,
                beam_size=state.beam_size,
                cache=cache,
            )
        return self.norm(y)
