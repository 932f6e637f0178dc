"""From text to batches, and from a script's start to its output: `python benchmarks/bench_data.py`.

Written into --output_dir as bench_data.md and bench_data.json, three tables:

data: making the tokenizer, tokenising, the token cache, batches; a sentence is one side of a pair
padding: the share of padding in our batches and in those of simpler recipes with the same budget
start-up: seconds of each script to its first useful output, on a run of one update; Python's and
    the run's files are in the system's cache, as at a second start
"""

import re
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

if not __package__:  # run as a file: imports begin at the root of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common
from benchmarks.common import Report, figure, in_turn, ratio, spread, table
from configs.load import add_config_arguments, load_config
from configs.schema import Config, Subword
from data.batching import cut_batches, form_batches, padded_tokens
from data.cache import CHUNK, TokenizedSplit, tokenize_split
from data.corpora.base import ParallelText
from data.corpora.build import build_corpus
from tokenizer.base import BaseTokenizer
from tokenizer.build import build_tokenizer, load_tokenizer
from utils.cli import Parser, positive, run_main
from utils.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
CONFIG = str(ROOT / "configs/demo.py")


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = Parser(description="Measure data preparation, padding and the start of each script.")
    add = parser.add_argument
    add("--config", metavar="FILE", default=CONFIG, help="for the data; default: configs/demo.py")
    what = "pairs of the training split (default: all)"
    add("--sentences", type=positive, metavar="N", help=what)
    what = "starts of each script (default: %(default)s)"
    add("--starts", type=positive, default=5, metavar="N", help=what)
    what = "data: tables 1 and 2; start: table 3 (default: all)"
    add("--only", choices=("data", "start"), help=what)
    common.add_arguments(parser, "bench_data", rounds=5)
    add_config_arguments(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    if args.only == "start" and (args.overrides or args.position or args.config != CONFIG):
        raise UserError("--only start times configs/demo.py: leave --config and its changes out")
    device = common.use_machine(args)
    config = load_config(args.config, args.overrides, args.position)
    args.config = config.name
    args.output_dir = args.output_dir.resolve()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    # Beside the results, and not in memory: the token cache is synced to disk.
    with tempfile.TemporaryDirectory(prefix=".work_", dir=args.output_dir) as work:
        report = Report("bench_data", "Data and start-up", args, device)
        if args.only != "start":
            report_data(report, config, args, Path(work))
        if args.only != "data":
            report_start(report, scripts(Path(work), str(device), args.threads), args.starts)


def report_data(report: Report, config: Config, args: Namespace, work: Path) -> None:
    """The first two tables."""
    start = time.perf_counter()
    corpus = build_corpus(config.data)
    text = corpus.load(corpus.train)
    load_seconds = time.perf_counter() - start
    text = ParallelText(text.src[: args.sentences], text.tgt[: args.sentences])
    parts, split = data_parts(config, text, work)
    rows: list[dict[str, Any]] = []
    for part, seconds in in_turn(parts, rounds=args.rounds).items():
        row = {"part": part, "seconds": seconds, "sentences": 2 * len(text)}
        rate = figure(2 * len(text) / spread(seconds).median)
        rows.append({**row, "spread": spread(seconds), "rate": rate})
    columns = {"": "{part}", "seconds": "{spread}", "sentences/s": "{rate}"}
    body = (
        f"{len(text):,} pairs of the {config.data.corpus.kind} corpus, loaded in "
        f"{figure(load_seconds)} s; {len(split):,} of them in batches. Medians (quartiles). "
        "Building the token cache includes tokenising; opening it, checksums of text and files."
        f"\n\n{table(rows, columns)}"
    )
    figures = {"pairs": len(text), "load_seconds": load_seconds, "pairs_in_batches": len(split)}
    report.add("Data", body, {**figures, "rows": rows})
    rows = compare_padding(split, config)
    columns = {"order": "{order}", "batches": "{batches:,}", "padding": "{padding:.1%}"}
    columns["positions / ours"] = "{over_ours:.2f}"
    body = (
        f"Batches by {config.data.batch_by}, budget {config.data.batch_size:,}; only the order of "
        "the pairs differs. Padding is the share of positions on both sides without a token."
        f"\n\n{table(rows, columns)}"
    )
    report.add("Padding", body, {"rows": rows})


def data_parts(
    config: Config, text: ParallelText, work: Path
) -> tuple[dict[str, Callable[[int], object]], TokenizedSplit]:
    """The functions to run in each round, by name, and the ids of the text."""
    languages = {"src_lang": config.data.src_lang, "tgt_lang": config.data.tgt_lang}
    sides = text.src, text.tgt
    make = partial(build_tokenizer, config.tokenizer, lambda: sides, **languages)
    seen = make()
    seen.save(work / "tokenizer")

    def tokenize(number: int) -> None:
        tokenizer = load_tokenizer(work / "tokenizer")  # it remembers no words yet
        for start in range(0, len(text), CHUNK):
            tokenizer.encode_src_batch(text.src[start : start + CHUNK])
            tokenizer.encode_tgt_batch(text.tgt[start : start + CHUNK])

    def cache(number: int | str, tokenizer: BaseTokenizer = seen) -> TokenizedSplit:
        folder, max_len = work / f"cache_{number}", config.data.max_len
        return tokenize_split(text, tokenizer, max_len=max_len, too_long="drop", cache_dir=folder)

    split = cache("opened")
    trained = isinstance(config.tokenizer, Subword)  # a pretrained one is only fetched
    return {
        **({"making the tokenizer": lambda number: make()} if trained else {}),
        "tokenising": tokenize,
        "token cache, built": lambda number: cache(number, load_tokenizer(work / "tokenizer")),
        "token cache, opened": lambda number: cache("opened"),
        "forming batches": lambda number: our_batches(split, config),
    }, split


def our_batches(split: TokenizedSplit, config: Config) -> list[np.ndarray]:
    by, size = config.data.batch_by, config.data.batch_size
    sides = split.src_lengths, split.tgt_lengths
    return form_batches(*sides, batch_by=by, batch_size=size, seed=config.train.seed)


def orders(split: TokenizedSplit, config: Config) -> dict[str, list[np.ndarray]]:
    """Our batches, and those of other orders of the rows, cut by the same budget."""
    src, tgt = split.src_lengths, split.tgt_lengths
    longest, by, size = np.maximum(src, tgt), config.data.batch_by, config.data.batch_size
    drawn = np.random.default_rng(config.train.seed).permutation(len(src))
    simpler = {
        "by source, then target": np.lexsort((tgt, src)),
        "by source alone": np.lexsort((drawn, src)),
        "random": drawn,
    }
    cut = {name: cut_batches(order, longest, by, size) for name, order in simpler.items()}
    return {"ours": our_batches(split, config), **cut}


def compare_padding(split: TokenizedSplit, config: Config) -> list[dict[str, Any]]:
    """A row for each order; padding: the share of positions of both sides without a token."""
    n_tokens = len(split.src_ids) + len(split.tgt_ids)
    rows: list[dict[str, Any]] = []
    for name, batches in orders(split, config).items():
        positions = padded_tokens(batches, split.src_lengths, split.tgt_lengths)
        row = {"order": name, "batches": len(batches), "positions": positions}
        row["over_ours"] = positions / (rows or [row])[0]["positions"]
        rows.append({**row, "padding": 1 - n_tokens / positions})
    return rows


TINY = {  # a run of one update
    "data.corpus.n_train": 1000,
    "data.corpus.n_validation": 20,
    "data.corpus.n_test": 20,
    "tokenizer.vocab_size": 600,
    "decode.max_len": 24,
    "evaluate.bleu_every_epochs": 0,
    "train.max_steps": 1,
}


class Script(NamedTuple):
    """Arguments for Python, the first useful output, and a pattern of its line."""

    args: tuple[str, ...]
    until: str
    pattern: str


def scripts(work: Path, device: str, threads: int | None) -> dict[str, Script]:
    """The scripts as a user starts them, after the lower bound for any that uses torch.

    Those after train.py use the run that it has made.
    """
    limit = () if threads is None else ("--threads", str(threads))
    runs = work / "tiny"
    changes = {"train.device": device, "train.runs_dir": runs, "data.cache_dir": work / "cache"}
    settings = [f"--set={key}={value}" for key, value in {**TINY, **changes}.items()]
    train = ("train.py", "--config", "configs/demo.py", *limit, *settings)
    use = ("--runs_dir", str(runs), "--device", device, *limit)
    translate = ("inference.py", "--src_text", "Le chat dort.", *use)
    draw = ("visualize.py", "encoding", *use, "--output_dir", str(work / "pictures"))
    return {
        "python": Script(("-c", "print(1)"), "first line", "^1$"),
        "import torch": Script(("-c", "import torch; print(1)"), "first line", "^1$"),
        "train.py": Script(train, "one update, saved", rf"^{re.escape(str(runs))}/\w+$"),
        "inference.py": Script(translate, "first translation", "^=== greedy search ===$"),
        "test.py": Script(("test.py", "--limit", "8", *use), "first score", "^BLEU"),
        "visualize.py encoding": Script(draw, "first picture", r"\.png$"),
    }


def first_output(script: Script) -> float:
    """Seconds from the start of a process to its first useful line, when it is ended.

    Raises UserError if it ends earlier.
    """
    start, line = time.perf_counter(), ""
    with subprocess.Popen(
        [sys.executable, "-u", *script.args],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if re.search(script.pattern, line):
                seconds = time.perf_counter() - start
                process.kill()
                return seconds
    raise UserError(f"{script.args[0]} ended without its {script.until}: {line.strip()}")


def report_start(report: Report, scripts: dict[str, Script], starts: int) -> None:
    """The third table."""
    rounds = [[first_output(script) for script in scripts.values()] for _ in range(starts + 1)]
    seconds = dict(zip(scripts, zip(*rounds[1:])))  # the first round warms up
    rows = [
        {
            "script": name,
            "until": script.until,
            "seconds": seconds[name],
            "spread": spread(seconds[name]),
            "over_torch": ratio(seconds[name], seconds["import torch"]),
        }
        for name, script in scripts.items()
    ]
    columns = {"": "{script}", "until": "{until}", "seconds": "{spread}"}
    columns["/ import torch"] = "{over_torch.median:.2f}"
    about = f"The demo's config. Median of {starts} starts in turn, quartiles in brackets."
    report.add("Start-up", f"{about}\n\n{table(rows, columns)}", {"rows": rows})


if __name__ == "__main__":
    run_main(main)
