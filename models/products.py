"""Products of float32 matrices on a CPU, by oneDNN where that is faster than torch's own library.

MKL, torch's library for float32 products, does not use AVX-512 on AMD's processors: oneDNN takes
half its time on Zen 5, and a little less than it in most products on Zen 4 (benchmarks/README.md).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from utils.machine import amd_family

_ZEN_5 = amd_family() >= 26
# Below so many multiplications MKL is the faster one.
_WORTH = 1_500_000 if _ZEN_5 else 16_000_000
FASTER = (
    amd_family() >= 25
    and torch.backends.mkldnn.is_available()
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a [...,I] @ b [I,O] -> [...,O], without a gradient."""
    if not by_onednn(a, b):
        return F.linear(a, b.t())
    if _ZEN_5 and a.dim() == 2 and len(a) > b.shape[1]:  # faster with the larger one last
        return onednn(b.t(), a).t()
    return onednn(a, b.t())


def by_onednn(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN computes a [...,I] @ b [I,O]: both float32 on a CPU, and large enough."""
    return (
        FASTER
        and a.dtype == b.dtype == torch.float32
        and a.device.type == b.device.type == "cpu"
        and a.numel() * b.shape[1] >= _WORTH
        and (_ZEN_5 or a.is_contiguous())  # it would copy others, and be no faster
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


def onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, then: str = "none") -> Tensor:
    """x [...,I] -> x weight^T + bias, [...,O], for weight [O,I], laid out for oneDNN or not.

    `then` may be oneDNN's name of an activation ("relu" turns NaN into 0).
    """
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, then, [], "")


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows, inputs = (each.reshape(-1, each.shape[-1]) for each in (grad, x))
        by_x, by_weight, by_bias = ctx.needs_input_grad
        return (
            product(grad, weight) if by_x else None,
            product(rows.t(), inputs) if by_weight else None,
            rows.sum(0) if by_bias else None,
        )


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [...,I] -> x weight^T + bias [...,O], weight [O,I]. Differentiable; by oneDNN only once."""
    if by_onednn(x, weight.t()):
        return _Affine.apply(x, weight, bias)
    return F.linear(x, weight, bias)
