"""Multi30k with T5's relative bias, one table for each stack."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import T5

config = replace(base, name="multi30k_small_t5", model=replace(base.model, position=T5()))
