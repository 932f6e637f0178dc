"""Captions and everyday sentences in one model: what multi30k_finetune.py begins with.

    python train.py --config configs/mix_captions.py --nproc_per_node 2 --threads 1

The files are those of mix_best.py. What it scores: docs/results/multi30k.md. Why each choice:
- each caption twice an epoch: they are two fifths of the tokens then, Tatoeba's sentences, five
  times as many, the rest.
- the model of multi30k_student.py with 8,000 pieces, drawn anew in each epoch.
- dropout 0.1: in six epochs there is little to learn by heart.
- the captions come first, so their validation split is the one that is validated on.
"""

from dataclasses import replace

from configs.mix_best import TATOEBA
from configs.multi30k_small_rope import MULTI30K
from configs.multi30k_student import config as base
from configs.schema import Cleaning, Cosine, Mixture, Subword, Weighted

config = replace(
    base,
    name="mix_captions",
    model=replace(base.model, dropout=0.1),
    tokenizer=Subword(algorithm="unigram", vocab_size=8000, sampling=0.5),
    data=replace(
        base.data,
        corpus=Mixture(
            parts=(
                Weighted(name="multi30k", corpus=MULTI30K, weight=2.0),
                Weighted(name="tatoeba", corpus=TATOEBA),
            )
        ),
        clean=Cleaning(),
    ),
    optim=replace(base.optim, schedule=Cosine(lr=3e-3, warmup_steps=400)),
    train=replace(base.train, max_epochs=6),
)
