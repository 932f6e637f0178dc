"""Multi30k with RoPE with YaRN's frequencies for four times the length."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Rope, YarnScaling

config = replace(
    base,
    name="multi30k_small_rope_yarn",
    model=replace(base.model, position=Rope(scaling=YarnScaling(factor=4.0, trained_length=128))),
)
