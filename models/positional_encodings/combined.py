"""Schemes made of two others: one for embeddings and one inside, or by stack, or by layer."""

from models.positional_encodings.base import (
    AttentionPosition,
    InputPosition,
    Kind,
    PositionScheme,
    Side,
)


class CombinedScheme(PositionScheme):
    """What `on_input` adds to the embeddings, and what `inside` does within attention."""

    def __init__(self, *, on_input: PositionScheme, inside: PositionScheme) -> None:
        super().__init__()
        self.on_input = on_input
        self.inside = inside

    def input(self, side: Side) -> InputPosition:
        return self.on_input.input(side)

    def attention(self, kind: Kind, layer: int) -> AttentionPosition:
        return self.inside.attention(kind, layer)


class PairedScheme(PositionScheme):
    """One scheme for encoder and source, another for decoder and target; cross-attention: none."""

    def __init__(self, *, encoder: PositionScheme, decoder: PositionScheme) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def input(self, side: Side) -> InputPosition:
        return (self.encoder if side == "source" else self.decoder).input(side)

    def attention(self, kind: Kind, layer: int) -> AttentionPosition:
        if kind == "cross":
            return self.no_attention
        return (self.encoder if kind == "encoder" else self.decoder).attention(kind, layer)


class InterleavedScheme(PositionScheme):
    """One scheme in every n-th layer of a stack, and another in the others.

    Each counts its own layers from 0. Yang et al. 2025 (RNoPE) have no positions in every n-th.
    """

    def __init__(self, *, others: PositionScheme, nth: PositionScheme, every: int) -> None:
        super().__init__()
        self.others = others
        self.nth = nth
        self.every = every

    def attention(self, kind: Kind, layer: int) -> AttentionPosition:
        n_nth, rest = divmod(layer + 1, self.every)
        if rest == 0:
            return self.nth.attention(kind, n_nth - 1)
        return self.others.attention(kind, layer - n_nth)
