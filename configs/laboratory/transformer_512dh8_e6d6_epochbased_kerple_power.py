"""The original experiment with KERPLE's power kernel."""

from dataclasses import replace

from configs.base import config as base
from configs.schema import Kerple

config = replace(
    base,
    name="transformer_512dh8_e6d6_epochbased_kerple_power",
    model=replace(base.model, position=Kerple(form="power")),
)
