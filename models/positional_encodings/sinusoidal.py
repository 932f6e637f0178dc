"""Fixed sinusoids added to the embeddings (Vaswani et al. 2017, "Attention Is All You Need", section 3.5)."""

from __future__ import annotations

import torch
from torch import Tensor

from models.positional_encodings.base import InputPosition, PositionScheme, Side


def sinusoid_table(positions: Tensor, d_model: int, *, base: float = 10000.0, dtype: torch.dtype) -> Tensor:
    """positions [T] -> [T, d_model]: PE[t, 2i] = sin(t base^(-2i/d_model)), PE[t, 2i+1] = cos of the same angle.

    Angles are taken in float32 or better whatever `dtype` is: bfloat16 cannot tell position 2047 from 2048.
    Raises ValueError for an odd d_model.
    """
    if d_model % 2:
        raise ValueError(f"d_model = {d_model} must be even")
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    exponents = torch.arange(0, d_model, 2, device=positions.device, dtype=exact) / d_model
    angles = positions.to(exact)[:, None] * torch.pow(base, -exponents)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(dtype)


class SinusoidalInput(InputPosition):
    """Adds the sinusoids of the given positions; computed when needed, so there is no table to outgrow."""

    def __init__(self, *, base: float) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + sinusoid_table(positions, x.shape[-1], base=self.base, dtype=x.dtype)


class SinusoidalScheme(PositionScheme):
    def __init__(self, *, base: float) -> None:
        super().__init__()
        self.sinusoids = SinusoidalInput(base=base)

    def input(self, side: Side) -> InputPosition:
        return self.sinusoids
