"""Real text on a CPU: the model of multi30k_small_rope.py with learned position tables."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Learnable

config = replace(base, model=replace(base.model, position=Learnable(max_positions=128)))
