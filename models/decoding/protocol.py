"""What a search needs of a model, whatever the model is."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from models.transformer import SearchState


class SearchModel(Protocol):
    """Encodes a source once, then answers for the next token of every hypothesis.

    Memory and state are the model's own: a search hands them back to it and reads nothing in them,
    save what `SearchState` offers.
    """

    @property
    def pad_id(self) -> int: ...

    def encode(self, src: Tensor) -> Any:
        """src [B,S] -> the memory of the sources."""

    def init_state(self, memory: Any, *, beam_size: int, max_len: int) -> SearchState:
        """An empty state of beam_size hypotheses for each sentence, at most max_len tokens long."""

    def decode_step(self, tokens: Tensor, state: Any) -> Tensor:
        """The next token of every hypothesis, tokens [B,K] -> logits [B,K,V].

        Logits are log-probabilities up to a constant of each row: the search normalises them.
        """
