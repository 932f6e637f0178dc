"""Rotary positions (Su et al. 2021, "RoFormer", equations 14-16 and 34): q and k turn by an angle
that grows with position, so that their product depends on the distance alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from models.positional_encodings.base import AttentionPosition, Role

Layout = Literal["interleaved", "half"]
Form = Literal["auto", "real", "complex"]


def inverse_frequencies(
    dim: int,
    *,
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """theta_i = base^(-2i/dim) for i = 0 .. dim/2 - 1, as [dim/2], in radians a position.

    Raises ValueError for an odd dim.
    """
    if dim % 2:
        raise ValueError(f"a rotation turns pairs of dimensions: dim = {dim} must be even")
    return torch.pow(
        base, -torch.arange(0, dim, 2, dtype=angle_dtype(dtype), device=device) / dim
    ).to(dtype)


def angle_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which angles are taken for x of the given type: float32 or better."""
    return torch.promote_types(dtype, torch.float32)


def rotate(
    x: Tensor,
    positions: Tensor,
    theta: Tensor,
    *,
    layout: Layout = "interleaved",
    magnitude: float | Tensor = 1.0,
    form: Form = "auto",
) -> Tensor:
    """Turn pair i of every token of x [B,H,T,Dh], at positions [T], by position * theta_i:
    [B,H,T,Dh] in x's type.

    theta in radians a position: [Dh/2] (`inverse_frequencies`, or a scaling's), or [...,1,Dh/2] by
    head or by row. layout, magnitude and the error raised: see `rotate_real`. form "auto": the
    faster of the two, which on a CPU is the complex one where the pairs lie side by side; torch's
    compiler takes real numbers alone.
    """
    exact = angle_dtype(theta.dtype)
    angles = positions.to(exact)[:, None] * theta.to(exact)
    if form == "auto":
        plain = x.device.type == "cpu" and not torch.compiler.is_compiling()
        form = "complex" if plain and layout == "interleaved" else "real"
    turn = rotate_real if form == "real" else rotate_complex
    return turn(x, angles, layout=layout, magnitude=magnitude)


def rotate_real(
    x: Tensor, angles: Tensor, *, layout: Layout = "interleaved", magnitude: float | Tensor = 1.0
) -> Tensor:
    """Turn the pairs (a, b) of x by angles[..., i] and stretch them: magnitude (a cos - b sin, a
    sin + b cos).

    Pair i is (x[2i], x[2i+1]) in the interleaved layout and (x[i], x[i + Dh/2]) in the half layout.
    x [B,H,T,Dh]; angles, taken in float32 or better, which broadcast to [B,H,T,Dh/2]: [T,Dh/2] for
    all heads alike, [H,T,Dh/2] by head, [B,1,T,Dh/2] by row; magnitude a number or a tensor that
    broadcasts like angles
    -> [B,H,T,Dh] in x's type, computed in the finer type of x and angles. Raises ValueError for an
    unknown layout.
    """
    angles = angles.to(angle_dtype(angles.dtype))
    a, b = _pairs(x.to(torch.promote_types(x.dtype, angles.dtype)), layout)
    cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
    return _unpair(a * cos - b * sin, a * sin + b * cos, layout).to(x.dtype)


def rotate_complex(
    x: Tensor, angles: Tensor, *, layout: Layout = "interleaved", magnitude: float | Tensor = 1.0
) -> Tensor:
    """The same as `rotate_real`, as a product of complex numbers: (a + ib) magnitude exp(i angle)."""
    angles = angles.to(angle_dtype(angles.dtype))
    exact = x.to(torch.promote_types(x.dtype, angles.dtype))
    factors = torch.polar(magnitude * torch.ones_like(angles), angles)
    if layout == "interleaved":
        turned = torch.view_as_complex(exact.unflatten(-1, (-1, 2))) * factors
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)
    turned = torch.complex(*_pairs(exact, layout)) * factors
    return _unpair(turned.real, turned.imag, layout).to(x.dtype)


def _pairs(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    if layout == "interleaved":
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    elif layout == "half":
        a, b = x.chunk(2, dim=-1)
    else:
        raise ValueError(f"layout = {layout!r}: allowed: 'interleaved', 'half'")
    return a, b


def _unpair(a: Tensor, b: Tensor, layout: Layout) -> Tensor:
    if layout == "interleaved":
        return torch.stack((a, b), dim=-1).flatten(-2)
    return torch.cat((a, b), dim=-1)


@dataclass(frozen=True)
class RopeScaling:
    """What a scaling changes of a rotation; this one changes nothing, `rope_scaling.py` has those
    that do.

    magnitude multiplies the rotated q and the rotated k, so the logits by its square.
    """

    @property
    def magnitude(self) -> float:
        return 1.0

    def frequencies(
        self, dim: int, *, base: float, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """[dim/2], in place of `inverse_frequencies`."""
        return inverse_frequencies(dim, base=base, dtype=dtype, device=device)


NO_SCALING = RopeScaling()


class Rotary(AttentionPosition):
    """Rotates q and k after projection and head split.

    rope_dim="head": every head has the same wavelengths, as in the paper. rope_dim="model": the
    frequencies of one rotation of d_model before the split; head h then has the h-th slice of them,
    as the original project did. layout says which dimensions of a head make a pair, see
    `rotate_real`.
    """

    def __init__(
        self,
        *,
        base: float,
        form: Form,
        rope_dim: Literal["head", "model"],
        layout: Layout = "interleaved",
        scaling: RopeScaling = NO_SCALING,
    ) -> None:
        super().__init__()
        self.base = base
        self.rope_dim = rope_dim
        self.layout: Layout = layout
        self.scaling = scaling
        self.form: Form = form

    def rotated_dim(self, x: Tensor) -> int:
        """Over how many dimensions the frequencies of x [B,H,T,Dh] are spread."""
        return x.shape[3] if self.rope_dim == "head" else x.shape[1] * x.shape[3]

    def turn(
        self, x: Tensor, positions: Tensor, theta: Tensor, magnitude: float | Tensor = 1.0
    ) -> Tensor:
        """Rotate x [B,H,T,Dh] by positions [T] times theta [dim/2] or, by row, [B,dim/2]."""
        by_head = theta.unflatten(-1, (-1, 1, x.shape[3] // 2))  # [..., 1 or H, 1, Dh/2]
        return rotate(
            x, positions, by_head, layout=self.layout, magnitude=magnitude, form=self.form
        )

    def rotate(self, x: Tensor, positions: Tensor, role: Role) -> Tensor:
        theta = self.scaling.frequencies(
            self.rotated_dim(x), base=self.base, dtype=angle_dtype(x.dtype), device=positions.device
        )
        return self.turn(x, positions, theta, self.scaling.magnitude)
