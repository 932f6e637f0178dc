"""Shared by the experiments: command line, tables, plots, and the frame for trials."""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from argparse import Namespace
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean, stdev
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np

from configs.load import add_set_argument
from configs.position_names import KINDS, POSITIONS
from configs.positions import Position, Randomized, Ssmax
from configs.schema import Config
from configs.serialize import diff, parse_override
from data.corpora.build import build_corpus
from experiments.store import Record, Sentences, add_record, read_store
from experiments.trials import BUSY, NEUTRAL, ROOT, Runner, Trial, say
from utils.cli import Parser, cores, positive, threads
from utils.errors import ConfigError, UserError
from utils.files import write_text
from utils.tables import markdown_table, write_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")
Rows = list[dict[str, Any]]
NOTHING = "–"  # in a table
SPREAD = "± is the standard deviation over the seeds"
TOK = re.compile(r"tok:[^|]+")  # in a signature of sacreBLEU
SSMAX = "_ssmax"  # ends the name of a scheme with SSMax
# Places on this machine: not for a report.
PATHS = ("corpus.root", "corpus.path", "data.cache_dir")


def between_commas(text: str) -> list[str]:
    """The parts of a text between commas, each once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def chosen(text: str, known: Collection[str], what: str) -> list[str]:
    """The names in `text`, between commas. Raises UserError for an unknown name or no name."""
    names = between_commas(text)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(f"no {what} {', '.join(map(repr, unknown))}: there are {', '.join(known)}")
    if not names:
        raise UserError(f"{text!r}: name at least one {what}")
    return names


def with_ssmax(position: Position) -> Position:
    """The scheme with SSMax, put inside any Randomized. Raises ConfigError if it has SSMax."""
    if isinstance(position, Ssmax):
        raise ConfigError("--ssmax: this scheme has SSMax already; leave it out")
    if isinstance(position, Randomized):
        return replace(position, scheme=cast(Any, with_ssmax(position.scheme)))
    return Ssmax(scheme=position)


def chosen_positions(text: str) -> list[str]:
    """Texts for `--position`, between commas. Raises UserError for an unknown name or no name.

    Fields after a colon (`rope:base=500`) are checked with the config.
    """
    names = (part.partition(":")[0] for part in between_commas(text))
    chosen(",".join(names), POSITIONS | KINDS, "position scheme")
    return between_commas(text)


def chosen_numbers(text: str, flag: str, least: int) -> list[int]:
    """The integers in `text`, between commas, each once.

    Raises UserError for anything else, for more than 18 digits, and for no integer.
    """
    parts = between_commas(text)
    if any(re.fullmatch("[0-9]{19,}", p) for p in parts):
        raise UserError(f"{flag} {text!r}: must have at most 18 digits each")
    if not parts or not all(re.fullmatch("[0-9]+", p) and int(p) >= least for p in parts):
        raise UserError(f"{flag} {text!r}: must be integers >= {least}, separated by commas")
    return list(dict.fromkeys(map(int, parts)))


chosen_seeds = partial(chosen_numbers, flag="--seeds", least=0)


def add_trial_arguments(
    parser: Parser,
    *,
    config: str | None,
    output_dir: Path | None,
    positions: str = "",
    seeds: str = "each variant is trained once with each",
) -> None:
    """The options of every experiment over trials; --positions only if it has a default.

    Defaults that are None depend on the corpus. seeds: what they are for.
    """
    add = parser.add_argument
    if positions:
        default = "all names" if positions == ",".join(POSITIONS) else positions
        names = f"position schemes as for --position, separated by commas (default: {default})"
        add("--positions", metavar="NAME,...", type=chosen_positions, default=positions, help=names)
    shared = f"the config that all runs share (default: {config or 'depends on the corpus'})"
    add("--config", metavar="FILE", default=config and str(ROOT / config), help=shared)
    each = f"{seeds} (default: 0)"
    add("--seeds", metavar="N,...", type=chosen_seeds, default="0", help=each)
    add_set_argument(parser, "SECTION.FIELD=VALUE", "field of the config for all runs")
    what = "the search whose translations are scored (default: beam)"
    add("--search", choices=("greedy", "beam"), default="beam", help=what)
    folder = f"where everything is written (default: {output_dir or 'depends on the corpus'})"
    add("--output_dir", metavar="DIR", type=Path, default=output_dir, help=folder)
    at_once = "runs at once, which share the cores (and distort tokens/s)"
    add("--jobs", metavar="N", type=positive, default=1, help=at_once)
    what = "CPU threads of each run (default: cores / jobs)"
    add("--threads", metavar="N", type=threads, help=what)
    where = "the file of what was measured (default: a .jsonl file in --output_dir)"
    add("--store", metavar="FILE", type=Path, help=where)
    nothing = "run nothing: only write table and plots of what is done"
    add("--report_only", action="store_true", help=nothing)


def refuse_overrides(
    overrides: Iterable[str], instead: Mapping[str, str], flag: str = "--set"
) -> None:
    """Raises UserError for an override of a field that the experiment sets; names its option."""
    for key, _ in map(parse_override, overrides):
        for field_name, option in {"train.runs_dir": "--output_dir", **instead}.items():
            if f"{key}.".startswith(f"{field_name}."):
                raise UserError(f"{flag} {key}: the experiment decides it itself; see {option}")


def make_trials(
    args: Namespace,
    load: Callable[[str, list[str]], Config],
    variants: Iterable[str],
    *,
    validation: bool = False,
    instead: Mapping[str, str] = MappingProxyType({}),
) -> list[Trial]:
    """A trial of each variant and seed, seeds outermost. Raises ConfigError naming the variant.

    load: makes the config of a variant, with more `--set` texts. validation: score that split too.
    instead: see `refuse_overrides`.
    """
    refuse_overrides(args.overrides, {"train.seed": "--seeds", **instead})
    trials = []
    for seed, name in itertools.product(args.seeds, variants):
        try:
            config = load(name, [f"train.seed={seed}"])
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
        corpus = build_corpus(config.data)
        splits = (*corpus.test, corpus.validation) if validation else corpus.test
        trials.append(Trial(name, seed, config, args.output_dir, corpus.test, splits, args.search))
    return trials


def mean_plus_minus(values: Iterable[float | None], form: str = "z.3f", spread: bool = True) -> str:
    """Mean ± sample standard deviation, `0.950 ± 0.012`; `0.950` for one value, a dash for none."""
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    mean = f"{fmean(known):{form}}"
    return f"{mean} ± {stdev(known):{form}}" if spread and len(known) > 1 else mean


def means(key: Any, form: str, *, spread: bool = True) -> Callable[[Sequence[Any]], str]:
    """A table's cell for `key` of several seeds."""
    return lambda seeds: mean_plus_minus((seed[key] for seed in seeds), form, spread)


def ranked(of_seeds: Iterable[tuple[str, T]], score: Callable[[T], float]) -> dict[str, list[T]]:
    """Results of single seeds, grouped by the name of the variant, the best mean score first."""
    groups: dict[str, list[T]] = {}
    for name, each in of_seeds:
        groups.setdefault(name, []).append(each)
    return dict(sorted(groups.items(), key=lambda group: -fmean(map(score, group[1]))))


def seeds_table(
    first: str,
    groups: Mapping[str, T],
    columns: Mapping[str, Callable[[T], object]],
    failures: Mapping[str, str],
) -> str:
    """Markdown: a line for each group of seeds, a cell for each function; then the failures."""
    lines = [[name, *(cell(seeds) for cell in columns.values())] for name, seeds in groups.items()]
    dashes = [NOTHING] * (len(columns) - 1)
    lines += [[name, f"failed: {reason}", *dashes] for name, reason in failures.items()]
    return markdown_table([first, *columns], lines)


def not_run(rows: Rows, noun: str) -> str:
    """The rows of a CSV file that are left to do, in words; "" if there are none."""
    names = [f"{row[noun]}, seed {row['seed']}" for row in rows if row["status"] == "not run"]
    return f"\nNot run yet: {'; '.join(names)}.\n" if names else ""


def provenance_line(provenances: Sequence[Mapping[str, str]]) -> str:
    """The commits, versions, precision and hardware of the figures, as far as is known."""
    words = {"commit": "commit ", "torch": "torch ", "precision": "trained in ", "hardware": ""}
    found = {
        key: ", ".join(dict.fromkeys(each[key] for each in provenances if key in each))
        for key in words
    }
    line = ", ".join(f"{words[key]}{values}" for key, values in found.items() if values)
    return re.sub(r"\b1 threads\b", "1 thread", line)  # stores have the plural


def buckets(edges: Sequence[int], words: Iterable[int] = ()) -> dict[str, list[int]]:
    """The rows of the sentences in each bucket of source words, by the bucket's name.

    `edges` are increasing upper ends, in words; an open bucket follows the last.
    """
    lows = [1, *(edge + 1 for edge in edges)]
    names = [f"{low}–{high}" if low < high else f"{high}" for low, high in zip(lows, edges)]
    names.append(f"≥{lows[-1]}")
    rows: dict[str, list[int]] = {name: [] for name in names}
    for row, n_words in enumerate(words):
        rows[names[bisect_left(edges, n_words)]].append(row)
    return rows


def bleu_by_length(splits: Iterable[Sentences], edges: Sequence[int]) -> list[float | None]:
    """sacreBLEU of each bucket over the splits together; None where a bucket has no sentence."""
    from translation.metrics import summed_bleu

    splits = list(splits)
    statistics = np.concatenate([each.statistics for each in splits])
    rows_of = buckets(edges, np.concatenate([each.words for each in splits])).values()
    return [float(summed_bleu(statistics[rows].sum(0))) if rows else None for rows in rows_of]


def length_figure(
    bleu: Mapping[str, Sequence[Sequence[float | None]]],
    words: Iterable[int],
    edges: Sequence[int],
    title: str,
) -> Figure:
    """sacreBLEU over the length of the sources, a line for each name, the mean over its seeds.

    bleu: for each name the values by bucket, one sequence a seed. words: of all sources.
    """
    from pictures.panels import Curve, curve_panels

    labels = [f"{name}\n({len(rows):,})" for name, rows in buckets(edges, words).items()]
    means = {name: np.array(seeds, dtype=float).mean(axis=0) for name, seeds in bleu.items()}
    curves = {"": {name: Curve(range(len(labels)), mean) for name, mean in means.items()}}
    label, mean = "source words (number of sentences)", "sacreBLEU (mean over the seeds)"
    figure = curve_panels(curves, size=(6.7, 4.2), title=title, x_label=label, y_label=mean)
    figure.axes[0].set_xticks(range(len(labels)), labels=labels, fontsize=8)
    figure.axes[0].set_xlim(-0.5, len(labels) - 0.5)
    return figure


def score_figure(
    panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], *, title: str, baseline: str = ""
) -> Figure:
    """Panels of scores {x label: {name: (scores, lows, highs)}}, one for each seed.

    A dot is the mean, a line goes from the mean low to the mean high, marks are single seeds.
    """
    from pictures.panels import panel_figure

    names = list(next(iter(panels.values())))
    size = (5.0 if len(panels) == 1 else 3.4, max(1.8, 0.24 * len(names) + 0.6))
    figure, [places] = panel_figure(1, len(panels), size=size, title=title, room=0.4, sharey=True)
    for place, (label, scores) in zip(places, panels.items()):
        for row, name in enumerate(names):
            mean, low, high = map(fmean, scores[name])
            seeds = scores[name][0]
            colour = "C1" if name == baseline else "C0"
            place.plot([low, high], [row] * 2, color=colour, linewidth=1.6, alpha=0.6)
            place.plot(mean, row, "o", color=colour, markersize=5)
            if len(seeds) > 1:
                place.plot(seeds, [row] * len(seeds), "|", color="black", markersize=6)
            if name == baseline:
                place.axvline(mean, color=colour, linewidth=0.8, linestyle="--")
        place.set_yticks(range(len(names)), labels=names, fontsize=8)
        place.set_ylim(len(names) - 0.3, -0.7)
        place.set_axisbelow(True)
        place.grid(alpha=0.3)
        place.set_xlabel(label, fontsize=9)
    return figure


@dataclass
class Experiment(ABC):
    """Trials, their results, and the files in --output_dir that report them.

    All reports come from the store: a trial in it is not run again, even if its run is gone.
    """

    args: Namespace
    trials: list[Trial]
    noun: str  # what a variant is: a column of the CSV file
    failures: dict[str, str] = field(init=False, default_factory=dict)  # by the titles of trials
    done: list[Trial] = field(init=False, default_factory=list)
    stem: ClassVar[str]  # of the files' names

    @abstractmethod
    def rows(self, trial: Trial) -> Rows:
        """The rows of the CSV file for a trial that is done, after the first columns."""

    @abstractmethod
    def report(self, rows: Rows) -> str:
        """Markdown for a reader, from the rows of the CSV file; at least one trial is done."""

    def draw(self, rows: Rows) -> None:
        """Write the pictures, if there are any; at least one trial is done."""
        return

    @cached_property
    def records(self) -> dict[str, Record]:
        """The records of the store, by the digests of trials."""
        return read_store(self.store)

    @property
    def store(self) -> Path:
        return self.args.store or self.args.output_dir / f"{self.stem}.jsonl"

    def record(self, trial: Trial) -> Record:
        """The record of a trial that is done."""
        return self.records[trial.digest]

    def require_one_text(self, trial: Trial) -> None:
        """Raises UserError where a split has other sentences or tokens than in its first trial.

        Likewise where a trial was trained on other text than the first with the same data section.
        """

        def training_text(each: Trial) -> str | None:
            return self.record(each).provenance.get("training_text")  # older records lack it

        data = trial.config.data
        alike = (each for each in self.done if each.config.data == data and training_text(each))
        other = next(alike, trial)
        if training_text(trial) not in (None, training_text(other)):
            raise UserError(
                f"{self.store}: {other.title} and {trial.title} were trained on other text: delete "
                "the line of one, and its run, to train it again"
            )
        for split in trial.splits:
            first = next(each for each in self.done if split in each.splits)
            both = (self.record(each).scores[split] for each in (first, trial))
            # sacreBLEU's tokens too: without MeCab, Japanese is scored by character
            tokens = {(x["data_fingerprint"], *TOK.findall(x["scores"]["signature"])) for x in both}
            if len(tokens) > 1:
                raise UserError(
                    f"{self.store}: {first.title} and {trial.title} were scored on other sentences "
                    f"or tokens of {split}: delete the line of one, and its run, to run it again"
                )

    def is_done(self, trial: Trial) -> bool:
        """Whether the store has the trial; a scored trial that is missing there is added."""
        if trial.digest not in self.records and trial.is_scored():
            self.records.update(read_store(self.store))  # another process may have added it since
            if trial.digest not in self.records:
                self.records[trial.digest] = Record.of(trial)
                add_record(self.store, trial, self.records[trial.digest])
        return trial.digest in self.records

    def run(self, runner: Runner) -> None:
        """Run the trials that are not done."""
        missing = [trial for trial in self.trials if not self.is_done(trial)]
        if known := len(self.trials) - len(missing):
            say(f"measured before, not again: {known} of {len(self.trials)} (in {self.store})")
        runner.run(missing)

    def main(self) -> int:
        """Run the trials that are not done (none with --report_only), then write and print.

        The exit code: 0, 1 if a trial failed, 128 + the signal that ended the trials. Raises
        UserError if there is no text to train on.
        """
        args, folder = self.args, self.args.output_dir
        threads = args.threads or max(1, cores() // args.jobs)
        runner = Runner(args.jobs, threads, self.failures, self.is_done)
        if not args.report_only:
            for trial in [trial for trial in self.trials if not self.is_done(trial)][:1]:
                corpus = build_corpus(trial.config.data)
                corpus.load(corpus.validation)  # missing text is reported once, before any process
            self.run(runner)
        self.done = [trial for trial in self.trials if self.is_done(trial)]
        missing = {trial.title for trial in self.trials if not self.is_done(trial)}
        for title in self.failures.keys() - missing:  # another process has done these meanwhile
            del self.failures[title]
        if args.report_only and not self.done:
            what = f"nothing of this is done yet{self.nearest()}; leave --report_only out"
            raise UserError(f"{self.store}: {what}")
        rows = self.all_rows()
        failed = "".join(f"- {name}: {reason}\n" for name, reason in self.failures.items())
        text = self.report(rows) if self.done else failed or "Nothing is done.\n"
        page = folder / f"{self.stem}.md"
        own = any(not reason.startswith(BUSY) for reason in self.failures.values())
        if self.done or own or not page.exists():  # else it is the page of others
            write_text(page, text)
            write_csv(page.with_suffix(".csv"), rows)
            if self.done:
                self.draw(rows)
            say(f"written: {folder}/{self.stem}.*")
        print(text, end="")
        return 128 + runner.signals[-1] if runner.signals else int(bool(self.failures))

    def nearest(self) -> str:
        """How the training in the store that is most like the first trial differs from it."""
        neutral = [f"{part}.{field}" for part in ("data", "train") for field in NEUTRAL[part]]
        found: list[list[str]] = []
        for each in self.records.values():
            of_each = diff(each.config, self.trials[0].config)
            free = {key for key, *_ in of_each for name in ("name", *neutral) if fnmatch(key, name)}
            found.append([f"{key}={value!r}" for key, value, _ in of_each if key not in free])
        changes = min(found, key=len, default=[])
        has = ", ".join(changes[:5]) or "another search or average"
        return f" (the nearest training in it has {has})" * bool(found)

    def all_rows(self) -> Rows:
        """All trials, done, failed or not run. Raises UserError for different text."""
        rows: Rows = []
        for trial in self.trials:
            first = {self.noun: trial.variant, "seed": trial.seed}
            reason = self.failures.get(trial.title, "")
            if trial in self.done:
                self.require_one_text(trial)
                made = {"precision": self.record(trial).provenance.get("precision")}
                rows += [first | row | made for row in self.rows(trial)]
            else:
                rows.append(first | {"status": "failed" if reason else "not run", "reason": reason})
        return rows

    def about(self) -> tuple[str, str, str]:
        """Config with its changes, seeds, provenance: for a reader."""
        changes = dict(map(parse_override, self.args.overrides))  # the last of each key
        stated = [f"{key}={value}" for key, value in changes.items() if not key.endswith(PATHS)]
        config = f"Config {Path(self.args.config).name}"
        config += f" with {', '.join(stated)}" if stated else ""
        seeds = f"seeds {', '.join(map(str, self.args.seeds))}"
        made = [self.record(trial).provenance for trial in self.done]
        mixed = len({each["precision"] for each in made if "precision" in each}) > 1
        which = "; not all in one precision, see the CSV file" * mixed
        return config, seeds, provenance_line(made) + which
