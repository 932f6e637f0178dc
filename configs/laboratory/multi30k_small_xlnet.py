"""Multi30k with Transformer-XL's relative positions as XLNet reads them, u and v for each layer."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import TransformerXl

config = replace(
    base,
    name="multi30k_small_xlnet",
    model=replace(base.model, position=TransformerXl(reading="xlnet")),
)
