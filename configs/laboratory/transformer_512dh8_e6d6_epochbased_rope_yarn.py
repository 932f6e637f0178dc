"""The original experiment with RoPE with YaRN's frequencies for four times the length."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Rope, YarnScaling

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_rope_yarn",
    model=replace(base.model, position=Rope(scaling=YarnScaling(factor=4.0, trained_length=256))),
)
