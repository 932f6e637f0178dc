"""The original experiment with FIRE, a network of the interpolated distance."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Fire

config = replace(
    base, name="transformer_512dh8_e6d6_epochbased_fire", model=replace(base.model, position=Fire())
)
