"""A start for millions of pairs of any two languages, for one GPU: Transformer base, RoPE.

    python train.py --config configs/large_pair.py --set data.src_lang=de --set data.tgt_lang=nl
    python average.py --model_path RUN --last_steps 10      # prints the AVERAGED file
    python tune.py --model_path AVERAGED --beam 4 5 8 --length_penalty 0.6 1.0 1.4

Reads data/parallel/{train,valid,test} in both languages. Choices as published for corpora of this
size; not trained here.
- 32,000 pieces learned from a million pairs, one embedding matrix for source, target and output.
- some 25,000 tokens an update, as Vaswani et al. 2017, in two steps: batches of 12,000 of a
  model of this size took 20.4 GB of a GPU, with CUDA graphs (docs/results/gpu.md).
- inverse square root to 7e-4 after 4,000 updates; it ends after 100,000, or after ten validations
  without a lower loss.
- an epoch takes hours: validation and checkpoints come every 2,000 updates.
- cleaning, but not by language: that rule knows French and English alone.
"""

from configs import schema

config = schema.Config(
    model=schema.ModelConfig(position=schema.Rope(), tie_embeddings="all"),
    tokenizer=schema.Subword(algorithm="unigram", vocab_size=32000, max_pairs=1_000_000),
    data=schema.DataConfig(
        corpus=schema.ParallelFiles(),
        clean=schema.Cleaning(language=False),
        max_len=200,
        batch_size=12500,
    ),
    optim=schema.OptimConfig(
        accumulate=2, schedule=schema.InverseSqrt(lr=7e-4, warmup_steps=4000), label_smoothing=0.1
    ),
    train=schema.TrainConfig(
        max_steps=100_000, max_epochs=1000, checkpoint_every_steps=2000, keep_steps=10, patience=10
    ),
    evaluate=schema.EvaluateConfig(every_steps=2000),
    decode=schema.DecodeConfig(length_penalty=1.0),
)
