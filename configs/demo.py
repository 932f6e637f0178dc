"""A small RoPE model on the embedded corpus: the run of `make demo`."""

from configs import schema

config = schema.Config(
    model=schema.ModelConfig(
        position=schema.Rope(),
        d_model=128,
        n_heads=4,
        n_encoder_layers=2,
        n_decoder_layers=2,
        d_ff=512,
        dropout=0.05,
        tie_embeddings="all",
    ),
    tokenizer=schema.Subword(vocab_size=2000, quotes="straight"),
    data=schema.DataConfig(corpus=schema.Phrasebook(), max_len=96, batch_size=1024),
    optim=schema.OptimConfig(schedule=schema.Cosine(lr=2.5e-3, warmup_steps=100)),
    train=schema.TrainConfig(max_epochs=6),
    evaluate=schema.EvaluateConfig(bleu_sentences=200),
    decode=schema.DecodeConfig(max_len=96),
)
