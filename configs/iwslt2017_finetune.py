"""Helsinki-NLP/opus-mt-fr-en, trained on with IWSLT2017 fr->en (232,825 pairs of TED talks).

    python train.py --config configs/iwslt2017_finetune.py
    python train.py --config configs/iwslt2017_finetune.py --set train.init_from=FOLDER

The second needs no network: FOLDER is a Marian model as transformers saves it, or a run of this
project. Model and tokenizer come from train.init_from, whatever its shape; only dropout is set
here. Training was started here, with random weights alone, and not finished.
- AdamW, 2e-5, weight decay 0.01, three epochs: the settings of Hugging Face's course for a Marian
  model (chapter 7, translation). The rate of a first training would undo what the model knows.
- keep_regular=3: keeps the checkpoints for `average.py --last 3`.
"""

from configs import schema

config = schema.Config(
    name="iwslt2017_finetune",
    model=schema.ModelConfig(dropout=0.1),
    data=schema.DataConfig(
        corpus=schema.Iwslt2017(), clean=schema.Cleaning(), max_len=256, batch_size=4096
    ),
    optim=schema.OptimConfig(
        optimizer="adamw",
        weight_decay=0.01,
        decay="matrices",
        schedule=schema.Constant(lr=2e-5),
        label_smoothing=0.1,
    ),
    train=schema.TrainConfig(
        init_from="Helsinki-NLP/opus-mt-fr-en", init_model=True, max_epochs=3, keep_regular=3
    ),
    evaluate=schema.EvaluateConfig(bleu_every_epochs=1),
    decode=schema.DecodeConfig(beam_size=5, length_penalty=1.0),
)
