"""Text to text with a trained model: loading a run, searching in batches, giving back the order of the input."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from configs.errors import UserError
from configs.schema import Config, DecodeConfig
from configs.serialize import diff
from data.corpora.text import normalize_whitespace
from models.attention.tap import AttentionTap
from models.build import build_model
from models.decoding.beam import beam_search
from models.decoding.greedy import greedy_search
from models.decoding.hypothesis import Hypothesis
from models.positional_encodings.base import Kind
from models.transformer import TranslationTransformer
from tokenizer.base_tokenizer import BaseTokenizer
from tokenizer.build import load_tokenizer
from utils.runs import Run, checkpoint_config, read_checkpoint, resolve_checkpoint


@dataclass(frozen=True, slots=True)
class Translation:
    """One hypothesis as text; `score` is its log-probability over the length penalty."""

    text: str
    score: float
    log_prob: float
    finished: bool


NOTHING = Translation("", score=0.0, log_prob=0.0, finished=True)  # of a text without a word


@dataclass(frozen=True, slots=True)
class Translated:
    """A source text with what the searches found: `greedy` None and `beam` empty where they were not asked for."""

    src: str
    greedy: Translation | None
    beam: list[Translation]  # best first

    @property
    def best(self) -> Translation:
        """The beam's best where there was a beam."""
        return self.greedy if self.greedy is not None and not self.beam else self.beam[0]


# Padded source tokens for each of decode.batch_size sentences: a few very long lines then make smaller batches
# instead of filling the memory.
_TOKENS_OF_A_SENTENCE = 256


def pad_sources(sources: Sequence[Sequence[int]], pad_id: int) -> torch.Tensor:
    """Ids of several sentences -> [B,S], padded on the right."""
    longest = max(map(len, sources))
    return torch.tensor([[*ids, *[pad_id] * (longest - len(ids))] for ids in sources])


class Translator:
    """A model with its tokenizer. The translation of a sentence does not depend on what is translated beside it."""

    def __init__(
        self, model: TranslationTransformer, tokenizer: BaseTokenizer, decode: DecodeConfig, device: torch.device
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.decode = decode
        self.device = device

    def _search(self, sources: Sequence[Sequence[int]], greedy: bool) -> list[list[Hypothesis]]:
        self.model.eval()
        src = pad_sources(sources, self.tokenizer.pad_id).to(self.device)
        bos_id, eos_id, decode = self.tokenizer.bos_id, self.tokenizer.eos_id, self.decode
        if greedy:
            best = greedy_search(
                self.model,
                src,
                bos_id=bos_id,
                eos_id=eos_id,
                max_len=decode.max_len,
                max_len_ratio=decode.max_len_ratio,
                alpha=decode.length_penalty,
            )
            return [[hypothesis] for hypothesis in best]
        return beam_search(
            self.model,
            src,
            bos_id=bos_id,
            eos_id=eos_id,
            beam_size=decode.beam_size,
            n_best=decode.n_best,
            alpha=decode.length_penalty,
            max_len=decode.max_len,
            max_len_ratio=decode.max_len_ratio,
        )

    def search_ids(
        self, sources: Sequence[Sequence[int]], *, greedy: bool, progress: Callable[[int], None] | None = None
    ) -> list[list[Hypothesis]]:
        """Source ids (each with EOS) -> hypotheses in the order of the input, best first.

        Batches hold sentences of like length; `progress` is told how many sentences each finished batch had.
        """
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        found: list[list[Hypothesis]] = [[] for _ in sources]
        start = 0
        while start < len(order):
            budget = _TOKENS_OF_A_SENTENCE * self.decode.batch_size // len(sources[order[start]])
            rows = order[start : start + max(1, min(budget, self.decode.batch_size))]
            try:
                batch = self._search([sources[i] for i in rows], greedy)
            except (MemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                raise UserError(
                    f"not enough memory to translate {len(rows)} sentences of up to {len(sources[rows[0]]):,} tokens "
                    "at once: lower decode.batch_size or decode.beam_size, or split the longest sentences"
                ) from error
            for row, hypotheses in zip(rows, batch):
                found[row] = hypotheses
            start += len(rows)
            if progress is not None:
                progress(len(rows))
        return found

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Source ids, each with EOS, of texts with white space as in training. UserError: text that is not Unicode."""
        return self.tokenizer.encode_src_batch([normalize_whitespace(text) for text in texts])

    def translate(
        self, texts: Sequence[str], *, greedy: bool = False, progress: Callable[[int], None] | None = None
    ) -> list[list[Translation]]:
        """Sentences -> for each its n-best translations, best first (one if greedy). A blank text gives a blank one."""
        spoken = [i for i, text in enumerate(texts) if text.strip()]
        found = self.search_ids(self.encode([texts[i] for i in spoken]), greedy=greedy, progress=progress)
        translations = [[NOTHING] for _ in texts]
        for i, hypotheses in zip(spoken, found):
            decoded = self.tokenizer.decode_batch([h.ids for h in hypotheses])
            translations[i] = [
                Translation(text, score=h.score, log_prob=h.log_prob, finished=h.finished)
                for text, h in zip(decoded, hypotheses)
            ]
        return translations

    @torch.inference_mode()
    def attention_maps(self, source: Sequence[int], tgt_in: Sequence[int]) -> dict[Kind, np.ndarray]:
        """Attention weights of one sentence, [L,H,Tq,Tk] for each of encoder, decoder and cross.

        `source` ends in EOS; `tgt_in` begins with the start id, so that row t of decoder and cross attention is what
        the model looked at when it predicted token t of the target.
        """
        tap = AttentionTap()
        src, tgt = torch.tensor([source], device=self.device), torch.tensor([tgt_in], device=self.device)
        self.model.eval()
        self.model(src, tgt, tap=tap)
        kinds: tuple[Kind, ...] = ("encoder", "decoder", "cross")
        return {kind: tap.maps(kind)[:, 0].float().cpu().numpy() for kind in kinds}

    def translate_stream(
        self, lines: Iterable[str], *, chunk: int, greedy: bool = False, beam: bool = True
    ) -> Iterator[list[Translated]]:
        """Any number of lines in bounded memory and in their order: `chunk` at a time are read and translated."""
        rest = iter(lines)
        while texts := list(itertools.islice(rest, chunk)):
            greedily = [best for [best] in self.translate(texts, greedy=True)] if greedy else [None] * len(texts)
            beams = self.translate(texts) if beam else [[] for _ in texts]
            yield [Translated(*found) for found in zip(texts, greedily, beams)]


def _out_of_memory(error: Exception) -> bool:
    # The CPU allocator of torch has no exception class of its own.
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """What a checkpoint and its run make together."""

    checkpoint: Path
    run: Run
    config: Config
    tokenizer: BaseTokenizer
    model: TranslationTransformer
    epoch: int
    step: int

    def translator(self, device: torch.device) -> Translator:
        return Translator(self.model.to(device), self.tokenizer, self.config.decode, device)


def load_run(
    model_path: str | Path | None, *, runs_dir: str | Path, change: Callable[[Config], Config] | None = None
) -> LoadedRun:
    """The model of a checkpoint, of a run (its best checkpoint), or of the newest run; in evaluation mode, on the CPU.

    `change` may replace parts of the checkpoint's config that do not shape the model (decoding, evaluation, data).
    Raises UserError where the checkpoint, the tokenizer or their fit is at fault.
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
        raise UserError(f"{checkpoint}: the weights do not fit the configured model: {detail[:200]}") from error


# Fields of the model and tokenizer sections that shape neither the weights nor what is answered.
_TRAINING_ONLY = {
    "model.dropout",
    "model.attention_dropout",
    "model.activation_dropout",
    "model.position.form",
    "tokenizer.sampling",
}


def require_same_model(trained: Config, given: Config, *, where: str | Path) -> None:
    """Raises UserError where the config file `where` describes another model than the checkpoint's `trained`.

    Model, tokenizer and languages count; how it was trained, evaluated and from which corpus does not.
    """
    differing = diff(trained, given)
    kinds = tuple(f"{key}." for key, _, _ in differing)  # where the kind differs, its fields say nothing more
    different = [
        f"{key} is {a!r} in the checkpoint and {b!r} in the file"
        for key, a, b in differing
        if key.startswith(("model.", "tokenizer", "data.src_lang", "data.tgt_lang"))
        and key not in _TRAINING_ONLY
        and not key.startswith(kinds)
    ]
    if different:
        more = f" (and {len(different) - 3} more)" if len(different) > 3 else ""
        raise UserError(
            f"--config {where} does not fit the checkpoint: {'; '.join(different[:3])}{more}. Leave --config out: "
            "the checkpoint brings its own"
        )
