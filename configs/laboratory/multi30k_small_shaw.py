"""Multi30k with Shaw's relative keys and values."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Shaw

config = replace(base, name="multi30k_small_shaw", model=replace(base.model, position=Shaw()))
