"""What a search needs of a model, whatever the model is."""

from typing import Any, Protocol

from torch import Tensor


class SearchState(Protocol):
    """A model's state for the hypotheses so far. A search can change it, not read it."""

    def reorder(self, beam_index: Tensor) -> None:
        """Beam k of each sentence goes on from its beam beam_index[b,k] ([B,K])."""

    def select(self, alive: Tensor) -> None:
        """Keep the given sentences ([B'] indices) with all their beams."""


class SearchModel(Protocol):
    """Encodes a source once, then gives logits for the next token of every hypothesis."""

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
