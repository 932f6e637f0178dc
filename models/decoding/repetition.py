"""Translations that say no n-gram twice: the tokens that would repeat one are ruled out."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from models.decoding.protocol import SearchModel, SearchState


@dataclass(slots=True)
class History:
    """The model's state, and the tokens that it was given, [B,K,T]."""

    inner: SearchState
    tokens: Tensor

    def reorder(self, beam_index: Tensor) -> None:
        self.inner.reorder(beam_index)
        self.tokens = self.tokens.gather(1, beam_index[:, :, None].expand_as(self.tokens))

    def select(self, alive: Tensor) -> None:
        self.inner.select(alive)
        self.tokens = self.tokens[alive]


@dataclass(frozen=True, slots=True)
class Unrepeated:
    """A model, for any search, whose hypotheses have each n-gram once (Paulus et al. 2018).

    The others keep their probabilities, as in fairseq and transformers. What is ruled out gives its
    own to padding, which a search never takes.
    """

    model: SearchModel
    n: int

    @property
    def pad_id(self) -> int:
        return self.model.pad_id

    def encode(self, src: Tensor) -> Any:
        return self.model.encode(src)

    def init_state(self, memory: Any, *, beam_size: int, max_len: int) -> History:
        inner = self.model.init_state(memory, beam_size=beam_size, max_len=max_len)
        return History(inner, torch.empty(0))

    def decode_step(self, tokens: Tensor, state: History) -> Tensor:
        logits = self.model.decode_step(tokens, state.inner)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if state.tokens.dim() == 1:
            state.tokens = tokens[:, :, None]
        else:
            state.tokens = torch.cat((state.tokens, tokens[:, :, None]), dim=2)
        if state.tokens.shape[2] < self.n:
            return logits
        grams = state.tokens.unfold(2, self.n, 1)
        last = state.tokens[:, :, None, state.tokens.shape[2] - self.n + 1 :]
        again = (grams[..., :-1] == last).all(dim=-1).to(logits.dtype)
        ruled_out = torch.zeros_like(logits).scatter_add_(2, grams[..., -1], again) > 0
        log_probs = logits.log_softmax(dim=-1)
        lost = log_probs.masked_fill(~ruled_out, -torch.inf).logsumexp(dim=-1)
        log_probs = log_probs.masked_fill(ruled_out, -torch.inf)
        log_probs[..., self.pad_id] = torch.logaddexp(log_probs[..., self.pad_id], lost)
        return log_probs
