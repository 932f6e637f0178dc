"""A published recipe for a small Transformer on Multi30k, at its whole budget.

Wu et al. 2021 (Good for Misconceived Reasons, ACL), as public code has it.
An update has some 8,200 target tokens (9,500 padded ones of the longer side). All 7,900 updates,
151 epochs, have 65 million. Four layers a side of width 128, dropout 0.3, a rate of 5e-3 that falls
with the inverse square root from update 2,000 on, ten checkpoints averaged:

    python train.py --config configs/multi30k_recipe.py
    python average.py --model_path RUN --last 10

What the recipe leaves open is as in multi30k_small_rope.py: RoPE, pre-norm, one tied table of
embeddings. experiments/find_recipe.py starts from this config.
"""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import InverseSqrt, Subword

config = replace(
    base,
    model=replace(
        base.model, d_model=128, n_encoder_layers=4, n_decoder_layers=4, d_ff=256, dropout=0.3
    ),
    tokenizer=Subword(algorithm="bpe", vocab_size=10_000),
    data=replace(base.data, batch_size=9500),
    optim=replace(base.optim, schedule=InverseSqrt(lr=5e-3, warmup_steps=2000)),
    train=replace(
        base.train, max_epochs=1000, max_tokens=65_000_000, keep_regular=10, log_attention=False
    ),
    evaluate=replace(base.evaluate, bleu_every_epochs=10),
)
