"""How a run starts: anew, with the weights of another run, or where it was stopped."""

import contextlib
import logging
import math
import os
import random
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch

from checkpoints.content import checkpoint_config, checksum, fixed_differences, read_checkpoint
from checkpoints.resolve import resolve_checkpoint, run_of
from checkpoints.run import (
    BEST,
    LAST_WEIGHTS,
    LEFT,
    REGULAR,
    STEP,
    DamagedError,
    FinishedError,
    Run,
    create_run,
    newest_first,
)
from configs.load import read_config_json
from configs.schema import TRAINING_ONLY, Config, Marian, Saved, TrainConfig, shapes_model
from configs.serialize import apply_overrides, diff, leaves, to_dict
from data.corpora.base import CorpusReader, ParallelText
from tokenizer.base import BaseTokenizer
from tokenizer.build import build_tokenizer, load_saved, load_tokenizer, require_fit
from training.log import is_validated
from training.processes import require_alike
from translation.loading import load_weights, run_tokenizer
from utils.cli import signals_to, stops
from utils.errors import ConfigError, UserError, one_line
from utils.machine import commit, is_out_of_memory, resolve_precision

logger = logging.getLogger(__name__)

# Fields that may differ between several machines; texts are compared by their content.
OF_A_MACHINE = (
    *("data.corpus.", "data.cache_dir", "data.num_workers", "train.runs_dir", "train.device"),
    *("train.init_from", "tokenizer.path", "tokenizer.name_or_path"),
)
MODELS = ("model", LAST_WEIGHTS)  # parts of a checkpoint


@dataclass(slots=True)
class Progress:
    """Where a run is, saved in every checkpoint. The place in the epoch follows from `step`."""

    epoch_length: int
    step: int = 0
    epoch: int = 0  # whole epochs done
    best_loss: float | None = None
    best_metric: float | None = None  # BLEU or chrF, where it chooses the best
    skipped: int = 0  # updates left out because of bad numbers
    skipped_in_a_row: int = 0

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """An older checkpoint may lack counters, and have an older name."""
        saved = {"best_metric": saved.get("best_bleu"), **saved}
        for name in ("best_loss", "best_metric", "skipped", "skipped_in_a_row"):
            setattr(self, name, saved.get(name, getattr(self, name)))
        self.go_to(saved["step"])

    @property
    def best_score(self) -> float | None:
        """The highest `training.saving.score` so far."""
        loss = None if self.best_loss is None else -self.best_loss
        return loss if self.best_metric is None else self.best_metric

    def go_to(self, step: int) -> None:
        self.step, self.epoch = step, step // self.epoch_length


@dataclass(frozen=True)
class Start:
    """A new run with random weights. The other ways to start derive from it."""

    config: Config
    run: Run
    origin: str  # of weights or tokenizer, in words that end a line
    shared: BaseTokenizer | None  # another run's tokenizer, for a new run
    is_new = True
    validated = False  # the update that it starts after has been validated
    whole = False  # and all that follows a last update has been done
    damaged = tuple[Path, ...]()  # newer checkpoints, which cannot be read

    def precision(self, device: torch.device) -> str:
        """A key of DTYPES. Raises UserError if unavailable here or different on other machines."""
        config = self.config
        n_tokens = config.data.tokens_of_a_batch / idist.get_world_size()
        found = resolve_precision(config.train.precision, device, config.model.d_model, n_tokens)
        require_alike({"train.precision (set it: auto depends on the machine)": found})
        return found

    def tokenizer(self, corpus: CorpusReader) -> BaseTokenizer:
        """The run's tokenizer: made and saved by the first process, then loaded by all."""
        require_alike({f"the folder {self.run.path} is there": self.run.path.is_dir()})
        if idist.get_rank() == 0:
            (self.shared or self._make_tokenizer(corpus)).save(self.run.tokenizer)
        idist.barrier()
        return load_tokenizer(self.run.tokenizer)

    def _make_tokenizer(self, corpus: CorpusReader) -> BaseTokenizer:
        def texts() -> tuple[Sequence[str], Sequence[str]]:
            text = corpus.load(corpus.train)
            most = getattr(self.config.tokenizer, "max_pairs", None) or len(text)
            if most < len(text):
                rows = sorted(random.Random(0).sample(range(len(text)), most))
                text = ParallelText([text.src[i] for i in rows], [text.tgt[i] for i in rows])
            if 20 * sum("@@ " in line for line in text.src) > len(text):
                remedy = "give raw text (sed -E 's/@@( |$)//g', and Moses's detokenizer)"
                logger.warning(f"{corpus.train}: cut into subwords already (@@): {remedy}")
            logger.info(f"{corpus.train}: learning the tokenizer from {len(text):,} pairs")
            return text.src, text.tgt

        data = self.config.data
        return build_tokenizer(
            self.config.tokenizer, texts, src_lang=data.src_lang, tgt_lang=data.tgt_lang
        )

    def restore(self, parts: Mapping[str, Any]) -> None:
        """Load the state to start from into the parts of a checkpoint, given by name; once."""

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """A scope in which a new run that fails, or gets a signal, leaves nothing behind."""

        def end(number: int, _: Any) -> None:
            signal.signal(number, signal.SIG_IGN)  # another one would interrupt the clean-up
            sys.exit(128 + number)

        numbers = stops()
        with signals_to(end, *(n for n in numbers if n != signal.SIGINT)):
            try:
                yield
            except BaseException:
                if self.is_new and idist.get_rank() == 0:
                    with signals_to(lambda *_: None, *numbers):
                        shutil.rmtree(self.run.path, ignore_errors=True)
                raise


@dataclass(frozen=True)
class Initialized(Start):
    """A new run with the weights and the tokenizer of another, its parent (train.init_from)."""

    checkpoint: Path
    payload: dict[str, Any]

    def restore(self, parts: Mapping[str, Any]) -> None:
        """Load the parent's weights. Raises UserError with the fields by which they do not fit."""
        different = "; ".join(
            f"{key} is {there!r} there and {here!r} here"
            for key, there, here in diff(checkpoint_config(self.payload), self.config)
            if key.startswith("model.") and shapes_model(key, there, here)
        )
        try:
            for name in parts.keys() & MODELS:
                load_weights(parts[name], self.payload, self.checkpoint)
        except UserError as error:
            raise UserError(
                f"train.init_from = {self.config.train.init_from!r}: its weights do not fit: "
                f"{different or error}. Set the same model, or train.init_model=true"
            ) from error
        require_alike({"the weights of train.init_from": checksum(self.payload["model"])})
        if different:
            logger.info("the weights fit, but they were trained for another model: %s", different)
        self.payload.clear()  # it takes memory


@dataclass(frozen=True)
class Resumed(Start):
    """A run that resumes exactly from one of its checkpoints."""

    checkpoint: Path
    payload: dict[str, Any]
    validated: bool
    whole: bool
    damaged: tuple[Path, ...]
    is_new = False

    def precision(self, device: torch.device) -> str:
        begun = self.config.train.precision
        try:
            # Older releases took bfloat16 at every width, and left "auto" in their checkpoints.
            return resolve_precision(begun, device, math.inf)
        except UserError:
            said = f"{self.run.path} was begun in {begun}, which this {device.type} lacks"
            remedy = f"give --set train.init_from={self.run.path} to a new run"
            raise UserError(f"{said}: go on with it elsewhere, or {remedy}") from None

    def tokenizer(self, corpus: CorpusReader) -> BaseTokenizer:
        return run_tokenizer(self.run, self.payload)

    def restore(self, parts: Mapping[str, Any]) -> None:
        """Load every part's state. Raises UserError if one does not fit, or the data changed."""
        with misfits_reported(self.checkpoint):
            before, now = self.payload["progress"]["epoch_length"], parts["progress"].epoch_length
            noted = self.payload.get("data", {})  # older releases saved less
            texts = parts["data"].state_dict().items()
            other = [which for which, text in texts if noted.get(which, text) != text]
            if before != now or other:
                what = " and ".join(other or ["training"]).replace("fingerprint", "training")
                counts = f" (an epoch had {before} updates, now {now})" if before != now else ""
                raise UserError(
                    f"{self.checkpoint}: the {what} data have changed since{counts}: start a new "
                    "run without --resume"
                )
            for name in parts.keys() & MODELS:
                load_weights(parts[name], {"model": self.payload[name]}, self.checkpoint)
            for name in ("optimizer", "scheduler", "scaler", "progress"):
                parts[name].load_state_dict(self.payload[name])
            scheduler = parts["scheduler"]  # its rates may span another total from here on
            for group, base, factor in zip(
                parts["optimizer"].param_groups, scheduler.base_lrs, scheduler.lr_lambdas
            ):
                group["lr"] = base * factor(scheduler.last_epoch)
            if "early_stopping" in parts and "early_stopping" in self.payload:
                parts["early_stopping"].load_state_dict(self.payload["early_stopping"])
            elif "early_stopping" in parts:  # new from here on
                parts["early_stopping"].best_score = parts["progress"].best_score
        self.payload.clear()


def require_one_command(config: Config, resume: str | Path | None) -> None:
    """Raises UserError, in every process, if one has been told to train something else."""
    run = resume and run_of(Path(resume)).path.resolve().name
    told = {"--resume": run, **dict(leaves(to_dict(config), ""))}
    require_alike({k: v for k, v in told.items() if not k.startswith(OF_A_MACHINE)})


def open_run(config: Config, resume: str | Path | None) -> Start:
    """The start that `config` and `resume` (a checkpoint, or a run: its newest) describe.

    Makes the new folder. UserError: nothing to start from, or `config` does not continue the run.
    """
    if config.decode.neighbours.datastore:
        which = f"decode.neighbours.datastore = {config.decode.neighbours.datastore}"
        raise UserError(f"{which} belongs to a trained model: leave it out of a training")
    if resume is not None:
        checkpoint, run, payload, damaged = find_checkpoint(resume)
        if damaged:
            names = ", ".join(map(str, damaged))
            logger.warning("damaged: %s; going on from the one before, %s", names, checkpoint)
        if "optimizer" not in payload:  # averaged or exported
            raise UserError(
                f"{checkpoint} holds weights to translate with, and no state of the training "
                "to resume: give --resume the run's folder, or one of its best, regular or step "
                "checkpoints"
            )
        with misfits_reported(checkpoint):
            config = as_begun(config, checkpoint_config(payload))
            step = payload["progress"]["step"]
            epoch = -(-step // payload["progress"]["epoch_length"])
            best = (match for path in damaged if (match := BEST.fullmatch(path.name)))
            lost = any(int(match["number"]) == epoch for match in best)  # it is made anew
            validated = not lost and is_validated(run, step)
            whole = not damaged and is_whole(run, checkpoint, payload, validated=validated)
            try:
                check_resume(config, payload, checkpoint)
            except FinishedError:
                if whole:
                    raise
            origin = f"; going on after update {step} ({checkpoint})"
            if (made_at := payload["format"].get("commit", commit())) != commit():
                origin += f", made by commit {made_at}"
        return Resumed(config, run, origin, None, checkpoint, payload, validated, whole, damaged)
    if config.train.init_from is None:
        if not isinstance(own := config.tokenizer, Saved):
            return Start(config, _new_run(config), "", None)
        shared = load_saved(own.path)
        require_fit(shared, config, name=f"tokenizer.path = {own.path!r}")
        return Start(config, _new_run(config), f"; tokenizer of {own.path}", shared)
    named = Path(os.path.expanduser(config.train.init_from))
    checkpoint, parent = resolve_checkpoint(named, prefer="best")
    payload = read_checkpoint(checkpoint)
    before = checkpoint_config(payload)
    path = getattr(config.tokenizer, "path", "")
    if path not in ("", getattr(before.tokenizer, "path", "")):
        why = "train.init_from brings the tokenizer of its own run: leave the path out"
        raise ConfigError(f"tokenizer.path = {path!r}: {why}")
    config = as_parent(config, before)
    shared, origin = run_tokenizer(parent, payload), f"; weights of {checkpoint}"
    require_fit(shared, config, name=f"train.init_from = {config.train.init_from!r}")
    payload = {name: payload[name] for name in ("model", "config")}  # an optimizer takes memory
    return Initialized(config, _new_run(config), origin, shared, checkpoint, payload)


def as_parent(config: Config, parent: Config) -> Config:
    """`config` with the parent's tokenizer, and with its model where train.init_model asks for it.

    Settings of training alone stay: how segmentations are drawn, and what is dropped. Raises
    ConfigError where the parent's tokenizer would draw in another way, or not at all.
    """
    tokenizer, own, model = parent.tokenizer, config.tokenizer, config.model
    # The algorithm of a saved one is known once it is loaded.
    sampling, way = getattr(own, "sampling", 0.0), getattr(own, "algorithm", None)
    same = not isinstance(tokenizer, Marian) and way in (None, getattr(tokenizer, "algorithm", ""))
    if sampling and not same:
        what = f"tokenizer.sampling = {sampling:g} is for {way or 'subwords'}"
        why = "train.init_from has another tokenizer"
        remedy = "set tokenizer.sampling=0"
        if isinstance(tokenizer, Saved):
            remedy += f", or tokenizer.kind=saved and tokenizer.sampling={sampling:g}"
        raise ConfigError(f"{what}, but {why}: {remedy}")
    apart = isinstance(tokenizer, Marian) or not getattr(tokenizer, "joint", True)
    if config.data.directions == "both" and apart:
        why = "the tokenizer of train.init_from has a vocabulary for each language"
        raise ConfigError(f"data.directions = 'both': {why}: set data.directions=forward")
    if not isinstance(tokenizer, Marian):
        tokenizer = replace(tokenizer, sampling=sampling)
    if config.train.init_model:
        names = (key.removeprefix("model.") for key in TRAINING_ONLY if key.startswith("model."))
        kept: Any = {name: getattr(model, name) for name in names}
        model = replace(parent.model, **kept)
    return replace(config, tokenizer=tokenizer, model=model)


def run_to_resume(config: Config) -> Path | None:
    """The run that --resume auto resumes: the newest run of `config` that has a checkpoint.

    A run with its text at another place is left out: it may be other text, as only reading shows.
    Where there is none, the most similar of the same name is named with what it was begun with.
    """
    others = list[tuple[int, str]]()
    for run in newest_first(config.train.runs_dir):
        try:
            saved = read_config_json(run.config_file)
        except ConfigError as error:
            logger.warning("left out: %s", error)
            continue
        with contextlib.suppress(ConfigError):  # that run's findings do not fit this config
            begun = as_begun(config, saved)
            if fixed := fixed_differences(saved, begun):
                there = ", ".join(f"{key} = {old!r}" for key, old, _ in fixed[:3])
                said = f"--resume auto begins a new run: {run.path} was begun with {there}"
                others += [(len(fixed), said)] * (saved.name == config.name)
                continue
            if begun.data.corpus == saved.data.corpus:
                return run.path
            said = "left out: %s read its text from another place; --resume %s goes on with it"
            logger.warning(said, run.path, run.path)
    if others:
        logger.warning(min(others, key=lambda other: other[0])[1])
    return None


def as_begun(config: Config, saved: Config) -> Config:
    """`config` with what its run found when it started, taken from the run's `saved` config."""
    if config.train.precision == "auto":
        config = apply_overrides(config, [f"train.precision={saved.train.precision}"])
    return config if config.train.init_from is None else as_parent(config, saved)


def _new_run(config: Config) -> Run:
    """A new folder, made by the first process."""
    path = ""
    if idist.get_rank() == 0:
        path = str(create_run(config.train.runs_dir, config.name).path)
    return Run(Path(idist.all_gather([path])[0][0]))


def find_checkpoint(path: str | Path) -> tuple[Path, Run, dict[str, Any], tuple[Path, ...]]:
    """The checkpoint that --resume means, its run, its content, and newer ones that are damaged.

    For a run, the newest that is not damaged.
    Raises UserError where there is none, and DamagedError for a damaged one that is named itself.
    """
    checkpoint, run = resolve_checkpoint(path, prefer="newest")
    if checkpoint.resolve().parent.name.startswith(LEFT):
        why = "the run has taken another course since: begin a new run with --init_from"
        raise UserError(f"{checkpoint} was set aside, and {why}")
    damaged: dict[Path, DamagedError] = {}
    left = [checkpoint]
    while left:
        try:
            return left[-1], run, read_checkpoint(left[-1]), tuple(damaged)
        except DamagedError as error:
            damaged[left[-1]] = error
            left = [] if Path(path).is_file() else run.by_age()
            left = [each for each in left if each not in damaged]
    raise next(iter(damaged.values()))


@contextlib.contextmanager
def misfits_reported(checkpoint: Path) -> Iterator[None]:
    """Raises UserError for parts of a checkpoint that are missing or not what training writes."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:  # from torch, or from a dict that lacks a key
        if is_out_of_memory(error):
            raise
        raise UserError(
            f"{checkpoint}: the state of the training in it does not fit ({one_line(error)}); go "
            "on from another checkpoint, or begin a new run with its weights (--init_from)"
        ) from error


def check_resume(config: Config, payload: Mapping[str, Any], checkpoint: Path) -> None:
    """Raises UserError where `config` does not continue the run, FinishedError where it is over."""
    found = fixed_differences(checkpoint_config(payload), config)
    found.sort(key=lambda each: each[0] == "name")  # last: --position changes the name too
    for name, old, new in found:
        raise UserError(
            f"{name} = {new!r}, but {checkpoint} was trained with {old!r}: a run goes on as it "
            "began; leave the change out, or start a new run without --resume"
        )
    step, epoch_length = payload["progress"]["step"], payload["progress"]["epoch_length"]
    epochs, waited = step // epoch_length, payload.get("early_stopping", {"counter": 0})["counter"]
    reached = {"max_epochs": epochs, "max_steps": step, "patience": waited}
    limits = {name: getattr(config.train, name) for name in reached}
    over = [name for name, limit in limits.items() if limit is not None and reached[name] >= limit]
    if over:
        most = {name: max(limits[name], reached[name]) for name in over}
        remedies = " ".join(f"--set train.{name}={2 * most[name]}" for name in over)
        raise FinishedError(
            f"{checkpoint}: this run is finished (epochs: {epochs}, updates: {step}). To continue, "
            f"raise the limit: {remedies}"
        )


def is_whole(run: Run, checkpoint: Path, payload: Mapping[str, Any], *, validated: bool) -> bool:
    """Whether a run that is over after `checkpoint` has nothing left to do.

    A kill may have come before the last validation, or between two writes or removals.
    """
    train = checkpoint_config(payload).train
    kept = {BEST: train.keep_best, REGULAR: train.keep_regular, STEP: train.keep_steps}
    progress = payload["progress"]
    if (
        validated
        and run.saved_at(progress["step"], progress["epoch_length"]).is_file()
        and all(len(run.files(pattern)) <= most for pattern, most in kept.items())
    ):
        return True
    newest = run.newest()  # the run may be over after another checkpoint
    return newest is None or newest.name != checkpoint.name


def count_steps(config: TrainConfig, epoch_length: int, n_tokens: int) -> int:
    """The updates of the whole run, where an epoch has `epoch_length` updates and `n_tokens`.

    train.max_tokens is converted by the mean size of an update, in target tokens. Warns where
    train.max_epochs comes first, and where train.max_tokens ends the run within its first epoch.
    """
    limits = {"max_steps": config.max_steps or math.inf, "max_tokens": math.inf}
    if config.max_tokens is not None:
        limits["max_tokens"] = max(1, round(config.max_tokens * epoch_length / n_tokens))
    steps, field = config.max_epochs * epoch_length, min(limits, key=lambda name: limits[name])
    named = f"train.{field} = {getattr(config, field)}"
    if steps < limits[field] < math.inf:
        logger.warning(f"{named}: train.max_epochs = {config.max_epochs} comes first; raise it too")
    if field == "max_tokens" and limits[field] < epoch_length:
        words = "ends the run within its first epoch; the size of a batch is data.batch_size"
        logger.warning(f"{named}, target tokens, {words}")
    return int(min(steps, limits[field]))


def require_steps_left(run: Run, progress: Progress, total_steps: int, n_tokens: int) -> None:
    """Raises FinishedError where none are left; check_resume has checked the checkpoint alone."""
    if progress.step >= total_steps:
        twice = -(-2 * progress.step * n_tokens // progress.epoch_length)
        raise FinishedError(
            f"{run.path}: this run is finished (updates: {progress.step}). To continue, raise the "
            f"limit: --set train.max_tokens={twice}"
        )
