"""Everyday sentences and captions: Tatoeba and Multi30k in one model, on two CPU cores.

    python train.py --config configs/mix_best.py --nproc_per_node 2 --threads 1
    python inference.py --src_text "Où est la gare, s'il vous plaît ?"
    python test.py                                    # the three tests of Multi30k, then Tatoeba's

The files are looked for in data/multi30k (train, val, three tests) and data/tatoeba (train, dev,
test), as .fr and .en, plain or .gz. What it scores: docs/results/everyday_french.md. Why each
choice:
- two processes of one thread: a tenth faster here than one process of two threads.
- each caption twice an epoch: captions are then two fifths of the tokens, and Tatoeba's sentences,
  five times as many, are the rest. The captions come first, so the validation split is theirs.
- cleaning: Tatoeba repeats pairs and holds a few untranslated ones; the log counts what each rule
  dropped.
- the model of multi30k_student.py: a decoder layer costs a third more than an encoder layer in
  training and takes all of the time in search; depth pays in the encoder (Kasai et al. 2021).
- pieces drawn anew in each epoch, and Muon with larger batches, as in multi30k_long.py.
- dropout 0.1: six epochs are too few to learn the corpus by heart.
"""

from dataclasses import replace

from configs.multi30k_small_rope import MULTI30K
from configs.multi30k_student import config as base
from configs.schema import Cleaning, Cosine, Mixture, ParallelFiles, Subword, Weighted

TATOEBA = ParallelFiles(root="data/tatoeba", train="train", validation="dev", test=("test",))
TOGETHER = Mixture(
    parts=(
        Weighted(name="multi30k", corpus=MULTI30K, weight=2.0),
        Weighted(name="tatoeba", corpus=TATOEBA),
    )
)

config = replace(
    base,
    model=replace(base.model, dropout=0.1),
    tokenizer=Subword(algorithm="unigram", vocab_size=8000, sampling=0.5),
    data=replace(base.data, corpus=TOGETHER, clean=Cleaning()),
    optim=replace(base.optim, schedule=Cosine(lr=3e-3, warmup_steps=400)),
    train=replace(base.train, max_epochs=6),
)
