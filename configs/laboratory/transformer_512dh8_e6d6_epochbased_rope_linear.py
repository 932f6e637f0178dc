"""The original experiment with RoPE with positions interpolated four times."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import LinearScaling, Rope

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_rope_linear",
    model=replace(base.model, position=Rope(scaling=LinearScaling(factor=4.0))),
)
