"""A trained run whose weights and tokenizer begin a new one (train.init_from); all else begins
anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from checkpoints.content import checkpoint_config, read_checkpoint
from checkpoints.run import Run, resolve_checkpoint
from configs.schema import Config, Subword
from configs.serialize import diff
from models.transformer import TranslationTransformer
from tokenizer.base import BaseTokenizer
from tokenizer.build import load_tokenizer
from translation.loading import check_tokenizer, load_weights
from translation.settings import TRAINING_ONLY
from utils.errors import UserError


@dataclass(frozen=True, slots=True)
class Parent:
    """The checkpoint that a new run takes its weights from, and its run, which has the tokenizer."""

    checkpoint: Path
    run: Run
    config: Config
    payload: Mapping[str, Any]

    def adopt(self, config: Config) -> Config:
        """`config` with the tokenizer section of the parent: its vocabulary is the one that the
        weights know.

        How segmentations are drawn in training is no part of a vocabulary, and stays as it is.
        """
        tokenizer = self.config.tokenizer
        if isinstance(tokenizer, Subword) and isinstance(config.tokenizer, Subword):
            tokenizer = replace(tokenizer, sampling=config.tokenizer.sampling)
        return replace(config, tokenizer=tokenizer)

    def differences(self, config: Config) -> list[str]:
        """In what `config` describes another model than the parent's."""
        return [
            f"{key} is {there!r} there and {here!r} here"
            for key, there, here in diff(self.config, config)
            if key.startswith("model.") and key not in TRAINING_ONLY
        ]

    def tokenizer(self) -> BaseTokenizer:
        """The parent's tokenizer. Raises UserError where it is not that of the checkpoint."""
        tokenizer = load_tokenizer(self.run.tokenizer)
        check_tokenizer(tokenizer, dict(self.payload), where=str(self.run.tokenizer))
        return tokenizer

    def give_weights(self, model: TranslationTransformer, config: Config) -> None:
        """Load the weights into a model of `config`. Raises UserError naming the fields by which
        they do not fit.
        """
        try:
            load_weights(model, dict(self.payload), self.checkpoint)
        except UserError as error:
            different = self.differences(config)
            reason = "; ".join(different) if different else str(error)
            raise UserError(
                f"train.init_from = {config.train.init_from!r}: its weights do not fit: {reason}. Set the model alike"
            ) from error


def find_parent(config: Config) -> Parent | None:
    """The parent that train.init_from names: a checkpoint, or of a run the best. Raises UserError
    where it is none.
    """
    if config.train.init_from is None:
        return None
    checkpoint, run = resolve_checkpoint(
        config.train.init_from, runs_dir=config.train.runs_dir, prefer="best"
    )
    payload = read_checkpoint(checkpoint)
    return Parent(checkpoint, run, checkpoint_config(payload), payload)
