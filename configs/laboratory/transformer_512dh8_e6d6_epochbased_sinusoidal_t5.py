"""The original experiment with sinusoids on the embeddings and T5's bias in attention."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import T5, Combined, Sinusoidal

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_sinusoidal_t5",
    model=replace(base.model, position=Combined(input=Sinusoidal(), attention=T5())),
)
