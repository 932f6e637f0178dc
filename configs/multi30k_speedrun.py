"""For the speedrun (docs/speedrun.md): fewer epochs than multi30k_small_rope.py.

    python experiments/speedrun.py --config configs/multi30k_speedrun.py

- XLNet's encoding learns faster than RoPE, and an update takes hardly longer.
- Muon learns faster than Adam, and allows a higher rate and larger batches, where it costs less.
- A high rate nearly from the start, for the first epoch.
- A narrower feed-forward and still larger batches: less to compute, and fewer, fuller products.
- Less dropout: training ends before the text is learnt by heart.
- No translations during training, no pictures, and one validation: all of these count as time.
"""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Cosine, TransformerXl

config = replace(
    base,
    model=replace(base.model, position=TransformerXl(reading="xlnet"), d_ff=512, dropout=0.05),
    data=replace(base.data, batch_size=4500),
    optim=replace(base.optim, optimizer="muon", schedule=Cosine(lr=6e-3, warmup_steps=40)),
    train=replace(base.train, max_epochs=5, log_attention=False),
    evaluate=replace(base.evaluate, every_epochs=5, bleu_every_epochs=0),
)
