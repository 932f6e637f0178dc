"""Multi30k with RoPE whose base grows past the trained length, and not before."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import DynamicNtkScaling, Rope

config = replace(
    base,
    name="multi30k_small_rope_dynamic_ntk",
    model=replace(
        base.model, position=Rope(scaling=DynamicNtkScaling(factor=4.0, trained_length=128))
    ),
)
