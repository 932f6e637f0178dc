"""The original experiment with forgetting attention in the decoder, RoPE in the encoder."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Fox, Rope

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_fox",
    model=replace(base.model, position=Fox(encoder=Rope())),
)
