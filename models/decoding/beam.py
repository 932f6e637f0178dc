"""Beam search over log-probabilities, batched over sentences and beams."""

from __future__ import annotations

from dataclasses import dataclass

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


class Pool:
    """The best finished hypotheses of each beam, apart from the live ones: at most K, best first."""

    def __init__(
        self, batch: int, beam_size: int, longest: int, eos_id: int, device: torch.device
    ) -> None:
        self.scores = torch.full((batch, beam_size), -torch.inf, dtype=torch.float64, device=device)
        self.log_probs = torch.full_like(self.scores, -torch.inf)
        self.lengths = torch.zeros(batch, beam_size, dtype=torch.long, device=device)
        self.ids = torch.full((batch, beam_size, longest), eos_id, device=device)

    def add(
        self, rows: Tensor, scores: Tensor, log_probs: Tensor, length: int, ids: Tensor
    ) -> None:
        """Offer candidates of the beams `rows` [B']: scores, log_probs [B',N] (-inf = none), ids
        [B',N,T].

        `length` counts EOS. Every candidate is normalised once, here by its caller, and never
        again.
        """
        n_new = scores.shape[1]
        padded = self.ids.new_full((*scores.shape, self.ids.shape[2]), 0)
        padded[:, :, : ids.shape[2]] = ids
        all_scores = torch.cat((self.scores[rows], scores), dim=1)
        kept, index = all_scores.topk(self.scores.shape[1], dim=1)
        self.scores[rows] = kept
        self.log_probs[rows] = torch.cat((self.log_probs[rows], log_probs), dim=1).gather(1, index)
        new_lengths = torch.full((len(rows), n_new), length, device=scores.device)
        self.lengths[rows] = torch.cat((self.lengths[rows], new_lengths), dim=1).gather(1, index)
        all_ids = torch.cat((self.ids[rows], padded), dim=1)
        self.ids[rows] = all_ids.gather(1, index[:, :, None].expand(-1, -1, all_ids.shape[2]))


@dataclass(frozen=True, slots=True)
class Extension:
    """What one step makes of the K hypotheses of each sentence, [B,K] each: sums of
    log-probabilities, best first.

    ended: of those that end in EOS, -inf elsewhere; live: of those that go on, each from its
    `origin` with its `token`.
    """

    ended: Tensor
    ended_origin: Tensor
    live: Tensor
    origin: Tensor
    token: Tensor

    def ended_ids(self, ids: Tensor) -> Tensor:
        """ids [B,K,T] of the hypotheses before the step -> those of the ended ones, without EOS."""
        return ids.gather(1, self.ended_origin[:, :, None].expand(-1, -1, ids.shape[2]))

    def live_ids(self, ids: Tensor) -> Tensor:
        """ids [B,K,T] of the hypotheses before the step -> those of the live ones, [B,K,T+1]."""
        before = ids.gather(1, self.origin[:, :, None].expand(-1, -1, ids.shape[2]))
        return torch.cat((before, self.token[:, :, None]), dim=2)


def extend(
    live: Tensor, log_probs: Tensor, eos_id: int, *, deduction: Tensor | None = None
) -> Extension:
    """live [B,K], log_probs [B,K,V] of the next token -> of the 2K best candidates those that end,
    and K that go on.

    Those that end count where they are among the first K. `deduction` [B,1,V] is taken off the
    log-probabilities where candidates are ranked, and there alone.
    """
    beam_size = live.shape[1]
    ranked_by = log_probs if deduction is None else log_probs - deduction
    # The best 2K of a sentence are among the best 2K of each of its beams: a float64 [K,V] is never
    # made.
    n_each = min(2 * beam_size, log_probs.shape[-1])
    top, top_tokens = best_tokens(ranked_by, n_each)
    candidates = (live[:, :, None] + top).flatten(1)
    ranks, flat = candidates.topk(min(2 * beam_size, candidates.shape[1]), dim=1)
    scores = ranks
    if deduction is not None:
        scores = (live[:, :, None] + log_probs.gather(2, top_tokens)).flatten(1).gather(1, flat)
    origin, token = flat // n_each, top_tokens.flatten(1).gather(1, flat)
    ends = token == eos_id
    # EOS sinks to the end of the (sorted) list.
    _, index = ranks.masked_fill(ends, -torch.inf).topk(beam_size, dim=1)
    return Extension(
        ended=scores[:, :beam_size].masked_fill(~ends[:, :beam_size], -torch.inf),
        ended_origin=origin[:, :beam_size],
        live=scores.masked_fill(ends, -torch.inf).gather(1, index),
        origin=origin.gather(1, index),
        token=token.gather(1, index),
    )


@torch.inference_mode()
@weights_fixed()
def beam_search(
    model: SearchModel,
    src: Tensor,
    *,
    bos_id: int,
    eos_id: int,
    beam_size: int,
    n_best: int,
    alpha: float,
    max_len: int,
    max_len_ratio: float,
) -> list[list[Hypothesis]]:
    """src [B,S] -> for each sentence up to n_best hypotheses, best score first.

    Each step extends the K live hypotheses of a sentence to the 2K best candidates. Those among the
    first K that end in EOS go to a pool of finished hypotheses, and the best K others live on. A
    sentence is done when n_best are finished and no live hypothesis can still overtake the last of
    these: log-probabilities only fall, so a live one ends at most at its present sum over the
    penalty of the longest length. A single beam ends with its first EOS, so that it is greedy
    search: the runner-up of that step was never its hypothesis. Hypotheses cut off at the length
    limit rank behind finished ones. Raises ValueError for n_best > beam_size.
    """
    if n_best > beam_size:
        raise ValueError(f"n_best = {n_best} is more than beam_size = {beam_size}")
    device, batch = src.device, src.shape[0]
    limits = length_limits(src, pad_id=model.pad_id, ratio=max_len_ratio, max_len=max_len)
    never = never_generated(pad_id=model.pad_id, bos_id=bos_id, eos_id=eos_id)
    longest = int(limits.max())
    state = model.init_state(model.encode(src), beam_size=beam_size, max_len=longest)

    pool = Pool(batch, beam_size, longest, eos_id, device)
    cut_off = Pool(batch, beam_size, longest, eos_id, device)
    alive = torch.arange(batch, device=device)  # sentence behind each row of the state
    live = torch.full((batch, beam_size), -torch.inf, dtype=torch.float64, device=device)
    live[:, 0] = 0.0  # one hypothesis at the start: the others would only repeat it
    ids = torch.zeros(batch, beam_size, 0, dtype=torch.long, device=device)
    tokens = torch.full((batch, beam_size), bos_id, device=device)
    for step in range(longest):
        length = step + 1
        log_probs = allowed_log_probs(model.decode_step(tokens, state), never)
        chosen = extend(live, log_probs, eos_id)
        penalty = length_penalty(
            torch.tensor(float(length), dtype=torch.float64, device=device), alpha
        )
        rows = (chosen.ended > -torch.inf).any(dim=1).nonzero().squeeze(1)
        if len(rows):
            ended = chosen.ended[rows]
            pool.add(alive[rows], ended / penalty, ended, length, chosen.ended_ids(ids)[rows])
        live, ids, tokens = chosen.live, chosen.live_ids(ids), chosen.token

        at_limit = length >= limits[alive]
        if at_limit.any():
            rows = at_limit.nonzero().squeeze(1)
            cut_off.add(alive[rows], live[rows] / penalty, live[rows], length, ids[rows])
        best_ahead = live[:, 0] / length_penalty(limits[alive].double(), alpha)
        if beam_size == 1:
            best_ahead = torch.where(chosen.ended[:, 0] > -torch.inf, -torch.inf, best_ahead)
        done = at_limit | (pool.scores[alive, n_best - 1] >= best_ahead)
        keep = (~done).nonzero().squeeze(1)
        if len(keep) == 0:
            break
        state.reorder(chosen.origin)
        if len(keep) < len(alive):
            state.select(keep)
            alive, live, ids, tokens = alive[keep], live[keep], ids[keep], tokens[keep]

    return [
        (collect(pool, sentence, finished=True) + collect(cut_off, sentence, finished=False))[
            :n_best
        ]
        for sentence in range(batch)
    ]


def collect(pool: Pool, sentence: int, *, finished: bool) -> list[Hypothesis]:
    """What a pool holds in one of its rows."""
    rows = zip(
        pool.ids[sentence].tolist(),
        pool.lengths[sentence].tolist(),
        pool.log_probs[sentence].tolist(),
        pool.scores[sentence].tolist(),
    )
    return [
        Hypothesis(tuple(ids[: length - finished]), log_prob, score, finished)
        for ids, length, log_prob, score in rows
        if score > -float("inf")
    ]
