"""What a position scheme can do: two contracts whose defaults mean "no position".

A scheme acts at up to four points: added to the embeddings (InputPosition); rotating queries and
keys, biasing the attention logits, and adding a term to the values (AttentionPosition). Positions
are integer tensors handed in, never inferred from sizes.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from configs.positions import Bound, Side as Side
from models.masks import as_bias, causal_attn_mask

Kind = Literal["encoder", "decoder", "cross"]
Role = Literal["query", "key"]
Span = tuple[int, int]
Heads = tuple[Tensor, Tensor, Tensor]  # q, k and v of all heads
T = TypeVar("T")


def exact_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type to compute angles and biases in: float64 for float64, float32 for anything less."""
    return torch.promote_types(dtype, torch.float32)


class ExactParameters(nn.Module):
    """Its parameters stay in float32 or better where the model is cast to less.

    For angles: the error of a frequency of about 1 in bfloat16 is a radian at position 500.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        kept = {name: weight.data for name, weight in self.named_parameters()}
        super()._apply(fn, recurse)
        for name, weight in self.named_parameters():
            if (exact := exact_dtype(weight.dtype)) != weight.dtype:
                weight.data = kept[name].to(weight.device, exact)
        return self


def least(*bounds: int | None) -> int | None:
    """The tightest of the bounds; None where there is none."""
    return min((bound for bound in bounds if bound is not None), default=None)


@dataclass(eq=False)
class Places:
    """Where the queries and keys of one attention stand, and which keys a query may see.

    One object serves all layers of a stack in one forward pass (or decoding step), so that what
    depends on the places alone is computed once: see `once`.
    """

    q_positions: Tensor  # integers [Tq]
    k_positions: Tensor  # integers [Tk]
    causal: bool = False  # a query sees no key at a later position
    newest: bool = False  # no key is later than any query, so that being causal takes no mask
    real_keys: Tensor | None = None  # bool, broadcast to [B,1,Tq,Tk], False at padding
    # The first position and the last plus 1, where every integer in between occurs, perhaps several
    # times: the positions are then known without asking the device.
    q_span: Span | None = None
    k_span: Span | None = None
    # What the steps of one search keep for each other, by module: see `TransformerXl.logit_term`.
    kept: dict[int, Tensor] = field(default_factory=dict)
    _made: dict[Hashable, object] = field(default_factory=dict, init=False)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of make(), computed the first time that `key` is asked for."""
        if key not in self._made:
            self._made[key] = make()
        return cast(T, self._made[key])

    @property
    def distance(self) -> Tensor:
        """i - j of query i and key j, integers [Tq,Tk]: positive where the key is in the past."""
        return self.once("distance", lambda: self.q_positions[:, None] - self.k_positions[None, :])

    def distances(self, clip: int | None = None) -> tuple[Tensor, Tensor]:
        """Every distance i - j that occurs, in order [N], and each pair's index into them [Tq,Tk].

        `clip` limits distances to -clip .. clip.
        """
        return self.once(("distances", clip), lambda: self._make_distances(clip))

    def _make_distances(self, clip: int | None) -> tuple[Tensor, Tensor]:
        distance = self.distance if clip is None else self.distance.clamp(-clip, clip)
        if self.q_span is None or self.k_span is None:
            return torch.unique(distance, return_inverse=True)
        lowest, end = self.q_span[0] - self.k_span[1] + 1, self.q_span[1] - self.k_span[0]
        if clip is not None:
            lowest, end = max(lowest, -clip), min(end, clip + 1)
        return torch.arange(lowest, end, device=distance.device), distance - lowest

    @property
    def plainly_causal(self) -> bool:
        """Causal over the same unpadded tokens as queries and keys: a kernel needs only a flag."""
        return self.causal and self.real_keys is None and self.q_positions is self.k_positions

    @property
    def mask(self) -> Tensor | None:
        """Bool, broadcast to [B,H,Tq,Tk], True = may attend; None where all see all."""
        if self.newest or not self.causal:
            return self.real_keys
        return self.once("countable", self.countable)

    def countable(self) -> Tensor:
        """The real keys up to each query, bool [B,1,Tq,Tk] or [Tq,Tk], causal or not."""
        causal = causal_attn_mask(self.q_positions, self.k_positions)
        return causal if self.real_keys is None else self.real_keys & causal

    @property
    def n_visible(self) -> Tensor:
        """How many keys each query may see, integers, broadcast to [B,1,Tq,1]."""
        return self.once("n_visible", self._count_visible)

    def _count_visible(self) -> Tensor:
        if self.mask is None:
            return self.k_positions.new_full((1, 1), len(self.k_positions))
        return self.mask.sum(-1, keepdim=True)

    def masked(self, bias: Tensor) -> Tensor:
        """bias with -inf wherever the mask forbids."""
        return bias if self.mask is None else bias + as_bias(self.mask, bias.dtype)


class InputPosition(nn.Module):
    """Acts on embeddings."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [B,T,D] after the multiplication with sqrt(d_model), positions [T] -> [B,T,D].

        The result has the type of x. Positions may also be [B,T], by row.
        """
        return x


class AttentionPosition(nn.Module):
    """Acts inside one attention: its logits are logit_scale * q.k + bias + logit_term.

    q and k are rotated, which makes them `widening` times as wide: R = widening * Dh.
    `needs_weights` asks for the weights, hence for the eager kernel.
    """

    needs_weights = False
    widening = 1

    def rotate(self, x: Tensor, positions: Tensor, role: Role) -> Tensor:
        """q or k [B,H,T,Dh] at positions [T] -> [B,H,T,R]. Caches keep rotated keys."""
        return x

    def rotate_heads(self, qkv: Tensor, places: Places, state: Tensor | None = None) -> Heads:
        """q, k and v [B,T,3,H,Dh] of tokens at places.q_positions -> [B,H,T,R] twice, [B,H,T,Dh].

        q and k are rotated: by `rotate`, by a faster equivalent, or by the `token_state` of these
        tokens.
        """
        q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
        at = places.q_positions
        return self.rotate(q, at, "query"), self.rotate(k, at, "key"), v

    def logit_scale(self, head_dim: int, places: Places) -> float | Tensor:
        """The factor of q.k: a number, or one for each query, broadcast to [B,H,Tq,1].

        1/sqrt(Dh), whatever R is, unless the scheme says otherwise.
        """
        return head_dim**-0.5

    def bias(self, places: Places) -> Tensor | None:
        """What is added to the scaled logits whatever q and k are, in float32 or better; or None.

        Broadcasts to [B,H,Tq,Tk]. Called once a pass for all layers that share this module.
        """
        return None

    def token_state(self, x: Tensor, last: Tensor | float = 0.0) -> Tensor | None:
        """What each head keeps of each token of x [B,T,D] beside its key, [B,H,T,...]; or None.

        It may be a running sum: last [B,H,1,...] is that of the token before x, 0 at the beginning.
        """
        return None

    def logit_term(
        self, q: Tensor, k: Tensor, places: Places, state: Tensor | None
    ) -> Tensor | None:
        """What q [B,H,Tq,R], k [B,H,Tk,R] (rotated) or state [B,H,Tk,...] add to the logits.

        Broadcasts to [B,H,Tq,Tk] and is finite everywhere, also where the mask forbids; or None.
        """
        return None

    def value_term(self, weights: Tensor, places: Places) -> Tensor:
        """weights [B,H,Tq,Tk] after dropout -> what is added to the output [B,H,Tq,Dh].

        Called only where needs_weights is set.
        """
        raise TypeError(f"{type(self).__name__} has no value term")


class PositionScheme(nn.Module):
    """Owns the modules of one scheme and hands them out by place. The defaults are "none".

    A shared module is handed out in several places; its parameters are saved here, once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.no_input = InputPosition()
        self.no_attention = AttentionPosition()
        # The bound on each side that has one: `build_scheme` takes it from the section.
        self.bounds: dict[Side, Bound] = {}

    def input(self, side: Side) -> InputPosition:
        return self.no_input

    def attention(self, kind: Kind, layer: int) -> AttentionPosition:
        return self.no_attention

    def encoder_only(self) -> None:
        """Drop what serves the decoder and its input."""

    def positions(self, side: Side, start: int, end: int, device: torch.device) -> Tensor:
        """The positions [end - start] of the tokens start .. end-1 of a sequence."""
        return torch.arange(start, end, device=device)

    def span(self, start: int, end: int) -> Span | None:
        """Those positions as a range of integers; None where a scheme has its own `positions`."""
        return (start, end) if type(self).positions is PositionScheme.positions else None

    def max_length(self, side: Side) -> int | None:
        """The longest sequence of this side in tokens; None where there is no bound."""
        return self.bounds[side].length if side in self.bounds else None


class InputScheme(PositionScheme):
    """Hands out what is added to the embeddings of each side; both may share one module."""

    def __init__(self, source: InputPosition, target: InputPosition) -> None:
        super().__init__()
        self.source, self.target = source, target

    def input(self, side: Side) -> InputPosition:
        return self.source if side == "source" else self.target

    def encoder_only(self) -> None:
        self.target = self.no_input


class AttentionScheme(PositionScheme):
    """Hands out given modules: one for each layer of a stack, or a single one for all of them."""

    def __init__(
        self,
        *,
        encoder: Iterable[AttentionPosition] = (),
        decoder: Iterable[AttentionPosition] = (),
        cross: Iterable[AttentionPosition] = (),
    ) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(encoder)
        self.decoder = nn.ModuleList(decoder)
        self.cross = nn.ModuleList(cross)

    def attention(self, kind: Kind, layer: int) -> AttentionPosition:
        modules = {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}[kind]
        if not len(modules):
            return self.no_attention
        return cast(AttentionPosition, modules[0 if len(modules) == 1 else layer])

    def encoder_only(self) -> None:
        self.decoder, self.cross = nn.ModuleList(), nn.ModuleList()


class SchemeAround(PositionScheme):
    """Hands out what `inner` does; a subclass changes a part of that."""

    def __init__(self, inner: PositionScheme) -> None:
        super().__init__()
        self.inner = inner

    def input(self, side: Side) -> InputPosition:
        return self.inner.input(side)

    def attention(self, kind: Kind, layer: int) -> AttentionPosition:
        return self.inner.attention(kind, layer)


class SharedScheme(AttentionScheme):
    """A module for each layer of both self-attentions, around one that a stack's layers share.

    `n_layers` and `shared` are the encoder's and the decoder's. Each of `shared`, which may be
    None, is saved once, as `<stack>_<name>`.
    """

    def __init__(
        self,
        *,
        name: str,
        n_layers: tuple[int, int],
        shared: tuple[nn.Module | None, nn.Module | None],
        layer: Callable[[Any], AttentionPosition],
    ) -> None:
        encoder, decoder = ([layer(each) for _ in range(n)] for n, each in zip(n_layers, shared))
        super().__init__(encoder=encoder, decoder=decoder)
        self.names = (f"encoder_{name}", f"decoder_{name}")
        for stack, each in zip(self.names, shared):
            setattr(self, stack, each)

    def encoder_only(self) -> None:
        super().encoder_only()
        setattr(self, self.names[1], None)
