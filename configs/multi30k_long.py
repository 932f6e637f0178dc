"""Multi30k's own 29,000 pairs with a longer budget: more noise, 42 epochs, Muon.

    python train.py --config configs/multi30k_long.py --threads 1

What it scores, beside R-Drop with half the epochs: docs/results/multi30k.md. Against
multi30k_best.py:
- dropout 0.3 and pieces drawn anew in each epoch (unigram sampling): in 42 epochs a model with less
  noise would learn its text by heart.
- Muon with larger batches and a higher rate.
"""

from dataclasses import replace

from configs.multi30k_best import config as base
from configs.schema import Cosine, Subword

config = replace(
    base,
    model=replace(base.model, dropout=0.3),
    tokenizer=Subword(algorithm="unigram", vocab_size=6000, sampling=0.5),
    data=replace(base.data, batch_size=3000),
    optim=replace(base.optim, optimizer="muon", schedule=Cosine(lr=3e-3, warmup_steps=300)),
    train=replace(base.train, max_epochs=42),
    evaluate=replace(base.evaluate, bleu_every_epochs=0),
)
