"""The original experiment with ALiBi, symmetric in the encoder."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Alibi

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_alibi",
    model=replace(base.model, position=Alibi()),
)
