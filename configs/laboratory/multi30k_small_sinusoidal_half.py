"""Multi30k with sinusoids in Marian's layout, sines first and cosines after them."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Sinusoidal

config = replace(
    base,
    name="multi30k_small_sinusoidal_half",
    model=replace(base.model, position=Sinusoidal(layout="half")),
)
