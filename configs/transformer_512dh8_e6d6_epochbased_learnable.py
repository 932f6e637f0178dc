"""The original experiment with learned position tables; learning rate by epoch."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Learnable

config = replace(base, model=replace(base.model, position=Learnable(max_positions=256)))
