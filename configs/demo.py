"""A small RoPE model on the embedded corpus: the run of `make demo`."""

from configs.schema import (
    Config,
    Cosine,
    DataConfig,
    DecodeConfig,
    EvaluateConfig,
    ModelConfig,
    OptimConfig,
    Phrasebook,
    Rope,
    Subword,
    TrainConfig,
)

config = Config(
    name="demo",
    model=ModelConfig(
        position=Rope(),
        d_model=128,
        n_heads=4,
        n_encoder_layers=2,
        n_decoder_layers=2,
        d_ff=512,
        dropout=0.05,
        tie_embeddings="all",
    ),
    tokenizer=Subword(vocab_size=2000),
    data=DataConfig(corpus=Phrasebook(), max_len=96, batch_size=1024),
    optim=OptimConfig(schedule=Cosine(lr=2.5e-3, warmup_steps=100)),
    train=TrainConfig(max_epochs=6),
    evaluate=EvaluateConfig(bleu_sentences=200),
    decode=DecodeConfig(max_len=96),
)
