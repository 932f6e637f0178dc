"""The original experiment with rotary positions; learning rate by epoch.

Rotation is per head and in self-attention alone, as in the paper. The original rotated d_model
before the head split (`--set model.position.rope_dim=model`), and cross-attention too
(`--set model.position.cross=true`).
"""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Rope

config = replace(base, model=replace(base.model, position=Rope()))
