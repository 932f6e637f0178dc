"""Multi30k with RoPE at randomized positions."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Randomized, Rope

config = replace(
    base,
    name="multi30k_small_randomized_rope",
    model=replace(base.model, position=Randomized(scheme=Rope(), spread=1024, max_positions=128)),
)
