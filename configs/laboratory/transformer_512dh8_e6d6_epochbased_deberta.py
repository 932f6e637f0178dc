"""The original experiment with DeBERTa's disentangled attention."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Deberta

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_deberta",
    model=replace(base.model, position=Deberta()),
)
