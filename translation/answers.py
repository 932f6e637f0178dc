"""What a Translator answers: plain values, in text and NumPy arrays."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np


@dataclass(frozen=True)
class Candidate:
    """One translation as text.

    `score` is its log-probability over the length penalty, or its expected utility where decode.mbr
    chose among them. finished=False: cut off at the length limit. Behind a prefix that was given,
    log-probabilities are of what follows it.
    """

    text: str
    score: float
    log_prob: float
    finished: bool


NOTHING = Candidate("", score=0.0, log_prob=0.0, finished=True)  # of a text without a word


@dataclass(frozen=True)
class Hypothesis(Candidate):
    """A translation with its tokens, of which the last is EOS where it is finished."""

    tokens: list[str]

    def scored_by(self, scored: Callable[[], list[float]]) -> Self:
        vars(self)["_scored"] = scored  # no field: `asdict` gives plain values
        return self

    @cached_property
    def token_log_probs(self) -> list[float]:
        """The natural logarithm of each token's probability after those before it.

        But for rounding, `log_prob` is their sum, without those of a given prefix. The model
        computes them when they are first asked for, for all hypotheses of a text at once. Raises
        ValueError for a hypothesis that no Translator has answered.
        """
        if "_scored" not in vars(self):
            raise ValueError("only the answers of a Translator have log-probabilities by token")
        return vars(self)["_scored"]()

    def __getstate__(self) -> dict[str, Any]:
        """For another process, where there is no model: with the log-probabilities."""
        values = dict(vars(self))
        if values.pop("_scored", None):  # one from another process has none
            values["token_log_probs"] = self.token_log_probs
        return values


@dataclass(frozen=True)
class Translation(Hypothesis):
    """The best hypothesis of a source text, and all that were found, best first."""

    src: str
    hypotheses: list[Hypothesis]


@dataclass(frozen=True, slots=True)
class Translated:
    """A line of a stream with what greedy search and decode.search found, or what was given."""

    src: str
    greedy: Candidate | None  # None: not asked for
    beam: list[Candidate]  # best first, or the one given; empty: not asked for

    @property
    def best(self) -> Candidate:
        """The beam's best where there was a beam."""
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
        """Of the whole translation."""
        return float(np.sum(self.log_probs))


@dataclass(frozen=True, slots=True)
class Attention:
    """What a model looks at in one sentence pair, with S source and T target tokens.

    Weights are [layer, head, query, key], float32; a row sums to 1. `decoder`, over the tokens that
    are read, sees none that comes later. Row t of `cross` is where the model looked when it
    predicted target[t], having read read[t].
    """

    text: str  # the target
    source: list[str]  # [S], EOS last
    target: list[str]  # [T], EOS last unless a search was cut off
    read: list[str]  # [T], the start token and the target without its last
    encoder: np.ndarray  # [L,H,S,S]
    decoder: np.ndarray  # [L,H,T,T]
    cross: np.ndarray  # [L,H,T,S]
