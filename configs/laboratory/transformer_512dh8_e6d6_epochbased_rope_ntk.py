"""The original experiment with RoPE with the NTK-aware base for four times the length."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import NtkScaling, Rope

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_rope_ntk",
    model=replace(base.model, position=Rope(scaling=NtkScaling(factor=4.0))),
)
