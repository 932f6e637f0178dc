"""Multi30k with Sandwich, the product of sinusoids as a bias."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Sandwich

config = replace(
    base, name="multi30k_small_sandwich", model=replace(base.model, position=Sandwich())
)
