"""Real text on a CPU: the small Multi30k model of multi30k_small_rope.py with sinusoids added to
the embeddings.
"""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Sinusoidal

config = replace(
    base, name="multi30k_small_sinusoidal", model=replace(base.model, position=Sinusoidal())
)
