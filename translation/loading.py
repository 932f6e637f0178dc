"""Loads a trained run: model, tokenizer and configuration, checked to fit each other."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from checkpoints.content import CONFIG, checkpoint_config, read_checkpoint
from checkpoints.ctranslate2 import MAX_POSITIONS
from checkpoints.resolve import resolve_checkpoint
from checkpoints.run import WEIGHTS, Run
from configs.schema import Beam, Config
from models.build import build_model
from models.decoding.ensemble import Ensemble
from models.transformer import TranslationTransformer
from tokenizer.base import BaseTokenizer
from tokenizer.build import load_tokenizer
from translation.engines import CTranslate2, export_once
from translation.settings import require_same_languages
from utils.errors import ConfigError, UserError
from utils.files import sha256
from utils.machine import give_back_memory


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """The model, tokenizer and configuration of a checkpoint and its run."""

    checkpoint: Path
    checksum: str  # SHA-256 of the checkpoint as it was loaded: its file may be replaced later
    run: Run
    config: Config
    tokenizer: BaseTokenizer
    model: TranslationTransformer
    epoch: int
    step: int
    trained: Mapping[str, Any]  # on what, where and how: versions, device, hardware, precision
    partners: tuple["LoadedRun", ...] = ()  # the runs that translate with it, as an ensemble

    @property
    def members(self) -> tuple["LoadedRun", ...]:
        """This run and its partners."""
        return (self, *self.partners)

    def network(self, device: torch.device) -> TranslationTransformer | Ensemble:
        """The model of this run, or those of all members together, in float32."""
        model = Ensemble([member.model for member in self.members]) if self.partners else self.model
        return model.to(device)

    def ctranslate2(self, device: torch.device, *, greedy: bool, **how: Any) -> CTranslate2:
        """The engine that searches as this run's translator does. `how`: see CTranslate2.

        Raises UserError where it cannot: for a model that CTranslate2 lacks, an ensemble, or a
        search that is neither a beam nor greedy.
        """
        decode = self.config.decode
        if decode.neighbours.datastore:
            raise UserError("decode.neighbours: CTranslate2 lacks it")
        if decode.no_repeat_ngram_size:
            raise UserError("decode.no_repeat_ngram_size: it is of torch's search alone")
        if self.partners:
            raise UserError("CTranslate2 takes one model, not an ensemble")
        if not greedy and not isinstance(decode.search, Beam):
            raise UserError(f"decode.search = {decode.search.kind!r}: CTranslate2 lacks it")
        if not greedy and 2 * decode.beam_size > self.tokenizer.tgt_vocab_size:
            why = "CTranslate2 takes at most half the vocabulary"
            raise UserError(f"decode.beam_size = {decode.beam_size}: {why}")
        if decode.max_len > MAX_POSITIONS:
            why = f"CTranslate2 translates up to {MAX_POSITIONS:,} tokens"
            raise UserError(f"decode.max_len = {decode.max_len}: {why}")
        folder = export_once(
            self.model,
            self.config.model,
            self.tokenizer,
            run=self.run,
            checkpoint=self.checkpoint,
            checksum=self.checksum,
        )
        return CTranslate2(folder, self.tokenizer, device, **how)

    @property
    def when(self) -> str:
        """For a title: "epoch 3", or within an epoch "update 4,000"."""
        within = "step_" in self.checkpoint.name
        return f"update {self.step:,}" if within else f"epoch {self.epoch}"

    def about(self) -> str:
        """The loaded models, a line for each checkpoint."""
        return "\n".join(f"{m.checkpoint}: epoch {m.epoch}, update {m.step}" for m in self.members)


def load_run(
    model_path: str | Path,
    *partner_paths: str | Path,
    change: Callable[[Config], Config] = lambda config: config,
) -> LoadedRun:
    """The model of a checkpoint or of a run (its best), on the CPU.

    `change` may replace parts of the configuration that do not shape the model. The runs of
    `partner_paths` become its partners and search by its configuration. Raises UserError where a
    checkpoint, a tokenizer or their fit is at fault.
    """
    checkpoint, run = resolve_checkpoint(model_path, prefer="best")
    payload, checksum = read_checkpoint(checkpoint), _checksum(checkpoint)
    own = checkpoint_config(payload)
    try:
        config = change(own)
    except ConfigError as error:
        raise ConfigError(f"{checkpoint}: {error}") from error
    tokenizer = run_tokenizer(run, payload)
    model = build_model(config.model, tokenizer).eval()
    load_weights(model, payload, checkpoint)
    epoch, step = payload["progress"]["epoch"], payload["progress"]["step"]
    trained = {**payload["format"], "precision": config.train.precision}
    if (text := payload.get("data", {}).get("fingerprint")) is not None:
        trained["training_text"] = text
    del payload  # it may hold an optimizer
    give_back_memory()
    alike = partial(replace, decode=config.decode)
    partners = [load_run(path, change=alike) for path in partner_paths]
    for partner in partners:
        require_same_languages(config.data, partner.config.data, partner.checkpoint)
        if partner.tokenizer.fingerprint() != tokenizer.fingerprint():
            raise UserError(
                f"{partner.checkpoint} has another tokenizer than {checkpoint}: an ensemble needs "
                "one vocabulary; give runs that were trained with the same tokenizer (a new run "
                "takes another run's with tokenizer.kind=saved)"
            )
    what = checkpoint, checksum, run, config, tokenizer, model, epoch, step, trained
    return LoadedRun(*what, tuple(partners))


def _checksum(checkpoint: Path) -> str:
    """SHA-256 of a checkpoint; of an export's weights with its config, which may be edited."""
    own = sha256(checkpoint)
    if checkpoint.name != WEIGHTS:
        return own
    return hashlib.sha256(f"{own} {sha256(checkpoint.with_name(CONFIG))}".encode()).hexdigest()


def run_tokenizer(run: Run, payload: Mapping[str, Any]) -> BaseTokenizer:
    """A run's tokenizer. Raises UserError where its checkpoint was trained with another one."""
    tokenizer = load_tokenizer(run.tokenizer)
    if tokenizer.fingerprint() != payload["tokenizer"]["fingerprint"]:
        raise UserError(
            f"the tokenizer in {run.tokenizer} is not the one this checkpoint was trained with: "
            "keep a checkpoint in the checkpoints/ folder of its own run"
        )
    return tokenizer


def load_weights(
    model: TranslationTransformer, payload: Mapping[str, Any], checkpoint: Path
) -> None:
    """Load the weights. Raises UserError where they do not fit the model."""
    try:
        model.load_state_dict(payload["model"])
    except RuntimeError as error:
        detail = str(error).splitlines()[:2][-1].strip()  # the first line is a title
        raise UserError(
            f"{checkpoint}: the weights do not fit the configured model: {detail[:200]}"
        ) from error
