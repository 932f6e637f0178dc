"""The original experiment with Transformer-XL's relative positions as XLNet reads them, u and v for
each layer.
"""

from dataclasses import replace

from configs.base import config as base
from configs.schema import TransformerXl

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_xlnet",
    model=replace(base.model, position=TransformerXl(reading="xlnet")),
)
