"""Multi30k with RoPE with the NTK-aware base for four times the length."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import NtkScaling, Rope

config = replace(
    base,
    name="multi30k_small_rope_ntk",
    model=replace(base.model, position=Rope(scaling=NtkScaling(factor=4.0))),
)
