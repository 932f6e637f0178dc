"""The original experiment with ALiBi whose encoder tells left from right."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Alibi

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_alibi_asymmetric",
    model=replace(base.model, position=Alibi(asymmetry=0.5)),
)
