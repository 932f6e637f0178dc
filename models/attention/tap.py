"""Records attention weights where a caller asks for them."""

from collections.abc import Collection

import torch
from torch import Tensor

from models.positional_encodings.base import Kind


class AttentionTap:
    """Collects the weights of every attention that a forward pass hands it to.

    Where nobody asks for weights, None is passed and nothing is allocated.
    """

    def __init__(self, kinds: Collection[Kind] = ("encoder", "decoder", "cross")) -> None:
        self.kinds = kinds  # whose weights are kept
        self._records: dict[tuple[Kind, int], Tensor] = {}

    def record(self, kind: Kind, layer: int, weights: Tensor) -> None:
        """weights [B,H,Tq,Tk] before dropout."""
        if kind in self.kinds:
            self._records[kind, layer] = weights.detach()

    def maps(self, kind: Kind) -> Tensor:
        """The weights of all layers, [L,B,H,Tq,Tk]."""
        layers = sorted(layer for recorded, layer in self._records if recorded == kind)
        return torch.stack([self._records[kind, layer] for layer in layers])
