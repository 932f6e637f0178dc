"""Multi30k with DeBERTa's disentangled attention."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Deberta

config = replace(base, name="multi30k_small_deberta", model=replace(base.model, position=Deberta()))
