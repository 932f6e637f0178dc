"""From a position section of the configuration to the scheme it names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from configs import positions as config
from configs.schema import ModelConfig
from models.positional_encodings.alibi import Alibi
from models.positional_encodings.base import AttentionPosition, AttentionScheme, PositionScheme
from models.positional_encodings.combined import CombinedScheme, PairedScheme
from models.positional_encodings.cope import Cope
from models.positional_encodings.deberta import DebertaScheme
from models.positional_encodings.fire import Fire
from models.positional_encodings.forgetting import ForgetGate
from models.positional_encodings.kerple import Kerple
from models.positional_encodings.learnable import LearnableScheme
from models.positional_encodings.randomized import RandomizedScheme
from models.positional_encodings.rope import NO_SCALING, RopeScaling, Rotary
from models.positional_encodings.rope_scaling import (
    DynamicNtkRotary,
    LinearScaling,
    NtkScaling,
    YarnScaling,
)
from models.positional_encodings.sandwich import Sandwich
from models.positional_encodings.shaw import Shaw
from models.positional_encodings.sinusoidal import SinusoidalScheme
from models.positional_encodings.t5 import T5Bias
from models.positional_encodings.transformer_xl import TransformerXlScheme
from models.positional_encodings.xpos import XPos


def build_scheme(model: ModelConfig) -> PositionScheme:
    """The scheme that model.position asks for, with freshly initialised parameters."""
    return _build(model.position, model)


def _build(position: config.PositionSection, model: ModelConfig) -> PositionScheme:
    return POSITION_SCHEMES[type(position)](position, model)


def _stacks(
    encoder: Iterable[AttentionPosition], decoder: Iterable[AttentionPosition]
) -> PositionScheme:
    return AttentionScheme(encoder=encoder, decoder=decoder)


def _for_layers(m: ModelConfig, make: Callable[[], AttentionPosition]) -> PositionScheme:
    """A module of its own for every self-attention."""
    return _stacks(
        [make() for _ in range(m.n_encoder_layers)], [make() for _ in range(m.n_decoder_layers)]
    )


def _head_dim(m: ModelConfig) -> int:
    return m.d_model // m.n_heads


def _rope(p: config.Rope, m: ModelConfig) -> PositionScheme:
    rotary = Rotary(
        base=p.base, form=p.form, rope_dim=p.rope_dim, layout=p.layout, scaling=_scaling(p.scaling)
    )
    if isinstance(p.scaling, config.DynamicNtkScaling):
        rotary = DynamicNtkRotary(
            base=p.base,
            form=p.form,
            rope_dim=p.rope_dim,
            layout=p.layout,
            factor=p.scaling.factor,
            trained_length=p.scaling.trained_length,
        )
    return AttentionScheme(encoder=[rotary], decoder=[rotary], cross=[rotary] if p.cross else [])


def _scaling(p: config.Scaling) -> RopeScaling:
    match p:
        case config.LinearScaling():
            return LinearScaling(p.factor)
        case config.NtkScaling():
            return NtkScaling(p.factor)
        case config.YarnScaling():
            return YarnScaling(p.factor, p.trained_length, p.beta_fast, p.beta_slow)
        case _:  # none, or one that is a module of its own
            return NO_SCALING


def _xpos(p: config.XPos, m: ModelConfig) -> PositionScheme:
    decaying = XPos(base=p.base, gamma=p.gamma, scale_base=p.scale_base, form=p.form)
    return _stacks([Rotary(base=p.base, form=p.form, rope_dim="head")], [decaying])


def _alibi(p: config.Alibi, m: ModelConfig) -> PositionScheme:
    return _stacks([Alibi(n_heads=m.n_heads, asymmetry=p.asymmetry)], [Alibi(n_heads=m.n_heads)])


def _t5(p: config.T5, m: ModelConfig) -> PositionScheme:
    def table(bidirectional: bool) -> AttentionPosition:
        return T5Bias(
            n_heads=m.n_heads,
            n_buckets=p.n_buckets,
            max_distance=p.max_distance,
            bidirectional=bidirectional,
            scaled=p.scaled,
        )

    return _stacks([table(True)], [table(False)])


def _kerple(p: config.Kerple, m: ModelConfig) -> PositionScheme:
    return _stacks(*([Kerple(n_heads=m.n_heads, form=p.form)] for _ in range(2)))


def _fire(p: config.Fire, m: ModelConfig) -> PositionScheme:
    return _stacks(
        *([Fire(n_heads=m.n_heads, width=p.width, c=p.c, threshold=p.threshold)] for _ in range(2))
    )


def _sandwich(p: config.Sandwich, m: ModelConfig) -> PositionScheme:
    bias = Sandwich(n_heads=m.n_heads, width=p.width, base=p.base)
    return _stacks([bias], [bias])


def _shaw(p: config.Shaw, m: ModelConfig) -> PositionScheme:
    return _for_layers(m, lambda: Shaw(head_dim=_head_dim(m), clip=p.clip, values=p.values))


def _transformer_xl(p: config.TransformerXl, m: ModelConfig) -> PositionScheme:
    return TransformerXlScheme(
        d_model=m.d_model,
        n_heads=m.n_heads,
        n_encoder_layers=m.n_encoder_layers,
        n_decoder_layers=m.n_decoder_layers,
        reading=p.reading,
        base=p.base,
    )


def _deberta(p: config.Deberta, m: ModelConfig) -> PositionScheme:
    return DebertaScheme(
        d_model=m.d_model,
        n_heads=m.n_heads,
        n_encoder_layers=m.n_encoder_layers,
        n_decoder_layers=m.n_decoder_layers,
        max_distance=p.max_distance,
        log_buckets=p.log_buckets,
        c2p=p.c2p,
        p2c=p.p2c,
    )


def _causal_only(
    p: config.Cope | config.Fox, m: ModelConfig, make: Callable[[], AttentionPosition]
) -> PositionScheme:
    encoder = _build(p.encoder, m)
    encoder.encoder_only()
    return PairedScheme(
        encoder=encoder,
        decoder=AttentionScheme(decoder=[make() for _ in range(m.n_decoder_layers)]),
    )


def _cope(p: config.Cope, m: ModelConfig) -> PositionScheme:
    return _causal_only(p, m, lambda: Cope(head_dim=_head_dim(m), n_positions=p.n_positions))


def _fox(p: config.Fox, m: ModelConfig) -> PositionScheme:
    return _causal_only(p, m, lambda: ForgetGate(d_model=m.d_model, n_heads=m.n_heads))


def _combined(p: config.Combined, m: ModelConfig) -> PositionScheme:
    return CombinedScheme(on_input=_build(p.input, m), inside=_build(p.attention, m))


def _randomized(p: config.Randomized, m: ModelConfig) -> PositionScheme:
    return RandomizedScheme(_build(p.scheme, m), spread=p.spread, max_positions=p.max_positions)


# One line for each position section of configs/positions.py.
POSITION_SCHEMES: dict[type, Callable[[Any, ModelConfig], PositionScheme]] = {
    config.NoPosition: lambda p, m: PositionScheme(),
    config.Sinusoidal: lambda p, m: SinusoidalScheme(base=p.base, layout=p.layout),
    config.Learnable: lambda p, m: LearnableScheme(
        max_positions=p.max_positions, d_model=m.d_model
    ),
    config.Rope: _rope,
    config.XPos: _xpos,
    config.Alibi: _alibi,
    config.T5: _t5,
    config.Kerple: _kerple,
    config.Fire: _fire,
    config.Sandwich: _sandwich,
    config.Shaw: _shaw,
    config.TransformerXl: _transformer_xl,
    config.Deberta: _deberta,
    config.Cope: _cope,
    config.Fox: _fox,
    config.Combined: _combined,
    config.Randomized: _randomized,
}
