"""The decoder's state in a search, and the step that is repeated for every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.linear import side_by_side, unpacked
from models.masks import padding_attn_mask
from models.positional_encodings.base import AttentionPosition, Places, PositionScheme

_ROOM = 16  # tokens that a cache has room for at first


@dataclass(frozen=True, slots=True)
class Memory:
    """What the encoder leaves for the decoder."""

    states: Tensor  # [B,S,D]
    padding: Tensor  # [B,S], True = padding
    positions: Tensor  # [S]


def project_memory(
    layers: Sequence[Any], memory: Memory, *, scheme: PositionScheme
) -> list[tuple[Tensor, Tensor]]:
    """The keys and values [B,H,S,Dh] of each layer's cross-attention."""
    attentions = [layer.cross_attention for layer in layers]
    projected = side_by_side([attention.kv_proj for attention in attentions], memory.states)
    return [
        attention.place_memory(
            kv, position=scheme.attention("cross", i), k_positions=memory.positions
        )
        for i, (attention, kv) in enumerate(zip(attentions, projected))
    ]


class KeyValueCache:
    """Keys and values of the tokens decoded so far, of L layers: one buffer [L,2,N,H,room,R].

    R is the width of the widest keys. The room doubles when it is full, to max_len at most: a step
    then touches few pages of memory. `states` has the `token_state` [N,H,max_len,...] by layer.
    """

    def __init__(
        self, n_rows: int, n_layers: int, n_heads: int, max_len: int, width: int, like: Tensor
    ) -> None:
        self.max_len = max_len
        self.held = like.new_empty(n_layers, 2, n_rows, n_heads, min(max_len, _ROOM), width)
        self.spare: Tensor | None = None
        self.states: dict[int, Tensor] = {}
        self.length = 0
        self._view()

    def _view(self) -> None:
        self.layers = [(self.held[i, 0], self.held[i, 1]) for i in range(len(self.held))]

    def grow(self, n_new: int) -> None:
        """Make room for n_new tokens, which `put` then fills layer by layer.

        Raises ValueError past max_len, where torch would silently drop positions.
        """
        end, room = self.length + n_new, self.held.shape[4]
        if end > self.max_len:
            raise ValueError(f"token {end} does not fit: the cache has room for {self.max_len}")
        if end > room:
            self.spare = None  # before there is more
            *sizes, _, width = self.held.shape
            wider = self.held.new_empty(*sizes, min(max(2 * room, end), self.max_len), width)
            wider[..., : self.length, :] = self.held[..., : self.length, :]
            self.held = wider
            self._view()
        self.length = end

    def last_state(self, layer: int, n_new: int) -> Tensor | float:
        """The state of the token before the n_new newest ones [N,H,1,...]; 0 if there is none."""
        states, start = self.states.get(layer), self.length - n_new
        return 0.0 if states is None else states[:, :, start - 1 : start]

    def put(
        self, layer: int, k: Tensor, v: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Store the newest k, v and state [N,H,T,...], if any; return all that the layer has."""
        n_new, end = k.shape[2], self.length
        keys, values = self.layers[layer]
        if k.shape[-1] + v.shape[-1] < 2 * keys.shape[-1]:
            keys, values = keys[..., : k.shape[-1]], values[..., : v.shape[-1]]
        keys.narrow(2, end - n_new, n_new).copy_(k)
        values.narrow(2, end - n_new, n_new).copy_(v)
        if state is not None:
            if layer not in self.states:
                sizes = *self.held.shape[2:4], self.max_len
                self.states[layer] = state.new_empty(*sizes, *state.shape[3:])
            self.states[layer][:, :, end - n_new : end] = state
            state = self.states[layer][:, :, :end]
        return keys.narrow(2, 0, end), values.narrow(2, 0, end), state

    def take(self, rows: Tensor) -> None:
        """Keep the given rows [M], in their order, with repetition."""
        # Into a second buffer, and back at the next step: in place, everything would be copied
        # twice. Only the filled part is copied. Both keep the room of rows that have left: new
        # buffers would be cleared by the kernel page by page.
        into, n_rows = self.spare, len(rows)
        if into is None or into.shape[2] < n_rows:
            n_layers, _, _, *sizes = self.held.shape
            into = self.held.new_empty(n_layers, 2, n_rows, *sizes)
        into = into.narrow(2, 0, n_rows)
        # detached: `out` takes no gradient, and a search needs none
        filled, other = (x.detach().narrow(4, 0, self.length) for x in (self.held, into))
        torch.index_select(filled, 2, rows, out=other)
        self.spare, self.held = self.held, into
        self._view()
        for layer, states in self.states.items():
            self.states[layer] = states.new_empty(len(rows), *states.shape[1:])
            self.states[layer][:, :, : self.length] = states[rows, :, : self.length]


class LayerStep:
    """A decoder layer with all that a step needs at hand.

    The arithmetic is that of `DecoderLayer.forward` in evaluation. Calling a layer's twenty modules
    would take longer than multiplying a few rows.
    """

    def __init__(
        self, layer: Any, scheme: PositionScheme, memory_kv: tuple[Tensor, Tensor]
    ) -> None:
        self.number, self.pre_norm = layer.layer, layer.pre_norm
        self.residual_scale = layer.residual_scale
        own, cross, ffn = layer.self_attention, layer.cross_attention, layer.feed_forward
        self.self_attention, self.cross_attention = own, cross
        self.heads = (own.n_heads, own.head_dim)
        self.position = scheme.attention("decoder", layer.layer)
        self.cross_position = scheme.attention("cross", layer.layer)
        self.k, self.v = (x.contiguous() for x in memory_kv)  # read at every step
        self.qkv, self.out = unpacked(own.qkv_proj), unpacked(own.out_proj)
        self.q, self.cross_out = unpacked(cross.q_proj), unpacked(cross.out_proj)
        self.linear1 = unpacked(ffn.linear1, ffn.activation)
        self.linear2 = unpacked(ffn.linear2)
        self.norms = [normed(norm) for norm in (layer.norm1, layer.norm2, layer.norm3)]

    def __call__(self, y: Tensor, state: DecodeState) -> Tensor:
        """y [B*K,T,D] of the newest tokens -> [B*K,T,D]."""
        # As attributes these would be cycles, and keep the weights until Python collects them.
        branches = self.attend_to_self, self.attend_to_memory, self.feed_forward
        for norm, branch in zip(self.norms, branches):
            if self.pre_norm:
                y = y + branch(norm(y), state)
            else:
                kept = y if self.residual_scale == 1 else self.residual_scale * y
                y = norm(kept + branch(y, state))
        return y

    def attend_to_self(self, y: Tensor, state: DecodeState) -> Tensor:
        n_rows, length, _ = y.shape
        qkv = self.qkv(y).view(n_rows, length, 3, *self.heads)
        position, places, cache = self.position, state.places, state.cache
        kept = position.token_state(y, cache.last_state(self.number, length))
        q, k, v = position.rotate_heads(qkv, places, kept)
        k, v, kept = cache.put(self.number, k, v, kept)
        weighed = self.self_attention.attend(q, k, v, position=position, places=places, state=kept)
        return self.out(weighed)

    def attend_to_memory(self, y: Tensor, state: DecodeState) -> Tensor:
        n_rows, length, d_model = y.shape
        # The beams of a sentence fold into the query axis, so its memory is not repeated.
        q = self.q(y).view(len(self.k), -1, *self.heads).transpose(1, 2)
        places = state.cross_places
        q = self.cross_position.rotate(q, places.q_positions, "query")
        weighed = self.cross_attention.attend(
            q, self.k, self.v, position=self.cross_position, places=places, state=None
        )
        return self.cross_out(weighed.view(n_rows, length, d_model))

    def feed_forward(self, y: Tensor, state: DecodeState) -> Tensor:
        return self.linear2(self.linear1(y))


def normed(norm: nn.LayerNorm | nn.RMSNorm) -> Callable[[Tensor], Tensor]:
    shape, weight, eps = norm.normalized_shape, norm.weight, norm.eps or 0.0
    if isinstance(norm, nn.RMSNorm):
        return lambda x: torch.rms_norm(x, shape, weight, eps)
    bias = norm.bias
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


class DecodeState:
    """Key-value caches [B*K,...], projected memory [B,...] of each layer, and positions.

    The memory is never repeated for the beams.
    """

    def __init__(
        self,
        layers: Sequence[Any],
        memory: Memory,
        *,
        scheme: PositionScheme,
        beam_size: int,
        max_len: int,
    ) -> None:
        n_rows = len(memory.states) * beam_size
        projected = project_memory(layers, memory, scheme=scheme)
        self.layers = [LayerStep(layer, scheme, kv) for layer, kv in zip(layers, projected)]
        n_heads, head_dim = self.layers[0].heads
        width = head_dim * max(step.position.widening for step in self.layers)
        sizes = n_rows, len(layers), n_heads, max_len, width
        self.cache = KeyValueCache(*sizes, like=memory.states)
        self.scheme, self.beam_size = scheme, beam_size
        self.kept: dict[int, Tensor] = {}  # see Places
        rows = torch.arange(n_rows, device=memory.positions.device)
        self.first_rows = rows.view(-1, beam_size)[:, :1]  # [B,1], of each sentence in the cache
        self.positions = memory.positions[:0]  # [length], of the target tokens decoded so far
        self.memory_positions = memory.positions
        self.memory_mask = padding_attn_mask(memory.padding) if memory.padding.any() else None
        # Cross-attention without positions has the same places at every step.
        self.plain = all(type(step.cross_position) is AttentionPosition for step in self.layers)
        self._look_at_memory(self.positions)

    @property
    def length(self) -> int:
        """Target tokens decoded so far."""
        return self.cache.length

    def _look_at_memory(self, positions: Tensor) -> None:
        """Set the places of cross-attention for the newest tokens, at positions [T]."""
        self.cross_places = Places(
            positions.repeat(self.beam_size),
            self.memory_positions,
            real_keys=self.memory_mask,
            q_span=self.scheme.span(self.length - len(positions), self.length),
            k_span=self.scheme.span(0, len(self.memory_positions)),
        )

    def grow(self, positions: Tensor) -> None:
        """Make room and places for new tokens at positions [T]."""
        self.cache.grow(len(positions))
        # In a first chunk queries and keys are the same tokens; one tensor tells the kernel so.
        first = self.length == len(positions)
        self.positions = positions if first else torch.cat((self.positions, positions))
        start, end = self.length - len(positions), self.length
        self.places = Places(
            positions,
            self.positions,
            causal=True,
            newest=len(positions) == 1,
            q_span=self.scheme.span(start, end),
            k_span=self.scheme.span(0, end),
            kept=self.kept,
        )
        if not self.plain:
            self._look_at_memory(positions)

    def reorder(self, beam_index: Tensor) -> None:
        """Beam k of each sentence goes on from its beam beam_index[b,k] ([B,K])."""
        self.cache.take((self.first_rows[: len(beam_index)] + beam_index).flatten())

    def select(self, alive: Tensor) -> None:
        """Keep the given sentences ([B'] indices) with all their beams."""
        beams = torch.arange(self.beam_size, device=alive.device)
        self.cache.take((self.first_rows[alive] + beams).flatten())
        for step in self.layers:
            step.k, step.v = step.k[alive], step.v[alive]
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask[alive]
            self._look_at_memory(self.positions[:0])
