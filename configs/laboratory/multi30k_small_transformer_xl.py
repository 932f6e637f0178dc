"""Multi30k with Transformer-XL's relative positions, u and v shared by a stack."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import TransformerXl

config = replace(
    base,
    name="multi30k_small_transformer_xl",
    model=replace(base.model, position=TransformerXl(reading="xl")),
)
