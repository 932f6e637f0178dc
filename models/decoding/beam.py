"""Beam search over log-probabilities, batched over sentences and beams; diverse with groups."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from models.decoding.hypothesis import (
    Hypothesis,
    Limits,
    allowed_log_probs,
    best_tokens,
    length_penalty,
    never_generated,
)
from models.decoding.protocol import SearchModel
from models.linear import weights_fixed


class Pool:
    """The best hypotheses of each beam that do not live on: at most K, best first."""

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
        """Offer candidates of the beams `rows` [B']: scores, log_probs [B',N], ids [B',N,T].

        -inf is no candidate. `length` counts EOS. A score is normalised once, by the caller.
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
    """What one step makes of the K hypotheses of each sentence, [B,K] each, best first.

    ended: the log-probabilities of those that end in EOS, -inf elsewhere; live: of those that go
    on, each from its `origin` with its `token`.
    """

    ended: Tensor
    ended_origin: Tensor
    live: Tensor
    origin: Tensor
    token: Tensor

    def ended_ids(self, ids: Tensor) -> Tensor:
        """ids [B,K,T] before the step -> those of the ended hypotheses, without EOS."""
        return ids.gather(1, self.ended_origin[:, :, None].expand(-1, -1, ids.shape[2]))

    def live_ids(self, ids: Tensor) -> Tensor:
        """ids [B,K,T] before the step -> those of the live hypotheses, [B,K,T+1]."""
        before = ids.gather(1, self.origin[:, :, None].expand(-1, -1, ids.shape[2]))
        return torch.cat((before, self.token[:, :, None]), dim=2)


def extend(
    live: Tensor, log_probs: Tensor, eos_id: int, *, deduction: Tensor | None = None
) -> Extension:
    """Of the 2K best candidates those that end, where they are among the first K, and K that go on.

    live [B,K] sums of log-probabilities, log_probs [B,K,V] of the next token. `deduction` [B,1,V]
    is taken off the log-probabilities where candidates are ranked, and there alone.
    """
    beam_size = live.shape[1]
    ranked_by = log_probs if deduction is None else log_probs - deduction
    # The best 2K of a sentence are among the best 2K of each of its beams: a float64 [K,V] is not.
    n_each = min(2 * beam_size, log_probs.shape[-1])
    top, top_tokens = best_tokens(ranked_by, n_each)
    candidates = (live[:, :, None] + top).flatten(1)
    ranks, flat = candidates.topk(min(2 * beam_size, candidates.shape[1]), dim=1)
    scores = ranks
    if deduction is not None:
        scores = (live[:, :, None] + log_probs.gather(2, top_tokens)).flatten(1).gather(1, flat)
    origin, token = flat // n_each, top_tokens.flatten(1).gather(1, flat)
    ends = token == eos_id
    # EOS sinks to the end of the sorted list.
    _, index = ranks.masked_fill(ends, -torch.inf).topk(beam_size, dim=1)
    return Extension(
        ended=scores[:, :beam_size].masked_fill(~ends[:, :beam_size], -torch.inf),
        ended_origin=origin[:, :beam_size],
        live=scores.masked_fill(ends, -torch.inf).gather(1, index),
        origin=origin.gather(1, index),
        token=token.gather(1, index),
    )


class Group:
    """One of the groups that share the beam: its live hypotheses, and a pool for each sentence."""

    def __init__(
        self, batch: int, size: int, longest: int, eos_id: int, device: torch.device
    ) -> None:
        self.live = torch.full((batch, size), -torch.inf, dtype=torch.float64, device=device)
        self.live[:, 0] = 0.0  # one hypothesis at the start: the others would only repeat it
        self.ids = torch.zeros(batch, size, 0, dtype=torch.long, device=device)
        self.finished = Pool(batch, size, longest, eos_id, device)
        self.cut_off = Pool(batch, size, longest, eos_id, device)


@torch.inference_mode()
@weights_fixed()
def beam_search(
    model: SearchModel,
    src: Tensor,
    limits: Limits,
    *,
    beam_size: int,
    n_best: int,
    groups: int = 1,
    strength: float = 0.0,
) -> list[list[Hypothesis]]:
    """src [B,S] -> for each sentence up to n_best different hypotheses, best score first.

    Each step extends the K live hypotheses of a sentence to the 2K best candidates. Those among the
    first K that end in EOS go to a pool of finished hypotheses, and the best K others live on. A
    sentence is done when n_best are finished and no live hypothesis can still overtake the last of
    these: log-probabilities only fall, so a live one ends at most at its present sum over the
    penalty of the longest length. A single beam ends with its first EOS, so that it is greedy
    search: the runner-up of that step was never its hypothesis. Hypotheses cut off at the length
    limit rank behind finished ones.

    With groups this is diverse beam search (Vijayakumar et al. 2016, algorithm 1 with Hamming
    diversity). Each group is a beam search of K = beam_size / groups; at each step they choose one
    after the other, by log-probability less `strength` for every hypothesis of an earlier group
    that goes on with the same token. The deduction steers the choice alone: it enters no score.

    Raises ValueError for n_best > beam_size, and for a beam_size that the groups cannot share out.
    """
    if n_best > beam_size:
        raise ValueError(f"n_best = {n_best} is more than beam_size = {beam_size}")
    if beam_size % groups:
        raise ValueError(f"beam_size = {beam_size} cannot be shared out to {groups} groups")
    device, batch, size, eos_id = src.device, src.shape[0], beam_size // groups, limits.eos_id
    max_lengths = limits.max_lengths(src, model.pad_id)
    never = never_generated(pad_id=model.pad_id, bos_id=limits.bos_id, eos_id=eos_id)
    longest = int(max_lengths.max())
    state = model.init_state(model.encode(src), beam_size=beam_size, max_len=longest)

    beam = [Group(batch, size, longest, eos_id, device) for _ in range(groups)]
    last_wanted = min(n_best, size) - 1
    penalty_at_limit = length_penalty(max_lengths.double(), limits.alpha)
    alive = torch.arange(batch, device=device)  # sentence behind each row of the state
    tokens = torch.full((batch, beam_size), limits.bos_id, device=device)
    for length in range(1, longest + 1):
        log_probs = allowed_log_probs(model.decode_step(tokens, state), never)
        penalty = length_penalty(
            torch.tensor(float(length), dtype=torch.float64, device=device), limits.alpha
        )
        at_limit = length >= max_lengths[alive]
        cut = at_limit.nonzero().squeeze(1)
        # how often earlier groups went on with each token
        taken = log_probs.new_zeros(len(alive), log_probs.shape[-1]) if strength else None
        settled: list[Tensor] = []
        origin: list[Tensor] = []
        for group, of_group in zip(beam, log_probs.split(size, dim=1)):
            deduction = None if taken is None else strength * taken[:, None]
            step = extend(group.live, of_group, eos_id, deduction=deduction)
            rows = (step.ended > -torch.inf).any(dim=1).nonzero().squeeze(1)
            if len(rows):
                ended, ids = step.ended[rows], step.ended_ids(group.ids)[rows]
                group.finished.add(alive[rows], ended / penalty, ended, length, ids)
            best_ahead = step.live.amax(dim=1) / penalty_at_limit[alive]
            is_settled = group.finished.scores[alive, last_wanted] >= best_ahead
            if size == 1:
                is_settled |= step.ended[:, 0] > -torch.inf
            # Where a group is settled it has no live hypothesis any more.
            group.live = step.live.masked_fill(is_settled[:, None], -torch.inf)
            group.ids = step.live_ids(group.ids)
            if len(cut):
                live, ids = group.live[cut], group.ids[cut]
                group.cut_off.add(alive[cut], live / penalty, live, length, ids)
            if taken is not None:
                taken.scatter_add_(1, step.token, (group.live > -torch.inf).to(taken.dtype))
            origin.append(step.origin + len(origin) * size)
            settled.append(is_settled)
        keep = (~(at_limit | torch.stack(settled).all(dim=0))).nonzero().squeeze(1)
        if len(keep) == 0:
            break
        state.reorder(torch.cat(origin, dim=1))
        tokens = torch.cat([group.ids[:, :, -1] for group in beam], dim=1)
        if len(keep) < len(alive):
            state.select(keep)
            alive, tokens = alive[keep], tokens[keep]
            for group in beam:
                group.live, group.ids = group.live[keep], group.ids[keep]

    found = [collect(group.finished, finished=True) for group in beam]
    found += [collect(group.cut_off, finished=False) for group in beam]
    return [_best_of(itertools.chain(*of_sentence))[:n_best] for of_sentence in zip(*found)]


def collect(pool: Pool, *, finished: bool) -> list[list[Hypothesis]]:
    """What a pool holds for each sentence."""
    rows = zip(*(x.tolist() for x in (pool.ids, pool.lengths, pool.log_probs, pool.scores)))
    return [
        [
            Hypothesis(tuple(ids[: length - finished]), log_prob, score, finished)
            for ids, length, log_prob, score in zip(*row)
            if score > -float("inf")
        ]
        for row in rows
    ]


def _best_of(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """The different ones, best first; those cut off at the limit behind the others."""
    different: dict[tuple[bool, tuple[int, ...]], Hypothesis] = {}
    for hypothesis in hypotheses:
        different.setdefault((hypothesis.finished, hypothesis.ids), hypothesis)
    return sorted(different.values(), key=lambda h: (not h.finished, -h.score))
