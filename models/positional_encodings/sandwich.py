"""Sandwich (Chi et al. 2023, "Dissecting Transformer Length Extrapolation via the Lens of Receptive
Field Analysis"): the product of two sinusoidal encodings, which depends on the distance alone, as a
fixed bias.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.positional_encodings.base import Places
from models.positional_encodings.relative import FixedBias, by_distance, exact_dtype


def _check(n_heads: int, width: int) -> None:
    if n_heads < 1:
        raise ValueError(f"n_heads = {n_heads} must be at least 1")
    if width < 2 or width % 2:
        raise ValueError(
            f"width = {width} must be even and positive: sines and cosines come in pairs"
        )


def sandwich_bias(
    distance: Tensor,
    n_heads: int,
    *,
    width: int = 128,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """(sum_{j=1..width/2} cos(distance base^(-2j/width)) - width/2) / (8h/H) for the heads h =
    1..H.

    distance i - j [...] -> [H,...] in dtype, float32 or better. 0 at distance 0 and never positive.
    width is the dimension of the sinusoids whose product this is, free of the model's. Raises
    ValueError for a width that is odd or less than 2 and for n_heads < 1.
    """
    _check(n_heads, width)
    dtype = exact_dtype(dtype)
    pairs = torch.arange(1, width // 2 + 1, dtype=dtype, device=distance.device)
    angles = distance.to(dtype)[..., None] * torch.pow(base, -2 * pairs / width)
    closeness = angles.cos().sum(-1) - width / 2
    heads = torch.arange(1, n_heads + 1, dtype=dtype, device=distance.device)
    return closeness / (8 * heads / n_heads).view(-1, *[1] * distance.dim())


class Sandwich(FixedBias):
    """The same at both sides of a query; the first head penalises distance most."""

    def __init__(self, *, n_heads: int, width: int = 128, base: float = 10000.0) -> None:
        super().__init__()
        _check(n_heads, width)
        self.n_heads = n_heads
        self.width = width
        self.base = base

    def bias(self, places: Places) -> Tensor:
        return by_distance(
            places,
            lambda distance: sandwich_bias(
                distance, self.n_heads, width=self.width, base=self.base, dtype=self.dtype
            ),
        )
