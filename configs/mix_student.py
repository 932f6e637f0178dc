r"""A caption student of three teachers, from a model of captions and everyday sentences.

    python train.py --config configs/mix_best.py --nproc_per_node 2 --threads 1
    python train.py --config configs/multi30k_finetune.py --init_from RUN --threads 1
    # both for train.seed=1 and 2 too
    python back_translate.py --distill --model_path FINE_0 FINE_1 FINE_2 \
        --output data/distilled/train
    python train.py --config configs/mix_student.py --init_from RUN --threads 1

What it scores: docs/results/everyday_french.md. Why each choice:
- it starts where its teachers started: from the weights of a first training.
- a third of the first training's rate, since the translations of three teachers are new to it: a
  tenth was 0.1 points worse on validation.
- the dropout of the first training, as in multi30k_finetune.py.
"""

from dataclasses import replace

from configs.multi30k_finetune import config as base
from configs.multi30k_student import TAUGHT
from configs.schema import Cosine

config = replace(
    base,
    data=replace(base.data, corpus=TAUGHT),
    optim=replace(base.optim, schedule=Cosine(lr=1e-3, warmup_steps=100)),
    train=replace(base.train, max_epochs=5),
)
