"""SHAPE (Kiyono et al. 2021): in training a sentence begins at a random position.

Every sentence draws an offset k from 0 .. K, source and target each their own, and its token t
stands at t + k. Absolute positions then carry no information, and the model learns to look at
differences. Outside training k = 0.
"""

import torch
from torch import Tensor

from configs.positions import SIDES
from models.positional_encodings.base import InputPosition, InputScheme, PositionScheme


def shifted(positions: Tensor, n_rows: int, max_shift: int) -> Tensor:
    """positions [T] -> [n_rows,T], each row later by a draw of its own from 0 .. max_shift."""
    return positions + torch.randint(max_shift + 1, (n_rows, 1), device=positions.device)


class ShiftedInput(InputPosition):
    """Adds what `inner` does, in training at shifted positions."""

    def __init__(self, inner: InputPosition, max_shift: int) -> None:
        super().__init__()
        self._inner = (inner,)  # hidden from the registry: its scheme saves it
        self.max_shift = max_shift

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        if self.training:
            positions = shifted(positions, len(x), self.max_shift)
        return self._inner[0](x, positions)


class ShapeScheme(InputScheme):
    """A scheme that is added to the embeddings, shifted."""

    def __init__(self, inner: PositionScheme, max_shift: int) -> None:
        super().__init__(*(ShiftedInput(inner.input(side), max_shift) for side in SIDES))
        self.inner = inner
