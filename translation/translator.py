"""Text to text with a trained model: batches of like length, answers in the order of the input."""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.utils.rnn import pad_sequence

from checkpoints.ctranslate2 import MAX_POSITIONS
from configs.schema import DecodeConfig, DiverseBeam, Sampling
from data.corpora.text import normalize_whitespace
from models.decoding.beam import beam_search
from models.decoding.ensemble import Ensemble
from models.decoding.hypothesis import Hypothesis, Limits
from models.decoding.stepwise import greedy_search, sample_search
from models.linear import weights_fixed
from models.transformer import TranslationTransformer
from tokenizer.base import BaseTokenizer
from translation.engines import CTranslate2
from translation.mbr import least_risk_first
from translation.workers import Workers
from utils.errors import UserError
from utils.machine import if_it_fits

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
    """A source text with what greedy search and decode.search found."""

    src: str
    greedy: Translation | None  # None: not asked for
    beam: list[Translation]  # best first; empty: not asked for

    @property
    def best(self) -> Translation:
        """The beam's best where there was a beam."""
        return self.greedy if self.greedy is not None and not self.beam else self.beam[0]


def pad_sources(sources: Sequence[Sequence[int]], pad_id: int) -> torch.Tensor:
    """Ids of several sentences -> [B,S], padded on the right."""
    rows = [torch.tensor(ids) for ids in sources]
    return pad_sequence(rows, batch_first=True, padding_value=pad_id)


@dataclass(eq=False)
class Translator:
    """A model, or an ensemble of them, with its tokenizer.

    The translation of a sentence does not depend on what is translated beside it. An engine
    searches in the model's place; with workers batches are searched at once.
    """

    model: TranslationTransformer | Ensemble
    tokenizer: BaseTokenizer
    decode: DecodeConfig
    device: torch.device
    engine: CTranslate2 | None = None
    workers: Workers | None = None

    @property
    def precision(self) -> str:
        """The type in which is searched."""
        if self.engine is not None:
            return self.engine.compute_type
        return str(self.model.output.weight.dtype).removeprefix("torch.")

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
            yield list(map(Translated, texts, best, beams))

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
        `progress` is told the size of each finished one. Sampling draws from the sentences'
        `numbers` (default: their places). UserError: the memory does not suffice for one sentence.
        """
        self.model.eval()
        numbers = range(len(sources)) if numbers is None else numbers
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        found: list[list[Hypothesis]] = [[] for _ in sources]
        start, most = 0, self.decode.batch_on(self.device.type)
        if self.workers is not None and len(order) > most:
            batches = []
            while rows := self._batch(sources, order[start:], most):
                batches.append(rows)
                start += len(rows)
            jobs = [
                {
                    "sources": [sources[i] for i in rows],
                    "numbers": [numbers[i] for i in rows],
                    "greedy": greedy,
                }
                for rows in batches
            ]
            for place, each in self.workers.map(replace(self, workers=None), jobs):
                for row, hypotheses in zip(batches[place], each):
                    found[row] = hypotheses
                progress(len(each))
            return found
        while rows := self._batch(sources, order[start:], most):
            ids, drawn = [sources[i] for i in rows], [numbers[i] for i in rows]
            batch = if_it_fits(self._search, ids, drawn, greedy)
            if batch is not None:
                for row, hypotheses in zip(rows, batch):
                    found[row] = hypotheses
                start += len(rows)
                progress(len(rows))
                continue
            if len(rows) == 1:
                raise UserError(
                    f"not enough memory to translate one sentence of {len(ids[0]):,} tokens: "
                    "lower decode.beam_size, or split the sentence"
                )
            most = len(rows) // 2
            message = "not enough memory to translate %d sentences at once: going on with %d"
            logger.warning(message, len(rows), most)
        return found

    def _batch(
        self, sources: Sequence[Sequence[int]], order: Sequence[int], most: int
    ) -> Sequence[int]:
        """Of the sources in `order`, longest first, those that are translated together next."""
        budget = TOKENS_OF_A_SENTENCE * most // len(sources[order[0]]) if order else 0
        return order[: max(1, min(budget, most))]

    def _search(
        self, sources: Sequence[Sequence[int]], numbers: Sequence[int], greedy: bool
    ) -> list[list[Hypothesis]]:
        """The search that `decode` names, or greedy search, of one batch."""
        decode, search = self.decode, self.decode.search
        src = pad_sources(sources, self.tokenizer.pad_id).to(self.device)
        limits = Limits(
            bos_id=self.tokenizer.bos_id,
            eos_id=self.tokenizer.eos_id,
            max_len=decode.max_len,
            max_len_ratio=decode.max_len_ratio,
            alpha=decode.length_penalty,
        )
        size, n_best = (1, 1) if greedy else (decode.beam_size, decode.n_best)
        found: list[list[Hypothesis]] = [[] for _ in sources]
        if self.engine is not None and max(decode.max_len, src.shape[1]) <= MAX_POSITIONS:
            lengths = limits.max_lengths(src, self.tokenizer.pad_id).tolist()
            beam = {"beam_size": size, "n_best": n_best}
            found = self.engine.search(sources, limits, lengths, **beam)
        if all(found):
            pass
        elif greedy:
            found = greedy_search(self.model, src, limits)
        elif isinstance(search, Sampling):
            found = sample_search(
                self.model, src, limits, search, n_samples=n_best, numbers=numbers
            )
        else:
            groups, strength = 1, 0.0
            if isinstance(search, DiverseBeam):
                groups, strength = search.groups or size, search.strength
            beam = {"beam_size": size, "n_best": n_best, "groups": groups}
            left = [i for i, each in enumerate(found) if not each]
            rest = beam_search(self.model, src[left], limits, **beam, strength=strength)
            for i, hypotheses in zip(left, rest):
                found[i] = hypotheses
        if greedy or decode.mbr is None:
            return found
        texts = (self.tokenizer.decode_batch([h.ids for h in each]) for each in found)
        return [least_risk_first(*candidates, decode) for candidates in zip(found, texts)]
