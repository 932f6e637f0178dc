"""What a run does when the disk, the memory or the numbers give out."""

import copy
import json
import math
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from ignite.engine import Engine, Events
from torch.utils.data import DataLoader
from toy_runs import (
    Hook,
    assert_same,
    assert_same_logs,
    at_update,
    content,
    copied,
    log_of,
    run_here,
    same,
    toy_config,
    toy_corpus,
)
from updates import CPU, PAD, VOCABULARY, batch_of, sentences, small_model, updated

from checkpoints.content import read_checkpoint
from checkpoints.run import Run, create_run
from configs.schema import DecodeConfig
from configs.serialize import apply_overrides
from data.batching import TOKENS_OF_A_SENTENCE, collate, largest_batches
from training import faults, prepare, run as run_module, saving
from training.faults import NonFiniteError, remedies_named, smaller_batches
from training.log import RunLog
from training.prepare import Learner
from translation.evaluator import create_evaluator
from translation.search import BatchSearch, in_batches
from utils.errors import UserError
from utils.machine import is_out_of_memory

# 10 updates an epoch
STEPS = "optim.accumulate=2 train.checkpoint_every_steps=4 train.keep_regular=3"
FindRun = Callable[[], Run]


@pytest.fixture
def the_run(tmp_path: Path) -> FindRun:
    """The one run of this test's folder."""

    def find() -> Run:
        [path] = (tmp_path / "runs").iterdir()
        return Run(path)

    return find


def whole(run: Run) -> list[str]:
    """The names of a run's checkpoints, each read and found whole."""
    for path in run.by_age():
        read_checkpoint(path)
    return [path.name for path in run.by_age()]


def steps_of(run: Run) -> list[str]:
    return sorted(path.stem for path in run.checkpoints.glob("step_*"))


# ----------------------------------------------------------------------------------------- the disk


def test_a_folder_that_became_read_only_is_one_clear_line(
    tmp_path: Path, small_disk: Path, the_run: Callable[[], Run]
) -> None:
    def replace_folder(*_: Any) -> None:
        the_run().checkpoints.rmdir()
        the_run().checkpoints.symlink_to(small_disk)

    def protect(*_: Any) -> None:
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)

    def hook(trainer: Engine, learner: Learner) -> None:
        at_update(2, replace_folder)(trainer, learner)
        at_update(6, protect)(trainer, learner)

    words = r"^cannot write .*/step_checkpoint_8.pt: .*Read-only file system"
    with pytest.raises(UserError, match=words):
        run_here(toy_config(tmp_path, STEPS), hook=hook)
    assert whole(the_run()) == ["step_checkpoint_4.pt"]


def test_a_folder_that_vanishes_is_made_again_and_a_run_is_not(
    tmp_path: Path, the_run: FindRun
) -> None:
    config = toy_config(tmp_path, STEPS, "train.max_epochs=1")
    run_here(config, hook=at_update(6, lambda *_: shutil.rmtree(the_run().checkpoints)))
    assert whole(the_run())[0] == "step_checkpoint_8.pt"
    shutil.rmtree(the_run().path)
    with pytest.raises(UserError, match=r"^cannot write .*: .*No such file"):
        run_here(config, hook=at_update(6, lambda *_: shutil.rmtree(the_run().path)))
    assert not list((tmp_path / "runs").iterdir())


def test_a_new_checkpoint_is_there_before_the_one_that_it_replaces_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, write = [], saving.write_checkpoint

    def looking(path: Path, payload: Any) -> None:
        write(path, payload)
        seen.append(len(list(path.parent.glob("step_*"))))

    monkeypatch.setattr(saving, "write_checkpoint", looking)
    every_two = "train.checkpoint_every_steps=2 train.max_epochs=1"
    run = run_here(toy_config(tmp_path, STEPS, every_two)).run
    assert seen[:4] == [1, 2, 3, 3]
    assert steps_of(run) == ["step_checkpoint_6", "step_checkpoint_8"]


def test_what_a_kill_left_too_many_goes_with_the_next_checkpoint(tmp_path: Path) -> None:
    config = toy_config(tmp_path, STEPS, "train.checkpoint_every_steps=2 train.max_steps=6")
    run = run_here(config).run
    shutil.copy(run.checkpoints / "step_checkpoint_4.pt", run.checkpoints / "step_checkpoint_2.pt")
    run_here(apply_overrides(config, ["train.max_steps=8"]), resume=run.path)
    assert steps_of(run) == ["step_checkpoint_6", "step_checkpoint_8"]


def test_a_damaged_line_of_the_log_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = create_run(tmp_path, "run")
    lines = [json.dumps({"kind": "train", "step": step, "epoch": 1}) for step in (1, 2, 3, 4)]
    lines[1] = "\0" * 20  # a block that a power cut left empty
    (run.logs / "metrics.jsonl").write_text("\n".join([*lines, "7", '{"kind": "tr']), "utf-8")
    with RunLog(run, first_step=3):
        pass
    assert list(log_of(run)) == [1, 3]
    assert caplog.messages == [f"{run.logs / 'metrics.jsonl'}: left out damaged lines: 2, 5"]


def test_the_log_is_on_the_disk_before_a_checkpoint_that_follows_it(
    tmp_path: Path, the_run: FindRun
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen: list[int] = []

    def look(trainer: Engine, learner: Learner) -> None:
        events = EventAccumulator(str(the_run().logs))  # the writer holds them back for minutes
        events.Reload()
        seen.append(len(events.Scalars("train/loss")))
        trainer.terminate()

    run_here(toy_config(tmp_path, STEPS), hook=at_update(9, look))
    assert seen[0] >= 8


# -------------------------------------------------------------------------------------- bad numbers


def broken_at(*steps: int) -> Hook:
    """A hook that makes the loss NaN at some updates."""

    def attach(trainer: Engine, learner: Learner) -> None:
        def poison(module: Any, given: Any, out: torch.Tensor) -> torch.Tensor:
            return out * math.nan if module.training and trainer.state.iteration in steps else out

        learner.model.register_forward_hook(poison)

    return attach


def test_the_batch_of_a_bad_update_is_saved_for_study(tmp_path: Path, the_run: FindRun) -> None:
    rows: list[list[int]] = []

    def hook(trainer: Engine, learner: Learner) -> None:
        broken_at(6)(trainer, learner)

        @trainer.on(Events.GET_BATCH_COMPLETED)
        def note(engine: Engine) -> None:
            rows[:] = [batch.indices.tolist() for batch in engine.state.batch]

    words = r"^update 6 \(epoch 1\): loss nan, gradient norm nan; rows"
    with pytest.raises(NonFiniteError, match=words) as caught:
        run_here(toy_config(tmp_path, STEPS), hook=hook)
    path = the_run().bad_batches / "update_6.pt"
    assert str(copy.copy(caught.value)) == str(caught.value)  # as for another process
    assert f"saved in {path}" in str(caught.value)
    assert "--set optim.bad_numbers=skip" in str(caught.value)
    assert "Begin a new run with a lower learning rate" in str(caught.value)
    saved = content(path)  # weights_only=True
    assert (saved["step"], saved["epoch"], math.isnan(saved["loss"])) == (6, 1, True)
    [batches] = saved["processes"]
    assert [batch["rows"].tolist() for batch in batches] == rows
    assert batches[0]["src"].shape[0] == len(batches[0]["rows"])
    assert whole(the_run()) == ["step_checkpoint_4.pt"]


@pytest.mark.slow
def test_bad_updates_are_left_out_counted_and_resumed_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "MOST_FILES", 4)
    skip = "optim.bad_numbers=skip optim.bad_numbers.in_a_row=3 train.max_epochs=2"
    config = toy_config(tmp_path, STEPS, skip, "optim.schedule=inverse_sqrt")
    bad = (5, 6, 8, 12, 13)  # the checkpoint after update 12 is made in the middle of a row
    before: list[Any] = []

    def note(trainer: Engine, learner: Learner) -> None:
        before.append({k: v.clone() for k, v in learner.model.state_dict().items()})

    def hook(trainer: Engine, learner: Learner) -> None:
        for attach in (broken_at(*bad), at_update(4, note), at_update(6, note)):
            attach(trainer, learner)

    run = run_here(config, hook=hook).run
    assert same(*before)
    assert sorted(log_of(run)) == sorted(set(range(1, 21)) - set(bad))
    skipped = [(n, line["total"], line["in_a_row"]) for n, line in log_of(run, "skipped").items()]
    assert skipped == [(5, 1, 1), (6, 2, 2), (8, 3, 1), (12, 4, 1), (13, 5, 2)]
    assert sorted(path.stem[7:] for path in run.bad_batches.iterdir()) == ["12", "5", "6", "8"]
    again = copied(run, tmp_path)
    run_here(config, again.checkpoints / "step_checkpoint_12.pt", hook=broken_at(*bad))
    assert_same_logs(again, run)
    assert log_of(again, "skipped") == log_of(run, "skipped")
    assert_same(run, again, "regular_checkpoint_2.pt")
    assert content(again.checkpoints / "regular_checkpoint_2.pt")["progress"]["skipped"] == 5


def test_too_many_bad_updates_in_a_row_end_the_run(tmp_path: Path) -> None:
    config = toy_config(tmp_path, STEPS, "optim.bad_numbers=skip optim.bad_numbers.in_a_row=3")
    words = r"^update 7 .* number 3 in a row \(optim.bad_numbers.in_a_row\)"
    with pytest.raises(NonFiniteError, match=words):
        run_here(config, hook=broken_at(3, 5, 6, 7))


def test_a_stopped_run_may_go_on_leaving_bad_updates_out(tmp_path: Path, the_run: FindRun) -> None:
    config = toy_config(tmp_path, STEPS, "train.max_epochs=1")
    with pytest.raises(NonFiniteError):
        run_here(config, hook=broken_at(6))
    skipping = apply_overrides(config, ["optim.bad_numbers=skip"])
    run_here(skipping, resume=the_run().path, hook=broken_at(6))
    assert sorted(log_of(the_run())) == [1, 2, 3, 4, 5, 7, 8, 9, 10]


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_no_checkpoint_is_made_of_broken_weights(
    tmp_path: Path, the_run: FindRun, part: str
) -> None:
    def break_one(trainer: Engine, learner: Learner) -> None:
        weight = learner.model.output.weight
        broken = weight.data if part == "model" else learner.optimizer.state[weight]["exp_avg"]
        broken[0].fill_(math.inf)

    words = rf"^not a number in {part} .*no checkpoint is made of them"
    with pytest.raises(NonFiniteError, match=words):
        run_here(toy_config(tmp_path, STEPS), hook=at_update(8, break_one))
    assert whole(the_run()) == ["step_checkpoint_4.pt"]


def test_the_engine_alone_refuses_bad_numbers() -> None:
    model = small_model()
    model.output.weight.data.fill_(math.inf)
    words = r"update 1 \(epoch 1\): loss nan, gradient norm nan; rows 0, 1 of the"
    with pytest.raises(NonFiniteError, match=words):
        updated([[batch_of(sentences(2, seed=1), range(2))]], model=model)


def test_a_scaler_that_finds_no_scale_ends_the_run_and_its_steps_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, the_run: FindRun
) -> None:
    made = torch.amp.GradScaler("cpu", init_scale=3e-4)  # halved twice it is below 1e-4
    monkeypatch.setattr(torch.amp, "GradScaler", lambda *_, **__: made)

    def hook(trainer: Engine, learner: Learner) -> None:
        def overflow(gradient: torch.Tensor) -> torch.Tensor:
            return gradient / (trainer.state.iteration not in (2, 5, 6))

        learner.model.output.weight.register_hook(overflow)

    with pytest.raises(NonFiniteError, match=r"^update 6 .*loss \d.*, gradient norm (inf|nan)"):
        run_here(toy_config(tmp_path, STEPS), hook=hook)
    skipped = {n: line["total"] for n, line in log_of(the_run(), "skipped").items()}
    assert (skipped, list(log_of(the_run()))) == ({2: 1, 5: 2}, [1, 3, 4])


def test_a_scaler_goes_on_with_its_own_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, the_run: FindRun
) -> None:
    make = partial(torch.amp.GradScaler, "cpu", init_scale=8.0)
    monkeypatch.setattr(torch.amp, "GradScaler", lambda *_, **__: make())

    def hook(trainer: Engine, learner: Learner) -> None:
        learner.model.output.weight.register_hook(
            lambda gradient: gradient / (trainer.state.iteration != 2)
        )

    config = toy_config(tmp_path, STEPS)
    run_here(apply_overrides(config, ["train.max_steps=4"]), hook=hook)
    run_here(apply_overrides(config, ["train.max_steps=5"]), resume=the_run().path)
    last = content(the_run().checkpoints / "step_checkpoint_5.pt")
    assert (last["scaler"]["scale"], last["progress"]["skipped"]) == (4.0, 1)


# ------------------------------------------------------------------------------------------- memory


def test_trying_the_largest_batches_leaves_no_trace(tmp_path: Path, monkeypatch: Any) -> None:
    config = toy_config(tmp_path, STEPS, "train.max_steps=5")
    tried = run_here(config).run
    monkeypatch.setattr(run_module, "largest_batches", lambda loader: [])
    plain = run_here(config).run
    assert log_of(tried) == log_of(plain)
    assert_same(tried, plain, "step_checkpoint_5.pt")


def no_room_above(n_tokens: int) -> Callable[..., None]:
    """A hook that runs out of memory where a forward pass has more tokens on the source side."""

    def check(module: Any, given: tuple[torch.Tensor, ...]) -> None:
        if given[0].numel() > n_tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nmore")

    return check


def room_held(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Counts from now on: how often the weights' size is taken beside what the passes take."""
    made = mock.Mock(side_effect=torch.empty_like)
    monkeypatch.setattr(torch, "empty_like", made)
    return lambda: made.call_count / len(list(learner.model.parameters()))


def test_a_run_that_cannot_fit_fails_before_its_first_update_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    engines: list[Engine] = []
    held: list[Callable[[], float]] = []

    def noting(loader: Any) -> Any:
        found = largest_batches(loader)
        sizes.extend(batch.src.numel() for batch in found)
        return found

    def hook(trainer: Engine, learner: Learner) -> None:
        engines.append(trainer)
        learner.model.register_forward_pre_hook(no_room_above(max(sizes) - 1))
        held.append(room_held(learner, monkeypatch))

    monkeypatch.setattr(run_module, "largest_batches", noting)
    words = r"to train \(.*\): use --set data.batch_size=70 --set optim.accumulate=4,"
    with pytest.raises(UserError, match="not enough memory " + words):
        run_here(toy_config(tmp_path, STEPS), hook=hook)
    assert engines[0].state.iteration == 0
    assert held[0]() == 3  # two moments, and a sum of gradients

    def unevaluated(trainer: Engine, learner: Learner) -> None:
        engines.append(trainer)
        check = no_room_above(60)
        learner.model.register_forward_pre_hook(
            lambda model, given: None if model.training else check(model, given)
        )

    for lang in ("fr", "en"):
        (toy_corpus(tmp_path) / f"long.{lang}").write_text("un " * 80, "utf-8")
    for split in ("data.corpus.validation=long", "evaluate.also=long"):
        with pytest.raises(UserError, match=r"not enough memory to evaluate one pair of \d\d"):
            run_here(toy_config(tmp_path, STEPS, split), hook=unevaluated)
        assert engines[-1].state.iteration == 0
    assert not list((tmp_path / "runs").glob("toy_*"))


def test_a_run_that_goes_on_is_not_told_to_change_its_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config(tmp_path, STEPS, "train.max_steps=1")
    run = run_here(config).run
    files = sorted(run.path.rglob("*"))
    config = apply_overrides(config, ["train.max_steps=2"])

    held: list[Callable[[], float]] = []

    def hook(trainer: Engine, learner: Learner) -> None:
        learner.model.register_forward_pre_hook(no_room_above(0))
        held.append(room_held(learner, monkeypatch))

    words = (
        rf"its own batches: give it more memory.* \(--init_from {run.path}\); there use --set data"
    )
    with pytest.raises(UserError, match=words):
        run_here(config, resume=run.path, hook=hook)
    assert held[0]() == 1  # its moments are there
    assert sorted(run.path.rglob("*")) == files  # the best of the end too


def test_a_model_or_text_that_does_not_fit_is_not_told_to_use_smaller_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none_left = mock.Mock(side_effect=RuntimeError("you tried to allocate 4398046511104 bytes"))
    monkeypatch.setattr(prepare, "build_model", none_left)
    words = "^not enough memory for the model's weights: model.d_model = 16, .* a smaller model$"
    with pytest.raises(UserError, match=words):
        run_here(toy_config(tmp_path))
    monkeypatch.setattr(prepare, "load_split", mock.Mock(side_effect=MemoryError))
    words = r"^not enough memory for the text \(MemoryError.*\): train on fewer pairs"
    with pytest.raises(UserError, match=words):
        run_here(toy_config(tmp_path))


OUT_OF_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nmore"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate"),
    RuntimeError("[enforce fail] err == 0. DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("ncclUnhandledCudaError: Call to CUDA failed.\nCuda failure 2 'out of memory'"),
    RuntimeError("CUDA failed with error out of memory"),  # CTranslate2's
    MemoryError(),
)


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
def test_out_of_memory_in_training_is_one_line_with_the_remedy(tmp_path: Path, error: Any) -> None:
    with (
        pytest.raises(UserError, match=r"not enough memory to train \(.*\): use --set") as caught,
        remedies_named(toy_config(tmp_path)),
    ):
        raise error
    assert "\n" not in str(caught.value)


def test_a_loader_worker_that_is_killed_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    batches: Any = iter(DataLoader(range(100), num_workers=1, batch_size=None))  # more than fetched

    def read_from_a_killed_one() -> None:
        os.kill(batches._workers[0].pid, signal.SIGKILL)  # its end may be told at once
        list(batches)

    with (
        pytest.raises(UserError, match=r"DataLoader worker .*; use --set data\.num_workers=0$"),
        remedies_named(toy_config(tmp_path)),
    ):
        read_from_a_killed_one()


@pytest.mark.parametrize(
    ("graphs", "error", "named"),
    [
        ("true", RuntimeError("not permitted when stream is capturing\nmore"), True),
        ("false", RuntimeError("not permitted when stream is capturing\nmore"), False),
        ("true", UserError("captures/train.fr is not there"), False),
        ("true", torch.OutOfMemoryError("CUDA out of memory"), True),
        ("false", torch.OutOfMemoryError("CUDA out of memory"), False),
    ],
)
def test_graphs_are_named_where_they_may_be_the_reason(
    tmp_path: Path, graphs: str, error: Exception, named: bool
) -> None:
    config = toy_config(tmp_path, f"train.cuda_graphs={graphs}")
    with pytest.raises((UserError, RuntimeError)) as caught, remedies_named(config):
        raise error
    assert ("use --set train.cuda_graphs=false" in str(caught.value)) == named
    assert not named or "\n" not in str(caught.value)


def test_what_is_no_lack_of_memory_is_left_alone(tmp_path: Path) -> None:
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("you tried to allocate"))
    least = toy_config(tmp_path, "data.batch_size=40")
    words = "data.batch_size = 40 is the smallest for data.max_len = 40"
    assert smaller_batches(least).startswith(words)
    words = "use --set data.batch_size=40 --set optim.accumulate=2, which makes updates of "
    for size, what in ((80, "the same size, or"), (50, "1.6 times the size, or")):
        config = toy_config(tmp_path, f"data.batch_size={size}")
        assert smaller_batches(config).startswith(words + what)
    config = toy_config(tmp_path, "data.batch_by=sentences data.batch_size=20")
    assert smaller_batches(config).startswith("use --set data.batch_size=10 --set optim.acc")


def test_evaluation_goes_on_with_smaller_batches(caplog: pytest.LogCaptureFixture) -> None:
    split, model = sentences(13, seed=5), small_model().float()
    # Decoding starts from the padding, as Marian's does.
    collated = partial(collate, split, pad_id=PAD, bos_id=PAD)
    batches = [collated(rows) for rows in (list(range(8)), list(range(8, 13)))]

    def metrics() -> dict[str, float]:
        evaluator = create_evaluator(model, pad_id=PAD, device=CPU, dtype=torch.float32)
        return dict(evaluator.run(batches).metrics)

    expected = metrics()
    model.register_forward_pre_hook(no_room_above(int(split.src_lengths.max())))  # for one
    assert {k: pytest.approx(v, rel=1e-6) for k, v in expected.items()} == metrics()
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("not enough memory to evaluate")
    model.register_forward_pre_hook(no_room_above(1))
    with pytest.raises(UserError, match=r"not enough memory to evaluate one pair of .* tokens"):
        metrics()


def test_translation_goes_on_with_smaller_batches(caplog: pytest.LogCaptureFixture) -> None:
    split, model = sentences(13, seed=5), small_model().float()
    sources = [split.src(i).tolist() for i in range(13)]
    decode = DecodeConfig(batch_size=8, beam_size=2, n_best=2, max_len=9)
    searcher = BatchSearch(model, VOCABULARY, CPU)
    search = partial(searcher.search_ids, sources, decode, greedy=False)
    expected = [[h.ids for h in found] for found in search()]
    encode = model.encode

    def cramped(src: torch.Tensor, **options: Any) -> Any:
        if len(src) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return encode(src, **options)

    model.encode = cramped
    told: list[int] = []
    found = search(progress=told.append)
    assert [[h.ids for h in each] for each in found] == expected
    assert sum(told) == 13
    assert max(told) == 2
    assert [message.split()[-1] for message in caplog.messages] == ["4", "2"]
    caplog.clear()
    searcher.search_ids(sources[:5], decode, greedy=False)  # fewer than a batch
    assert [message.split()[-1] for message in caplog.messages] == ["2"]


def test_short_sentences_keep_their_number_at_once_after_long_ones_found_no_room() -> None:
    told: list[int] = []

    def compute(rows: Sequence[int]) -> Sequence[int]:
        if 10 < len(rows) <= 16:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return rows

    lengths = [4 * TOKENS_OF_A_SENTENCE] * 16 + [9] * 64
    assert in_batches(lengths, 64, compute, told.append) == list(range(80))
    assert told == [8, 8, 32, 32]
