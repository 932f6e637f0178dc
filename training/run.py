"""A training run from configuration to the last checkpoint: builds the parts and hangs them on the
engine in order.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ignite.distributed as idist
from ignite.engine import Engine, Events
from ignite.handlers import EarlyStopping

from checkpoints.run import FORMAT, LAST_WEIGHTS, Run
from configs.load import write_config_json
from configs.schema import Config, EpochDecay
from configs.serialize import to_dict
from data.batching import largest_batches
from data.corpora.build import build_corpus
from training.engine import create_trainer
from training.faults import BadUpdates, training_memory
from training.handlers import Checkpoints, Constant, ProgressBar, StopSignals
from training.log import RunLog, flatten
from training.parent import Parent, find_parent
from training.prepare import build_learner, check_lengths, prepare_data, prepare_tokenizer
from training.processes import process_device
from training.schedules import PlateauLR
from training.start import Progress, Start, check_data, naming_odd_parts, open_run
from training.validation import require_finite, validate, validation_loader
from translation.evaluator import create_evaluator
from translation.translator import Translator
from utils.errors import UserError
from utils.machine import provenance, resolve_precision


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended: its folder, the best checkpoint, the signal that stopped it, or the end of
    its patience.
    """

    run: Run
    best: Path | None
    best_loss: float | None
    signal: int | None
    stopped_early: bool


def train(
    config: Config, *, resume: Path | None = None, say: Callable[[str], None] = print
) -> Result:
    """Run the training that `config` describes, in this process as one of idist's processes.

    Raises UserError for input that cannot be trained on, and NonFiniteError where the loss breaks
    down.
    """
    parent = find_parent(config) if resume is None else None
    if parent is not None:
        config = parent.adopt(config)
    start = open_run(config, resume)
    with training_memory(config):
        try:
            training = Training(config, start, say, parent)
        except BaseException:
            if start.payload is None and idist.get_rank() == 0:
                shutil.rmtree(
                    start.run.path, ignore_errors=True
                )  # a run that never began leaves nothing behind
            raise
        return training.run()


class Training:
    """The parts of one run, built in order, and what hangs on its engine. `say` prints a line for
    the user.
    """

    def __init__(
        self, config: Config, start: Start, say: Callable[[str], None], parent: Parent | None = None
    ) -> None:
        self.config = config
        self.start = start
        self.parent = parent
        self.say = say
        self.main = idist.get_rank() == 0  # this process speaks and writes
        self.device = process_device(config.train.device)
        self.dtype = resolve_precision(config.train.precision, self.device)
        self.by_epoch = isinstance(config.optim.schedule, EpochDecay)

        corpus = build_corpus(config.data)
        self.tokenizer = prepare_tokenizer(config, corpus, self.start, parent)
        self.data = prepare_data(
            config, corpus, self.tokenizer, pin_memory=self.device.type == "cuda"
        )
        self.progress = Progress(epoch_length=len(self.data.loader))
        self.total_steps = min(
            config.train.max_epochs * self.progress.epoch_length, config.train.max_steps or 10**12
        )
        self.learner = build_learner(
            config,
            self.tokenizer,
            self.start,
            parent,
            device=self.device,
            dtype=self.dtype,
            total_steps=self.total_steps,
        )
        check_lengths(self.learner.model, self.data.validation_ids, config)
        self.bad_updates = BadUpdates(config.optim.bad_numbers, start.run, self.progress, self._say)
        self.trainer = create_trainer(
            self.learner.shared,
            self.learner.optimizer,
            self.learner.scheduler,
            config=config.optim,
            step_scheduler_each_update=not self.by_epoch,
            scaler=self.learner.scaler,
            pad_id=self.tokenizer.pad_id,
            device=self.device,
            dtype=self.dtype,
            seed=config.train.seed,
            on_bad_numbers=self.bad_updates,
            largest=largest_batches(self.data.loader),
        )
        self.evaluator = create_evaluator(
            self.learner.product, pad_id=self.tokenizer.pad_id, device=self.device, dtype=self.dtype
        )
        for engine in (self.trainer, self.evaluator):
            engine.logger.setLevel(logging.CRITICAL)  # errors are reported once, by the script
        self.stopping = self._early_stopping()
        self.checkpoints = Checkpoints(
            self.start.run,
            self._to_save(),
            trainer=self.trainer,
            keep_best=config.train.keep_best,
            keep_regular=config.train.keep_regular,
            before=self._flush_log,
        )
        if self.start.payload is not None:
            self._go_on(self.start.payload)
        self.log = RunLog(self.start.run, first_step=self.progress.step) if self.main else None
        self.bar = ProgressBar(self.trainer, total_steps=self.total_steps) if self.main else None
        self.validated: int | None = None  # the last update that was followed by a validation
        self.over = False  # no update follows

    def run(self) -> Result:
        """Train until an end, a limit or a signal."""
        self._begin()
        # Handlers run in the order in which they are attached. At an epoch's end: the schedule,
        # validation with the best checkpoint, the regular checkpoint, and only then a stop.
        self._attach_position()
        self._attach_average()
        self._attach_counts()
        self._attach_train_log()
        self._attach_validation()
        self._attach_checkpoints()
        stop = self._attach_limits()
        try:
            self._make_up_for_a_kill()
            self.trainer.run(self.data.loader, max_epochs=self.config.train.max_epochs)
            if self.progress.step >= self.total_steps != self.validated:
                self._validate_last()
        except BaseException as error:
            if self.log is not None:
                with contextlib.suppress(UserError):  # the first error is the one to be reported
                    self.log.close()
            if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                reason = str(error).strip().splitlines()[0][:200]
                raise UserError(
                    f"train.compile = True: {reason}; use --set train.compile=false"
                ) from error
            raise
        finally:
            stop.restore()
            if self.bar is not None:
                self.bar.close()
        if self.log is not None:
            self.log.close()
        finished = self.progress.step >= self.total_steps
        signal = None if finished else stop.stopped
        return Result(
            run=self.start.run,
            best=self.start.run.best(),
            best_loss=self.progress.best_loss,
            signal=signal,
            stopped_early=not finished and signal is None,
        )

    def _say(self, line: str) -> None:
        """Say a line while the bar is there."""
        if self.bar is not None:
            self.bar.say(line)

    def _flush_log(self) -> None:
        """What has been logged is to be on the disk before a checkpoint that follows it."""
        if self.log is not None:
            self.log.flush()

    # ----------------------------------------------------------------------------- saving, going on

    def _early_stopping(self) -> EarlyStopping | None:
        if self.config.train.patience is None:
            return None
        stopping = EarlyStopping(
            self.config.train.patience,
            lambda engine: -engine.state.metrics["loss"],
            self.trainer,
            min_delta=0.0,
        )
        stopping.logger.setLevel(logging.ERROR)
        return stopping

    def _to_save(self) -> dict[str, Any]:
        """All that a checkpoint holds, by name: values that stay, and objects with a state_dict."""
        tokenizer, learner = self.tokenizer, self.learner
        about_tokenizer = {
            "fingerprint": tokenizer.fingerprint(),
            "src_vocab_size": tokenizer.src_vocab_size,
            "tgt_vocab_size": tokenizer.tgt_vocab_size,
        }
        to_save: dict[str, Any] = {
            "format": Constant({"version": FORMAT, **provenance()}),
            "config": Constant(to_dict(self.config)),
            "tokenizer": Constant(about_tokenizer),
            "data": Constant({"fingerprint": self.data.fingerprint}),
            "model": learner.product,
            **({} if learner.average is None else {LAST_WEIGHTS: learner.model}),
            "optimizer": learner.optimizer,
            "scheduler": learner.scheduler,
            "scaler": learner.scaler,
            "progress": self.progress,
        }
        if self.stopping is not None:
            to_save["early_stopping"] = self.stopping
        return to_save

    def _go_on(self, payload: Mapping[str, Any]) -> None:
        """Take up everything but the weights (see build_learner) where the checkpoint left it."""
        epoch_length = self.progress.epoch_length
        with naming_odd_parts(self.start.checkpoint):
            check_data(
                payload,
                self.start.checkpoint,
                epoch_length=epoch_length,
                fingerprint=self.data.fingerprint,
            )
            self.learner.optimizer.load_state_dict(payload["optimizer"])
            self.learner.scheduler.load_state_dict(payload["scheduler"])
            self.learner.scaler.load_state_dict(payload["scaler"])
            if self.stopping is not None and "early_stopping" in payload:
                self.stopping.load_state_dict(payload["early_stopping"])
            self.progress.take_up(payload["progress"])
        self.checkpoints.adopt_files(epoch=self.progress.epoch, step=self.progress.step)
        self.trainer.load_state_dict(
            {
                "iteration": self.progress.step,
                "epoch_length": epoch_length,
                "max_epochs": self.config.train.max_epochs,
            }
        )

    def _make_up_for_a_kill(self) -> None:
        """Write the regular checkpoint of an epoch whose best one was the last thing that a killed
        process wrote.
        """
        epoch, due = self.progress.epoch, self._due(self.config.train.checkpoint_every_epochs)
        at_the_end = (
            self.start.payload is not None
            and self.progress.step == epoch * self.progress.epoch_length
        )
        if at_the_end and due(self.trainer, epoch) and not self.checkpoints.has_regular(epoch):
            self.checkpoints.save_epoch(self.trainer)

    def _begin(self) -> None:
        """Say and write down what is about to be trained."""
        if self.log is None:
            return
        write_config_json(self.config, self.start.run.config_file)
        n_parameters = sum(p.numel() for p in self.learner.model.parameters())
        self.log.hyper_parameters(
            {**flatten(to_dict(self.config)), **provenance(), "parameters": n_parameters}
        )
        world_size, checkpoint = idist.get_world_size(), self.start.checkpoint
        dtype = str(self.dtype).removeprefix("torch.")
        self.say(
            f"{self.start.run.path}: {n_parameters:,} parameters, {self.data.n_pairs:,} pairs in "
            f"{self.progress.epoch_length} updates an epoch, {self.device.type} {dtype}"
            + (f", {world_size} processes" if world_size > 1 else "")
            + (f"; going on after update {self.progress.step} ({checkpoint})" if checkpoint else "")
            + (f"; weights of {self.parent.checkpoint}" if self.parent else "")
        )
        if self.parent is not None and (different := self.parent.differences(self.config)):
            self.say(
                f"the weights fit, but they were trained for another model: {'; '.join(different)}"
            )

    # ------------------------------------------------------------------------------------- handlers

    def _attach_position(self) -> None:
        """Data, progress and schedule follow the engine's count of updates."""
        sampler: Any = self.data.loader.sampler
        epoch_length = self.progress.epoch_length

        @self.trainer.on(Events.EPOCH_STARTED)
        def position(engine: Engine) -> None:
            epoch = engine.state.epoch - 1
            sampler.set_position(epoch, engine.state.iteration - epoch * epoch_length)

        self.trainer.add_event_handler(
            Events.ITERATION_COMPLETED, lambda engine: self.progress.go_to(engine.state.iteration)
        )
        if self.by_epoch:
            self.trainer.add_event_handler(
                Events.EPOCH_COMPLETED, lambda _: self.learner.scheduler.step()
            )

    def _attach_average(self) -> None:
        average = self.learner.average
        if average is not None:
            self.trainer.add_event_handler(
                Events.ITERATION_COMPLETED, lambda engine: average.update(engine.state.iteration)
            )

    def _attach_counts(self) -> None:
        """Updates that were left out, and those that were made."""
        progress, log = self.progress, self.log

        @self.trainer.on(Events.ITERATION_COMPLETED)
        def count(engine: Engine) -> None:
            if not engine.state.output["skipped"]:
                self.bad_updates.went_well()
            elif log is not None:
                figures = {"total": progress.skipped, "in_a_row": progress.skipped_in_a_row}
                log.scalars(
                    "skipped", figures, step=engine.state.iteration, epoch=engine.state.epoch
                )

    def _attach_train_log(self) -> None:
        log, bar = self.log, self.bar
        if log is None or bar is None:
            return

        @self.trainer.on(Events.ITERATION_COMPLETED)
        def write(engine: Engine) -> None:
            step, out = engine.state.iteration, engine.state.output
            if (step % self.config.train.log_every and step != 1) or out["skipped"]:
                return
            figures = {
                "loss": out["nll"] / out["n_tokens"],
                "accuracy": out["n_correct"] / out["n_tokens"],
                "grad_norm": out["grad_norm"],
                "learning_rate": out["lr"],
                "tokens_per_second": bar.tokens_per_second,
            }
            log.scalars("train", figures, step=step, epoch=engine.state.epoch)

    def _attach_validation(self) -> None:
        """Validation at the ends of epochs. The best checkpoint knows its own loss and what
        followed from it.
        """
        scheduler, stopping = self.learner.scheduler, self.stopping

        @self.evaluator.on(Events.COMPLETED)
        def remember_best(engine: Engine) -> None:
            require_finite(engine)
            loss = engine.state.metrics["loss"]
            if self.progress.best_loss is None or loss < self.progress.best_loss:
                self.progress.best_loss = loss

        @self.evaluator.on(Events.COMPLETED)
        def steer(engine: Engine) -> None:
            if self.over:
                return
            if stopping is not None:
                stopping(engine)
            if isinstance(scheduler, PlateauLR):
                scheduler.observe(engine.state.metrics["loss"])

        due = Events.EPOCH_COMPLETED(event_filter=self._due(self.config.evaluate.every_epochs))
        self.trainer.add_event_handler(due, self._validate)

    def _validate(self, trainer: Engine) -> None:
        config, step = self.config, trainer.state.iteration
        decode = replace(config.decode, batch_size=config.evaluate.batch_size)
        line = validate(
            self.evaluator,
            validation_loader(
                self.data.validation_ids, self.tokenizer, batch_size=config.evaluate.batch_size
            ),
            Translator(self.learner.product, self.tokenizer, decode, self.device),
            self.data.validation_text,
            self.data.validation_ids,
            config,
            self.log,
            epoch=trainer.state.epoch,
            step=step,
            last=step >= self.total_steps,
        )
        # After the log: what goes on from this checkpoint does not validate again.
        self.checkpoints.best(self.evaluator)
        self.validated = step
        self._say(line)

    def _validate_last(self) -> None:
        """Validate where train.max_steps ended the run between two validations, so that it has a
        best checkpoint.

        What the run goes on from with a higher limit is saved already, and knows nothing of it.
        """
        self.over = True
        self._validate(self.trainer)

    def _attach_checkpoints(self) -> None:
        train = self.config.train
        regular = Events.EPOCH_COMPLETED(event_filter=self._due(train.checkpoint_every_epochs))
        self.trainer.add_event_handler(regular, self.checkpoints.save_epoch)
        if train.checkpoint_every_steps is not None:
            every, epoch_length = train.checkpoint_every_steps, self.progress.epoch_length

            def due(engine: Engine, _: int) -> bool:
                return engine.state.iteration % every == 0

            def due_within(engine: Engine, step: int) -> bool:
                # At an epoch's last update schedule and validation are still to come: there the
                # checkpoint waits.
                return step % every == 0 and step % epoch_length != 0

            self.trainer.add_event_handler(
                Events.ITERATION_COMPLETED(event_filter=due_within), self.checkpoints.save_step
            )
            self.trainer.add_event_handler(
                Events.EPOCH_COMPLETED(event_filter=due), self.checkpoints.save_where_it_stopped
            )
        self.trainer.add_event_handler(Events.TERMINATE, self.checkpoints.save_where_it_stopped)

    def _due(self, every: int) -> Callable[[Engine, int], bool]:
        """Every so many epochs, and at the last one."""
        return lambda engine, epoch: epoch % every == 0 or epoch == self.config.train.max_epochs

    def _attach_limits(self) -> StopSignals:
        """train.max_steps and signals: in the middle of an epoch at once, at its last update after
        the epoch's work.
        """
        stop = StopSignals(self.trainer)

        def limit(engine: Engine) -> None:
            if engine.state.iteration >= self.total_steps:
                engine.terminate()

        def in_the_middle(engine: Engine) -> None:
            if engine.state.iteration % self.progress.epoch_length:
                limit(engine)
                stop(engine)

        self.trainer.add_event_handler(Events.ITERATION_COMPLETED, in_the_middle)
        self.trainer.add_event_handler(Events.EPOCH_COMPLETED, limit)
        self.trainer.add_event_handler(Events.EPOCH_COMPLETED, stop)
        return stop


# ----------------------------------------------------------------------------------------- building
