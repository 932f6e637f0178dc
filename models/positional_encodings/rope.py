"""Rotary positions (Su et al. 2021, "RoFormer", equations 14-16 and 34): q and k turn by an angle that grows with
position, so that their product depends on the distance alone."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from models.positional_encodings.base import AttentionPosition, Kind, PositionScheme


def inverse_frequencies(
    dim: int, *, base: float = 10000.0, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Tensor:
    """theta_i = base^(-2i/dim) for i = 0 .. dim/2 - 1, as [dim/2]. Raises ValueError for an odd dim."""
    if dim % 2:
        raise ValueError(f"a rotation turns pairs of dimensions: dim = {dim} must be even")
    return torch.pow(base, -torch.arange(0, dim, 2, dtype=dtype, device=device) / dim)


def rotate_real(x: Tensor, angles: Tensor) -> Tensor:
    """Turn the pairs (x[2i], x[2i+1]) by angles[..., i]: (a cos - b sin, a sin + b cos).

    x [B,H,T,Dh], angles [T,Dh/2] or [H,T,Dh/2] in float32 or better -> [B,H,T,Dh] in x's type.
    """
    a, b = x.unflatten(-1, (-1, 2)).to(angles.dtype).unbind(-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2).to(x.dtype)


def rotate_complex(x: Tensor, angles: Tensor) -> Tensor:
    """The same rotation as `rotate_real`, as a product with exp(i angle) of complex numbers."""
    pairs = torch.view_as_complex(x.to(angles.dtype).unflatten(-1, (-1, 2)))
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


class Rotary(AttentionPosition):
    """Rotates q and k after projection and head split.

    rope_dim="head": every head has the same wavelengths, as in the paper. rope_dim="model": the frequencies of one
    rotation of d_model before the split; head h then has the h-th slice of them, as the original project did.
    """

    def __init__(self, *, base: float, form: Literal["real", "complex"], rope_dim: Literal["head", "model"]) -> None:
        super().__init__()
        self.base = base
        self.rope_dim = rope_dim
        self.apply_rotation = rotate_real if form == "real" else rotate_complex

    def angles(self, positions: Tensor, n_heads: int, head_dim: int, dtype: torch.dtype) -> Tensor:
        """positions [T] -> [T,Dh/2], or [H,T,Dh/2] for rope_dim="model"."""
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        dim = head_dim if self.rope_dim == "head" else n_heads * head_dim
        theta = inverse_frequencies(dim, base=self.base, dtype=exact, device=positions.device)
        if self.rope_dim == "model":
            theta = theta.view(n_heads, 1, head_dim // 2)
        return positions.to(exact)[:, None] * theta

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return self.apply_rotation(x, self.angles(positions, x.shape[1], x.shape[3], x.dtype))


class RopeScheme(PositionScheme):
    """Rotation in both self-attentions; in cross-attention only where the config asks for it."""

    def __init__(
        self,
        *,
        base: float,
        form: Literal["real", "complex"],
        rope_dim: Literal["head", "model"],
        cross: bool,
    ) -> None:
        super().__init__()
        self.rotary = Rotary(base=base, form=form, rope_dim=rope_dim)
        self.cross = cross

    def attention(self, kind: Kind, layer: int) -> AttentionPosition:
        return self.rotary if kind != "cross" or self.cross else self.no_attention
