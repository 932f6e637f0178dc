"""The original experiment with sinusoids in Marian's layout, sines first and cosines after them."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Sinusoidal

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_sinusoidal_half",
    model=replace(base.model, position=Sinusoidal(layout="half")),
)
