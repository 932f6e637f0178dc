"""The original experiment with Shaw's relative keys and values."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Shaw

config = replace(
    base, name="transformer_512dh8_e6d6_epochbased_shaw", model=replace(base.model, position=Shaw())
)
