"""Multi30k fr->en in three epochs: all position schemes side by side in an afternoon on a CPU.

Two layers a side, d_model 128: schemes differ, but the scores are not worth quoting elsewhere. In
float32 on every processor, so that trainings on different machines can be compared.
"""

from dataclasses import replace

from configs.multi30k_small_rope import config as base
from configs.schema import Cosine, Sinusoidal, Subword

config = replace(
    base,
    model=replace(
        base.model,
        position=Sinusoidal(),
        d_model=128,
        n_encoder_layers=2,
        n_decoder_layers=2,
        d_ff=512,
        dropout=0.1,
    ),
    tokenizer=Subword(algorithm="bpe", vocab_size=3000),
    optim=replace(base.optim, schedule=Cosine(lr=3e-3, warmup_steps=200)),
    train=replace(base.train, max_epochs=3, precision="fp32", log_attention=False),
    evaluate=replace(base.evaluate, bleu_every_epochs=0),
)
