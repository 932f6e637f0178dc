"""The original experiment with RoPE that pairs dimension i with i + Dh/2, as Llama does."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Rope

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_rope_half",
    model=replace(base.model, position=Rope(layout="half")),
)
