"""Multi30k with FIRE, a network of the interpolated distance."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Fire

config = replace(base, name="multi30k_small_fire", model=replace(base.model, position=Fire()))
