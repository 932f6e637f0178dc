"""Multi30k with RoPE that pairs dimension i with i + Dh/2, as Llama does."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Rope

config = replace(
    base, name="multi30k_small_rope_half", model=replace(base.model, position=Rope(layout="half"))
)
