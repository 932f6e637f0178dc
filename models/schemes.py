"""From a position section of the configuration to the scheme it names."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from configs import positions as config
from configs.schema import ModelConfig
from models.positional_encodings.alibi import Alibi
from models.positional_encodings.base import (
    AttentionPosition,
    AttentionScheme,
    InputScheme,
    Kind,
    PositionScheme,
    SharedScheme,
)
from models.positional_encodings.combined import CombinedScheme, InterleavedScheme, PairedScheme
from models.positional_encodings.cope import Cope
from models.positional_encodings.dape import Dape
from models.positional_encodings.deberta import Deberta, table_rows
from models.positional_encodings.fire import Fire
from models.positional_encodings.fope import Fourier
from models.positional_encodings.forgetting import ForgetGate
from models.positional_encodings.kerple import Kerple
from models.positional_encodings.learnable import LearnableInput
from models.positional_encodings.pope import Pope
from models.positional_encodings.randomized import RandomizedScheme
from models.positional_encodings.repo import Repositioned
from models.positional_encodings.rope import LearnedRotary, Rotary
from models.positional_encodings.rope_scaling import (
    DynamicNtkRotary,
    linear_frequencies,
    ntk_frequencies,
    yarn_attention_factor,
    yarn_frequencies,
)
from models.positional_encodings.sandwich import Sandwich
from models.positional_encodings.selective import SelectiveRotary
from models.positional_encodings.shape import ShapeScheme
from models.positional_encodings.shaw import Shaw
from models.positional_encodings.sinusoidal import SinusoidalInput
from models.positional_encodings.ssmax import SsmaxScheme
from models.positional_encodings.t5 import T5Bias
from models.positional_encodings.transformer_xl import HeadBiases, TransformerXl
from models.positional_encodings.tupe import Tupe
from models.positional_encodings.xpos import XPos
from utils.errors import ConfigError


def build_scheme(model: ModelConfig) -> PositionScheme:
    """The scheme that model.position asks for, with freshly initialised parameters."""
    scheme = _build(model.position, model)
    bounds = ((side, model.position.bound(side)) for side in config.SIDES)
    scheme.bounds = {side: bound for side, bound in bounds if bound is not None}
    return scheme


def _build(position: config.PositionSection, model: ModelConfig) -> PositionScheme:
    if type(position) not in POSITION_SCHEMES:
        joined = "no module is joined to it: add it to POSITION_SCHEMES of models/schemes.py"
        raise ConfigError(f"model.position = {position.kind!r}: {joined}")
    return POSITION_SCHEMES[type(position)](position, model)


def each_stack(make: Callable[[Kind], AttentionPosition]) -> PositionScheme:
    """A module of its own for each stack, shared by its layers."""
    return AttentionScheme(encoder=[make("encoder")], decoder=[make("decoder")])


def each_layer(m: ModelConfig, make: Callable[[Kind], AttentionPosition]) -> PositionScheme:
    """A module of its own for every self-attention."""
    stacks: tuple[Kind, Kind] = ("encoder", "decoder")
    encoder, decoder = ([make(kind) for _ in range(n)] for kind, n in zip(stacks, _n_layers(m)))
    return AttentionScheme(encoder=encoder, decoder=decoder)


def _n_layers(m: ModelConfig) -> tuple[int, int]:
    return m.n_encoder_layers, m.n_decoder_layers


def _rope(p: config.Rope, m: ModelConfig) -> PositionScheme:
    rotation: dict[str, Any] = {"base": p.base, "form": p.form, "layout": p.layout}
    rotation |= {"share": p.share, "clipped": p.clipped, **_scaling(p.scaling, p.base)}
    if p.learn_frequencies:
        heads = {"n_heads": m.n_heads, "head_dim": m.head_dim}
        encoder, decoder, cross = (
            [LearnedRotary(**heads, **rotation) for _ in range(n)]
            for n in (*_n_layers(m), m.n_decoder_layers if p.cross else 0)
        )
        return AttentionScheme(encoder=encoder, decoder=decoder, cross=cross)
    make = DynamicNtkRotary if isinstance(p.scaling, config.DynamicNtkScaling) else Rotary
    rotary = make(rope_dim=p.rope_dim, **rotation)
    return AttentionScheme(encoder=[rotary], decoder=[rotary], cross=[rotary] if p.cross else [])


def _scaling(s: config.Scaling, base: float) -> dict[str, Any]:
    """The scaling's arguments for Rotary, or for the module that dynamic_ntk has of its own."""
    match s:
        case config.LinearScaling():
            return {"stretch": partial(linear_frequencies, **vars(s))}
        case config.NtkScaling():
            return {"stretch": partial(ntk_frequencies, **vars(s))}
        case config.YarnScaling():
            stretch = partial(yarn_frequencies, base=base, **vars(s))
            return {"stretch": stretch, "gain": yarn_attention_factor(s.factor)}
        case _:
            return vars(s)


def _repo(p: config.Repo, m: ModelConfig) -> PositionScheme:
    plain = Rotary(base=p.base, form="auto", rope_dim="head")

    def layer(i: int) -> AttentionPosition:
        if i < p.rope_layers:
            return plain
        return Repositioned(d_model=m.d_model, n_heads=m.n_heads, base=p.base, width=p.width)

    encoder, decoder = ([layer(i) for i in range(n)] for n in _n_layers(m))
    return AttentionScheme(encoder=encoder, decoder=decoder)


def _fope(p: config.Fope, m: ModelConfig) -> PositionScheme:
    how = {"n_heads": m.n_heads, "head_dim": m.head_dim, **vars(p)}
    generator = torch.Generator().manual_seed(0)
    return each_layer(m, lambda _: Fourier(**how, generator=generator))


def _xpos(p: config.XPos, m: ModelConfig) -> PositionScheme:
    decaying = XPos(base=p.base, gamma=p.gamma, scale_base=p.scale_base, form=p.form)
    plain = Rotary(base=p.base, form=p.form, rope_dim="head")
    return AttentionScheme(encoder=[plain], decoder=[decaying])


def _transformer_xl(p: config.TransformerXl, m: ModelConfig) -> PositionScheme:
    def biases() -> HeadBiases | None:
        return HeadBiases(n_heads=m.n_heads, head_dim=m.head_dim) if p.reading == "xl" else None

    # In the "xl" reading the layers of a stack share u and v, in "xlnet" each has its own.
    return SharedScheme(
        name="biases",
        n_layers=_n_layers(m),
        shared=(biases(), biases()),
        layer=lambda shared: TransformerXl(
            d_model=m.d_model, n_heads=m.n_heads, base=p.base, shared=shared
        ),
    )


def _deberta(p: config.Deberta, m: ModelConfig) -> PositionScheme:
    rows = table_rows(p.max_distance, p.log_buckets)
    # The tables start as wide as the normalised states that W_q and W_k see (normal, 1). At first
    # each term spreads 1.4 times as wide as the content, since W_q, W_k and W_v start as one Xavier
    # map. DeBERTa v2 normalises its table to the same end.
    return SharedScheme(
        name="table",
        n_layers=_n_layers(m),
        shared=(nn.Embedding(rows, m.d_model), nn.Embedding(rows, m.d_model)),
        layer=lambda table: Deberta(n_heads=m.n_heads, table=table, **vars(p)),
    )


def _tupe(p: config.Tupe, m: ModelConfig) -> PositionScheme:
    sizes = {"d_model": m.d_model, "n_heads": m.n_heads, "max_positions": p.max_positions}
    return each_stack(lambda kind: Tupe(_build(p.relative, m).attention(kind, 0), **sizes))


def _dape(p: config.Dape, m: ModelConfig) -> PositionScheme:
    def layer(kind: Kind) -> Dape:
        own = _build(p.bias, m).attention(kind, 0)
        return Dape(own, n_heads=m.n_heads, width=p.width)

    return each_layer(m, layer)


def _causal_only(
    p: config.Cope | config.Fox, m: ModelConfig, make: Callable[[], AttentionPosition]
) -> PositionScheme:
    encoder = _build(p.encoder, m)
    encoder.encoder_only()
    decoder = AttentionScheme(decoder=[make() for _ in range(m.n_decoder_layers)])
    return PairedScheme(encoder=encoder, decoder=decoder)


def _interleaved(p: config.Interleaved, m: ModelConfig) -> PositionScheme:
    depths = _n_layers(m)
    nth = tuple(n // p.every for n in depths)
    others = tuple(n - own for n, own in zip(depths, nth))

    def build(part: config.Position, own: tuple[int, ...]) -> PositionScheme:
        return build_scheme(
            replace(m, position=part, n_encoder_layers=own[0], n_decoder_layers=own[1])
        )

    return InterleavedScheme(others=build(p.others, others), nth=build(p.nth, nth), every=p.every)


# One line for each position section of configs/positions.py.
POSITION_SCHEMES: dict[type, Callable[[Any, ModelConfig], PositionScheme]] = {
    config.NoPosition: lambda p, m: PositionScheme(),
    config.Sinusoidal: lambda p, m: InputScheme(
        *[SinusoidalInput(base=p.base, layout=p.layout)] * 2
    ),
    config.Learnable: lambda p, m: InputScheme(
        *(LearnableInput(d_model=m.d_model, **vars(p)) for _ in range(2))
    ),
    config.Shape: lambda p, m: ShapeScheme(_build(p.input, m), p.max_shift),
    config.Rope: _rope,
    config.SelectiveRope: lambda p, m: each_layer(
        m, lambda _: SelectiveRotary(d_model=m.d_model, n_heads=m.n_heads, base=p.base, rank=p.rank)
    ),
    config.Repo: _repo,
    config.Pope: lambda p, m: each_layer(
        m, lambda _: Pope(n_heads=m.n_heads, head_dim=m.head_dim, base=p.base)
    ),
    config.Fope: _fope,
    config.XPos: _xpos,
    config.Alibi: lambda p, m: each_stack(lambda _: Alibi(n_heads=m.n_heads, **vars(p))),
    config.T5: lambda p, m: each_stack(
        lambda kind: T5Bias(n_heads=m.n_heads, bidirectional=kind == "encoder", **vars(p))
    ),
    config.Kerple: lambda p, m: each_stack(lambda _: Kerple(n_heads=m.n_heads, form=p.form)),
    config.Fire: lambda p, m: each_stack(lambda _: Fire(n_heads=m.n_heads, **vars(p))),
    config.Sandwich: lambda p, m: each_stack(lambda _: Sandwich(n_heads=m.n_heads, **vars(p))),
    config.Shaw: lambda p, m: each_layer(m, lambda _: Shaw(head_dim=m.head_dim, **vars(p))),
    config.TransformerXl: _transformer_xl,
    config.Deberta: _deberta,
    config.Tupe: _tupe,
    config.Dape: _dape,
    config.Cope: lambda p, m: _causal_only(
        p, m, lambda: Cope(head_dim=m.head_dim, n_positions=p.n_positions)
    ),
    config.Fox: lambda p, m: _causal_only(
        p, m, lambda: ForgetGate(d_model=m.d_model, n_heads=m.n_heads)
    ),
    config.Combined: lambda p, m: CombinedScheme(
        on_input=_build(p.input, m), inside=_build(p.attention, m)
    ),
    config.Interleaved: _interleaved,
    config.Ssmax: lambda p, m: SsmaxScheme(
        _build(p.scheme, m), n_layers=_n_layers(m), n_heads=m.n_heads, start=p.start
    ),
    config.Randomized: lambda p, m: RandomizedScheme(
        _build(p.scheme, m), spread=p.spread, max_positions=p.max_positions
    ),
}
