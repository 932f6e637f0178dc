"""Trainings by train.py and test.py in processes of their own: started, resumed, collected.

A trial is one training with its scores: a variant (a position scheme, say), a seed and the whole
config. In a folder:

    <output_dir>/runs/<variant>_seed<seed>_<digest of the config>/
        config.json, config.py      the resolved config, and a config file that reads it
        <name>_<date>_<time>/       the run itself, as train.py makes it
        train.log, train.out        the output of train.py
        attempts.json               its processes: seconds, peak memory, how many ran at once
        test.log, scored.json       the output of test.py, and its settings

A trial that is done is not run again. One that was cut short is resumed from its last checkpoint.
If only the search changes, a trial is scored again, not trained.
"""

import contextlib
import ctypes
import fnmatch
import glob
import hashlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from operator import getitem
from pathlib import Path
from statistics import fmean, median
from typing import Any

from checkpoints.run import DamagedError, Run
from configs.load import read_config_json, write_config_json
from configs.schema import NO_NEIGHBOURS, OF_BLEU, Config
from configs.serialize import leaves, to_dict
from translation.settings import search_name
from utils.cli import cores, signals_to, stops
from utils.errors import ConfigError, UserError
from utils.files import lock, write_text

ROOT = Path(__file__).resolve().parents[1]
POLL_S = 0.2
CHECKPOINTS = "checkpoints/*_checkpoint_*.pt"  # of a run
# Only on Linux: a signal to this process when the one that started it is killed.
PRCTL, PR_SET_PDEATHSIG = getattr(ctypes.CDLL(None), "prctl", None), 1
# Newer fields at the values that stand for what there was before.
AS_BEFORE: tuple[tuple[str, str, object], ...] = (
    *(("evaluate", "choose_by", "loss"), ("evaluate", "every_steps", None)),
    *(("model", "gated", False), ("model", "layer_norm", "standard")),
    *(("tokenizer", "quotes", "keep"), ("tokenizer", "joint", True)),
    *(("tokenizer", "max_pairs", None), ("train", "freeze", []), ("evaluate", "also", [])),
    *(("tokenizer", "symbols", []), ("decode", "neighbours", to_dict(NO_NEIGHBOURS))),
    *(("decode", "no_repeat_ngram_size", 0), ("data.clean", "damaged", False)),
)
BUSY = "another process is at work in "
UNSEEN = {"seconds": None, "peak_mb": None, "jobs": 1}  # an attempt of which nothing is known

# These fields, `name` and `decode` do not change what a training learns.
NEUTRAL = {
    "data": ("cache_dir", "num_workers"),
    "evaluate": ("also", "batch_size", "bleu_*", "bootstrap_samples", "length_buckets"),
    "train": ("checkpoint_every_*", "cuda_graphs", "keep_*", "log_*", "runs_dir"),
}

CONFIG_FILE = '''"""The config of this trial, as data beside this file."""

from pathlib import Path

from configs.load import read_config_json

config = read_config_json(Path(__file__).with_name("config.json"))
'''


def training_digest(config: Config) -> str:
    """A hash of all that decides what a training learns."""
    data = as_before(config)
    if config.evaluate.choose_by != "loss":
        fields = dict(leaves(data, ""))
        data["chosen_by"] = [fields[key] for key in OF_BLEU if key in fields]
    del data["name"], data["decode"]
    for section, patterns in NEUTRAL.items():
        for pattern in patterns:
            for name in fnmatch.filter(data[section], pattern):
                del data[section][name]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:10]


def as_before(config: Config) -> dict[str, Any]:
    """As `to_dict`, without newer fields at their defaults, so that older digests still hold."""
    data = to_dict(config)
    for place, name, default in AS_BEFORE:
        section = reduce(getitem, place.split("."), data)
        if section.get(name, ...) == default:
            del section[name]
    return data


class Failed(UserError):
    """A trial could not be done."""


@dataclass(frozen=True)
class Trial:
    """One training and its scores."""

    variant: str
    seed: int
    config: Config
    output_dir: Path
    tests: tuple[str, ...]  # the corpus's test splits; none: they are not scored
    splits: tuple[str, ...]  # these, and others that are scored as well
    search: str = "beam"
    average: int = 0  # score the mean of so many of the last checkpoints; 0: the best one
    weights_of: str = ""  # training_digest of another trial, if this one is not trained itself

    @property
    def title(self) -> str:
        return f"{self.variant}, seed {self.seed}"

    @cached_property
    def folder(self) -> Path:
        """The folder of a trial with this config, existing or to be made.

        The config inside identifies it: a trial is found again after the schema gains a field.
        """
        wanted = training_digest(self.config)
        label = f"{self.variant.replace(os.sep, '_')[:200]}_seed{self.seed}_"
        parent = self.output_dir / "runs"
        own = parent / f"{label}{wanted}"
        for folder in [own, *sorted(parent.glob(f"{glob.escape(label)}*"))]:
            with contextlib.suppress(ConfigError):
                if training_digest(read_config_json(folder / "config.json")) == wanted:
                    return folder
        return own

    def write_config(self) -> None:
        """Write the config into the folder, which is made."""
        train = replace(self.config.train, runs_dir=str(self.folder))
        config, file = replace(self.config, train=train), self.folder / "config.json"
        with contextlib.suppress(ConfigError):  # a resumed run keeps its name
            config = replace(config, name=read_config_json(file).name)
        write_config_json(config, file)
        write_text(self.folder / "config.py", CONFIG_FILE)

    def finished_run(self) -> Path | None:
        return finished_run(self.folder)

    @property
    def run(self) -> Path:
        """The finished run. Raises Failed where there is none."""
        run = self.finished_run()
        if run is None:
            raise Failed(f"{self.title} is not trained")
        return run

    def unfinished_run(self) -> Path | None:
        """The run with the newest checkpoint."""
        paths = self.folder.glob(f"*/{CHECKPOINTS}")
        newest = max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)
        return newest.parents[1] if newest else None

    def scoring(self) -> dict[str, Any]:
        """All that decides the scores of a trained model."""
        data = as_before(self.config)
        sections = {name: data[name] for name in ("decode", "evaluate")}
        rare = {"average": self.average, "weights_of": self.weights_of}
        rare = {name: value for name, value in rare.items() if value}
        return {"search": self.search, "splits": list(self.splits), **rare, **sections}

    @property
    def digest(self) -> str:
        """A hash of all that decides the scores."""
        decides = [training_digest(self.config), self.scoring()]
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:10]

    def is_scored(self) -> bool:
        scored = _read_json(self.folder / "scored.json")
        if self.finished_run() is None or scored != self.scoring():
            return False
        return all(self.result_file(split, "_scores.json").is_file() for split in self.splits)

    def result_file(self, split: str, suffix: str) -> Path:
        """A file that test.py writes: _scores.json, .src.txt, .ref.txt or .hyp.txt."""
        search = search_name(self.search, self.config.decode)
        return self.run / "results" / f"{split.replace(os.sep, '_')}_{search}{suffix}"

    def lines(self, split: str, what: str) -> list[str]:
        return self.result_file(split, f".{what}.txt").read_text("utf-8").split("\n")[:-1]

    def scores(self, split: str) -> dict[str, Any]:
        return json.loads(self.result_file(split, "_scores.json").read_text("utf-8"))

    def attempts(self) -> list[dict[str, Any]]:
        """The processes that trained; None for figures not known, as nobody saw the end."""
        return _read_json(self.folder / "attempts.json") or [UNSEEN]

    def training(self) -> dict[str, Any]:
        """The cost and the results of the finished training; None for figures not known."""
        log = [json.loads(x) for x in _read(self.run / "logs" / "metrics.jsonl").splitlines()]
        updates = [line for line in log if line["kind"] == "train" and line["step"] > 1]
        speeds = [line["tokens_per_second"] for line in updates]  # target tokens
        validated = [line for line in reversed(log) if line["kind"] == "validation"]
        # Of the best checkpoint, which train.log names where others were averaged and it is gone;
        # none where validation was off.
        named, told = str(Run(self.run).best()), _read(self.folder / "train.log")
        by = "step" if self.config.evaluate.every_steps else "epoch"
        [number] = re.findall(r"/best_(?:step_)?checkpoint_(\d+)_", told + named)[-1:] or [None]
        best: dict[str, Any] = next((line for line in validated if str(line[by]) == number), {})
        losses = [line["loss"] for line in updates if line["epoch"] == best.get("epoch")]
        if self.config.evaluate.every_steps and best:
            since = max((v["step"] for v in validated if v["step"] < best["step"]), default=0)
            losses = [line["loss"] for line in updates if since < line["step"] <= best["step"]]
        parameters = re.findall(r": ([\d,]+) parameters", told)
        attempts = self.attempts()
        seconds, peaks = ([each[key] for each in attempts] for key in ("seconds", "peak_mb"))
        return {
            "parameters": int(parameters[-1].replace(",", "")) if parameters else None,
            "training_loss": fmean(losses) if losses else None,  # of that epoch, or up to that step
            "validation_loss": best.get("loss"),
            "validation_accuracy": best.get("accuracy"),
            "tokens_per_second": median(speeds) if speeds else None,
            "peak_memory_mb": max(filter(None, peaks), default=None),  # MiB, not of a GPU
            "train_minutes": None if None in seconds else sum(seconds) / 60,
            "jobs": max(each["jobs"] for each in attempts),  # at once
            "cores": max(each.get("cores", 0) for each in attempts),  # 0: not known
        }


def finished_run(folder: Path) -> Path | None:
    """A trial's run, if the training has finished: train.py then prints the run's folder."""
    printed = _read(folder / "train.out").split("\n")[:-1]
    run = folder / Path(printed[-1]).name if printed else None
    return run if run is not None and any(run.glob(CHECKPOINTS)) else None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def _read_json(path: Path) -> Any:
    """The content of a JSON file; None if it is missing or damaged."""
    with contextlib.suppress(ValueError):
        return json.loads(_read(path))
    return None


@dataclass
class Runner:
    """Runs trials, each in a thread that waits for its processes.

    Signals that end a program are passed on to the processes, which save and end. They also do so
    if this process is killed.
    """

    jobs: int  # trials at once
    threads: int  # of each process
    failures: dict[str, str]  # by the titles of trials that failed; the others go on
    ended: Callable[[Trial], object]  # called with each trial that ran, successfully or not
    signals: list[int] = field(default_factory=list)  # those that ended the trials
    _began: float = field(default_factory=time.monotonic)
    _places: dict[str, str] = field(default_factory=dict)  # by titles: "3/7"
    _own: threading.local = field(default_factory=threading.local)  # of a thread: its GPU

    def run(self, trials: Sequence[Trial]) -> None:
        """Run the trials that are not done yet."""
        self._places = {trial.title: f"{i}/{len(trials)}" for i, trial in enumerate(trials, 1)}
        waiting = [trial for trial in trials if not trial.is_scored()]
        if len(waiting) < len(trials):
            say(f"runs done already: {len(trials) - len(waiting)} of {len(trials)}")
        with signals_to(self._stop, *stops()), self._pool() as pool:
            try:
                futures = {pool.submit(self._do, trial): trial for trial in waiting}
                for future in as_completed(futures):
                    future.result()
                    with contextlib.suppress(Failed):  # damaged: told once the others have ended
                        self.ended(futures[future])
            except BaseException:
                if not self.signals:
                    self._stop(signal.SIGTERM)
                raise

    def _pool(self) -> ThreadPoolExecutor:
        """A thread for each trial at once. They share the GPUs in turn, where there are several."""
        names = gpus() if self.jobs > 1 else []
        turns = itertools.cycle(names)

        def begin() -> None:
            if len(names) > 1:
                self._own.gpu = {"CUDA_VISIBLE_DEVICES": next(turns)}

        return ThreadPoolExecutor(self.jobs, initializer=begin)

    def _do(self, trial: Trial) -> None:
        if self.signals:
            return
        began = time.monotonic()
        trial.folder.mkdir(parents=True, exist_ok=True)
        try:
            with (trial.folder / "lock").open("a") as file:
                # The trial's processes inherit it: it holds until all of them have gone.
                lock(file, wait=False)
                if trial.is_scored():  # by another process, meanwhile
                    return
                trial.write_config()
                if trial.finished_run() is None:
                    (trial.folder / "scored.json").unlink(missing_ok=True)  # of a run that is gone
                    self._train(trial, file.fileno())
                self._score(trial, file.fileno())
        except (Failed, BlockingIOError) as error:
            busy = f"{BUSY}{trial.folder}"
            failure = busy if isinstance(error, BlockingIOError) else str(error)
            if not self.signals:
                self.failures[trial.title] = failure
            self._say(trial, "stopped" if self.signals else f"failed: {failure}")
        except BaseException:  # from this program or the disk: stop before the next trial
            if not self.signals:
                self._stop(signal.SIGTERM)
            raise
        else:
            self._say(trial, f"done in {(time.monotonic() - began) / 60:.1f} min")

    def _train(self, trial: Trial, lock: int) -> None:
        begun = trial.unfinished_run()
        attempts = trial.attempts() if begun else []
        source = ["--config", str(trial.folder / "config.py")]
        self._say(trial, f"training ({trial.folder / 'train.log'})")
        if begun:
            source += ["--resume", "auto"]  # no error if only the end of its output was cut off
            self._say(trial, f"goes on with {begun}: delete it to begin again")
        attempt = {"seconds": None, "peak_mb": None, "jobs": self.jobs, "cores": cores()}
        path = trial.folder / "attempts.json"
        write_text(path, json.dumps([*attempts, attempt]) + "\n")
        try:
            self._run(trial, lock, "train", *source, measured=attempt)
        finally:
            write_text(path, json.dumps([*attempts, attempt]) + "\n")

    def _score(self, trial: Trial, lock: int) -> None:
        self._say(trial, "scoring")
        scored_file = trial.folder / "scored.json"
        if (before := _read_json(scored_file)) is not None:
            if (last := before.get("average", 0)) != trial.average:
                what = f"the mean of {last} checkpoints" if last else "its best checkpoint"
                what = f"{trial.run} was scored by {what}, and other checkpoints are gone"
                raise Failed(f"{what}: delete it to train it again")
            write_text(scored_file, json.dumps({"average": last}) + "\n")  # until scoring is done
        arguments = ["--search", trial.search, "--device", trial.config.train.device]
        arguments += ["--config", str(trial.folder / "config.py"), "--model_path"]
        (trial.folder / "test.log").unlink(missing_ok=True)
        named = [["--split", name] for name in trial.splits[len(trial.tests) :]]
        model = trial.run
        saved = _read_json(Run(model).config_file)
        if saved and trial.average > (kept := saved["train"]["keep_regular"]):
            what = f"{model} kept {kept} checkpoints, too few for a mean of {trial.average}"
            raise Failed(f"{what}: delete it to train it again")
        try:
            model = averaged(Run(model), trial.average)
            for split in [[], *named] if trial.tests else named:
                self._run(trial, lock, "test", *arguments, str(model), *split, measured={})
        except UserError as error:
            damaged = isinstance(error, DamagedError) or (not self.signals and is_damaged(model))
            again = f"; delete {trial.run} to train it again"
            raise Failed(f"{error}{again * damaged}") from None
        write_text(scored_file, json.dumps(trial.scoring()) + "\n")
        # Remove all other checkpoints: with optimizer state they are the bulk of a run.
        scored = trial.scores(trial.splits[0])["checkpoint"]
        for path in trial.run.glob(CHECKPOINTS):
            if path.name != scored:
                path.unlink()

    def _run(
        self, trial: Trial, lock: int, script: str, *arguments: str, measured: dict[str, Any]
    ) -> None:
        """Wait for a script; its output goes to files in the trial's folder. May raise Failed."""
        threads = str(self.threads)
        free = trial.config.train.device in ("auto", "cuda")
        own = getattr(self._own, "gpu", {}) if free else {}
        log_file = trial.folder / f"{script}.log"
        began = time.monotonic()
        with (trial.folder / f"{script}.out").open("wb") as out, log_file.open("ab") as log:
            before = log.tell()
            process = subprocess.Popen(
                [sys.executable, ROOT / f"{script}.py", *arguments, "--threads", threads],
                env={**os.environ, **own, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                process_group=0,  # Ctrl-C reaches this process, which passes it on once to each
                pass_fds=(lock,),
                preexec_fn=PRCTL and partial(PRCTL, PR_SET_PDEATHSIG, signal.SIGTERM),
            )
        n_sent, peak_mb = 0, None
        while process.poll() is None:
            # Not ru_maxrss, which starts at what this process holds. Only Linux has VmHWM.
            if found := re.search(r"VmHWM:\s+(\d+)", _read(Path(f"/proc/{process.pid}/status"))):
                peak_mb = int(found[1]) / 2**10
            time.sleep(POLL_S)
            while n_sent < len(self.signals):
                interrupted = self.signals[n_sent] == signal.SIGINT
                os.kill(process.pid, signal.SIGINT if interrupted else signal.SIGTERM)
                n_sent += 1
        measured.update(seconds=time.monotonic() - began, peak_mb=peak_mb)
        if process.returncode:
            said = log_file.read_bytes()[before:].decode("utf-8", "replace")
            raise Failed(reason(process.returncode, said))

    def _stop(self, number: int, frame: object = None) -> None:
        self.signals.append(number)
        name = signal.Signals(number).name
        with contextlib.suppress(OSError):  # Ctrl-C ends `| tee` too
            os.write(2, f"\n{name}: waiting for the running processes to save and end\n".encode())

    def _say(self, trial: Trial, what: str) -> None:
        minutes = (time.monotonic() - self._began) / 60
        say(f"[{self._places[trial.title]}] {minutes:.1f} min | {trial.title}: {what}")


def gpus() -> list[str]:
    """The GPUs that a program may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        import torch

        named = ",".join(map(str, range(torch.cuda.device_count())))
    return [name for name in named.split(",") if name]


def averaged(run: Run, last: int) -> Path:
    """A checkpoint with the mean weights of the `last` of `Run.ends`; the run if last is 0.

    If there are fewer, the mean is of those; if there is one, it is the run itself.
    """
    there = next(run.checkpoints.glob(f"averaged_checkpoint_last{last}_*.pt"), None)
    if there or not last:
        return there or run.path
    if len(ends := run.ends()[-last:]) < 2:
        return run.path
    from checkpoints.average import average_checkpoints, write_average  # imports torch

    return write_average(run, average_checkpoints(ends), how=f"last{last}")


def is_damaged(model: Path) -> bool:
    """Whether a checkpoint, or the one that a run stands for, is damaged."""
    from checkpoints.content import read_checkpoint  # imports torch
    from checkpoints.resolve import resolve_checkpoint

    try:
        read_checkpoint(resolve_checkpoint(model, prefer="best")[0])
    except UserError as error:
        return isinstance(error, DamagedError)
    return False


def reason(code: int, said: str) -> str:
    """Why a process failed, in one line: its own last line, or the signal that ended it."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [f"exit code {code}"])[-1][:300]


def say(line: str) -> None:
    """Print a line of progress in one piece, if anybody reads: several threads may print."""
    with contextlib.suppress(OSError):
        print(f"{line}\n", end="", file=sys.stderr, flush=True)
