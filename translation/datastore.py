"""Datastores of a model's hidden states: made from a split, written, and read for a search."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from configs.serialize import to_dict
from data.cache import TokenizedSplit
from models.decoding.neighbours import Datastore, NearestNeighbours
from translation.forcing import hidden_states
from translation.loading import LoadedRun
from translation.search import BatchSearch, in_batches
from utils.errors import UserError, one_line
from utils.files import write_bytes

PAIRS = 64  # read at once


def make_datastore(
    searcher: BatchSearch, pairs: TokenizedSplit, progress: Callable[[int], object]
) -> dict[str, Tensor]:
    """keys [N,D], in float16 to take half the room, and values [N] of all target tokens.

    `progress` gets the number of pairs read. Raises UserError where a state is beyond float16.
    """
    width = searcher.model.output.in_features

    def states(batch: Sequence[int]) -> Sequence[Tensor]:
        sources, targets = ([side(i).tolist() for i in batch] for side in (pairs.src, pairs.tgt))
        found = hidden_states(searcher, sources, targets)[:, :width]
        return found.half().cpu().split(list(map(len, targets)))

    sizes = (pairs.src_lengths + pairs.tgt_lengths).tolist()
    keys = torch.cat(in_batches(sizes, PAIRS, states, progress))
    if not keys.isfinite().all():
        raise UserError("a hidden state of this model is not a number, or too large for float16")
    return {"keys": keys, "values": torch.tensor(pairs.tgt_ids[: len(keys)])}


def write_datastore(path: Path, tensors: dict[str, Tensor], checksum: str) -> None:
    """Write it whole or not at all; `checksum` is the one of the model's checkpoint."""
    write_bytes(path, save(tensors, {"checkpoint_sha256": checksum}))


def with_neighbours(loaded: LoadedRun, device: torch.device) -> NearestNeighbours:
    """The models of a run and its partners, with the datastores of decode.neighbours.

    Raises UserError for a datastore that is missing, damaged, or of another checkpoint.
    """
    config, members = loaded.config.decode.neighbours, loaded.members
    if len(config.datastore) != len(members):
        said = f"decode.neighbours.datastore names {len(config.datastore)} files for "
        raise UserError(f"{said}{len(members)} models: give one for each, in their order")
    stores = [_read(Path(os.path.expanduser(p)), m) for p, m in zip(config.datastore, members)]
    how: dict[str, Any] = to_dict(config)
    del how["datastore"]
    return NearestNeighbours([member.model for member in members], stores, **how).to(device)


def _read(path: Path, loaded: LoadedRun) -> Datastore:
    make = f"make its own by datastore.py --model_path {loaded.checkpoint}"
    try:
        path.open("rb").close()  # whose errors say what is wrong
        with safe_open(path, "pt") as file:
            made_for = (file.metadata() or {}).get("checkpoint_sha256")
            keys, values = file.get_tensor("keys").float(), file.get_tensor("values").long()
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or f"not a datastore, {one_line(error)}"
        raise UserError(f"decode.neighbours.datastore: {path}: {why}; {make}") from error
    if made_for != loaded.checksum:
        raise UserError(f"{path} has the states of another checkpoint or config: {make}")
    model, n_ids = loaded.config.model, loaded.tokenizer.tgt_vocab_size
    right = keys.shape == (max(1, len(values)), model.d_model) and values.dim() == 1
    if not right or not keys.isfinite().all() or not values.clamp(0, n_ids - 1).equal(values):
        raise UserError(f"{path} is damaged, or no datastore of this model; {make}")
    return Datastore(keys, values)
