"""An exponential moving average of the weights, kept during training."""

import copy

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from models.transformer import TranslationTransformer


class WeightAverage:
    """w_s = d_s w_(s-1) + (1 - d_s) weights_s after update s from 1; w_0 = the first weights.

    Averages of the iterates (Polyak and Juditsky 1992), with exponentially falling weight. The
    decay d_s is min(decay, (1 + s) / (10 + s)), so that the first weights are soon forgotten.
    There is no hidden state to resume: s and the two sets of weights decide an update. Buffers are
    not averaged, since training changes none. Shared weights stay shared.
    """

    def __init__(self, model: TranslationTransformer, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        pairs = zip(model.parameters(), self.model.parameters())
        trained = [(current, mean) for current, mean in pairs if current.requires_grad]
        self._current: list[Tensor] = [current for current, _ in trained]
        self._averages: list[Tensor] = [mean for _, mean in trained]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after update `step`, in one fused pass."""
        decay = min(self.decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(decay)(self._averages, self._current, step)
