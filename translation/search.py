"""The search that a decode configuration names, carried out on one batch."""

from __future__ import annotations

import typing
from collections.abc import Sequence

from torch import Tensor

from configs.schema import Beam, DecodeConfig, DiverseBeam, Sampling
from models.decoding.beam import beam_search
from models.decoding.diverse_beam import diverse_beam_search
from models.decoding.greedy import greedy_search
from models.decoding.hypothesis import Hypothesis
from models.decoding.protocol import SearchModel
from models.decoding.sampling import sample_search


def search_name(decode: DecodeConfig, *, greedy: bool) -> str:
    """A word for what translates: `greedy`, or the kind of decode.search, with `_mbr_<metric>`
    where risk decides.
    """
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
    """src [B,S] -> for each sentence its hypotheses, best score first: one if greedy, else at most
    decode.n_best.

    numbers: for each sentence the number from which sampling draws, so that the batch around it
    does not matter.
    """
    alpha, max_len, ratio = decode.length_penalty, decode.max_len, decode.max_len_ratio
    if greedy:
        best = greedy_search(
            model,
            src,
            bos_id=bos_id,
            eos_id=eos_id,
            max_len=max_len,
            max_len_ratio=ratio,
            alpha=alpha,
        )
        return [[hypothesis] for hypothesis in best]
    match decode.search:
        case Beam():
            return beam_search(
                model,
                src,
                bos_id=bos_id,
                eos_id=eos_id,
                beam_size=decode.beam_size,
                n_best=decode.n_best,
                alpha=alpha,
                max_len=max_len,
                max_len_ratio=ratio,
            )
        case DiverseBeam(groups=groups, strength=strength):
            return diverse_beam_search(
                model,
                src,
                bos_id=bos_id,
                eos_id=eos_id,
                beam_size=decode.beam_size,
                groups=groups or decode.beam_size,
                strength=strength,
                n_best=decode.n_best,
                alpha=alpha,
                max_len=max_len,
                max_len_ratio=ratio,
            )
        case Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed):
            return sample_search(
                model,
                src,
                bos_id=bos_id,
                eos_id=eos_id,
                n_samples=decode.n_best,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                seed=seed,
                numbers=numbers,
                alpha=alpha,
                max_len=max_len,
                max_len_ratio=ratio,
            )
    typing.assert_never(decode.search)
