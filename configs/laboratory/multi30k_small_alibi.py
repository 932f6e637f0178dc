"""Multi30k with ALiBi, symmetric in the encoder."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Alibi

config = replace(base, name="multi30k_small_alibi", model=replace(base.model, position=Alibi()))
