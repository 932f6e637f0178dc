"""Nearest neighbours: what followed similar states in a text joins a model's probabilities."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from models.decoding.ensemble import Ensemble, EnsembleState
from models.decoding.hypothesis import best_tokens
from models.transformer import TranslationTransformer

AT_ONCE = 1 << 25  # distances held at a time: 128 MiB in float32


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
        tokens, shares = [], []
        for rows in hidden.split(max(1, AT_ONCE // len(self.values))):
            # -d^2 / 2, but for the row's own square, which falls out of the softmax.
            near = torch.addmm(self.half_squares, rows, self.keys.T, beta=-1)
            best, places = best_tokens(near, min(k, len(self.values)))
            tokens.append(self.values[places])
            shares.append((best * (2 / temperature)).softmax(dim=-1))
        return torch.cat(tokens), torch.cat(shares)


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
