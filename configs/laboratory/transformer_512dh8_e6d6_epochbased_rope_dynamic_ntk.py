"""The original experiment with RoPE whose base grows past the trained length, and not before."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import DynamicNtkScaling, Rope

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_rope_dynamic_ntk",
    model=replace(
        base.model, position=Rope(scaling=DynamicNtkScaling(factor=4.0, trained_length=256))
    ),
)
