"""The original experiment with sinusoids in tensor2tensor's layout, whose slowest frequency is
1/base exactly.
"""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Sinusoidal

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_sinusoidal_t2t",
    model=replace(base.model, position=Sinusoidal(layout="t2t")),
)
