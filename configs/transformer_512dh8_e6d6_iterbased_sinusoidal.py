"""The original experiment with sinusoids; learning rate by update: Noam's schedule times the
original's 0.075.
"""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Noam

config = replace(
    base,
    name="transformer_512dh8_e6d6_iterbased_sinusoidal",
    optim=replace(base.optim, schedule=Noam(noam_factor=0.075, warmup_steps=8000)),
)
