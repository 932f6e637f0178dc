"""Text to text with a trained model: batches of like length, answers in the order of the input."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from configs.schema import DecodeConfig
from data.corpora.text import normalize_whitespace
from models.decoding.ensemble import Ensemble
from models.decoding.hypothesis import Hypothesis
from models.linear import weights_fixed
from models.transformer import TranslationTransformer
from tokenizer.base import BaseTokenizer
from translation.mbr import least_risk_first
from translation.search import search_batch
from utils.errors import UserError
from utils.machine import is_out_of_memory

logger = logging.getLogger(__name__)

# Padded source tokens for each of decode.batch_size sentences: a few very long lines then make
# smaller batches instead of filling the memory.
TOKENS_OF_A_SENTENCE = 256


@dataclass(frozen=True, slots=True)
class Translation:
    """One hypothesis as text.

    `score` is its log-probability over the length penalty, or its expected utility where decode.mbr
    chose among them.
    """

    text: str
    score: float
    log_prob: float
    finished: bool


NOTHING = Translation("", score=0.0, log_prob=0.0, finished=True)  # of a text without a word


@dataclass(frozen=True, slots=True)
class Translated:
    """A source text with what greedy search and decode.search found.

    `greedy` is None, and `beam` is empty, where that search was not asked for.
    """

    src: str
    greedy: Translation | None
    beam: list[Translation]  # best first

    @property
    def best(self) -> Translation:
        """The beam's best where there was a beam."""
        return self.greedy if self.greedy is not None and not self.beam else self.beam[0]


def pad_sources(sources: Sequence[Sequence[int]], pad_id: int) -> torch.Tensor:
    """Ids of several sentences -> [B,S], padded on the right."""
    longest = max(map(len, sources))
    return torch.tensor([[*ids, *[pad_id] * (longest - len(ids))] for ids in sources])


@dataclass(eq=False)
class Translator:
    """A model, or an ensemble of them, with its tokenizer.

    The translation of a sentence does not depend on what is translated beside it.
    """

    model: TranslationTransformer | Ensemble
    tokenizer: BaseTokenizer
    decode: DecodeConfig
    device: torch.device

    @property
    def longest_source(self) -> int | None:
        """How many source tokens the models' position tables have room for; None: any number."""
        models = self.model.models if isinstance(self.model, Ensemble) else [self.model]
        bounds = [model.scheme.max_length("source") for model in models]
        return min((bound for bound in bounds if bound is not None), default=None)

    def translate_stream(
        self,
        lines: Iterable[str],
        *,
        chunk: int,
        greedy: bool = False,
        beam: bool = True,
        watch: Callable[[int, int], None] = lambda number, n_tokens: None,
    ) -> Iterator[list[Translated]]:
        """Any number of lines in bounded memory and in their order, a list for each `chunk` lines.

        `watch` is told of each line its number (from 1) and its tokens, before any of the chunk is
        translated.
        """
        rest, done = iter(lines), 0
        while texts := list(itertools.islice(rest, chunk)):
            sources = self.encode(texts)
            for number, ids in enumerate(sources, start=done + 1):
                watch(number, len(ids))
            best: list[Translation | None] = [None] * len(texts)
            beams: list[list[Translation]] = [[] for _ in texts]
            if greedy:
                best = [only for [only] in self.translate(texts, sources=sources, greedy=True)]
            if beam:
                beams = self.translate(texts, sources=sources, first=done)
            done += len(texts)
            yield [Translated(*found) for found in zip(texts, best, beams)]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Source ids, each with EOS, of texts whose white space is levelled as in training.

        Raises UserError for text that is not Unicode.
        """
        return self.tokenizer.encode_src_batch([normalize_whitespace(text) for text in texts])

    def translate(
        self,
        texts: Sequence[str],
        *,
        greedy: bool = False,
        sources: Sequence[Sequence[int]] | None = None,
        first: int = 0,
        progress: Callable[[int], object] = lambda n: None,
    ) -> list[list[Translation]]:
        """Sentences -> for each its n-best translations, best first (one if greedy).

        A blank text gives a blank one. `sources` are the ids of the texts where they are known, and
        `first` is the number of the first text; `progress` as in `search_ids`.
        """
        sources = self.encode(texts) if sources is None else sources
        spoken = [i for i, text in enumerate(texts) if text.strip()]
        ids, numbers = [sources[i] for i in spoken], [first + i for i in spoken]
        found = self.search_ids(ids, greedy=greedy, numbers=numbers, progress=progress)
        translations = [[NOTHING] for _ in texts]
        for i, hypotheses in zip(spoken, found):
            decoded = self.tokenizer.decode_batch([h.ids for h in hypotheses])
            translations[i] = [
                Translation(text, score=h.score, log_prob=h.log_prob, finished=h.finished)
                for text, h in zip(decoded, hypotheses)
            ]
        return translations

    @weights_fixed()
    def search_ids(
        self,
        sources: Sequence[Sequence[int]],
        *,
        greedy: bool,
        numbers: Sequence[int] | None = None,
        progress: Callable[[int], object] = lambda n: None,
    ) -> list[list[Hypothesis]]:
        """Source ids (each with EOS) -> hypotheses in the order of the input, best first.

        Batches hold sentences of like length, and get smaller where the memory does not suffice;
        `progress` is told how many sentences each finished batch had. Sampling draws from the
        sentences' `numbers` (default: their places). Raises UserError where the memory does not
        suffice for one sentence.
        """
        self.model.eval()
        numbers = range(len(sources)) if numbers is None else numbers
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        found: list[list[Hypothesis]] = [[] for _ in sources]
        start, most = 0, self.decode.batch_size
        while start < len(order):
            budget = TOKENS_OF_A_SENTENCE * most // len(sources[order[start]])
            rows = order[start : start + max(1, min(budget, most))]
            batch = self._search_if_it_fits(
                [sources[i] for i in rows], [numbers[i] for i in rows], greedy
            )
            if batch is None:
                torch.cuda.empty_cache()
                most = max(1, len(rows) // 2)
                message = "not enough memory to translate %d sentences at once: going on with %d"
                logger.warning(message, len(rows), most)
                continue
            for row, hypotheses in zip(rows, batch):
                by_risk = self.decode.mbr is not None and not greedy
                found[row] = self._least_risk_first(hypotheses) if by_risk else hypotheses
            start += len(rows)
            progress(len(rows))
        return found

    def _search_if_it_fits(
        self, sources: Sequence[Sequence[int]], numbers: Sequence[int], greedy: bool
    ) -> list[list[Hypothesis]] | None:
        """None where the memory does not suffice for so many sentences; UserError: nor for one."""
        try:
            src = pad_sources(sources, self.tokenizer.pad_id).to(self.device)
            ids = {"bos_id": self.tokenizer.bos_id, "eos_id": self.tokenizer.eos_id}
            return search_batch(self.model, src, self.decode, **ids, numbers=numbers, greedy=greedy)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if len(sources) == 1:
                raise UserError(
                    f"not enough memory to translate one sentence of {len(sources[0]):,} tokens: "
                    "lower decode.beam_size, or split the sentence"
                ) from error
        return None

    def _least_risk_first(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        texts = self.tokenizer.decode_batch([h.ids for h in hypotheses])
        return least_risk_first(hypotheses, texts, self.decode)
