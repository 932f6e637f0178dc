"""Initialisations other than plain Xavier: DeepNorm's gains, and weights scaled by depth."""

from typing import Any

import torch
from torch import Tensor, nn

from models.attention.multi_head import CrossAttention, SelfAttention
from models.transformer_backend import FeedForward


@torch.no_grad()
def initialise_deepnorm(stack: nn.Module, *, beta: float) -> None:
    """Normal Xavier weights: gain 1 for queries and keys, beta for all other maps (DeepNet)."""
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
                maps = module.linear1.out_features // module.linear2.in_features
                _xavier(module.linear1.weight, *[beta] * maps)
                _xavier(module.linear2.weight, beta)


def _xavier(weight: Tensor, *gains: float) -> None:
    """Xavier-normal weights, with a gain each, for the maps stacked in the rows of `weight`."""
    for part, gain in zip(weight.chunk(len(gains)), gains):
        nn.init.xavier_normal_(part, gain=gain)


@torch.no_grad()
def scale_by_depth(stack: Any) -> None:
    """Weights of layer l, from 1, times l^-0.5 (DS-Init: Zhang et al. 2019, eq. 6, alpha 1)."""
    for depth, layer in enumerate(stack.layers, start=1):
        for parameter in layer.parameters():
            if parameter.dim() > 1:
                parameter.mul_(depth**-0.5)
