"""The original experiment with T5's relative bias, one table for each stack."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import T5

config = replace(
    base, name="transformer_512dh8_e6d6_epochbased_t5", model=replace(base.model, position=T5())
)
