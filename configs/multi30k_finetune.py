"""Captions alone, for a model that has learned everyday sentences beside them.

    python train.py --config configs/mix_captions.py --nproc_per_node 2 --threads 1
    python train.py --config configs/multi30k_finetune.py --init_from RUN --threads 1
    python train.py --config configs/multi30k_finetune.py --init_from RUN --set train.seed=1 ...
    python average.py RUN_0 RUN_1 RUN_2

Fine-tuning on the domain of the test (Luong and Manning 2015), and the mean of the weights of
several that began alike (model soups, Wortsman et al. 2022). What it scores:
docs/results/multi30k.md. Why each choice:
- half the rate of the first training: enough to learn what captions are, not to forget the rest.
- the dropout of multi30k_long.py: the text is as small, and is seen as often again.
"""

from dataclasses import replace

from configs.mix_captions import config as first
from configs.multi30k_small_rope import MULTI30K
from configs.schema import Cosine

config = replace(
    first,
    name="multi30k_finetune",
    model=replace(first.model, dropout=0.3),
    data=replace(first.data, corpus=MULTI30K),
    optim=replace(first.optim, schedule=Cosine(lr=1.5e-3, warmup_steps=100)),
    train=replace(first.train, max_epochs=8),
)
