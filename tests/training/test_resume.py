"""A run that was stopped anywhere and goes on is the run that was never stopped (mistake 9)."""

import errno
import json
import logging
import multiprocessing
import os
import platform
import random
import re
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from ignite.engine import Engine
from toy_runs import (
    assert_same,
    assert_same_logs,
    at_update,
    content,
    copied,
    log_of,
    run_here,
    toy_config,
    validation_loss,
)

import train as script
from checkpoints.content import read_checkpoint
from checkpoints.resolve import resolve_checkpoint
from checkpoints.run import BEST, REGULAR, STEP, FinishedError, Run
from configs.schema import Config
from configs.serialize import apply_overrides
from data.batching import Batch, Group, _Groups
from training.log import RunLog
from training.saving import Checkpoints
from training.start import Progress, run_to_resume
from training.validation import Validation
from utils import machine
from utils.cli import stops
from utils.errors import ConfigError, UserError
from utils.files import held

pytestmark = pytest.mark.slow

Runs = dict[str, tuple[Config, Run]]
STEPS = """
    optim.accumulate=2 train.checkpoint_every_steps=14 train.keep_regular=3 train.patience=5
"""
SCHEDULES = {
    "epoch_decay": """
        optim.schedule=epoch_decay optim.schedule.lr=0.003 optim.schedule.warmup_epochs=1
        train.ema_decay=0.7 model.tie_embeddings=all optim.objective=sim_cut
    """,
    "cosine": """
        optim.schedule=cosine optim.schedule.lr=0.003 optim.schedule.warmup_steps=5
        optim.optimizer=muon optim.weight_decay=0.01 optim.objective=r_drop
    """,
}


@pytest.fixture(scope="module")
def whole(folder: Path) -> Runs:
    """Never stopped: 3 epochs of 10 updates, with checkpoints after updates 14 and 28."""
    configs = {name: toy_config(folder, STEPS, schedule) for name, schedule in SCHEDULES.items()}
    return {name: (config, run_here(config).run) for name, config in configs.items()}


def checkpoint_names(run: Run) -> list[str]:
    return [path.name for path in run.files(BEST, REGULAR, STEP)]


def died(config: Config, error: type[BaseException] = InterruptedError, **how: Any) -> Path:
    """The folder of a run that is begun, and ends by this error."""
    runs = Path(config.train.runs_dir)
    before = set(runs.iterdir())
    with pytest.raises(error):
        run_here(config, **how)
    [path] = set(runs.iterdir()) - before
    return path


@pytest.mark.parametrize(
    ("schedule", "checkpoint", "workers"),
    [
        ("epoch_decay", "step_checkpoint_14.pt", 2),
        ("epoch_decay", "regular_checkpoint_1.pt", 0),
        ("cosine", "regular_checkpoint_2.pt", 2),
    ],
)
def test_going_on_repeats_the_rest_bit_for_bit(
    whole: Runs, tmp_path: Path, schedule: str, checkpoint: str, workers: int
) -> None:
    config, run = whole[schedule]
    assert sorted(log_of(run)) == list(range(1, 31))
    assert log_of(run)[30]["loss"] < log_of(run)[1]["loss"]
    again = copied(run, tmp_path)
    config = apply_overrides(config, [f"data.num_workers={workers}"])
    run_here(config, resume=again.checkpoints / checkpoint)
    assert_same_logs(again, run)
    assert checkpoint_names(again) == checkpoint_names(run)
    assert_same(run, again, "regular_checkpoint_3.pt")


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
def test_any_number_of_loader_workers_gives_the_same_run_whatever_they_draw(folder: Path) -> None:
    config = toy_config(folder, "tokenizer.sampling=0.2 optim.accumulate=2 train.max_epochs=2")
    first = run_here(apply_overrides(config, ["data.num_workers=0"])).run
    read = _Groups.__getitem__

    def drawing(groups: _Groups, group: Group) -> list[Batch]:
        """As any code in a loader might: from the generators that all of a process share."""
        torch.rand(3), np.random.rand(), random.random()
        return read(groups, group)

    with mock.patch.object(_Groups, "__getitem__", drawing):
        others = [
            run_here(apply_overrides(config, [f"data.num_workers={workers}"])).run
            for workers in (0, 3)
        ]
    assert not multiprocessing.active_children()  # else the program never ends
    for run in others:
        assert log_of(run) == log_of(first)
        assert_same(first, run, "regular_checkpoint_2.pt")


def test_three_stops_within_an_epoch_leave_a_checkpoint_of_their_update(whole: Runs) -> None:
    config, run = whole["epoch_decay"]
    stopped, path = Run(Path()), None
    for step in (7, 12, 13):
        result = run_here(apply_overrides(config, [f"train.max_steps={step}"]), path)
        stopped, path = result.run, result.run.path
        assert stopped.newest() == stopped.checkpoints / f"step_checkpoint_{step}.pt"
        assert max(log_of(stopped, "validation")) == step
        assert result.best is not None
        assert content(result.best)["progress"]["step"] == step
    run_here(config, resume=path)
    assert log_of(stopped) == log_of(run)
    assert [p.name for p in stopped.files(BEST)] == [p.name for p in run.files(BEST)]
    assert_same(run, stopped, "regular_checkpoint_3.pt")


def test_what_dies_between_an_update_its_log_and_its_checkpoint_is_done_again(whole: Runs) -> None:
    config, run = whole["cosine"]
    log = RunLog.scalars

    def dying(self: RunLog, kind: str, values: Any, *, step: int, epoch: int) -> None:
        log(self, kind, values, step=step, epoch=epoch)
        if step == 14:
            raise InterruptedError

    def die(*_: object) -> None:
        raise InterruptedError

    first = died(config, hook=at_update(17, die))  # updated, and not logged
    with mock.patch.object(RunLog, "scalars", dying):  # not saved
        second = died(config)
    for path, logged, saved in (
        (first, 16, "step_checkpoint_14"),
        (second, 14, "regular_checkpoint_1"),
    ):
        assert max(log_of(path)) == logged
        newest = Run(path).newest()
        assert newest is not None
        assert newest.stem == saved
        for left in ("logs/.metrics.jsonl.12.tmp", ".config.json.34.tmp"):  # of one that was killed
            (path / left).touch()
        (path / ".ct2.56.tmp" / "model.bin").mkdir(parents=True)  # as export.py writes a folder
        run_here(config, resume=path)
        assert not list(path.rglob("*.tmp"))
        assert_same_logs(path, run)
        assert_same(path, run, "regular_checkpoint_3.pt")


def test_a_step_checkpoint_due_at_an_epochs_end_waits_for_the_epochs_work(folder: Path) -> None:
    every = "train.checkpoint_every_steps=10 train.checkpoint_every_epochs=2 train.keep_regular=3"
    settings = ("optim.accumulate=2", every, SCHEDULES["epoch_decay"])
    run = run_here(toy_config(folder, *settings)).run
    assert not list(run.checkpoints.glob("step_checkpoint_*"))
    names = [path.name for path in run.files(REGULAR)]  # the first is due by its step alone
    assert names == [f"regular_checkpoint_{epoch}.pt" for epoch in (1, 2, 3)]
    for path in run.by_age():  # the best ones too
        saved = content(path)
        assert saved["progress"]["epoch"] == saved["scheduler"]["last_epoch"]


def test_validations_every_so_many_updates_repeat_from_wherever_a_kill_left_the_run(
    folder: Path, tmp_path: Path
) -> None:
    often = "evaluate.every_steps=4 evaluate.bleu_every_epochs=9 train.checkpoint_every_steps=8"
    kept = "train.keep_best=99 train.keep_regular=9 train.patience=99 optim.schedule=plateau"
    rate = "optim.schedule.warmup_steps=1 optim.schedule.lr=0.01 optim.schedule.patience=1"
    settings = ("optim.accumulate=2", often, kept, rate, "train.max_steps=27")
    config = toy_config(folder, *settings, "train.ema_decay=0.7")
    run = run_here(config).run
    found = log_of(run, "validation")
    assert list(found) == [4, 8, 12, 16, 20, 24, 27]
    assert all("bleu" in line for line in found.values())
    best = [path.name for path in run.files(BEST)]
    assert best == [f"best_step_checkpoint_{n}_loss=-{found[n]['loss']:.4f}.pt" for n in found]
    for path in run.files(BEST):
        assert f"_loss=-{validation_loss(path, 21):.4f}.pt" in path.name
    for n, written in ((24, "step_checkpoint_24"), (20, "regular_checkpoint_2"), (12, "")):
        again = copied(run, tmp_path / str(n))
        for path in again.files(BEST, REGULAR, STEP):
            # Killed after the best: before the other, where one was due.
            if content(path)["progress"]["step"] > n or path.stem == written:
                path.unlink()
        assert again.newest().name == best[n // 4 - 1]
        result = run_here(config, resume=again.path)
        assert result.best_loss == min(line["loss"] for line in found.values())
        assert_same_logs(again, run)
        assert checkpoint_names(again) == checkpoint_names(run)
        assert_same(run, again, "step_checkpoint_27.pt")
    cut_in_half(again.checkpoints / best[0])
    assert again.newest().stem == "step_checkpoint_27"
    # The last validation was due to the end alone: a longer run does not count it.
    longer = apply_overrides(config, ["train.max_steps=40", "train.max_epochs=4"])
    run_here(longer, resume=run.path)
    assert best[-1] not in {path.name for path in run.files(BEST)}
    whole = run_here(longer).run
    assert log_of(run) == log_of(whole)
    assert_same(run, whole, "regular_checkpoint_4.pt")


def test_a_finished_run_is_not_trained_again(whole: Runs, tmp_path: Path) -> None:
    config, run = whole["cosine"]
    before = run.newest()
    words = r"this run is finished \(epochs: 3, updates: 30\).*--set train.max_epochs=6"
    with pytest.raises(UserError, match=words):
        run_here(config, resume=run.path)
    with pytest.raises(UserError, match=r"--set train.max_epochs=6$"):  # more than there are
        run_here(apply_overrides(config, ["train.max_epochs=1"]), resume=run.path)
    assert run.newest() == before
    again = copied(run, tmp_path)
    [second] = again.checkpoints.glob("best_checkpoint_2_*")
    (again.checkpoints / "regular_checkpoint_2.pt").unlink()  # nor is it made again
    with pytest.raises(FinishedError):
        run_here(apply_overrides(config, ["train.max_epochs=2"]), resume=second)
    run_here(apply_overrides(config, ["train.max_epochs=4"]), resume=str(again.path))
    log = log_of(again)
    assert sorted(log) == list(range(1, 41))
    assert log[31]["learning_rate"] > log[32]["learning_rate"] > 0  # the cosine has a new end
    assert (again.checkpoints / "regular_checkpoint_4.pt").is_file()
    assert '"max_epochs": 4' in again.config_file.read_text("utf-8")


def test_a_precision_that_is_not_here_is_told_with_what_can_be_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPUTES_BF16", "yes")
    config = toy_config(folder, "train.precision=bf16 train.max_steps=1")
    run = run_here(config).run
    monkeypatch.setenv("COMPUTES_BF16", "no")
    more = apply_overrides(config, ["train.max_steps=2"])
    with pytest.raises(UserError) as told:
        run_here(more, resume=run.path)
    assert "was begun in bf16, which this cpu lacks: go on with it elsewhere" in str(told.value)
    with pytest.raises(UserError, match=r"precision = 'fp32', but .* trained with 'bf16'"):
        run_here(apply_overrides(more, ["train.precision=fp32"]), resume=run.path)
    child = apply_overrides(more, [f"train.init_from={run.path}", "train.precision=auto"])
    assert run_here(child).run != run


FIXED = "model.d_ff=64 data.batch_size=120 optim.accumulate=3 train.seed=5 tokenizer.vocab_size=90"
FIXED += " train.ema_decay=0.9"


@pytest.mark.parametrize("change", FIXED.split())
def test_a_change_that_would_not_continue_the_run_is_refused(whole: Runs, change: str) -> None:
    config, run = whole["cosine"]
    words = re.escape(change.replace("=", " = "))
    # The name is told last: --position changes it too.
    changed = apply_overrides(config, [change, "name=other", "train.max_epochs=9"])
    with pytest.raises(UserError, match=f"^{words}, but .* was trained with"):
        run_here(changed, resume=run.path)


@pytest.mark.parametrize(("split", "words"), [("train", "training"), ("valid", "validation")])
def test_changed_data_are_refused(
    whole: Runs, folder: Path, tmp_path: Path, split: str, words: str
) -> None:
    config, run = whole["cosine"]
    other = Path(shutil.copytree(folder / "corpus", tmp_path / "corpus"))
    lines = (other / f"{split}.fr").read_text("utf-8").splitlines(keepends=True)
    lines[:2] = reversed(lines[:2])  # as many batches as before
    (other / f"{split}.fr").write_text("".join(lines), "utf-8")
    changed = apply_overrides(config, [f"data.corpus.root={other}", "train.max_epochs=9"])
    with pytest.raises(UserError, match=f"the {words} data have changed since"):
        run_here(changed, resume=copied(run, tmp_path).path)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_bit_in_the_middle(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4  # of a weight, or of the optimizer: torch.load says nothing
    path.write_bytes(raw)


@pytest.mark.parametrize("damage", [cut_in_half, flip_a_bit_in_the_middle])
def test_of_a_run_with_damaged_newest_checkpoints_the_one_before_is_taken(
    whole: Runs, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage
) -> None:
    config, run = whole["cosine"]
    again = copied(run, tmp_path)
    *_, before, last_but_one, newest = again.by_age()
    for path in (last_but_one, newest):
        damage(path)
    with pytest.raises(UserError) as caught:  # the one that is named itself is meant
        run_here(config, resume=newest)
    said, remedy = str(caught.value), f"another one beside it: {before}"
    assert said.startswith(f"{newest}: not a whole checkpoint")
    assert damage is flip_a_bit_in_the_middle or said.endswith(remedy)
    small = RuntimeError(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
    )
    for lack in (PermissionError(errno.EACCES, "denied"), small):  # neither means damage
        loading = mock.patch("torch.load", side_effect=lack)
        with loading, pytest.raises(UserError, match="cannot be read: "):
            run_here(config, resume=again.path)
    assert again.newest() == newest
    script.choose_config(script.parse_args(["--resume", str(again.path)]))  # which reads them too
    run_here(config, resume=again.path)
    named = f"damaged: {newest}, {last_but_one}; going on from the one before, {before}"
    assert caplog.text.count(named) == 1
    assert log_of(again) == log_of(run)
    assert_same(run, again, "regular_checkpoint_3.pt")
    aside = [path.name for path in sorted((again.checkpoints / "left_after_update_28").iterdir())]
    assert aside == sorted([newest.name, last_but_one.name])  # kept, and out of the way
    kept = again.checkpoints / "left_after_update_28" / newest.name
    assert resolve_checkpoint(kept, prefer="best")[1].path == again.path
    with pytest.raises(UserError, match=r"set aside.* --init_from"):
        run_here(config, resume=kept)


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_whole_one(
    whole: Runs, tmp_path: Path
) -> None:
    config, run = whole["cosine"]
    again = copied(run, tmp_path)
    *_, regular, step, best, last = again.by_age()
    for path in (step, best, last):
        path.unlink()
    cut_in_half(regular)  # and goes on from the best one of that epoch
    for _ in range(2):  # then the last one of a run that is over
        run_here(config, resume=again.path)
        assert_same(run, again, regular.name)
        assert checkpoint_names(again) == checkpoint_names(run)
        regular = last
        cut_in_half(again.checkpoints / last.name)


def test_each_course_that_a_run_leaves_is_kept(whole: Runs, tmp_path: Path) -> None:
    config, run = whole["cosine"]
    again = copied(run, tmp_path)
    shorter = apply_overrides(config, ["train.max_epochs=2"])
    with (
        mock.patch.object(Checkpoints, "resume", side_effect=InterruptedError),
        pytest.raises(InterruptedError),
    ):
        run_here(shorter, resume=again.checkpoints / "regular_checkpoint_1.pt")
    assert_same_logs(again, run)  # as long as they might be resumed from, it goes as far as they
    for name in ("left_after_update_10", "left_after_update_10_2"):
        later = {path.name: path.read_bytes() for path in again.files(REGULAR)[1:]}
        run_here(shorter, resume=again.checkpoints / "regular_checkpoint_1.pt")
        left = again.checkpoints / name
        assert {path.name: path.read_bytes() for path in left.glob("regular_*")} == later
    assert (again.checkpoints / "left_after_update_10" / "regular_checkpoint_3.pt").is_file()


@pytest.mark.parametrize("epoch", [2, 3])  # the last one too
def test_a_kill_between_two_checkpoints_of_an_epoch_is_made_up_for(
    whole: Runs, tmp_path: Path, epoch: int
) -> None:
    config, run = whole["cosine"]
    again, regular = copied(run, tmp_path), f"regular_checkpoint_{epoch}.pt"
    [best] = again.checkpoints.glob(f"best_checkpoint_{epoch}_*")
    (again.checkpoints / regular).unlink()
    result = run_here(config, resume=best)
    assert result.best_loss == content(run.by_age()[-1])["progress"]["best_loss"]
    assert checkpoint_names(again) == checkpoint_names(run)
    assert_same(run, again, regular)
    assert_same_logs(again, run)


BY_BLEU = "evaluate.choose_by=bleu evaluate.bleu_every_epochs=1"


@pytest.mark.parametrize(
    ("limit", "died_in"),
    [
        ("max_steps=14", "loss"),
        ("max_tokens=4000", "report"),
        (f"max_steps=14 {BY_BLEU}", "report"),
    ],
)
def test_the_last_validation_of_a_run_that_is_over_is_made_up_for(
    whole: Runs, monkeypatch: pytest.MonkeyPatch, limit: str, died_in: str
) -> None:
    shown = "evaluate.bleu_every_epochs=5"
    config = apply_overrides(whole["cosine"][0], [shown, *f"train.{limit}".split()])
    run = run_here(config).run
    first, last = log_of(run, "validation")
    assert first == 10
    assert 10 < last < 20
    real, calls = getattr(Validation, died_in), []

    def dying(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise InterruptedError
        return real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Validation, died_in, dying)
        path = died(config)
    assert list(log_of(path, "validation")) == [10]
    result = run_here(config, resume=path)
    assert (result.best_loss, result.stopped_early) == (log_of(run, "validation")[last]["loss"], 0)
    assert_same_logs(path, run)
    names = [file.name for file in run.checkpoints.iterdir()]
    assert sorted(file.name for file in result.run.checkpoints.iterdir()) == sorted(names)
    for name in names:
        assert_same(run, path, name)
    with pytest.raises(FinishedError):
        run_here(config, resume=path)


def test_the_newest_checkpoint_does_not_depend_on_time_stamps(whole: Runs, tmp_path: Path) -> None:
    _, run = whole["cosine"]
    again = copied(run, tmp_path)
    names = [path.name for path in run.by_age()]
    steps = [content(path)["progress"]["step"] for path in run.by_age()]
    assert steps == sorted(steps)
    for place, name in enumerate(names):  # as if written backwards
        os.utime(again.checkpoints / name, (10**9 - place, 10**9 - place))
    cut_in_half(again.checkpoints / names[0])
    assert [path.name for path in again.by_age()] == names


def test_the_patience_of_early_stopping_goes_on(folder: Path, tmp_path: Path) -> None:
    # From the third epoch on the rate is 1e-22 of the first: nothing gets better.
    schedule = "optim.schedule=epoch_decay optim.schedule.warmup_epochs=0 optim.schedule.decay=50"
    train = "optim.accumulate=2 train.patience=2 train.max_epochs=9 train.keep_regular=5"
    config = toy_config(folder, schedule, train, "evaluate.bleu_every_epochs=3")
    result = run_here(config)
    run = result.run
    assert result.stopped_early
    validations = log_of(run, "validation")
    assert sorted(validations) == [10, 20, 30, 40]
    assert [step for step in validations if "bleu" in validations[step]] == [30, 40]
    again = copied(run, tmp_path)
    third = again.checkpoints / "regular_checkpoint_3.pt"
    assert content(third)["early_stopping"]["counter"] == 1
    assert not run_here(apply_overrides(config, ["train.max_steps=31"]), third).stopped_early
    report = Validation.report

    def signalled(self: Validation, trainer: Engine) -> None:
        if trainer.state.epoch == 4:  # when patience has ended: nothing is left to go on with
            signal.raise_signal(signal.SIGTERM)
        report(self, trainer)

    with mock.patch.object(Validation, "report", signalled):
        result = run_here(config, resume=third)
    assert (result.signal, result.stopped_early) == (None, True)
    shutil.copy(again.best(), again.checkpoints / "best_checkpoint_1_loss=-99.0000.pt")
    run_here(config, resume=again.path)  # as after a kill before the last removal
    assert checkpoint_names(again) == checkpoint_names(run)
    assert log_of(again, "validation") == log_of(run, "validation")
    words = r"this run is finished \(epochs: 4,.*--set train.patience=4"
    with pytest.raises(UserError, match=words):
        run_here(config, resume=again.path)


def test_the_patience_that_waits_for_bleu_goes_on(folder: Path, tmp_path: Path) -> None:
    train = "optim.accumulate=2 train.patience=2 train.max_epochs=9 train.keep_regular=5"
    config = toy_config(folder, BY_BLEU, train)

    def scored(*scores: float) -> Any:
        return mock.patch("training.validation.sacrebleu_score", side_effect=scores)

    with scored(5.0, 6.0, 6.0, 4.0):
        result = run_here(config)
    losses = [line["loss"] for line in log_of(result.run, "validation").values()]
    assert (result.stopped_early, len(losses), min(losses)) == (True, 4, losses[-1])
    again = copied(result.run, tmp_path)
    third = again.checkpoints / "regular_checkpoint_3.pt"
    for change in (
        "evaluate.choose_by=loss",
        "evaluate.bleu_sentences=3",
        "decode.no_repeat_ngram_size=3",
    ):
        with pytest.raises(UserError, match=f"^{change.split('=')[0]} = .* was trained with"):
            run_here(apply_overrides(config, [change]), third)
    (again.checkpoints / "regular_checkpoint_4.pt").unlink()  # made again below
    less = "train.patience=1 evaluate.every_epochs=2 evaluate.bleu_every_epochs=2"
    other = copied(again, tmp_path / "other").checkpoints / third.name
    with scored(6.0), mock.patch("training.start.is_validated", return_value=False):
        assert run_here(apply_overrides(config, less.split()), other).stopped_early
    with scored(4.0):
        run_here(config, third)
    assert_same_logs(again, result.run)
    assert checkpoint_names(again) == checkpoint_names(result.run)
    assert_same(result.run, again, "regular_checkpoint_4.pt")
    assert content(third)["early_stopping"]["best_score"] == result.best_metric == 6


def test_an_end_between_two_validations_counts_for_nothing_in_a_longer_run(folder: Path) -> None:
    waiting = "optim.schedule=plateau optim.schedule.lr=0.4 optim.schedule.patience=1"
    waiting += " optim.schedule.warmup_steps=1 data.batch_size=400"
    by_two = "evaluate.every_epochs=2 train.checkpoint_every_epochs=2 train.keep_regular=9"
    config = toy_config(folder, waiting, by_two, "train.patience=9")
    long, short = (apply_overrides(config, [f"train.max_epochs={n}"]) for n in (5, 3))
    whole, cut = run_here(long).run, run_here(short).run
    assert list(log_of(cut, "validation")) == [14, 21]
    due = [f"regular_checkpoint_{epoch}.pt" for epoch in (2, 4, 5)]  # the last one always
    assert [path.name for path in whole.files(REGULAR)] == due
    with pytest.raises(UserError, match=r"^evaluate\.every_steps = 3, .* was trained with"):
        run_here(apply_overrides(long, ["evaluate.every_steps=3"]), resume=cut.path)
    run_here(long, resume=cut.path)
    assert log_of(cut) == log_of(whole)
    assert_same(whole, cut, "regular_checkpoint_5.pt")


def test_the_best_bleu_of_older_checkpoints_is_read() -> None:
    progress = Progress(epoch_length=2)
    progress.load_state_dict({"step": 4, "best_loss": 1.5, "best_bleu": 9.0})
    assert (progress.best_loss, progress.best_score, progress.epoch) == (1.5, 9.0, 2)


@pytest.mark.parametrize("by", ["evaluate.choose_by=loss", BY_BLEU])
def test_patience_that_is_set_later_knows_the_best(folder: Path, by: str) -> None:
    schedule = "optim.schedule=epoch_decay optim.schedule.warmup_epochs=0 optim.schedule.decay=50"
    config = toy_config(folder, schedule, by, "optim.accumulate=2 train.max_epochs=3")
    run = run_here(config).run
    patient = apply_overrides(config, ["train.max_epochs=9", "train.patience=1"])
    assert run_here(patient, resume=run.path).stopped_early
    assert list(log_of(run, "validation")) == [10, 20, 30, 40]


def test_auto_takes_the_newest_run_of_the_config_that_can_go_on(
    whole: Runs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here = [f"train.runs_dir={tmp_path / 'runs'}", "train.max_epochs=4"]
    config = apply_overrides(whole["cosine"][0], here)
    assert run_to_resume(config) is None
    for name, stamp in (("cosine", "01"), ("cosine", "02"), ("epoch_decay", "03")):
        shutil.copytree(whole[name][1].path, tmp_path / f"runs/toy_202001{stamp}_000000")
    begun = Path(shutil.copytree(whole["cosine"][1].path, tmp_path / "runs/toy_20200104_000000"))
    shutil.rmtree(begun / "checkpoints")  # it was stopped before its first
    damaged = tmp_path / "runs/toy_20200105_000000"
    shutil.copytree(whole["cosine"][1].path, damaged)
    (damaged / "config.json").write_text("{", "utf-8")
    for changes, stamp in (
        ([], "02"),
        (["train.precision=auto", "evaluate.batch_size=3"], "02"),
        (["train.seed=9"], None),
        (["name=other"], None),
        (["data.corpus.root=elsewhere"], None),
    ):
        run = run_to_resume(apply_overrides(config, changes))
        assert run == stamp or run.name == f"toy_202001{stamp}_000000", changes
    assert f"left out: {damaged / 'config.json'}: not valid JSON" in caplog.text
    assert "toy_20200102_000000 read its text from another place; --resume" in caplog.text
    begun = tmp_path / "runs/toy_20200102_000000"  # the most similar, and of those the newest
    said = f"--resume auto begins a new run: {begun} was begun with train.seed = 0"
    assert [text for text in caplog.messages if "begins a new run" in text][:1] == [said]


def test_auto_has_nothing_to_do_where_the_run_is_over(
    whole: Runs, capsys: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture
) -> None:
    config, run = whole["cosine"]
    caplog.set_level(logging.INFO)
    args = script.parse_args(["--resume", "auto"])
    script.work(args=args, config=config, resume=run.path)
    assert capsys.readouterr().out == f"{run.path}\n"
    assert "this run is finished" in caplog.text
    args = ["--resume", "auto", "--set", f"train.runs_dir={run.path}", "--set", "train.seed=4"]
    config, none = script.choose_config(script.parse_args(args))
    assert (config.train.seed, none) == (4, None)


def test_of_a_run_the_newest_checkpoint_is_chosen_when_nobody_writes_any_more(whole: Runs) -> None:
    _, run = whole["cosine"]
    assert script.choose_config(script.parse_args(["--resume", str(run.path)]))[1] == run.path
    newest = run.newest()
    assert script.choose_config(script.parse_args(["--resume", str(newest)]))[1] == newest


def test_a_config_that_does_not_fit_is_told_with_its_checkpoint(
    whole: Runs, tmp_path: Path
) -> None:
    newest = whole["cosine"][1].newest()
    assert newest is not None
    payload = torch.load(newest)
    payload["config"]["model"]["wings"] = 2
    torch.save(payload, tmp_path / "of_later.pt")
    with pytest.raises(ConfigError, match=r"of_later\.pt: unknown key 'model\.wings'"):
        read_checkpoint(tmp_path / "of_later.pt")


# ---------------------------------------------------------------------------------------- the lock


def test_a_run_is_trained_by_one_process_at_a_time(whole: Runs, tmp_path: Path) -> None:
    config, run = whole["cosine"]
    again = copied(run, tmp_path)
    checkpoint = again.checkpoints / "step_checkpoint_28.pt"
    ready, held_here = os.pipe()
    if (other := os.fork()) == 0:
        try:
            with held(again.path):
                os.write(held_here, b".")
                time.sleep(60)  # it is killed before
        finally:
            os._exit(1)
    os.read(ready, 1)
    try:
        before = {path: path.read_bytes() for path in again.path.rglob("*") if path.is_file()}
        words = f"^{again.path}: process {other} on {platform.node()} is writing it: wait for it"
        with pytest.raises(UserError, match=words):
            run_here(config, resume=checkpoint)
        assert {path: path.read_bytes() for path in before} == before
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
    run_here(config, resume=checkpoint)
    assert_same(run, again, "regular_checkpoint_3.pt")
    assert (again.path / ".lock").read_text("utf-8").startswith(f"process {os.getpid()} on ")


# ------------------------------------------------------------------------------------------ signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_saves_and_says_how_to_go_on(
    whole: Runs, tmp_path: Path, caplog: pytest.LogCaptureFixture, number: signal.Signals
) -> None:
    config, run = whole["cosine"]
    caplog.set_level(logging.INFO)

    def signalled(*_: object) -> None:
        with mock.patch("os.write", side_effect=BrokenPipeError):  # Ctrl-C ends `| tee` too
            signal.raise_signal(number)

    send = at_update(17, signalled)
    work = partial(script.work, args=script.parse_args([]), config=config, resume=None)
    with (
        pytest.raises(SystemExit) as ended,
        mock.patch(
            "training.run.train", lambda config, resume: run_here(config, resume, hook=send)
        ),
    ):
        work()
    assert ended.value.code == 128 + number
    path = Path(caplog.messages[-1].rpartition(" ")[2])
    said = f"stopped by {number.name}; go on with: python train.py --resume {path}"
    assert caplog.messages[-1] == said
    assert Run(path).newest() == Run(path).checkpoints / "step_checkpoint_17.pt"
    again = copied(Run(path), tmp_path)
    assert not any("made by commit" in message for message in caplog.messages)
    with mock.patch("training.start.commit", return_value="of later"):
        run_here(config, resume=path)
    assert f"step_checkpoint_17.pt), made by commit {machine.commit()}" in caplog.text
    assert log_of(path) == log_of(run)
    lowered = apply_overrides(config, ["train.max_epochs=1"])  # fewer than are done
    assert run_here(lowered, resume=again.path).signal is None
    assert max(log_of(again, "validation")) == 17
    starts = (again.logs / "starts.jsonl").read_text("utf-8").splitlines()
    steps = [(line["step"], line["host"], line["precision"]) for line in map(json.loads, starts)]
    assert steps == [(step, platform.node(), "fp32") for step in (0, 17)]


def test_a_hangup_is_heard_but_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ignored, _ = stops(), signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert {*stops()} - {*ignored} == {signal.SIGHUP}
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_ends_at_once(whole: Runs) -> None:
    def twice(*_: object) -> None:
        with mock.patch("time.monotonic", side_effect=[0.0, 0.9, 1.1]):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)  # the same, by way of a launcher
            signal.raise_signal(signal.SIGINT)

    path = died(whole["cosine"][0], KeyboardInterrupt, hook=at_update(16, twice))
    assert [file.name for file in Run(path).files(STEP)] == ["step_checkpoint_14.pt"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_resume_on_the_command_line_needs_no_config(whole: Runs, in_process: Any) -> None:
    args = ["--resume", str(whole["epoch_decay"][1].path)]
    with pytest.raises(FinishedError):  # which a program can catch
        script.main(args)
    words = r".*: this run is finished .*--set train.max_epochs=6"
    assert re.fullmatch(words, in_process(script.main)(*args).error())


def test_beside_a_file_that_is_no_checkpoint_nothing_is_written(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.touch()
    with pytest.raises(UserError, match="other: not a whole checkpoint"):
        script.main(["--config", "configs/demo.py", "--resume", str(other)])
    assert [*tmp_path.iterdir()] == [other]
