"""Greedy search: the most probable token at each step. It returns what beam search returns with one
beam.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.decoding.hypothesis import (
    Hypothesis,
    allowed_log_probs,
    best_tokens,
    length_limits,
    length_penalty,
    never_generated,
)
from models.decoding.protocol import SearchModel
from models.linear import weights_fixed


@torch.inference_mode()
@weights_fixed()
def greedy_search(
    model: SearchModel,
    src: Tensor,
    *,
    bos_id: int,
    eos_id: int,
    max_len: int,
    max_len_ratio: float,
    alpha: float = 0.0,
) -> list[Hypothesis]:
    """src [B,S] -> one hypothesis for each sentence. alpha only scales the reported score (see
    `length_penalty`).
    """
    device, batch = src.device, src.shape[0]
    limits = length_limits(src, pad_id=model.pad_id, ratio=max_len_ratio, max_len=max_len)
    never = never_generated(pad_id=model.pad_id, bos_id=bos_id, eos_id=eos_id)
    longest = int(limits.max())
    state = model.init_state(model.encode(src), beam_size=1, max_len=longest)

    ids = torch.full((batch, longest), eos_id, device=device)
    lengths = torch.zeros(batch, dtype=torch.long, device=device)
    log_prob = torch.zeros(batch, dtype=torch.float64, device=device)
    finished = torch.zeros(batch, dtype=torch.bool, device=device)
    alive = torch.arange(batch, device=device)  # sentence behind each row of the state
    tokens = torch.full((batch, 1), bos_id, device=device)
    for step in range(longest):
        log_probs = allowed_log_probs(model.decode_step(tokens, state)[:, 0], never)
        best, choice = (top.squeeze(1) for top in best_tokens(log_probs, 1))
        log_prob[alive] += best
        ids[alive, step] = choice
        lengths[alive] = step + 1
        ended = choice == eos_id
        finished[alive] = ended
        keep = (~ended & (step + 1 < limits[alive])).nonzero().squeeze(1)
        if len(keep) == 0:
            break
        if len(keep) < len(alive):
            state.select(keep)
            alive, choice = alive[keep], choice[keep]
        tokens = choice[:, None]

    scores = log_prob / length_penalty(lengths.double(), alpha)
    n_ids = lengths - finished.long()
    rows = zip(ids.tolist(), n_ids.tolist(), log_prob.tolist(), scores.tolist(), finished.tolist())
    return [Hypothesis(tuple(row[:n]), total, score, done) for row, n, total, score, done in rows]
