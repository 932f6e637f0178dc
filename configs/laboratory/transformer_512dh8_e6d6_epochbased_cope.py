"""The original experiment with CoPE in the decoder, RoPE in the encoder."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Cope, Rope

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_cope",
    model=replace(base.model, position=Cope(encoder=Rope())),
)
