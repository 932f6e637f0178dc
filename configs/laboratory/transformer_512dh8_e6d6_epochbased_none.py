"""The original experiment with no position information at all."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import NoPosition

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_none",
    model=replace(base.model, position=NoPosition()),
)
