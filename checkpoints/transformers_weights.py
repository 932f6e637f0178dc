"""Weights under transformers' names and under ours: Marian for post-norm, Pegasus for pre-norm.

Both are this project's Transformer with sinusoids of the layout "half"; Pegasus has a norm after
each stack. The layout decides only the order of the model dimension: permuting every weight that
touches that dimension turns a model of the interleaved layout into one of "half".
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from configs.schema import ModelConfig, Sinusoidal

BIAS = "final_logits_bias"  # [1,V]
SHARED = "model.shared.weight"  # the one embedding where all are tied
EMBEDDINGS = tuple(f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder"))


class _Module(NamedTuple):
    """A module of ours, and those of theirs whose weights are stacked in it."""

    ours: str
    theirs: tuple[str, ...]
    d_model: Literal["rows", "columns"]  # where a weight has the model dimension; norms: rows


# The modules of a layer; only the decoder has those of cross-attention.
_LAYER = (
    _Module(
        "self_attention.qkv_proj", tuple(f"self_attn.{x}_proj" for x in "qkv"), d_model="columns"
    ),
    _Module("self_attention.out_proj", ("self_attn.out_proj",), d_model="rows"),
    _Module("cross_attention.q_proj", ("encoder_attn.q_proj",), d_model="columns"),
    _Module(
        "cross_attention.kv_proj", tuple(f"encoder_attn.{x}_proj" for x in "kv"), d_model="columns"
    ),
    _Module("cross_attention.out_proj", ("encoder_attn.out_proj",), d_model="rows"),
    _Module("feed_forward.linear1", ("fc1",), d_model="columns"),
    _Module("feed_forward.linear2", ("fc2",), d_model="rows"),
)
_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
# Each with the names that theirs may have, since tied weights are given once.
_TABLES = {
    "src_embedding.weight": (EMBEDDINGS[0], SHARED),
    "tgt_embedding.weight": (EMBEDDINGS[1], SHARED),
    "output.weight": ("lm_head.weight",),
}
_TIED: dict[str, dict[str, tuple[str, ...]]] = {
    "none": {},
    "target": {
        "tgt_embedding.weight": ("lm_head.weight",),
        "output.weight": (EMBEDDINGS[1], SHARED),
    },
    "all": dict.fromkeys(_TABLES, ("lm_head.weight", *EMBEDDINGS, SHARED)),
}


def to_ours(theirs: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The state_dict of our model of `config` from theirs, which may give tied weights once.

    An output bias that theirs does not have is 0. Raises KeyError for a missing weight.
    """
    place = _order(config).argsort()
    state = {}
    tied = _TIED[config.tie_embeddings]
    for ours, names in _TABLES.items():
        there = [each for each in (*names, *tied.get(ours, ())) if each in theirs] or [names[0]]
        state[ours] = theirs[there[0]][:, place]
    if config.output_bias:
        n_tokens = len(state["output.weight"])
        state["output.bias"] = theirs.get(BIAS, state["output.weight"].new_zeros(1, n_tokens))[0]
    for module in _modules(config):
        for kind in ("weight", "bias") if config.bias else ("weight",):
            whole = torch.cat([theirs[f"{name}.{kind}"] for name in module.theirs])
            state[f"{module.ours}.{kind}"] = _permuted(whole, module, place)
    return state


def to_theirs(ours: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The state_dict of their model from that of our model of `config`; all are copies.

    It has every name, also of tied weights. A bias that ours does not have is 0.
    """
    order = _order(config)
    state = {names[0]: ours[name][:, order] for name, names in _TABLES.items()}
    if config.tie_embeddings == "all":
        state[SHARED] = ours["src_embedding.weight"][:, order]
    output = ours["output.weight"]
    state[BIAS] = ours.get("output.bias", output.new_zeros(len(output)))[None].clone()
    for module in _modules(config):
        weight = ours[f"{module.ours}.weight"]
        bias = ours.get(f"{module.ours}.bias", weight.new_zeros(len(weight)))
        for kind, whole in (("weight", weight), ("bias", bias)):
            parts = _permuted(whole, module, order).chunk(len(module.theirs))
            state |= {f"{name}.{kind}": part.clone() for name, part in zip(module.theirs, parts)}
    return state


def _order(config: ModelConfig) -> Tensor:
    """[D]: for each place in their model dimension, the place in ours."""
    position, places = config.position, torch.arange(config.d_model)
    if isinstance(position, Sinusoidal) and position.layout == "interleaved":
        return torch.cat((places[0::2], places[1::2]))  # all sines, then all cosines
    return places


def _permuted(tensor: Tensor, module: _Module, order: Tensor) -> Tensor:
    """A weight or a bias with its model dimension, if it has one, in another order."""
    if module.d_model == "rows":
        return tensor[order]
    return tensor[:, order] if tensor.dim() == 2 else tensor


def _modules(config: ModelConfig) -> Iterator[_Module]:
    """All modules but embeddings and output."""
    depths = {"encoder": config.n_encoder_layers, "decoder": config.n_decoder_layers}
    for stack, n_layers in depths.items():
        norms = [_Module(f"norm{i}", (n,), "rows") for i, n in enumerate(_NORMS[stack], start=1)]
        maps = [m for m in _LAYER if stack == "decoder" or not m.ours.startswith("cross")]
        for i in range(n_layers):
            layer = f"{stack}.layers.{i}"
            for module in (*maps, *norms):
                theirs = tuple(f"model.{layer}.{name}" for name in module.theirs)
                yield _Module(f"{layer}.{module.ours}", theirs, module.d_model)
        if config.norm == "pre":
            yield _Module(f"{stack}.norm", (f"model.{stack}.layer_norm",), "rows")
