"""What a run needs before its first update: the batches, and the learner that they train."""

import fnmatch
import logging
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import ignite.distributed as idist
import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from configs.schema import Config, DataConfig
from data.batching import Batch, make_eval_loader, make_train_loader
from data.cache import TokenizedSplit, load_split, open_training
from data.corpora.base import CorpusReader, ParallelText
from data.corpora.text import warn_of_form
from data.resampling import Resampler
from models.build import build_model
from models.loss import Exponentials, exponentials
from models.positional_encodings.base import Side
from models.transformer import TranslationTransformer
from tokenizer.base import BaseTokenizer
from tokenizer.build import build_samplers
from training.ema import WeightAverage
from training.muon import hidden_maps
from training.schedules import build_optimizer, build_scheduler
from utils.errors import ConfigError, UserError
from utils.machine import if_it_fits

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Training batches; `fingerprint` of their text; validation batches, ids and text; more."""

    loader: DataLoader[list[Batch]]
    n_pairs: int
    n_tokens: int  # of the training target, segmented without sampling
    fingerprint: str
    validation: DataLoader[Batch]
    validation_ids: TokenizedSplit
    validation_text: ParallelText
    also: Mapping[str, tuple[TokenizedSplit, DataLoader[Batch]]]  # by split: evaluate.also


@dataclass(frozen=True, slots=True)
class Learner:
    """What the updates change.

    `shared` is the model with its gradients averaged over the processes; `average` is the moving
    average of its weights, where the config has one.
    """

    model: TranslationTransformer
    shared: nn.Module
    optimizer: Optimizer
    scheduler: LambdaLR
    scaler: torch.amp.GradScaler
    average: WeightAverage | None
    softmax: Exponentials = exponentials  # of the loss, perhaps compiled

    @property
    def evaluated(self) -> TranslationTransformer:
        """The model to evaluate, and to save for translation."""
        return self.model if self.average is None else self.average.model


def prepare_data(
    config: Config, corpus: CorpusReader, tokenizer: BaseTokenizer, *, device: str
) -> TrainingData:
    """All splits as ids. The first process fills the cache; the others then read it."""
    cache, samplers = config.data.cache_dir, build_samplers(config.tokenizer, tokenizer)
    logger.info(f"{corpus.train}: reading the pairs, and encoding them unless {cache} has them")
    keep = samplers is not None
    text, ids, fingerprint = read_training(config.data, corpus, tokenizer, keep=keep)
    if idist.get_rank() == 0:
        tell_overlap(corpus)
        tell_unknown(corpus.train, ids, tokenizer)
    read = partial(load_split, config.data, corpus, tokenizer=tokenizer, training=False)
    with idist.one_rank_first():
        validation_text, validation_ids = read(corpus.validation)
        also = {name: read(name)[1] for name in config.evaluate.also}
    size = config.evaluate.batch_on(device)
    seed, resampler = config.train.seed, None
    if samplers is not None and text is not None:
        resampler = Resampler(text, ids, samplers, seed=seed, max_len=config.data.max_len)
    return TrainingData(
        loader=make_train_loader(
            ids,
            config.data,
            pad_id=tokenizer.pad_id,
            bos_id=tokenizer.bos_id,
            accumulate=config.optim.accumulate,
            seed=seed,
            rank=idist.get_rank(),
            world_size=idist.get_world_size(),
            device=device,
            resampler=resampler,
        ),
        n_pairs=len(ids),
        n_tokens=len(ids.tgt_ids),
        fingerprint=fingerprint,
        validation=validation_loader(validation_ids, tokenizer, size),
        validation_ids=validation_ids,
        validation_text=validation_text,
        also={name: (ids, validation_loader(ids, tokenizer, size)) for name, ids in also.items()},
    )


def read_training(
    config: DataConfig, corpus: CorpusReader, tokenizer: BaseTokenizer, *, keep: bool
) -> tuple[ParallelText | None, TokenizedSplit, str]:
    """The text of the training split, if it is to be kept, its ids, and its fingerprint.

    One process of each machine reads the text, and the first process encodes it before the others;
    the rest take the ids from the cache, so that neither time nor memory grows with their number.
    """
    rank, local_rank = idist.get_rank(), idist.get_local_rank()
    read = partial(load_split, config, corpus, corpus.train, tokenizer, training=True)
    text, ids, fingerprint = None, None, ""
    if local_rank == 0:
        corpus.load(corpus.train)  # kept, so that machines do not read and clean it in turn
    for turn in (rank == 0, local_rank == 0 < rank):
        if turn:
            text, ids = read()
            fingerprint = text.fingerprint()
        fingerprints = idist.all_gather([fingerprint])
    if local_rank > 0 and not keep:
        [fingerprint] = fingerprints[rank - local_rank]
        ids = open_training(config, tokenizer, fingerprint)
    if ids is None:
        text, ids = read()
        fingerprint = text.fingerprint()
    return text if keep else None, ids, fingerprint


def tell_overlap(corpus: CorpusReader) -> None:
    """Log how many sentences of the other splits, as far as they are there, are in training too.

    Case, kinds of apostrophe and the form of Unicode make no difference.
    """
    held_out = dict[str, ParallelText]()
    for split in dict.fromkeys((corpus.validation, *corpus.test)):
        with suppress(UserError, OSError):
            held_out[split] = corpus.load(split)
    train = corpus.load(corpus.train)
    for side, which in (("src", "source"), ("tgt", "target")):
        others = {name: set(map(_alike, getattr(t, side))) for name, t in held_out.items()}
        seen = set().union(*others.values()).intersection(map(_alike, getattr(train, side)))
        counts = ((split, len(of & seen), len(of)) for split, of in others.items())
        if seen:
            told = ", ".join(f"{n:,} of {whole:,} of {split}" for split, n, whole in counts if n)
            logger.info(f"{which} sentences that are in {corpus.train} too: {told}")


def _alike(text: str) -> str:
    """The same for sentences that one may take for one."""
    return unicodedata.normalize("NFC", text).casefold().replace("’", "'").replace("ʼ", "'")


def tell_unknown(split: str, ids: TokenizedSplit, tokenizer: BaseTokenizer) -> None:
    """Warn of characters that the tokenizer lacks: what the model reads and writes is without."""
    for side, tokens in (("source", ids.src_ids), ("target", ids.tgt_ids)):
        if n := int(np.count_nonzero(np.asarray(tokens) == tokenizer.unk_id)):
            said = f"{split}: {n:,} of {len(tokens):,} {side} tokens are unknown to the tokenizer"
            logger.warning(f"{said}: characters that it lacks are left out of translations")


def read_validation(config: Config, corpus: CorpusReader) -> None:
    """Read all splits to evaluate, so that a missing file is reported before the work begins."""
    warn_of_form(corpus.validation, corpus.load(corpus.validation).tgt)
    for split in config.evaluate.also:
        try:
            corpus.load(split)
        except UserError as error:
            raise UserError(f"evaluate.also has {split!r}: {error}") from None


def validation_loader(
    ids: TokenizedSplit, tokenizer: BaseTokenizer, batch_size: int
) -> DataLoader[Batch]:
    """This process's share of the pairs. Raises UserError for fewer pairs than processes."""
    rank, world_size = idist.get_rank(), idist.get_world_size()
    if len(ids) < world_size:
        raise UserError(
            f"{len(ids)} validation pairs for {world_size} processes: each needs one; use fewer "
            "processes (or leave it out, if it is a split of evaluate.also)"
        )
    return make_eval_loader(
        ids,
        batch_size=min(batch_size, len(ids) // world_size),  # no process without a batch
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        rank=rank,
        world_size=world_size,
    )


def end_workers(loader: DataLoader[list[Batch]]) -> None:
    """End the loader's processes with the run.

    Garbage collection, or the end of the program, would tell them too late and wait for them in
    vain.
    """
    iterator: Any = loader._iterator
    if iterator is not None:
        iterator._shutdown_workers()


def check_lengths(model: TranslationTransformer, data: TrainingData) -> None:
    """Raises UserError where a validation pair is longer than the scheme allows: now, not later."""
    also = {f"{name} (evaluate.also)": ids for name, (ids, _) in data.also.items()}
    for split, ids in {"validation": data.validation_ids, **also}.items():
        lengths: dict[Side, int] = {
            "source": ids.src_lengths.max(),
            "target": ids.tgt_lengths.max(),
        }
        for side, length in lengths.items():
            bound = model.scheme.bounds.get(side)
            if bound is not None and length > bound.length:
                raise UserError(
                    f"a {side} of {split} has {length} tokens, but model.position.{bound.field} "
                    f"allows for {bound.length}: {'leave that split out, or ' * (split in also)}in "
                    "a new run use --set data.eval_long=truncate, or train a model with more"
                )


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Exclude the weights of these names from training; "*" stands for any characters.

    Raises ConfigError where a pattern names no weight, or all are excluded.
    """
    weights = dict(model.named_parameters(remove_duplicate=False))  # a tied one by either name
    for pattern in patterns:
        named = fnmatch.filter(weights, pattern)
        if not named:
            known = ", ".join(dict.fromkeys(f"{name.partition('.')[0]}.*" for name in weights))
            rule = f"no weight has such a name; there are {known}"
            raise ConfigError(f"train.freeze = {pattern!r}: {rule}, such as {[*weights][-1]}")
        for name in named:
            weights[name].requires_grad_(False)
    if not any(weight.requires_grad for weight in weights.values()):
        raise ConfigError(f"train.freeze = {', '.join(patterns)}: no weight is left to train")


def count_weights(model: nn.Module) -> tuple[int, int]:
    """The numbers of all weights and of those that are not trained."""
    sizes = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
    return sum(n for n, _ in sizes), sum(n for n, trained in sizes if not trained)


def build_learner(
    config: Config,
    tokenizer: BaseTokenizer,
    *,
    device: torch.device,
    dtype: torch.dtype,
    total_steps: int,
) -> Learner:
    """A model with random weights, its optimizer and schedule. UserError: too little memory."""
    torch.manual_seed(config.train.seed)
    model = if_it_fits(lambda: build_model(config.model, tokenizer).to(device))
    if model is None:
        shape = config.model
        raise UserError(
            f"not enough memory for the model's weights: model.d_model = {shape.d_model}, "
            f"model.d_ff = {shape.d_ff}, {shape.n_encoder_layers} and {shape.n_decoder_layers} "
            "layers; use a smaller model"
        )
    freeze(model, config.train.freeze)
    decay = config.train.ema_decay
    average = None if decay is None else WeightAverage(model, decay)
    if config.train.compile:
        # In place: the state_dict keeps its names.
        for each in (model,) if average is None else (model, average.model):
            each.encoder.compile(dynamic=True)
            each.decoder.compile(dynamic=True)
    shared: nn.Module = model
    if idist.get_world_size() > 1:
        if config.train.compile:
            torch._dynamo.config.optimize_ddp = False  # it would split the compiled stacks
        devices = [device] if device.type == "cuda" else None
        constants = [name for name, _ in model.named_buffers()]  # else sent in every pass
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, constants)
        shared = DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
    optimizer = build_optimizer(
        model.parameters(),
        config.optim,
        config.model,
        hidden_maps(model),
        bf16=dtype == torch.bfloat16,
    )
    return Learner(
        model=model,
        shared=shared,
        optimizer=optimizer,
        scheduler=build_scheduler(optimizer, config.optim, total_steps=total_steps),
        scaler=torch.amp.GradScaler(device.type, enabled=dtype == torch.float16),
        average=average,
        softmax=torch.compile(exponentials) if config.train.compile else exponentials,
    )
