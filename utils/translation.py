"""Text to text with a trained model: loading a run, searching in batches, giving back the order of the input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from configs.errors import UserError
from configs.schema import Config, DecodeConfig
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
        for start in range(0, len(order), self.decode.batch_size):
            rows = order[start : start + self.decode.batch_size]
            for row, hypotheses in zip(rows, self._search([sources[i] for i in rows], greedy)):
                found[row] = hypotheses
            if progress is not None:
                progress(len(rows))
        return found

    def translate(
        self, texts: Sequence[str], *, greedy: bool = False, progress: Callable[[int], None] | None = None
    ) -> list[list[Translation]]:
        """Sentences -> for each its n-best translations, best first (one if greedy)."""
        sources = self.tokenizer.encode_src_batch(texts)
        return [
            [
                Translation(self.tokenizer.decode(h.ids), score=h.score, log_prob=h.log_prob, finished=h.finished)
                for h in hypotheses
            ]
            for hypotheses in self.search_ids(sources, greedy=greedy, progress=progress)
        ]

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
        self, lines: Iterator[str], *, chunk: int, greedy: bool = False
    ) -> Iterator[tuple[list[str], list[list[Translation]]]]:
        """Any number of lines in bounded memory: `chunk` at a time are sorted by length and translated."""
        while True:
            texts = [line for _, line in zip(range(chunk), lines)]
            if not texts:
                return
            yield texts, self.translate(texts, greedy=greedy)


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
