"""The recipe for IWSLT2017 fr->en (232,825 pairs of TED talks), for one GPU.

    python train.py --config configs/iwslt2017_best.py
    python average.py --model_path RUN --last 10            # prints the AVERAGED file
    python tune.py --model_path AVERAGED --beam 4 5 8 --length_penalty 0.6 1.0 1.4
    python test.py --model_path AVERAGED

Each choice is from published work on corpora of this size. Not trained here.
- 6+6 layers, d_model 512, 4 heads and d_ff 1024: what from-scratch work on IWSLT has settled on.
- pre-norm: trains without a delicate warm-up at this depth.
- RoPE: among the best encodings without parameters (docs/results/position_schemes.md). It sets no
  bound on the length of a sentence.
- a joint BPE of 10,000 and one embedding matrix for source, target and output: rare words are split
  where the corpus is too small to learn them whole; 5 million weights replace 15 million.
- dropout 0.3, label smoothing 0.1, R-Drop with alpha 5: the corpus is seen sixty times, and would
  otherwise be learnt by heart.
- inverse square root to 5e-4 after 4,000 updates, then the last ten checkpoints averaged: the rate
  is still high, the weights wander about a minimum, and their mean lies closer to it.
- cleaning: the talks hold a few untranslated and misaligned segments.
"""

from configs import schema

config = schema.Config(
    model=schema.ModelConfig(
        position=schema.Rope(),
        d_model=512,
        n_heads=4,
        n_encoder_layers=6,
        n_decoder_layers=6,
        d_ff=1024,
        dropout=0.3,
        norm="pre",
        tie_embeddings="all",
    ),
    tokenizer=schema.Subword(algorithm="bpe", vocab_size=10000),
    data=schema.DataConfig(
        corpus=schema.Iwslt2017(), clean=schema.Cleaning(), max_len=256, batch_size=4096
    ),
    optim=schema.OptimConfig(
        optimizer="adamw",
        weight_decay=1e-4,
        decay="matrices",
        schedule=schema.InverseSqrt(lr=5e-4, warmup_steps=4000),
        objective=schema.RDrop(alpha=5.0),
        label_smoothing=0.1,
    ),
    train=schema.TrainConfig(max_epochs=60, keep_regular=10),
    evaluate=schema.EvaluateConfig(bleu_every_epochs=5),
    decode=schema.DecodeConfig(beam_size=5, length_penalty=1.0),
)
