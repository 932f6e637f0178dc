"""The search that a decode configuration names, carried out on one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from torch import Tensor

from configs.schema import Beam, DecodeConfig, DiverseBeam, Sampling
from models.decoding.beam import beam_search
from models.decoding.hypothesis import Hypothesis, Limits
from models.decoding.protocol import SearchModel
from models.decoding.stepwise import greedy_search, sample_search


def search_name(decode: DecodeConfig, *, greedy: bool) -> str:
    """`greedy`, or the kind of decode.search, with `_mbr_<metric>` where risk decides."""
    if greedy:
        return "greedy"
    return decode.search.kind + (f"_mbr_{decode.mbr}" if decode.mbr is not None else "")


def search_batch(
    model: SearchModel,
    src: Tensor,
    decode: DecodeConfig,
    *,
    bos_id: int,
    eos_id: int,
    numbers: Sequence[int],
    greedy: bool,
) -> list[list[Hypothesis]]:
    """Hypotheses for each sentence of a batch, best score first.

    Args:
        src: ids [B,S], padded on the right.
        decode: the search, unless `greedy`; it finds decode.n_best at most, greedy search one.
        numbers: for each sentence the number from which sampling draws, so that the batch around
            it does not matter.
    """
    limits = Limits(
        bos_id=bos_id,
        eos_id=eos_id,
        max_len=decode.max_len,
        max_len_ratio=decode.max_len_ratio,
        alpha=decode.length_penalty,
    )
    if greedy:
        return greedy_search(model, src, limits)
    sizes = {"beam_size": decode.beam_size, "n_best": decode.n_best}
    match decode.search:
        case Beam():
            return beam_search(model, src, limits, **sizes)
        case DiverseBeam(groups=groups, strength=strength):
            groups = groups or decode.beam_size
            return beam_search(model, src, limits, **sizes, groups=groups, strength=strength)
        case Sampling() as sampling:
            return sample_search(
                model, src, limits, sampling, n_samples=decode.n_best, numbers=numbers
            )
    assert_never(decode.search)
