"""Real text on a CPU: Multi30k fr->en (29,000 pairs) with a small RoPE Transformer.

The files (train, val and three test sets, as .fr.gz and .en.gz or plain) are looked for in
data/multi30k; `--set data.corpus.root=FOLDER` names another place.
"""

from configs import schema

MULTI30K = schema.ParallelFiles(
    root="data/multi30k",
    train="train",
    validation="val",
    test=("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco"),
)

config = schema.Config(
    model=schema.ModelConfig(
        position=schema.Rope(),
        d_model=192,
        n_heads=4,
        n_encoder_layers=3,
        n_decoder_layers=3,
        d_ff=768,
        dropout=0.15,
        tie_embeddings="all",
    ),
    tokenizer=schema.Subword(algorithm="bpe", vocab_size=6000),
    data=schema.DataConfig(corpus=MULTI30K, max_len=128, batch_size=1500),
    optim=schema.OptimConfig(
        schedule=schema.Cosine(lr=2e-3, warmup_steps=300), label_smoothing=0.1
    ),
    train=schema.TrainConfig(max_epochs=10),
    evaluate=schema.EvaluateConfig(bleu_sentences=300, bleu_every_epochs=2),
    decode=schema.DecodeConfig(max_len=128, length_penalty=1.0),
)
