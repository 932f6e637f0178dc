"""A training run from configuration to the last checkpoint: builds everything, wires it together, goes on exactly."""

from __future__ import annotations

import logging
import platform
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.handlers import EarlyStopping

from configs.errors import UserError
from configs.schema import Config, EpochDecay
from configs.serialize import diff, to_dict
from data.batching import make_eval_loader, make_train_loader
from data.cache import TokenizedSplit
from data.corpora.base import CorpusReader, ParallelText
from data.corpora.build import build_corpus
from data.loaders import load_split
from models.build import build_model
from models.positional_encodings.base import Kind
from tokenizer.base_tokenizer import BaseTokenizer
from tokenizer.build import build_tokenizer, load_tokenizer
from utils.config import write_config_json
from utils.devices import resolve_device, resolve_precision
from utils.engines import create_evaluator, create_trainer
from utils.handlers import Checkpoints, Constant, ProgressBar, StopSignals, TensorBoardLog
from utils.metrics import sacrebleu_score
from utils.provenance import provenance
from utils.runs import FORMAT, Run, checkpoint_config, create_run, read_checkpoint, resolve_checkpoint
from utils.schedules import build_optimizer, build_scheduler
from utils.translation import Translator, check_tokenizer, load_weights

logger = logging.getLogger(__name__)

# What a run that goes on may change: nothing that shapes the model, the data or the course of the updates.
MAY_CHANGE = (
    "train.",
    "evaluate.",
    "decode.",
    "data.num_workers",
    "data.cache_dir",
    "data.corpus.path",
    "data.corpus.root",
)
MAY_NOT_CHANGE = ("train.seed", "train.precision")


@dataclass(slots=True)
class Progress:
    """Where a run is; part of every checkpoint. The place in the epoch follows from `step` and the epoch's length."""

    step: int = 0
    epoch: int = 0  # whole epochs done
    epoch_length: int = 0
    best_loss: float | None = None

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended: its folder, the best checkpoint, and the signal that stopped it, if one did."""

    run: Run
    best: Path | None
    best_loss: float | None
    signal: int | None


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dict -> {"a.b.c": value}."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def provenance() -> dict[str, str]:
    """What a reported figure names beside config and seed: versions, hardware, commit."""
    root = Path(__file__).resolve().parents[1]
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = "unknown"
    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "commit": commit,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "hardware": f"{hardware}, {torch.get_num_threads()} threads",
    }


def open_run(config: Config, resume: Path | None) -> tuple[Run, dict[str, Any] | None, Path | None]:
    """The run's folder, made by the first process, and the checkpoint to go on from."""
    if resume is not None:
        checkpoint, run = resolve_checkpoint(resume, runs_dir=config.train.runs_dir, prefer="newest")
        return run, read_checkpoint(checkpoint), checkpoint
    path = ""
    if idist.get_rank() == 0:
        path = str(create_run(config.train.runs_dir, config.name).path)
    if idist.get_world_size() > 1:
        path = idist.broadcast(path, src=0, safe_mode=True)
    return Run(Path(path)), None, None


def check_resume(config: Config, payload: Mapping[str, Any], checkpoint: Path) -> None:
    """Raises UserError where going on with `config` would not continue the run, or where the run is over."""
    for name, old, new in diff(checkpoint_config(payload), config):
        if name in MAY_NOT_CHANGE or not name.startswith(MAY_CHANGE):
            raise UserError(
                f"{name} = {new!r}, but {checkpoint} was trained with {old!r}: a run goes on as it began; leave the "
                "change out, or start a new run without --resume"
            )
    step = payload["progress"]["step"]
    epoch_length = payload["progress"]["epoch_length"]
    done = step // epoch_length if epoch_length else 0
    limit = config.train.max_steps
    if done >= config.train.max_epochs or (limit is not None and step >= limit):
        raise UserError(
            f"{checkpoint}: this run is finished ({done} epochs, {step} updates). To train on, raise the limit: "
            f"--set train.max_epochs={config.train.max_epochs + 10}"
            + (f" --set train.max_steps={limit * 2}" if limit is not None else "")
        )


def prepare_tokenizer(
    config: Config, corpus: CorpusReader, run: Run, payload: Mapping[str, Any] | None
) -> BaseTokenizer:
    """The run's tokenizer: made and saved by the first process, then loaded by all from the run."""
    if payload is None and idist.get_rank() == 0:

        def texts() -> list[str]:
            text = corpus.load(corpus.train)
            return [*text.src, *text.tgt]

        tokenizer = build_tokenizer(
            config.tokenizer, texts, src_lang=config.data.src_lang, tgt_lang=config.data.tgt_lang
        )
        tokenizer.save(run.tokenizer)
    if idist.get_world_size() > 1:
        idist.barrier()
    tokenizer = load_tokenizer(run.tokenizer)
    if payload is not None:
        check_tokenizer(tokenizer, dict(payload), where=str(run.tokenizer))
    return tokenizer


def load_data(
    config: Config, corpus: CorpusReader, tokenizer: BaseTokenizer
) -> tuple[TokenizedSplit, ParallelText, TokenizedSplit]:
    """Training ids, validation text and ids. The first process fills the cache, the others then find it."""
    rank, world_size = idist.get_rank(), idist.get_world_size()
    if rank > 0:
        idist.barrier()
    _, train = load_split(config.data, corpus, corpus.train, tokenizer, training=True)
    text, validation = load_split(config.data, corpus, corpus.validation, tokenizer, training=False)
    if rank == 0 and world_size > 1:
        idist.barrier()
    return train, text, validation


def translate_rows(
    translator: Translator, ids: TokenizedSplit, rows: list[int], *, rank: int, world_size: int
) -> list[str]:
    """Greedy translations of the given rows, shared out over the processes; every process gets all of them."""
    mine = rows[rank::world_size]
    found = translator.search_ids([ids.src(i).tolist() for i in mine], greedy=True)
    texts = [translator.tokenizer.decode(hypotheses[0].ids) for hypotheses in found]
    if world_size == 1:
        return texts
    shares: list[list[str]] = [[] for _ in range(world_size)]
    torch.distributed.all_gather_object(shares, texts)
    return [shares[i % world_size][i // world_size] for i in range(len(rows))]


def attention_figures(translator: Translator, source: list[int], hypothesis: list[int]) -> dict[Kind, Any]:
    """The last layer's attention maps of one sentence and its translation, a matplotlib figure for each kind."""
    from utils.plots import attention_grid

    tokenizer = translator.tokenizer
    tgt_in = [tokenizer.bos_id, *hypothesis]
    maps = translator.attention_maps(source, tgt_in)
    src, tgt = tokenizer.src_pieces(source), tokenizer.tgt_pieces(tgt_in)
    axes: dict[Kind, tuple[list[str], list[str]]] = {"encoder": (src, src), "decoder": (tgt, tgt), "cross": (tgt, src)}
    figures: dict[Kind, Any] = {}
    for kind, (queries, keys) in axes.items():
        n_layers, n_heads = maps[kind].shape[:2]
        figures[kind] = attention_grid(
            maps[kind][-1:],
            queries,
            keys,
            title=f"{kind} attention",
            layers=[n_layers],
            heads=list(range(1, n_heads + 1)),
        )
    return figures


def train(config: Config, *, resume: Path | None = None, say: Callable[[str], None] = print) -> Result:
    """Run the training that `config` describes, in this process as one of idist's processes.

    Raises UserError for input that cannot be trained on, and NonFiniteError where the loss breaks down.
    """
    rank, world_size = idist.get_rank(), idist.get_world_size()
    device = idist.device() if world_size > 1 else resolve_device(config.train.device)
    dtype = resolve_precision(config.train.precision, device)

    corpus = build_corpus(config.data)
    run, payload, checkpoint = open_run(config, resume)
    if payload is not None and checkpoint is not None:
        check_resume(config, payload, checkpoint)
    tokenizer = prepare_tokenizer(config, corpus, run, payload)
    train_ids, val_text, val_ids = load_data(config, corpus, tokenizer)

    torch.manual_seed(config.train.seed)
    model = build_model(config.model, tokenizer)
    if payload is not None and checkpoint is not None:
        load_weights(model, payload, checkpoint)
    model = model.to(device)
    if config.train.compile:
        # In place: the state_dict keeps its names.
        model.encoder.compile(dynamic=True)
        model.decoder.compile(dynamic=True)
    parallel = idist.auto_model(model) if world_size > 1 else model

    loader = make_train_loader(
        train_ids,
        config.data,
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        accumulate=config.optim.accumulate,
        seed=config.train.seed,
        rank=rank,
        world_size=world_size,
        pin_memory=device.type == "cuda",
    )
    sampler: Any = loader.sampler
    epoch_length = len(sampler)
    total_steps = min(config.train.max_epochs * epoch_length, config.train.max_steps or 10**12)
    optimizer = build_optimizer(model.parameters(), config.optim, config.model)
    scheduler = build_scheduler(optimizer, config.optim, total_steps=total_steps)
    by_epoch = isinstance(config.optim.schedule, EpochDecay)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    progress = Progress(epoch_length=epoch_length)

    trainer = create_trainer(
        parallel,
        optimizer,
        scheduler,
        config=config.optim,
        step_scheduler_each_update=not by_epoch,
        scaler=scaler,
        pad_id=tokenizer.pad_id,
        device=device,
        dtype=dtype,
        seed=config.train.seed,
    )
    evaluator = create_evaluator(model, pad_id=tokenizer.pad_id, device=device, dtype=dtype)
    for engine in (trainer, evaluator):
        engine.logger.setLevel(logging.CRITICAL)  # errors are reported once, by the script

    to_save: dict[str, Any] = {
        "format": Constant({"version": FORMAT, **provenance()}),
        "config": Constant(to_dict(config)),
        "tokenizer": Constant(
            {
                "fingerprint": tokenizer.fingerprint(),
                "src_vocab_size": tokenizer.src_vocab_size,
                "tgt_vocab_size": tokenizer.tgt_vocab_size,
            }
        ),
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
        "progress": progress,
    }
    early_stopping = None
    if config.train.patience is not None:
        early_stopping = EarlyStopping(
            config.train.patience, lambda engine: -engine.state.metrics["loss"], trainer, min_delta=0.0
        )
        early_stopping.logger.setLevel(logging.ERROR)
        to_save["early_stopping"] = early_stopping
    checkpoints = Checkpoints(
        run, to_save, trainer=trainer, keep_best=config.train.keep_best, keep_regular=config.train.keep_regular
    )

    if payload is not None:
        optimizer.load_state_dict(payload["optimizer"])
        scheduler.load_state_dict(payload["scheduler"])
        scaler.load_state_dict(payload["scaler"])
        if early_stopping is not None and "early_stopping" in payload:
            early_stopping.load_state_dict(payload["early_stopping"])
        saved = payload["progress"]
        if saved["epoch_length"] != epoch_length:
            raise UserError(
                f"{checkpoint}: an epoch had {saved['epoch_length']} updates and now has {epoch_length}: "
                "the training data have changed since; start a new run without --resume"
            )
        progress.step, progress.best_loss = saved["step"], saved["best_loss"]
        progress.epoch = progress.step // epoch_length
        checkpoints.adopt_files(epoch=progress.epoch, step=progress.step)
        trainer.load_state_dict(
            {"iteration": progress.step, "epoch_length": epoch_length, "max_epochs": config.train.max_epochs}
        )

    main = rank == 0
    board = TensorBoardLog(run.logs, first_step=progress.step) if main else None
    bar = ProgressBar(trainer, total_steps=total_steps) if main else None
    stop = StopSignals(trainer)
    translator = Translator(model, tokenizer, replace(config.decode, batch_size=config.evaluate.batch_size), device)
    if main and board is not None:
        if payload is None:
            write_config_json(config, run.config_file)
        n_parameters = sum(p.numel() for p in model.parameters())
        board.hyper_parameters({**flatten(to_dict(config)), **provenance(), "parameters": n_parameters})
        say(
            f"{run.path}: {n_parameters:,} parameters, {len(train_ids):,} pairs in {epoch_length} updates an epoch, "
            f"{device.type} {str(dtype).removeprefix('torch.')}"
            + (f", {world_size} processes" if world_size > 1 else "")
            + (f"; going on after update {progress.step} ({checkpoint})" if checkpoint else "")
        )

    val_loader = make_eval_loader(
        val_ids,
        batch_size=config.evaluate.batch_size,
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        rank=rank,
        world_size=world_size,
    )

    @trainer.on(Events.EPOCH_STARTED)
    def position(engine: Engine) -> None:
        epoch = engine.state.epoch - 1
        sampler.set_position(epoch, engine.state.iteration - epoch * epoch_length)

    @trainer.on(Events.ITERATION_COMPLETED)
    def count(engine: Engine) -> None:
        progress.step = engine.state.iteration
        progress.epoch = progress.step // epoch_length
        if board is not None and (progress.step % config.train.log_every == 0 or progress.step == 1):
            out = engine.state.output
            n_tokens = max(out["n_tokens"], 1)
            figures = {
                "loss": out["nll"] / n_tokens,
                "accuracy": out["n_correct"] / n_tokens,
                "grad_norm": out["grad_norm"],
                "learning_rate": out["lr"],
            }
            if bar is not None:
                figures["tokens_per_second"] = bar.tokens_per_second
            board.scalars("train", figures, progress.step)

    if by_epoch:
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda _: scheduler.step())

    @trainer.on(Events.EPOCH_COMPLETED)
    def validate(engine: Engine) -> None:
        epoch, last = engine.state.epoch, engine.state.epoch == config.train.max_epochs
        if epoch % config.evaluate.every_epochs and not last:
            return
        evaluator.run(val_loader)
        metrics = evaluator.state.metrics
        line = f"epoch {epoch}: validation loss {metrics['loss']:.4f}, accuracy {metrics['accuracy']:.4f}"
        every = config.evaluate.bleu_every_epochs
        if every and (epoch % every == 0 or last):
            rows = list(range(len(val_ids)))[: config.evaluate.bleu_sentences]
            texts = translate_rows(translator, val_ids, rows, rank=rank, world_size=world_size)
            references = [val_text.tgt[int(val_ids.kept[i])] for i in rows]
            bleu = sacrebleu_score(texts, references)
            line += f", BLEU {bleu:.2f} (greedy, {len(rows)} sentences)"
            if board is not None:
                board.scalars("validation", {"bleu": bleu}, progress.step)
                sources = [val_text.src[int(val_ids.kept[i])] for i in rows]
                board.samples(list(zip(sources, references, texts))[:8], progress.step)
        if board is not None and bar is not None:
            names = ("loss", "accuracy", "perplexity")
            board.scalars("validation", {name: metrics[name] for name in names}, progress.step)
            if config.train.log_attention and config.model.backend == "scratch":
                source = val_ids.src(0).tolist()
                hypothesis = list(translator.search_ids([source], greedy=True)[0][0].ids)
                for kind, figure in attention_figures(translator, source, hypothesis).items():
                    board.figure(f"attention/{kind}", figure, progress.step)
            bar.say(line)

    @evaluator.on(Events.COMPLETED)
    def remember_best(engine: Engine) -> None:
        loss = engine.state.metrics["loss"]
        if progress.best_loss is None or loss < progress.best_loss:
            progress.best_loss = loss

    evaluator.add_event_handler(Events.COMPLETED, checkpoints.best)
    if early_stopping is not None:
        evaluator.add_event_handler(Events.COMPLETED, early_stopping)

    def due(engine: Engine, event: int) -> bool:
        return event % config.train.checkpoint_every_epochs == 0 or event == config.train.max_epochs

    trainer.add_event_handler(Events.EPOCH_COMPLETED(event_filter=due), checkpoints.regular)
    if config.train.checkpoint_every_steps is not None:
        trainer.add_event_handler(
            Events.ITERATION_COMPLETED(every=config.train.checkpoint_every_steps), checkpoints.step
        )

    @trainer.on(Events.ITERATION_COMPLETED)
    def stop_at_limit(engine: Engine) -> None:
        if engine.state.iteration == config.train.max_steps and engine.state.iteration % epoch_length:
            engine.terminate()

    @trainer.on(Events.EPOCH_COMPLETED)
    def stop_at_limit_of_epoch(engine: Engine) -> None:
        if config.train.max_steps is not None and engine.state.iteration >= config.train.max_steps:
            engine.terminate()

    stop.attach_after_epoch(trainer)

    @trainer.on(Events.TERMINATE)
    def save_where_it_stopped(engine: Engine) -> None:
        if engine.state.iteration % epoch_length:
            checkpoints.step(engine)

    try:
        trainer.run(loader, max_epochs=config.train.max_epochs)
    finally:
        stop.restore()
        if bar is not None:
            bar.close()
        if board is not None:
            board.close()
    return Result(run=run, best=run.best(), best_loss=progress.best_loss, signal=stop.received)
