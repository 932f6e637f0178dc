"""Many trainings of one config, by `train.py` and `test.py` in processes of their own: started,
resumed, collected.

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

import argparse
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.load import load_config, write_config_json
from configs.positions import POSITIONS
from configs.schema import Config
from configs.serialize import from_dict, parse_override, to_dict
from utils.cli import Parser, positive
from utils.errors import ConfigError, UserError
from utils.files import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Nothing here imports torch: until it executes another program a child counts its parent's memory
# as its own peak.

ROOT = Path(__file__).resolve().parents[1]
POLL_S = 0.2
LEFT = "left_"  # begins the name of a run that cannot go on

# Fields that change nothing of what a training learns.
NEUTRAL = (
    "name",
    "decode",
    "evaluate.bleu_every_epochs",
    "evaluate.bleu_sentences",
    "evaluate.batch_size",
    "evaluate.bootstrap_samples",
    "evaluate.length_buckets",
    "train.runs_dir",
    "train.log_every",
    "train.log_attention",
    "train.checkpoint_every_epochs",
    "train.checkpoint_every_steps",
    "train.keep_regular",
    "train.keep_best",
    "data.num_workers",
    "data.cache_dir",
)
PLACES = (
    "data.corpus.root",
    "data.corpus.path",
    "data.cache_dir",
    "train.runs_dir",
)  # not worth a word in a report

CONFIG_FILE = '''"""The config of this trial, as data beside this file."""

import json
from pathlib import Path

from configs.serialize import from_dict

config = from_dict(json.loads(Path(__file__).with_name("config.json").read_text("utf-8")))
'''


# ------------------------------------------------------------------------------------------- trials


def training_digest(config: Config) -> str:
    """A hash of all that decides what a training learns."""
    data = to_dict(config)
    for key in NEUTRAL:
        *outer, last = key.split(".")
        node = data
        for part in outer:
            node = node[part]
        node.pop(last, None)
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:10]


@dataclass(frozen=True)
class Trial:
    """One training and its scores. `tests`: the corpus's test splits; `more_splits` are scored as
    well.
    """

    variant: str
    seed: int
    config: Config
    output_dir: Path
    tests: tuple[str, ...]
    more_splits: tuple[str, ...] = ()
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

        Known by the config inside, so that a trial is found again when the schema has got a new
        field since.
        """
        wanted = training_digest(self.config)
        label = f"{self.variant}_seed{self.seed}_"
        parent = self.output_dir / "runs"
        own = parent / f"{label}{wanted}"
        for folder in [own, *sorted(parent.glob(f"{label}*"))]:
            try:
                stored = from_dict(json.loads((folder / "config.json").read_text("utf-8")))
            except (OSError, ValueError, ConfigError):
                continue
            if training_digest(stored) == wanted:
                return folder
        return own

    def prepare(self) -> None:
        """Make the folder and write the config into it. Raises UserError where that cannot be done."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            train = dataclasses.replace(self.config.train, runs_dir=str(self.folder))
            write_config_json(
                dataclasses.replace(self.config, train=train), self.folder / "config.json"
            )
        except OSError as error:
            raise UserError(
                f"cannot write {self.folder}: {error.strerror}; give another --output_dir"
            ) from error
        write_text(self.folder / "config.py", CONFIG_FILE)

    def finished_run(self) -> Path | None:
        """The run's folder, if its training came to its end: train.py then prints the folder."""
        said = _read(self.folder / "train.out").split("\n")[:-1]
        run = self.folder / Path(said[-1]).name if said else None
        return run if run is not None and any(_checkpoints(run)) else None

    def unfinished_run(self) -> Path | None:
        """The newest run that can go on."""
        runs = [
            run
            for run in self.folder.glob("*")
            if any(_checkpoints(run)) and not run.name.startswith(LEFT)
        ]
        return max(
            runs,
            key=lambda run: max(path.stat().st_mtime_ns for path in _checkpoints(run)),
            default=None,
        )

    def scoring(self) -> dict[str, Any]:
        """All that decides the scores of a trained model."""
        settings: dict[str, Any] = {"search": self.search, "splits": self.splits}
        settings |= {
            "decode": to_dict(self.config.decode),
            "evaluate": to_dict(self.config.evaluate),
        }
        return json.loads(json.dumps(settings))  # as it is read back

    def result_file(self, split: str, suffix: str) -> Path:
        """A file that test.py writes beside the finished run."""
        run = self.finished_run()
        assert run is not None, self.title
        return run / "results" / f"{split.replace(os.sep, '_')}_{self.search}{suffix}"

    def is_scored(self) -> bool:
        if self.finished_run() is None or _read_json(self.folder / "scored.json") != self.scoring():
            return False
        suffixes = ("_scores.json", ".src.txt", ".ref.txt", ".hyp.txt")
        return all(
            self.result_file(split, suffix).is_file()
            for split in self.splits
            for suffix in suffixes
        )

    def lines(self, split: str, what: str) -> list[str]:
        """The scored sentences of a split: `what` is src, ref or hyp."""
        return self.result_file(split, f".{what}.txt").read_text("utf-8").split("\n")[:-1]

    def result(self) -> Result | None:
        """What the trial found; None where it is not done."""
        run = self.finished_run()
        if run is None or not self.is_scored():
            return None
        log = [json.loads(line) for line in _read(run / "logs" / "metrics.jsonl").splitlines()]
        speeds = [
            line["tokens_per_second"]
            for line in log
            if line["kind"] == "train" and line["step"] > 1
        ]
        losses = [line["loss"] for line in log if line["kind"] == "validation"]
        attempts = self.attempts()
        peaks = [attempt["peak_mb"] for attempt in attempts if attempt["peak_mb"] is not None]
        parameters = re.findall(r": ([\d,]+) parameters", _read(self.folder / "train.log"))
        return Result(
            trial=self,
            run=run,
            parameters=int(parameters[-1].replace(",", "")) if parameters else None,
            validation_loss=min(losses, default=None),
            tokens_per_second=statistics.median(speeds) if speeds else None,
            peak_mb=max(peaks, default=None),
            minutes=sum(attempt["seconds"] for attempt in attempts) / 60,
            jobs=max((attempt["jobs"] for attempt in attempts), default=1),
            scores={
                split: json.loads(_read(self.result_file(split, "_scores.json")))
                for split in self.splits
            },
        )

    def attempts(self) -> list[dict[str, Any]]:
        """The processes that trained this run: when they began, seconds, peak memory, how many ran
        side by side.

        The seconds of one whose end nobody saw are those until it last wrote to its log.
        """
        attempts = _read_json(self.folder / "attempts.json") or []
        for attempt in attempts:
            if attempt["seconds"] is None:
                log = self.folder / "train.log"
                attempt["seconds"] = (
                    max(0.0, log.stat().st_mtime - attempt["began"]) if log.exists() else 0.0
                )
        return attempts


@dataclass(frozen=True)
class Result:
    """What a trial found. scores: the record of test.py for each split. None: not known."""

    trial: Trial
    run: Path
    parameters: int | None
    validation_loss: float | None  # the lowest, which is that of the checkpoint that was scored
    tokens_per_second: float | None  # target tokens in training, median over its log
    peak_mb: float | None  # of the training process (of the host, not of a GPU)
    minutes: float  # of training with its validation
    jobs: int  # trainings side by side
    scores: dict[str, dict[str, Any]]

    @property
    def provenance(self) -> dict[str, str]:
        return self.scores[self.trial.splits[0]]["provenance"]


def _checkpoints(run: Path) -> list[Path]:
    return list((run / "checkpoints").glob("*_checkpoint_*.pt"))


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


@dataclass
class _Active:
    """A trial at work. `commands` are yet to be run after the present one."""

    trial: Trial
    number: int
    lock: int
    commands: list[list[str]]
    began: float
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None
    log_start: int = 0
    process_began: float = 0.0
    resumed: Path | None = None


class Runner:
    """Runs trials one after another, or `jobs` at once. `say` prints a line; `done` is called after
    each trial.

    A trial that fails is noted in `failures` (by its title) and the others go on. SIGINT, SIGTERM
    and SIGHUP are passed on to the trainings, which save and end; `run` then returns the signal.
    """

    def __init__(
        self,
        *,
        jobs: int,
        threads: int | None,
        failures: dict[str, str],
        say: Callable[[str], None],
        done: Callable[[], None],
    ) -> None:
        self.jobs = jobs
        cores = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        self.threads = threads or max(1, cores // jobs)
        self.failures = failures
        self.say = say
        self.done = done
        self._active: list[_Active] = []
        self._received: int | None = None
        self._began = time.monotonic()
        self._seconds: list[
            float
        ] = []  # that the trials took which ended since this object was made

    def run(self, trials: Sequence[Trial]) -> int | None:
        """Run what is not done yet. None, or the signal that ended it."""
        waiting = [
            (number, trial) for number, trial in enumerate(trials, start=1) if not trial.is_scored()
        ]
        self.total, self.left = len(trials), len(waiting)
        self._seconds.clear()
        if self.left < self.total:
            self.say(f"{self.total - self.left} of {self.total} runs are done already")
        previous = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
                previous[number] = signal.signal(number, self._receive)
        try:
            while self._active or (waiting and self._received is None):
                while waiting and len(self._active) < self.jobs and self._received is None:
                    self._start(*waiting.pop(0))
                for active in list(self._active):
                    self._poll(active)
                time.sleep(POLL_S)
        finally:
            for active in self._active:  # only where an error of this program ends it
                if active.process is not None and active.process.returncode is None:
                    active.process.terminate()
                    active.process.wait()
                os.close(active.lock)
            for number, handler in previous.items():
                signal.signal(number, handler)
        return self._received

    def _receive(self, number: int, frame: Any) -> None:
        self._received = number
        for active in self._active:
            if active.process is not None and active.process.returncode is None:
                os.kill(active.process.pid, number)
        name = signal.Signals(number).name
        os.write(2, f"\n{name}: waiting for the running processes to save and end\n".encode())

    def _start(self, number: int, trial: Trial) -> None:
        trial.prepare()
        lock = os.open(trial.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            # The processes of the trial inherit the lock: it holds until all of them have gone,
            # whatever became of us.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            self._fail(number, trial, f"another process is at work in {trial.folder}")
            return
        active = _Active(trial, number, lock, [], began=time.monotonic())
        self._active.append(active)
        if trial.finished_run() is None:
            self._train(active, trial.unfinished_run())
        else:
            self._score(active)

    def _train(self, active: _Active, resume: Path | None) -> None:
        trial, folder = active.trial, active.trial.folder
        active.resumed = resume
        source = (
            ["--config", str(folder / "config.py")] if resume is None else ["--resume", str(resume)]
        )
        attempts = [] if resume is None else trial.attempts()
        attempts.append({"began": time.time(), "seconds": None, "peak_mb": None, "jobs": self.jobs})
        write_text(folder / "attempts.json", json.dumps(attempts) + "\n")
        doing = "training" if resume is None else "training goes on"
        self._say(active, f"{doing} ({folder / 'train.log'})")
        self._spawn(active, ["train.py", *source, "--threads", str(self.threads)])

    def _score(self, active: _Active) -> None:
        trial = active.trial
        run = trial.finished_run()
        command = ["test.py", "--model_path", str(run), "--config", str(trial.folder / "config.py")]
        command += [
            "--search",
            trial.search,
            "--threads",
            str(self.threads),
            "--device",
            trial.config.train.device,
        ]
        active.commands = [command, *([*command, "--split", split] for split in trial.more_splits)]
        self._say(active, "scoring")
        (trial.folder / "test.log").unlink(missing_ok=True)
        self._spawn(active, active.commands.pop(0))

    def _spawn(self, active: _Active, command: list[str]) -> None:
        script, *arguments = command
        name = script.removesuffix(".py")
        folder = active.trial.folder
        active.log = folder / f"{name}.log"
        threads = str(self.threads)
        with (folder / f"{name}.out").open("wb") as out, active.log.open("ab") as log:
            active.log_start = log.tell()
            active.process_began = time.monotonic()
            active.process = subprocess.Popen(
                [sys.executable, str(ROOT / script), *arguments],
                env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                # Ctrl-C in the terminal reaches us, and from here each process once
                start_new_session=True,
                pass_fds=(active.lock,),
            )

    def _poll(self, active: _Active) -> None:
        process = active.process
        assert process is not None
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if not pid:
            return
        process.returncode = os.waitstatus_to_exitcode(status)
        assert active.log is not None
        training = active.log.name == "train.log"
        if training:
            attempts = active.trial.attempts()
            attempts[-1]["seconds"] = time.monotonic() - active.process_began
            attempts[-1]["peak_mb"] = usage.ru_maxrss / (
                2**20 if sys.platform == "darwin" else 2**10
            )
            write_text(active.trial.folder / "attempts.json", json.dumps(attempts) + "\n")
        if process.returncode:
            self._failed(active, process.returncode)
        elif training and active.trial.finished_run() is None:
            self._end(active, failure=f"train.py left no run in {active.trial.folder}")
        elif training and self._received is None:
            self._score(active)
        elif not training and active.commands and self._received is None:
            self._spawn(active, active.commands.pop(0))
        elif not training and not active.commands:
            write_text(
                active.trial.folder / "scored.json", json.dumps(active.trial.scoring()) + "\n"
            )
            _keep_best_checkpoint(active.trial)
            self._end(active)
        else:
            self._end(active, stopped=True)

    def _failed(self, active: _Active, returncode: int) -> None:
        assert active.log is not None
        said = active.log.read_bytes()[active.log_start :].decode("utf-8", "replace")
        run = active.resumed
        if self._received is not None:
            self._end(active, stopped=True)
        elif active.log.name == "train.log" and run is not None and " parameters, " not in said:
            # It did not come as far as training: what is there cannot go on with the present code
            # and data.
            self._say(active, f"{_reason(said, returncode)}; starting again")
            run.rename(run.with_name(f"{LEFT}{run.name}"))
            self._train(active, None)
        else:
            self._end(active, failure=_reason(said, returncode))

    def _end(self, active: _Active, *, failure: str | None = None, stopped: bool = False) -> None:
        os.close(active.lock)
        self._active.remove(active)
        if stopped:
            self._say(active, "stopped")
        elif failure is not None:
            self._fail(active.number, active.trial, failure)
        else:
            self.left -= 1
            self._seconds.append(time.monotonic() - active.began)
            ahead = statistics.fmean(self._seconds) * self.left / self.jobs / 60
            left = f", about {ahead:.0f} min left" if self.left else ""
            self._say(active, f"done in {self._seconds[-1] / 60:.1f} min{left}")
            self.done()

    def _fail(self, number: int, trial: Trial, reason: str) -> None:
        self.left -= 1
        self.failures[trial.title] = reason
        self._line(number, trial, f"failed: {reason}")
        self.done()

    def _say(self, active: _Active, what: str) -> None:
        self._line(active.number, active.trial, what)

    def _line(self, number: int, trial: Trial, what: str) -> None:
        minutes = (time.monotonic() - self._began) / 60
        self.say(f"[{number}/{self.total}] {minutes:.1f} min | {trial.title}: {what}")


def _reason(said: str, returncode: int) -> str:
    """Why a process failed, in one line: its own last word, or the signal that ended it."""
    if returncode < 0:
        name = signal.Signals(-returncode).name
        return f"ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [f"exit code {returncode}"])[-1][:300]


def _keep_best_checkpoint(trial: Trial) -> None:
    """Remove all checkpoints but the scored one: with optimizer state they are the bulk of a run."""
    run = trial.finished_run()
    assert run is not None
    scored = json.loads(_read(trial.result_file(trial.splits[0], "_scores.json")))["checkpoint"]
    for path in _checkpoints(run):
        if path.name != scored:
            path.unlink(missing_ok=True)


# ------------------------------------------------------------------------------------- command line


def position_names() -> tuple[str, ...]:
    """What --positions and --position may be."""
    return tuple(POSITIONS)


def add_trial_arguments(parser: Parser, *, config: str | None, output_dir: str | None) -> None:
    """The options of every experiment that trains translation models. None: the default is the
    experiment's affair.
    """
    parser.add_argument(
        "--config", metavar="FILE", default=config, help="the config that all runs share"
    )
    parser.add_argument(
        "--seeds",
        metavar="N,...",
        default="0",
        help="one training of each variant for each (default: 0)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="SECTION.FIELD=VALUE",
        help="change one field of the config for all runs; repeatable",
    )
    parser.add_argument(
        "--search",
        choices=("greedy", "beam"),
        default="beam",
        help="what the scored translations are from",
    )
    parser.add_argument("--output_dir", metavar="DIR", type=Path, default=output_dir)
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=positive,
        default=1,
        help="runs at once; they share the cores (and disturb tokens/s)",
    )
    parser.add_argument(
        "--threads",
        metavar="N",
        type=positive,
        help="CPU threads of each run (default: cores / jobs)",
    )
    parser.add_argument(
        "--report_only", action="store_true", help="table and plots of what is done; nothing is run"
    )


def add_positions_argument(parser: Parser) -> None:
    """`--positions`, as `chosen_positions` takes it."""
    parser.add_argument(
        "--positions",
        metavar="NAME,...",
        help="position schemes, separated by commas (names as for --position)",
    )


def chosen_positions(text: str | None, default: Sequence[str]) -> list[str]:
    """The names in `text`, each once. Raises UserError for one that there is not."""
    known = position_names()
    names = (
        list(default)
        if text is None
        else [name.strip() for name in text.split(",") if name.strip()]
    )
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(
            f"no position scheme {', '.join(map(repr, unknown))}: there are {', '.join(known)}"
        )
    if not names:
        raise UserError("--positions: name at least one scheme")
    return list(dict.fromkeys(names))


def chosen_seeds(text: str) -> list[int]:
    """The seeds in `text`, each once. Raises UserError for what is no seed."""
    try:
        seeds = list(dict.fromkeys(int(part) for part in text.split(",") if part.strip()))
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0:
        raise UserError(f"--seeds {text!r}: integers >= 0, separated by commas")
    return seeds


def resolve_configs(
    load: Callable[[str, list[str]], Config], variants: Iterable[str], seeds: Sequence[int]
) -> tuple[dict[tuple[str, int], Config], dict[str, str]]:
    """The config of each (variant, seed), seeds outermost; and the variants that are refused, with
    the reason.

    load: the config of a variant with more `--set` texts. Raises ConfigError where it refuses all
    of them: then the fault lies with the config or the changes.
    """
    configs: dict[tuple[str, int], Config] = {}
    refused: dict[str, str] = {}
    error: ConfigError | None = None
    for seed in seeds:
        for name in variants:
            if name in refused:
                continue
            try:
                configs[name, seed] = load(name, [f"train.seed={seed}"])
            except ConfigError as caught:
                error, refused[name] = caught, " ".join(str(caught).split())
    if error is not None and not configs:
        raise error
    return configs, refused


def position_config(args: argparse.Namespace, name: str, more: list[str]) -> Config:
    """The config of the command line under the position scheme `name`."""
    return load_config(args.config, [*args.overrides, *more], name)


def stated_changes(overrides: Iterable[str]) -> list[str]:
    """The `--set` texts for a report: the last of each key, and no places of this machine."""
    last = dict(map(parse_override, overrides))
    return [f"{key}={value}" for key, value in last.items() if key not in PLACES]


def say(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)


def exit_code(stopped: int | None, failed: bool) -> int:
    """128 + the signal that ended the runs; 1 where some failed; 0."""
    return 128 + stopped if stopped is not None else int(failed)


# ------------------------------------------------------------------------------------------ lengths


def bucket_names(edges: Sequence[int]) -> list[str]:
    """`edges` are increasing upper ends, in words; an open bucket follows the last."""
    lows = [1, *(edge + 1 for edge in edges)]
    return [
        *(f"{low}–{high}" if low < high else f"{high}" for low, high in zip(lows, edges)),
        f"≥{lows[-1]}",
    ]


def rows_by_length(sources: Sequence[str], edges: Sequence[int]) -> list[list[int]]:
    """The rows of the sentences in each bucket of source words (split at white space)."""
    rows: list[list[int]] = [[] for _ in range(len(edges) + 1)]
    for row, source in enumerate(sources):
        words = len(source.split())
        rows[sum(words > edge for edge in edges)].append(row)
    return rows


def bleu_by_length(trial: Trial, splits: Sequence[str], edges: Sequence[int]) -> list[float | None]:
    """sacreBLEU of each bucket over the splits together; None where a bucket has no sentence."""
    from translation.metrics import sacrebleu_score

    sources, references, found = (
        [line for split in splits for line in trial.lines(split, what)]
        for what in ("src", "ref", "hyp")
    )
    return [
        sacrebleu_score([found[row] for row in rows], [references[row] for row in rows])
        if rows
        else None
        for rows in rows_by_length(sources, edges)
    ]


# ----------------------------------------------------------------------------------------- pictures


def empty_figure(
    n: int, *, width: float, height: float, title: str, room: float = 0.4
) -> tuple[Figure, list[Axes]]:
    """n panels side by side that share their y axis, each of about width x height inches, under one
    title.

    room: inches beside them, for the legend.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(n * width + room, height + 0.5), dpi=120, layout="constrained")
    axes = figure.subplots(1, n, squeeze=False, sharey=True)
    figure.suptitle(title, fontsize=12)
    return figure, list(axes[0])
