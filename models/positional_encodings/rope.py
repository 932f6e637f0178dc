"""RoPE: q and k turn by an angle that grows with position; their product knows the distance alone.

Su et al. 2021, "RoFormer", equations 14-16 and 34.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from models.positional_encodings.base import AttentionPosition, Role, exact_dtype

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
    steps = torch.arange(0, dim, 2, dtype=exact_dtype(dtype), device=device)
    return torch.pow(base, -steps / dim).to(dtype)


def rotate(
    x: Tensor,
    positions: Tensor,
    theta: Tensor,
    *,
    layout: Layout = "interleaved",
    magnitude: float | Tensor = 1.0,
    form: Form = "auto",
) -> Tensor:
    """Turn pair i of every token of x [B,H,T,Dh], at positions [T], by position * theta_i.

    Args:
        theta: radians a position, [Dh/2], or [...,1,Dh/2] by head or by row.
        layout, magnitude: see `rotate_real`.
        form: "auto" is the faster one, which on a CPU is the complex one where the pairs lie side
            by side; torch's compiler takes real numbers alone.
    """
    exact = exact_dtype(theta.dtype)
    angles = positions.to(exact)[:, None] * theta.to(exact)
    if form == "auto":
        plain = x.device.type == "cpu" and not torch.compiler.is_compiling()
        form = "complex" if plain and layout == "interleaved" else "real"
    turn = rotate_real if form == "real" else rotate_complex
    return turn(x, angles, layout=layout, magnitude=magnitude)


def rotate_real(
    x: Tensor, angles: Tensor, *, layout: Layout = "interleaved", magnitude: float | Tensor = 1.0
) -> Tensor:
    """Turn the pairs of x [B,H,T,Dh]: (a, b) -> magnitude (a cos - b sin, a sin + b cos).

    Pair i is (x[2i], x[2i+1]) in the interleaved layout and (x[i], x[i + Dh/2]) in the half layout.
    angles and magnitude broadcast to [B,H,T,Dh/2]. Computed in the finer type of x and angles,
    float32 or better; returned in x's type.
    """
    angles = angles.to(exact_dtype(angles.dtype))
    a, b = _pairs(x.to(torch.promote_types(x.dtype, angles.dtype)), layout)
    cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
    return _unpair(a * cos - b * sin, a * sin + b * cos, layout).to(x.dtype)


def rotate_complex(
    x: Tensor, angles: Tensor, *, layout: Layout = "interleaved", magnitude: float | Tensor = 1.0
) -> Tensor:
    """`rotate_real` as a product of complex numbers: (a + ib) magnitude exp(i angle)."""
    angles = angles.to(exact_dtype(angles.dtype))
    exact = x.to(torch.promote_types(x.dtype, angles.dtype))
    factors = torch.polar(magnitude * torch.ones_like(angles), angles)
    if layout == "interleaved":
        turned = torch.view_as_complex(exact.unflatten(-1, (-1, 2))) * factors
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)
    turned = torch.complex(*_pairs(exact, layout)) * factors
    return _unpair(turned.real, turned.imag, layout).to(x.dtype)


def _pairs(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1) if layout == "interleaved" else x.chunk(2, dim=-1)
    return a, b


def _unpair(a: Tensor, b: Tensor, layout: Layout) -> Tensor:
    if layout == "interleaved":
        return torch.stack((a, b), dim=-1).flatten(-2)
    return torch.cat((a, b), dim=-1)


@dataclass(frozen=True)
class RopeScaling:
    """Another function in place of `inverse_frequencies`: `rope_scaling.py` has some.

    magnitude multiplies the rotated q and the rotated k, so the logits by its square.
    """

    frequencies: Callable[..., Tensor] = inverse_frequencies
    magnitude: float = 1.0


NO_SCALING = RopeScaling()


class Rotary(AttentionPosition):
    """Rotates q and k after projection and head split.

    rope_dim="head": every head has the same wavelengths, as in the paper. rope_dim="model": head h
    has the h-th slice of the frequencies of d_model, as the original project did by rotating before
    the split. layout and form: see `rotate`.
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
        layout, form = self.layout, self.form
        return rotate(x, positions, by_head, layout=layout, magnitude=magnitude, form=form)

    def rotate(self, x: Tensor, positions: Tensor, role: Role) -> Tensor:
        dim, exact = self.rotated_dim(x), exact_dtype(x.dtype)
        frequencies = self.scaling.frequencies
        theta = frequencies(dim, base=self.base, dtype=exact, device=positions.device)
        return self.turn(x, positions, theta, self.scaling.magnitude)
