"""Trainings that differ in one thing, side by side: tables, plots, and the paired bootstrap against
a baseline.

Each variant is trained with each seed by train.py and scored by test.py, in processes of their own
(see experiments/runs.py). What is done is not run again, what was cut short goes on; a changed
config is another run and never mistaken for the old one. Written into --output_dir:

    comparison.md             tables: a row for each variant, means over the seeds
    comparison.csv            a row for each variant, seed and test split
    comparison_bleu.png       sacreBLEU with 95% intervals, by variant
    comparison_lengths.png    sacreBLEU by source length, all test splits together, for chosen
    variants

The paired bootstrap compares a variant with the baseline of the same seed, sentence by sentence. It
tells whether other test sentences would give another winner, not whether another seed would: that
is what several seeds are for. With --jobs above 1 the runs disturb each other: compare tokens/s and
minutes from --jobs 1 alone.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from experiments import runs
from experiments.common import mean_plus_minus
from experiments.runs import Result, Runner, Trial
from utils.errors import UserError
from utils.files import write_text
from utils.tables import markdown_table, write_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from translation.metrics import PairedResult

N_CURVES = 6  # variants in the plot by length, where none are named
NOTHING = "–"


@dataclass
class Comparison:
    """What was asked for, and what is there of it. `noun`: what a variant is, for titles and the
    first column.
    """

    args: Namespace
    noun: str
    variants: list[str]  # the baseline first
    seeds: list[int]
    trials: list[Trial]
    failures: dict[str, str]  # by the trial's or the variant's name

    def __post_init__(self) -> None:
        self._paired: dict[tuple[Path, Path, str], PairedResult] = {}

    @property
    def baseline(self) -> str:
        return self.variants[0]

    def results(self) -> dict[tuple[str, int], Result]:
        """What is done, by variant and seed."""
        found = ((trial, trial.result()) for trial in self.trials)
        return {
            (trial.variant, trial.seed): result for trial, result in found if result is not None
        }

    def paired(self, result: Result, baseline: Result | None, split: str) -> PairedResult | None:
        """Against the baseline of the same seed; None for itself and where there is none."""
        if baseline is None or baseline.trial == result.trial:
            return None
        key = (baseline.run, result.run, split)
        if key not in self._paired:
            from translation.metrics import paired_bootstrap

            a, b = baseline.trial, result.trial
            if a.lines(split, "ref") != b.lines(split, "ref"):
                raise UserError(
                    f"{a.folder} and {b.folder} were scored on other sentences: delete one to run it again"
                )
            samples = b.config.evaluate.bootstrap_samples
            found = (a.lines(split, "hyp"), b.lines(split, "hyp"), b.lines(split, "ref"))
            self._paired[key] = paired_bootstrap(*found, samples=samples, seed=0)
        return self._paired[key]


# ------------------------------------------------------------------------------------------- tables

CSV_HEADER = (
    *(
        "seed",
        "split",
        "status",
        "reason",
        "parameters",
        "validation_loss",
        "test_loss",
        "token_accuracy",
    ),
    *(
        "bleu4",
        "sacrebleu",
        "interval_low",
        "interval_high",
        "chrf",
        "baseline",
        "difference",
        "difference_low",
    ),
    *(
        "difference_high",
        "p_value",
        "tokens_per_second",
        "peak_memory_mb",
        "train_minutes",
        "jobs",
        "sentences",
    ),
)


def csv_rows(comparison: Comparison) -> tuple[list[str], list[list[object]]]:
    """Header and rows: each variant and seed, done or not, and each test split; buckets in columns
    of their own.
    """
    results = comparison.results()
    [edges, tests] = [
        comparison.trials[0].config.evaluate.length_buckets,
        comparison.trials[0].tests,
    ]
    names = runs.bucket_names(edges)
    header = [
        comparison.noun,
        *CSV_HEADER,
        *(f"{what} {name} words" for name in names for what in ("bleu", "n")),
        "commit",
        "run",
    ]
    rows: list[list[object]] = []
    for trial in comparison.trials:
        result = results.get((trial.variant, trial.seed))
        if result is None:
            reason = comparison.failures.get(trial.title, "")
            status = "failed" if reason else "not run"
            begin = [trial.variant, trial.seed, "", status, reason]
            rows.append([*begin, *[""] * (len(header) - len(begin))])
            continue
        for split in tests:
            record = result.scores[split]
            scores = record["scores"]
            paired = comparison.paired(
                result, results.get((comparison.baseline, trial.seed)), split
            )
            against: list[object] = [""] * 5
            if paired is not None:
                against = [comparison.baseline, paired.difference, *paired.interval, paired.p_value]
            rows.append(
                [
                    *(trial.variant, trial.seed, split, "done", "", _plain(result.parameters)),
                    *(
                        _plain(result.validation_loss),
                        record["loss"],
                        record["accuracy"],
                        scores["bleu4"],
                    ),
                    *(scores["sacrebleu"], *scores["interval"], scores["chrf"], *against),
                    *(
                        _plain(result.tokens_per_second),
                        _plain(result.peak_mb),
                        result.minutes,
                        result.jobs,
                    ),
                    scores["n"],
                    *(_plain(bucket[key]) for bucket in scores["buckets"] for key in ("bleu", "n")),
                    *(
                        record["provenance"]["commit"],
                        result.run.relative_to(trial.output_dir).as_posix(),
                    ),
                ]
            )
    for name, reason in comparison.failures.items():
        if name in comparison.variants:
            rows.append([name, "", "", "failed", reason, *[""] * (len(header) - 5)])
    return header, rows


def markdown(comparison: Comparison) -> str:
    """The tables for a reader: training, then each test split, best variant first; what failed and
    what is missing.
    """
    results = comparison.results()
    if not results:
        return (
            "".join(f"- {name}: {reason}\n" for name, reason in comparison.failures.items())
            or "Nothing is done.\n"
        )
    any_result = next(iter(results.values()))
    tests = any_result.trial.tests
    ranked = ranking(results, tests[0])
    parts = [
        f"# {comparison.noun.capitalize()}s compared\n\n{_about(comparison, results)}\n",
        "## Training\n",
    ]
    rows = [
        [
            name,
            len(found),
            _thousands([result.parameters for result in found]),
            mean_plus_minus(_known(result.validation_loss for result in found), 3),
            _thousands([result.tokens_per_second for result in found]),
            _thousands([result.peak_mb for result in found]),
            mean_plus_minus([result.minutes for result in found], 1),
        ]
        for name, found in ranked.items()
    ]
    header = [
        comparison.noun,
        "seeds",
        "parameters",
        "validation loss",
        "tokens/s",
        "peak memory (MB)",
        "minutes",
    ]
    unfinished = [(name, f"failed: {reason}") for name, reason in comparison.failures.items()]
    rows += [[name, what, *[NOTHING] * (len(header) - 2)] for name, what in unfinished]
    parts.append(markdown_table(header, rows))
    missing = [
        trial.title
        for trial in comparison.trials
        if (trial.variant, trial.seed) not in results and trial.title not in comparison.failures
    ]
    if missing:
        parts.append(f"Not run yet: {'; '.join(missing)}.\n")
    for split in tests:
        parts += [f"## {split}\n", _split_table(comparison, results, split)]
    averaged, each, spread = ("", "", "")
    if len(comparison.seeds) > 1:
        averaged, each = ", averaged over the seeds", ", p for each seed"
        spread = " ± is the standard deviation over the seeds."
    parts.append(
        "BLEU-4 is nltk's on 13a tokens (0 to 1), the rest is sacreBLEU (0 to 100). Intervals are 95%, by bootstrap "
        f"over the sentences{averaged}. Difference and p value: paired bootstrap against {comparison.baseline} of the "
        f"same seed{each}. Words are source words.{spread}\n"
    )
    return "\n".join(parts)


def _split_table(comparison: Comparison, results: dict[tuple[str, int], Result], split: str) -> str:
    ranked = ranking(results, split)
    first = next(iter(ranked.values()))[0].scores[split]["scores"]["buckets"]
    names = runs.bucket_names(next(iter(results.values())).trial.config.evaluate.length_buckets)
    buckets = [f"{name} words (n={bucket['n']})" for name, bucket in zip(names, first)]
    header = [
        comparison.noun,
        "loss",
        "token accuracy",
        "BLEU-4",
        "sacreBLEU",
        "95% interval",
        "difference",
        "p",
        *buckets,
    ]
    rows = []
    for name, found in ranked.items():
        records = [result.scores[split] for result in found]
        scores = [record["scores"] for record in records]
        low, high = (fmean(score["interval"][end] for score in scores) for end in (0, 1))
        paired = [
            pair
            for result in found
            if (
                pair := comparison.paired(
                    result, results.get((comparison.baseline, result.trial.seed)), split
                )
            )
        ]
        rows.append(
            [
                name,
                mean_plus_minus([record["loss"] for record in records], 3),
                mean_plus_minus([record["accuracy"] for record in records], 4),
                mean_plus_minus([score["bleu4"] for score in scores], 4),
                mean_plus_minus([score["sacrebleu"] for score in scores], 2),
                f"{low:.2f} to {high:.2f}",
                f"{fmean(pair.difference for pair in paired):+.2f}" if paired else NOTHING,
                ", ".join(f"{pair.p_value:.3f}" for pair in paired) or NOTHING,
                *(
                    mean_plus_minus(_known(score["buckets"][i]["bleu"] for score in scores), 1)
                    for i in range(len(buckets))
                ),
            ]
        )
    return markdown_table(header, rows)


def ranking(results: dict[tuple[str, int], Result], split: str) -> dict[str, list[Result]]:
    """The results of each variant, best mean sacreBLEU on the split first."""
    by_name: dict[str, list[Result]] = {}
    for (name, _), result in results.items():
        by_name.setdefault(name, []).append(result)

    def mean(name: str) -> float:
        return fmean(result.scores[split]["scores"]["sacrebleu"] for result in by_name[name])

    return {name: by_name[name] for name in sorted(by_name, key=mean, reverse=True)}


def _about(comparison: Comparison, results: dict[tuple[str, int], Result]) -> str:
    """What the figures are of, in a few lines."""
    args = comparison.args
    changes = runs.stated_changes(args.overrides)
    provenances = [result.provenance for result in results.values()]
    known = {
        key: ", ".join(dict.fromkeys(p[key] for p in provenances))
        for key in ("commit", "torch", "hardware")
    }
    signature = next(iter(results.values())).scores[comparison.trials[0].tests[0]]["scores"][
        "signature"
    ]
    lines = [
        f"Config {Path(args.config).name}" + (f" with {', '.join(changes)}" if changes else ""),
        f"seeds {', '.join(map(str, comparison.seeds))}",
        f"{args.search} search, sacreBLEU {signature}",
        f"commit {known['commit']}, torch {known['torch']}, {known['hardware']}",
    ]
    jobs = max(result.jobs for result in results.values())
    if jobs > 1:
        lines.append(
            f"up to {jobs} runs at once, so tokens/s and minutes are not those of a run alone"
        )
    return "; ".join(lines) + "."


def _known(values: Any) -> list[float]:
    return [value for value in values if value is not None]


def _plain(value: object) -> object:
    return "" if value is None else value


def _thousands(values: Sequence[float | None]) -> str:
    known = _known(values)
    return f"{fmean(known):,.0f}" if known else NOTHING


# ----------------------------------------------------------------------------------------- pictures


def bleu_figure(comparison: Comparison, results: dict[tuple[str, int], Result]) -> Figure:
    """sacreBLEU of each variant with its interval, the best at the top; a dot for each seed where
    there are several.
    """
    tests = comparison.trials[0].tests
    ranked = ranking(results, tests[0])
    names = list(reversed(ranked))
    figure, axes = runs.empty_figure(
        len(tests),
        width=5.0 if len(tests) == 1 else 3.4,
        height=max(1.8, 0.24 * len(names) + 0.6),
        title=f"sacreBLEU by {comparison.noun}, 95% intervals",
    )
    for panel, split in zip(axes, tests):
        for row, name in enumerate(names):
            scores = [result.scores[split]["scores"] for result in ranked[name]]
            mean = fmean(score["sacrebleu"] for score in scores)
            low, high = (fmean(score["interval"][end] for score in scores) for end in (0, 1))
            colour = "C1" if name == comparison.baseline else "C0"
            panel.plot([low, high], [row, row], color=colour, linewidth=1.6, alpha=0.6)
            panel.plot(mean, row, "o", color=colour, markersize=5)
            if len(scores) > 1:
                seeds = [score["sacrebleu"] for score in scores]
                panel.plot(seeds, [row] * len(seeds), "|", color="black", markersize=6)
            if name == comparison.baseline:
                panel.axvline(mean, color=colour, linewidth=0.8, linestyle="--")
        panel.set_yticks(range(len(names)), labels=names, fontsize=8)
        panel.set_ylim(-0.7, len(names) - 0.3)
        panel.grid(axis="x", alpha=0.3)
        panel.set_xlabel(f"sacreBLEU, {split}", fontsize=9)
    return figure


def lengths_figure(
    comparison: Comparison, results: dict[tuple[str, int], Result], names: Sequence[str]
) -> Figure:
    """sacreBLEU by source length over all test splits together, means over the seeds."""
    first = comparison.trials[0]
    edges = first.config.evaluate.length_buckets
    figure, axes = runs.empty_figure(
        1, width=6.5, height=4.2, title="sacreBLEU by source length", room=1.6
    )
    axes[0].set_xlabel("source words (number of sentences)")
    axes[0].set_ylabel("sacreBLEU")
    lines = []
    counts = [0] * (len(edges) + 1)
    for name in names:
        found = [result for (variant, _), result in results.items() if variant == name]
        by_seed = [runs.bleu_by_length(result.trial, first.tests, edges) for result in found]
        sources = [line for split in first.tests for line in found[0].trial.lines(split, "src")]
        counts = [len(rows) for rows in runs.rows_by_length(sources, edges)]
        ys = [float("nan") if values[0] is None else fmean(values) for values in zip(*by_seed)]
        [line] = axes[0].plot(range(len(ys)), ys, marker="o", markersize=4, linewidth=1.6)
        if name == comparison.baseline:
            line.set(color="black", linestyle="--", zorder=5)
        lines.append(line)
    labels = [f"{name}\n({n:,})" for name, n in zip(runs.bucket_names(edges), counts)]
    axes[0].set_xticks(range(len(labels)), labels=labels, fontsize=8)
    axes[0].set_xlim(-0.5, len(labels) - 0.5)
    axes[0].grid(alpha=0.3)
    figure.legend(lines, list(names), loc="outside right center", frameon=False, fontsize=8)
    return figure


# ------------------------------------------------------------------------------------------- script


def write_tables(comparison: Comparison) -> None:
    folder = comparison.args.output_dir
    write_text(folder / "comparison.md", markdown(comparison))
    write_csv(folder / "comparison.csv", *csv_rows(comparison))


def write_figures(comparison: Comparison) -> None:
    """Both pictures, of what is done; nothing where that is nothing."""
    results = comparison.results()
    if not results:
        return
    from pictures.panels import save_figure

    folder = comparison.args.output_dir
    ranked = ranking(results, comparison.trials[0].tests[0])
    if comparison.args.curves is None:
        chosen = list(dict.fromkeys([*list(ranked)[: N_CURVES - 1], comparison.baseline]))
    else:
        chosen = comparison.args.curves
    save_figure(bleu_figure(comparison, results), folder / "comparison_bleu.png")
    drawn = [name for name in chosen if name in ranked]
    if drawn:
        save_figure(lengths_figure(comparison, results, drawn), folder / "comparison_lengths.png")


def run_comparison(comparison: Comparison) -> int:
    """Run what is not done (nothing with --report_only), write and print; the exit code: 0, 1 where
    a run failed, 128 + a signal.
    """
    args = comparison.args
    for name, reason in comparison.failures.items():
        runs.say(f"{name}: failed: {reason}")
    stopped = None
    if args.report_only:
        if not comparison.results():
            raise UserError(
                f"{args.output_dir}: nothing of this is done yet; leave --report_only out to run it"
            )
    else:
        runner = Runner(
            jobs=args.jobs,
            threads=args.threads,
            failures=comparison.failures,
            say=runs.say,
            done=lambda: write_tables(comparison),
        )
        stopped = runner.run(comparison.trials)
    write_tables(comparison)
    write_figures(comparison)
    print(markdown(comparison), end="")
    runs.say(f"written: {args.output_dir}/comparison.*")
    return runs.exit_code(stopped, bool(comparison.failures))
