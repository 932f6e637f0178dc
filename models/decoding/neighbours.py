"""Nearest neighbours: what followed similar states in a text joins a model's probabilities."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from models.decoding.ensemble import Ensemble, EnsembleState
from models.decoding.hypothesis import best_tokens
from models.products import affine
from models.transformer import TranslationTransformer

FEWEST = 1 << 15  # keys multiplied at once
AT_ONCE = 1 << 22  # distances held at a time, if these keys allow it


class Datastore(nn.Module):
    """The hidden state before each target token of a text, keys [N,D], and the tokens, [N]."""

    keys: Tensor
    values: Tensor
    half_squares: Tensor

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("keys", keys)
        self.register_buffer("values", values)
        self.register_buffer("half_squares", torch.linalg.vecdot(keys, keys) / 2)

    def nearest(self, hidden: Tensor, *, k: int, temperature: float) -> tuple[Tensor, Tensor]:
        """hidden [R,D] -> tokens of the k nearest keys, and their probabilities, [R,k] each.

        A neighbour at the Euclidean distance d has exp(-d^2 / temperature), normalised over the k.
        """
        n = max(FEWEST, AT_ONCE // len(hidden))
        nearest, places = [], []
        for start in range(0, len(self.keys), n):
            keys, half_squares = (
                each[start : start + n] for each in (self.keys, self.half_squares)
            )
            # -d^2 / 2, but for the row's own square, which falls out of the softmax.
            best, at = best_tokens(affine(hidden, keys, -half_squares), min(k, len(keys)))
            nearest.append(best)
            places.append(at + start)
        best, which = torch.cat(nearest, dim=-1).topk(min(k, len(self.keys)), dim=-1)
        tokens = self.values[torch.cat(places, dim=-1).gather(-1, which)]
        return tokens, (best * (2 / temperature)).softmax(dim=-1)


class NearestNeighbours(Ensemble):
    """kNN-MT (Khandelwal et al. 2021, section 2): models, each with a datastore of its own states.

    The next token has (1 - weight) times the probability that the models give it, and weight times
    the sum of the shares of its neighbours (see `Datastore.nearest`), the mean over the models.
    The keys are the states from which the output is projected; the paper's are the inputs of the
    last feed-forward layer. Given translations are scored by the models alone (`forward`).
    """

    def __init__(
        self,
        models: Sequence[TranslationTransformer],
        stores: Sequence[Datastore],
        *,
        k: int,
        temperature: float,
        weight: float,
    ) -> None:
        super().__init__(models)
        self.stores = nn.ModuleList(stores)
        self.k, self.temperature, self.weight = k, temperature, weight

    def decode_step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        """tokens [B,K] -> the log-probabilities of the mixture, [B,K,V]."""
        hidden = [model.step(tokens, each) for model, each in zip(self.models, state.states)]
        logits = [model.project(rows) for model, rows in zip(self.models, hidden)]
        log_probs = (sum(logits[1:], logits[0]) / len(logits)).log_softmax(dim=-1)
        found = torch.zeros_like(log_probs).flatten(0, -2)
        for rows, store in zip(hidden, self.stores):
            near, shares = cast(Datastore, store).nearest(
                rows.flatten(0, -2), k=self.k, temperature=self.temperature
            )
            found.scatter_add_(1, near, shares / len(hidden))
        neighbours = found.view_as(log_probs).log() + math.log(self.weight)
        return torch.logaddexp(log_probs + math.log1p(-self.weight), neighbours)
