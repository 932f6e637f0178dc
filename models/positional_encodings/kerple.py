"""KERPLE (Chi et al. 2022): a penalty by a kernel of the distance, two trained numbers a head.

The paper has causal models; here |i - j| serves both sides.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from models.positional_encodings.base import AttentionPosition, Places, exact_dtype
from models.positional_encodings.relative import by_distance

# no parameter acts with a smaller value: a kernel of 0 has no gradient, and the head would be lost
LEAST = 1e-2
GREATEST_POWER = 2.0


def _prepare(distance: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
    """|distance|, and the parameters [H] shaped to broadcast over it, in one type."""
    dtype = exact_dtype(torch.promote_types(parameters[0].dtype, parameters[1].dtype))
    shape = (-1, *[1] * distance.dim())
    return distance.abs().to(dtype), *(p.to(dtype).view(shape) for p in parameters)


def kerple_log_bias(distance: Tensor, p: Tensor, a: Tensor) -> Tensor:
    """-p ln(1 + a |distance|), in float32 or better.

    distance i - j [...]; p and a [H], both positive -> [H,...].
    """
    d, p, a = _prepare(distance, p, a)
    return -p * torch.log1p(a * d)


def kerple_power_bias(distance: Tensor, a: Tensor, p: Tensor) -> Tensor:
    """-a |distance|^p, in float32 or better.

    distance i - j [...]; a [H] > 0, p [H] in (0, 2] -> [H,...]. The gradient by p at distance 0 is
    0, its limit, not the NaN of 0 ln 0.
    """
    d, a, p = _prepare(distance, a, p)
    return -a * d**p


class _Within(torch.autograd.Function):
    """x.clamp(low, high); outside, a gradient passes where its descent leads back inside.

    A plain clamp would hold a parameter outside forever, and clamping the parameter itself would
    change it in a forward pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,), (grad,) = ctx.saved_tensors, grads
        outward = ((x < ctx.low) & (grad > 0)) | ((x > ctx.high) & (grad < 0))
        return grad.masked_fill(outward, 0), None, None


def kept_within(x: Tensor, low: float, high: float = torch.inf) -> Tensor:
    """x clamped to low .. high; from outside, gradient descent on x can lead back inside only.

    Under torch.compile every gradient passes: x may stray outside, but its value stays clamped.
    """
    if torch.compiler.is_compiling():  # the compiler of torch 2.13 fails at a custom gradient
        return x + (x.clamp(low, high) - x).detach()
    return _Within.apply(x, low, high)


class Kerple(AttentionPosition):
    """The logarithmic or the power kernel, with p and a [H] of its own.

    The paper draws p from 0 .. 2 and a from 0 .. 1. Here they start at the centres of H equal parts
    of these ranges, so that even few heads range from almost no penalty to a steep one. As in the
    paper's code, no parameter acts with less than 0.01, and no power with more than 2.
    """

    def __init__(self, *, n_heads: int, form: Literal["log", "power"] = "log") -> None:
        super().__init__()
        self.form = form
        centres = (torch.arange(n_heads) + 0.5) / n_heads
        self.p = nn.Parameter(2 * centres)
        self.a = nn.Parameter(centres.clone())

    def bias(self, places: Places) -> Tensor:
        a = kept_within(self.a, LEAST)
        if self.form == "log":
            p = kept_within(self.p, LEAST)
            return by_distance(places, lambda distance: kerple_log_bias(distance, p, a))
        power = kept_within(self.p, LEAST, GREATEST_POWER)
        return by_distance(places, lambda distance: kerple_power_bias(distance, a, power))
