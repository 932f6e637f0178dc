"""Several models that translate as one: their log-probabilities are averaged at every step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from models.decode_state import Memory
from models.decoding.protocol import SearchState
from models.transformer import TranslationTransformer


@dataclass(frozen=True, slots=True)
class EnsembleState:
    """The decoding state of each model; all of them follow the same hypotheses."""

    states: Sequence[SearchState]

    def reorder(self, beam_index: Tensor) -> None:
        for state in self.states:
            state.reorder(beam_index)

    def select(self, alive: Tensor) -> None:
        for state in self.states:
            state.select(alive)


class Ensemble(nn.Module):
    """M models of one vocabulary under the search protocol (`models/decoding/protocol.py`).

    The next token has the normalised geometric mean of the models' probabilities, p(y) ~ exp(1/M
    sum_m log p_m(y)). A model's log-probabilities are its logits minus a constant of the row. So
    the mean of the logits is enough, and the log_softmax of the search is the one normalisation.
    Shapes and position schemes may differ. Raises ValueError for models of different vocabularies.
    """

    def __init__(self, models: Sequence[TranslationTransformer]) -> None:
        super().__init__()
        vocabularies = {
            (m.src_embedding.num_embeddings, m.output.out_features, m.pad_id) for m in models
        }
        if len(vocabularies) != 1:
            raise ValueError(
                "an ensemble needs models of one vocabulary (source, target, padding): "
                f"{vocabularies}"
            )
        self.pad_id = models[0].pad_id
        self.members = nn.ModuleList(models)
        # The mean of the logits as one projection of the models' hidden states side by side.
        weight = torch.cat([m.output_weight().detach() for m in models], dim=1) / len(models)
        self.output = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        self.output.weight = nn.Parameter(weight, requires_grad=False)

    @property
    def models(self) -> list[TranslationTransformer]:
        return [cast(TranslationTransformer, member) for member in self.members]

    def encode(self, src: Tensor) -> list[Memory]:
        """src [B,S] -> the Memory of each model."""
        return [model.encode(src) for model in self.models]

    def init_state(self, memory: list[Memory], *, beam_size: int, max_len: int) -> EnsembleState:
        """An empty state of each model."""
        room = {"beam_size": beam_size, "max_len": max_len}
        return EnsembleState([m.init_state(mem, **room) for m, mem in zip(self.models, memory)])

    def decode_step(self, tokens: Tensor, state: EnsembleState) -> Tensor:
        """tokens [B,K] -> the mean of the models' logits [B,K,V], in float32 or better."""
        first, *rest = (model.decode_step(tokens, s) for model, s in zip(self.models, state.states))
        total = first if first.dtype == torch.float64 else first.float()
        for logits in rest:
            total = total + logits
        return total / len(self.members)

    def output_weight(self) -> Tensor:
        """[V,D_1'+...+D_M'], for the hidden states of `forward` with project=False."""
        return self.output.weight

    def forward(
        self, src: Tensor, tgt_in: Tensor, *, select: Tensor | None = None, project: bool = True
    ) -> Tensor:
        """Mean logits; with project=False the hidden states for `output_weight`.

        src, tgt_in, `select` and shapes as in TranslationTransformer.forward.
        """
        hidden = torch.cat(
            [model(src, tgt_in, select=select, project=False) for model in self.models], dim=-1
        )
        return self.output(hidden) if project else hidden
