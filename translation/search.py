"""Search for many sentences: in batches of like length, smaller ones if memory runs out."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch
from torch.nn.utils.rnn import pad_sequence

from checkpoints.ctranslate2 import MAX_POSITIONS
from configs.schema import Beam, DecodeConfig, DiverseBeam, Sampling
from data.batching import next_batch
from models.decoding.beam import beam_search
from models.decoding.ensemble import Ensemble
from models.decoding.hypothesis import Hypothesis, Limits
from models.decoding.prefix import Prefixed
from models.decoding.protocol import SearchModel
from models.decoding.repetition import Unrepeated
from models.decoding.stepwise import greedy_search, sample_search
from models.linear import weights_fixed
from models.positional_encodings.base import Side, least
from models.transformer import TranslationTransformer
from tokenizer.base import BaseTokenizer
from translation.engines import CTranslate2
from translation.mbr import least_risk_first
from translation.workers import Workers
from utils.errors import UserError
from utils.machine import if_it_fits, own_modes

logger = logging.getLogger(__name__)

T = TypeVar("T")


def pad_sources(sources: Sequence[Sequence[int]], pad_id: int) -> torch.Tensor:
    """Ids of several sentences -> [B,S], padded on the right."""
    rows = [torch.tensor(ids, dtype=torch.long) for ids in sources]
    return pad_sequence(rows, batch_first=True, padding_value=pad_id)


def limits_of(decode: DecodeConfig, tokenizer: BaseTokenizer) -> Limits:
    return Limits(
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        max_len=decode.max_len,
        max_len_ratio=decode.max_len_ratio,
        alpha=decode.length_penalty,
    )


def in_batches(
    lengths: Sequence[int],
    most: int,
    compute: Callable[[Sequence[int]], Sequence[T]],
    progress: Callable[[int], object] = lambda n: None,
) -> list[T]:
    """compute(rows) of all rows, in their order, `most` at once, or fewer if memory runs out.

    Rows of like length are computed together, the longest first; `progress` gets the size of each
    finished batch. UserError: not even one row fits into memory.
    """
    found: dict[int, T] = {}
    order, start = sorted(range(len(lengths)), key=lambda i: -lengths[i]), 0
    while rows := next_batch(lengths, order[start : start + most], most):
        if (batch := if_it_fits(compute, rows)) is not None:
            found.update(zip(rows, batch))
            start += len(rows)
            progress(len(rows))
            continue
        if len(rows) == 1:
            raise UserError(
                f"not enough memory for one sentence of {lengths[rows[0]]:,} tokens: split it, or "
                "in a search lower decode.beam_size or decode.n_best"
            )
        most = min(most, len(order) - start) // 2
        fewer = next_batch(lengths, order[start : start + most], most)
        message = "not enough memory for %d sentences at once: going on with %d"
        logger.warning(message, len(rows), len(fewer))
    return [found[row] for row in range(len(lengths))]


@dataclass(frozen=True, eq=False)
class BatchSearch:
    """A model, or an ensemble of them, that searches for the translations of token ids.

    In float32 the result for a sentence does not depend on the rest of the batch. An engine
    searches in the model's place. With workers, several batches are searched at once.
    """

    model: TranslationTransformer | Ensemble
    tokenizer: BaseTokenizer
    device: torch.device
    engine: CTranslate2 | None = None
    workers: Workers | None = None
    language: str = ""  # of the translations

    @property
    def precision(self) -> str:
        """The type of the search; the engine's own, if that is not exact."""
        if self.engine is not None and self.engine.compute_type != "float32":
            return f"ctranslate2_{self.engine.compute_type}"
        return str(self.model.output.weight.dtype).removeprefix("torch.")

    def longest(self, side: Side) -> int | None:
        """The most tokens that the models have positions for; None: any number."""
        models = self.model.models if isinstance(self.model, Ensemble) else [self.model]
        return least(*(model.scheme.max_length(side) for model in models))

    @own_modes()
    @weights_fixed()
    def search_ids(
        self,
        sources: Sequence[Sequence[int]],
        decode: DecodeConfig,
        *,
        greedy: bool,
        numbers: Sequence[int] | None = None,
        prefixes: Sequence[Sequence[int]] | None = None,
        progress: Callable[[int], object] = lambda n: None,
    ) -> list[list[Hypothesis]]:
        """Source ids (each with EOS) -> hypotheses in the order of the input, best first.

        The search is as in `decode`, or greedy. Hypotheses begin with their sentence's prefix (ids
        without EOS). Sampling is seeded by the sentences' `numbers` (default: their places).
        `progress` and UserError: see `in_batches`.
        """
        if self.model.training:  # model.eval() goes through all modules
            self.model.eval()
        of_all = {"sources": sources, "numbers": numbers or range(len(sources))}
        of_all["prefixes"] = prefixes or [()] * len(sources)
        lengths, most = list(map(len, sources)), decode.batch_on(self.device.type)

        def job(rows: Sequence[int]) -> dict[str, Any]:
            of_rows = {name: [each[i] for i in rows] for name, each in of_all.items()}
            return of_rows | {"decode": decode, "greedy": greedy}

        if self.workers is None or len(sources) <= most:
            return in_batches(lengths, most, lambda rows: self._search(**job(rows)), progress)
        order, batches, start = sorted(range(len(sources)), key=lambda i: -lengths[i]), [], 0
        while rows := next_batch(lengths, order[start : start + most], most):
            batches.append(rows)
            start += len(rows)
        found: dict[int, list[Hypothesis]] = {}
        for place, each in self.workers.map(replace(self, workers=None), list(map(job, batches))):
            found.update(zip(batches[place], each))
            progress(len(each))
        return [found[row] for row in range(len(sources))]

    def _search(
        self,
        sources: Sequence[Sequence[int]],
        decode: DecodeConfig,
        numbers: Sequence[int],
        prefixes: Sequence[Sequence[int]],
        greedy: bool,
    ) -> list[list[Hypothesis]]:
        """The search that `decode` names, or greedy search, of one batch."""
        search, ngram, pad_id = decode.search, decode.no_repeat_ngram_size, self.tokenizer.pad_id
        src = pad_sources(sources, pad_id).to(self.device)
        limits = limits_of(decode, self.tokenizer)
        size, n_best = (1, 1) if greedy else (decode.beam_size, decode.n_best)
        beam: dict[str, Any] = {"beam_size": size, "n_best": n_best}
        found: dict[int, list[Hypothesis]] = {}
        engine = self.engine if not ngram and (greedy or isinstance(search, Beam)) else None
        longest = min(self.longest("source") or MAX_POSITIONS, MAX_POSITIONS)
        # CTranslate2 finds nothing for a source that is EOS alone.
        free = [i for i, ids in enumerate(sources) if 1 < len(ids) <= longest and not prefixes[i]]
        if engine is not None and free and decode.max_len <= MAX_POSITIONS:
            most = limits.max_lengths(src[free], pad_id).tolist()
            found.update(zip(free, engine.search([sources[i] for i in free], limits, most, **beam)))
        left = [i for i in range(len(sources)) if not found.get(i)]
        src, model, rest = src[left], cast(SearchModel, self.model), []
        if ngram:
            model = Unrepeated(model, ngram)
        if any(prefixes[i] for i in left):
            ids = pad_sources([prefixes[i] for i in left], -1)
            model = Prefixed(model, ids.to(self.device))
        if left and greedy:
            rest = greedy_search(model, src, limits)
        elif left and isinstance(search, Sampling):
            drawn = [numbers[i] for i in left]
            rest = sample_search(model, src, limits, search, n_samples=n_best, numbers=drawn)
        elif left:
            if isinstance(search, DiverseBeam):
                beam |= {"groups": search.groups or size, "strength": search.strength}
            rest = beam_search(model, src, limits, **beam)
        found.update(zip(left, rest))
        ranked = [found[i] for i in range(len(sources))]
        if not all(each and math.isfinite(each[0].log_prob) for each in ranked):
            raise not_a_number(self.precision)
        if greedy or decode.mbr is None:
            return ranked
        texts = (self.tokenizer.decode_batch([h.ids for h in each]) for each in ranked)
        return [least_risk_first(*each, decode, self.language) for each in zip(ranked, texts)]


def not_a_number(precision: str) -> UserError:
    remedy = "try another precision" if precision != "float32" else "train it again"
    return UserError(f"the model's output in {precision} is not a number: {remedy}")
