"""Multi30k with sinusoids on the embeddings and T5's bias in attention."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import T5, Combined, Sinusoidal

config = replace(
    base,
    name="multi30k_small_sinusoidal_t5",
    model=replace(base.model, position=Combined(input=Sinusoidal(), attention=T5())),
)
