"""How the layers of a stack begin where plain Xavier is not asked for: DeepNorm's gains, and
weights by depth.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.attention.multi_head import CrossAttention, SelfAttention
from models.transformer_backend import FeedForward


class DeepNorm(NamedTuple):
    """The constants of one stack: x counts alpha times in a sum, and the weights of branches begin
    with gain beta.
    """

    alpha: float
    beta: float


def deepnorm_constants(n_encoder_layers: int, n_decoder_layers: int) -> tuple[DeepNorm, DeepNorm]:
    """Of encoder and decoder (Wang et al. 2022, DeepNet, figure 2, "encoder-decoder")."""
    n, m = n_encoder_layers, n_decoder_layers
    depth = (n**4 * m) ** (1 / 16)
    return DeepNorm(0.81 * depth, 0.87 / depth), DeepNorm((3 * m) ** 0.25, (12 * m) ** -0.25)


@torch.no_grad()
def initialise_deepnorm(stack: nn.Module, *, beta: float) -> None:
    """Normal Xavier weights with gain 1 for queries and keys, beta for values, outputs and
    feed-forward (DeepNet).
    """
    for module in stack.modules():
        match module:
            case SelfAttention():
                _xavier(module.qkv_proj.weight, 1.0, 1.0, beta)
                _xavier(module.out_proj.weight, beta)
            case CrossAttention():
                _xavier(module.q_proj.weight, 1.0)
                _xavier(module.kv_proj.weight, 1.0, beta)
                _xavier(module.out_proj.weight, beta)
            case FeedForward():
                _xavier(module.linear1.weight, beta)
                _xavier(module.linear2.weight, beta)


def _xavier(weight: Tensor, *gains: float) -> None:
    """One gain for each of the maps that stand below each other in `weight`; each has its own
    Xavier bound.
    """
    for part, gain in zip(weight.chunk(len(gains)), gains):
        nn.init.xavier_normal_(part, gain=gain)


@torch.no_grad()
def scale_by_depth(stack: nn.Module) -> None:
    """Weights of layer l, from 1, times l^-0.5 (DS-Init; Zhang et al. 2019, equation 6 with alpha =
    1).
    """
    for l, layer in enumerate(stack.layers, start=1):  # type: ignore[arg-type]  # noqa: E741
        for parameter in layer.parameters():
            if parameter.dim() > 1:
                parameter.mul_(l**-0.5)
