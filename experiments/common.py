"""What experiments share: their command line, their tables, and the frame of those over trials."""

from __future__ import annotations

import itertools
import os
import statistics
from argparse import Namespace
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from configs.load import load_config
from configs.positions import POSITIONS
from configs.schema import Config
from configs.serialize import parse_override
from data.corpora.build import build_corpus
from experiments.trials import Runner, Trial, say
from translation.arguments import add_set_argument
from utils.cli import Parser, positive
from utils.errors import ConfigError, UserError
from utils.files import write_text
from utils.tables import write_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = list[dict[str, Any]]
NOTHING = "–"  # in a table
# Of this machine: not for a report.
PLACES = ("data.corpus.root", "data.corpus.path", "data.cache_dir", "train.runs_dir")


# ------------------------------------------------------------------------------------- command line


def chosen(text: str, known: Collection[str], what: str) -> list[str]:
    """The names in `text`, between commas, each once. Raises UserError for an unknown one."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(f"no {what} {', '.join(map(repr, unknown))}: there are {', '.join(known)}")
    if not names:
        raise UserError(f"{text!r}: name at least one {what}")
    return names


def chosen_positions(text: str) -> list[str]:
    return chosen(text, POSITIONS, "position scheme")


def chosen_seeds(text: str) -> list[int]:
    """The seeds in `text`, between commas, each once. Raises UserError for what is no seed."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        raise UserError(f"--seeds {text!r}: integers >= 0, separated by commas")
    return list(dict.fromkeys(map(int, parts)))


def add_trial_arguments(parser: Parser, *, config: str | None, output_dir: Path | None) -> None:
    """The options of every experiment over trials. None: the default is the experiment's affair."""
    add = parser.add_argument
    add("--config", metavar="FILE", default=config, help="the config that all runs share")
    each = "one training of each variant for each (default: 0)"
    add("--seeds", metavar="N,...", type=chosen_seeds, default="0", help=each)
    add_set_argument(parser, "SECTION.FIELD=VALUE", "field of the config for all runs")
    what = "what the scored translations are from"
    add("--search", choices=("greedy", "beam"), default="beam", help=what)
    add("--output_dir", metavar="DIR", type=Path, default=output_dir)
    at_once = "runs at once; they share the cores (and disturb tokens/s)"
    add("--jobs", metavar="N", type=positive, default=1, help=at_once)
    threads = "CPU threads of each run (default: cores / jobs)"
    add("--threads", metavar="N", type=positive, help=threads)
    nothing = "table and plots of what is done; nothing is run"
    add("--report_only", action="store_true", help=nothing)


def add_positions_argument(parser: Parser, default: str) -> None:
    names = "position schemes, separated by commas (names as for --position)"
    add = parser.add_argument
    add("--positions", metavar="NAME,...", type=chosen_positions, default=default, help=names)


def position_config(args: Namespace, name: str, more: list[str]) -> Config:
    """The config of the command line under the position scheme `name`."""
    return load_config(args.config, [*args.overrides, *more], name)


def make_trials(
    args: Namespace,
    load: Callable[[str, list[str]], Config],
    variants: Iterable[str],
    *,
    validation: bool = False,
) -> tuple[list[Trial], dict[str, str]]:
    """A trial of each variant and seed, seeds outermost; and why other variants are refused.

    load: the config of a variant with more `--set` texts. validation: that split is scored too.
    Raises ConfigError where all are refused: then the fault lies with the config or the changes.
    """
    trials: list[Trial] = []
    refused: dict[str, ConfigError] = {}
    for seed, name in itertools.product(args.seeds, variants):
        if name in refused:
            continue
        try:
            config = load(name, [f"train.seed={seed}"])
        except ConfigError as error:
            refused[name] = error
            continue
        corpus = build_corpus(config.data)
        more = (corpus.validation,) if validation else ()
        trials.append(Trial(name, seed, config, args.output_dir, corpus.test, more, args.search))
    if not trials:
        raise next(reversed(refused.values()))
    return trials, {name: " ".join(str(error).split()) for name, error in refused.items()}


# ------------------------------------------------------------------------------------------- tables


def mean_plus_minus(values: Iterable[float | None], digits: int = 3) -> str:
    """`0.950 ± 0.012` from several values, `0.950` from one, a dash from none.

    The second number is the sample standard deviation.
    """
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    mean = f"{statistics.fmean(known):.{digits}f}"
    return f"{mean} ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else mean


def provenance_line(provenances: Iterable[Mapping[str, str]]) -> str:
    """Which commits, versions and hardware figures come from."""
    made = list(provenances)
    commits, torches, machines = (
        ", ".join(dict.fromkeys(each[key] for each in made))
        for key in ("commit", "torch", "hardware")
    )
    return f"commit {commits}, torch {torches}, {machines}"


# ------------------------------------------------------------------------------------------ lengths


def buckets(edges: Sequence[int], sources: Sequence[str] = ()) -> dict[str, list[int]]:
    """The rows of the sentences in each bucket of source words (split at white space), by name.

    `edges` are increasing upper ends, in words; an open bucket follows the last.
    """
    lows = [1, *(edge + 1 for edge in edges)]
    names = [f"{low}–{high}" if low < high else f"{high}" for low, high in zip(lows, edges)]
    names.append(f"≥{lows[-1]}")
    rows: dict[str, list[int]] = {name: [] for name in names}
    for row, source in enumerate(sources):
        rows[names[bisect_left(edges, len(source.split()))]].append(row)
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
        for rows in buckets(edges, sources).values()
    ]


def length_figure(
    bleu: Mapping[str, Sequence[Sequence[float | None]]],
    sources: Sequence[str],
    edges: Sequence[int],
    *,
    title: str,
    baseline: str | None = None,
) -> Figure:
    """sacreBLEU over the length of the sources, a line for each name; the baseline's is black.

    bleu: for each name its values by bucket, one sequence a seed; the mean over the seeds is drawn.
    """
    from pictures.panels import panel_figure

    axis = {"x_label": "source words (number of sentences)", "y_label": "sacreBLEU"}
    figure, [[axes]] = panel_figure(1, 1, size=(6.7, 4.2), title=title, room=1.8, **axis)
    lines = []
    for number, (name, seeds) in enumerate(bleu.items()):
        known = [[value for value in bucket if value is not None] for bucket in zip(*seeds)]
        means = [statistics.fmean(values) if values else float("nan") for values in known]
        style = ("o-", "o--", "o:")[number // 10 % 3]  # there are ten colours
        style, colour = ("o--", "black") if name == baseline else (style, f"C{number % 10}")
        lines += axes.plot(means, style, markersize=4, linewidth=1.6, color=colour)
    labels = [f"{name}\n({len(rows):,})" for name, rows in buckets(edges, sources).items()]
    axes.set_xticks(range(len(labels)), labels=labels, fontsize=8)
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.grid(alpha=0.3)
    figure.legend(lines, list(bleu), loc="outside right center", frameon=False, fontsize=8)
    return figure


# -------------------------------------------------------------------------------------- experiments


@dataclass
class Experiment:
    """Trials, what became of them, and the files in --output_dir that tell it."""

    args: Namespace
    trials: list[Trial]
    failures: dict[str, str]  # the reasons, by the titles of trials and by variants refused
    noun: str  # what a variant is: a column of the CSV file
    stem: ClassVar[str]  # of the files' names

    def rows(self, trial: Trial) -> Rows:
        """What the CSV file says of a trial that is done, after the first columns."""
        raise NotImplementedError

    def report(self, rows: Rows) -> str:
        """Markdown for a reader, from the rows of the CSV file; some trial is done."""
        raise NotImplementedError

    def draw(self, rows: Rows) -> None:
        """Write the pictures; some trial is done."""
        raise NotImplementedError

    def run(self, runner: Runner) -> None:
        runner.run(self.trials)

    def done(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.is_scored()]

    def all_rows(self) -> Rows:
        """Trial by trial what is done, failed or not run, then the variants that are refused."""
        rows: Rows = []
        for trial in self.trials:
            first = {self.noun: trial.variant, "seed": trial.seed}
            reason = self.failures.get(trial.title, "")
            if trial.is_scored():
                rows += [first | row for row in self.rows(trial)]
            else:
                rows.append(first | {"status": "failed" if reason else "not run", "reason": reason})
        titles = {trial.title for trial in self.trials}
        for name, reason in self.failures.items():
            if name not in titles:
                rows.append({self.noun: name, "status": "failed", "reason": reason})
        return rows

    def write(self, *, pictures: bool = False) -> str:
        """Write both tables, and the pictures if asked to; the Markdown."""
        rows, folder = self.all_rows(), self.args.output_dir
        some_done = any(row["status"] == "done" for row in rows)
        failed = "".join(f"- {name}: {reason}\n" for name, reason in self.failures.items())
        text = self.report(rows) if some_done else failed or "Nothing is done.\n"
        write_text(folder / f"{self.stem}.md", text)
        write_csv(folder / f"{self.stem}.csv", rows)
        if some_done and pictures:
            self.draw(rows)
        return text

    def main(self) -> int:
        """Run what is not done (nothing with --report_only), write and print.

        The exit code: 0, 1 where a trial failed, 128 + the signal that ended the trials.
        """
        args = self.args
        for name, reason in self.failures.items():
            say(f"{name}: failed: {reason}")
        has_affinity = hasattr(os, "sched_getaffinity")
        cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
        threads = args.threads or max(1, cores // args.jobs)
        runner = Runner(args.jobs, threads, self.failures, done=self.write)
        if not args.report_only:
            self.run(runner)
        elif not self.done():
            raise UserError(
                f"{args.output_dir}: nothing of this is done yet; leave --report_only out to run it"
            )
        print(self.write(pictures=True), end="")
        say(f"written: {args.output_dir}/{self.stem}.*")
        return int(bool(self.failures)) if runner.stopped is None else 128 + runner.stopped

    def failed_lines(self, n_columns: int) -> list[list[object]]:
        """The last lines of a reader's table: what failed, and why."""
        dashes = [NOTHING] * (n_columns - 2)
        return [[name, f"failed: {reason}", *dashes] for name, reason in self.failures.items()]

    def about(self) -> tuple[str, str, str]:
        """Config with its changes, seeds, provenance: for a reader."""
        changes = dict(map(parse_override, self.args.overrides))  # of each key the last
        stated = [f"{key}={value}" for key, value in changes.items() if key not in PLACES]
        config = f"Config {Path(self.args.config).name}"
        config += f" with {', '.join(stated)}" if stated else ""
        seeds = f"seeds {', '.join(map(str, self.args.seeds))}"
        records = [trial.scores(trial.splits[0]) for trial in self.done()]
        return config, seeds, provenance_line(record["provenance"] for record in records)
