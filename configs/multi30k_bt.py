"""Back-translation: Multi30k's pairs, and English text with a reverse model's French.

The commands: docs/usage.md, "Making pairs". Not trained at this size;
docs/results/methods_of_training.md has the gain for a smaller model. Why each choice:
- a tag before each synthetic sentence: the model can tell machine French from human French (Caswell
  et al. 2019).
- each pair once an epoch: raise the weight of the real part where there is much more synthetic
  text.
- validation and tests are those of the first part, the real one.
"""

from dataclasses import replace

from configs.multi30k_small_rope import MULTI30K, config as base
from configs.schema import Mixture, ParallelFiles, Weighted

SYNTHETIC = ParallelFiles(root="data/bt", train="train", test=())
TOGETHER = Mixture(
    parts=(Weighted(name="real", corpus=MULTI30K), Weighted(name="synthetic", corpus=SYNTHETIC))
)

config = replace(base, data=replace(base.data, corpus=TOGETHER))
