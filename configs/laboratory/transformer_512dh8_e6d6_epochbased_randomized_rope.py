"""The original experiment with RoPE at randomized positions."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Randomized, Rope

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_randomized_rope",
    model=replace(base.model, position=Randomized(scheme=Rope(), spread=1024, max_positions=256)),
)
