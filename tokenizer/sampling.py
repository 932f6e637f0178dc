"""Segmentations drawn at random: BPE-dropout, and sampling from a unigram model.

Both work on one word at a time, as cut by the pre-tokenizer. Their randomness comes from numbers
handed in, so that a draw can be repeated. The results of draws are remembered for each word.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

LONGEST_WORD = 50  # characters of a word that is remembered; other scripts have longer ones
REMEMBERED = 300_000  # states of words: some hundred bytes each
LATTICES = 50_000  # of words: some thousand bytes each
# An unknown character scores this much below the worst piece, as without sampling.
UNKNOWN_PENALTY = 10.0

Ids = tuple[int, ...]
Spell = Callable[[str], Ids]  # a character to its id, to those of its bytes, or to the unknown id
Sampler = Callable[[str, np.random.Generator], list[int]]  # a text to ids that end in EOS


@dataclass(slots=True, eq=False)
class _State:
    """A partly merged word: its ids, the places of possible merges (best first), their results."""

    ids: Ids
    places: list[int]
    kept: bool  # remembered; only then are its results
    following: dict[int, "_State"] = field(default_factory=dict)


@dataclass(eq=False)
class BpeDropout:
    """BPE-dropout (Provilkov et al. 2020, algorithm 1).

    At each step every possible merge is left out independently with probability p, and the best of
    the rest is done; the word is finished when none is left. The best that remains is number k
    (from 0) with probability p^k (1 - p), so that one geometric draw replaces all draws of a step.
    """

    spell: Spell
    merges: Mapping[tuple[int, int], tuple[int, int]]  # (left id, right id) -> (rank, merged id)
    unk_id: int
    probability: float

    def __post_init__(self) -> None:
        self._first: dict[str, _State] = {}
        self._room = REMEMBERED

    def draws(self, n: int, rng: np.random.Generator) -> list[int]:
        """The number of merges to leave out at each step: k with probability p^k (1 - p)."""
        left_out = np.floor(np.log1p(-rng.random(n)) / math.log(self.probability))
        return left_out.astype(np.int64).tolist()

    def segment(self, word: str, draws: Iterator[int]) -> Ids:
        """The ids of the pieces. At most len(word) draws are taken."""
        state = self._first.get(word)
        if state is None:
            ids = _fused([i for char in word for i in self.spell(char)], self.unk_id)
            state = self._state(ids, self._first, word, keep=len(ids) <= LONGEST_WORD)
        while state.places:
            k = next(draws)
            if k >= len(state.places):
                break
            state = state.following.get(k) or self._follow(state, k)
        return state.ids

    def _follow(self, state: _State, k: int) -> _State:
        """The state after merge k of `state`."""
        ids, place = state.ids, state.places[k]
        _, merged = self.merges[ids[place], ids[place + 1]]
        ids = (*ids[:place], merged, *ids[place + 2 :])
        return self._state(ids, state.following, k, keep=state.kept)

    def _state(self, ids: Ids, known: dict[Any, _State], key: str | int, *, keep: bool) -> _State:
        """A new state, remembered if there is room; merges sorted by rank, then from the left."""
        pairs = enumerate(zip(ids, ids[1:]))
        found = [(self.merges[pair][0], i) for i, pair in pairs if pair in self.merges]
        state = _State(ids, [i for _, i in sorted(found)], kept=keep and self._room > 0)
        if state.kept:
            self._room -= 1
            known[key] = state
        return state


# The pieces that end at one place of a word: cumulative probabilities, starts and ids.
_Edges = tuple[list[float], Sequence[int], Sequence[Ids]]


@dataclass(eq=False)
class UnigramSampling:
    """Draws a segmentation x of a word with probability ~ P(x)^alpha (Kudo 2018, 3.3).

    Exact: forward filtering over the lattice of all segmentations, then backward sampling.
    """

    spell: Spell
    pieces: Mapping[str, tuple[int, float]]  # piece -> (id, log-probability)
    unk_id: int
    alpha: float

    def __post_init__(self) -> None:
        self._longest = max(map(len, self.pieces))
        self._unknown = min(score for _, score in self.pieces.values()) - UNKNOWN_PENALTY
        self._lattices: dict[str, list[_Edges]] = {}

    def draws(self, n: int, rng: np.random.Generator) -> list[float]:
        """Uniform on [0, 1)."""
        return rng.random(n).tolist()

    def segment(self, word: str, draws: Iterator[float]) -> Ids:
        """The ids of the pieces. At most len(word) draws are taken."""
        lattice = self._lattices.get(word)
        if lattice is None:
            lattice = self._lattice(word)
            if len(self._lattices) < LATTICES and len(word) <= LONGEST_WORD:
                self._lattices[word] = lattice
        parts: list[Ids] = []
        end = len(word)
        while end:
            cumulative, starts, ids = lattice[end - 1]
            chosen = bisect_right(cumulative, next(draws)) if len(starts) > 1 else 0
            parts.append(ids[chosen])
            end = starts[chosen]
        return _fused([i for part in reversed(parts) for i in part], self.unk_id)

    def _lattice(self, word: str) -> list[_Edges]:
        forward = [0.0]  # log of the summed weights of the segmentations of word[:end]
        lattice: list[_Edges] = []
        for end in range(1, len(word) + 1):
            found = [
                (forward[start] + self.alpha * score, start, ids)
                for start in range(max(0, end - self._longest), end)
                for score, ids in self._edge(word[start:end])
            ]
            highest = max(weight for weight, _, _ in found)
            weights = np.exp([weight - highest for weight, _, _ in found])
            forward.append(highest + math.log(weights.sum()))
            cumulative = (weights.cumsum() / weights.sum()).tolist()
            cumulative[-1] = 1.0  # despite rounding
            _, starts, ids = zip(*found)
            lattice.append((cumulative, starts, ids))
        return lattice

    def _edge(self, piece: str) -> list[tuple[float, Ids]]:
        """Score and ids of a piece or an unknown character; empty for any other string."""
        if piece in self.pieces:
            i, score = self.pieces[piece]
            return [(score, (i,))]
        return [(self._unknown, self.spell(piece))] if len(piece) == 1 else []


def _fused(ids: list[int], unk_id: int) -> Ids:
    """Fuse each run of unknown ids into one, as the deterministic path does."""
    if unk_id not in ids:
        return tuple(ids)
    return tuple(i for key, run in groupby(ids) for i in ([key] if key == unk_id else run))
