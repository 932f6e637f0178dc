r"""One small model that learns from several: Multi30k's pairs, and its teachers' translations.

    python train.py --config configs/multi30k_long.py --threads 1     # and with train.seed=1, ...
    python back_translate.py --distill --model_path RUN_0 RUN_1 RUN_2 --output data/distilled/train
    python train.py --config configs/multi30k_student.py --threads 1
    python export.py --format ctranslate2 --quantization int8 --output_dir ct2

Sequence-level knowledge distillation (Kim and Rush 2016). Alone it translates about as well as its
three teachers together (docs/results/multi30k.md). Why each choice:
- human English beside the teachers': the teachers' is more regular, and wrong where they are.
- the teachers' own recipe: with less noise and a third of the time it was 1 to 3 points worse.
- four encoder layers and two decoder layers: the decoder takes most of the time in search (Kasai et
  al. 2021).
- RoPE: CTranslate2 has the same encoding.
- validation and tests are those of the first part, the real one.
"""

from dataclasses import replace

from configs.multi30k_long import config as base
from configs.multi30k_small_rope import MULTI30K
from configs.schema import Mixture, ParallelFiles, Rope, Weighted

DISTILLED = ParallelFiles(root="data/distilled", train="train", test=())
TAUGHT = Mixture(
    parts=(Weighted(name="real", corpus=MULTI30K), Weighted(name="distilled", corpus=DISTILLED))
)

config = replace(
    base,
    model=replace(base.model, position=Rope(), n_encoder_layers=4, n_decoder_layers=2),
    data=replace(base.data, corpus=TAUGHT),
    train=replace(base.train, max_epochs=28),
)
