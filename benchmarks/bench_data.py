"""From text to batches, and from a script's start to its first useful output: `python
benchmarks/bench_data.py`.

Written into --output_dir as bench_data.md and bench_data.json, three tables:

    data      training the tokenizer, tokenising, the token cache, forming and collating batches:
    time and memory padding   the share of padding in our batches and in those of simpler recipes
    with the same budget start-up  seconds of each script to its first useful output, and the heavy
    packages that it had imported by then

Each part of the data runs in a process of its own: the most memory that a process ever held is
known, that of one of its parts is not. A sentence is one side of a pair. Start-up is measured on a
run of a few updates of a tiny model, with the files of Python and of the run in the system's cache,
as at a second start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

if (
    not __package__
):  # run as a file: the root of the repository is where imports begin, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Report, figure, in_turn, ratio, spread, status_mb, use_machine
from configs.load import add_config_arguments, load_config
from configs.schema import Config, Phrasebook, Subword
from data.batching import cut_batches, form_batches, make_train_loader, padded_tokens
from data.cache import CHUNK, TokenizedSplit, tokenize_split
from data.corpora.base import ParallelText
from data.corpora.build import build_corpus
from tokenizer.base import BaseTokenizer
from tokenizer.build import build_tokenizer, load_tokenizer
from utils.cli import Parser, positive, run_main
from utils.errors import UserError
from utils.tables import markdown_table

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")
WORKERS = (0, 2)  # of the loader
NOTHING = "–"


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = Parser(
        description="Measure the way of the data, the padding of batches, and the start of each script."
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=str(ROOT / "configs/demo.py"),
        help="default: %(default)s",
    )
    parser.add_argument(
        "--sentences", type=positive, metavar="N", help="pairs of the training split (default: all)"
    )
    parser.add_argument(
        "--rounds", type=positive, default=5, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--starts",
        type=positive,
        default=5,
        metavar="N",
        help="of each script (default: %(default)s)",
    )
    parser.add_argument(
        "--only",
        choices=("data", "start"),
        help="data: tables 1 and 2; start: table 3 (default: all)",
    )
    parser.add_argument(
        "--device", default="auto", help="of the scripts that start: auto (default), cpu, cuda"
    )
    parser.add_argument("--threads", type=positive, metavar="N", help="CPU threads")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/bench_data"), metavar="DIR")
    add_config_arguments(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    device = use_machine(args.device, args.threads)
    config = sized(load_config(args.config, args.overrides, args.position), args.sentences)
    settings = {
        "config": config.name,
        "rounds": args.rounds,
        "starts": args.starts,
        "cores": os.cpu_count(),
    }
    folder = args.output_dir.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Beside the results, and not in memory: the token cache is brought to a disk.
        made = tempfile.TemporaryDirectory(prefix=".work_", dir=folder)
    except OSError as error:
        raise UserError(
            f"cannot write into {folder}: {error.strerror}; choose another --output_dir"
        ) from error
    with made as work:
        report = Report(
            folder, "bench_data", title="Data and start-up", device=device, settings=settings
        )
        if args.only != "start":
            report_data(report, config, args.sentences, Path(work), args.rounds)
        if args.only != "data":
            report_start(report, Path(work), args.starts, device, args.threads)


def sized(config: Config, sentences: int | None) -> Config:
    """The config whose phrasebook, if that is its corpus, has so many training pairs."""
    if sentences is None or not isinstance(config.data.corpus, Phrasebook):
        return config
    corpus = dataclasses.replace(config.data.corpus, n_train=sentences)
    return dataclasses.replace(config, data=dataclasses.replace(config.data, corpus=corpus))


# ----------------------------------------------------------------------------------------- the data


@dataclass(frozen=True, slots=True)
class Task:
    """What each part is told. `folder` takes the tokenizer and the token caches, for the parts that
    follow.
    """

    config: Config
    text: ParallelText
    folder: Path
    rounds: int

    def tokenizer(self) -> BaseTokenizer:
        return load_tokenizer(self.folder / "tokenizer")

    def split(self, cache: str = "cache_0") -> TokenizedSplit:
        """The ids of the text: made where the cache is empty, opened where it is not."""
        rule = {
            "max_len": self.config.data.max_len,
            "too_long": "drop",
            "cache_dir": self.folder / cache,
        }
        return tokenize_split(self.text, self.tokenizer(), **rule)  # type: ignore[arg-type]


def report_data(
    report: Report, config: Config, sentences: int | None, work: Path, rounds: int
) -> None:
    """The first two tables."""
    start = time.perf_counter()
    corpus = build_corpus(config.data)
    text = corpus.load(corpus.train)
    text = ParallelText(text.src[:sentences], text.tgt[:sentences])
    taken = time.perf_counter() - start
    task = Task(config, text, work, rounds)

    parts: dict[str, Callable[[Task], dict[str, Any]]] = {
        "making the tokenizer": make_tokenizer,
        "tokenising": tokenize,
        "token cache, built": build_cache,
        "token cache, opened": open_cache,
        "forming batches": form,
        **{f"collating, num_workers={n}": partial(collate, workers=n) for n in WORKERS},
    }
    rows = {name: in_own_process(part, task) for name, part in parts.items()}
    about = (
        f"{len(text):,} pairs of the {config.data.corpus.kind} corpus, loaded in {figure(taken)} s; "
        f"{rows['forming batches']['pairs']:,} of them in batches, vocabulary {rows['tokenising']['vocabulary']:,}. "
        "Median of the rounds, quartiles in brackets. Memory is that of the process: the most that it held, and how "
        "much of it came with this part.\n\n"
    )
    notes = (
        f"\nThe cache has {rows['token cache, built']['bytes'] / 1e6:,.1f} MB on disk; building it includes "
        "tokenising, opening it includes the checksums of text and files. "
        f"The larger of {WORKERS[-1]} loader workers held up to "
        f"{rows[f'collating, num_workers={WORKERS[-1]}']['worker_peak_mb']:,.0f} MB.\n"
    )
    report.add(
        "Data",
        about + data_table(rows) + notes,
        {
            "pairs": len(text),
            "load_seconds": taken,
            "rows": [{"part": name, **row} for name, row in rows.items()],
        },
    )
    padding = in_own_process(compare_padding, task)
    about = (
        f"Batches by {config.data.batch_by}, budget {config.data.batch_size:,}: the orders differ, the cut is the "
        "same. Padding is the share of all positions, of both sides, that hold no token.\n\n"
    )
    report.add("Padding", about + padding_table(padding), {"rows": padding})


def in_own_process(part: Callable[[Task], Any], task: Task) -> Any:
    """part(task) in a new process: the fork of a server that has imported the libraries and done
    nothing else.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tokenizers", "torch.utils.data"])
    with ProcessPoolExecutor(
        1,
        mp_context=context,
        initializer=start_workers_by,
        initargs=(multiprocessing.get_start_method(),),
    ) as pool:
        return pool.submit(part, task).result()


def start_workers_by(method: str) -> None:
    """How the loader's workers start: as they do in training. Unless told, a forked process asks
    its own server.
    """
    multiprocessing.set_start_method(method, force=True)


def measured(run: Callable[[int], object], task: Task, *, sentences: int | None) -> dict[str, Any]:
    """Seconds of `run` in each round after one to warm up, and the memory of this process.
    `sentences` of one run.
    """
    forget_peak()
    before = status_mb("VmRSS")
    [seconds] = in_turn({"": run}, rounds=task.rounds, warmup=1, device=CPU).values()
    peak = status_mb("VmHWM")
    return {"seconds": seconds, "sentences": sentences, "peak_mb": peak, "growth_mb": peak - before}


def forget_peak() -> None:
    """Let VmHWM begin anew, so that what the imports held for a moment is not counted; where the
    system allows it.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def make_tokenizer(task: Task) -> dict[str, Any]:
    config = task.config
    texts = [*task.text.src, *task.text.tgt]
    made: list[BaseTokenizer] = []

    def run(number: int) -> None:
        languages = {"src_lang": config.data.src_lang, "tgt_lang": config.data.tgt_lang}
        made[:] = [build_tokenizer(config.tokenizer, lambda: texts, **languages)]

    trained = isinstance(config.tokenizer, Subword)  # a pretrained one is but fetched
    row = measured(run, task, sentences=len(texts) if trained else None)
    made[0].save(task.folder / "tokenizer")
    return row


def tokenize(task: Task) -> dict[str, Any]:
    tokenizer = task.tokenizer()

    def run(number: int) -> None:
        for start in range(0, len(task.text), CHUNK):
            tokenizer.encode_src_batch(task.text.src[start : start + CHUNK])
            tokenizer.encode_tgt_batch(task.text.tgt[start : start + CHUNK])

    return {
        **measured(run, task, sentences=2 * len(task.text)),
        "vocabulary": tokenizer.tgt_vocab_size,
    }


def build_cache(task: Task) -> dict[str, Any]:
    row = measured(lambda number: task.split(f"cache_{number}"), task, sentences=2 * len(task.text))
    files = [path for path in (task.folder / "cache_0").rglob("*") if path.is_file()]
    return {**row, "bytes": sum(path.stat().st_size for path in files)}


def open_cache(task: Task) -> dict[str, Any]:
    return measured(lambda number: task.split(), task, sentences=2 * len(task.text))


def form(task: Task) -> dict[str, Any]:
    split = task.split()
    ours = orders(split, task.config)["ours"]
    return {**measured(lambda number: ours(), task, sentences=2 * len(split)), "pairs": len(split)}


def collate(task: Task, workers: int) -> dict[str, Any]:
    row = collate_epochs(task, workers)
    # The workers have ended with the loader: the most memory that any of them held is known.
    worker_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if workers else 0
    return {**row, "worker_peak_mb": worker_kb * 1024 / 1e6}


def collate_epochs(task: Task, workers: int) -> dict[str, Any]:
    """An epoch of the training loader in each round; the workers live from the first, which warms
    up, to the last.
    """
    split, tokenizer = task.split(), task.tokenizer()
    loader = make_train_loader(
        split,
        dataclasses.replace(task.config.data, num_workers=workers),
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        accumulate=1,
        seed=task.config.train.seed,
    )

    def run(number: int) -> None:
        loader.sampler.set_position(number + 1)  # type: ignore[attr-defined]
        for _ in loader:
            pass

    return measured(run, task, sentences=2 * len(split))


def data_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    cells = []
    for name, row in rows.items():
        taken = spread(row["seconds"])
        rate = figure(row["sentences"] / taken.median) if row["sentences"] else NOTHING
        cells.append([name, str(taken), rate, f"{row['peak_mb']:,.0f}", f"{row['growth_mb']:,.0f}"])
    return markdown_table(
        ("", "seconds", "sentences/s", "peak memory, MB", "of this part, MB"), cells
    )


# -------------------------------------------------------------------------------------- the padding


def orders(split: TokenizedSplit, config: Config) -> dict[str, Callable[[], list[np.ndarray]]]:
    """Ways to form batches, by name: ours first, then orders of the rows that are cut into batches
    of the budget.
    """
    src, tgt = split.src_lengths, split.tgt_lengths
    data, seed = config.data, config.train.seed

    def cut(order: np.ndarray) -> list[np.ndarray]:
        return cut_batches(order, np.maximum(src, tgt), data.batch_by, data.batch_size)

    def drawn() -> np.ndarray:
        return np.random.default_rng(seed).permutation(len(src))

    return {
        "ours": lambda: form_batches(
            src, tgt, batch_by=data.batch_by, batch_size=data.batch_size, seed=seed
        ),
        "by source, then target": lambda: cut(np.lexsort((tgt, src))),
        "by source alone": lambda: cut(np.lexsort((drawn(), src))),
        "random": lambda: cut(drawn()),
    }


def padding_share(batches: Sequence[np.ndarray], split: TokenizedSplit) -> float:
    """The share of positions, of both sides of all batches, that hold no token."""
    return 1 - (len(split.src_ids) + len(split.tgt_ids)) / padded_tokens(
        batches, split.src_lengths, split.tgt_lengths
    )


def compare_padding(task: Task) -> list[dict[str, Any]]:
    split = task.split()
    recipes = orders(split, task.config)
    runs = {name: lambda number, form=form: form() for name, form in recipes.items()}
    seconds = in_turn(runs, rounds=task.rounds, warmup=1, device=CPU)
    rows = []
    for name, recipe in recipes.items():
        batches = recipe()
        rows.append(
            {
                "order": name,
                "batches": len(batches),
                "positions": padded_tokens(batches, split.src_lengths, split.tgt_lengths),
                "padding": padding_share(batches, split),
                "seconds": seconds[name],
            }
        )
    return rows


def padding_table(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        [
            row["order"],
            f"{row['batches']:,}",
            f"{row['padding']:.1%}",
            f"{row['positions'] / rows[0]['positions']:.2f}",
            str(spread([1e3 * seconds for seconds in row["seconds"]])),
        ]
        for row in rows
    ]
    return markdown_table(("order", "batches", "padding", "positions / ours", "forming, ms"), cells)


# ----------------------------------------------------------------------------------------- start-up

LIMIT_S = 300.0  # no script takes this long to start
SENTENCE = "Le chat dort."
TINY = (
    "data.corpus.n_train=1000",
    "data.corpus.n_validation=20",
    "data.corpus.n_test=20",
    "tokenizer.vocab_size=600",
    "model.d_model=32",
    "model.n_heads=2",
    "model.d_ff=64",
    "evaluate.bleu_sentences=8",
    "decode.max_len=24",
    "train.log_every=1",
)
HEAVY = (
    *(
        "torch",
        "torch._dynamo",
        "transformers",
        "datasets",
        "sklearn",
        "matplotlib",
        "tensorboard",
        "ignite",
        "nltk",
    ),
    *("sacrebleu", "pyarrow", "pandas", "scipy", "sympy"),
)


@dataclass(frozen=True, slots=True)
class Script:
    """A command, what its first useful output is, and the heavy packages that it cannot do without.

    `seen` is a pattern of a line on standard output, or the folder and the pattern of a file that
    gets content.
    """

    name: str
    args: tuple[str, ...]
    until: str
    seen: str | tuple[Path, str]
    needs: frozenset[str]


def scripts(run: Path, work: Path, device: torch.device, threads: int | None) -> list[Script]:
    """The scripts as a user starts them; the first two rows are what no script that uses torch can
    go below.
    """
    use = ("--model_path", str(run), "--device", str(device))
    limit = () if threads is None else ("--threads", str(threads))
    began = work / "began"
    # In small batches, so that the epoch lasts longer than the measurement: what follows it is not
    # start-up.
    train = tiny_arguments(
        work, device, "data.batch_by=sentences", "data.batch_size=4", f"train.runs_dir={began}"
    )
    draw = ("encoding", *use, "--output_dir", str(work / "pictures"))
    return [
        Script("python", ("-c", "print(1)"), "first line", "^1$", frozenset()),
        Script(
            "import torch",
            ("-c", "import torch; print(1)"),
            "first line",
            "^1$",
            frozenset({"torch"}),
        ),
        Script(
            "train.py",
            ("train.py", *limit, *train),
            "first logged update",
            (began, "*/logs/metrics.jsonl"),
            frozenset({"torch", "ignite", "tensorboard"}),
        ),
        Script(
            "inference.py",
            ("inference.py", "--src_text", SENTENCE, *use, *limit),
            "first translation",
            "^=== greedy search ===$",
            frozenset({"torch"}),
        ),
        Script(
            "test.py",
            ("test.py", "--limit", "8", *use, *limit),
            "first score",
            "^BLEU",
            frozenset({"torch", "ignite", "nltk", "sacrebleu"}),
        ),
        Script(
            "visualize.py encoding",
            ("visualize.py", *draw, *limit),
            "first picture",
            r"\.png$",
            frozenset({"torch", "matplotlib"}),
        ),
    ]


def tiny_arguments(work: Path, device: torch.device, *overrides: str) -> list[str]:
    """train.py's arguments for a tiny model on the embedded corpus; `overrides` come last and win."""
    settings = [
        *TINY,
        f"data.cache_dir={work / 'tiny_cache'}",
        f"train.device={device}",
        *overrides,
    ]
    return ["--config", "configs/demo.py", *(part for text in settings for part in ("--set", text))]


def make_tiny_run(work: Path, device: torch.device) -> Path:
    """The folder of a finished run, made by train.py. Raises UserError with what it says where it
    fails.
    """
    arguments = tiny_arguments(work, device, "train.max_steps=5", f"train.runs_dir={work / 'tiny'}")
    command = [sys.executable, "train.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise UserError(f"train.py on a tiny config: {last_line(done.stderr)}")
    return Path(last_line(done.stdout))


def first_output(script: Script, *, profile: bool = False) -> tuple[float, str]:
    """Seconds from the start of the process to its first useful output, and its standard error
    until then.

    The process is ended there. profile: Python writes on standard error what it imports. Raises
    UserError where the process ends before.
    """
    command = [sys.executable, *(["-X", "importtime"] if profile else []), *script.args]
    env = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
    }  # as at a terminal: a line is out when it is printed
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        timer = threading.Timer(LIMIT_S, process.kill)
        timer.start()
        try:
            found = any(useful_output(process, script.seen))
            seconds = time.perf_counter() - start
        finally:
            timer.cancel()
            process.kill()
            process.communicate()
        errors.seek(0)
        said = errors.read()
    if not found:
        raise UserError(f"{script.name} ended without its {script.until}: {last_line(said)}")
    return seconds, said


def useful_output(process: subprocess.Popen[str], seen: str | tuple[Path, str]) -> Iterator[bool]:
    """Whether the output is there, each time that something may have changed; it ends with the
    process.
    """
    if isinstance(seen, str):
        assert process.stdout is not None
        yield from (re.search(seen, line) is not None for line in process.stdout)
        return
    folder, pattern = seen
    known = set(folder.glob(pattern))  # of earlier starts
    while process.poll() is None:
        yield any(path.stat().st_size > 0 for path in set(folder.glob(pattern)) - known)
        time.sleep(0.002)


def imported(said: str) -> dict[str, float]:
    """Seconds spent in the modules of each heavy package, from what `-X importtime` wrote.

    Python names also what it looked for in vain: a package that is not installed is left out.
    """
    seconds: dict[str, float] = {}
    for own, module in re.findall(
        r"^import time:\s*(\d+) \|\s*\d+ \|\s*(\S+)$", said, re.MULTILINE
    ):
        for name in HEAVY:
            if module == name or module.startswith(f"{name}."):
                seconds[name] = seconds.get(name, 0.0) + int(own) / 1e6
    return {
        name: taken
        for name, taken in seconds.items()
        if importlib.util.find_spec(name.split(".")[0])
    }


def last_line(text: str) -> str:
    lines = [
        line for line in text.splitlines() if line.strip() and not line.startswith("import time:")
    ]
    return lines[-1] if lines else "it said nothing"


def measure_starts(found: Sequence[Script], starts: int) -> list[dict[str, Any]]:
    """Each script once with Python's profile of imports, which warms up too, then in turn `starts`
    times.
    """
    packages = {script.name: imported(first_output(script, profile=True)[1]) for script in found}
    seconds: dict[str, list[float]] = {script.name: [] for script in found}
    for _ in range(starts):
        for script in found:
            seconds[script.name].append(first_output(script)[0])
    return [
        {
            "script": script.name,
            "until": script.until,
            "seconds": seconds[script.name],
            "imported": packages[script.name],
            "not_needed": sorted(packages[script.name].keys() - script.needs),
        }
        for script in found
    ]


def report_start(
    report: Report, work: Path, starts: int, device: torch.device, threads: int | None
) -> None:
    """The third table."""
    run = make_tiny_run(work, device)
    rows = measure_starts(scripts(run, work, device, threads), starts)
    about = (
        f"Median of {starts} starts in turn, quartiles in brackets. Imports: heavy packages that stood in memory at "
        "that moment, with the seconds spent in their own modules, from one start under Python's profile of imports "
        "(which slows it; a package's seconds do not include those of another).\n\n"
    )
    report.add("Start-up", about + start_table(rows), {"rows": rows})


def start_table(rows: Sequence[Mapping[str, Any]]) -> str:
    floor = next((row["seconds"] for row in rows if row["script"] == "import torch"), None)
    cells = []
    for row in rows:
        packages = ", ".join(
            f"{name} {seconds:.2f}" for name, seconds in sorted(row["imported"].items())
        )
        beyond = f"{ratio(row['seconds'], floor).median:.2f}" if floor else NOTHING
        unneeded = ", ".join(row["not_needed"])
        cells.append(
            [
                row["script"],
                row["until"],
                str(spread(row["seconds"])),
                beyond,
                packages or NOTHING,
                unneeded or NOTHING,
            ]
        )
    return markdown_table(
        ("", "until", "seconds", "/ import torch", "imports, s", "not needed"), cells
    )


if __name__ == "__main__":
    run_main(main)
