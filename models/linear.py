"""Linear maps, and the same for the few rows of a search step: one weight met again and again."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

_FEW, _SOME = 64, 256  # rows: of any weight; of one of at least _LARGE numbers, such as the output projection
_LARGE = 1_000_000
_WORTH = 2_000_000  # multiplications: below them oneDNN takes longer to begin than torch to finish

# A weight laid out for oneDNN, with the place and the version of the weight that it was made of.
_laid_out = WeakTensorKeyDictionary()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [...,I] -> x weight^T + bias, [...,O], for weight [O,I] and bias [O].

    A search meets the weights with few rows, cold in the cache, and torch's product on a CPU then spends most of its
    time in fetching them: oneDNN's, with the weight laid out for it once, takes two thirds of the time. It serves
    float32 on a CPU without gradients.
    """
    rows = x.shape[:-1].numel()
    worth = rows * weight.numel() >= _WORTH and rows <= (_SOME if weight.numel() >= _LARGE else _FEW)
    if not worth or not _serves(x, weight):
        return F.linear(x, weight, bias)
    place = weight.data_ptr(), weight._version
    held = _laid_out.get(weight)
    if held is None or held[0] != place:
        held = place, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 32)
        _laid_out[weight] = held
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), held[1], bias, "none", [], "")


def _serves(x: Tensor, weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not weight.is_inference()  # its changes are not counted
        and torch.backends.mkldnn.is_available()
    )


class Linear(nn.Linear):
    """nn.Linear by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)
