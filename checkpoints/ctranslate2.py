"""A trained model as a CTranslate2 model: the same weights, and an equal of its position scheme.

CTranslate2 knows a table added to the embeddings, rotations, a bias by bucket of distance (T5) and
Shaw's tables. Any bias of the distance alone is one by bucket, with a bucket for every distance.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from configs.schema import ModelConfig
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
from models.positional_encodings.combined import InterleavedScheme
from models.positional_encodings.kerple import Kerple
from models.positional_encodings.rope import Rotary, inverse_frequencies
from models.positional_encodings.sandwich import Sandwich
from models.positional_encodings.shaw import Shaw
from models.positional_encodings.t5 import T5Bias
from models.transformer import TranslationTransformer
from models.transformer_backend import DecoderLayer, EncoderLayer
from tokenizer.base import BaseTokenizer
from utils.errors import UserError

SUPPORTED = (
    "none, sinusoidal, learnable, rope (of each head, without cross, dynamic_ntk and learned "
    "frequencies), alibi, t5, kerple, sandwich, shaw, shape"
)

# Tokens of a sentence that the tables reach, where the scheme itself has no bound.
MAX_POSITIONS = 2048

# Of those that have another name there.
_ACTIVATIONS = {"silu": "SWISH"}

# Added to the logits of ids that no translation holds: finite, and in the range of float16.
NEVER = -1e4


def convert(
    model: TranslationTransformer,
    config: ModelConfig,
    tokenizer: BaseTokenizer,
    folder: Path,
    *,
    quantization: str = "float32",
    rule_out: bool = True,
) -> None:
    """Write the model in CTranslate2's form; `quantization` is of the weights, as it names it.

    rule_out=False: ids that no translation holds keep their logits, and a search can choose them.

    Raises UserError, before it writes, where CTranslate2 is missing or has no equal of the model.
    """
    specs = require_ctranslate2().specs
    for field, value in (("backend", "torch"), ("norm", "deepnorm")):
        if getattr(config, field) == value:
            raise UserError(f'model.{field} = "{value}" cannot be exported to CTranslate2')
    encoder, decoder = (_stack(specs, model, config, kind) for kind in ("encoder", "decoder"))
    encoder.embeddings[0].weight = _tensor(model.src_embedding.weight)
    decoder.embeddings.weight = _tensor(model.tgt_embedding.weight)
    decoder.projection.weight = _tensor(model.output.weight)
    never = never_generated(
        pad_id=tokenizer.pad_id, bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id
    )
    bias = torch.zeros(tokenizer.tgt_vocab_size)
    if model.output.bias is not None:
        bias = _tensor(model.output.bias)
    if rule_out:
        bias[list(never)] = NEVER
    decoder.projection.bias = bias
    spec = specs.TransformerSpec(encoder, decoder)
    target = tokenizer.tgt_pieces(range(tokenizer.tgt_vocab_size))
    spec.register_source_vocabulary(tokenizer.src_pieces(range(tokenizer.src_vocab_size)))
    spec.register_target_vocabulary(target)
    spec.config.decoder_start_token = spec.config.bos_token = target[tokenizer.bos_id]
    spec.config.eos_token = target[tokenizer.eos_id]
    spec.config.unk_token = target[tokenizer.unk_id]
    kinds = nn.LayerNorm, nn.RMSNorm
    norms = (module for module in model.modules() if isinstance(module, kinds))
    spec.config.layer_norm_epsilon = next(norms).eps
    spec.validate()
    # As its `optimize`, but the factors of angles stay in float32.
    spec._alias_variables()
    spec._quantize(quantization, lambda name: "rotary" not in name)
    spec.save(str(folder))


def require_ctranslate2() -> Any:
    """The package, which is not among the requirements, or a UserError that says how to get it."""
    try:
        return importlib.import_module("ctranslate2")
    except ImportError:
        said = "the package ctranslate2 is not installed: pip install ctranslate2"
        raise UserError(said) from None


def _stack(specs: Any, model: TranslationTransformer, config: ModelConfig, kind: Kind) -> Any:
    """The encoder or the decoder, without embeddings and projection."""
    side: Side = "source" if kind == "encoder" else "target"
    position = model.scheme.attention(kind, 0)
    _require_equal(model.scheme, kind, side, config)
    options, fill = _EQUALS[type(position)]
    stack: Any = model.encoder if kind == "encoder" else model.decoder
    make = specs.TransformerEncoderSpec if kind == "encoder" else specs.TransformerDecoderSpec
    spec = make(
        len(stack.layers),
        num_heads=config.n_heads,
        pre_norm=config.norm == "pre",
        ffn_glu=config.gated,
        rms_norm=config.layer_norm == "rms",
        activation=specs.Activation[_ACTIVATIONS.get(config.activation, config.activation.upper())],
        **options(position),
    )
    if fill is None:
        spec.position_encodings.encodings = _input_table(model, side)
    if config.norm == "pre":
        _norm(spec.layer_norm, stack.norm)
    for i, (layer_spec, layer) in enumerate(zip(spec.layer, stack.layers)):
        _layer(layer_spec, layer)
        if fill is not None:
            own = model.scheme.attention(kind, i)
            fill(layer_spec.self_attention, own, kind, config.head_dim)
    return spec


# ---------------------------------------------------------------------------------------- positions


def _require_equal(scheme: PositionScheme, kind: Kind, side: Side, config: ModelConfig) -> None:
    """Raises UserError where CTranslate2 has no equal of the scheme."""
    n_layers = config.n_encoder_layers if kind == "encoder" else config.n_decoder_layers
    position, *higher = (scheme.attention(kind, i) for i in range(n_layers))
    n_tokens = scheme.max_length(side) or 2
    places = scheme.positions(side, 0, n_tokens, torch.device("cpu"))
    unlike = any(type(other) is not type(position) for other in higher)
    if unlike or any(isinstance(each, InterleavedScheme) for each in scheme.modules()):
        why = "its layers differ"
    elif type(scheme.attention("cross", 0)) is not AttentionPosition:
        why = "it acts in cross-attention"
    elif type(position) is AttentionPosition and _adds(scheme, side, config.d_model):
        return
    elif type(position) is AttentionPosition:
        why = f"{type(scheme.input(side)).__name__} does more to embeddings than add to them"
    elif type(position) not in _EQUALS:
        why = f"{type(position).__name__} in the {kind} has no equal"
    elif type(scheme.input(side)) is not InputPosition:
        why = "nothing is added to embeddings there while positions act inside attention"
    elif not torch.equal(places, torch.arange(n_tokens)):
        why = "positions are 0, 1, 2, ... there"
    elif isinstance(position, Rotary) and position.rope_dim != "head":
        why = f"rope_dim = {position.rope_dim!r} turns the heads at different speeds"
    else:
        return
    raise UserError(
        f"model.position.kind = {config.position.kind!r} cannot be exported to CTranslate2: {why}. "
        f"Supported are {SUPPORTED}"
    )


def _adds(scheme: PositionScheme, side: Side, d_model: int) -> bool:
    """Whether it adds the same to any embeddings."""
    position, n = scheme.input(side), scheme.max_length(side) or MAX_POSITIONS
    weight = next(position.parameters(), torch.empty(0))
    places = scheme.positions(side, 0, n, weight.device)
    x = torch.linspace(-2, 2, n * d_model).view(1, n, d_model).to(weight)
    atol = 1e-4 if weight.dtype in (torch.float32, torch.float64) else 0.02
    return torch.allclose(position(x, places) - x, position(0 * x, places), rtol=0, atol=atol)


def _is_plain(position: Rotary) -> bool:
    return position.stretch is None and (position.share, position.clipped) == (1, 0)


def _rotary_options(position: Rotary) -> dict[str, Any]:
    interleaved = position.layout == "interleaved"
    options = {"rotary_dim": 0, "rotary_interleave": interleaved, "rotary_base": position.base}
    if not _is_plain(position):
        # The type that has a factor for each frequency: it is the equal of every scaling.
        options["rotary_scaling_type"] = require_ctranslate2().specs.RotaryScalingType.Su
    return options


def _fill_rotary(spec: Any, position: Rotary, kind: Kind, head_dim: int) -> None:
    if _is_plain(position):
        return
    exact, cpu = torch.float64, torch.device("cpu")
    plain = inverse_frequencies(head_dim, base=position.base, dtype=exact)
    scaled = position.frequencies(head_dim, exact, cpu)
    spec.rotary_scaling_short_factor = _tensor(plain / scaled)  # for short inputs
    spec.rotary_scaling_long_factor = _tensor(plain / scaled)
    anywhere = Places(torch.arange(1), torch.arange(1))
    scale = position.logit_scale(head_dim, anywhere)
    spec.queries_scale = scale * position.gain**2


def _fill_bias(spec: Any, position: AttentionPosition, kind: Kind, head_dim: int) -> None:
    """A bucket for each distance below MAX_POSITIONS; greater ones get that of MAX_POSITIONS."""
    n = MAX_POSITIONS
    places = Places(torch.tensor([n]), torch.arange(2 * n + 1), causal=kind == "decoder")
    bias = position.bias(places)
    assert bias is not None
    past, future = bias[:, 0, : n + 1].flip(1), bias[:, 0, n:]  # [H,n+1], by distance
    # A side has as many buckets again, of growing width, for distances from n on.
    sides = [torch.cat((side[:, :n], side[:, n:].expand(-1, n)), dim=1) for side in (past, future)]
    table = torch.cat(sides[:1] if kind == "decoder" else sides, dim=1)
    spec.relative_attention_bias = _tensor(table.T)
    spec.relative_attention_max_distance = np.int32(2 * n)
    spec.queries_scale = position.logit_scale(head_dim, places)


def _fill_shaw(spec: Any, position: Shaw, kind: Kind, head_dim: int) -> None:
    spec.relative_position_keys = _tensor(position.key_table)
    spec.relative_position_values = require_ctranslate2().specs.model_spec.OPTIONAL
    if position.needs_weights:
        spec.relative_position_values = _tensor(position.value_table)


# The options of a stack, from its first position, and what fills in the attention of a layer, from
# its specification, position, kind and head_dim. A subclass of one of these is another scheme.
_EQUALS: dict[type, tuple[Callable[[Any], dict[str, Any]], Callable[..., None] | None]] = {
    AttentionPosition: (lambda position: {}, None),  # positions act on the embeddings, if at all
    Rotary: (_rotary_options, _fill_rotary),
    Shaw: (lambda position: {"relative_position": True}, _fill_shaw),
    **dict.fromkeys(
        (Alibi, T5Bias, Kerple, Sandwich),
        (lambda position: {"relative_attention_bias": True}, _fill_bias),
    ),
}


def _input_table(model: TranslationTransformer, side: Side) -> Tensor:
    """What is added to the embeddings of tokens 0, 1, 2, ...: [positions, D].

    The target's has one row more, for the score of an EOS that a search asks for but does not use.
    """
    n = model.scheme.max_length(side) or MAX_POSITIONS
    weight = model.output.weight
    positions = model.scheme.positions(side, 0, n, weight.device)
    rows = model.scheme.input(side)(weight.new_zeros(1, n, model.d_model), positions)[0]
    return nn.functional.pad(_tensor(rows), (0, 0, 0, int(side == "target")))


# ------------------------------------------------------------------------------------------ weights


def _layer(spec: Any, layer: EncoderLayer | DecoderLayer) -> None:
    own, ffn = layer.self_attention, layer.feed_forward
    blocks = [(spec.self_attention, spec.self_attention.linear, [own.qkv_proj, own.out_proj])]
    norms = [layer.norm1, layer.norm2]
    if isinstance(layer, DecoderLayer):
        cross = layer.cross_attention
        linears = [cross.q_proj, cross.kv_proj, cross.out_proj]
        blocks.append((spec.attention, spec.attention.linear, linears))
        norms.append(layer.norm3)
    blocks.append((spec.ffn, [spec.ffn.linear_1], [ffn.linear2]))
    inner = [spec.ffn.linear_0]
    if ffn.linear1.out_features > ffn.linear2.in_features:
        inner.append(spec.ffn.linear_0_noact)
    for i, part in enumerate(inner):
        part.weight = _tensor(ffn.linear1.weight.chunk(len(inner))[i])
        if ffn.linear1.bias is not None:
            part.bias = _tensor(ffn.linear1.bias.chunk(len(inner))[i])
    for (block, linear_specs, linears), norm in zip(blocks, norms):
        _norm(block.layer_norm, norm)
        for linear_spec, linear in zip(linear_specs, linears):
            linear_spec.weight = _tensor(linear.weight)
            if linear.bias is not None:
                linear_spec.bias = _tensor(linear.bias)


def _norm(spec: Any, norm: nn.LayerNorm | nn.RMSNorm) -> None:
    spec.gamma = _tensor(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = torch.zeros(norm.normalized_shape) if norm.bias is None else _tensor(norm.bias)


def _tensor(weight: Tensor) -> Tensor:
    """A copy: CTranslate2 quantises in place."""
    return weight.detach().to("cpu", torch.float32, copy=True).contiguous()
