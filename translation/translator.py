"""Text to text with a trained model: loading a run, searching in batches, giving back the order of
the input.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from checkpoints.content import checkpoint_config, read_checkpoint
from checkpoints.run import Run, resolve_checkpoint
from configs.schema import Config, DecodeConfig
from configs.serialize import diff
from data.corpora.text import normalize_whitespace
from models.attention.tap import AttentionTap
from models.build import build_model
from models.decoding.ensemble import Ensemble
from models.decoding.hypothesis import Hypothesis
from models.linear import weights_fixed
from models.positional_encodings.base import Kind
from models.transformer import TranslationTransformer
from tokenizer.base import BaseTokenizer
from tokenizer.build import load_tokenizer
from translation.mbr import candidate_weights, minimum_bayes_risk
from translation.search import search_batch
from utils.errors import UserError
from utils.machine import is_out_of_memory, release_memory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Translation:
    """One hypothesis as text.

    `score` is its log-probability over the length penalty; its expected utility where decode.mbr
    chose among them.
    """

    text: str
    score: float
    log_prob: float
    finished: bool


NOTHING = Translation("", score=0.0, log_prob=0.0, finished=True)  # of a text without a word


@dataclass(frozen=True, slots=True)
class Translated:
    """A source text with what the searches found: `greedy` None and `beam` empty where they were
    not asked for.

    `beam` holds what decode.search found, whichever search that is.
    """

    src: str
    greedy: Translation | None
    beam: list[Translation]  # best first

    @property
    def best(self) -> Translation:
        """The beam's best where there was a beam."""
        return self.greedy if self.greedy is not None and not self.beam else self.beam[0]


# Padded source tokens for each of decode.batch_size sentences: a few very long lines then make
# smaller batches instead of filling the memory.
_TOKENS_OF_A_SENTENCE = 256


def pad_sources(sources: Sequence[Sequence[int]], pad_id: int) -> torch.Tensor:
    """Ids of several sentences -> [B,S], padded on the right."""
    longest = max(map(len, sources))
    return torch.tensor([[*ids, *[pad_id] * (longest - len(ids))] for ids in sources])


class Translator:
    """A model, or an ensemble of them, with its tokenizer.

    The translation of a sentence does not depend on what is translated beside it.
    """

    def __init__(
        self,
        model: TranslationTransformer | Ensemble,
        tokenizer: BaseTokenizer,
        decode: DecodeConfig,
        device: torch.device,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.decode = decode
        self.device = device

    @property
    def longest_source(self) -> int | None:
        """The tokens that every model's table of source positions has room for; None where no model
        has a table.
        """
        models = self.model.models if isinstance(self.model, Ensemble) else [self.model]
        bounds = [model.scheme.max_length("source") for model in models]
        return min((bound for bound in bounds if bound is not None), default=None)

    def _search(
        self, sources: Sequence[Sequence[int]], numbers: Sequence[int], greedy: bool
    ) -> list[list[Hypothesis]]:
        self.model.eval()
        src = pad_sources(sources, self.tokenizer.pad_id).to(self.device)
        ids = {"bos_id": self.tokenizer.bos_id, "eos_id": self.tokenizer.eos_id}
        return search_batch(self.model, src, self.decode, numbers=numbers, greedy=greedy, **ids)

    def _search_if_it_fits(
        self, sources: Sequence[Sequence[int]], numbers: Sequence[int], greedy: bool
    ) -> list[list[Hypothesis]] | None:
        """None where the memory does not suffice for so many sentences. Raises UserError where one
        is too many.
        """
        try:
            return self._search(sources, numbers, greedy)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if len(sources) == 1:
                raise UserError(
                    f"not enough memory to translate one sentence of {len(sources[0]):,} tokens: lower "
                    "decode.beam_size, or split the sentence"
                ) from error
        return None

    def _least_risk_first(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """The candidates of one sentence by expected utility, which becomes their score."""
        assert self.decode.mbr is not None
        texts = self.tokenizer.decode_batch([h.ids for h in hypotheses])
        weights = candidate_weights(hypotheses, self.decode.search)
        ranked = minimum_bayes_risk(texts, weights, self.decode.mbr)
        return [replace(hypotheses[index], score=utility) for index, utility in ranked]

    @weights_fixed()
    def search_ids(
        self,
        sources: Sequence[Sequence[int]],
        *,
        greedy: bool,
        progress: Callable[[int], None] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        """Source ids (each with EOS) -> hypotheses in the order of the input, best first.

        Batches hold sentences of like length; `progress` is told how many sentences each finished
        batch had. They get smaller where the memory does not suffice. `numbers` are the sentences'
        own (default: their places), from which sampling draws. Raises UserError where the memory
        does not suffice for one sentence.
        """
        numbers = range(len(sources)) if numbers is None else numbers
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        found: list[list[Hypothesis]] = [[] for _ in sources]
        start, most = 0, self.decode.batch_size
        while start < len(order):
            budget = _TOKENS_OF_A_SENTENCE * most // len(sources[order[start]])
            rows = order[start : start + max(1, min(budget, most))]
            batch = self._search_if_it_fits(
                [sources[i] for i in rows], [numbers[i] for i in rows], greedy
            )
            if batch is None:
                release_memory(self.device)
                most = max(1, len(rows) // 2)
                logger.warning(
                    "not enough memory to translate %d sentences at once: going on with %d",
                    len(rows),
                    most,
                )
                continue
            for row, hypotheses in zip(rows, batch):
                by_risk = self.decode.mbr is not None and not greedy
                found[row] = self._least_risk_first(hypotheses) if by_risk else hypotheses
            start += len(rows)
            if progress is not None:
                progress(len(rows))
        return found

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Source ids, each with EOS, of texts with white space as in training. UserError: text that
        is not Unicode.
        """
        return self.tokenizer.encode_src_batch([normalize_whitespace(text) for text in texts])

    def translate(
        self,
        texts: Sequence[str],
        *,
        greedy: bool = False,
        progress: Callable[[int], None] | None = None,
        first: int = 0,
        sources: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Translation]]:
        """Sentences -> for each its n-best translations, best first (one if greedy). A blank text
        gives a blank one.

        `first` is the number of the first text, where these are a part of more; `sources` are the
        ids of `texts`, where they are known (see `encode`).
        """
        sources = self.encode(texts) if sources is None else sources
        spoken = [i for i, text in enumerate(texts) if text.strip()]
        numbers = [first + i for i in spoken]
        found = self.search_ids(
            [sources[i] for i in spoken], greedy=greedy, progress=progress, numbers=numbers
        )
        translations = [[NOTHING] for _ in texts]
        for i, hypotheses in zip(spoken, found):
            decoded = self.tokenizer.decode_batch([h.ids for h in hypotheses])
            translations[i] = [
                Translation(text, score=h.score, log_prob=h.log_prob, finished=h.finished)
                for text, h in zip(decoded, hypotheses)
            ]
        return translations

    @torch.inference_mode()
    def attention_maps(
        self, source: Sequence[int], tgt_in: Sequence[int]
    ) -> dict[Kind, np.ndarray]:
        """Attention weights of one sentence, [L,H,Tq,Tk] for each of encoder, decoder and cross.

        `source` ends in EOS; `tgt_in` begins with the start id, so that row t of decoder and cross
        attention is what the model looked at when it predicted token t of the target.
        """
        tap = AttentionTap()
        src, tgt = (
            torch.tensor([source], device=self.device),
            torch.tensor([tgt_in], device=self.device),
        )
        self.model.eval()
        self.model(src, tgt, tap=tap)
        kinds: tuple[Kind, ...] = ("encoder", "decoder", "cross")
        return {kind: tap.maps(kind)[:, 0].float().cpu().numpy() for kind in kinds}

    def translate_stream(
        self,
        lines: Iterable[str],
        *,
        chunk: int,
        greedy: bool = False,
        beam: bool = True,
        watch: Callable[[int, int], None] | None = None,
    ) -> Iterator[list[Translated]]:
        """Any number of lines in bounded memory and in their order: `chunk` at a time are read and
        translated.

        `watch` is told of each line its number (from 1) and its tokens, before any of the chunk is
        translated.
        """
        rest, done = iter(lines), 0
        while texts := list(itertools.islice(rest, chunk)):
            sources = self.encode(texts)
            if watch is not None:
                for number, ids in enumerate(sources, start=done + 1):
                    watch(number, len(ids))
            found = self.translate(texts, greedy=True, sources=sources) if greedy else []
            greedily = [best for [best] in found] if greedy else [None] * len(texts)
            beams = (
                self.translate(texts, first=done, sources=sources) if beam else [[] for _ in texts]
            )
            done += len(texts)
            yield [Translated(*found) for found in zip(texts, greedily, beams)]


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """What a checkpoint and its run make together. `partners`: the runs that translate with it, as
    an ensemble.
    """

    checkpoint: Path
    run: Run
    config: Config
    tokenizer: BaseTokenizer
    model: TranslationTransformer
    epoch: int
    step: int
    partners: tuple[LoadedRun, ...] = ()

    @property
    def members(self) -> tuple[LoadedRun, ...]:
        """This run and its partners."""
        return (self, *self.partners)

    def translator(self, device: torch.device) -> Translator:
        """Translates with the model of this run, or with those of all members together."""
        model = Ensemble([member.model for member in self.members]) if self.partners else self.model
        return Translator(model.to(device), self.tokenizer, self.config.decode, device)

    def about(self) -> str:
        """What was loaded, a line for each checkpoint."""
        return "\n".join(f"{m.checkpoint}: epoch {m.epoch}, update {m.step}" for m in self.members)


def load_run(
    model_path: str | Path | None,
    *,
    runs_dir: str | Path,
    change: Callable[[Config], Config] | None = None,
) -> LoadedRun:
    """The model of a checkpoint, of a run (its best checkpoint), or of the newest run; in
    evaluation mode, on the CPU.

    `change` may replace parts of the checkpoint's config that do not shape the model (decoding,
    evaluation, data). Raises UserError where the checkpoint, the tokenizer or their fit is at
    fault.
    """
    checkpoint, run = resolve_checkpoint(model_path, runs_dir=runs_dir, prefer="best")
    payload = read_checkpoint(checkpoint)
    config = checkpoint_config(payload)
    if change is not None:
        config = change(config)
    tokenizer = load_tokenizer(run.tokenizer)
    check_tokenizer(tokenizer, payload, where=f"{run.tokenizer}")
    model = build_model(config.model, tokenizer)
    load_weights(model, payload, checkpoint)
    progress = payload.get("progress", {})
    return LoadedRun(
        checkpoint=checkpoint,
        run=run,
        config=config,
        tokenizer=tokenizer,
        model=model.eval(),
        epoch=progress.get("epoch", 0),
        step=progress.get("step", 0),
    )


def load_runs(
    model_paths: Sequence[str | Path | None],
    *,
    runs_dir: str | Path,
    change: Callable[[Config], Config] | None = None,
) -> LoadedRun:
    """The first run as `load_run` loads it, with the others as its partners, which search as its
    config says.

    Raises UserError as `load_run`, and where a partner has another tokenizer or no room for the
    search.
    """
    first = load_run(model_paths[0], runs_dir=runs_dir, change=change)

    def like_the_first(config: Config) -> Config:
        return replace(config, decode=first.config.decode)

    partners = tuple(
        load_run(path, runs_dir=runs_dir, change=like_the_first) for path in model_paths[1:]
    )
    for partner in partners:
        if partner.tokenizer.fingerprint() != first.tokenizer.fingerprint():
            raise UserError(
                f"{partner.checkpoint} has another tokenizer than {first.checkpoint}: an ensemble needs one "
                "vocabulary; give runs that were trained with the same tokenizer"
            )
    return replace(first, partners=partners)


def check_tokenizer(tokenizer: BaseTokenizer, payload: dict, *, where: str) -> None:
    """Raises UserError where `tokenizer` is not the one that the checkpoint was trained with."""
    if tokenizer.fingerprint() != payload["tokenizer"]["fingerprint"]:
        raise UserError(
            f"the tokenizer in {where} is not the one this checkpoint was trained with: keep a checkpoint in the "
            "checkpoints/ folder of its own run"
        )


def load_weights(model: TranslationTransformer, payload: dict, checkpoint: Path) -> None:
    """Raises UserError where the weights do not fit the model."""
    try:
        model.load_state_dict(payload["model"])
    except RuntimeError as error:
        lines = str(error).splitlines()
        detail = lines[1].strip() if len(lines) > 1 else lines[0]
        raise UserError(
            f"{checkpoint}: the weights do not fit the configured model: {detail[:200]}"
        ) from error


# Fields of the model and tokenizer sections that shape neither the weights nor what is answered.
TRAINING_ONLY = {
    "model.dropout",
    "model.embedding_dropout",
    "model.word_dropout",
    "model.attention_dropout",
    "model.activation_dropout",
    "model.stochastic_depth",
    "model.init",
    "model.position.form",
    "tokenizer.sampling",
}


def require_same_model(trained: Config, given: Config, *, where: str | Path) -> None:
    """Raises UserError where the config file `where` describes another model than the checkpoint's
    `trained`.

    Model, tokenizer and languages count; how it was trained, evaluated and from which corpus does
    not.
    """
    differing = diff(trained, given)
    kinds = tuple(
        f"{key}." for key, _, _ in differing
    )  # where the kind differs, its fields say nothing more
    different = [
        f"{key} is {a!r} in the checkpoint and {b!r} in the file"
        for key, a, b in differing
        if key.startswith(("model.", "tokenizer", "data.src_lang", "data.tgt_lang"))
        and key not in TRAINING_ONLY
        and not key.startswith(kinds)
    ]
    if different:
        more = f" (and {len(different) - 3} more)" if len(different) > 3 else ""
        raise UserError(
            f"--config {where} does not fit the checkpoint: {'; '.join(different[:3])}{more}. Leave --config out: "
            "the checkpoint brings its own"
        )
