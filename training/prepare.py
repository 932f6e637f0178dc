"""What a run needs before its first update: the tokenizer, the batches, and the learner that they
change.
"""

from __future__ import annotations

from dataclasses import dataclass

import ignite.distributed as idist
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from checkpoints.run import LAST_WEIGHTS
from configs.schema import Config
from data.batching import Batch, make_train_loader
from data.cache import TokenizedSplit, load_split
from data.corpora.base import CorpusReader, ParallelText
from data.resampling import Resampler
from models.build import build_model
from models.positional_encodings.base import Side
from models.transformer import TranslationTransformer
from tokenizer.base import BaseTokenizer
from tokenizer.build import build_sampler, build_tokenizer, load_tokenizer
from training.ema import WeightAverage
from training.muon import hidden_maps
from training.parent import Parent
from training.processes import share_gradients
from training.schedules import build_optimizer, build_scheduler
from training.start import Start
from translation.loading import check_tokenizer, load_weights
from utils.errors import UserError


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Training batches; validation text and ids; `fingerprint` of the training text."""

    loader: DataLoader[list[Batch]]
    n_pairs: int
    fingerprint: str
    validation_text: ParallelText
    validation_ids: TokenizedSplit


@dataclass(frozen=True, slots=True)
class Learner:
    """What the updates change. `shared` is the model with its gradients averaged over the
    processes.

    `average` is the moving average of its weights, where the config has one.
    """

    model: TranslationTransformer
    shared: nn.Module
    optimizer: Optimizer
    scheduler: LambdaLR
    scaler: torch.amp.GradScaler
    average: WeightAverage | None

    @property
    def product(self) -> TranslationTransformer:
        """The model that is evaluated, and saved to translate with."""
        return self.model if self.average is None else self.average.model


def prepare_tokenizer(
    config: Config, corpus: CorpusReader, start: Start, parent: Parent | None = None
) -> BaseTokenizer:
    """The run's tokenizer: made (or the parent's) and saved by the first process, then loaded by
    all from the run.
    """
    folder = start.run.tokenizer
    if start.payload is None and idist.get_rank() == 0:

        def texts() -> list[str]:
            text = corpus.load(corpus.train)
            return [*text.src, *text.tgt]

        languages = {"src_lang": config.data.src_lang, "tgt_lang": config.data.tgt_lang}
        tokenizer = (
            parent.tokenizer() if parent else build_tokenizer(config.tokenizer, texts, **languages)
        )
        tokenizer.save(folder)
    if idist.get_world_size() > 1:
        idist.barrier()
    tokenizer = load_tokenizer(folder)
    if start.payload is not None:
        check_tokenizer(tokenizer, dict(start.payload), where=str(folder))
    return tokenizer


def prepare_data(
    config: Config, corpus: CorpusReader, tokenizer: BaseTokenizer, *, pin_memory: bool
) -> TrainingData:
    """Both splits as ids. The first process fills the cache, the others then find it."""
    rank, world_size = idist.get_rank(), idist.get_world_size()
    if rank > 0:
        idist.barrier()
    text, ids = load_split(config.data, corpus, corpus.train, tokenizer, training=True)
    validation_text, validation_ids = load_split(
        config.data, corpus, corpus.validation, tokenizer, training=False
    )
    if rank == 0 and world_size > 1:
        idist.barrier()
    sampler = build_sampler(config.tokenizer, tokenizer)
    resampler = None
    if sampler is not None:
        resampler = Resampler(
            text, ids, sampler, seed=config.train.seed, max_len=config.data.max_len
        )
    loader = make_train_loader(
        ids,
        config.data,
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        accumulate=config.optim.accumulate,
        seed=config.train.seed,
        rank=rank,
        world_size=world_size,
        pin_memory=pin_memory,
        resampler=resampler,
    )
    return TrainingData(loader, len(ids), text.fingerprint(), validation_text, validation_ids)


def check_lengths(model: TranslationTransformer, ids: TokenizedSplit, config: Config) -> None:
    """Raises UserError where a validation pair outgrows a table of positions: better now than after
    an epoch.
    """
    sides: tuple[tuple[Side, int], ...] = (
        ("source", ids.src_lengths.max()),
        ("target", ids.tgt_lengths.max()),
    )
    for side, longest in sides:
        most = model.scheme.max_length(side)
        if most is not None and longest > most:
            raise UserError(
                f"a validation {side} has {longest} tokens and the position table {most}: use "
                f"--set data.eval_long=truncate, or a larger model.position.max_positions"
            )


def build_learner(
    config: Config,
    tokenizer: BaseTokenizer,
    start: Start,
    parent: Parent | None = None,
    *,
    device: torch.device,
    dtype: torch.dtype,
    total_steps: int,
) -> Learner:
    """Model (with the weights to go on from, or a parent's, if there are), optimizer and schedule
    on the device.
    """
    torch.manual_seed(config.train.seed)
    model = build_model(config.model, tokenizer)
    if start.payload is not None and start.checkpoint is not None:
        load_weights(model, dict(start.payload), start.checkpoint)
    elif parent is not None:
        parent.give_weights(model, config)
    model = model.to(device)
    average = (
        None if config.train.ema_decay is None else WeightAverage(model, config.train.ema_decay)
    )
    if average is not None and start.payload is not None and start.checkpoint is not None:
        # What has just been loaded is the average; training goes on from the weights beside it.
        load_weights(model, {"model": start.payload[LAST_WEIGHTS]}, start.checkpoint)
    if config.train.compile:
        # In place: the state_dict keeps its names.
        for each in (model,) if average is None else (model, average.model):
            each.encoder.compile(dynamic=True)
            each.decoder.compile(dynamic=True)
    optimizer = build_optimizer(model.parameters(), config.optim, config.model, hidden_maps(model))
    return Learner(
        model=model,
        shared=share_gradients(model, device),
        optimizer=optimizer,
        scheduler=build_scheduler(optimizer, config.optim, total_steps=total_steps),
        scaler=torch.amp.GradScaler(device.type, enabled=dtype == torch.float16),
        average=average,
    )
