"""Several processes train what one trains, write once, stop together and fail together."""

import atexit
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import ignite.distributed as idist
import pytest
import torch
from conftest import run_script
from toy_runs import content, copied, log_of, run_here, started, toy_command, toy_config

import train as script
from checkpoints.run import BEST, Run
from configs.schema import Config, Saved
from configs.serialize import leaves, to_dict
from data.cache import load_split
from data.corpora.build import build_corpus
from tokenizer.build import load_tokenizer
from training.prepare import read_training, validation_loader
from training.processes import PATIENCE, choose_backend, run_processes
from training.start import Start, require_one_command
from utils.errors import UserError
from utils.machine import CPU

# Nothing is drawn, so that the shares of several processes must add up to the figures of one: with
# two passes through the model in an update, an average of the weights that is evaluated, and
# numbers of pairs that two do not divide.
PLAIN = """
    model.dropout=0.0 optim.objective=sim_cut optim.objective.cut=0 optim.accumulate=3
    data.batch_size=96 train.ema_decay=0.9 train.checkpoint_every_steps=4
    evaluate.bleu_every_epochs=1 evaluate.bleu_sentences=7 evaluate.also=test
"""
EXACT = {"step", "epoch", "learning_rate"}
pytestmark = pytest.mark.slow


# Run by every Python process at its start: notes who opens, renames or makes what.
WATCH = """
import os, sys

def note(event, args):
    if event == "open" and not (isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)):
        return
    watched = event in ("open", "os.rename", "os.mkdir", "os.remove")
    if watched:
        path = os.fsdecode(args[0]) if isinstance(args[0], bytes) else str(args[0])
        if os.environ["WATCHED"] in path:
            os.write(out, f"{os.getpid()} {event} {path}\\n".encode())

out = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
sys.addaudithook(note)
"""


def watched(folder: Path) -> dict[str, str]:
    """Environment in which processes note in folder/notes what they write under the folder."""
    watch = folder / "watch"
    watch.mkdir()
    (watch / "sitecustomize.py").write_text(WATCH, "utf-8")
    return {"PYTHONPATH": f"{watch}", "WATCHED": f"{folder}/", "NOTES": f"{folder / 'notes'}"}


def n_lines(folder: Path, kind: str) -> int:
    """In the log of the run that is under way there."""
    logs = list(folder.glob("runs/*/logs/metrics.jsonl"))
    return logs[0].read_text("utf-8").count(f'"kind": "{kind}"') if logs else 0


def wait_for(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while process.poll() is None and time.monotonic() < deadline and not reached():
        time.sleep(0.01)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of two processes that got a SIGTERM in the third epoch or later; what it said."""
    folder = tmp_path_factory.mktemp("équipe_né")
    command = [*toy_command(folder, PLAIN, "train.max_epochs=5000"), "--nproc_per_node", "2"]
    process = started(command, **watched(folder))
    wait_for(process, lambda: n_lines(folder, "validation") >= 2)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, said
    [run] = folder.glob("runs/*")
    return run, said


@pytest.fixture(scope="module")
def resumed(stopped: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the same run, taken five updates further by torchrun."""
    run = copied(Run(stopped[0]), tmp_path_factory.mktemp("resumed")).path
    command = "-m torch.distributed.run --standalone --nproc_per_node=2 train.py --resume".split()
    limit = f"train.max_steps={max(log_of(run)) + 5}"
    settings = "--set", limit, "--set", "data.num_workers=1"
    done = run_script(*command, run, *settings, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "leaked" not in done.stderr
    assert done.stdout.splitlines()[-1] == str(run)
    return run


def test_two_processes_have_the_figures_of_one(resumed: Path, tmp_path: Path) -> None:
    limit = max(log_of(resumed))
    single = run_here(toy_config(tmp_path, PLAIN, f"train.max_steps={limit}")).run
    for kind in ("train", "validation"):
        several, one = log_of(resumed, kind), log_of(single, kind)
        assert list(several) == list(one)
        for step, line in one.items():
            assert several[step].keys() == line.keys()
            for name, figure in line.items():
                off = 1e-5 * (figure if name == "perplexity" else 1)  # as much as its logarithm
                near = pytest.approx(figure, abs=0 if name in EXACT else off)
                assert several[step][name] == near, (kind, step, name)


def test_all_stop_at_one_update_and_one_speaks_and_writes(stopped: tuple[Path, str]) -> None:
    run, said = stopped
    assert "2 processes" in said
    assert content(Run(run).newest())["progress"]["step"] == max(log_of(run))
    assert said.count("stopped by SIGTERM; go on with: python train.py --resume") == 1
    begun = "train: learning the tokenizer from 200 pairs\ntrain: reading the pairs, and "
    assert said.startswith(begun)
    assert said.count("train: reading the pairs, ") == 1
    assert said.count("saving after this update") == 1
    assert "Traceback" not in said
    assert len(list((run / "logs").glob("events*"))) == 1
    assert len(Run(run).files(BEST)) <= 2
    assert not list(run.rglob("*.tmp"))


def test_one_process_writes_every_file(stopped: tuple[Path, str]) -> None:
    folder = stopped[0].parents[1]
    writers: dict[str, set[str]] = {}
    for line in (folder / "notes").read_text("utf-8").splitlines():
        process, _, path = line.split(" ", 2)
        if any(part in path for part in ("/runs/", "/cache/")):
            writers.setdefault(process, set()).add(path.removeprefix(f"{folder}/"))
    [paths] = writers.values()
    kinds = "cache/ config.json tokenizer/ logs/events logs/metrics.jsonl checkpoints/.best"
    for kind in kinds.split():
        assert any(kind in path for path in paths), kind


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], int]:
    """Runs work in two forked processes, which can be of this test; the exit code."""
    backend, spawn = choose_backend(2, "cpu")
    chosen = backend, spawn | {"start_method": "fork"}
    monkeypatch.setattr("training.processes.choose_backend", lambda *_: chosen)

    def run_them(work: Callable[[], None]) -> int:
        with pytest.raises(SystemExit) as ended:
            run_processes(work, nproc_per_node=2, device="cpu")
        return int(ended.value.code or 0)

    return run_them


def test_ctrl_c_in_the_seconds_of_the_imports_shows_no_traceback(
    forked: Callable[[Callable[[], None]], int], capfd: pytest.CaptureFixture[str]
) -> None:
    probe = "import runpy, signal; runpy.run_path('train.py', run_name='__mp_main__')"
    done = run_script("-c", f"{probe}; signal.raise_signal(signal.SIGINT)")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")

    def die() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        forked(die)
    assert capfd.readouterr() == ("", "")


def test_a_signal_before_the_first_process_has_begun_ends_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spawn(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(idist, "spawn", spawn)
    with pytest.raises(SystemExit) as ended:
        run_processes(print, nproc_per_node=2, device="cpu")
    assert ended.value.code == 128 + signal.SIGUSR1


def test_nobody_waits_for_a_process_that_was_killed(
    forked: Callable[[Callable[[], None]], int], capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor does who misses it first speak in the launcher's place."""

    def die_or_wait() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork has the launcher's
        if idist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        idist.barrier()

    began = time.monotonic()
    assert forked(die_or_wait) == 128 + signal.SIGKILL
    assert capfd.readouterr() == ("", "error: process 1 was ended by SIGKILL\n")
    assert time.monotonic() - began < 60


def test_a_process_whose_launcher_sees_no_other_end_says_so_itself(
    forked: Callable[[Callable[[], None]], int],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As on another machine."""
    monkeypatch.setattr("training.processes.SPEAKS_FIRST_S", 0.0)

    def leave_or_wait() -> None:
        if idist.get_rank() == 1:
            os._exit(0)
        idist.barrier()

    assert forked(leave_or_wait) == 2
    out, error = capfd.readouterr()
    assert (out, error.count("\n")) == ("", 1), error
    assert error.startswith("error: another process has ended or is unreachable (RuntimeError: ")


def test_every_process_that_a_signal_stops_ends_with_its_number(
    forked: Callable[[Callable[[], None]], int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On another machine nobody else would tell that the training is not finished."""
    end, stopped = os._exit, mock.Mock(signal=signal.SIGTERM)

    def note(code: int) -> None:
        (tmp_path / f"ended_{idist.get_rank()}_{code}").touch()
        end(code)

    monkeypatch.setattr(os, "_exit", note)
    monkeypatch.setattr("training.run.train", lambda config, resume: stopped)
    train = partial(script.work, args=script.parse_args([]), config=Config(), resume=None)
    assert forked(train) == 143
    assert {path.name for path in tmp_path.iterdir()} == {"ended_0_143", "ended_1_143"}


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("data.batch_size=48", "data.batch_size: 140 in process 0, 48 in process 1; all machines"),
        ("data.corpus.train=valid", "fingerprint: '"),
        ("train.runs_dir=runs", "the folder runs/toy_.* is there: True in process 0, False in"),
    ],
)
def test_machines_that_would_train_different_things_are_refused(
    there: str,
    said: str,
    forked: Callable[[Callable[[], None]], int],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    ours = there if "runs_dir" in there else ""
    configs = [toy_config(tmp_path, more) for more in (ours, there)]
    monkeypatch.setattr(idist, "get_local_rank", lambda: 0)

    def work() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        machine = tmp_path / str(idist.get_rank())
        machine.mkdir()
        os.chdir(machine)
        script.work(args=script.parse_args([]), config=configs[idist.get_rank()], resume=None)

    assert forked(work) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert re.match(f"error: {said}", error), error
    assert not list(tmp_path.rglob("toy_*"))


@pytest.mark.parametrize(
    ("n_machines", "keep", "own_cache", "n_readers"),
    [(1, False, False, 1), (2, False, False, 2), (1, True, False, 2), (1, False, True, 2)],
)
def test_one_process_of_a_machine_reads_the_text(
    n_machines: int,
    keep: bool,
    own_cache: bool,
    n_readers: int,
    forked: object,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    trained_run: Path,
) -> None:
    """Unless it is kept, or the cache of a process lacks the ids."""
    tokenizer, told = load_tokenizer(trained_run / "tokenizer"), tmp_path / "told"
    toy_config(tmp_path)  # writes the corpus, which the processes would write at once
    if n_machines == 2:
        monkeypatch.setattr(idist, "get_local_rank", lambda: 0)

    def work() -> None:
        own = f"data.cache_dir={tmp_path}/{idist.get_rank()}" if own_cache else ""
        config = toy_config(tmp_path, own).data
        corpus = build_corpus(config)
        load = mock.Mock(wraps=corpus.load)
        with mock.patch.object(corpus, "load", cache(load)):
            text, ids, fingerprint = read_training(config, corpus, tokenizer, keep=keep)
        found = [
            load.call_count,
            text and text.fingerprint(),
            fingerprint,
            len(ids),
            ids.src_ids[7],
        ]
        with told.open("a") as file:
            print(*found, file=file)

    run_processes(work, nproc_per_node=2, device="cpu")
    counts, texts, *found = zip(*map(str.split, told.read_text("utf-8").splitlines()))
    assert sorted(counts) == (["1", "1"] if n_readers == 2 else ["0", "1"])
    assert set(texts) == (set(found[0]) if keep else {"None"})
    assert all(len(set(each)) == 1 for each in found)
    whole = build_corpus(toy_config(tmp_path).data).load("train")
    assert (found[0][0], found[1][0]) == (whole.fingerprint(), str(len(whole)))


def test_machines_compare_all_but_places_and_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[dict[str, Any]] = []
    chosen = mock.Mock(return_value="bf16")
    monkeypatch.setattr("training.start.require_alike", told.append)
    monkeypatch.setattr("training.start.resolve_precision", chosen)
    monkeypatch.setattr(idist, "get_world_size", lambda: 2)
    config = replace(toy_config(tmp_path), tokenizer=Saved(path="here"))
    # The updates done are compared later, when they are known.
    require_one_command(config, tmp_path / "run/checkpoints/regular_checkpoint_1.pt")
    Start(config, Run(tmp_path), "", None).precision(CPU)
    command, precision = told
    fields = dict(leaves(to_dict(config), ""))
    own = {name for name in fields if name.startswith("data.corpus.")}
    own |= {"data.cache_dir", "data.num_workers", "tokenizer.path"}
    own |= {"train.runs_dir", "train.device", "train.init_from"}
    assert command == {"--resume": "run", **{k: v for k, v in fields.items() if k not in own}}
    assert [*precision.values()] == ["bf16"]  # what auto means to each
    assert chosen.call_args.args[1:] == (CPU, 16, 140 / 2)


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
    with pytest.raises(UserError, match="'mps' with 2 processes: give auto, cpu or cuda"):
        choose_backend(2, "mps")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert choose_backend(1, "cpu") == ("gloo", {})
    with pytest.raises(UserError, match="--nproc_per_node 2: torchrun sets how many"):
        choose_backend(2, "cpu")


def on_the_cpu(then: Callable[[], None] | None = None) -> None:
    """Work for processes that see no GPU, share the cores, and wait for each other for hours.

    Those of their own end without the interpreter's end, in which a thread of gloo's may abort.
    """
    n_processes = idist.get_world_size()
    if multiprocessing.parent_process() is not None:
        atexit.register(os.abort)
        assert torch.get_num_threads() <= max(1, len(os.sched_getaffinity(0)) // n_processes)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert idist.device() == torch.device("cpu")
    assert idist.all_reduce(1) == n_processes
    group = torch.distributed.distributed_c10d._get_default_group()
    assert group._get_backend(torch.device("cpu")).options._timeout == PATIENCE
    if then is not None:
        then()


@pytest.mark.parametrize("under_torchrun", [True, False])
def test_processes_on_the_cpu_touch_no_gpu_and_ask_no_slurm(
    under_torchrun: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """And an error that all of them meet is one line."""

    def n_gpus() -> int:  # of a machine with one, as CUDA counts them
        return int(os.environ["CUDA_VISIBLE_DEVICES"] != "")

    def no_such_gpu(number: int) -> None:
        raise RuntimeError("CUDA error: invalid device ordinal")

    fake = {"device_count": n_gpus, "is_available": n_gpus, "set_device": no_such_gpu}
    for name, stand_in in fake.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("SLURM_JOB_ID", "7")  # of salloc, which sets no SLURM_PROCID
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")  # srun's, with torchrun a task a machine
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    if under_torchrun:
        ranks = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 2}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ranks |= {"MASTER_PORT": probe.getsockname()[1]}
        for name, value in ranks.items():
            monkeypatch.setenv(name, str(value))
        run_processes(on_the_cpu, nproc_per_node=1, device="auto")
        assert ended == [0]
    else:
        config = toy_config(tmp_path, "data.corpus.train=missing")
        train = partial(script.work, args=script.parse_args([]), config=config, resume=None)
        with pytest.raises(SystemExit) as stopped:
            run_processes(partial(on_the_cpu, then=train), nproc_per_node=2, device="auto")
        out, error = capfd.readouterr()
        assert (stopped.value.code, out) == (2, ""), error
        assert re.fullmatch(r"error: .*missing\.fr.*\n", error), error
    said = "train.device = 'auto': 2 processes, but GPUs for 1: they train on the CPU"
    alone = "Slurm started 2 tasks, and each of them trains a model of its own: to train one "
    alone += "together, give each its rank (docs/cluster.md)"
    assert caplog.messages == ([said] if under_torchrun else [alone, said])
    names = "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "SLURM_JOB_ID"
    assert list(map(os.environ.get, names)) == ["0", None, "7"]


def test_more_processes_than_validation_pairs_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trained_run: Path
) -> None:
    config, tokenizer = toy_config(tmp_path).data, load_tokenizer(trained_run / "tokenizer")
    corpus = build_corpus(config)
    _, ids = load_split(config, corpus, corpus.validation, tokenizer, training=False)
    monkeypatch.setattr(idist, "get_world_size", lambda: 4)
    for rank in range(4):
        monkeypatch.setattr(idist, "get_rank", lambda rank=rank: rank)
        assert len(validation_loader(ids, tokenizer, 64)) >= 1
    monkeypatch.setattr(idist, "get_world_size", lambda: 22)
    with pytest.raises(UserError, match="21 validation pairs for 22 processes"):
        validation_loader(ids, tokenizer, 64)
