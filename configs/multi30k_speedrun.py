"""A first attempt at the speedrun (docs/speedrun.md), in fewer epochs than multi30k_small_rope.py.

    python experiments/speedrun.py --config configs/multi30k_speedrun.py

Not timed yet. What speaks for it (docs/results/multi30k.md): eight such epochs had 52.34 on the
validation split with a beam, where ten of the RoPE model had 52.17, and 50.43 by greedy search.
- XLNet's encoding learns faster than RoPE, and takes hardly longer at each update.
- no translations during the training, and no pictures: they are in the clock.
"""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import TransformerXl

config = replace(
    base,
    name="multi30k_speedrun",
    model=replace(base.model, position=TransformerXl(reading="xlnet")),
    train=replace(base.train, max_epochs=8, log_attention=False),
    evaluate=replace(base.evaluate, bleu_every_epochs=0),
)
