"""Encoder and decoder of the Transformer (Vaswani et al. 2017, section 3)."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, cast

import torch.nn.functional as F
from torch import Tensor, nn

from configs.schema import ModelConfig
from models.attention.multi_head import CrossAttention, SelfAttention
from models.attention.tap import AttentionTap
from models.decode_state import DecodeState, Memory, project_memory
from models.dropout import Dropout, JointDropout
from models.linear import Linear, weights_cast
from models.masks import padding_attn_mask
from models.positional_encodings.base import Places, PositionScheme


class DeepNorm(NamedTuple):
    """The constants of one stack: the weight of x in a sum, and the initial gain of branches."""

    alpha: float
    beta: float


def deepnorm_constants(n_encoder_layers: int, n_decoder_layers: int) -> tuple[DeepNorm, DeepNorm]:
    """Constants of encoder and decoder (Wang et al. 2022, DeepNet, figure 2, "encoder-decoder")."""
    n, m = n_encoder_layers, n_decoder_layers
    depth = (n**4 * m) ** (1 / 16)
    return DeepNorm(0.81 * depth, 0.87 / depth), DeepNorm((3 * m) ** 0.25, (12 * m) ** -0.25)


class FeedForward(nn.Module):
    """Two linear maps with a nonlinearity between (section 3.3), or a gate (see `gate`)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = 2 * config.d_ff if config.gated else config.d_ff
        self.linear1 = Linear(config.d_model, width, bias=config.bias)
        self.linear2 = Linear(config.d_ff, config.d_model, bias=config.bias)
        plain: Callable[[Tensor], Tensor] = getattr(F, config.activation)
        self.activation = partial(gate, plain) if config.gated else plain
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


def gate(activation: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """x [...,2F] -> activation(first half) * second half, [...,F] (Shazeer 2020, equation 6)."""
    first, second = x.chunk(2, dim=-1)
    return activation(first) * second


class Layer(nn.Module):
    """How a branch (attention or feed-forward) joins the residual stream, in both stacks.

    The norm comes before the branch (pre) or after the sum (post). DeepNorm (Wang et al. 2022,
    equation 1) is post-norm with residual_scale times x in the sum. The branch has dropout. In
    training, stochastic depth (Huang et al. 2016) drops the whole branch of a sentence: layer l of
    L, from 1, keeps its branches with p_l = 1 - l/L * stochastic_depth (equation 4). The paper
    scales by p_l in evaluation (equation 5); here a kept branch is divided by p_l in training.
    """

    def __init__(
        self, config: ModelConfig, *, stack: Literal["encoder", "decoder"], layer: int
    ) -> None:
        super().__init__()
        depths = config.n_encoder_layers, config.n_decoder_layers
        which = 0 if stack == "encoder" else 1
        drop_branch = config.stochastic_depth * (layer + 1) / depths[which]
        self.layer = layer
        self.pre_norm = config.norm == "pre"
        self.residual_scale = 1.0
        if config.norm == "deepnorm":
            self.residual_scale = deepnorm_constants(*depths)[which].alpha
        self.dropout = Dropout(config.dropout)
        self.branch_dropout = JointDropout(drop_branch, shared=2)

    def add(self, x: Tensor, norm: nn.Module, branch: Callable[[Tensor], Tensor]) -> Tensor:
        """x [B,T,D] with a branch added -> [B,T,D]."""
        if self.pre_norm:
            return x + self.branch_dropout(self.dropout(branch(norm(x))))
        kept = x if self.residual_scale == 1 else self.residual_scale * x
        return norm(kept + self.branch_dropout(self.dropout(branch(x))))


def layer_norm(config: ModelConfig) -> nn.LayerNorm | nn.RMSNorm:
    """LayerNorm, or RMSNorm (Zhang and Sennrich 2019)."""
    if config.layer_norm == "rms":
        return nn.RMSNorm(config.d_model, eps=1e-5)
    return nn.LayerNorm(config.d_model, bias=config.bias)


def final_norm(config: ModelConfig) -> nn.Module:
    """The norm that ends a pre-norm stack, whose residual stream is not normalised; else none."""
    return layer_norm(config) if config.norm == "pre" else nn.Identity()


class EncoderLayer(Layer):
    """Self-attention and feed-forward, each with dropout, residual and norm; see Layer."""

    def __init__(self, config: ModelConfig, *, layer: int) -> None:
        super().__init__(config, stack="encoder", layer=layer)
        self.self_attention = SelfAttention(config, kind="encoder", layer=layer)
        self.feed_forward = FeedForward(config)
        self.norm1, self.norm2 = layer_norm(config), layer_norm(config)

    def forward(
        self, x: Tensor, *, scheme: PositionScheme, places: Places, tap: AttentionTap | None
    ) -> Tensor:
        position = scheme.attention("encoder", self.layer)
        attention = partial(self.self_attention, position=position, places=places, tap=tap)
        x = self.add(x, self.norm1, attention)
        return self.add(x, self.norm2, self.feed_forward)


class Encoder(nn.Module):
    """A stack of encoder layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            EncoderLayer(config, layer=i) for i in range(config.n_encoder_layers)
        )
        self.norm = final_norm(config)

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
        span = scheme.span(0, x.shape[1])
        mask = padding_attn_mask(padding)
        places = Places(positions, positions, real_keys=mask, q_span=span, k_span=span)
        with weights_cast(self):
            for layer in self.layers:
                x = layer(x, scheme=scheme, places=places, tap=tap)
        return self.norm(x)


class DecoderLayer(Layer):
    """Causal self-attention, cross-attention and feed-forward, as in Layer."""

    def __init__(self, config: ModelConfig, *, layer: int) -> None:
        super().__init__(config, stack="decoder", layer=layer)
        self.self_attention = SelfAttention(config, kind="decoder", layer=layer)
        self.cross_attention = CrossAttention(config, layer=layer)
        self.feed_forward = FeedForward(config)
        self.norm1, self.norm2, self.norm3 = (layer_norm(config) for _ in range(3))

    def forward(
        self,
        y: Tensor,
        memory_kv: tuple[Tensor, Tensor],
        *,
        scheme: PositionScheme,
        places: Places,
        cross_places: Places,
        tap: AttentionTap | None = None,
    ) -> Tensor:
        """y [B,T,D] -> [B,T,D]; memory_kv: this layer's, from `project_memory`."""
        position = scheme.attention("decoder", self.layer)
        attention = partial(self.self_attention, position=position, places=places, tap=tap)
        k, v = memory_kv
        position = scheme.attention("cross", self.layer)
        at_memory = {"position": position, "places": cross_places, "tap": tap}
        cross = partial(self.cross_attention, k=k, v=v, **at_memory)
        y = self.add(y, self.norm1, attention)
        y = self.add(y, self.norm2, cross)
        return self.add(y, self.norm3, self.feed_forward)


class Decoder(nn.Module):
    """A stack of decoder layers: over a whole target, or a few tokens at a time with a state."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DecoderLayer(config, layer=i) for i in range(config.n_decoder_layers)
        )
        self.norm = final_norm(config)

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
        span, k_span = scheme.span(0, y.shape[1]), scheme.span(0, memory.states.shape[1])
        places = Places(positions, positions, causal=True, q_span=span, k_span=span)
        mask = padding_attn_mask(memory.padding)
        where = positions, memory.positions
        cross_places = Places(*where, real_keys=mask, q_span=span, k_span=k_span)
        with weights_cast(self):
            layers = self._layers()
            for layer, kv in zip(layers, project_memory(layers, memory, scheme=scheme)):
                y = layer(y, kv, scheme=scheme, places=places, cross_places=cross_places, tap=tap)
        return self.norm(y)

    def init_state(
        self, memory: Memory, *, scheme: PositionScheme, beam_size: int, max_len: int
    ) -> DecodeState:
        """An empty state for up to max_len target tokens of beam_size hypotheses a sentence."""
        room = {"beam_size": beam_size, "max_len": max_len}
        return DecodeState(self._layers(), memory, scheme=scheme, **room)

    def step(
        self, y: Tensor, state: DecodeState, *, scheme: PositionScheme, positions: Tensor
    ) -> Tensor:
        """The next tokens y [B*K,T,D] at positions [T] -> [B*K,T,D]; the state grows by T."""
        state.grow(positions)
        for layer in state.layers:
            y = layer(y, state)
        return self.norm(y)
