"""Several processes train what one process trains, write once, stop together, and end together on an error."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, run_script
from toy_runs import content, log_of, run_here, toy_command, toy_config

from configs.errors import UserError
from utils.parallel import choose_backend
from utils.resume import open_run
from utils.runs import BEST, Run

PLAIN = ("model.dropout=0.0", "optim.accumulate=3", "evaluate.bleu_every_epochs=1", "evaluate.bleu_sentences=7")
EXACT = {"step", "epoch", "learning_rate"}


def assert_same_figures(several: Path, one: Path, kind: str, *, up_to: int) -> None:
    a, b = log_of(several, kind), log_of(one, kind)
    steps = [step for step in a if step <= up_to]
    assert steps == [step for step in b if step <= up_to]
    for step in steps:
        assert a[step].keys() == b[step].keys()
        for name in a[step]:
            assert a[step][name] == pytest.approx(b[step][name], abs=0 if name in EXACT else 1e-5), (step, name)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of two processes whose launcher got a SIGTERM in the second epoch or later; what it said."""
    folder = tmp_path_factory.mktemp("several")
    process = subprocess.Popen(
        [sys.executable, *toy_command(folder, *PLAIN, "train.max_epochs=5000"), "--nproc_per_node", "2"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 180
    logs: list[Path] = []
    while process.poll() is None and time.monotonic() < deadline:
        logs = list(folder.glob("runs/*/logs/metrics.jsonl"))
        if logs and "validation" in logs[0].read_text("utf-8"):
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, said
    return logs[0].parents[1], said


@pytest.fixture(scope="module")
def single(stopped: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process with the same config, a little further than the others came."""
    step = max(log_of(stopped[0]))
    return run_here(toy_config(tmp_path_factory.mktemp("single"), *PLAIN, f"train.max_steps={step + 12}")).run.path


def test_two_processes_have_the_figures_of_one(stopped: tuple[Path, str], single: Path) -> None:
    run, said = stopped
    assert "2 processes" in said
    step = max(log_of(run))
    assert step >= 10
    assert_same_figures(run, single, "train", up_to=step)
    assert_same_figures(run, single, "validation", up_to=step)


def test_all_stop_at_one_update_and_one_of_them_speaks_and_writes(stopped: tuple[Path, str]) -> None:
    run, said = stopped
    newest = Run(run).newest()
    assert newest is not None
    assert content(newest)["progress"]["step"] == max(log_of(run))
    assert said.count("stopped by SIGTERM; go on with: python train.py --resume") == 1
    assert said.count("saving after this update") == 1
    assert "Traceback" not in said
    assert len(list((run / "logs").glob("events*"))) == 1
    assert len(Run(run).files(BEST)) <= 2
    assert not list(run.rglob("*.tmp"))


def test_torchrun_goes_on_where_they_stopped(stopped: tuple[Path, str], single: Path) -> None:
    run, _ = stopped
    newest = Run(run).newest()
    assert newest is not None
    step = content(newest)["progress"]["step"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = run_script(*launcher, "train.py", "--resume", run, "--set", f"train.max_steps={step + 12}", timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(run)
    assert max(log_of(run)) == step + 12
    assert_same_figures(run, single, "train", up_to=step + 12)


def test_an_error_that_all_processes_meet_is_one_line(tmp_path: Path) -> None:
    command = toy_command(tmp_path, "data.corpus.train=missing")
    done = run_script(*command, "--nproc_per_node", "2", timeout=300)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert re.fullmatch(r"error: .*missing\.fr.*\n", done.stderr), done.stderr


def test_the_backend_follows_from_processes_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert choose_backend(1, "auto") == (None, {})
    backend, spawn = choose_backend(2, "cpu")
    assert (backend, spawn["nproc_per_node"]) == ("gloo", 2)
    ports = {choose_backend(2, "cpu")[1]["master_port"] for _ in range(3)}
    assert all(1024 < port < 65536 for port in ports)
    if torch.cuda.device_count() < 64:
        with pytest.raises(UserError, match="with 64 processes: they take one GPU each"):
            choose_backend(64, "cuda")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert choose_backend(1, "cpu") == ("gloo", {})


def test_more_processes_than_validation_pairs_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import ignite.distributed as idist

    from utils.training import Training
    from utils.validation import validation_loader

    config = toy_config(tmp_path)
    training = Training(config, open_run(config, None), print)
    ids, tokenizer = training.data.validation_ids, training.tokenizer
    monkeypatch.setattr(idist, "get_world_size", lambda: 4)
    for rank in range(4):
        monkeypatch.setattr(idist, "get_rank", lambda rank=rank: rank)
        assert len(validation_loader(ids, tokenizer, batch_size=64)) >= 1
    monkeypatch.setattr(idist, "get_world_size", lambda: 22)
    with pytest.raises(UserError, match="21 validation pairs for 22 processes"):
        validation_loader(ids, tokenizer, batch_size=64)
