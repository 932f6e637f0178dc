"""Trainings that differ in one thing, side by side: tables, plots, the paired bootstrap.

Each variant is trained with each seed and scored, see experiments/trials.py. Written into
--output_dir:

    comparison.md             tables: a row for each variant, means over the seeds
    comparison.csv            a row for each variant, seed and test split
    comparison_bleu.png       sacreBLEU with 95% intervals, by variant
    comparison_lengths.png    sacreBLEU by source length, all test splits together, for chosen ones
    comparison.jsonl          the store: every scored training, unless --store names another file

The other files are made from the store alone: a training in it is not run again, even if its run is
gone.

The paired bootstrap compares a variant with the baseline of the same seed, sentence by sentence. It
tells whether other test sentences would give another winner, not whether another seed would. For
that the ranking takes several seeds, see experiments/ranking.py. With --jobs above 1 the runs
disturb each other: compare tokens/s and minutes from --jobs 1 alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

from experiments import ranking
from experiments.common import (
    NOTHING,
    SPREAD,
    Experiment,
    Rows,
    bleu_by_length,
    buckets,
    chosen,
    length_figure,
    mean_plus_minus,
    means,
    not_run,
    ranked,
    score_figure,
    seeds_table,
)
from experiments.store import Sentences
from experiments.trials import Trial
from utils.tables import markdown_table

Columns = dict[str, Callable[[Rows], object]]
LEARNED = {"training_loss": ".3f", "validation_loss": ".3f", "validation_accuracy": ".4f"}
AGAINST = ("baseline", "difference", "difference_low", "difference_high", "p_value")
N_CURVES = 6  # variants in the plot by length, if none are named


@dataclass
class Comparison(Experiment):
    """The rows of its CSV file hold every figure that the Markdown and the first picture show."""

    stem = "comparison"
    baseline: str

    def __post_init__(self) -> None:
        if self.args.curves:
            here = dict.fromkeys(trial.variant for trial in self.trials)
            chosen(",".join(self.args.curves), here, f"{self.noun} of this comparison")
        self.tests = self.trials[0].tests
        evaluate = self.trials[0].config.evaluate
        self.edges, self.samples = evaluate.length_buckets, evaluate.bootstrap_samples

    def rows(self, trial: Trial) -> Rows:
        """One for each test split."""
        done = self.record(trial)
        learned = {key: done.training[key] for key in ("parameters", *LEARNED)}
        rest = {key: figure for key, figure in done.training.items() if key not in learned}
        rows = []
        for split in self.tests:
            record = done.scores[split]
            scores = record["scores"]
            rows.append(
                {"split": split, "status": "done", "reason": "", **learned}
                | {"test_loss": record["loss"], "token_accuracy": record["accuracy"]}
                | {"bleu4": scores["bleu4"], "sacrebleu": scores["sacrebleu"]}
                | dict(zip(("interval_low", "interval_high"), scores["interval"]))
                | {"chrf": scores["chrf"], **self._against_baseline(trial, split)}
                | {**rest, "sentences": scores["n"]}
                | {
                    f"{key} {name} words": bucket[key]
                    for name, bucket in zip(buckets(self.edges), scores["buckets"])
                    for key in ("bleu", "n")
                }
                | {"commit": record["provenance"]["commit"], "run": done.run}
            )
        return rows

    def _against_baseline(self, trial: Trial, split: str) -> dict[str, Any]:
        """The paired bootstrap with the same seed's baseline; nothing for itself or if not run."""
        wanted = (self.baseline, trial.seed)
        base = next((each for each in self.done if (each.variant, each.seed) == wanted), trial)
        if base == trial:
            return dict.fromkeys(AGAINST)
        from translation.metrics import compare_statistics

        both = (self.record(each).sentences[split].statistics for each in (base, trial))
        paired = compare_statistics(*both, samples=self.samples, seed=0)
        figures = (self.baseline, paired.difference, *paired.interval, paired.p_value)
        return dict(zip(AGAINST, figures))

    def _scored(self, name: str) -> list[list[Sentences]]:
        """The scored sentences of a variant, by seed and test split."""
        of_name = (trial for trial in self.done if trial.variant == name)
        return [list(self.record(trial).sentences.values()) for trial in of_name]

    @cached_property
    def standings(self) -> dict[str, ranking.Standing]:
        """Variants with all seeds, best first; none with one seed or variant, or no baseline."""
        scored = {name: self._scored(name) for name in dict.fromkeys(t.variant for t in self.done)}
        n_seeds = len(self.args.seeds)
        statistics = {
            name: [[split.statistics for split in run] for run in runs]
            for name, runs in scored.items()
            if len(runs) == n_seeds > 1
        }
        if self.baseline not in statistics or len(statistics) == 1:
            return {}
        return ranking.standings(statistics, self.baseline, self.samples)

    def _ranked(self, rows: Rows, split: str) -> dict[str, Rows]:
        of_split = ((row[self.noun], row) for row in rows if row.get("split") == split)
        return ranked(of_split, lambda row: row["sacrebleu"])

    def report(self, rows: Rows) -> str:
        """Training, then each test split, best variant first; then failed and missing trials."""
        training: Columns = {
            "seeds": len,
            "parameters": means("parameters", ",.0f", spread=False),
            "tokens/s": means("tokens_per_second", ",.0f", spread=False),
            "peak memory (MiB)": means("peak_memory_mb", ",.0f", spread=False),
            "minutes": means("train_minutes", ".1f"),
        }
        trained = self._ranked(rows, self.tests[0])
        reached: Columns = {key.replace("_", " "): means(key, LEARNED[key]) for key in LEARNED}
        reached |= {"BLEU-4": means("bleu4", ".4f"), "sacreBLEU": means("sacrebleu", ".2f")}
        best = {}
        for name, seeds in trained.items():
            if len(self.args.seeds) > 1 and (validated := known(seeds, "validation_loss")):
                [first, *_] = (row for row in seeds if row["validation_loss"] == min(validated))
                best[f"{name}, seed {first['seed']}"] = [first]
        parts = [
            f"# {self.noun.capitalize()}s compared\n\n"
            f"{self._about(rows)}\n{not_run(rows, self.noun)}",
            f"## Training\n\n{seeds_table(self.noun, trained, training, self.failures)}",
            f"## Losses and {self.tests[0]}\n\n"
            f"{seeds_table(self.noun, trained | best, reached, {})}",
        ]
        if self.standings:
            parts.append(f"## Ranking\n\n{self._ranking()}")
        parts += [f"## {split}\n\n{self._split_table(rows, split)}" for split in self.tests]
        averaged, each, spread = "", "", ""
        if len(self.args.seeds) > 1:
            averaged, each = ", averaged over the seeds", ", p for each seed"
            spread = f" {SPREAD}; a line that names a seed is "
            spread += "that of the lowest validation loss."
        if self.standings:
            spread += f" The ranking is of {self.noun}s with all seeds, by the mean of the test "
            spread += "splits; intervals and the probability of being the best are by a bootstrap "
            spread += "over sentences and Student's t over seeds."
        parts.append(
            "BLEU-4 is nltk's on sacreBLEU's tokens (0 to 1), the rest is sacreBLEU (0 to 100). "
            f"Intervals are 95%, by bootstrap over the sentences{averaged}. Difference and p: "
            f"paired bootstrap against {self.baseline} of the same seed{each}. People: the "
            "percentage of pairs of systems so far apart in which people prefer the better one "
            f"(Kocmi et al. 2024). Words are source words.{spread}\n"
        )
        return "\n".join(parts)

    def _about(self, rows: Rows) -> str:
        config, seeds, provenance = self.about()
        signature = self.record(self.done[0]).scores[self.tests[0]]["scores"]["signature"]
        jobs = max(row["jobs"] for row in rows if row["status"] == "done")
        text = f"{config}; {seeds}; {self.args.search} search, sacreBLEU {signature}; {provenance}"
        if jobs > 1:
            text += (
                f"; up to {jobs} runs at once, so tokens/s and minutes are not those of a run alone"
            )
        return f"{text}."

    def _ranking(self) -> str:
        """The ranking of the variants over all test splits and seeds."""
        names = buckets(self.edges, self._words())
        header = [self.noun, "seeds", "sacreBLEU", "95% interval"]
        header += ["difference", "95% interval", "best with probability"]
        header += [f"{name} words (n={len(rows)})" for name, rows in names.items()]
        table = [
            [name, len(each.seeds), mean_plus_minus(each.seeds, ".2f")]
            + ["{:.2f} to {:.2f}".format(*each.interval)]
            + ([NOTHING] * 2 if name == self.baseline else _difference(*each.difference))
            + [f"{each.best:.3f}"]
            + [mean_plus_minus(bleu, ".1f", spread=False) for bleu in zip(*self._by_length(name))]
            for name, each in self.standings.items()
        ]
        return markdown_table(header, table)

    def _by_length(self, name: str) -> list[list[float | None]]:
        """sacreBLEU by seed and bucket, of all test splits together."""
        return [bleu_by_length(splits, self.edges) for splits in self._scored(name)]

    def _words(self) -> np.ndarray:
        """The words of each source of all test splits."""
        splits = self.record(self.done[0]).sentences.values()
        return np.concatenate([split.words for split in splits])

    def _split_table(self, rows: Rows, split: str) -> str:
        groups = self._ranked(rows, split)
        low, high = (means(f"interval_{end}", ".2f", spread=False) for end in ("low", "high"))
        columns: Columns = {
            "loss": means("test_loss", ".3f"),
            "token accuracy": means("token_accuracy", ".4f"),
            "BLEU-4": means("bleu4", ".4f"),
            "sacreBLEU": means("sacrebleu", ".2f"),
            "95% interval": lambda seeds: f"{low(seeds)} to {high(seeds)}",
            "difference": means("difference", "+.2f", spread=False),
            "p": lambda seeds: ", ".join(f"{p:.3f}" for p in known(seeds, "p_value")) or NOTHING,
            "people": _agreement,
        }
        [first, *_], *_ = groups.values()
        for name in (f"{bucket} words" for bucket in buckets(self.edges)):
            columns[f"{name} (n={first[f'n {name}']})"] = means(f"bleu {name}", ".1f")
        return seeds_table(self.noun, groups, columns, {})

    def draw(self, rows: Rows) -> None:
        from pictures.panels import save_figure

        folder = self.args.output_dir
        order = list(self._ranked(rows, self.tests[0]))
        panels = {}
        if self.standings:
            order = list(self.standings)
            zero = self.standings[self.baseline].mean
            label = (
                f"sacreBLEU above {self.baseline}, all tests\n(over sentences and seeds, paired)"
            )
            panels[label] = {
                name: ([bleu - zero for bleu in each.seeds], *([x] for x in each.difference[1:]))
                for name, each in self.standings.items()
            }
        for split in self.tests:
            groups = self._ranked(rows, split)
            keys = ("sacrebleu", "interval_low", "interval_high")
            panels[f"sacreBLEU, {split}\n(over sentences alone)"] = {
                name: tuple(known(groups[name], key) for key in keys) for name in order
            }
        title = f"sacreBLEU by {self.noun}: mean (dot), 95% interval (line), seeds (marks)"
        figure = score_figure(panels, title=title, baseline=self.baseline)
        save_figure(figure, folder / "comparison_bleu.png")
        best = dict.fromkeys([*order[: N_CURVES - 1], self.baseline])
        curves = [name for name in self.args.curves or best if self._scored(name)]
        if curves:
            bleu = {name: self._by_length(name) for name in curves}
            figure = length_figure(bleu, self._words(), self.edges, "sacreBLEU by source length")
            save_figure(figure, folder / "comparison_lengths.png")


def known(rows: Rows, key: str) -> list[Any]:
    return [row[key] for row in rows if row[key] is not None]


def _difference(mean: float, low: float, high: float) -> list[str]:
    return [f"{mean:+.2f}", f"{low:+.2f} to {high:+.2f}"]


def _agreement(seeds: Rows) -> str:
    from translation.metrics import human_agreement

    differences = known(seeds, "difference")
    return f"{human_agreement(fmean(differences)):.0f}" if differences else NOTHING
