"""One update is what it says: sums over real tokens, divided once. And a user's mistakes."""

import itertools
import logging
import math
import operator
import os
import signal
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import ignite.distributed as idist
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ignite.engine import Engine, Events
from tiny_models import tiny_config
from torch import Tensor, nn
from toy_runs import (
    assert_same_logs,
    at_update,
    log_of,
    run_here,
    toy_config,
    toy_corpus,
    validation_loss,
)
from tqdm import tqdm
from updates import (
    CPU,
    EOS,
    PAD,
    VOCAB,
    VOCABULARY,
    batch_of,
    difference,
    sentences,
    small_model,
    updated,
)

import train as script
from checkpoints.run import FinishedError
from configs.schema import Config, InverseSqrt, Sinusoidal, TransformerXl
from configs.serialize import apply_overrides
from data.cache import TokenizedSplit
from models.build import build_model
from models.loss import TokenSums
from training import engine, run as run_module, start as start_module
from training.engine import step_seed
from training.faults import NonFiniteError, remedies_named
from training.handlers import ProgressBar
from training.objectives import cross_entropy
from training.prepare import check_lengths
from translation.evaluator import TokenMetrics, create_evaluator
from utils.errors import UserError
from utils.machine import resolve_device, resolve_precision, seed_all, torch_to_itself
from utils.progress import Bar

# --------------------------------------------------------------------------------------- one update


def test_the_step_is_the_mean_over_the_tokens_of_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    split = sentences(5, seed=2)
    batch = batch_of(split, range(5))
    model, out = updated([[batch]] * 2, label_smoothing=0.1)
    by_hand = small_model()
    for _ in range(2):  # the second by its own gradient alone
        by_hand.zero_grad()
        logits, ids = by_hand(batch.src, batch.tgt_in).flatten(0, 1), batch.tgt_out.flatten()
        F.cross_entropy(logits, ids, ignore_index=PAD, label_smoothing=0.1).backward()
        with torch.no_grad():
            for p in by_hand.parameters():
                p -= p.grad
    assert difference(model, by_hand) < 1e-12
    # What is reported is not smoothed.
    plain = F.cross_entropy(logits, ids, ignore_index=PAD, reduction="sum")
    assert out["nll"] == pytest.approx(plain.item(), rel=1e-12)
    # Of several processes it is that over the tokens of all: here two with the same batch.
    monkeypatch.setattr(idist, "get_world_size", lambda: 2)
    monkeypatch.setattr(idist, "all_reduce", lambda x: 2 * x)
    of_both, twice = updated([[batch]] * 2, label_smoothing=0.1)
    assert difference(of_both, model) < 1e-12
    assert all(twice[name] == 2 * out[name] for name in ("nll", "n_correct", "n_tokens"))


class Always(nn.Module):
    """A model that predicts the same id everywhere."""

    def __init__(self, answer: int) -> None:
        super().__init__()
        self.output = nn.Linear(1, VOCAB, bias=False)
        self.output.weight.data.zero_()
        self.output.weight.data[answer] = 3.0

    def forward(self, src: Tensor, tgt_in: Tensor, *, select: Tensor, project: bool) -> Tensor:
        assert not project
        return torch.ones(len(select), 1)

    def output_weight(self) -> Tensor:
        return self.output.weight


def test_padding_counts_neither_for_accuracy_nor_for_loss() -> None:
    """Mistake 10. Seven real tokens, two of them the answer; three places of padding."""
    split = TokenizedSplit(
        src_ids=np.array([5, EOS, 6, EOS], np.int32),
        src_offsets=np.array([0, 2, 4]),
        tgt_ids=np.array([7, 8, 9, 7, EOS, 8, EOS], np.int32),
        tgt_offsets=np.array([0, 5, 7]),
        kept=np.arange(2),
        n_skipped={},
    )
    batch = batch_of(split, range(2))
    assert (batch.tgt_out == PAD).sum() == 3
    normal = math.log(math.exp(3) + VOCAB - 1)
    for answer, n_right in ((7, 2), (PAD, 0)):
        evaluator = create_evaluator(Always(answer), pad_id=PAD, device=CPU, dtype=torch.float32)
        metrics = evaluator.run([batch]).metrics
        assert metrics["accuracy"] == pytest.approx(n_right / 7)
        assert metrics["loss"] == pytest.approx(normal - 3 * n_right / 7)
        assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    metrics = TokenMetrics()
    metrics.update((torch.tensor(2000.0), torch.tensor(0.0), 2))
    assert metrics.compute()["perplexity"] == math.exp(700)  # no OverflowError


def test_clipping_bounds_the_step_and_reports_the_norm_before() -> None:
    group = [[batch_of(sentences(4, seed=6), range(4))]]
    _, free = updated(group)
    for scaled in (False, True):  # by the scaler of fp16
        clipped, out = updated(group, grad_clip=0.01, scaled=scaled)
        pairs = zip(clipped.parameters(), small_model().parameters())
        moved = math.sqrt(sum(((p - q) ** 2).sum().item() for p, q in pairs))
        assert out["grad_norm"] == pytest.approx(free["grad_norm"], rel=1e-12)
        assert moved == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("backend", ["scratch", "torch"])
def test_in_an_autocast_of_the_caller_an_update_takes_the_weights_that_the_last_one_left(
    backend: Any,
) -> None:
    """Torch keeps what autocast made of them as long as any autocast lasts, one that is off too."""
    position = TransformerXl() if backend == "scratch" else Sinusoidal()  # has maps of its own

    def trained() -> nn.Module:
        torch.manual_seed(0)
        model = build_model(tiny_config(position, backend=backend), VOCABULARY)
        batches = [[batch_of(sentences(4, seed=7), range(4))]] * 3
        return updated(batches, model=model, dtype=torch.bfloat16)[0]

    plain = trained()
    with torch.autocast("cpu", enabled=False):
        assert difference(plain, trained()) == 0


def test_every_update_of_every_process_draws_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, batch = set(), batch_of(sentences(2, seed=7), range(2))
    drawing = lambda *given: drawn.add(torch.rand(()).item()) or cross_entropy(*given)  # noqa: E731
    monkeypatch.setattr(engine, "build_objective", lambda *_: drawing)
    for rank in range(3):
        monkeypatch.setattr(idist, "get_rank", lambda rank=rank: rank)
        updated([[batch, batch]] * 4)
    assert len(drawn) == 3 * 4 * 2  # in each micro-batch too


# ----------------------------------------------------------------------------------- rates in a run


def test_the_rate_that_is_logged_is_the_one_of_the_epoch(tmp_path: Path) -> None:
    schedule = """
        optim.schedule=epoch_decay optim.schedule.lr=0.001
        optim.schedule.warmup_epochs=1 optim.schedule.decay=0.5
    """
    log = log_of(run_here(toy_config(tmp_path, "optim.accumulate=10", schedule)).run)
    rates = [line["learning_rate"] for line in log.values()]
    assert rates == pytest.approx([0.0005, 0.0005, 0.001, 0.001, 0.001, 0.001])


@pytest.mark.parametrize("scaled", [False, True])
def test_an_update_that_is_left_out_keeps_its_place_in_the_schedule(
    scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the run, or by the scaler of fp16."""
    factors = iter((1.0, math.inf, 1.0))

    def poisoned(*given: Any) -> TokenSums:
        sums = cross_entropy(*given)
        return replace(sums, objective=sums.objective * next(factors))

    monkeypatch.setattr(engine, "build_objective", lambda *_: poisoned)
    group, schedule = [batch_of(sentences(2, seed=7), range(2))], InverseSqrt(warmup_steps=4)
    model, out = updated([group] * 3, scaled=scaled, on_bad=lambda *_: None, schedule=schedule)
    assert out["lr"] == 3 / 4
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_loss_that_is_no_number_is_no_mere_overflow_of_fp16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    factors, told = iter((1.0, math.nan)), mock.Mock()

    def poisoned(*given: Any) -> TokenSums:
        sums, factor = cross_entropy(*given), next(factors)
        return replace(sums, objective=sums.objective * factor, nll=sums.nll * factor)

    monkeypatch.setattr(engine, "build_objective", lambda *_: poisoned)
    updated([[batch_of(sentences(2, seed=7), range(2))]] * 2, scaled=True, on_bad=told)
    assert told.call_count == 1


# ------------------------------------------------------------------------------------ breaking down


def test_a_validation_loss_that_is_no_number_saves_nothing(tmp_path: Path) -> None:
    # One update an epoch: the weights break down in it, and only the validation can see that.
    config = toy_config(tmp_path, "optim.accumulate=100 optim.schedule.lr=1e30")
    with pytest.raises(NonFiniteError, match="validation loss"):
        run_here(config)
    assert not list(tmp_path.glob("runs/*/checkpoints/*"))


# ----------------------------------------------------------------------------------------- progress


def test_without_a_terminal_a_line_says_how_far_it_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    losses = iter([10.0, 20.0, math.nan])

    def update(engine: Engine, batch: Any) -> dict[str, float]:
        nll = next(losses)
        return {"nll": nll, "n_tokens": 10, "lr": 0.001, "skipped": math.isnan(nll)}

    trainer = Engine(update)
    ticks = map(float, itertools.count())
    monkeypatch.setattr(time, "perf_counter", lambda: 10 * next(ticks))  # an update takes 20 s
    trainer.load_state_dict({"iteration": 2, "epoch_length": 2, "max_epochs": 9})
    ProgressBar(trainer, first_step=2, total_steps=7, line_every=0)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=5), trainer.terminate)
    trainer.run([0, 0], max_epochs=9)
    lines = [message for message in caplog.messages if message.startswith("epoch")]
    assert len(lines) == 3
    # (0.98 * 10 + 20) / (0.98 * 10 + 10), which the third update, left out, does not change
    shape = "epoch 2/4 step 4/7 | loss 1.505 | 1 tokens/s | lr 1.00e-03 | 0:01:00 left"
    assert lines[1] == shape
    assert "loss 1.505" in lines[2]


def test_a_run_draws_by_its_seed_and_logs_the_figures_of_an_update_by_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = {}
    weights, dropouts = mock.Mock(side_effect=torch.manual_seed), mock.Mock(side_effect=seed_all)
    monkeypatch.setattr(torch, "manual_seed", weights)
    monkeypatch.setattr("training.engine.seed_all", dropouts)

    def hook(trainer: Engine, learner: Any) -> None:
        @trainer.on(Events.ITERATION_COMPLETED)
        def keep(engine: Engine) -> None:
            outputs[engine.state.iteration] = engine.state.output
            assert engine.state.dataloader.sampler.seed == 5

    config = toy_config(tmp_path, "train.max_steps=3 train.log_every=2 train.seed=5")
    log = log_of(run_here(config, hook=hook).run)
    drawn = [call.args[0] for call in dropouts.call_args_list]
    assert (weights.call_args_list, drawn) == (
        [mock.call(5)],
        [step_seed(5, n, 0) for n in (1, 2, 3)],
    )
    assert list(log) == [1, 2]
    for step, logged in log.items():
        out = outputs[step]
        assert logged["loss"] == out["nll"] / out["n_tokens"] > 1
        assert logged["accuracy"] == out["n_correct"] / out["n_tokens"]


# -------------------------------------------------------------------------------- a user's mistakes


def test_a_gpu_becomes_the_current_one_without_cudnns_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    names = {"auto": "cuda", "cuda:1": "cuda:1", "cpu": "cpu"}
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        for name, meant in names.items():
            torch.backends.cuda.enable_cudnn_sdp(True)
            assert resolve_device(name) == torch.device(meant)
            assert torch.backends.cuda.cudnn_sdp_enabled() == (name == "cpu")
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    assert chosen == [0, 1]


def test_no_two_processes_draw_the_same_dropout() -> None:
    places = itertools.product(range(2), range(400), range(8))
    seeds = {step_seed(seed, step, rank) for seed, step, rank in places}
    assert len(seeds) == len({seed % 2**32 for seed in seeds}) == 6400


@pytest.mark.parametrize("computes", ["yes", "no"])
def test_a_precision_that_is_not_there(monkeypatch: pytest.MonkeyPatch, computes: str) -> None:
    monkeypatch.setenv("COMPUTES_BF16", computes)
    assert resolve_precision("fp32", CPU, 512) == "fp32"
    for name in ("fp16", "tf32"):
        with pytest.raises(UserError, match=f"'{name}' needs a CUDA device"):
            resolve_precision(name, CPU, 512)
    wide = {"yes": "bf16", "no": "fp32"}[computes]
    assert [resolve_precision("auto", CPU, width) for width in (127, 128)] == ["fp32", wide]
    for amx, small in ((False, wide), (True, "fp32")):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx)
        chosen = [resolve_precision("auto", CPU, 250, n_tokens) for n_tokens in (1999, 2000)]
        assert chosen == [small, wide]
    if computes == "no":
        with pytest.raises(UserError, match="does not compute in bfloat16; use auto or fp32"):
            resolve_precision("bf16", CPU, 512)


@pytest.mark.parametrize(("major", "best", "n_said"), [(7, "fp32", 1), (8, "bf16", 0)])
def test_what_a_gpu_computes_in(
    major: int, best: str, n_said: int, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    caplog.set_level(logging.INFO)
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 5))
    assert resolve_precision("auto", gpu, 16) == best
    assert sum("train.precision = 'auto' means fp32" in line for line in caplog.messages) == n_said
    assert resolve_precision("fp16", gpu, 16) == "fp16"
    if major == 8:
        assert resolve_precision("tf32", gpu, 16) == "tf32"
    else:
        with pytest.raises(UserError, match="this cuda does not compute in TensorFloat-32"):
            resolve_precision("tf32", gpu, 16)


def test_tf32_is_for_the_products_of_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []
    of: list[Any] = []  # what precision is chosen by: of sentences the tokens are estimated
    monkeypatch.setattr(
        "training.start.resolve_precision", lambda *given: of.append(given) or "tf32"
    )

    def note(*_: object) -> None:
        chosen.append(torch.get_float32_matmul_precision())

    config = toy_config(tmp_path, "train.max_steps=1 data.batch_by=sentences data.batch_size=8")
    run_here(config, hook=at_update(1, note))
    note()
    assert chosen == ["high", "highest"]
    assert of == [("fp32", CPU, config.model.d_model, 8 * 20)]


def test_what_the_caller_set_changes_nothing_and_holds_again(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "train.max_steps=2")
    console, others = [], [*logging.getLogger().handlers]
    plain = run_here(
        config, hook=at_update(2, lambda *_: console.extend(logging.root.handlers))
    ).run
    assert console == others  # a file that the caller's messages go to is not a terminal
    assert vars(Bar)["_lock"] is not vars(tqdm).get("_lock")

    def settings() -> list[Any]:
        products = torch.get_float32_matmul_precision(), torch.get_default_dtype()
        modes = torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()
        return [*products, *modes, torch.get_deterministic_debug_mode(), torch.get_default_device()]

    at_first, within = settings(), []
    look = at_update(1, lambda *_: within.append(settings()))
    drawn = torch.get_rng_state()
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.set_deterministic_debug_mode("warn")
        modes = torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode()
        with modes[0], modes[1], torch.device("meta"):
            before = settings()
            assert all(map(operator.ne, before, at_first))
            assert_same_logs(plain, run_here(config, hook=look).run)
            assert settings() == before
    finally:
        torch.set_default_dtype(at_first[1])
        torch.set_float32_matmul_precision(at_first[0])
        torch.set_deterministic_debug_mode(at_first[4])
    assert torch.equal(torch.get_rng_state(), drawn)
    products: Any = torch.backends.mkldnn
    products.matmul.fp32_precision = "bf16"  # the newer way to say so
    try:
        assert_same_logs(plain, run_here(config, hook=look).run)
        assert products.matmul.fp32_precision == "bf16"
    finally:
        products.matmul.fp32_precision = "none"
    assert within == [at_first] * 2


def test_the_threads_of_a_command_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, before = [], torch.get_num_threads()

    def train(*_: object, resume: None) -> None:
        seen.append(torch.get_num_threads())
        raise UserError

    monkeypatch.setattr(run_module, "train", train)
    for flags in (["--threads", str(before + 1)], []):
        with pytest.raises(UserError):
            script.work(args=script.parse_args(flags), config=Config(), resume=None)
        assert torch.get_num_threads() == before
    assert seen == [before + 1, before]


def test_one_training_at_a_time_in_a_process(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "train.max_steps=1")

    def another(*_: object) -> None:
        with ThreadPoolExecutor(1) as pool, pytest.raises(UserError, match="another thread"):
            pool.submit(run_here, config).result()

    run_here(config, hook=at_update(1, another))
    run_here(config)


def test_another_thread_trains_alike_and_leaves_signals_alone(tmp_path: Path) -> None:
    config, before = toy_config(tmp_path, "train.max_steps=2"), signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(run_here, config).result().run
    assert_same_logs(run, run_here(config).run)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_budget_of_target_tokens_ends_the_run_and_is_what_the_schedule_spans(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cosine = "optim.schedule=cosine optim.schedule.lr=0.003 optim.schedule.warmup_steps=1"
    config = toy_config(tmp_path, cosine, "optim.accumulate=2 train.max_epochs=1")
    of_updates: list[int] = []

    def count(trainer: Engine, _: object) -> None:
        @trainer.on(Events.ITERATION_COMPLETED)
        def note(engine: Engine) -> None:
            of_updates.append(engine.state.output["n_tokens"])

    run_here(config, hook=count)
    assert len(of_updates) == 10
    budget = round(0.66 * sum(of_updates))  # of the source it would be 6 updates
    by_tokens = apply_overrides(config, [f"train.max_tokens={budget}", "train.max_steps=99"])
    run = run_here(by_tokens).run
    assert_same_logs(run, run_here(apply_overrides(config, ["train.max_steps=7"])).run)
    assert max(log_of(run)) == 7
    with pytest.raises(FinishedError, match=r"7\)\. .* train\.max_tokens=\d+$") as told:
        run_here(apply_overrides(by_tokens, ["train.max_tokens=9"]), resume=run.path)
    more = str(told.value).split()[-1]
    run_here(apply_overrides(by_tokens, [more, "train.max_epochs=2"]), resume=run.path)
    assert max(log_of(run)) == 14  # twice as many
    ends = "train.max_tokens = 1, target tokens, ends the run within its first epoch"
    comes = "train.max_tokens = 4000000000: train.max_epochs = 1 comes first; raise it too"
    for tokens, n, said in ((1, 1, ends), (4_000_000_000, 10, comes)):
        caplog.clear()
        limited = run_here(apply_overrides(config, [f"train.max_tokens={tokens}"])).run
        assert max(log_of(limited)) == n
        assert [said in each for each in caplog.messages].count(True) == 1


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_deterministic_run_repeats_itself(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it goes back
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    wide = "model.d_model=64 data.batch_size=2048 train.max_epochs=2 model.position=shaw"
    config = toy_config(tmp_path, wide, f"train.deterministic=true train.device={device}")
    asked: list[bool] = []
    look = at_update(1, lambda *_: asked.append(torch.are_deterministic_algorithms_enabled()))
    logs = [log_of(run_here(config, hook=look).run) for _ in range(2)]
    assert asked == [True, True]
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    words = r"^train.deterministic = True: .* --set train.deterministic=false"
    with (
        pytest.raises(UserError, match=words),
        remedies_named(config),
        torch_to_itself(CPU, deterministic=True),
    ):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))  # it has no such algorithm
    assert logs[0] == logs[1]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("--set train.max_epochs=0", "train.max_epochs = 0: allowed: an integer >= 1"),
        ("--nproc_per_node 0", "an integer >= 1"),
        ("--resume runs/none_at_all", "no such checkpoint or run folder"),
        ("--lr 5e-4 --warmup-updates 9", "updates 9; --set sets fields: optim.schedule.lr"),
        ("--max-tokens=4096", "--set sets fields: data.batch_size, train.max_tokens (see"),
        ("--nproc-per-node=0", "argument --nproc_per_node: '0': must be an integer >= 1"),
        ("--epochs 3", "unrecognized arguments: --epochs 3 (see train.py --help)"),
    ],
)
def test_a_mistake_on_the_command_line_gets_one_line(
    args: str, words: str, in_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["train.py"])  # a mistake in the arguments names the script
    assert words in in_process(script.main)(*args.split()).error()


def test_a_run_that_cannot_begin_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ("data.corpus.root=nowhere", "data.corpus.validation=none_such"):
        with pytest.raises(UserError):
            run_here(toy_config(tmp_path, wrong))
    assert not (tmp_path / "cache").exists()  # the text was not read in vain
    end = partial(os.kill, os.getpid(), signal.SIGTERM)
    monkeypatch.setattr(run_module, "build_learner", lambda *args, **kwargs: end())
    remove = start_module.shutil.rmtree
    monkeypatch.setattr(start_module.shutil, "rmtree", lambda *a, **k: (end(), remove(*a, **k)))
    with pytest.raises(SystemExit) as ended:
        run_here(toy_config(tmp_path))
    assert ended.value.code == 128 + signal.SIGTERM
    assert not list((tmp_path / "runs").glob("*"))


def test_the_loss_of_more_splits_is_logged_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    short = "train.max_epochs=2 data.batch_size=400"
    plain = run_here(toy_config(tmp_path, short)).run
    run = run_here(toy_config(tmp_path, short, "evaluate.also=valid,test")).run
    log = log_of(run, "validation")
    for figures in log.values():
        assert figures["loss_valid"] == figures["loss"] != figures["loss_test"]
    last = log[max(log)]["loss_test"]
    assert last == pytest.approx(validation_loss(run.newest(), 64, "test"), rel=1e-6)
    assert any(f", loss of test {last:.4f}" in each for each in caplog.messages)
    more = "loss_test", "loss_valid"
    assert log_of(plain, "validation") == {
        step: {key: value for key, value in figures.items() if key not in more}
        for step, figures in log.items()
    }
    names = [{file.name for file in each.checkpoints.iterdir()} for each in (plain, run)]
    assert names[0] == names[1]
    with pytest.raises(UserError, match=r"also has 'none_such': neither .*\.gz exists; data\.s"):
        run_here(toy_config(tmp_path, f"evaluate.also=none_such data.cache_dir={tmp_path}/other"))
    assert not (tmp_path / "other").exists()


def test_a_beam_that_no_batch_of_the_evaluation_leaves_room_for_does_not_matter(
    tmp_path: Path,
) -> None:
    large = "decode.beam_size=1100 decode.batch_size=1 evaluate.bleu_every_epochs=1"
    run = run_here(toy_config(tmp_path, large, "train.max_steps=1")).run
    assert "bleu" in log_of(run, "validation")[1]


def test_a_validation_pair_past_the_position_table_is_named_before_training(tmp_path: Path) -> None:
    table = "model.position=learnable model.position.max_positions=9"
    short = f"data.max_len=9 decode.max_len=9 {table}"
    words = (
        r"source of validation has \d+ tokens, but model\.position\.max_positions allows for 9: "
    )
    words += "in a new run use --set data.eval_long=truncate, or train"
    with pytest.raises(UserError, match=words):
        run_here(toy_config(tmp_path, short))
    run_here(toy_config(tmp_path, short, "data.eval_long=truncate train.max_steps=1"))

    ids = [mock.Mock(src_lengths=np.array([n]), tgt_lengths=np.array([3])) for n in (9, 12)]
    model, data = mock.Mock(), mock.Mock(validation_ids=ids[0], also={"long": (ids[1], None)})
    model.scheme.bounds = {"source": mock.Mock(length=9, field="max_positions")}
    words = r"of long \(evaluate\.also\) .* leave that split out, or in a new"
    with pytest.raises(UserError, match=words):
        check_lengths(model, data)


def test_what_training_reads_of_the_other_splits_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    corpus = toy_corpus(tmp_path)
    for language, line in (("fr", "l'eau"), ("en", "water")):
        with (corpus / f"valid.{language}").open("a") as more:
            more.write(f"{line}\n")
    valid, test = ((corpus / f"{name}.fr").read_text().splitlines() for name in ("valid", "test"))
    own = [valid[3].swapcase(), test[0], unicodedata.normalize("NFD", valid[5]), test[0], "L’eau"]
    theirs = [(corpus / "valid.en").read_text().splitlines()[3], "x", "x", "x", "x"]
    for language, lines in (("fr", own), ("en", theirs)):
        with (corpus / f"train.{language}").open("a") as train:
            train.writelines(f"{line}\n" for line in lines)
    # a test that is not there is left out
    run_here(toy_config(tmp_path, "train.max_steps=1 data.corpus.test=test,none"))
    told = f"source sentences that are in train too: 3 of {len({*valid})} of valid, 1 of "
    assert f"{told}{len({*test})} of test" in caplog.messages
    told = f"target sentences that are in train too: 1 of {len({*valid})} of valid"
    assert told in caplog.messages


def test_text_that_does_not_suit_the_model_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = toy_corpus(tmp_path)
    run = run_here(toy_config(tmp_path, "train.max_steps=1")).run
    with (corpus / "train.fr").open("a") as fr, (corpus / "train.en").open("a") as en:
        fr.write("Ⴙ\n")
        en.write((corpus / "test.en").read_text().splitlines()[0] + "\n")
    run_here(toy_config(tmp_path, f"train.init_from={run.path} train.max_steps=1"))
    [said] = [text for text in caplog.messages if "unknown" in text]
    assert said.startswith("train: 1 of ")
    assert "source tokens are unknown to the tokenizer: characters that it lacks" in said
    assert [text for text in caplog.messages if "NFC" in text or "@@" in text] == []
    valid = (corpus / "valid.en").read_text().splitlines(keepends=True)
    (corpus / "valid.en").write_text("".join(["cafe\u0301\n", *valid[1:]]))
    cut = (corpus / "train.fr").read_text().replace(" ", "@@ ")
    (corpus / "train.fr").write_text(cut)
    run_here(toy_config(tmp_path, "train.max_steps=1"))
    words = "valid: 1 of 21 references are not in Unicode's form NFC", "train: cut into subwords"
    for word in words:
        assert [text for text in caplog.messages if text.startswith(word)], word
