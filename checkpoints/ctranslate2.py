"""A trained model as a CTranslate2 model: the same weights, and its position scheme in the terms
that CTranslate2 has.

CTranslate2 knows a table added to the embeddings, rotations, a bias by bucket of distance (T5) and
Shaw's tables. A bias that depends on the distance alone is such a bias, with a bucket for every
distance.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from configs.schema import ModelConfig
from models.attention.multi_head import CrossAttention, SelfAttention
from models.decoding.hypothesis import never_generated
from models.positional_encodings.alibi import Alibi
from models.positional_encodings.base import (
    AttentionPosition,
    InputPosition,
    Kind,
    Places,
    PositionScheme,
    Side,
)
from models.positional_encodings.kerple import Kerple
from models.positional_encodings.rope import NO_SCALING, Rotary, inverse_frequencies
from models.positional_encodings.sandwich import Sandwich
from models.positional_encodings.shaw import Shaw
from models.positional_encodings.t5 import T5Bias
from models.transformer import TranslationTransformer
from models.transformer_backend import DecoderLayer, EncoderLayer, FeedForward
from tokenizer.base import BaseTokenizer
from utils.errors import UserError

SUPPORTED = "none, sinusoidal, learnable, rope (of each head, without cross and dynamic_ntk), alibi, t5, kerple, sandwich, shaw"

KINDS: tuple[Kind, Kind] = ("encoder", "decoder")

# Tokens of a sentence that the tables reach, where the scheme itself has no bound.
MAX_POSITIONS = 2048

# Added to the logits of ids that no translation holds: finite, and in the range of float16.
NEVER = -1e4


def convert(
    model: TranslationTransformer,
    config: ModelConfig,
    tokenizer: BaseTokenizer,
    folder: Path,
    *,
    quantization: str,
) -> None:
    """Write the model into `folder`, which is there.

    Raises UserError where CTranslate2 is not installed or has no equal of the model; nothing is
    written then.
    """
    specs = require_ctranslate2().specs
    spec = build_spec(specs, model, config)
    source = tokenizer.src_pieces(range(tokenizer.src_vocab_size))
    target = tokenizer.tgt_pieces(range(tokenizer.tgt_vocab_size))
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.decoder_start_token = spec.config.bos_token = target[tokenizer.bos_id]
    spec.config.eos_token = target[tokenizer.eos_id]
    spec.config.unk_token = target[tokenizer.unk_id]
    spec.config.layer_norm_epsilon = next(
        m.eps for m in model.modules() if isinstance(m, nn.LayerNorm)
    )
    never = never_generated(
        pad_id=tokenizer.pad_id, bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id
    )
    spec.decoder.projection.bias = torch.zeros(tokenizer.tgt_vocab_size).index_fill_(
        0, torch.tensor(never), NEVER
    )
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def require_ctranslate2() -> Any:
    """The package, which is not among the requirements. Raises UserError where it is not installed."""
    try:
        return importlib.import_module("ctranslate2")
    except ImportError:
        raise UserError(
            "--format ctranslate2 needs the package ctranslate2: pip install ctranslate2"
        ) from None


def build_spec(specs: Any, model: TranslationTransformer, config: ModelConfig) -> Any:
    """The weights in CTranslate2's layout, without vocabularies. Raises UserError where it has no
    equal.
    """
    if config.backend != "scratch":
        raise UserError(
            f'model.backend = "{config.backend}" cannot be exported to CTranslate2; --format safetensors can'
        )
    if config.norm == "deepnorm":
        raise UserError(
            'model.norm = "deepnorm" cannot be exported to CTranslate2; --format safetensors can'
        )
    shape = {
        "num_heads": config.n_heads,
        "pre_norm": config.norm == "pre",
        "activation": {"relu": specs.Activation.RELU, "gelu": specs.Activation.GELU}[
            config.activation
        ],
    }
    equals = {kind: _equal(model.scheme, kind, config) for kind in KINDS}
    options = {
        kind: equal.options(model.scheme.attention(kind, 0)) if equal else {}
        for kind, equal in equals.items()
    }
    encoder = specs.TransformerEncoderSpec(config.n_encoder_layers, **shape, **options["encoder"])
    decoder = specs.TransformerDecoderSpec(config.n_decoder_layers, **shape, **options["decoder"])
    encoder.embeddings[0].weight = _tensor(model.src_embedding.weight)
    decoder.embeddings.weight = _tensor(model.tgt_embedding.weight)
    decoder.projection.weight = _tensor(model.output.weight)
    stacks: list[tuple[Any, Any, Callable[[Any, Any], None]]] = [
        (encoder, model.encoder, _encoder_layer),
        (decoder, model.decoder, _decoder_layer),
    ]
    for kind, (spec, stack, fill_layer) in zip(KINDS, stacks):
        equal = equals[kind]
        if equal is None:
            spec.position_encodings.encodings = _input_table(
                model, "source" if kind == "encoder" else "target"
            )
        if config.norm == "pre":
            _norm(spec.layer_norm, stack.norm)
        for i, (layer_spec, layer) in enumerate(zip(spec.layer, stack.layers)):
            fill_layer(layer_spec, layer)
            if equal is not None:
                head_dim = config.d_model // config.n_heads
                equal.fill(
                    layer_spec.self_attention, model.scheme.attention(kind, i), kind, head_dim
                )
    return specs.TransformerSpec(encoder, decoder)


# ---------------------------------------------------------------------------------------- positions


class Equal(NamedTuple):
    """CTranslate2's equal of a scheme inside attention: the options of its stack, and what fills
    one of its layers.
    """

    options: Callable[[Any], dict[str, Any]]
    fill: Callable[[Any, Any, Kind, int], None]  # specification, position, kind, head_dim


def _equal(scheme: PositionScheme, kind: Kind, config: ModelConfig) -> Equal | None:
    """None where positions are not inside attention. Raises UserError where there is no equal."""
    side: Side = "source" if kind == "encoder" else "target"
    position = scheme.attention(kind, 0)
    if type(scheme.attention("cross", 0)) is not AttentionPosition:
        why = "it acts in cross-attention"
    elif type(position) is AttentionPosition:
        return None
    elif type(position) not in _EQUALS:
        why = f"{type(position).__name__} in the {kind} has no equal"
    elif type(scheme.input(side)) is not InputPosition:
        why = "nothing is added to embeddings there while positions act inside attention"
    elif not torch.equal(scheme.positions(side, 0, 2, torch.device("cpu")), torch.arange(2)):
        why = "positions are 0, 1, 2, ... there"
    elif isinstance(position, Rotary) and position.rope_dim != "head":
        why = f"rope_dim = {position.rope_dim!r} turns the heads at different speeds"
    else:
        return _EQUALS[type(position)]
    raise UserError(
        f"model.position.kind = {config.position.kind!r} cannot be exported to CTranslate2: {why}. Supported are "
        f"{SUPPORTED}; --format safetensors takes every scheme"
    )


def _rotary_options(position: Rotary) -> dict[str, Any]:
    options = {
        "rotary_dim": 0,
        "rotary_interleave": position.layout == "interleaved",
        "rotary_base": position.base,
    }
    if position.scaling is not NO_SCALING:
        # The one type that has a factor for each frequency, so that it is the equal of every
        # scaling.
        options["rotary_scaling_type"] = require_ctranslate2().specs.RotaryScalingType.Su
    return options


def _fill_rotary(spec: Any, position: Rotary, kind: Kind, head_dim: int) -> None:
    if position.scaling is NO_SCALING:
        return
    exact, cpu = torch.float64, torch.device("cpu")
    plain = inverse_frequencies(head_dim, base=position.base, dtype=exact)
    slower = plain / position.scaling.frequencies(
        head_dim, base=position.base, dtype=exact, device=cpu
    )
    # One list is for short inputs and one for long inputs.
    spec.rotary_scaling_short_factor, spec.rotary_scaling_long_factor = (
        _tensor(slower),
        _tensor(slower),
    )
    spec.queries_scale = position.logit_scale(head_dim) * float(position.scaling.magnitude) ** 2


def _fill_bias(spec: Any, position: AttentionPosition, kind: Kind, head_dim: int) -> None:
    """A bucket for each distance below MAX_POSITIONS; all greater distances get the bias of
    MAX_POSITIONS.
    """
    n = MAX_POSITIONS
    bias = position.bias(
        Places(torch.tensor([n]), torch.arange(2 * n + 1), causal=kind == "decoder")
    )
    assert bias is not None
    past, future = bias[:, 0, : n + 1].flip(1), bias[:, 0, n:]  # [H,n+1], by distance
    # A side has as many buckets again, of growing width, for distances from n on.
    sides = [torch.cat((side[:, :n], side[:, n:].expand(-1, n)), dim=1) for side in (past, future)]
    spec.relative_attention_bias = _tensor(
        torch.cat(sides[:1] if kind == "decoder" else sides, dim=1).T
    )
    spec.relative_attention_max_distance = np.int32(2 * n)
    spec.queries_scale = position.logit_scale(head_dim)


def _fill_shaw(spec: Any, position: Shaw, kind: Kind, head_dim: int) -> None:
    optional = require_ctranslate2().specs.model_spec.OPTIONAL
    spec.relative_position_keys = _tensor(position.key_table)
    spec.relative_position_values = (
        _tensor(position.value_table) if position.needs_weights else optional
    )


_ROTARY = Equal(_rotary_options, _fill_rotary)
_BIAS = Equal(lambda position: {"relative_attention_bias": True}, _fill_bias)
_SHAW = Equal(lambda position: {"relative_position": True}, _fill_shaw)

# A subclass of one of these is another scheme.
_EQUALS: dict[type, Equal] = {
    Rotary: _ROTARY,
    Alibi: _BIAS,
    T5Bias: _BIAS,
    Kerple: _BIAS,
    Sandwich: _BIAS,
    Shaw: _SHAW,
}


def _input_table(model: TranslationTransformer, side: Side) -> Tensor:
    """What the scheme adds to the embeddings of tokens 0, 1, 2, ...: [positions, D]; zeros where it
    adds nothing.
    """
    limit = model.scheme.max_length(side)
    n = MAX_POSITIONS if limit is None else limit
    positions = model.scheme.positions(side, 0, n, model.output.weight.device)
    return _tensor(
        model.scheme.input(side)(model.output.weight.new_zeros(1, n, model.d_model), positions)[0]
    )


# ------------------------------------------------------------------------------------------ weights


def _encoder_layer(spec: Any, layer: EncoderLayer) -> None:
    _self_attention(spec.self_attention, layer.self_attention, layer.norm1)
    _feed_forward(spec.ffn, layer.feed_forward, layer.norm2)


def _decoder_layer(spec: Any, layer: DecoderLayer) -> None:
    _self_attention(spec.self_attention, layer.self_attention, layer.norm1)
    _cross_attention(spec.attention, layer.cross_attention, layer.norm2)
    _feed_forward(spec.ffn, layer.feed_forward, layer.norm3)


def _self_attention(spec: Any, attention: SelfAttention, norm: nn.LayerNorm) -> None:
    _linear(spec.linear[0], attention.qkv_proj)
    _linear(spec.linear[1], attention.out_proj)
    _norm(spec.layer_norm, norm)


def _cross_attention(spec: Any, attention: CrossAttention, norm: nn.LayerNorm) -> None:
    _linear(spec.linear[0], attention.q_proj)
    _linear(spec.linear[1], attention.kv_proj)
    _linear(spec.linear[2], attention.out_proj)
    _norm(spec.layer_norm, norm)


def _feed_forward(spec: Any, layer: FeedForward, norm: nn.LayerNorm) -> None:
    _linear(spec.linear_0, layer.linear1)
    _linear(spec.linear_1, layer.linear2)
    _norm(spec.layer_norm, norm)


def _linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight = _tensor(linear.weight)
    if linear.bias is not None:
        spec.bias = _tensor(linear.bias)


def _norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma = _tensor(norm.weight)
    spec.beta = torch.zeros(norm.normalized_shape) if norm.bias is None else _tensor(norm.bias)


def _tensor(weight: Tensor) -> Tensor:
    """A copy: CTranslate2 quantises in place."""
    return weight.detach().to("cpu", torch.float32, copy=True).contiguous()
