"""Beam search over log-probabilities, batched over sentences and beams; diverse with groups."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, takewhile

import torch
import torch.nn.functional as F
from torch import Tensor

from models.decoding.hypothesis import (
    Hypothesis,
    Limits,
    allowed_log_probs,
    best_tokens,
    length_penalty,
    never_generated,
    steps_between_looks,
)
from models.decoding.protocol import SearchModel
from models.decoding.stepwise import greedy_search
from models.linear import weights_fixed


class Pool:
    """The best hypotheses of each sentence that no longer grow: at most K, best first."""

    def __init__(
        self, batch: int, beam_size: int, longest: int, eos_id: int, device: torch.device
    ) -> None:
        self.scores = torch.full((batch, beam_size), -torch.inf, dtype=torch.float64, device=device)
        self.log_probs = torch.full_like(self.scores, -torch.inf)
        self.eos_id = eos_id
        self.ids = torch.full((batch, beam_size, longest), eos_id, device=device)

    def add(self, log_probs: Tensor, penalty: float, ids: Tensor) -> None:
        """Offer candidates: log_probs [B,N], -inf for none; ids [B,N,T] without EOS."""
        scores = torch.cat((self.scores, log_probs / penalty), dim=1)
        self.scores, index = scores.topk(self.scores.shape[1], dim=1)
        self.log_probs = torch.cat((self.log_probs, log_probs), dim=1).gather(1, index)
        padded = F.pad(ids, (0, self.ids.shape[2] - ids.shape[2]), value=self.eos_id)
        all_ids = torch.cat((self.ids, padded), dim=1)
        self.ids = all_ids.gather(1, index[:, :, None].expand(-1, -1, all_ids.shape[2]))

    def select(self, rows: Tensor) -> None:
        self.scores, self.log_probs = self.scores[rows], self.log_probs[rows]
        self.ids = self.ids[rows]

    def hypotheses(self, rows: list[int], *, finished: bool) -> list[list[Hypothesis]]:
        """The hypotheses it holds for the given sentences."""
        return [
            [
                Hypothesis(tuple(takewhile(self.eos_id.__ne__, ids)), log_prob, score, finished)
                for ids, log_prob, score in zip(*row)
                if score > -float("inf")
            ]
            for row in zip(*(f[rows].tolist() for f in (self.ids, self.log_probs, self.scores)))
        ]


@dataclass(frozen=True, slots=True)
class Extension:
    """What one step makes of the K hypotheses of each sentence, [B,K] each, best first.

    ended: the log-probabilities of those that end in EOS, -inf elsewhere. live: the same for those
    that go on, each from its `origin` with its `token`.
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
    """From the 2K best candidates, those of the first K that end, and the best K that go on: each
    hypothesis has one way to end, so among 2K at least K go on.

    live [B,K]: sums of log-probabilities; log_probs [B,K,V]: of the next token. `deduction` [B,1,V]
    is subtracted from the log-probabilities for ranking candidates, and there alone.
    """
    beam_size = live.shape[1]
    ranked_by = log_probs if deduction is None else log_probs - deduction
    # The best 2K of a sentence are among the best 2K of each beam: no float64 [K,V] is needed.
    n_each = min(2 * beam_size, log_probs.shape[-1])
    top, top_tokens = best_tokens(ranked_by, n_each)
    candidates = (live[:, :, None] + top).flatten(1)
    ranks, flat = candidates.topk(min(2 * beam_size, candidates.shape[1]), dim=1)
    origin, token = flat // n_each, top_tokens.flatten(1).gather(1, flat)
    ends = token == eos_id
    # EOS sinks to the end of the sorted list.
    on, index = ranks.masked_fill(ends, -torch.inf).topk(beam_size, dim=1)
    scores = ranks
    if deduction is not None:
        scores = (live[:, :, None] + log_probs.gather(2, top_tokens)).flatten(1).gather(1, flat)
        on = scores.masked_fill(ends, -torch.inf).gather(1, index)
    return Extension(
        ended=torch.where(ends[:, :beam_size], scores[:, :beam_size], -torch.inf),
        ended_origin=origin[:, :beam_size],
        live=on,
        origin=origin.gather(1, index),
        token=token.gather(1, index),
    )


class Group:
    """One of the groups that share the beam: its live hypotheses, and pools for each sentence."""

    def __init__(
        self, batch: int, size: int, longest: int, eos_id: int, device: torch.device
    ) -> None:
        self.live = torch.full((batch, size), -torch.inf, dtype=torch.float64, device=device)
        self.live[:, 0] = 0.0  # one hypothesis at the start: the others would only repeat it
        self.ids = torch.zeros(batch, size, 0, dtype=torch.long, device=device)
        self.finished = Pool(batch, size, longest, eos_id, device)
        self.cut_off = Pool(batch, size, longest, eos_id, device)

    def select(self, rows: Tensor) -> None:
        self.live, self.ids = self.live[rows], self.ids[rows]
        self.finished.select(rows)
        self.cut_off.select(rows)


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
    watch: Callable[[Tensor, Extension, Tensor], None] | None = None,
) -> list[list[Hypothesis]]:
    """src [B,S] -> for each sentence up to n_best different hypotheses, best score first.

    Each step extends the K live hypotheses of a sentence to the 2K best candidates. Those among the
    first K that end in EOS go to a pool of finished hypotheses, and the best K others live on. A
    sentence is done when n_best are finished and no live hypothesis can still overtake the last of
    these. Log-probabilities only fall, so the final score of a live one is at most its present sum
    over the penalty of the longest length. A single beam ends with its first EOS, so that it is
    greedy search: the runner-up of that step was never its hypothesis. Hypotheses cut off at the
    length limit rank behind finished ones.

    With groups this is diverse beam search (Vijayakumar et al. 2016, algorithm 1 with Hamming
    diversity). Each group is a beam search of K = beam_size / groups. At each step the groups
    choose one after the other, by log-probability minus `strength` for every hypothesis of an
    earlier group that goes on with the same token. The deduction steers the choice, not the score.

    `watch` gets every step of every group: the log-probabilities [B,K,V] of the next tokens, what
    `extend` made of them, and which sentences are settled by it [B].

    n_best is at most beam_size, which is a multiple of groups.
    """
    if beam_size == 1 and watch is None:  # so that ties, frequent in bfloat16, give the same token
        return greedy_search(model, src, limits)
    device, batch, size, eos_id = src.device, src.shape[0], beam_size // groups, limits.eos_id
    max_lengths = limits.max_lengths(src, model.pad_id)
    looks = steps_between_looks(device)
    shortest, longest = int(max_lengths.min()), int(max_lengths.max())
    never = never_generated(pad_id=model.pad_id, bos_id=limits.bos_id, eos_id=eos_id)
    ruled_out = torch.tensor(never, dtype=torch.long, device=device)
    state = model.init_state(model.encode(src), beam_size=beam_size, max_len=longest)

    beam = [Group(batch, size, longest, eos_id, device) for _ in range(groups)]
    last_wanted = min(n_best, size) - 1
    penalties = length_penalty(torch.arange(longest + 1.0).double(), limits.alpha).tolist()
    penalty_at_limit = length_penalty(max_lengths.double(), limits.alpha)
    found: list[list[Hypothesis]] = [[] for _ in range(batch)]
    alive = list(range(batch))  # the sentence behind each row of the state and of the groups
    tokens = torch.full((batch, beam_size), limits.bos_id, device=device)
    for length in range(1, longest + 1):
        log_probs = allowed_log_probs(model.decode_step(tokens, state), ruled_out)
        penalty = penalties[length]
        # how often earlier groups went on with each token
        taken = log_probs.new_zeros(len(alive), log_probs.shape[-1]) if strength else None
        origin: list[Tensor] = []
        for group, of_group in zip(beam, log_probs.split(size, dim=1)):
            deduction = None if taken is None else strength * taken[:, None]
            step = extend(group.live, of_group, eos_id, deduction=deduction)
            if looks > 1 or step.ended.amax() > -torch.inf:
                group.finished.add(step.ended, penalty, step.ended_ids(group.ids))
            best_live = step.live[:, 0] if deduction is None else step.live.amax(dim=1)
            settled = group.finished.scores[:, last_wanted] >= best_live / penalty_at_limit
            if size == 1:
                settled |= step.ended[:, 0] > -torch.inf
            if watch is not None:
                watch(of_group, step, settled)
            # A settled group has no live hypothesis any more.
            live = step.live.masked_fill(settled[:, None], -torch.inf)
            group.ids = step.live_ids(group.ids)
            if taken is not None:
                taken.scatter_add_(1, step.token, (live > -torch.inf).to(taken.dtype))
            if length >= shortest:
                at_limit = (max_lengths <= length)[:, None]
                cut_off = live.masked_fill(~at_limit, -torch.inf)
                group.cut_off.add(cut_off, penalty, group.ids)
                live = live.masked_fill(at_limit, -torch.inf)
            group.live = live
            origin.append(step.origin + len(origin) * size)
        going = list(range(len(alive)))
        if length % looks == 0 or length == longest:
            live = _together([group.live for group in beam]).amax(dim=1)
            going = [row for row, best in enumerate(live.tolist()) if best > -float("inf")]
        if len(going) < len(alive):
            gone = sorted(set(range(len(alive))).difference(going))
            pools = [group.finished.hypotheses(gone, finished=True) for group in beam]
            pools += [group.cut_off.hypotheses(gone, finished=False) for group in beam]
            for row, *of_row in zip(gone, *pools):
                found[alive[row]] = _best_of(chain(*of_row))[:n_best]
        if not going:
            break
        if size > 1:  # else each hypothesis is its own origin
            state.reorder(_together(origin))
        if len(going) < len(alive):
            rows = torch.tensor(going, device=device)
            state.select(rows)
            alive = [alive[row] for row in going]
            max_lengths, penalty_at_limit = max_lengths[rows], penalty_at_limit[rows]
            for group in beam:
                group.select(rows)
        tokens = _together([group.ids[:, :, -1] for group in beam])
    return found


def _together(of_groups: list[Tensor]) -> Tensor:
    """The tensors of all groups, [B,K] each, joined for the whole beam."""
    return of_groups[0] if len(of_groups) == 1 else torch.cat(of_groups, dim=1)


def _best_of(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """The distinct ones, best first; those cut off at the limit come after the others."""
    different: dict[tuple[bool, tuple[int, ...]], Hypothesis] = {}
    for hypothesis in hypotheses:
        different.setdefault((hypothesis.finished, hypothesis.ids), hypothesis)
    return sorted(different.values(), key=lambda h: (not h.finished, -h.score))
