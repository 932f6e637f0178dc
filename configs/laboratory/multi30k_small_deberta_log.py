"""Multi30k with DeBERTa's disentangled attention with logarithmic buckets."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Deberta

config = replace(
    base,
    name="multi30k_small_deberta_log",
    model=replace(base.model, position=Deberta(max_distance=128, log_buckets=32)),
)
