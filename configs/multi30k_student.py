r"""One small model that learns from several: Multi30k's pairs, and its teachers' translations.

    python train.py --config configs/multi30k_best.py              # and the other teachers
    python back_translate.py --distill --model_path RUN_0 RUN_1 RUN_2 --output data/distilled/train
    python train.py --config configs/multi30k_student.py
    python export.py --format ctranslate2 --quantization int8 --output_dir ct2

Sequence-level knowledge distillation (Kim and Rush 2016). From English to French, with one teacher,
it is as good as that; from French to English, with two and eight epochs, it is not
(docs/results/multi30k.md). Why each choice:
- people's English beside the teachers': theirs is more regular, and wrong where they are.
- four encoder layers and two decoder layers: the decoder takes most of the time in search (Kasai et
  al. 2021).
- RoPE: CTranslate2 has an equal of it.
- twelve epochs of twice the pairs: as many updates as the best of the teachers had.
- validation and tests are those of the first part, the real one.
"""

from dataclasses import replace

from configs.multi30k_small_rope import MULTI30K, config as base
from configs.schema import Mixture, ParallelFiles, Weighted

DISTILLED = ParallelFiles(root="data/distilled", train="train", test=())

config = replace(
    base,
    name="multi30k_student",
    model=replace(base.model, n_encoder_layers=4, n_decoder_layers=2),
    data=replace(
        base.data,
        corpus=Mixture(
            parts=(
                Weighted(name="real", corpus=MULTI30K),
                Weighted(name="distilled", corpus=DISTILLED),
            )
        ),
    ),
    train=replace(base.train, max_epochs=12, log_attention=False),
)
