"""Everyday sentences and captions: Tatoeba and Multi30k in one model, in an hour on two CPU cores.

    python train.py --config configs/mix_best.py --nproc_per_node 2 --threads 1
    python inference.py --src_text "Où est la gare, s'il vous plaît ?"
    python test.py                                    # the three tests of Multi30k, then Tatoeba's

The files are looked for in data/multi30k (train, val, three tests) and data/tatoeba (train, dev,
test), as .fr and .en, plain or .gz. What it scores: docs/results/everyday_french.md. Why each
choice:
- two processes of one thread: a tenth faster here than one process of two threads.
- each pair once an epoch: the captions are a seventh of the pairs and a quarter of the tokens. A
  larger weight leaves less of the hour to everyday sentences.
- cleaning: Tatoeba repeats pairs and holds a few untranslated ones; the log counts what each rule
  dropped.
- four encoder layers and two decoder layers: a decoder layer costs a third more in training and all
  of the time in search, and the encoder is where depth pays (Kasai et al. 2021).
- RoPE: among the best of the encodings without parameters, and fast to learn.
- small batches at a high rate: in an hour the number of updates is what there is least of.
- dropout 0.1 and plain cross-entropy: five epochs are too few to learn the corpus by heart.
"""

from dataclasses import replace

from configs.multi30k_small_rope import MULTI30K, config as base
from configs.schema import Cleaning, Cosine, Mixture, ParallelFiles, Subword, Weighted

TATOEBA = ParallelFiles(root="data/tatoeba", train="train", validation="dev", test=("test",))

config = replace(
    base,
    name="mix_best",
    model=replace(base.model, n_encoder_layers=4, n_decoder_layers=2, dropout=0.1),
    tokenizer=Subword(algorithm="bpe", vocab_size=8000),
    data=replace(
        base.data,
        corpus=Mixture(
            parts=(
                Weighted(name="multi30k", corpus=MULTI30K),
                Weighted(name="tatoeba", corpus=TATOEBA),
            )
        ),
        clean=Cleaning(),
        batch_size=2400,
    ),
    optim=replace(base.optim, schedule=Cosine(lr=2e-3, warmup_steps=400)),
    train=replace(base.train, max_epochs=5, log_attention=False),
    evaluate=replace(base.evaluate, bleu_every_epochs=1),
)
