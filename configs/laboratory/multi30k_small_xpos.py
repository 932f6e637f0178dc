"""Multi30k with xPos in the decoder, RoPE in the encoder."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import XPos

config = replace(base, name="multi30k_small_xpos", model=replace(base.model, position=XPos()))
