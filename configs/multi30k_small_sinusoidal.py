"""Real text on a CPU: the model of multi30k_small_rope.py with sinusoids."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Sinusoidal

config = replace(base, model=replace(base.model, position=Sinusoidal()))
