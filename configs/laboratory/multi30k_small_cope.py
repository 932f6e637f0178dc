"""Multi30k with CoPE in the decoder, RoPE in the encoder."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Cope, Rope

config = replace(
    base, name="multi30k_small_cope", model=replace(base.model, position=Cope(encoder=Rope()))
)
