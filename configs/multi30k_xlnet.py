"""Multi30k's own 29,000 pairs with a long budget: XLNet's encoding, Muon, 65 million tokens.

    python train.py --config configs/multi30k_xlnet.py --threads 1
    python average.py --model_path RUN --last 10

With R-Drop beside it (docs/results/multi30k.md), in twice the time, it is the best on validation.
multi30k_recipe.py's model, tokens and batches. Against it:
- XLNet's encoding, which three of the first four recipes of the search have.
- pieces drawn anew in each epoch; that recipe's validation loss rises from epoch 79 on.
- Muon, as the first five of the search, and a rate that falls to zero.
"""

from dataclasses import replace

from configs.multi30k_recipe import config as base
from configs.schema import Cosine, Subword, TransformerXl

config = replace(
    base,
    model=replace(base.model, position=TransformerXl(reading="xlnet")),
    tokenizer=Subword(algorithm="unigram", vocab_size=6000, sampling=0.5),
    optim=replace(base.optim, optimizer="muon", schedule=Cosine(lr=4e-3, warmup_steps=300)),
)
