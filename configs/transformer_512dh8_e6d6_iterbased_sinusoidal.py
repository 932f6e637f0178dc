"""The original experiment with sinusoids; Noam's learning rate by update, times 0.075."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Noam

config = replace(
    base, optim=replace(base.optim, schedule=Noam(noam_factor=0.075, warmup_steps=8000))
)
