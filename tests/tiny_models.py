"""Models of a few thousand parameters in float64, toy schemes for each point of the seam."""

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from configs import schema
from configs.position_names import POSITIONS as ALL_NAMES
from configs.schema import ModelConfig, Position
from models.build import build_model, build_scheme
from models.decoding.hypothesis import Hypothesis, Limits
from models.positional_encodings.base import (
    AttentionPosition,
    InputPosition,
    Kind,
    Places,
    PositionScheme,
    Role,
    Side,
)
from models.transformer import TranslationTransformer

# Marian's habits: EOS is id 0, UNK 1, padding the last id, and decoding starts from padding.
EOS, UNK, VOCAB, PAD = 0, 1, 11, 10
BOS = PAD
LIMITS = Limits(bos_id=BOS, eos_id=EOS, max_len=9, max_len_ratio=1.0, alpha=0.6)
D_MODEL, N_HEADS, N_LAYERS, D_FF = 16, 2, 2, 24
NO_POSITION = schema.NoPosition()


def vocabulary(**changes: Any) -> Any:
    sizes = {"src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB, "pad_id": PAD, "shared_vocab": True}
    return SimpleNamespace(**{**sizes, **changes})


def tiny_config(position: Position = NO_POSITION, **changes: Any) -> ModelConfig:
    layers = {"n_encoder_layers": N_LAYERS, "n_decoder_layers": N_LAYERS}
    sizes = {"d_model": D_MODEL, "n_heads": N_HEADS, **layers, "d_ff": D_FF, "dropout": 0.0}
    return ModelConfig(**cast(Any, {"position": position, **sizes, **changes}))


def configured(
    position: Position, kind: Kind = "encoder", *, cls: Any = None, **changes: Any
) -> Any:
    """The module that a configuration asks for in a stack; made into a mistaken `cls` of it."""
    module = build_scheme(tiny_config(position, **changes)).attention(kind, 0)
    module.__class__ = cls or type(module)
    return module


def tiny_model(
    position: Position = NO_POSITION,
    *,
    seed: int = 0,
    gain: float = 1.6,
    vocab: Any = None,
    **changes: Any,
) -> TranslationTransformer:
    """A random float64 model in evaluation mode; `gain` sharpens it, no norm or bias is idle."""
    torch.manual_seed(seed)
    model = build_model(tiny_config(position, **changes), vocab or vocabulary()).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(gain)
    return model


# ------------------------------------------------------ toy schemes: one for each point of the seam


class Distances(AttentionPosition):
    """A trained vector for each distance up to `reach`."""

    width = D_MODEL // N_HEADS

    def __init__(self, reach: int = 4) -> None:
        super().__init__()
        self.reach = reach
        self.table = nn.Parameter(torch.randn(2 * reach + 1, self.width))

    def at(self, places: Places) -> Tensor:
        return self.table[(-places.distance).clamp(-self.reach, self.reach) + self.reach]


class RelativeBias(Distances):
    """A trained number for each head and distance, [H,Tq,Tk]."""

    width = N_HEADS

    def bias(self, places: Places) -> Tensor:
        return self.at(places).permute(2, 0, 1)


class KeyTerm(Distances):
    """Shaw et al. 2018, equation 4: q times a trained vector for each distance."""

    def logit_term(self, q: Tensor, k: Tensor, places: Places, state: Tensor | None) -> Tensor:
        return torch.einsum("bhqd,qkd->bhqk", q, self.at(places)) * q.shape[-1] ** -0.5


class ValueTerm(Distances):
    """Shaw et al. 2018, equation 3: the weights times a trained vector for each distance."""

    needs_weights = True

    def value_term(self, weights: Tensor, places: Places) -> Tensor:
        return torch.einsum("bhqk,qkd->bhqd", weights, self.at(places))


class TokenGate(AttentionPosition):
    """A number of each head and token, from the layer's input, on the logits of its key."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(D_MODEL, N_HEADS, bias=False)

    def token_state(self, x: Tensor, last: Tensor | float = 0.0) -> Tensor:
        return self.gate(x).transpose(1, 2)

    def logit_term(self, q: Tensor, k: Tensor, places: Places, state: Tensor | None) -> Tensor:
        assert state is not None
        return state[:, :, None, :]


class UnitScale(AttentionPosition):
    """T5's logits: q.k without 1/sqrt(Dh)."""

    def logit_scale(self, head_dim: int, places: Places) -> float:
        return 1.0


class Stretch(AttentionPosition):
    """x (1 + gain * position): it shows whether q and k get their own positions."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.2))

    def rotate(self, x: Tensor, positions: Tensor, role: Role) -> Tensor:
        return x * (1 + self.gain * positions.to(x.dtype))[:, None]


class Ramp(InputPosition):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.randn(D_MODEL))

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.slope * positions.to(x.dtype)[:, None]


class ToyScheme(PositionScheme):
    """A module for the layers of each stack; one for cross-attention where asked."""

    def __init__(self, make: Any = None, *, ramp: bool = False, cross: bool = False) -> None:
        super().__init__()
        self.at = nn.ModuleDict()
        if make is not None:
            kinds = ("encoder", "decoder", "cross") if cross else ("encoder", "decoder")
            self.at.update({kind: make() for kind in kinds})
        self.ramp = Ramp() if ramp else None

    def input(self, side: Side) -> InputPosition:
        return self.no_input if self.ramp is None else self.ramp

    def attention(self, kind: Kind, layer: int) -> AttentionPosition:
        return cast(AttentionPosition, self.at[kind]) if kind in self.at else self.no_attention


TABLE = schema.Learnable(max_positions=24)
BUCKETS = schema.T5(n_buckets=8, max_distance=6)
# Every scheme with sizes so small that a sentence of a few tokens reaches what lies past them.
POSITIONS: dict[str, Position] = {
    "none": NO_POSITION,
    "sinusoidal": schema.Sinusoidal(),
    "sinusoidal_half": schema.Sinusoidal(layout="half"),
    "sinusoidal_t2t": schema.Sinusoidal(layout="t2t"),
    "learnable": TABLE,
    "shape": schema.Shape(max_shift=5),
    "shape_learnable": schema.Shape(input=schema.Learnable(max_positions=30), max_shift=6),
    "rope": schema.Rope(),
    "rope_complex": schema.Rope(form="complex"),
    "rope_half": schema.Rope(layout="half"),
    "rope_model": schema.Rope(rope_dim="model"),
    "rope_cross": schema.Rope(cross=True),
    "p_rope": schema.Rope(share=0.75),
    "rope_clipped": schema.Rope(clipped=0.75),
    "rope_learned": schema.Rope(learn_frequencies=True),
    "rope_linear": schema.Rope(scaling=schema.LinearScaling(factor=2.0)),
    "rope_ntk": schema.Rope(scaling=schema.NtkScaling(factor=2.0)),
    "rope_dynamic_ntk": schema.Rope(scaling=schema.DynamicNtkScaling(factor=2.0, trained_length=3)),
    "rope_yarn": schema.Rope(scaling=schema.YarnScaling(factor=2.0, trained_length=4)),
    "selective_rope": schema.SelectiveRope(rank=4),
    "repo": schema.Repo(width=6),
    "repo_alone": schema.Repo(width=6, rope_layers=0),
    "pope": schema.Pope(),
    "fope": schema.Fope(),
    "xpos": schema.XPos(scale_base=8.0),
    "alibi": schema.Alibi(),
    "alibi_asymmetric": schema.Alibi(asymmetry=0.5),
    "t5": BUCKETS,
    "t5_unscaled": schema.T5(n_buckets=8, max_distance=6, scaled=False),
    "kerple_log": schema.Kerple(),
    "kerple_power": schema.Kerple(form="power"),
    "fire": schema.Fire(width=4, threshold=3.0),
    "sandwich": schema.Sandwich(width=8),
    "shaw": schema.Shaw(clip=2),
    "shaw_keys": schema.Shaw(clip=2, values=False),
    "transformer_xl": schema.TransformerXl(),
    "xlnet": schema.TransformerXl(reading="xlnet"),
    "deberta": schema.Deberta(max_distance=3),
    "deberta_log": schema.Deberta(max_distance=6, log_buckets=4),
    "deberta_c2p": schema.Deberta(max_distance=3, p2c=False),
    "tupe": schema.Tupe(max_positions=24),
    "tupe_r": schema.Tupe(max_positions=24, relative=BUCKETS),
    "dape": schema.Dape(width=6),
    "dape_t5": schema.Dape(bias=BUCKETS, width=6),
    "cope": schema.Cope(n_positions=3),
    "cope_t5": schema.Cope(n_positions=3, encoder=BUCKETS),
    "fox": schema.Fox(),
    "fox_learnable": schema.Fox(encoder=TABLE),
    "interleaved": schema.Interleaved(),
    # states of two sizes
    "interleaved_fox": schema.Interleaved(others=schema.SelectiveRope(rank=2), nth=schema.Fox()),
    "interleaved_pope": schema.Interleaved(others=schema.Pope(), nth=schema.Rope()),
    "interleaved_shaw_t5": schema.Interleaved(others=schema.Shaw(clip=2), nth=BUCKETS),
    "ssmax": schema.Ssmax(),
    "ssmax_alibi": schema.Ssmax(scheme=schema.Alibi()),
    "ssmax_learnable_shaw": schema.Ssmax(
        scheme=schema.Combined(input=TABLE, attention=schema.Shaw(clip=2))
    ),
    "ssmax_fox": schema.Ssmax(scheme=schema.Fox()),
    "randomized_rope": schema.Randomized(spread=48, max_positions=24),
    "randomized_t5": schema.Randomized(
        scheme=schema.T5(n_buckets=8, max_distance=24), spread=48, max_positions=24
    ),
    "sinusoidal_t5": schema.Combined(attention=BUCKETS),
    "learnable_shaw": schema.Combined(input=TABLE, attention=schema.Shaw(clip=2)),
}
# One of your own is held to the contract with its defaults.
POSITIONS |= {name: scheme for name, scheme in ALL_NAMES.items() if name not in POSITIONS}
TOYS: dict[str, Callable[[], PositionScheme]] = {
    "relative_bias": lambda: ToyScheme(RelativeBias),
    "relative_bias_cross": lambda: ToyScheme(RelativeBias, cross=True),
    "key_term": lambda: ToyScheme(KeyTerm, cross=True),
    "value_term": lambda: ToyScheme(ValueTerm, cross=True),
    "token_gate": lambda: ToyScheme(TokenGate, ramp=True),
    "unit_scale": lambda: ToyScheme(UnitScale, cross=True),
    "stretch": lambda: ToyScheme(Stretch, cross=True),
    "ramp": lambda: ToyScheme(ramp=True),
}


def model_with(name: str, **changes: Any) -> TranslationTransformer:
    """A tiny model with a scheme of POSITIONS or TOYS, or "torch" (torch's own, sinusoidal)."""
    if name == "torch":
        return tiny_model(schema.Sinusoidal(), backend="torch", **changes)
    if name in POSITIONS:
        return tiny_model(POSITIONS[name], **changes)
    model = tiny_model(**changes)
    torch.manual_seed(changes.get("seed", 0) + 1)
    model.scheme = TOYS[name]().double()
    return model


shared_model = cache(model_with)  # for tests that change nothing in it


def lively(name: str = "rope", seed: int = 0, **changes: Any) -> TranslationTransformer:
    """A model that neither stops at once nor never: EOS is as likely as chance has it."""
    return model_with(name, seed=seed, gain=1.2, **changes)


# ---------------------------------------------------------------------------- batches, comparisons


def close(a: Any, b: Any, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def sources(*lengths: int, seed: int = 0, pad_to: int | None = None) -> Tensor:
    """Random source sentences with EOS at the end, padded on the right; lengths count EOS."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.full((len(lengths), pad_to or max(lengths)), PAD)
    for row, n in zip(src, lengths):
        row[: n - 1] = torch.randint(2, PAD, (n - 1,), generator=generator)
        row[n - 1] = EOS
    return src


def targets(batch: int, length: int, *, seed: int = 0) -> Tensor:
    """Random decoder input [B,T] without padding, BOS first."""
    generator = torch.Generator().manual_seed(100 + seed)
    tgt_in = torch.randint(1, PAD, (batch, length), generator=generator)
    tgt_in[:, 0] = BOS
    return tgt_in


@torch.no_grad()
def forced_log_prob(model: nn.Module, sentence: Tensor, hypothesis: Hypothesis) -> float:
    """The log-probability of a translation of one sentence, from whole prefixes."""
    ids = [*hypothesis.ids, EOS] if hypothesis.finished else list(hypothesis.ids)
    logits = model(sentence[sentence != PAD][None], torch.tensor([[BOS, *ids[:-1]]]))
    return logits[0].log_softmax(-1).gather(-1, torch.tensor(ids)[:, None]).sum().item()
