"""The output projection of a search: one weight, met by few rows at a time, many times over."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def search_projection(weight: Tensor, rows: int) -> Callable[[Tensor], Tensor]:
    """hidden [...,D] -> logits [...,V] under weight [V,D], made for about `rows` hidden states at once.

    torch's plain product is slow for few rows on a CPU (a quarter of a greedy step): oneDNN's, with the weight laid out
    for it beforehand, takes half as long. It serves float32 on a CPU without gradients; elsewhere the plain product.
    """
    plain = weight.device.type != "cpu" or weight.dtype != torch.float32 or torch.is_autocast_enabled("cpu")
    if plain or rows < 2 or not torch.backends.mkldnn.is_available() or torch.is_grad_enabled():
        return lambda hidden: F.linear(hidden, weight)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)

    def project(hidden: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(hidden.contiguous(), packed, None, "none", [], "")

    return project
