"""Multi30k with ALiBi whose encoder tells left from right."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Alibi

config = replace(
    base,
    name="multi30k_small_alibi_asymmetric",
    model=replace(base.model, position=Alibi(asymmetry=0.5)),
)
