"""Randomized positions (Ruoss et al. 2023): increasing numbers from a long range, not 0, 1, 2..."""

import torch
from torch import Tensor

from models.positional_encodings.base import PositionScheme, SchemeAround, Side


def draw_positions(n: int, spread: int, generator: torch.Generator | None = None) -> Tensor:
    """n different positions from 0 .. spread-1 in increasing order, [n], every choice equally
    likely.

    Raises ValueError for n > spread.
    """
    if n > spread:
        raise ValueError(f"there are {spread} positions to draw from, not {n}")
    return torch.randperm(spread, generator=generator)[:n].sort().values


class RandomizedScheme(SchemeAround):
    """Feeds drawn positions to the modules of any scheme.

    In training, each forward pass draws anew for all rows of the batch. The paper draws as many
    positions as the sequence has tokens. A decoder does not know how long its sentence will become:
    in evaluation position t is number t of one fixed draw of max_positions. So that training sees
    such spacings too, it first draws a length n between that of the batch and max_positions, then
    n positions, and uses the smallest of them.
    """

    def __init__(self, inner: PositionScheme, *, spread: int, max_positions: int) -> None:
        super().__init__(inner)
        self.spread = spread
        self.max_positions = max_positions
        fixed = draw_positions(max_positions, spread, torch.Generator().manual_seed(0))
        self.register_buffer("fixed", fixed, persistent=False)
        self.fixed: Tensor

    def positions(self, side: Side, start: int, end: int, device: torch.device) -> Tensor:
        """Raises ValueError beyond max_positions."""
        if end > self.max_positions:
            raise ValueError(
                f"token {end} is beyond the {self.max_positions} positions of a sequence"
            )
        if not self.training:
            return self.fixed[start:end].to(device)
        n = int(torch.randint(end, self.max_positions + 1, ()))
        return draw_positions(n, self.spread)[start:end].to(device)
