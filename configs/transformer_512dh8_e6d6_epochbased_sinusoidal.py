"""The original experiment with sinusoids added to the embeddings; learning rate by epoch."""

from dataclasses import replace

from configs.base import config as base

config = replace(base, name="transformer_512dh8_e6d6_epochbased_sinusoidal")
