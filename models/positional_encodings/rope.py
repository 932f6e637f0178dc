"""RoPE: q and k turn by an angle that grows with position; q.k depends on the distance alone.

Su et al. 2021, "RoFormer", equations 14-16 and 34.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.positional_encodings.base import (
    AttentionPosition,
    ExactParameters,
    Heads,
    Places,
    Role,
    exact_dtype,
)

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

    Do not write to it: equal calls get the same tensor. Raises ValueError for an odd dim.
    """
    if dim % 2:
        raise ValueError(f"a rotation turns pairs of dimensions: dim = {dim} must be even")
    powers = _powers if torch.compiler.is_compiling() else _held_powers
    return powers(dim, base, dtype, device)


def _powers(dim: int, base: float, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    steps = torch.arange(0, dim, 2, dtype=exact_dtype(dtype), device=device)
    return torch.pow(float(base), steps / -dim).to(dtype)


@lru_cache(maxsize=64)
def _held_powers(dim: int, base: float, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    with torch.inference_mode(False):  # a training may use it after the first caller
        return _powers(dim, base, dtype, device)


def fastest(theta: Tensor, share: float) -> Tensor:
    """theta [...,n], fast to slow, with 0 for all but the first floor(share n) (p-RoPE).

    Barbero et al. 2024, "Round and Round We Go! What makes rotary positional encodings useful?"
    """
    n = theta.shape[-1]
    turning = int(share * n + 1e-9)  # 0.58 * 50 is less than 29
    return theta if turning == n else F.pad(theta[..., :turning], (0, n - turning))


def softly_clipped(theta: Tensor, share: float) -> Tensor:
    """theta [...,n], fast to slow, with its last c = floor(share n) fading out to 0 (clipped RoPE).

    The j-th of them, j = 0 .. c-1, is multiplied by (1 + cos(pi j / (c-1))) / 2, as in the program
    of Li et al. 2026, "CoPE: Clipped RoPE as A Scalable Free Lunch for Long Context LLMs", section
    4.2: the first stays as it is and the last is at rest. One alone stays as it is.
    """
    n = theta.shape[-1]
    fading = int(share * n + 1e-9)
    steps = torch.linspace(0, math.pi, fading, dtype=theta.dtype, device=theta.device)
    return theta * F.pad((1 + steps.cos()) / 2, (n - fading, 0), value=1.0)


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
        layout, magnitude: see `rotate_by`.
        form: "auto" is the faster one: complex on a CPU where the pairs lie side by side, else
            real. torch's compiler takes real numbers alone.
    """
    exact = exact_dtype(theta.dtype)
    angles = positions.to(exact)[:, None] * theta.to(exact)
    return rotate_by(x, angles, layout=layout, magnitude=magnitude, form=form_for(x, form, layout))


def form_for(x: Tensor, form: Form, layout: Layout) -> Form:
    """The form, "real" or "complex", that "auto" stands for."""
    if form != "auto":
        return form
    plain = x.device.type == "cpu" and not torch.compiler.is_compiling()
    return "complex" if plain and layout == "interleaved" else "real"


def rotate_by(
    x: Tensor,
    angles: Tensor,
    *,
    layout: Layout = "interleaved",
    magnitude: float | Tensor = 1.0,
    form: Form = "real",
) -> Tensor:
    """Turn the pairs of x [B,H,T,Dh]: (a, b) -> magnitude (a cos - b sin, a sin + b cos).

    Pair i is (x[2i], x[2i+1]) in the interleaved layout and (x[i], x[i + Dh/2]) in the half layout.
    angles and magnitude broadcast to [B,H,T,Dh/2]. Computed in the finer type of x and angles,
    float32 or better; returned in x's type. form="complex" multiplies a + ib by magnitude
    exp(i angle).
    """
    return turned(x, rotation(angles, magnitude, layout, form), layout)


def rotation(angles: Tensor, magnitude: float | Tensor, layout: Layout, form: Form) -> Tensor:
    """The factor for `turned` by angles [...,Dh/2]: complex numbers of that shape, or matrices."""
    angles = angles.to(exact_dtype(angles.dtype))
    if form == "complex":
        return torch.polar(magnitude * torch.ones_like(angles), angles)
    cos, sin = angles.cos(), angles.sin()
    if isinstance(magnitude, Tensor) or magnitude != 1:
        cos, sin = cos * magnitude, sin * magnitude
    return matrices(cos, sin, layout)


def matrices(cos: Tensor, sin: Tensor, layout: Layout = "interleaved") -> Tensor:
    """cos and sin [...,Dh/2] -> real matrices for `turned`, [...,Dh/2,2,2].

    Row i is what element i of a pair adds to both. They lie in memory as the pairs of `layout` do.
    """
    dim = -1 if layout == "interleaved" else -2
    rows = torch.stack((cos, sin, -sin, cos), dim).unflatten(dim, (2, 2))
    return rows if layout == "interleaved" else rows.movedim(-1, -3)


def turned(x: Tensor, by: Tensor, layout: Layout) -> Tensor:
    """x [...,Dh] with its pairs turned by a `rotation`, which broadcasts to [...,Dh/2]."""
    dim, size = (-1, (-1, 2)) if layout == "interleaved" else (-2, (2, -1))
    exact = torch.promote_types(x.dtype, by.real.dtype)
    pairs = x.unflatten(-1, size)
    if by.is_complex():
        plain = layout == "interleaved"
        numbers = torch.view_as_complex if plain else lambda x: torch.complex(*x.unbind(dim))
        out = torch.view_as_real(numbers(pairs.to(exact)) * by).to(x.dtype)
        return (out if plain else out.mT).flatten(-2)
    # On a CPU it is faster to take each half of a head by itself.
    in_halves = layout == "half" and x.device.type == "cpu"
    if in_halves or by.requires_grad or torch.compiler.is_compiling():
        a, b = pairs.to(exact).unbind(dim)
        by = by.flatten(-2)
        out = torch.stack((a * by[..., 0] + b * by[..., 2], a * by[..., 1] + b * by[..., 3]), dim)
        return out.to(x.dtype).flatten(-2)
    pairs = pairs if layout == "interleaved" else pairs.mT
    out = _Turned.apply(pairs, by)
    return (out if layout == "interleaved" else out.mT).flatten(-2)


class _Turned(torch.autograd.Function):
    """Pairs [...,2] times matrices [...,2,2]: two operations each way, whatever the types."""

    @staticmethod
    def forward(ctx: Any, pairs: Tensor, by: Tensor) -> Tensor:
        ctx.save_for_backward(by)
        first = pairs[..., :1] * by[..., 0, :]  # in the finer type
        out = torch.empty_like(pairs)
        return torch.addcmul(first, pairs[..., 1:], by[..., 1, :], out=out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (by,) = ctx.saved_tensors
        return _Turned.apply(grad, by.mT), None


class Rotary(AttentionPosition):
    """Rotates q and k after projection and head split.

    rope_dim="head": every head has the same wavelengths, as in the paper. rope_dim="model": head h
    has the h-th slice of the frequencies of d_model, as the original project did by rotating before
    the split. share: see `fastest`; clipped: see `softly_clipped`; layout and form: see `rotate`.

    stretch maps the frequencies [dim/2] of the paper to those in use; `rope_scaling.py` has some
    rules. gain multiplies the rotated q and the rotated k, so the logits by its square.
    """

    def __init__(
        self,
        *,
        base: float,
        form: Form,
        rope_dim: Literal["head", "model"],
        layout: Layout = "interleaved",
        stretch: Callable[[Tensor], Tensor] | None = None,  # no lambda: models are pickled
        gain: float = 1.0,
        share: float = 1.0,
        clipped: float = 0.0,
    ) -> None:
        super().__init__()
        self.base = base
        self.share = share
        self.clipped = clipped
        self.rope_dim = rope_dim
        self.layout: Layout = layout
        self.stretch = stretch
        self.gain = gain
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

    def clip(self, theta: Tensor) -> Tensor:
        """theta [...,n], fast to slow, with the slow ones at rest or slower, as configured."""
        theta = fastest(theta, self.share)
        return softly_clipped(theta, self.clipped) if self.clipped else theta

    def frequencies(self, dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The frequencies of dim dimensions, [dim/2], 0 where a pair does not turn."""
        exact = exact_dtype(dtype)
        theta = inverse_frequencies(dim, base=self.base, dtype=exact, device=device)
        return self.clip(self.stretch(theta) if self.stretch else theta).to(dtype)

    def theta(self, x: Tensor) -> Tensor:
        """The frequencies of x [B,H,T,Dh], [dim/2]."""
        return self.frequencies(self.rotated_dim(x), exact_dtype(x.dtype), x.device)

    def magnitude(self, x: Tensor, positions: Tensor, role: Role) -> float | Tensor:
        """The factor of a rotated q or k [B,H,T,Dh] at positions [T]: [T,Dh/2] or one number."""
        return self.gain

    def rotate(self, x: Tensor, positions: Tensor, role: Role) -> Tensor:
        return self.turn(x, positions, self.theta(x), self.magnitude(x, positions, role))

    def rotate_heads(self, qkv: Tensor, places: Places, state: Tensor | None = None) -> Heads:
        """In one product, whose factor the layers of a stack share; v turns by no angle."""

        if self.layout == "half" and self.form == "auto" and qkv.device.type == "cpu":
            return super().rotate_heads(qkv, places)  # the faster way there

        def make() -> Tensor:
            x, at = qkv[:, :, 0].transpose(1, 2), places.q_positions
            theta = self.theta(x).unflatten(-1, (-1, x.shape[3] // 2))  # [1 or H,Dh/2]
            angles = at[:, None, None] * theta
            angles = F.pad(angles[:, None].expand(-1, 2, -1, -1), (0, 0, 0, 0, 0, 1))
            magnitude, k = self.magnitude(x, at, "query"), self.magnitude(x, at, "key")
            if isinstance(k, Tensor) or k != 1:
                ones = torch.ones_like(angles[:, 0, 0])
                magnitude = torch.stack((magnitude * ones, k * ones, ones), dim=1)[:, :, None]
            form = form_for(x, self.form, self.layout)
            return rotation(angles, magnitude, self.layout, form)

        by = places.once(("rotation", id(self), exact_dtype(qkv.dtype)), make)
        q, k, v = (x.transpose(1, 2) for x in turned(qkv, by, self.layout).unbind(2))
        return q, k, v


class LearnedRotary(ExactParameters, Rotary):
    """Rotary with a trained ln theta in every head, [H,Dh/2], which starts at the paper's.

    Takes the arguments of `Rotary` except stretch, gain and rope_dim.
    """

    def __init__(self, *, n_heads: int, head_dim: int, **rotation: Any) -> None:
        super().__init__(rope_dim="head", **rotation)
        start = inverse_frequencies(head_dim, base=self.base).log()
        self.log_theta = nn.Parameter(start.repeat(n_heads, 1))

    def theta(self, x: Tensor) -> Tensor:
        """The frequencies of x [B,H,T,Dh], head by head: [H*Dh/2]."""
        exact = exact_dtype(x.dtype)
        return self.clip(self.log_theta.to(exact).exp()).flatten()
