"""Diverse beam search: the beam in groups, each of which keeps away from the tokens of those before
it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.decoding.beam import Pool, collect, extend
from models.decoding.hypothesis import (
    Hypothesis,
    allowed_log_probs,
    length_limits,
    length_penalty,
    never_generated,
)
from models.decoding.protocol import SearchModel
from models.linear import weights_fixed


@torch.inference_mode()
@weights_fixed()
def diverse_beam_search(
    model: SearchModel,
    src: Tensor,
    *,
    bos_id: int,
    eos_id: int,
    beam_size: int,
    groups: int,
    strength: float,
    n_best: int,
    alpha: float,
    max_len: int,
    max_len_ratio: float,
) -> list[list[Hypothesis]]:
    """src [B,S] -> for each sentence up to n_best different hypotheses of all groups, best score
    first.

    Each group is a beam search of beam_size / groups hypotheses. At each step the groups choose one
    after the other, by log-probability less `strength` for every hypothesis of an earlier group
    that goes on with the same token (Vijayakumar et al. 2016, algorithm 1 with Hamming diversity).
    The deduction steers the choice alone: it is not carried on, and scores are those of
    `beam_search`. One group of strength 0 is beam search. Raises ValueError for n_best > beam_size,
    and for a beam_size that the groups cannot share out.
    """
    if n_best > beam_size:
        raise ValueError(f"n_best = {n_best} is more than beam_size = {beam_size}")
    if beam_size % groups:
        raise ValueError(f"beam_size = {beam_size} cannot be shared out to {groups} groups")
    device, batch, size = src.device, src.shape[0], beam_size // groups
    limits = length_limits(src, pad_id=model.pad_id, ratio=max_len_ratio, max_len=max_len)
    never = never_generated(pad_id=model.pad_id, bos_id=bos_id, eos_id=eos_id)
    longest = int(limits.max())
    state = model.init_state(model.encode(src), beam_size=beam_size, max_len=longest)

    settled_at = min(n_best, size) - 1
    # A group of a sentence has a pool of its own: row b * groups + g.
    pool = Pool(batch * groups, size, longest, eos_id, device)
    cut_off = Pool(batch * groups, size, longest, eos_id, device)
    alive = torch.arange(batch, device=device)  # sentence behind each row of the state
    live = torch.full((batch, groups, size), -torch.inf, dtype=torch.float64, device=device)
    live[:, :, 0] = (
        0.0  # one hypothesis of each group at the start: the others would only repeat it
    )
    ids = torch.zeros(batch, groups, size, 0, dtype=torch.long, device=device)
    tokens = torch.full((batch, beam_size), bos_id, device=device)
    for step in range(longest):
        length = step + 1
        log_probs = allowed_log_probs(model.decode_step(tokens, state), never).unflatten(
            1, (groups, size)
        )
        penalty = length_penalty(
            torch.tensor(float(length), dtype=torch.float64, device=device), alpha
        )
        at_limit = length >= limits[alive]
        taken = log_probs.new_zeros(
            len(alive), log_probs.shape[-1]
        )  # how often earlier groups took each token
        next_live, next_ids = torch.empty_like(live), ids.new_empty(*ids.shape[:3], length)
        origin = torch.empty_like(live, dtype=torch.long)
        for g in range(groups):
            rows = alive * groups + g
            deduction = strength * taken[:, None, :] if strength else None
            chosen = extend(live[:, g], log_probs[:, g], eos_id, deduction=deduction)
            pool.add(
                rows, chosen.ended / penalty, chosen.ended, length, chosen.ended_ids(ids[:, g])
            )
            next_ids[:, g] = chosen.live_ids(ids[:, g])
            best_ahead = chosen.live.amax(dim=1) / length_penalty(limits[alive].double(), alpha)
            done = pool.scores[rows, settled_at] >= best_ahead
            if size == 1:
                done = done | (chosen.ended[:, 0] > -torch.inf)
            # A group that is done has no live hypothesis any more.
            next_live[:, g] = chosen.live.masked_fill(done[:, None], -torch.inf)
            taken.scatter_add_(1, chosen.token, (next_live[:, g] > -torch.inf).to(taken.dtype))
            origin[:, g] = chosen.origin + g * size
            if at_limit.any():
                cut = at_limit.nonzero().squeeze(1)
                log_prob = next_live[cut, g]
                cut_off.add(rows[cut], log_prob / penalty, log_prob, length, next_ids[cut, g])
        live, ids = next_live, next_ids
        keep = (~at_limit & (live > -torch.inf).flatten(1).any(dim=1)).nonzero().squeeze(1)
        if len(keep) == 0:
            break
        state.reorder(origin.flatten(1))
        tokens = ids[..., -1].flatten(1)
        if len(keep) < len(alive):
            state.select(keep)
            alive, live, ids, tokens = alive[keep], live[keep], ids[keep], tokens[keep]

    return [
        _merge(pool, cut_off, range(b * groups, (b + 1) * groups))[:n_best] for b in range(batch)
    ]


def _merge(pool: Pool, cut_off: Pool, rows: range) -> list[Hypothesis]:
    """The different hypotheses of one sentence's groups, best first; those cut off at the limit
    behind the others.
    """
    finished = [h for row in rows for h in collect(pool, row, finished=True)]
    unfinished = [h for row in rows for h in collect(cut_off, row, finished=False)]
    different: dict[tuple[bool, tuple[int, ...]], Hypothesis] = {}
    for hypothesis in finished + unfinished:
        different.setdefault((hypothesis.finished, hypothesis.ids), hypothesis)
    return sorted(different.values(), key=lambda h: (not h.finished, -h.score))
