"""Multi30k with sinusoids in tensor2tensor's layout, whose slowest frequency is 1/base exactly."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Sinusoidal

config = replace(
    base,
    name="multi30k_small_sinusoidal_t2t",
    model=replace(base.model, position=Sinusoidal(layout="t2t")),
)
