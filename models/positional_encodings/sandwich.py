"""Sandwich (Chi et al. 2023): the product of two sinusoidal encodings as a fixed bias."""

import torch
from torch import Tensor

from models.positional_encodings.base import AttentionPosition, Places, exact_dtype
from models.positional_encodings.relative import by_distance


def sandwich_bias(
    distance: Tensor,
    n_heads: int,
    *,
    width: int = 128,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """(sum_{j=1..width/2} cos(distance base^(-2j/width)) - width/2) / (8h/H) for heads h = 1..H.

    distance i - j [...] -> [H,...] in dtype, float32 or better. 0 at distance 0 and never positive.
    width, an even number, is that of the sinusoids, independent of the model's.
    """
    dtype = exact_dtype(dtype)
    pairs = torch.arange(1, width // 2 + 1, dtype=dtype, device=distance.device)
    angles = distance.to(dtype)[..., None] * torch.pow(base, -2 * pairs / width)
    closeness = angles.cos().sum(-1) - width / 2
    heads = torch.arange(1, n_heads + 1, dtype=dtype, device=distance.device)
    return closeness / (8 * heads / n_heads).view(-1, *[1] * distance.dim())


class Sandwich(AttentionPosition):
    """The same at both sides of a query; the first head penalises distance most."""

    def __init__(self, *, n_heads: int, width: int = 128, base: float = 10000.0) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.width = width
        self.base = base
        self.register_buffer("like", torch.zeros(()), persistent=False)  # of the model's type
        self.like: Tensor

    def bias(self, places: Places) -> Tensor:
        def values(distance: Tensor) -> Tensor:
            return sandwich_bias(
                distance, self.n_heads, width=self.width, base=self.base, dtype=self.like.dtype
            )

        return by_distance(places, values)
