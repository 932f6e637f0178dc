"""Trainings by train.py and test.py in processes of their own: started, resumed, collected.

A trial is one training with its scores: a variant (a position scheme, say), a seed and the whole
config. In a folder:

    <output_dir>/runs/<variant>_seed<seed>_<digest of the config>/
        config.json, config.py      the resolved config, and a config file that reads it
        <name>_<date>_<time>/       the run itself, as train.py makes it
        train.log, train.out        what train.py said; attempts.json: how long, how much memory
        test.log, scored.json       what test.py said, and with which settings

A trial that is done is not run again. One that was cut short goes on from its last checkpoint. The
digest leaves out what does not change the training (places, logging, the search), so a changed
search alone scores again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import fnmatch
import hashlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from configs.load import read_config_json, write_config_json
from configs.schema import Config
from configs.serialize import to_dict
from utils.errors import ConfigError
from utils.files import write_text

# Nothing here imports torch: until it executes another program a child counts its parent's memory
# as its own peak.

ROOT = Path(__file__).resolve().parents[1]
POLL_S = 0.2
LEFT = "left_"  # begins the name of a run that cannot go on
RESULT_FILES = ("_scores.json", ".src.txt", ".ref.txt", ".hyp.txt")  # of test.py, for each split

# Fields that change nothing of what a training learns, by section; nor do `name` and `decode`.
NEUTRAL = {
    "data": ("cache_dir", "num_workers"),
    "evaluate": ("batch_size", "bleu_*", "bootstrap_samples", "length_buckets"),
    "train": ("checkpoint_every_*", "keep_*", "log_*", "runs_dir"),
}

CONFIG_FILE = '''"""The config of this trial, as data beside this file."""

import json
from pathlib import Path

from configs.serialize import from_dict

config = from_dict(json.loads(Path(__file__).with_name("config.json").read_text("utf-8")))
'''


def training_digest(config: Config) -> str:
    """A hash of all that decides what a training learns."""
    data = to_dict(config)
    del data["name"], data["decode"]
    for section, patterns in NEUTRAL.items():
        neutral = [
            field for pattern in patterns for field in fnmatch.filter(data[section], pattern)
        ]
        data[section] = {key: data[section][key] for key in data[section].keys() - neutral}
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:10]


class Failed(Exception):
    """Why a trial could not be done, in one line."""


@dataclass(frozen=True)
class Trial:
    """One training and its scores."""

    variant: str
    seed: int
    config: Config
    output_dir: Path
    tests: tuple[str, ...]  # the corpus's test splits
    more_splits: tuple[str, ...] = ()  # scored as well
    search: str = "beam"

    @property
    def title(self) -> str:
        return f"{self.variant}, seed {self.seed}"

    @property
    def splits(self) -> tuple[str, ...]:
        return (*self.tests, *self.more_splits)

    @cached_property
    def folder(self) -> Path:
        """The folder of a trial with this config, or where it will be.

        Known by the config inside: a trial is found again when the schema has got a new field.
        """
        wanted = training_digest(self.config)
        label = f"{self.variant}_seed{self.seed}_"
        parent = self.output_dir / "runs"
        own = parent / f"{label}{wanted}"
        for folder in [own, *sorted(parent.glob(f"{label}*"))]:
            with contextlib.suppress(ConfigError):
                if training_digest(read_config_json(folder / "config.json")) == wanted:
                    return folder
        return own

    @contextlib.contextmanager
    def lock(self) -> Iterator[int]:
        """Lock the folder, which is made. Raises Failed where another process has locked it.

        The trial's processes inherit the descriptor: the lock holds until all of them have gone.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Failed(f"another process is at work in {self.folder}") from None
            yield file.fileno()

    def write_config(self) -> None:
        """Write the config into the folder, which is made."""
        train = dataclasses.replace(self.config.train, runs_dir=str(self.folder))
        config = dataclasses.replace(self.config, train=train)
        write_config_json(config, self.folder / "config.json")
        write_text(self.folder / "config.py", CONFIG_FILE)

    def finished_run(self) -> Path | None:
        """The run's folder, if its training came to its end: train.py then prints the folder."""
        printed = _read(self.folder / "train.out").split("\n")[:-1]
        run = self.folder / Path(printed[-1]).name if printed else None
        return run if run is not None and checkpoints(run) else None

    def unfinished_run(self) -> Path | None:
        """The run with the newest checkpoint that can go on."""
        paths = [path for run in self.folder.glob("*") for path in checkpoints(run)]
        paths = [path for path in paths if not path.parents[1].name.startswith(LEFT)]
        newest = max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)
        return newest.parents[1] if newest else None

    def scoring(self) -> dict[str, Any]:
        """All that decides the scores of a trained model."""
        config = self.config
        sections = {"decode": to_dict(config.decode), "evaluate": to_dict(config.evaluate)}
        return {"search": self.search, "splits": list(self.splits), **sections}

    @property
    def run(self) -> Path:
        """The folder of the finished run."""
        run = self.finished_run()
        assert run is not None, self.title
        return run

    def result_file(self, split: str, suffix: str) -> Path:
        """A file that test.py writes beside the finished run: see RESULT_FILES."""
        return self.run / "results" / f"{split.replace(os.sep, '_')}_{self.search}{suffix}"

    def is_scored(self) -> bool:
        if self.finished_run() is None or _read_json(self.folder / "scored.json") != self.scoring():
            return False
        names = [(split, suffix) for split in self.splits for suffix in RESULT_FILES]
        return all(self.result_file(*name).is_file() for name in names)

    def lines(self, split: str, what: str) -> list[str]:
        """The scored sentences of a split: `what` is src, ref or hyp."""
        return self.result_file(split, f".{what}.txt").read_text("utf-8").split("\n")[:-1]

    def attempts(self) -> list[dict[str, Any]]:
        """The processes that trained: their begin, seconds, peak memory, how many ran at once.

        The seconds of one whose end nobody saw are those until it last wrote to its log.
        """
        attempts = _read_json(self.folder / "attempts.json") or []
        log = self.folder / "train.log"
        for attempt in attempts:
            if attempt["seconds"] is None:
                ended = log.stat().st_mtime if log.exists() else 0.0
                attempt["seconds"] = max(0.0, ended - attempt["began"])
        return attempts

    def scores(self, split: str) -> dict[str, Any]:
        """The record of test.py."""
        return json.loads(self.result_file(split, "_scores.json").read_text("utf-8"))

    def training(self) -> dict[str, Any]:
        """What the finished training took and reached; None for what is not known."""
        log = _read(self.run / "logs" / "metrics.jsonl")
        lines = [json.loads(line) for line in log.splitlines()]
        updates = [line for line in lines if line["kind"] == "train" and line["step"] > 1]
        speeds = [line["tokens_per_second"] for line in updates]  # target tokens
        # The lowest is that of the checkpoint that was scored.
        losses = [line["loss"] for line in lines if line["kind"] == "validation"]
        parameters = re.findall(r": ([\d,]+) parameters", _read(self.folder / "train.log"))
        attempts = self.attempts()
        peaks = [attempt["peak_mb"] for attempt in attempts if attempt["peak_mb"] is not None]
        return {
            "parameters": int(parameters[-1].replace(",", "")) if parameters else None,
            "validation_loss": min(losses, default=None),
            "tokens_per_second": statistics.median(speeds) if speeds else None,
            "peak_memory_mb": max(peaks, default=None),  # of the host, not of a GPU
            "train_minutes": sum(attempt["seconds"] for attempt in attempts) / 60,
            "jobs": max((attempt["jobs"] for attempt in attempts), default=1),  # side by side
        }

    def keep_scored_checkpoint(self) -> None:
        """Remove all other checkpoints: with optimizer state they are the bulk of a run."""
        scored = self.scores(self.splits[0])["checkpoint"]
        for path in checkpoints(self.run):
            if path.name != scored:
                path.unlink()


def checkpoints(run: Path) -> list[Path]:
    """The checkpoint files of a run's folder, in no order."""
    return list(run.glob("checkpoints/*_checkpoint_*.pt"))


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


# ------------------------------------------------------------------------------------------ running


class Ended(NamedTuple):
    """A process that has ended: its exit code, standard error, and peak memory."""

    code: int
    said: str
    peak_mb: float

    def reason(self) -> str:
        """Why it failed, in one line: its own last word, or the signal that ended it."""
        if self.code < 0:
            name = signal.Signals(-self.code).name
            return f"ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        lines = [line.strip() for line in self.said.splitlines() if line.strip()]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return (errors or lines or [f"exit code {self.code}"])[-1][:300]


class Stopped(Exception):
    """A signal has ended the trials."""


@dataclass
class Runner:
    """Runs trials, `jobs` at once, each in a thread that waits for its processes.

    SIGINT, SIGTERM and SIGHUP are passed on to the processes, which save and end; `stopped` is then
    the signal.
    """

    jobs: int
    threads: int  # of each process
    failures: dict[str, str]  # by the titles of trials that failed; the others go on
    done: Callable[[], object]  # called after each trial
    stopped: int | None = None

    def __post_init__(self) -> None:
        self._began = time.monotonic()
        self._places: dict[str, str] = {}  # of the trials by their titles: "3/7"
        self._processes: set[subprocess.Popen[bytes]] = set()
        # Of _processes and `stopped`. A process leaves the set when its status is taken: until then
        # its number is not another's, and a signal goes to the right one.
        self._lock = threading.RLock()

    def run(self, trials: Sequence[Trial]) -> None:
        """Run what is not done yet."""
        self._places = {trial.title: f"{i}/{len(trials)}" for i, trial in enumerate(trials, 1)}
        waiting = [trial for trial in trials if not trial.is_scored()]
        if len(waiting) < len(trials):
            say(f"{len(trials) - len(waiting)} of {len(trials)} runs are done already")
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        heard = [n for n in signals if signal.getsignal(n) is not signal.SIG_IGN]  # nohup stays
        previous = {number: signal.signal(number, self._stop) for number in heard}
        try:
            with ThreadPoolExecutor(self.jobs) as pool:
                try:
                    self._collect({pool.submit(self._train_and_score, t): t for t in waiting})
                except BaseException:  # an error of this program or of the disk
                    self._stop(signal.SIGTERM)
                    raise
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _collect(self, trials: dict[Any, Trial]) -> None:
        """Say and note how each of the trials (by their futures) has ended."""
        seconds: list[float] = []
        for left, future in zip(reversed(range(len(trials))), as_completed(trials)):
            try:
                seconds.append(future.result())
            except Stopped:
                continue
            except Failed as error:
                self.failures[trials[future].title] = str(error)
                self._say(trials[future], f"failed: {error}")
            else:
                ahead = statistics.fmean(seconds) * left / self.jobs / 60
                more = f", about {ahead:.0f} min left" if left else ""
                self._say(trials[future], f"done in {seconds[-1] / 60:.1f} min{more}")
            self.done()

    def _train_and_score(self, trial: Trial) -> float:
        """The seconds that it took. Raises Failed, and Stopped."""
        if self.stopped is not None:
            raise Stopped
        began = time.monotonic()
        with trial.lock() as lock:
            try:
                trial.write_config()
                if trial.finished_run() is None:
                    self._train(trial, lock, resume=trial.unfinished_run())
                self._score(trial, lock)
            except Stopped:
                self._say(trial, "stopped")
                raise
        return time.monotonic() - began

    def _train(self, trial: Trial, lock: int, *, resume: Path | None) -> None:
        folder = trial.folder
        if resume is None:
            attempts, doing = [], "training"
            source = ["--config", str(folder / "config.py")]
        else:
            attempts, doing = trial.attempts(), "training goes on"
            source = ["--resume", str(resume)]
        attempt = {"began": time.time(), "seconds": None, "peak_mb": None, "jobs": self.jobs}
        attempts.append(attempt)
        write_text(folder / "attempts.json", json.dumps(attempts) + "\n")
        self._say(trial, f"{doing} ({folder / 'train.log'})")
        began = time.monotonic()
        ended = self._run(trial, lock, "train", *source)
        attempt.update(seconds=time.monotonic() - began, peak_mb=ended.peak_mb)
        write_text(folder / "attempts.json", json.dumps(attempts) + "\n")
        if ended.code and self.stopped is None and resume and " parameters, " not in ended.said:
            # It did not come as far as training: the present code and data cannot go on with it.
            self._say(trial, f"{ended.reason()}; starting again")
            resume.rename(resume.with_name(f"{LEFT}{resume.name}"))
            self._train(trial, lock, resume=None)
            return
        self._check(ended)
        if trial.finished_run() is None:
            raise Failed(f"train.py left no run in {folder}")

    def _score(self, trial: Trial, lock: int) -> None:
        arguments = ["--model_path", str(trial.run), "--config", str(trial.folder / "config.py")]
        arguments += ["--search", trial.search, "--device", trial.config.train.device]
        self._say(trial, "scoring")
        (trial.folder / "test.log").unlink(missing_ok=True)
        for split in ([], *(["--split", name] for name in trial.more_splits)):
            self._check(self._run(trial, lock, "test", *arguments, *split))
        write_text(trial.folder / "scored.json", json.dumps(trial.scoring()) + "\n")
        trial.keep_scored_checkpoint()

    def _check(self, ended: Ended) -> None:
        if ended.code and self.stopped is not None:
            raise Stopped
        if ended.code:
            raise Failed(ended.reason())

    def _run(self, trial: Trial, lock: int, script: str, *arguments: str) -> Ended:
        """Wait for a script of the project. What it says goes to files in the trial's folder."""
        threads = str(self.threads)
        log_file = trial.folder / f"{script}.log"
        with (trial.folder / f"{script}.out").open("wb") as out, log_file.open("ab") as log:
            before = log.tell()
            with self._lock:
                if self.stopped is not None:
                    raise Stopped
                process = subprocess.Popen(
                    [sys.executable, ROOT / f"{script}.py", *arguments, "--threads", threads],
                    env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=log,
                    # Ctrl-C in the terminal reaches us, and from here each process once.
                    start_new_session=True,
                    pass_fds=(lock,),
                )
                self._processes.add(process)
        while process.returncode is None:
            time.sleep(POLL_S)
            with self._lock:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    self._processes.remove(process)
        peak_mb = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        said = log_file.read_bytes()[before:].decode("utf-8", "replace")
        return Ended(process.returncode, said, peak_mb)

    def _stop(self, number: int, frame: object = None) -> None:
        """Pass a signal on, to the processes there are, and begin no more."""
        with self._lock:
            self.stopped = number
            for process in self._processes:
                os.kill(process.pid, number)
        name = signal.Signals(number).name
        os.write(2, f"\n{name}: waiting for the running processes to save and end\n".encode())

    def _say(self, trial: Trial, what: str) -> None:
        minutes = (time.monotonic() - self._began) / 60
        say(f"[{self._places[trial.title]}] {minutes:.1f} min | {trial.title}: {what}")


def say(line: str) -> None:
    """Print a line of progress, in one piece: several threads may speak."""
    print(f"{line}\n", end="", file=sys.stderr, flush=True)
