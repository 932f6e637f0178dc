"""A training run from configuration to the last checkpoint."""

import contextlib
import logging
import math
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.handlers import EarlyStopping
from tqdm.contrib.logging import logging_redirect_tqdm

from checkpoints.resolve import resolve_checkpoint
from checkpoints.run import Run
from configs.load import write_config_json
from configs.schema import Beam, Config, EpochDecay
from configs.serialize import apply_overrides, leaves, to_dict
from data.batching import largest_batches
from data.corpora.build import build_corpus
from training.engine import REHEARSAL, create_trainer
from training.faults import BadUpdates, remedies_named, text_fits
from training.graphs import graphs_wanted
from training.handlers import ProgressBar, StopSignals, after_updates, attach_log, attach_progress
from training.log import RunLog
from training.prepare import (
    build_learner,
    check_lengths,
    count_weights,
    end_workers,
    prepare_data,
    read_validation,
)
from training.processes import process_device, require_alike
from training.saving import Checkpoints, checkpoint_parts, score
from training.schedules import PlateauLR, warn_of_warm_up
from training.start import Progress, count_steps, open_run, require_one_command, require_steps_left
from training.validation import Validation
from translation.evaluator import create_evaluator
from translation.search import BatchSearch
from translation.translator import Translator
from utils.files import held, remove_leftovers
from utils.machine import DTYPES, keep_freed_memory, provenance, torch_to_itself
from utils.progress import Bar

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended: its folder, its best checkpoint, and the signal that stopped it."""

    run: Run
    best: Path | None
    best_loss: float | None
    best_metric: float | None  # that chose the best; None: the loss did
    signal: int | None
    stopped_early: bool  # since validation no longer improved


def train(config: Config, *, resume: str | Path | None = None) -> Result:
    """Run the training that `config` describes, in this process as one of idist's processes.

    Raises UserError for input that cannot be trained on, and NonFiniteError where the loss breaks
    down. Messages are logged.
    """
    device = process_device(config.train.device)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch_to_itself(device, deterministic=config.train.deterministic))
        if resume is not None and idist.get_rank() == 0:
            stack.enter_context(held(resolve_checkpoint(resume, prefer="newest")[1].path))
        require_one_command(config, resume)  # nobody writes the run yet: all see the same newest
        start = open_run(config, resume)
        config, run = start.config, start.run
        stack.enter_context(remedies_named(config, None if start.is_new else run.path))
        if idist.get_rank() == 0:
            if start.is_new:
                stack.enter_context(held(run.path))
            for folder in (run.path, run.checkpoints, run.tokenizer, run.logs, run.bad_batches):
                remove_leftovers(folder)
        with start.preparing():
            precision = start.precision(device)
            config = apply_overrides(config, [f"train.precision={precision}"])
            dtype, graphs = DTYPES[precision], graphs_wanted(config, device)
            if precision == "tf32":
                torch.set_float32_matmul_precision("high")
            corpus = build_corpus(config.data)
            # Tokenizer and ids are made of one text, which is read and cleaned once.
            corpus.load = read = cache(corpus.load)  # type: ignore[method-assign]
            if idist.get_rank() == 0:
                read_validation(config, corpus)
            with text_fits():
                tokenizer = start.tokenizer(corpus)
                data = prepare_data(config, corpus, tokenizer, device=device.type)
            read.cache_clear()
            keep_freed_memory()  # not before: the text's memory is to be given back
            stack.callback(end_workers, data.loader)
            progress = Progress(epoch_length=len(data.loader))
            total_steps = count_steps(config.train, progress.epoch_length, data.n_tokens)
            warn_of_warm_up(config.optim.schedule, total_steps, progress.epoch_length)
            learner = build_learner(
                config, tokenizer, device=device, dtype=dtype, total_steps=total_steps
            )
            check_lengths(learner.model, data)
            trainer = create_trainer(
                learner,
                config.optim,
                device=device,
                dtype=dtype,
                seed=config.train.seed,
                on_bad_numbers=BadUpdates(config.optim.bad_numbers, run, progress),
                largest=largest_batches(data.loader),
                graphs=graphs,
            )
            evaluator = create_evaluator(
                learner.evaluated, pad_id=tokenizer.pad_id, device=device, dtype=dtype
            )
            stopping, choose_by = None, config.evaluate.choose_by
            if config.train.patience is not None:
                chosen = partial(score, choose_by=choose_by)
                stopping = EarlyStopping(config.train.patience, chosen, trainer)
                stopping.logger.setLevel(logging.CRITICAL)
            for engine in (trainer, evaluator):
                engine.logger.setLevel(logging.CRITICAL)  # the script reports errors, once

            def is_over() -> bool:
                waited = 0 if stopping is None else stopping.counter
                return progress.step >= total_steps or waited >= (config.train.patience or math.inf)

            parts = checkpoint_parts(config, tokenizer, data, learner, progress, stopping, device)
            start.restore(parts)
            require_alike({"updates done": progress.step, **parts["data"].state_dict()})
            if start.whole:
                require_steps_left(run, progress, total_steps, data.n_tokens)
            if not is_over():
                trainer.fire_event(REHEARSAL)  # before files of the run are moved or cut
                for loader in (data.validation, *(each for _, each in data.also.values())):
                    evaluator.run(loader, epoch_length=1)  # the longest pairs
            checkpoints = Checkpoints(run, parts, trainer, config, before=lambda: log.flush())
            checkpoints.resume(progress, over=is_over(), damaged=start.damaged)
            # Only then: a log that is cut off before the newest checkpoint would keep a hole.
            log = stack.enter_context(RunLog(run, first_step=progress.step))
        size, frozen = count_weights(learner.model)
        if idist.get_rank() == 0:
            write_config_json(config, run.config_file)
        made = provenance(device)
        log.start({**made, "precision": precision})
        log.hyper_parameters({**dict(leaves(to_dict(config), "")), **made, "parameters": size})
        on, n_processes = f"{device.type}, {precision}", idist.get_world_size()
        logger.info(
            f"{run.path}: {size:,} parameters{f' ({frozen:,} frozen)' if frozen else ''}, "
            f"{data.n_pairs:,} pairs in {progress.epoch_length} updates an epoch, "
            f"{on}{f', {n_processes} processes' if n_processes > 1 else ''}{start.origin}"
        )
        # Greedy, so that settings which need a larger beam do not matter.
        one: dict[str, Any] = {"search": Beam(), "beam_size": 1, "n_best": 1, "mbr": None}
        decode = replace(config.decode, **one, batch_size=config.evaluate.batch_on(device.type))
        translator = Translator(BatchSearch(learner.evaluated, tokenizer, device), decode)
        validated = progress.step if start.validated else None
        validation = Validation(config, data, evaluator, translator, log, step=validated)
        progress_bar = ProgressBar(trainer, first_step=progress.step, total_steps=total_steps)
        stack.enter_context(progress_bar.bar)

        def validate(trainer: Engine, *, over: bool = False) -> None:
            loss = validation.loss()
            if progress.best_loss is None or loss < progress.best_loss:
                progress.best_loss = loss
            if stopping is not None and choose_by == "loss" and not over:
                stopping(evaluator)
            validation.translate(trainer.state.epoch, last=is_over())
            if choose_by != "loss":
                progress.best_metric = max(progress.best_metric or 0, score(evaluator, choose_by))
            if over:  # before the log, which then says that nothing is left to do
                checkpoints.best(evaluator)
            validation.report(trainer)
            if over:
                return
            if stopping is not None and choose_by != "loss":
                stopping(evaluator)
            if isinstance(learner.scheduler, PlateauLR):
                learner.scheduler.observe(loss)
            # After the log: a run resumed from this checkpoint does not validate again.
            checkpoints.best(evaluator)

        # Handlers run in the order in which they are attached: at an epoch's end the schedule,
        # validation with the best checkpoint, the checkpoint to resume from, and only then a stop.
        attach_progress(trainer, data.loader, progress)
        if isinstance(config.optim.schedule, EpochDecay):
            trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: learner.scheduler.step())
        if (average := learner.average) is not None:
            trainer.add_event_handler(
                Events.ITERATION_COMPLETED, lambda: average.update(trainer.state.iteration)
            )
        attach_log(trainer, log, progress_bar, progress, every=config.train.log_every)
        every = config.evaluate.every_steps or config.evaluate.every_epochs * progress.epoch_length
        after_updates(trainer, validate, lambda engine: engine.state.iteration % every == 0)
        checkpoints.attach()
        stop = stack.enter_context(StopSignals())
        stop.attach(trainer, total_steps=total_steps)

        done = -(-progress.step // progress.epoch_length)  # may be more than a lowered limit
        if progress.step:
            counts = {"iteration": progress.step, "epoch_length": progress.epoch_length}
            trainer.load_state_dict({**counts, "max_epochs": max(config.train.max_epochs, done)})
        if not progress_bar.bar.disable:  # else messages go where the program sends them
            stack.enter_context(logging_redirect_tqdm(tqdm_class=Bar))
        if is_over():  # but a kill came before the work after the last update was done
            trainer.state.epoch = done
            checkpoints.complete(trainer)
        else:
            trainer.run(data.loader, max_epochs=config.train.max_epochs)
        if is_over() and validation.step != progress.step:
            # The end came between two validations; the checkpoint to resume from lacks this one.
            validate(trainer, over=True)
    signal = None if is_over() else stop.stopped
    return Result(
        run=run,
        best=run.best(),
        best_loss=progress.best_loss,
        best_metric=progress.best_metric,
        signal=signal,
        stopped_early=progress.step < total_steps and signal is None,
    )
