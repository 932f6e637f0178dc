"""The Translator: translates text with a trained model, for the scripts and from Python."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack, overload

import numpy as np
import torch

from configs.schema import DecodeConfig, Sampling, Search
from configs.section import kinds
from data.corpora.text import plain_text
from models.decoding.ensemble import Ensemble
from models.decoding.hypothesis import Hypothesis as FoundIds, length_penalty
from models.positional_encodings.base import Side
from models.transformer import TranslationTransformer
from tokenizer.base import BaseTokenizer
from translation.alignment import ALL_HEADS, Alignment, HeadChoice, Pieces, WordAttention
from translation.answers import (
    NOTHING,
    Attention,
    Candidate,
    Hypothesis,
    TokenScores,
    Translated,
    Translation,
)
from translation.datastore import with_neighbours
from translation.engines import CTranslate2
from translation.forcing import attention_weights, token_log_probs
from translation.loading import LoadedRun, load_run
from translation.search import BatchSearch, in_batches, limits_of, pad_sources
from translation.sentences import join_candidates, lower_capitals, margin, split_sentences
from translation.settings import config_change
from translation.workers import Workers
from utils.errors import UserError
from utils.machine import in_float32, own_modes, resolve_device

T = TypeVar("T")

TYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}

MOST_TOKENS = 8192  # of a line of a file: attention takes their square in memory and time


class Settings(TypedDict, total=False):
    """The settings of `Translator.translate`; see there."""

    search: str | Search | None
    beam_size: int | None
    n_best: int | None
    length_penalty: float | None
    batch_size: int | None
    prefix: str | list[str] | None


@dataclass(frozen=True, eq=False)
class Translator:
    """A model, or an ensemble of them, with its tokenizer and its search settings.

    It is immutable, so that threads may share it. In float32 the translation of a sentence does not
    depend on the rest of the batch, up to rounding at ties; a sample is drawn by its text's place.
    """

    searcher: BatchSearch = field(repr=False)
    decode: DecodeConfig

    @classmethod
    @in_float32()
    def load(
        cls,
        path: str | Path,
        *partners: str | Path,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = torch.float32,
        overrides: Sequence[str] = (),
    ) -> Translator:
        """The translator of a trained model, on its device.

        Args:
            path: a run (its best checkpoint), a checkpoint, an exported folder, or a Marian model:
                a folder or its name on the hub.
            partners: further models, which translate with it as an ensemble.
            device: "auto" (CUDA where there is a device), "cpu", "cuda", "cuda:N".
            dtype: float32, float64, bfloat16 or float16: of weights and computation.
            overrides: "decode.FIELD=VALUE" texts, as of the scripts' --set.

        Raises UserError for models that are missing, damaged, or do not fit together, and for what
        cannot be set.
        """
        for each in (path, *partners):
            if not isinstance(each, str | Path):
                raise UserError(f"{each!r}: give a path; for an ensemble several, not a list")
        wanted = TYPES.get(str(dtype).removeprefix("torch."))
        if wanted is None:
            raise UserError(f"dtype {dtype!r}: one of {', '.join(TYPES)}")
        on, change = resolve_device(str(device)), config_change(None, None, _texts(overrides))
        return cls.of(load_run(path, *partners, change=change), on, wanted)

    @classmethod
    def of(
        cls,
        loaded: LoadedRun,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        *,
        engine: CTranslate2 | None = None,
        workers: Workers | None = None,
    ) -> Translator:
        """The translator of a loaded run; it copies the weights for another dtype.

        engine and workers: see BatchSearch.
        """
        if loaded.config.decode.neighbours.datastore:
            if dtype.itemsize < 4:
                raise UserError("decode.neighbours needs float32: leave --precision out")
            model: TranslationTransformer | Ensemble = with_neighbours(loaded, device)
        else:
            model = loaded.network(device)
        if dtype != torch.float32:
            model = copy.deepcopy(model).to(dtype)
        searcher = BatchSearch(
            model, loaded.tokenizer, device, engine, workers, loaded.config.data.tgt_lang
        )
        return cls(searcher, loaded.config.decode)

    @property
    def tokenizer(self) -> BaseTokenizer:
        return self.searcher.tokenizer

    def most_tokens(self, *sides: Side) -> int:
        """The most tokens of a line on each of these sides: MOST_TOKENS, or fewer."""
        return min([MOST_TOKENS, *filter(None, map(self.searcher.longest, sides))])

    # -------------------------------------------------------------------------------- translating

    @overload
    def translate(self, text: str, **settings: Unpack[Settings]) -> Translation: ...

    @overload
    def translate(self, text: list[str], **settings: Unpack[Settings]) -> list[Translation]: ...

    def translate(
        self,
        text: str | list[str],
        *,
        search: str | Search | None = None,
        beam_size: int | None = None,
        n_best: int | None = None,
        length_penalty: float | None = None,
        batch_size: int | None = None,
        prefix: str | list[str] | None = None,
    ) -> Translation | list[Translation]:
        """Translate a text, or a list of texts in order; a blank text has a blank translation.

        Arguments that are None are as in the model's configuration (`decode`).

        Args:
            search: "greedy", "beam", "diverse", "sample", or a section of configs.schema such as
                Sampling(temperature=0.8, seed=3).
            beam_size: hypotheses kept.
            n_best: translations of each text; at most beam_size, but any number of samples. Greedy
                search finds one. Minimum Bayes risk (decode.mbr) ranks at least decode.n_best.
            length_penalty: alpha of the GNMT length penalty; 0: none.
            batch_size: texts translated at once.
            prefix: the beginning of the translation ("": any), a list for a list. Its last word may
                be continued. Scores and log_prob then count what follows it.

        Raises UserError for a setting that is not allowed, text that is not Unicode, a text longer
        than the scheme allows, and a prefix as long as the translation may be.
        """
        texts = _texts(text)
        prefixes = [""] * len(texts)
        if prefix is not None:
            _, prefixes = _pairs(text if isinstance(text, str) else texts, prefix, "prefixes")
        decode, greedy = self._settings(
            search,
            beam_size=beam_size,
            n_best=n_best,
            length_penalty=length_penalty,
            batch_size=batch_size,
        )
        sources = self.encode(texts)
        found = self._find(texts, sources, prefixes, decode, greedy=greedy)
        shown = [each[:n_best] for each in found]
        translations = [self._translation(*each) for each in zip(texts, sources, shown)]
        return translations[0] if isinstance(text, str) else translations

    def translate_stream(
        self,
        lines: Iterable[str],
        prefixes: Iterable[str] | None = None,
        *,
        chunk: int,
        skip: int = 0,
        greedy: bool = False,
        beam: bool = True,
        watch: Callable[[int, int], None] = lambda number, n_tokens: None,
        sentences_of: str | None = None,
    ) -> Iterator[list[Translated]]:
        """Any number of lines in bounded memory and in their order, a list for each `chunk` lines.

        The first `skip` lines are left out, but counted. `watch` gets each line's number (from 1)
        and tokens before any line of the chunk is translated. prefixes: see `translate`; if there
        are not as many as lines, UserError is raised in place of the last chunk. sentences_of: the
        sources' language; each sentence of a line is translated by itself, without prefixes, and
        the translations are joined, after the line's `margin`. One in capitals is translated as if
        it were not, and its translation put in capitals.
        """
        pairs: Iterator[tuple[str, str]] = ((line, "") for line in lines)
        if prefixes is not None:
            pairs = _side_by_side(lines, prefixes, "prefixes")
        rest, done, first = itertools.islice(pairs, skip, None), skip, skip
        while both := list(itertools.islice(rest, chunk)):
            texts, begun = map(list, zip(*both))
            parts = [[text] for text in texts]
            margins = [""] * len(texts)
            if sentences_of is not None:
                margins = list(map(margin, texts))
                inner = map(str.removeprefix, texts, margins)
                parts = [split_sentences(text, sentences_of) for text in inner]
                begun = [""] * sum(map(len, parts))
            flat = list(itertools.chain(*parts))
            plain = flat if sentences_of is None else list(map(lower_capitals, flat))
            places = [number for number, part in enumerate(parts, start=done + 1) for _ in part]
            sources = self.encode(plain)
            for number, ids in zip(places, sources):
                watch(number, len(ids))
            best: list[Candidate | None] = [None] * len(texts)
            beams: list[list[Candidate]] = [[] for _ in texts]
            if greedy:
                found = self._of_lines(
                    parts, margins, plain, sources, begun, greedy=True, first=first
                )
                best = [candidates[0] for candidates in found]
            if beam:
                beams = self._of_lines(
                    parts, margins, plain, sources, begun, greedy=False, first=first
                )
            done, first = done + len(texts), first + len(sources)
            yield list(map(Translated, texts, best, beams))

    def _of_lines(
        self,
        parts: Sequence[Sequence[str]],
        margins: Sequence[str],
        plain: Sequence[str],
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[str],
        *,
        greedy: bool,
        first: int,
    ) -> list[list[Candidate]]:
        """The candidates of each line, best first, from those of the sentences in it.

        `plain` are the sentences as they were encoded: where one is not as in its line, that is in
        capitals, and so are its candidates.
        """
        found = self._find(plain, sources, prefixes, self.decode, greedy=greedy, first=first)
        candidates = [self._candidates(of_one) or [NOTHING] for of_one in found]
        each = (
            of_one if text == small else [replace(c, text=c.text.upper()) for c in of_one]
            for text, small, of_one in zip(itertools.chain(*parts), plain, candidates)
        )
        of_lines = (list(itertools.islice(each, len(part))) for part in parts)
        joined = (join_candidates(of_line, self.searcher.language) for of_line in of_lines)
        return [
            [replace(c, text=before + c.text) for c in of_line] if before else of_line
            for before, of_line in zip(margins, joined)
        ]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Source ids, each with EOS, of each `plain_text`. UserError: it is not Unicode."""
        return self.tokenizer.encode_src_batch(list(map(plain_text, texts)))

    def encode_target(self, texts: Sequence[str]) -> list[list[int]]:
        """Target ids, each with EOS, of each `plain_text`."""
        return self.tokenizer.encode_tgt_batch(list(map(plain_text, texts)))

    def _settings(
        self, search: str | Search | None, **given: float | None
    ) -> tuple[DecodeConfig, bool]:
        """`decode` with what is given, and whether greedy search is asked for."""
        changes: dict[str, Any] = {
            k: value.item() if isinstance(value, np.generic) else value
            for k, value in given.items()
            if value is not None
        }
        if isinstance(search, str):
            known = "greedy", *kinds(Search)
            if search not in known:
                raise UserError(f"search {search!r}: one of {', '.join(known)}")
            if search not in ("greedy", self.decode.search.kind):
                changes["search"] = kinds(Search)[search]()
        elif search is not None:
            changes["search"] = search
        beam_size = changes.get("beam_size", self.decode.beam_size)
        samples = isinstance(changes.get("search", self.decode.search), Sampling)
        if given["beam_size"] is not None and (samples or search == "greedy"):
            raise UserError(f"beam_size = {beam_size}: only a beam search has one: leave it out")
        if isinstance(beam_size, int) and not samples:
            changes.setdefault("n_best", min(self.decode.n_best, beam_size))
        decode = replace(self.decode, **changes)
        if decode.mbr is not None and search != "greedy":
            few = self.decode.n_best if samples else min(self.decode.n_best, decode.beam_size)
            decode = replace(decode, n_best=max(decode.n_best, few))
            if decode.n_best == 1 and (self.decode.n_best > 1 or given["beam_size"] is not None):
                raise UserError("decode.mbr chooses among several: raise beam_size and n_best")
        return decode, search == "greedy"

    def _find(
        self,
        texts: Sequence[str],
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[str],
        decode: DecodeConfig,
        *,
        greedy: bool,
        first: int = 0,
    ) -> list[list[FoundIds]]:
        """The hypotheses of each text, none for a blank one; `first` is the first text's number."""
        spoken = [i for i, text in enumerate(texts) if plain_text(text)]
        sources, numbers = [sources[i] for i in spoken], [first + i for i in spoken]
        begun = self.prefix_ids([prefixes[i] for i in spoken], sources, decode, numbers)
        found = self.searcher.search_ids(
            sources, decode, greedy=greedy, numbers=numbers, prefixes=begun
        )
        hypotheses = dict(zip(spoken, found))
        return [hypotheses.get(i, []) for i in range(len(texts))]

    @own_modes()
    def prefix_ids(
        self,
        prefixes: Sequence[str],
        sources: Sequence[Sequence[int]],
        decode: DecodeConfig,
        numbers: Sequence[int],
    ) -> list[list[int]]:
        """Ids without EOS. UserError: a prefix has no room; `numbers`, from 0, says which it is."""
        if not any(prefixes):
            return [[] for _ in prefixes]
        ids, pad_id = [self._target(prefix)[:-1] for prefix in prefixes], self.tokenizer.pad_id
        limits = limits_of(decode, self.tokenizer)
        longest = limits.max_lengths(pad_sources(sources, pad_id), pad_id).tolist()
        for number, prefix, n, most in zip(numbers, prefixes, map(len, ids), longest):
            if n >= most:
                short = "max_len" if most == decode.max_len else "max_len_ratio"
                raise UserError(
                    f"prefix {number + 1:,}, {prefix[:40]!r}: {n:,} tokens, but the whole "
                    f"translation may have {most:,}: give a shorter one, or raise decode.{short}"
                )
        return ids

    def _translation(
        self, text: str, source: Sequence[int], found: Sequence[FoundIds]
    ) -> Translation:
        targets = [self._target(each) for each in found]

        @cache
        def scored() -> list[list[float]]:
            return self._log_probs([source] * len(targets), targets)

        def hypothesis(number: int, candidate: Candidate) -> Hypothesis:
            tokens = self.tokenizer.tgt_pieces(targets[number])
            made = Hypothesis(**vars(candidate), tokens=tokens)
            return made.scored_by(lambda: scored()[number])

        nothing = Hypothesis(**vars(NOTHING), tokens=[]).scored_by(list)
        hypotheses = [hypothesis(*each) for each in enumerate(self._candidates(found))] or [nothing]
        best = hypotheses[0]
        shared = (best.text, best.score, best.log_prob, best.finished, best.tokens)
        return Translation(*shared, text, hypotheses).scored_by(lambda: best.token_log_probs)

    def _candidates(self, found: Sequence[FoundIds]) -> list[Candidate]:
        texts = self.tokenizer.decode_batch([h.ids for h in found])
        return [Candidate(t, h.score, h.log_prob, h.finished) for t, h in zip(texts, found)]

    # ------------------------------------------------------------------- about given translations

    @overload
    def score(self, src: str, tgt: str) -> TokenScores: ...

    @overload
    def score(self, src: list[str], tgt: list[str]) -> list[TokenScores]: ...

    def score(self, src: str | list[str], tgt: str | list[str]) -> TokenScores | list[TokenScores]:
        """How probable a given translation is under the model, by token; a list for lists.

        Raises UserError for lists of different lengths, and as `translate` does.
        """
        sources, targets = _pairs(src, tgt)
        ids = list(map(self._target, targets))
        log_probs = self._log_probs(self.encode(sources), ids)
        found = list(map(TokenScores, map(self.tokenizer.tgt_pieces, ids), log_probs))
        return found[0] if isinstance(src, str) else found

    def score_stream(
        self,
        lines: Iterable[str],
        given: Iterable[str],
        *,
        chunk: int,
        watch: Callable[[int, int], None] = lambda number, n_tokens: None,
    ) -> Iterator[list[Translated]]:
        """As `translate_stream`, with a given translation of each line instead of a search.

        `watch` gets the tokens of the longer side of a pair. If there are not as many translations
        as lines, UserError is raised in place of the last chunk.
        """
        rest, done = _side_by_side(lines, given), 0
        while pairs := list(itertools.islice(rest, chunk)):
            sources = self.encode([src for src, _ in pairs])
            targets = [self._target(tgt) for _, tgt in pairs]
            for number, ids in enumerate(zip(sources, targets), start=done + 1):
                watch(number, max(map(len, ids)))
            log_probs = map(sum, self._log_probs(sources, targets))
            lengths = torch.tensor(list(map(len, targets)), dtype=torch.float64)
            penalties = length_penalty(lengths, self.decode.length_penalty).tolist()
            done, items = done + len(pairs), []
            for (src, tgt), log_prob, penalty in zip(pairs, log_probs, penalties):
                scored = Candidate(tgt, log_prob / penalty, log_prob, finished=True)
                items.append(Translated(src, None, [scored if plain_text(src + tgt) else NOTHING]))
            yield items

    def attention(self, src: str | list[int], tgt: str | list[int] | None = None) -> Attention:
        """The model's attention in a sentence and a translation of it (text, or ids with EOS).

        tgt=None: the greedy translation. Raises UserError for an ensemble, and for a model of
        backend "torch", which does not show its attention.
        """
        sizes = self.tokenizer.src_vocab_size, self.tokenizer.tgt_vocab_size
        for given, n in zip((src, "" if tgt is None else tgt), sizes):
            ids = isinstance(given, list) and all(type(i) is int and 0 <= i < n for i in given)
            if not (ids and given) and not isinstance(given, str):
                raise UserError(f"{given!r}: give one text, or its token ids, each below {n:,}")
        source = self.encode([src])[0] if isinstance(src, str) else src
        if tgt is None:
            [[best]] = self.searcher.search_ids([source], self.decode, greedy=True)
        target = tgt if isinstance(tgt, list) else self._target(best if tgt is None else tgt)
        [weights] = attention_weights(self.searcher, [source], [target])
        tokenizer = self.tokenizer
        pieces = tokenizer.tgt_pieces(target)
        # Marian starts from its padding token; the label "<pad>" would look like an error.
        marian = tokenizer.bos_id == tokenizer.pad_id
        start = "<start>" if marian else tokenizer.tgt_pieces([tokenizer.bos_id])[0]
        return Attention(
            tokenizer.decode(target),
            tokenizer.src_pieces(source),
            pieces,
            [start, *pieces[:-1]],
            **weights,
        )

    @overload
    def align(
        self, src: str, tgt: str | None = None, heads: HeadChoice = ALL_HEADS
    ) -> Alignment: ...

    @overload
    def align(
        self, src: list[str], tgt: list[str] | None = None, heads: HeadChoice = ALL_HEADS
    ) -> list[Alignment]: ...

    def align(
        self,
        src: str | list[str],
        tgt: str | list[str] | None = None,
        heads: HeadChoice = ALL_HEADS,
    ) -> Alignment | list[Alignment]:
        """Which source word each target word comes from, by cross-attention; a list for lists.

        Words are split at white space. tgt=None: the greedy translation. Raises UserError as
        `attention` does, and for a layer or head that does not exist.
        """
        if not isinstance(heads, HeadChoice):
            raise UserError(f"heads = {heads!r}: give a fr2en.HeadChoice")
        if tgt is None:
            sources = _texts(src)
            targets = [found.text for found in self.translate(sources, search="greedy")]
        else:
            sources, targets = _pairs(src, tgt)
        found = self._of_words(sources, targets, lambda attention: attention.aligned(heads))
        return found[0] if isinstance(src, str) else found

    def word_attention(self, src: Sequence[str], tgt: Sequence[str]) -> list[WordAttention]:
        """The cross-attention between the words of each pair, of all layers and heads.

        Target words past the length that the scheme allows look at nothing.
        """
        return self._of_words(src, tgt, lambda attention: attention)

    def _of_words(
        self, src: Sequence[str], tgt: Sequence[str], use: Callable[[WordAttention], T]
    ) -> list[T]:
        """The result of `use` on each pair's `word_attention`, which is not kept."""
        sources = [Pieces.of(text, self.tokenizer.encode_src_batch) for text in src]
        most = self.searcher.longest("target")
        targets = [Pieces.of(text, self.tokenizer.encode_tgt_batch, most) for text in tgt]

        def compute(rows: Sequence[int]) -> list[T]:
            pairs = [sources[i].ids for i in rows], [targets[i].ids for i in rows]
            weights = attention_weights(self.searcher, *pairs, kinds=("cross",))
            return [
                use(WordAttention.of(of_pair["cross"], sources[i], targets[i]))
                for i, of_pair in zip(rows, weights)
            ]

        lengths = [max(len(a.ids), len(b.ids)) for a, b in zip(sources, targets, strict=True)]
        return in_batches(lengths, self.decode.batch_on(self.searcher.device.type), compute)

    def _target(self, translation: str | FoundIds) -> list[int]:
        """The ids that the model produces for a translation: with EOS, unless it was cut off."""
        if isinstance(translation, str):
            return self.encode_target([translation])[0]
        ids = list(translation.ids)
        return [*ids, self.tokenizer.eos_id] if translation.finished else ids

    def _log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """The log-probabilities of the target tokens of each pair of ids."""

        def compute(rows: Sequence[int]) -> list[list[float]]:
            pairs = [sources[i] for i in rows], [targets[i] for i in rows]
            return token_log_probs(self.searcher, *pairs)

        lengths = [max(len(a), len(b)) for a, b in zip(sources, targets)]
        return in_batches(lengths, self.decode.batch_on(self.searcher.device.type), compute)


def _texts(given: str | Iterable[str]) -> list[str]:
    """A text, or several, as a list. Raises UserError for anything else."""
    several = isinstance(given, Iterable) and not isinstance(given, str)
    texts: list[Any] = list(given) if several else [given]
    for text in texts:
        if not isinstance(text, str):
            raise UserError(f"{text!r}: give a text, or a list of texts")
    return texts


def _pairs(
    src: str | Iterable[str], tgt: str | Iterable[str], what: str = "translations"
) -> tuple[list[str], list[str]]:
    """Two texts, or two lists of one length, as lists. Raises UserError for anything else."""
    sources, targets = _texts(src), _texts(tgt)
    if isinstance(src, str) != isinstance(tgt, str) or len(sources) != len(targets):
        counts = f"sources: {len(sources)}, {what}: {len(targets)}"
        raise UserError(f"{counts}; give as many of each, both as texts or as lists")
    return sources, targets


def _side_by_side(
    lines: Iterable[str], given: Iterable[str], what: str = "translations"
) -> Iterator[tuple[str, str]]:
    """The pairs as they come. Raises UserError after the last if the numbers differ."""
    sources, targets = iter(lines), iter(given)
    for n, (src, tgt) in enumerate(itertools.zip_longest(sources, targets)):
        if src is None or tgt is None:
            more = n + 1 + sum(1 for _ in itertools.chain(sources, targets))
            n_src, n_tgt = (n, more) if src is None else (more, n)
            raise UserError(f"sources: {n_src:,}, {what}: {n_tgt:,}; give as many of each")
        yield src, tgt
