"""For the speedrun (docs/speedrun.md): fewer epochs than multi30k_small_rope.py.

    python experiments/speedrun.py --config configs/multi30k_speedrun.py

- XLNet's encoding learns faster than RoPE, and takes hardly longer at each update.
- Muon learns faster than Adam, and bears a higher rate and larger batches, in which it costs less.
- A high rate nearly from the start, for the first epoch.
- A narrower feed-forward and still larger batches: less to compute, and fewer, fuller products.
- Less dropout, for a training that ends before it learns its text by heart.
- No translations during the training, no pictures, and one validation: they are in the clock.
"""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Cosine, TransformerXl

config = replace(
    base,
    name="multi30k_speedrun",
    model=replace(base.model, position=TransformerXl(reading="xlnet"), d_ff=512, dropout=0.05),
    data=replace(base.data, batch_size=4500),
    optim=replace(base.optim, optimizer="muon", schedule=Cosine(lr=6e-3, warmup_steps=40)),
    train=replace(base.train, max_epochs=5, log_attention=False),
    evaluate=replace(base.evaluate, every_epochs=5, bleu_every_epochs=0),
)
