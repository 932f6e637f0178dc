"""SSMax, scalable softmax (Nakanishi 2025): logits grow with the logarithm of the number of keys.

For a query that sees n keys, with logits z and a trained s for each head and layer:

    weight_j = n^(s z_j) / sum_l n^(s z_l) = softmax_j(s ln n z)

A softmax over more keys is flatter; s ln n makes up for it. s = 1/ln n gives the plain softmax.
"""

from typing import cast

import torch
from torch import Tensor, nn

from models.positional_encodings.base import (
    AttentionPosition,
    Heads,
    Kind,
    Places,
    PositionScheme,
    Role,
    SchemeAround,
    exact_dtype,
)


def ssmax_factor(s: Tensor, n_keys: Tensor) -> Tensor:
    """s ln n of s [H] and n_keys [Tq,1] or [B,1,Tq,1] -> [...,H,Tq,1], in float32 or better."""
    exact = exact_dtype(s.dtype)
    return s.to(exact)[:, None, None] * n_keys.to(exact).log()


class Ssmax(AttentionPosition):
    """One layer: what `inner` does, with all of its logits times s ln n."""

    inner: AttentionPosition

    def __init__(self, inner: AttentionPosition, *, n_heads: int, start: float) -> None:
        super().__init__()
        self.__dict__["inner"] = inner  # not among its modules: the scheme saves it, once
        self.needs_weights, self.widening = inner.needs_weights, inner.widening
        self.s = nn.Parameter(torch.full((n_heads,), float(start)))

    def factor(self, places: Places) -> Tensor:
        return places.once(("ssmax", id(self)), lambda: ssmax_factor(self.s, places.n_visible))

    def rotate(self, x: Tensor, positions: Tensor, role: Role) -> Tensor:
        return self.inner.rotate(x, positions, role)

    def rotate_heads(self, qkv: Tensor, places: Places, state: Tensor | None = None) -> Heads:
        return self.inner.rotate_heads(qkv, places, state)

    def logit_scale(self, head_dim: int, places: Places) -> Tensor:
        return self.factor(places) * self.inner.logit_scale(head_dim, places)

    def bias(self, places: Places) -> Tensor | None:
        inner = self.inner
        bias = places.once(("bias", id(inner)), lambda: inner.bias(places))
        return None if bias is None else self.factor(places) * bias

    def token_state(self, x: Tensor, last: Tensor | float = 0.0) -> Tensor | None:
        return self.inner.token_state(x, last)

    def logit_term(
        self, q: Tensor, k: Tensor, places: Places, state: Tensor | None
    ) -> Tensor | None:
        term = self.inner.logit_term(q, k, places, state)
        return None if term is None else self.factor(places) * term

    def value_term(self, weights: Tensor, places: Places) -> Tensor:
        return self.inner.value_term(weights, places)


class SsmaxScheme(SchemeAround):
    """Any scheme, with SSMax in both self-attentions. n_layers: of encoder and decoder."""

    def __init__(
        self, inner: PositionScheme, *, n_layers: tuple[int, int], n_heads: int, start: float
    ) -> None:
        super().__init__(inner)

        def modules(kind: Kind, n: int) -> nn.ModuleList:
            layers = (inner.attention(kind, i) for i in range(n))
            return nn.ModuleList(Ssmax(layer, n_heads=n_heads, start=start) for layer in layers)

        self.encoder = modules("encoder", n_layers[0])
        self.decoder = modules("decoder", n_layers[1])

    def attention(self, kind: Kind, layer: int) -> AttentionPosition:
        if kind == "cross":
            return super().attention(kind, layer)
        return cast(AttentionPosition, (self.encoder if kind == "encoder" else self.decoder)[layer])
