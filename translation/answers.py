"""The results of a Translator: plain values, as text and NumPy arrays."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np


@dataclass(frozen=True)
class Candidate:
    """One translation as text.

    `score` is its log-probability over the length penalty, or its expected utility where decode.mbr
    chose among candidates. finished=False: cut off at the length limit. With a given prefix,
    log-probabilities count what follows it.
    """

    text: str
    score: float
    log_prob: float
    finished: bool


NOTHING = Candidate("", score=0.0, log_prob=0.0, finished=True)  # for a text without words


@dataclass(frozen=True)
class Hypothesis(Candidate):
    """A translation with its tokens; a finished one ends in EOS."""

    tokens: list[str]

    def scored_by(self, scored: Callable[[], list[float]]) -> Self:
        vars(self)["_scored"] = scored  # not a field, so that `asdict` gives plain values
        return self

    @cached_property
    def token_log_probs(self) -> list[float]:
        """The natural logarithm of each token's probability after those before it.

        Up to rounding, `log_prob` is their sum without a prefix's. The model computes them when
        they are first asked for, for all hypotheses of a text at once. Raises ValueError for a
        hypothesis that no Translator has made.
        """
        if "_scored" not in vars(self):
            raise ValueError("only the answers of a Translator have log-probabilities by token")
        return vars(self)["_scored"]()

    def __getstate__(self) -> dict[str, Any]:
        """Includes the log-probabilities, for another process, which has no model."""
        values = dict(vars(self))
        if values.pop("_scored", None):  # missing if it came from another process
            values["token_log_probs"] = self.token_log_probs
        return values


@dataclass(frozen=True)
class Translation(Hypothesis):
    """The best hypothesis of a source text, and all that were found, best first."""

    src: str
    hypotheses: list[Hypothesis]


@dataclass(frozen=True, slots=True)
class Translated:
    """A line of a stream with its greedy and decode.search translations, or a given one."""

    src: str
    greedy: Candidate | None  # None: not asked for
    beam: list[Candidate]  # best first, or the given one; empty: not asked for

    @property
    def best(self) -> Candidate:
        """The beam's best if there was a beam, else the greedy one."""
        return self.greedy if self.greedy is not None and not self.beam else self.beam[0]


@dataclass(frozen=True, slots=True)
class TokenScores:
    """A given translation's tokens, EOS last, and the natural logarithm of each one's probability.

    Each is predicted from the source and the tokens before it.
    """

    tokens: list[str]
    log_probs: list[float]

    @property
    def log_prob(self) -> float:
        """The log-probability of the whole translation."""
        return float(np.sum(self.log_probs))


@dataclass(frozen=True, slots=True)
class Attention:
    """A model's attention in one sentence pair, with S source and T target tokens.

    Weights are [layer, head, query, key], float32; a row sums to 1. `decoder` is over the tokens
    that are read, and sees no later ones. Row t of `cross` is the attention with which the model
    predicted target[t], having read read[t].
    """

    text: str  # the target
    source: list[str]  # [S], EOS last
    target: list[str]  # [T], EOS last unless a search was cut off
    read: list[str]  # [T], the start token and the target without its last
    encoder: np.ndarray = field(repr=False)  # [L,H,S,S]
    decoder: np.ndarray = field(repr=False)  # [L,H,T,T]
    cross: np.ndarray = field(repr=False)  # [L,H,T,S]
