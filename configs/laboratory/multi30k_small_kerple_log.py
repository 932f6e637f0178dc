"""Multi30k with KERPLE's logarithmic kernel."""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Kerple

config = replace(
    base, name="multi30k_small_kerple_log", model=replace(base.model, position=Kerple(form="log"))
)
