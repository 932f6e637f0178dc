"""From text to batches, and from a script's start to its output: `python benchmarks/bench_data.py`.

Written into --output_dir as bench_data.md and bench_data.json, three tables:

data: training the tokenizer, tokenising, the token cache, forming and collating batches
padding: the share of padding in our batches and in those of simpler recipes with the same budget
start-up: seconds of each script to its first useful output

Each part of the data runs in a process of its own: the most memory that a process ever held is
known, that of one of its parts is not. A sentence is one side of a pair. Start-up is measured on a
run of a few updates of a tiny model, with the files of Python and of the run in the system's cache,
as at a second start.
"""

from __future__ import annotations

import contextlib
import dataclasses
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

if not __package__:  # run as a file: imports begin at the root of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common
from benchmarks.common import NOTHING, Report, figure, in_turn, ratio, spread, status_mb, table
from configs.load import add_config_arguments, load_config
from configs.schema import Config, Subword
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
WORKERS = 2  # of the loader, beside none


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = Parser(description="Measure the data's way, the padding, and each script's start.")
    add = parser.add_argument
    default = str(ROOT / "configs/demo.py")
    add("--config", metavar="FILE", default=default, help="default: configs/demo.py")
    what = "pairs of the training split (default: all)"
    add("--sentences", type=positive, metavar="N", help=what)
    what = "of each script (default: %(default)s)"
    add("--starts", type=positive, default=5, metavar="N", help=what)
    what = "data: tables 1 and 2; start: table 3 (default: all)"
    add("--only", choices=("data", "start"), help=what)
    common.add_arguments(parser, "bench_data", rounds=5)
    add_config_arguments(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    device = common.use_machine(args.device, args.threads)
    config = load_config(args.config, args.overrides, args.position)
    args.config = config.name
    args.output_dir = args.output_dir.resolve()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    # Beside the results, and not in memory: the token cache is brought to a disk.
    with tempfile.TemporaryDirectory(prefix=".work_", dir=args.output_dir) as work:
        report = Report("bench_data", "Data and start-up", args, device)
        if args.only != "start":
            report_data(report, config, args.sentences, Path(work), args.rounds)
        if args.only != "data":
            report_start(report, Path(work), args.starts, device, args.threads)


# ----------------------------------------------------------------------------------------- the data


@dataclass(frozen=True, slots=True)
class Task:
    """What each part is told. `folder` keeps the tokenizer and the token caches."""

    config: Config
    text: ParallelText
    folder: Path
    rounds: int

    def tokenizer(self) -> BaseTokenizer:
        return load_tokenizer(self.folder / "tokenizer")

    def split(self, cache: str = "cache_0") -> TokenizedSplit:
        """The ids of the text: made where the cache is empty, opened where it is not."""
        max_len, folder = self.config.data.max_len, self.folder / cache
        return tokenize_split(
            self.text, self.tokenizer(), max_len=max_len, too_long="drop", cache_dir=folder
        )


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
    rows = [{"part": name, **in_own_process(measure, part, task)} for name, part in PARTS.items()]
    for row in rows:
        row["spread"] = spread(row["seconds"])
        known = row["sentences"] is not None
        row["rate"] = figure(row["sentences"] / row["spread"].median) if known else NOTHING
    columns = {"": "{part}", "seconds": "{spread}", "sentences/s": "{rate}"}
    columns["peak memory, MB"] = "{peak_mb:,.0f}"
    columns["of this part, MB"] = "{growth_mb:,.0f}"
    pairs, vocabulary = len(task.split()), task.tokenizer().tgt_vocab_size
    n_bytes = sum(path.stat().st_size for path in (work / "cache_0").rglob("*") if path.is_file())
    body = (
        f"{len(text):,} pairs of the {config.data.corpus.kind} corpus, loaded in {figure(taken)} "
        f"s; {pairs:,} of them in batches, vocabulary {vocabulary:,}. Median of the rounds, "
        "quartiles in brackets. Memory is that of the process: the most that it held, and how much "
        f"came with this part.\n\n{table(rows, columns)}\n"
        f"The token cache has {n_bytes / 1e6:,.1f} MB on disk; building it includes tokenising, "
        "opening it includes the checksums of text and files. The larger of "
        f"{WORKERS} loader workers held up to {rows[-1]['worker_peak_mb']:,.0f} MB."
    )
    figures = {"vocabulary": vocabulary, "pairs_in_batches": pairs, "cache_bytes": n_bytes}
    data = {"pairs": len(text), "load_seconds": taken, **figures, "rows": rows}
    report.add("Data", body, data)
    padding = in_own_process(compare_padding, task)
    columns = {
        "order": "{order}",
        "batches": "{batches:,}",
        "padding": "{padding:.1%}",
        "positions / ours": "{over_ours:.2f}",
        "forming, ms": "{ms}",
    }
    body = (
        f"Batches by {config.data.batch_by}, budget {config.data.batch_size:,}: the orders differ, "
        "the cut is the same. Padding is the share of positions, of both sides, without a token."
        f"\n\n{table(padding, columns)}"
    )
    report.add("Padding", body, {"rows": padding})


def in_own_process(function: Callable[..., Any], *args: Any) -> Any:
    """function(*args) in the fork of a server that has imported the libraries and no more."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tokenizers", "torch.utils.data"])
    method = multiprocessing.get_start_method()
    with ProcessPoolExecutor(1, context, start_workers_by, (method,)) as pool:
        return pool.submit(function, *args).result()


def start_workers_by(method: str) -> None:
    """The loader's workers start as in training: a forked process would ask its own server."""
    multiprocessing.set_start_method(method, force=True)


def measure(part: Part, task: Task) -> dict[str, Any]:
    """Seconds of a part in each round after one to warm up, and the memory of this process."""
    run, sentences = part(task)
    with contextlib.suppress(OSError):  # VmHWM begins anew: what the imports held does not count
        Path("/proc/self/clear_refs").write_text("5")
    before = status_mb("VmRSS")
    [seconds] = in_turn({"": run}, rounds=task.rounds).values()
    peak = status_mb("VmHWM")
    del run  # ends the loader's workers: then the most memory that any of them held is known
    worker_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {
        "seconds": seconds,
        "sentences": sentences,
        "peak_mb": peak,
        "growth_mb": peak - before,
        "worker_peak_mb": worker_kb * 1024 / 1e6,
    }


# What is run in each round, and how many sentences it is about.
Part = Callable[[Task], tuple[Callable[[int], object], int | None]]


def make_tokenizer(task: Task) -> tuple[Callable[[int], object], int | None]:
    config, texts = task.config, [*task.text.src, *task.text.tgt]
    languages = {"src_lang": config.data.src_lang, "tgt_lang": config.data.tgt_lang}

    def run(number: int) -> None:
        tokenizer = build_tokenizer(config.tokenizer, lambda: texts, **languages)
        if number < 0:  # in the warm-up
            tokenizer.save(task.folder / "tokenizer")

    trained = isinstance(config.tokenizer, Subword)  # a pretrained one is but fetched
    return run, len(texts) if trained else None


def tokenize(task: Task) -> tuple[Callable[[int], object], int]:
    tokenizer = task.tokenizer()

    def run(number: int) -> None:
        for start in range(0, len(task.text), CHUNK):
            tokenizer.encode_src_batch(task.text.src[start : start + CHUNK])
            tokenizer.encode_tgt_batch(task.text.tgt[start : start + CHUNK])

    return run, 2 * len(task.text)


def build_cache(task: Task) -> tuple[Callable[[int], object], int]:
    return lambda number: task.split(f"cache_{number}"), 2 * len(task.text)


def open_cache(task: Task) -> tuple[Callable[[int], object], int]:
    return lambda number: task.split(), 2 * len(task.text)


def form(task: Task) -> tuple[Callable[[int], object], int]:
    split = task.split()
    ours = orders(split, task.config)["ours"]
    return lambda number: ours(), 2 * len(split)


def collate(task: Task, workers: int) -> tuple[Callable[[int], object], int]:
    """An epoch of the training loader in each round; the workers live from first to last."""
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

    return run, 2 * len(split)


PARTS: dict[str, Part] = {
    "making the tokenizer": make_tokenizer,
    "tokenising": tokenize,
    "token cache, built": build_cache,
    "token cache, opened": open_cache,
    "forming batches": form,
    "collating, num_workers=0": partial(collate, workers=0),
    f"collating, num_workers={WORKERS}": partial(collate, workers=WORKERS),
}


# -------------------------------------------------------------------------------------- the padding


def orders(split: TokenizedSplit, config: Config) -> dict[str, Callable[[], list[np.ndarray]]]:
    """Ways to form batches: ours, then orders of the rows that are cut into like budgets."""
    src, tgt = split.src_lengths, split.tgt_lengths
    seed = config.train.seed
    by, size = config.data.batch_by, config.data.batch_size

    def cut(order: np.ndarray) -> list[np.ndarray]:
        return cut_batches(order, np.maximum(src, tgt), by, size)

    def drawn() -> np.ndarray:
        return np.random.default_rng(seed).permutation(len(src))

    return {
        "ours": lambda: form_batches(src, tgt, batch_by=by, batch_size=size, seed=seed),
        "by source, then target": lambda: cut(np.lexsort((tgt, src))),
        "by source alone": lambda: cut(np.lexsort((drawn(), src))),
        "random": lambda: cut(drawn()),
    }


def compare_padding(task: Task) -> list[dict[str, Any]]:
    """A row for each order; padding: the share of positions, of both sides, that hold no token."""
    split = task.split()
    recipes = orders(split, task.config)
    runs = {name: lambda number, form=form: form() for name, form in recipes.items()}
    n_tokens = len(split.src_ids) + len(split.tgt_ids)
    rows: list[dict[str, Any]] = []
    for name, seconds in in_turn(runs, rounds=task.rounds).items():
        batches = recipes[name]()
        positions = padded_tokens(batches, split.src_lengths, split.tgt_lengths)
        row = {"order": name, "batches": len(batches), "positions": positions, "seconds": seconds}
        row["padding"] = 1 - n_tokens / positions
        row["over_ours"] = positions / (rows or [row])[0]["positions"]
        rows.append({**row, "ms": spread([1e3 * s for s in seconds])})
    return rows


# ----------------------------------------------------------------------------------------- start-up

LIMIT_S = 300.0  # no script takes this long to start
SENTENCE = "Le chat dort."
TINY = {
    "data.corpus.n_train": 1000,
    "data.corpus.n_validation": 20,
    "data.corpus.n_test": 20,
    "tokenizer.vocab_size": 600,
    "model.d_model": 32,
    "model.n_heads": 2,
    "model.d_ff": 64,
    "evaluate.bleu_sentences": 8,
    "decode.max_len": 24,
    "train.log_every": 1,
}


@dataclass(frozen=True, slots=True)
class Script:
    """A command, and what its first useful output is.

    `seen`: a pattern of a line on standard output, or the folder and pattern of a file that fills.
    """

    name: str
    args: tuple[str, ...]
    until: str
    seen: str | tuple[Path, str]


def scripts(run: Path, work: Path, device: torch.device, threads: int | None) -> list[Script]:
    """The scripts as a user starts them, after what none that uses torch can go below."""
    limit = () if threads is None else ("--threads", str(threads))
    use = ("--model_path", str(run), "--device", str(device), *limit)
    log = (work / "began", "*/logs/metrics.jsonl")
    # In small batches, so that the epoch lasts longer than the measurement.
    small = ("data.batch_by=sentences", "data.batch_size=4", f"train.runs_dir={log[0]}")
    train = ("train.py", *limit, *tiny_arguments(work, device, *small))
    draw = ("visualize.py", "encoding", *use, "--output_dir", str(work / "pictures"))
    translate = ("inference.py", "--src_text", SENTENCE, *use)
    return [
        Script("python", ("-c", "print(1)"), "first line", "^1$"),
        Script("import torch", ("-c", "import torch; print(1)"), "first line", "^1$"),
        Script("train.py", train, "first logged update", log),
        Script("inference.py", translate, "first translation", "^=== greedy search ===$"),
        Script("test.py", ("test.py", "--limit", "8", *use), "first score", "^BLEU"),
        Script("visualize.py", draw, "first picture", r"\.png$"),
    ]


def tiny_arguments(work: Path, device: torch.device, *overrides: str) -> list[str]:
    """train.py's arguments for a tiny model on the embedded corpus; `overrides` win."""
    settings = [f"{key}={value}" for key, value in TINY.items()]
    settings += [f"data.cache_dir={work / 'tiny_cache'}", f"train.device={device}", *overrides]
    return ["--config", "configs/demo.py", *(part for text in settings for part in ("--set", text))]


def make_tiny_run(work: Path, device: torch.device) -> Path:
    """The folder of a finished run, made by train.py. Raises UserError with its last words."""
    arguments = tiny_arguments(work, device, "train.max_steps=5", f"train.runs_dir={work / 'tiny'}")
    command = [sys.executable, "train.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise UserError(f"train.py on a tiny config: {last_line(done.stderr)}")
    return Path(last_line(done.stdout))


def first_output(script: Script) -> float:
    """Seconds from the start of a process to its first output, where the process is ended.

    Raises UserError where it ends before.
    """
    command = [sys.executable, *script.args]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}  # as at a terminal: a line is out when printed
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
    return seconds


def useful_output(process: subprocess.Popen[str], seen: str | tuple[Path, str]) -> Iterator[bool]:
    """Whether the output is there, each time something may have changed; ends with the process."""
    if isinstance(seen, str):
        assert process.stdout is not None
        yield from (re.search(seen, line) is not None for line in process.stdout)
        return
    folder, pattern = seen
    known = set(folder.glob(pattern))  # of earlier starts
    while process.poll() is None:
        yield any(path.stat().st_size > 0 for path in set(folder.glob(pattern)) - known)
        time.sleep(0.002)


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def report_start(
    report: Report, work: Path, starts: int, device: torch.device, threads: int | None
) -> None:
    """The third table."""
    found = scripts(make_tiny_run(work, device), work, device, threads)
    for script in found:  # warms up
        first_output(script)
    rounds = [[first_output(script) for script in found] for _ in range(starts)]
    rows = [
        {"script": script.name, "until": script.until, "seconds": list(seconds)}
        for script, seconds in zip(found, zip(*rounds))
    ]
    about = f"Median of {starts} starts in turn, quartiles in brackets."
    report.add("Start-up", f"{about}\n\n{start_table(rows)}", {"rows": rows})


def start_table(rows: Sequence[Mapping[str, Any]]) -> str:
    [floor] = [row["seconds"] for row in rows if row["script"] == "import torch"]
    header = ("", "until", "seconds", "/ import torch")
    cells = [
        (row["script"], row["until"], spread(row["seconds"]), ratio(row["seconds"], floor).middle)
        for row in rows
    ]
    return markdown_table(header, cells)


if __name__ == "__main__":
    run_main(main)
