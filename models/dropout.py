"""Dropout of single elements, cheap to draw, and of whole tokens or sentences."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEVELS = 1 << 16


class Dropout(nn.Module):
    """nn.Dropout (Srivastava et al. 2014, inverted scaling), with fewer draws on a CPU.

    On a CPU torch draws a Bernoulli number for each element, one by one. Here one 64-bit draw
    decides on four elements, with p in steps of 1/65536. torch's own kernel serves on other devices
    and under torch.compile, which does not support such draws.
    Raises ValueError for p outside [0, 1).
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout p = {p}: allowed: 0 <= p < 1")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return F.dropout(x, self.p, training=True)
        n = x.numel()
        n_dropped = min(round(self.p * _LEVELS), _LEVELS - 1)
        draws = torch.empty((n + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        # 1 or 0, in place: a comparison in bool, and its conversion, take twice as long.
        keep = draws.view(torch.int16)[:n].view(x.shape).ge_(n_dropped - _LEVELS // 2)
        scale = _LEVELS / (_LEVELS - n_dropped)
        if x.dtype.itemsize == 2:  # the bits of the scale, or of 0
            bits = torch.tensor(scale, dtype=x.dtype).view(torch.int16).item()
            return x * keep.mul_(bits).view(x.dtype)
        return x * keep.to(x.dtype).mul_(scale)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class JointDropout(Dropout):
    """Dropout that keeps or drops together all elements along the last `shared` dimensions.

    Of x [B,T,D], shared=1 drops tokens and shared=2 sentences. What is kept is divided by 1 - p in
    training, so that evaluation needs no change; nothing is drawn for p = 0. A dropped branch
    is multiplied by 0: it keeps its place in the graph, and every parameter its gradient.
    """

    def __init__(self, p: float, *, shared: int) -> None:
        super().__init__(p)
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        keep = torch.rand(x.shape[: -self.shared], device=x.device) >= self.p
        return x * (keep.to(x.dtype) / (1 - self.p))[(..., *[None] * self.shared)]

    def extra_repr(self) -> str:
        return f"p={self.p}, shared={self.shared}"
