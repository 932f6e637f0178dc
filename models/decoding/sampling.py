"""Ancestral sampling: translations drawn from the model token by token, from all tokens or the most
probable ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from models.decoding.hypothesis import (
    Hypothesis,
    allowed_log_probs,
    length_limits,
    length_penalty,
    never_generated,
)
from models.decoding.protocol import SearchModel
from models.linear import weights_fixed


def truncated(
    log_probs: Tensor, *, temperature: float, top_k: int | None, top_p: float | None
) -> tuple[Tensor, Tensor]:
    """log_probs [...,V] -> the probabilities that are drawn from and the ids of their tokens,
    [...,N] each.

    p ~ exp(log_prob / temperature). Of these the top_k most probable tokens (Fan et al. 2018), of
    what they leave the nucleus: the fewest, from the most probable down, whose probability is at
    least top_p (Holtzman et al. 2020, section 3.1). Each time the rest gets 0 and what is left is
    normalised. In float64.
    """
    probs = (log_probs.double() / temperature).softmax(dim=-1)
    ids = torch.arange(probs.shape[-1], device=probs.device).expand(probs.shape)
    if top_k is not None:
        probs, ids = probs.topk(min(top_k, probs.shape[-1]), dim=-1)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    if top_p is not None:
        probs, order = probs.sort(dim=-1, descending=True, stable=True)
        ids = ids.gather(-1, order)
        before = probs.cumsum(dim=-1) - probs
        before[..., 0] = 0.0  # the most probable token always stays
        probs = probs.masked_fill(before >= top_p, 0.0)
        probs = probs / probs.sum(dim=-1, keepdim=True)
    return probs, ids


def draw(probs: Tensor, uniform: Tensor) -> Tensor:
    """probs [...,N] in any order, uniform [...] in [0, 1) -> indices [...]: the inverse of the
    distribution function.

    Index i is drawn where p_0 + ... + p_(i-1) <= u < p_0 + ... + p_i, so that what has no
    probability is never drawn.
    """
    cumulative = probs.cumsum(dim=-1)
    total = cumulative[..., -1:]  # 1 but for rounding
    below = torch.nextafter(total, torch.zeros_like(total))
    return torch.searchsorted(
        cumulative, torch.minimum(uniform[..., None] * total, below), right=True
    ).squeeze(-1)


@torch.inference_mode()
@weights_fixed()
def sample_search(
    model: SearchModel,
    src: Tensor,
    *,
    bos_id: int,
    eos_id: int,
    n_samples: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    numbers: Sequence[int],
    alpha: float,
    max_len: int,
    max_len_ratio: float,
) -> list[list[Hypothesis]]:
    """src [B,S] -> for each sentence n_samples independent translations (equal ones among them),
    best score first.

    All chance comes from (seed, the sentence's number, sample, step): what is translated beside it
    changes nothing. log_prob is the model's own, without temperature and truncation.
    """
    device, batch = src.device, src.shape[0]
    limits = length_limits(src, pad_id=model.pad_id, ratio=max_len_ratio, max_len=max_len)
    never = never_generated(pad_id=model.pad_id, bos_id=bos_id, eos_id=eos_id)
    longest = int(limits.max())
    state = model.init_state(model.encode(src), beam_size=n_samples, max_len=longest)
    noise = np.stack(
        [np.random.default_rng((seed, number)).random((longest, n_samples)) for number in numbers]
    )
    uniform = torch.from_numpy(noise).to(
        device
    )  # [B,T,K]; the first steps are the same whatever the longest is

    ids = torch.full((batch, n_samples, longest), eos_id, device=device)
    lengths = torch.zeros(batch, n_samples, dtype=torch.long, device=device)
    log_prob = torch.zeros(batch, n_samples, dtype=torch.float64, device=device)
    finished = torch.zeros(batch, n_samples, dtype=torch.bool, device=device)
    alive = torch.arange(batch, device=device)  # sentence behind each row of the state
    tokens = torch.full((batch, n_samples), bos_id, device=device)
    for step in range(longest):
        log_probs = allowed_log_probs(model.decode_step(tokens, state), never)
        probs, candidates = truncated(log_probs, temperature=temperature, top_k=top_k, top_p=top_p)
        tokens = candidates.gather(-1, draw(probs, uniform[alive, step])[..., None]).squeeze(-1)
        going = ~finished[alive]
        tokens = tokens.masked_fill(~going, eos_id)
        token_log_probs = log_probs.gather(-1, tokens[..., None]).squeeze(-1).double()
        log_prob[alive] += token_log_probs.masked_fill(~going, 0.0)
        ids[alive, :, step] = tokens
        lengths[alive] += going
        finished[alive] |= tokens == eos_id
        keep = ((~finished[alive]).any(dim=1) & (step + 1 < limits[alive])).nonzero().squeeze(1)
        if len(keep) == 0:
            break
        if len(keep) < len(alive):
            state.select(keep)
            alive, tokens = alive[keep], tokens[keep]

    scores = log_prob / length_penalty(lengths.double(), alpha)
    n_ids = lengths - finished.long()
    found = []
    for row in zip(
        ids.tolist(), n_ids.tolist(), log_prob.tolist(), scores.tolist(), finished.tolist()
    ):
        samples = [
            Hypothesis(tuple(i[:n]), total, score, done) for i, n, total, score, done in zip(*row)
        ]
        found.append(sorted(samples, key=lambda h: -h.score))
    return found
