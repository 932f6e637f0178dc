"""The original experiment with sinusoids added to the embeddings; learning rate by epoch."""

from configs.base import config as base

config = base
