"""Captions alone, for a model that has learned captions and everyday sentences.

    python train.py --config configs/mix_best.py --nproc_per_node 2 --threads 1
    python train.py --config configs/multi30k_finetune.py --init_from RUN --threads 1

Fine-tuning on the text that is to be translated (Luong and Manning 2015). What it scores, and what
a higher rate and more dropout did: docs/results/everyday_french.md. Why each choice:
- a tenth of the rate of the first training, and three epochs: the captions are nothing new, and the
  everyday sentences are soon forgotten.
- the dropout of the first training: more of it harms a model that has just learned with it.
"""

from dataclasses import replace

from configs.mix_best import config as first
from configs.multi30k_small_rope import MULTI30K
from configs.schema import Cosine

config = replace(
    first,
    data=replace(first.data, corpus=MULTI30K),
    optim=replace(first.optim, schedule=Cosine(lr=3e-4, warmup_steps=100)),
    train=replace(first.train, max_epochs=3),
)
