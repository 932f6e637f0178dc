"""Given translations under a model: the log-probability of each token, and attention."""

from collections.abc import Sequence
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from models.attention.tap import AttentionTap
from models.decoding.ensemble import Ensemble
from models.linear import linear, weights_fixed
from models.positional_encodings.base import Kind
from translation.search import BatchSearch, not_a_number, pad_sources
from utils.errors import UserError
from utils.machine import own_modes

Ids = Sequence[Sequence[int]]

KINDS: tuple[Kind, ...] = get_args(Kind)
ROWS = 512  # tokens whose logits over the vocabulary are held at once


def _inputs(searcher: BatchSearch, sources: Ids, targets: Ids) -> tuple[Tensor, Tensor]:
    """src [B,S] and tgt_in [B,T], which the decoder reads: the start id and all but the last."""
    bos_id, pad_id = searcher.tokenizer.bos_id, searcher.tokenizer.pad_id
    read = [[bos_id, *target[:-1]] for target in targets]
    src, tgt_in = (pad_sources(ids, pad_id).to(searcher.device) for ids in (sources, read))
    return src, tgt_in


@own_modes()
@torch.inference_mode()
def hidden_states(searcher: BatchSearch, sources: Ids, targets: Ids) -> Tensor:
    """B pairs of ids -> the state before each target token, pair by pair, for `output_weight`."""
    model = searcher.model
    if model.training:  # model.eval() goes through all modules
        model.eval()
    src, tgt_in = _inputs(searcher, sources, targets)
    lengths = torch.tensor(list(map(len, targets)))
    flat = (torch.arange(tgt_in.shape[1]) < lengths[:, None]).flatten().nonzero()[:, 0]
    return model(src, tgt_in, select=flat.to(searcher.device), project=False)


@own_modes()
@torch.inference_mode()
@weights_fixed()
def token_log_probs(searcher: BatchSearch, sources: Ids, targets: Ids) -> list[list[float]]:
    """B pairs of ids -> the log-probability of each target token after those before it.

    In float32, or the model's type if that is more exact. Targets without tokens have none. Raises
    UserError where the model's output is not a number.
    """
    hidden = hidden_states(searcher, sources, targets)
    wanted = torch.tensor([i for target in targets for i in target], dtype=torch.long)
    weight, parts = searcher.model.output_weight(), []
    for rows, ids in zip(hidden.split(ROWS), wanted.to(hidden.device).split(ROWS)):
        logits = linear(rows, weight)
        exact = logits if logits.dtype == torch.float64 else logits.float()
        parts.append(exact.log_softmax(dim=-1).gather(-1, ids[:, None])[:, 0])
    found = torch.cat(parts).cpu()
    if found.isnan().any():
        raise not_a_number(str(weight.dtype).removeprefix("torch."))
    return [each.tolist() for each in found.split(list(map(len, targets)))]


@own_modes()
@torch.inference_mode()
@weights_fixed()
def attention_weights(
    searcher: BatchSearch, sources: Ids, targets: Ids, kinds: Sequence[Kind] = KINDS
) -> list[dict[Kind, np.ndarray]]:
    """B pairs of ids -> for each its attention weights [L,H,Tq,Tk] by kind, float32.

    Raises UserError for models that do not show theirs: ensembles, and torch.nn.Transformer.
    """
    model = searcher.model
    if isinstance(model, Ensemble) and len(model.models) > 1:
        raise UserError("an ensemble has no one attention: give one model")
    if isinstance(model, Ensemble):  # a model with neighbours
        [model] = model.models
    if model.training:
        model.eval()
    tap = AttentionTap(kinds)
    model(*_inputs(searcher, sources, targets), project=False, tap=tap)
    maps = {kind: tap.maps(kind).float().cpu().numpy() for kind in kinds}
    found: list[dict[Kind, np.ndarray]] = []
    for row, (n_source, n_target) in enumerate(zip(map(len, sources), map(len, targets))):
        queries = {"encoder": n_source, "decoder": n_target, "cross": n_target}
        keys = {"encoder": n_source, "decoder": n_target, "cross": n_source}
        found.append({k: maps[k][:, row, :, : queries[k], : keys[k]] for k in kinds})
    return found
