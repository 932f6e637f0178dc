"""Helsinki-NLP/opus-mt-fr-en, trained on with IWSLT2017 fr->en (232,825 pairs of TED talks).

    python train.py --config configs/iwslt2017_finetune.py
    python train.py --config configs/iwslt2017_finetune.py --set train.init_from=FOLDER

The second needs no network: FOLDER is a Marian model as transformers saves it, or a run of this
project. Model and tokenizer come from train.init_from, whatever its shape; only dropout is set
here. Not trained here but for some updates from random weights.
- AdamW, 2e-5, weight decay 0.01, three epochs: the settings of Hugging Face's course for a Marian
  model (chapter 7, translation). The rate of a first training would undo what the model knows.
- keep_regular=3: keeps the checkpoints for `average.py --last 3`.
"""

from configs import schema
from configs.iwslt2017_best import config as first

config = schema.Config(
    model=schema.ModelConfig(dropout=0.1),
    data=first.data,
    optim=schema.OptimConfig(
        optimizer="adamw", weight_decay=0.01, decay="matrices", schedule=schema.Constant(lr=2e-5)
    ),
    train=schema.TrainConfig(
        init_from="Helsinki-NLP/opus-mt-fr-en", init_model=True, max_epochs=3, keep_regular=3
    ),
    decode=first.decode,
)
