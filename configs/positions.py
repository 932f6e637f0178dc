"""Every positional encoding as a config section; their names: configs/position_names.py.

docs/positional_encodings.md explains each scheme; `models/schemes.py` builds it.
"""

import math
from typing import ClassVar, Literal, NamedTuple

from configs.section import HUGE, MOST, Section, count, number, positive
from utils.errors import ConfigError

Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")
FLOAT32_MAX = 3.4e38


class Bound(NamedTuple):
    """The most tokens that a scheme can place, and the field of model.position that sets it."""

    field: str
    length: int


class PositionSection(Section, section="model.position"):
    """What the rest of the configuration may ask of a position scheme."""

    inside_attention: ClassVar[bool] = True  # it acts on queries, keys, logits or values
    even_head: ClassVar[bool] = False  # it turns pairs of a head's dimensions

    def parts(self) -> dict[str, "PositionSection"]:
        """The schemes that this one is made of, by their fields."""
        return {k: part for k, part in vars(self).items() if isinstance(part, PositionSection)}

    def bound(self, side: Side) -> Bound | None:
        """The bound on a side's length, by max_positions or by a part; None where there is none."""
        own: int | None = getattr(self, "max_positions", None)
        if own is not None:
            return Bound("max_positions", own)
        bounds = [(name, part.bound(side)) for name, part in self.parts().items()]
        found = [Bound(f"{name}.{b.field}", b.length) for name, b in bounds if b is not None]
        return min(found, key=lambda bound: bound.length, default=None)

    def tightest(self) -> Bound | None:
        """The tighter bound of the two sides; None where there is none."""
        bounds = filter(None, map(self.bound, SIDES))
        return min(bounds, key=lambda bound: bound.length, default=None)

    def check_shape(self, d_model: int, n_heads: int, n_layers: int) -> None:
        """Raises ConfigError where the scheme does not fit a model of this shape.

        n_layers: of the stack with fewer layers.
        """
        if self.even_head and (d_model // n_heads) % 2:
            odd = f"{self.kind} needs an even head size; {d_model} / {n_heads} is odd"
            raise ConfigError(f"model.n_heads = {n_heads}: {odd}")
        for name, part in self.parts().items():
            try:
                part.check_shape(d_model, n_heads, n_layers)
            except ConfigError as error:
                inside = str(error).replace("model.position", f"model.position.{name}", 1)
                raise ConfigError(inside) from None


class NoPosition(PositionSection, kind="none"):
    """No position information (Haviv et al. 2022): the decoder still has its causal mask."""

    inside_attention: ClassVar[bool] = False


# -------------------------------------------------------------------------- added to the embeddings


class Sinusoidal(PositionSection, kind="sinusoidal"):
    """Fixed sines and cosines added to the embeddings (Vaswani et al. 2017, section 3.5)."""

    inside_attention: ClassVar[bool] = False
    base: float = number(10000.0, gt=1, le=HUGE)
    # The paper's; all sines, then all cosines (XLNet); the same with tensor2tensor's frequencies.
    layout: Literal["interleaved", "half", "t2t"] = "interleaved"
    max_positions: int | None = count(None)  # longer sequences are refused; None: no bound

    def check_shape(self, d_model: int, n_heads: int, n_layers: int) -> None:
        if self.layout == "t2t" and d_model < 4:
            self._fail("layout", f"needs a d_model of 4 or more; it is {d_model}")


class Learnable(PositionSection, kind="learnable"):
    """A trained vector for each position, one table for the source and one for the target."""

    inside_attention: ClassVar[bool] = False
    max_positions: int = count(512)


class Shape(PositionSection, kind="shape"):
    """Either of the above; in training a sentence begins anywhere (Kiyono et al. 2021)."""

    inside_attention: ClassVar[bool] = False
    input: Sinusoidal | Learnable = Sinusoidal()
    max_shift: int = count(500)  # the last position where a sentence may begin

    def bound(self, side: Side) -> Bound | None:
        inner = self.input.bound(side)
        longest = 0 if inner is None else max(0, inner.length - self.max_shift)
        return None if inner is None else Bound(f"input.{inner.field}", longest)


# ---------------------------------------------------------------------------------------- rotations


class NoScaling(Section, kind="none", section="model.position.scaling"):
    """The frequencies of the paper, whatever the length."""


class LinearScaling(Section, kind="linear", section="model.position.scaling"):
    """Interpolation: position s*m behaves as m did (Peng et al. 2023, "YaRN", equation 10)."""

    factor: float = number(4.0, ge=1, le=HUGE)


class NtkScaling(Section, kind="ntk", section="model.position.scaling"):
    """NTK-aware: a larger base keeps the fastest frequency and slows the slowest by `factor`."""

    factor: float = number(4.0, ge=1, le=HUGE)


class DynamicNtkScaling(Section, kind="dynamic_ntk", section="model.position.scaling"):
    """NTK-aware, with a base that grows with the sequence once it exceeds trained_length."""

    factor: float = number(4.0, ge=1, le=HUGE)
    trained_length: int = count(128)


class YarnScaling(Section, kind="yarn", section="model.position.scaling"):
    """YaRN (Peng et al. 2023): keeps fast frequencies, interpolates slow ones, sharpens logits."""

    factor: float = number(4.0, ge=1, le=HUGE)
    trained_length: int = count(128)
    beta_fast: float = number(32.0, gt="beta_slow", le=HUGE)
    beta_slow: float = positive(1.0)


Scaling = NoScaling | LinearScaling | NtkScaling | DynamicNtkScaling | YarnScaling


class Rope(PositionSection, kind="rope"):
    """Rotary positions on queries and keys (Su et al. 2021, equations 14-16 and 34).

    share < 1 is p-RoPE (Barbero et al. 2024): only the fastest share of the pairs turns.
    clipped > 0 is clipped RoPE (Li et al. 2026): the slowest share of the pairs fades out to rest.
    Both count whole pairs, rounded down.
    learn_frequencies=True trains the frequencies of each head and layer, starting at the paper's.

    rope_dim="model" spreads the frequencies over d_model, as if the rotation came before the head
    split. The original project did so, against the paper: wavelengths then differ by head.
    cross=True also rotates in cross-attention. Both are kept as labelled experiments.
    """

    even_head: ClassVar[bool] = True
    base: float = number(10000.0, gt=1, le=HUGE)
    form: Literal["auto", "real", "complex"] = "auto"  # how it is computed; auto: the faster way
    layout: Literal["interleaved", "half"] = "interleaved"  # the pairs; half: as in Llama
    rope_dim: Literal["head", "model"] = "head"
    cross: bool = False
    share: float = number(1.0, ge=0, le=1)
    clipped: float = number(0.0, ge=0, le=1)
    learn_frequencies: bool = False
    scaling: Scaling = NoScaling()

    def _check(self) -> None:
        if self.rope_dim == "model" and not isinstance(self.scaling, NoScaling):
            rule = f"the {self.scaling.kind} scaling is defined for rope_dim = 'head'"
            self._fail("rope_dim", rule)
        if self.learn_frequencies and (self.rope_dim, self.scaling) != ("head", NoScaling()):
            rule = "needs rope_dim = 'head' and scaling = none, from which training begins"
            self._fail("learn_frequencies", rule)
        if self.cross and isinstance(self.scaling, DynamicNtkScaling):
            self._fail("cross", "dynamic_ntk scales each side by its own length; allowed: False")

    def check_shape(self, d_model: int, n_heads: int, n_layers: int) -> None:
        super().check_shape(d_model, n_heads, n_layers)
        if isinstance(self.scaling, (NtkScaling, DynamicNtkScaling)) and d_model // n_heads < 4:
            rule = f"needs a head size of 4 or more; it is {d_model // n_heads}"
            self._fail("scaling.kind", rule)


class SelectiveRope(PositionSection, kind="selective_rope"):
    """Rotation by the running sum of a turn for each token (Movahedi et al. 2026)."""

    even_head: ClassVar[bool] = True
    base: float = number(10000.0, gt=1, le=HUGE)
    rank: int = count(16)  # of the map from a token to its turns


class Repo(PositionSection, kind="repo"):
    """RoPE at positions that a small network gives the tokens (Li et al. 2025)."""

    even_head: ClassVar[bool] = True
    base: float = number(10000.0, gt=1, le=HUGE)
    width: int = count(64)
    rope_layers: int = count(1, ge=0)  # how many of the lowest layers have plain positions

    def check_shape(self, d_model: int, n_heads: int, n_layers: int) -> None:
        super().check_shape(d_model, n_heads, n_layers)
        if self.rope_layers >= n_layers:
            self._fail("rope_layers", f"must be below {n_layers}, the layers of a stack")


class Pope(PositionSection, kind="pope"):
    """Content sets magnitudes and position angles (Gopalakrishnan et al. 2025)."""

    base: float = number(10000.0, gt=1, le=HUGE)


class Fope(PositionSection, kind="fope"):
    """RoPE whose pairs turn by sums of waves, and rest if they are slow (Hua et al. 2025)."""

    even_head: ClassVar[bool] = True
    base: float = number(10000.0, gt=1, le=HUGE)
    trained_length: int = count(128, ge=7)  # the slowest wave turns once in it; 7: at least one
    sigma: float = number(0.3, ge=0, le=HUGE)  # of the other waves of a pair, beside 1 of its own


class XPos(PositionSection, kind="xpos"):
    """Rotation with a decay by distance (Sun et al. 2022) in the decoder; RoPE in the encoder."""

    even_head: ClassVar[bool] = True
    base: float = number(10000.0, gt=1, le=HUGE)
    gamma: float = positive(0.4)
    scale_base: float = positive(512.0)
    form: Literal["auto", "real", "complex"] = "auto"

    def bound(self, side: Side) -> Bound | None:
        if side == "source":
            return None
        # Keys grow by ((1 + gamma) / gamma)^(n / scale_base) at most, and may themselves be 1e4.
        growth = math.log1p(1 / self.gamma) / self.scale_base
        return Bound("scale_base", int(math.log(FLOAT32_MAX / 1e4) / growth))


# ------------------------------------------------------------------------------- biases by distance


class Alibi(PositionSection, kind="alibi"):
    """A penalty proportional to the distance, one slope for each head (Press et al. 2022, 3)."""

    asymmetry: float = number(0.0, ge=0, le=HUGE)  # of the encoder; > 0 tells left from right


class T5(PositionSection, kind="t5"):
    """A trained number for each head and bucket of distances (Raffel et al. 2020, 2.1)."""

    # of both sides, half of them exact and half logarithmic
    n_buckets: int = count(32, ge=4, le=4096, multiple_of=4)
    max_distance: int = count(128, ge=2)
    scaled: bool = True  # False: q.k undivided by sqrt(Dh), as in T5

    def _check(self) -> None:
        if self.max_distance <= self.n_buckets // 2:
            rule = f"must be greater than n_buckets / 2 = {self.n_buckets // 2}"
            self._fail("max_distance", rule)


class Kerple(PositionSection, kind="kerple"):
    """A trained kernel of the distance by head: -p ln(1 + a d), or -a d^p (Chi et al. 2022)."""

    form: Literal["log", "power"] = "log"


class Fire(PositionSection, kind="fire"):
    """A small network of the distance, interpolated by the query's position (Li et al. 2023)."""

    width: int = count(32)
    c: float = positive(0.1)
    threshold: float = positive(512.0)


class Sandwich(PositionSection, kind="sandwich"):
    """The dot product of two sinusoids as a bias (Chi et al. 2023), scaled by head."""

    width: int = count(128, ge=2, multiple_of=2)
    base: float = number(10000.0, gt=1, le=HUGE)


# ----------------------------------------------------------------- terms that depend on the content


class Shaw(PositionSection, kind="shaw"):
    """A trained vector for each distance up to clip, on keys and values (Shaw et al. 2018)."""

    clip: int = count(16)
    values: bool = True


class TransformerXl(PositionSection, kind="transformer_xl"):
    """Sinusoids of the distance under a trained projection (Dai et al. 2019, 3.3)."""

    reading: Literal["xl", "xlnet"] = "xl"  # xlnet: each layer has trained biases of its own
    base: float = number(10000.0, gt=1, le=HUGE)


class Deberta(PositionSection, kind="deberta"):
    """Content to position (c2p), position to content (p2c) (He et al. 2021, equations 3-4)."""

    max_distance: int = count(64, ge=2)  # what lies beyond falls together
    # Of each side (version 2 of the model): half of them one distance wide, the others logarithmic.
    log_buckets: int | None = number(None, ge=4, le=4096, lt="max_distance", multiple_of=2)
    c2p: bool = True
    p2c: bool = True

    def _check(self) -> None:
        if not (self.c2p or self.p2c):
            self._fail("c2p", "switch on c2p, p2c or both")


Bias = Alibi | T5 | Kerple | Fire | Sandwich


class Dape(PositionSection, kind="dape"):
    """A bias that a small network of logits and bias adapts to the text (Zheng et al. 2024)."""

    bias: Bias = Kerple()
    width: int = count(32)


class Tupe(PositionSection, kind="tupe"):
    """Positions compared by maps of their own (Ke et al. 2021); with T5's bias it is TUPE-R."""

    max_positions: int = count(512)
    relative: NoPosition | Bias = NoPosition()


TwoSided = Bias | Shaw | TransformerXl | Deberta | Tupe | Dape
# For an encoder: all that is defined for keys on both sides of a query, except Repo and Shape.
EncoderPosition = (
    NoPosition | Sinusoidal | Learnable | Rope | SelectiveRope | Pope | Fope | TwoSided
)


class _CausalOnly(PositionSection):
    """Defined for causal attention alone, and therefore paired with another in the encoder."""

    encoder: EncoderPosition = Rope()

    def _check(self) -> None:
        if isinstance(self.encoder, Rope) and self.encoder.cross:
            rule = f"{self.kind} leaves cross-attention without positions; allowed: False"
            self._fail("encoder.cross", rule)

    def bound(self, side: Side) -> Bound | None:
        return super().bound(side) if side == "source" else None


class Cope(_CausalOnly, kind="cope"):
    """Positions counted by what the query finds worth counting (Golovneva et al. 2024)."""

    n_positions: int = count(64, ge=2)


class Fox(_CausalOnly, kind="fox"):
    """Forgetting attention: a gate of every token fades what lies before it (Lin et al. 2025)."""


# -------------------------------------------------------------------- schemes made of other schemes

InputScheme = Sinusoidal | Learnable | Shape
InsideAttention = Rope | SelectiveRope | Pope | Fope | XPos | TwoSided | Cope | Fox


class Interleaved(PositionSection, kind="interleaved"):
    """Two schemes by layer: one in every n-th, another in the others (Yang et al. 2025, RNoPE)."""

    others: NoPosition | InsideAttention = Rope()
    nth: NoPosition | InsideAttention = NoPosition()
    every: int = count(2, ge=2, le=1000)

    def _check(self) -> None:
        for name, part in self.parts().items():
            if isinstance(getattr(part, "encoder", None), InputScheme):
                self._fail(f"{name}.encoder", "embeddings have no layers: name one for attention")

    def check_shape(self, d_model: int, n_heads: int, n_layers: int) -> None:
        super().check_shape(d_model, n_heads, n_layers)
        if self.every > n_layers:
            self._fail("every", f"must be at most {n_layers}, the layers of a stack")


class Combined(PositionSection, kind="combined"):
    """A scheme added to the embeddings together with one inside attention."""

    input: InputScheme = Sinusoidal()
    attention: InsideAttention | Repo | Interleaved = T5()

    def _check(self) -> None:
        if isinstance(getattr(self.attention, "encoder", None), InputScheme):
            rule = "the embeddings have a scheme already (input); name one inside attention"
            self._fail("attention.encoder", rule)


Scheme = NoPosition | InputScheme | InsideAttention | Repo | Interleaved | Combined


class Ssmax(PositionSection, kind="ssmax"):
    """Any scheme, with logits times s ln n where a query sees n keys (Nakanishi 2025)."""

    scheme: Scheme = Rope()
    start: float = positive(0.43)  # of s, which every head of every layer trains


def _idle(scheme: PositionSection) -> bool:
    """Whether a model with this scheme ignores where its tokens stand."""
    if isinstance(scheme, Ssmax | Interleaved | _CausalOnly):
        return all(map(_idle, scheme.parts().values()))
    if isinstance(scheme, Repo):
        return scheme.rope_layers == 0
    if isinstance(scheme, Rope):
        return scheme.share == 0
    return isinstance(scheme, NoPosition | SelectiveRope)


class Randomized(PositionSection, kind="randomized"):
    """Increasing positions drawn from 0 .. spread-1, fed to any scheme (Ruoss et al. 2023)."""

    scheme: Scheme | Ssmax = Rope()
    spread: int = number(1024, gt=1, ge="max_positions", le=MOST)
    max_positions: int = count(256)  # the longest sequence; outside training, one draw of that size

    def _check(self) -> None:
        inner = self.scheme.tightest()
        if inner is not None and inner.length < self.spread:
            rule = f"scheme.{inner.field} allows for {inner.length} positions: lower spread to that"
            self._fail("spread", rule)
        if _idle(self.scheme):
            rule = f"{self.scheme.kind} does not use the drawn positions; name a scheme that does"
            self._fail("scheme", rule)


Position = Scheme | Ssmax | Randomized
