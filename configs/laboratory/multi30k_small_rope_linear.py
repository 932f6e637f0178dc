"""Multi30k with RoPE with positions interpolated four times."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import LinearScaling, Rope

config = replace(
    base,
    name="multi30k_small_rope_linear",
    model=replace(base.model, position=Rope(scaling=LinearScaling(factor=4.0))),
)
