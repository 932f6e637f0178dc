"""The original experiment with Sandwich, the product of sinusoids as a bias."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Sandwich

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_sandwich",
    model=replace(base.model, position=Sandwich()),
)
