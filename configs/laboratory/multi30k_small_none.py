"""Multi30k with no position information at all."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import NoPosition

config = replace(base, name="multi30k_small_none", model=replace(base.model, position=NoPosition()))
