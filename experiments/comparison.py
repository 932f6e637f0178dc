"""Trainings that differ in one thing, side by side: tables, plots, the paired bootstrap.

Each variant is trained with each seed by train.py and scored by test.py, in processes of their own
(see experiments/trials.py). What is done is not run again, what was cut short goes on; a changed
config is another run and never mistaken for the old one. Written into --output_dir:

    comparison.md             tables: a row for each variant, means over the seeds
    comparison.csv            a row for each variant, seed and test split
    comparison_bleu.png       sacreBLEU with 95% intervals, by variant
    comparison_lengths.png    sacreBLEU by source length, all test splits together, for chosen ones

The paired bootstrap compares a variant with the baseline of the same seed, sentence by sentence. It
tells whether other test sentences would give another winner, not whether another seed would: that
is what several seeds are for. With --jobs above 1 the runs disturb each other: compare tokens/s and
minutes from --jobs 1 alone.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from configs.schema import Config
from experiments.common import (
    NOTHING,
    Experiment,
    Rows,
    bleu_by_length,
    buckets,
    length_figure,
    make_trials,
    mean_plus_minus,
)
from experiments.trials import Trial
from utils.errors import UserError
from utils.tables import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from translation.metrics import PairedResult

N_CURVES = 6  # variants in the plot by length, where none are named


def compare(
    args: Namespace, noun: str, variants: Sequence[str], load: Callable[[str, list[str]], Config]
) -> int:
    """Train and compare the variants, the baseline first; the exit code, see Experiment.main.

    args: of the command line, with `curves`. noun: what a variant is. load: see make_trials.
    """
    trials, refused = make_trials(args, load, variants)
    return Comparison(args, trials, refused, noun, baseline=variants[0]).main()


@dataclass
class Comparison(Experiment):
    """The rows of its CSV file hold every figure that the Markdown and the first picture show."""

    stem = "comparison"
    baseline: str
    _paired: dict[tuple[Path, Path, str], PairedResult] = field(default_factory=dict)

    @property
    def tests(self) -> tuple[str, ...]:
        return self.trials[0].tests

    @property
    def edges(self) -> tuple[int, ...]:
        return self.trials[0].config.evaluate.length_buckets

    def paired(self, trial: Trial, split: str) -> PairedResult | None:
        """Against the baseline of the same seed; None for itself and where that is not done."""
        wanted = (self.baseline, trial.seed)
        base = next((each for each in self.trials if (each.variant, each.seed) == wanted), trial)
        if base == trial or not base.is_scored():
            return None
        key = (base.run, trial.run, split)
        if key not in self._paired:
            from translation.metrics import paired_bootstrap

            references = trial.lines(split, "ref")
            if base.lines(split, "ref") != references:
                raise UserError(
                    f"{base.folder} and {trial.folder} were scored on other sentences: "
                    "delete one to run it again"
                )
            samples = trial.config.evaluate.bootstrap_samples
            found = base.lines(split, "hyp"), trial.lines(split, "hyp")
            self._paired[key] = paired_bootstrap(*found, references, samples=samples, seed=0)
        return self._paired[key]

    def rows(self, trial: Trial) -> Rows:
        """One for each test split."""
        return [self._row(trial, split) for split in self.tests]

    def _row(self, trial: Trial, split: str) -> dict[str, Any]:
        record, training, paired = trial.scores(split), trial.training(), self.paired(trial, split)
        scores = record["scores"]
        low, high = paired.interval if paired else (None, None)
        by_length = zip(buckets(self.edges), scores["buckets"])
        return {
            "split": split,
            "status": "done",
            "reason": "",
            "parameters": training.pop("parameters"),
            "validation_loss": training.pop("validation_loss"),
            "test_loss": record["loss"],
            "token_accuracy": record["accuracy"],
            "bleu4": scores["bleu4"],
            "sacrebleu": scores["sacrebleu"],
            "interval_low": scores["interval"][0],
            "interval_high": scores["interval"][1],
            "chrf": scores["chrf"],
            "baseline": self.baseline if paired else None,
            "difference": paired.difference if paired else None,
            "difference_low": low,
            "difference_high": high,
            "p_value": paired.p_value if paired else None,
            **training,
            "sentences": scores["n"],
            **{
                f"{key} {name} words": each[key]
                for name, each in by_length
                for key in ("bleu", "n")
            },
            "commit": record["provenance"]["commit"],
            "run": trial.run.relative_to(trial.output_dir).as_posix(),
        }

    def ranked(self, rows: Rows, split: str) -> dict[str, Rows]:
        """The rows of a split by variant, best mean sacreBLEU first."""
        by_name: dict[str, Rows] = {}
        for row in rows:
            if row["status"] == "done" and row["split"] == split:
                by_name.setdefault(row[self.noun], []).append(row)
        return dict(sorted(by_name.items(), key=lambda item: -mean(item[1], "sacrebleu")))

    # ----------------------------------------------------------------------------------- Markdown

    def report(self, rows: Rows) -> str:
        """Training, then each test split, best variant first; what failed and what is missing."""
        parts = [
            f"# {self.noun.capitalize()}s compared\n\n{self._about(rows)}\n",
            f"## Training\n\n{self._training_table(rows)}",
        ]
        missing = [row for row in rows if row["status"] == "not run"]
        if missing:
            titles = [f"{row[self.noun]}, seed {row['seed']}" for row in missing]
            parts.append(f"Not run yet: {'; '.join(titles)}.\n")
        parts += [f"## {split}\n\n{self._split_table(rows, split)}" for split in self.tests]
        averaged, each, spread = "", "", ""
        if len(self.args.seeds) > 1:
            averaged, each = ", averaged over the seeds", ", p for each seed"
            spread = " ± is the standard deviation over the seeds."
        parts.append(
            "BLEU-4 is nltk's on 13a tokens (0 to 1), the rest is sacreBLEU (0 to 100). Intervals "
            f"are 95%, by bootstrap over the sentences{averaged}. Difference and p value: paired "
            f"bootstrap against {self.baseline} of the same seed{each}. Words are source words."
            f"{spread}\n"
        )
        return "\n".join(parts)

    def _about(self, rows: Rows) -> str:
        """What the figures are of, in a few lines."""
        config, seeds, provenance = self.about()
        signature = self.done()[0].scores(self.tests[0])["scores"]["signature"]
        search = f"{self.args.search} search, sacreBLEU {signature}"
        jobs = max(row["jobs"] for row in rows if row["status"] == "done")
        disturbed = (
            f"; up to {jobs} runs at once, so tokens/s and minutes are not those of a run alone"
        )
        return f"{config}; {seeds}; {search}; {provenance}{disturbed if jobs > 1 else ''}."

    def _training_table(self, rows: Rows) -> str:
        header = [self.noun, "seeds", "parameters", "validation loss", "tokens/s"]
        header += ["peak memory (MB)", "minutes"]
        table: list[list[object]] = [
            [
                name,
                len(seeds),
                thousands(seeds, "parameters"),
                mean_plus_minus((row["validation_loss"] for row in seeds), 3),
                thousands(seeds, "tokens_per_second"),
                thousands(seeds, "peak_memory_mb"),
                mean_plus_minus((row["train_minutes"] for row in seeds), 1),
            ]
            for name, seeds in self.ranked(rows, self.tests[0]).items()
        ]
        return markdown_table(header, table + self.failed_lines(len(header)))

    def _split_table(self, rows: Rows, split: str) -> str:
        ranked = self.ranked(rows, split)
        first = next(iter(ranked.values()))[0]
        names = [f"{name} words" for name in buckets(self.edges)]
        header = [self.noun, "loss", "token accuracy", "BLEU-4", "sacreBLEU", "95% interval"]
        header += ["difference", "p", *(f"{name} (n={first[f'n {name}']})" for name in names)]
        digits = {"test_loss": 3, "token_accuracy": 4, "bleu4": 4, "sacrebleu": 2}
        table = []
        for name, seeds in ranked.items():
            paired = [row for row in seeds if row["baseline"]]
            table.append(
                [
                    name,
                    *(mean_plus_minus((row[key] for row in seeds), n) for key, n in digits.items()),
                    f"{mean(seeds, 'interval_low'):.2f} to {mean(seeds, 'interval_high'):.2f}",
                    f"{mean(paired, 'difference'):+.2f}" if paired else NOTHING,
                    ", ".join(f"{row['p_value']:.3f}" for row in paired) or NOTHING,
                    *(mean_plus_minus((row[f"bleu {name}"] for row in seeds), 1) for name in names),
                ]
            )
        return markdown_table(header, table)

    # ----------------------------------------------------------------------------------- pictures

    def draw(self, rows: Rows) -> None:
        from pictures.panels import save_figure

        folder = self.args.output_dir
        ranked = list(self.ranked(rows, self.tests[0]))
        best = dict.fromkeys([*ranked[: N_CURVES - 1], self.baseline])
        curves = [name for name in self.args.curves or best if name in ranked]
        save_figure(self.bleu_figure(rows), folder / "comparison_bleu.png")
        if curves:
            figure = self.lengths_figure(curves)
            save_figure(figure, folder / "comparison_lengths.png")

    def bleu_figure(self, rows: Rows) -> Figure:
        """sacreBLEU of each variant with its interval, the best at the top; a mark for each seed
        where there are several.
        """
        from pictures.panels import panel_figure

        names = list(self.ranked(rows, self.tests[0]))[::-1]
        figure, [panels] = panel_figure(
            1,
            len(self.tests),
            size=(5.0 if len(self.tests) == 1 else 3.4, max(1.8, 0.24 * len(names) + 0.6)),
            title=f"sacreBLEU by {self.noun}, 95% intervals",
            x_label="",
            y_label="",
            room=0.4,
            sharey=True,
        )
        for panel, split in zip(panels, self.tests):
            ranked = self.ranked(rows, split)
            for height, name in enumerate(names):
                seeds = ranked[name]
                bleu = mean(seeds, "sacrebleu")
                interval = [mean(seeds, "interval_low"), mean(seeds, "interval_high")]
                colour = "C1" if name == self.baseline else "C0"
                panel.plot(interval, [height] * 2, color=colour, linewidth=1.6, alpha=0.6)
                panel.plot(bleu, height, "o", color=colour, markersize=5)
                if len(seeds) > 1:
                    each = [row["sacrebleu"] for row in seeds]
                    panel.plot(each, [height] * len(each), "|", color="black", markersize=6)
                if name == self.baseline:
                    panel.axvline(bleu, color=colour, linewidth=0.8, linestyle="--")
            panel.set_yticks(range(len(names)), labels=names, fontsize=8)
            panel.set_ylim(-0.7, len(names) - 0.3)
            panel.grid(axis="x", alpha=0.3)
            panel.set_xlabel(f"sacreBLEU, {split}", fontsize=9)
        return figure

    def lengths_figure(self, names: Iterable[str]) -> Figure:
        """sacreBLEU by source length over all test splits together, means over the seeds."""
        done = self.done()
        bleu = {
            name: [bleu_by_length(t, self.tests, self.edges) for t in done if t.variant == name]
            for name in names
        }
        sources = [line for split in self.tests for line in done[0].lines(split, "src")]
        return length_figure(
            bleu, sources, self.edges, title="sacreBLEU by source length", baseline=self.baseline
        )


def mean(rows: Rows, key: str) -> float:
    return fmean(row[key] for row in rows)


def thousands(rows: Rows, key: str) -> str:
    known = [row[key] for row in rows if row[key] is not None]
    return f"{fmean(known):,.0f}" if known else NOTHING
