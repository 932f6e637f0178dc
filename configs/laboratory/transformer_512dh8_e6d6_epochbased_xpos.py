"""The original experiment with xPos in the decoder, RoPE in the encoder."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import XPos

config = replace(
    base, name="transformer_512dh8_e6d6_epochbased_xpos", model=replace(base.model, position=XPos())
)
