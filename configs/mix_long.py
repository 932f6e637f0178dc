"""Everyday sentences, captions and laws in one model, with a longer budget than mix_best.py.

    python train.py --config configs/mix_long.py
    python inference.py --src_text "Où est la gare, s'il vous plaît ?"
    python test.py                       # Tatoeba's test, the three of Multi30k, the laws'

The files are those of mix_best.py, and train, dev and test in data/canlaws. What it scores:
docs/results/everyday_french.md. Against mix_best.py:
- a quarter of Canada's acts and regulations, the same pairs in each epoch: they are long, and all
  of them would be two thirds of the tokens.
- each caption once an epoch.
- a wider model with XLNet's encoding and dropout 0.15, and 16,000 pieces by BPE, without sampling.
- ten epochs.
- Tatoeba's dev split chooses the checkpoint.
"""

from dataclasses import replace

from configs.mix_best import TATOEBA, config as base
from configs.multi30k_small_rope import MULTI30K
from configs.schema import Mixture, ParallelFiles, Subword, TransformerXl, Weighted

CANLAWS = ParallelFiles(root="data/canlaws", train="train", validation="dev", test=("test",))
TOGETHER = Mixture(
    parts=(
        Weighted(name="tatoeba", corpus=TATOEBA),
        Weighted(name="multi30k", corpus=MULTI30K),
        Weighted(name="canlaws", corpus=CANLAWS, weight=0.25),
    )
)

config = replace(
    base,
    model=replace(
        base.model, position=TransformerXl(reading="xlnet"), d_model=256, d_ff=1024, dropout=0.15
    ),
    tokenizer=Subword(algorithm="bpe", vocab_size=16000),
    data=replace(base.data, corpus=TOGETHER),
    train=replace(base.train, max_epochs=10),
)
