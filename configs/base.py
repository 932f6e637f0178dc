"""The original experiment: a base Transformer on IWSLT2017; its four configs derive from here.

Cross-entropy alone and no gradient clipping, as in the original; post-norm, as in the paper.
"""

from configs import schema

config = schema.Config(
    model=schema.ModelConfig(
        position=schema.Sinusoidal(),
        d_model=512,
        n_heads=8,
        n_encoder_layers=6,
        n_decoder_layers=6,
        d_ff=2048,
        dropout=0.1,
        attention_dropout=0.1,
        activation_dropout=0.1,
        norm="post",
    ),
    tokenizer=schema.Marian(name_or_path="Helsinki-NLP/opus-mt-fr-en"),
    data=schema.DataConfig(
        corpus=schema.Iwslt2017(), max_len=256, batch_by="sentences", batch_size=56
    ),
    optim=schema.OptimConfig(
        optimizer="adam",
        betas=(0.9, 0.98),
        eps=1e-8,
        schedule=schema.EpochDecay(lr=3e-4, warmup_epochs=6, decay=0.35),
        grad_clip=None,
        label_smoothing=0.0,
    ),
    train=schema.TrainConfig(max_epochs=20),
    evaluate=schema.EvaluateConfig(bleu_every_epochs=5),
    decode=schema.DecodeConfig(max_len=256),
)
