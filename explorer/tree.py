"""A beam search of one sentence as a tree: every candidate of every step, and its fate."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from models.decoding.beam import Extension, beam_search
from models.decoding.hypothesis import Limits, length_penalty
from models.decoding.protocol import SearchModel

LIKELIEST = 8  # tokens of a distribution that are kept


def likeliest(log_probs: Tensor, pieces: Callable[[list[int]], list[str]]) -> list[list[Any]]:
    """The likeliest tokens of one distribution [V], best first: [piece, log-probability] each."""
    values, ids = log_probs.topk(min(LIKELIEST, len(log_probs)))
    found = zip(pieces(ids.tolist()), values.tolist())
    return [[piece, round(value, 5)] for piece, value in found if value > -float("inf")]


@dataclass
class BeamTree:
    """Grows while a search runs: it is the `watch` of `beam_search`.

    nodes: one for each candidate among the best 2K of a step. `parent` is a node, `sum` the
    log-probability so far, `score` that over the length penalty, `rank` (from 1) its place among
    the step's candidates. fate:
        lives      goes on
        ended      by EOS among the first K: finished
        late       by EOS behind the first K, where it does not count
        outranked  K better ones go on
        cut_off    at the length limit
        overtaken  it would go on, but the search ended: it could no longer win, or was no
                   hypothesis of a single beam, which ends with its first EOS
    steps: the nodes that were extended (`live`), their likeliest next tokens, the nodes that were
    `made`, the `bound` that a live hypothesis can still reach, and the score of the finished
    hypothesis (`last`, of n_best) that has to be overtaken.
    """

    limits: Limits
    longest: int
    beam_size: int
    n_best: int
    pieces: Callable[[list[int]], list[str]]

    def __post_init__(self) -> None:
        self.nodes: list[dict[str, Any]] = [{"parent": None, "piece": "", "sum": 0.0}]
        self.steps: list[dict[str, Any]] = []
        self.ids: list[tuple[int, ...]] = [()]  # for each node
        self._slots: dict[int, int] = {0: 0}  # slot of the beam -> the node that lives there

    def _penalty(self, length: int) -> float:
        return float(length_penalty(torch.tensor(length, dtype=torch.float64), self.limits.alpha))

    def __call__(self, log_probs: Tensor, step: Extension, settled: Tensor) -> None:
        """Add one step: log_probs [1,K,V] of the next tokens, and the result of `extend`."""
        if not self._slots:
            return
        length, eos = len(self.steps) + 1, self.limits.eos_id
        live, origin, token, ended, ended_origin = (
            x[0].tolist()
            for x in (step.live, step.origin, step.token, step.ended, step.ended_origin)
        )
        slot_of = {
            pair: slot for slot, pair in enumerate(zip(origin, token)) if live[slot] > -torch.inf
        }
        finished = {slot for slot, total in zip(ended_origin, ended) if total > -torch.inf}
        over = bool(settled[0])
        goes_on = "overtaken" if over else "cut_off" if length >= self.longest else "lives"
        # Of equals those that ended come first: they were among the first K.
        fates = {(slot, eos): "ended" for slot in finished} | dict.fromkeys(slot_of, goes_on)

        rows = list(self._slots)
        sums = [[self.nodes[node]["sum"]] for node in self._slots.values()]
        totals = torch.tensor(sums, dtype=torch.float64) + log_probs[0, rows].double().cpu()
        totals, n_tokens = totals.flatten(), totals.shape[1]
        likely = totals.topk(min(2 * self.beam_size, len(totals))).indices.tolist()
        # Those that the search chose come first where it chose among equal ones.
        best = [rows.index(slot) * n_tokens + token for slot, token in fates]
        best += [place for place in likely if place not in best][: len(likely) - len(best)]
        of_place = dict(zip(best, totals[best].tolist()))
        made, slots = [], {}
        for rank, place in enumerate(sorted(best, key=of_place.__getitem__, reverse=True), start=1):
            total, (row, chosen) = of_place[place], divmod(place, n_tokens)
            if total == -torch.inf:
                break
            pair = (rows[row], chosen)
            fate = fates.get(pair, "late" if chosen == eos else "outranked")
            made.append(self._add(self._slots[rows[row]], chosen, total, length, rank, fate))
            if fate == "lives":
                slots[slot_of[pair]] = made[-1]
        scores = [node["score"] for node in self.nodes if node.get("fate") == "ended"]
        scores.sort(reverse=True)
        self.steps.append(
            {
                "live": list(self._slots.values()),
                "likeliest": [likeliest(log_probs[0, row], self.pieces) for row in rows],
                "made": made,
                "bound": max(live) / self._penalty(self.longest),
                "last": scores[self.n_best - 1] if len(scores) >= self.n_best else None,
            }
        )
        self._slots = slots

    def _add(self, parent: int, token: int, total: float, length: int, rank: int, fate: str) -> int:
        [piece] = self.pieces([token])
        self.nodes.append(
            {
                "parent": parent,
                "piece": piece,
                "sum": total,
                "log_prob": total - self.nodes[parent]["sum"],
                "score": total / self._penalty(length),
                "rank": rank,
                "fate": fate,
            }
        )
        self.ids.append((*self.ids[parent], token))
        return len(self.nodes) - 1


def searched(
    model: SearchModel,
    src: Tensor,
    limits: Limits,
    *,
    beam_size: int,
    n_best: int,
    pieces: Callable[[list[int]], list[str]],
) -> tuple[BeamTree, list[dict[str, Any]]]:
    """The tree of a search for src [1,S], and its results, best first: ids, scores and node."""
    longest = int(limits.max_lengths(src, model.pad_id))
    tree = BeamTree(limits, longest, beam_size, n_best, pieces)
    [found] = beam_search(model, src, limits, beam_size=beam_size, n_best=n_best, watch=tree)
    node_of = {ids: node for node, ids in enumerate(tree.ids)}
    ends = [(*h.ids, limits.eos_id) if h.finished else h.ids for h in found]
    return tree, [{"node": node_of[ids], **asdict(h)} for ids, h in zip(ends, found)]
