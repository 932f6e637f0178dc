"""Translations with a given beginning: the next token of a model is forced for a few steps."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from models.decoding.protocol import SearchModel, SearchState


@dataclass(slots=True)
class PrefixState:
    """The model's state, and the given tokens that are still to come, [B,P]; -1 for none."""

    inner: SearchState
    rest: Tensor

    def reorder(self, beam_index: Tensor) -> None:
        self.inner.reorder(beam_index)

    def select(self, alive: Tensor) -> None:
        self.inner.select(alive)
        self.rest = self.rest[alive]


@dataclass(frozen=True, slots=True)
class Prefixed:
    """A model, for any search, whose hypotheses of a sentence begin with its prefix.

    prefix [B,P]: target ids, shorter ones padded with -1. A given token has probability 1, so that
    scores and log-probabilities count what follows alone. Otherwise an improbable prefix would be
    divided among ever more tokens, and the longest translation would win.
    """

    model: SearchModel
    prefix: Tensor

    @property
    def pad_id(self) -> int:
        return self.model.pad_id

    def encode(self, src: Tensor) -> Any:
        return self.model.encode(src)

    def init_state(self, memory: Any, *, beam_size: int, max_len: int) -> PrefixState:
        inner = self.model.init_state(memory, beam_size=beam_size, max_len=max_len)
        return PrefixState(inner, self.prefix)

    def decode_step(self, tokens: Tensor, state: PrefixState) -> Tensor:
        logits = self.model.decode_step(tokens, state.inner)
        if state.rest.shape[1] == 0:
            return logits
        given, state.rest = state.rest[:, :1], state.rest[:, 1:]
        others = torch.arange(logits.shape[-1], device=logits.device) != given
        logits = logits.masked_fill(~others[:, None], 0.0)  # the model may have ruled it out
        return logits.masked_fill((others & (given >= 0))[:, None], -torch.inf)
