"""The search that a decode configuration names, carried out on one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from torch import Tensor

from configs.schema import Beam, DecodeConfig, DiverseBeam, Sampling
from models.decoding.beam import beam_search
from models.decoding.diverse_beam import diverse_beam_search
from models.decoding.greedy import greedy_search
from models.decoding.hypothesis import Hypothesis
from models.decoding.protocol import SearchModel
from models.decoding.sampling import sample_search


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
    limits: dict[str, Any] = {
        "bos_id": bos_id,
        "eos_id": eos_id,
        "max_len": decode.max_len,
        "max_len_ratio": decode.max_len_ratio,
        "alpha": decode.length_penalty,
    }
    if greedy:
        return [[best] for best in greedy_search(model, src, **limits)]
    match decode.search:
        case Beam():
            return beam_search(
                model, src, **limits, beam_size=decode.beam_size, n_best=decode.n_best
            )
        case DiverseBeam(groups=groups, strength=strength):
            return diverse_beam_search(
                model,
                src,
                **limits,
                beam_size=decode.beam_size,
                groups=groups or decode.beam_size,
                strength=strength,
                n_best=decode.n_best,
            )
        case Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed):
            return sample_search(
                model,
                src,
                **limits,
                n_samples=decode.n_best,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                seed=seed,
                numbers=numbers,
            )
    assert_never(decode.search)
