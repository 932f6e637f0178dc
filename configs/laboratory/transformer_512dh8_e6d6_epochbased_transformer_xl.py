"""The original experiment with Transformer-XL's relative positions, u and v shared by a stack."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import TransformerXl

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_transformer_xl",
    model=replace(base.model, position=TransformerXl(reading="xl")),
)
