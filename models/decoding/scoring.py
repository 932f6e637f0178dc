"""Forced decoding: how probable a given translation is."""

from __future__ import annotations

import torch
from torch import Tensor

from models.transformer import TranslationTransformer


@torch.inference_mode()
def score_targets(
    model: TranslationTransformer, src: Tensor, tgt_in: Tensor, tgt_out: Tensor
) -> Tensor:
    """src [B,S], tgt_in, tgt_out [B,T] (pad_id where there is no target) -> log-probabilities [B]
    of whole targets.
    """
    logits = model(src, tgt_in)
    exact = logits if logits.dtype == torch.float64 else logits.float()
    token = exact.log_softmax(dim=-1).gather(-1, tgt_out[:, :, None]).squeeze(-1)
    return token.masked_fill(tgt_out == model.pad_id, 0.0).sum(dim=1)
