"""Multi30k with forgetting attention in the decoder, RoPE in the encoder."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Fox, Rope

config = replace(
    base, name="multi30k_small_fox", model=replace(base.model, position=Fox(encoder=Rope()))
)
