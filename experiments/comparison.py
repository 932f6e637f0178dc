"""Trainings that differ in one thing, side by side: tables, plots, the paired bootstrap.

Each variant is trained with each seed and scored, see experiments/trials.py. Written into
--output_dir:

    comparison.md             tables: a row for each variant, means over the seeds
    comparison.csv            a row for each variant, seed and test split
    comparison_bleu.png       sacreBLEU with 95% intervals, by variant
    comparison_lengths.png    sacreBLEU by source length, all test splits together, for chosen ones

The paired bootstrap compares a variant with the baseline of the same seed, sentence by sentence. It
tells whether other test sentences would give another winner, not whether another seed would. With
--jobs above 1 the runs disturb each other: compare tokens/s and minutes from --jobs 1 alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from experiments.common import (
    NOTHING,
    Experiment,
    Rows,
    bleu_by_length,
    buckets,
    length_figure,
    means,
    ranked,
    score_figure,
    seeds_table,
)
from experiments.trials import Trial
from utils.errors import UserError

Columns = dict[str, Callable[[Rows], object]]
LEARNED = {"training_loss": ".3f", "validation_loss": ".3f", "validation_accuracy": ".4f"}
N_CURVES = 6  # variants in the plot by length, where none are named


@dataclass
class Comparison(Experiment):
    """The rows of its CSV file hold every figure that the Markdown and the first picture show."""

    stem = "comparison"
    baseline: str

    def __post_init__(self) -> None:
        self.tests = self.trials[0].tests
        self.edges = self.trials[0].config.evaluate.length_buckets

    def rows(self, trial: Trial) -> Rows:
        """One for each test split."""
        training = trial.training()
        learned = {key: training.pop(key) for key in ("parameters", *LEARNED)}
        run = trial.run.relative_to(trial.output_dir).as_posix()
        rows = []
        for split in self.tests:
            record = trial.scores(split)
            scores = record["scores"]
            rows.append(
                {"split": split, "status": "done", "reason": "", **learned}
                | {"test_loss": record["loss"], "token_accuracy": record["accuracy"]}
                | {"bleu4": scores["bleu4"], "sacrebleu": scores["sacrebleu"]}
                | dict(zip(("interval_low", "interval_high"), scores["interval"]))
                | {"chrf": scores["chrf"], **self._against_baseline(trial, split)}
                | {**training, "sentences": scores["n"]}
                | {
                    f"{key} {name} words": bucket[key]
                    for name, bucket in zip(buckets(self.edges), scores["buckets"])
                    for key in ("bleu", "n")
                }
                | {"commit": record["provenance"]["commit"], "run": run}
            )
        return rows

    def _against_baseline(self, trial: Trial, split: str) -> dict[str, Any]:
        """The paired bootstrap, of the same seed; nothing for itself and where that is not done."""
        keys = ("baseline", "difference", "difference_low", "difference_high", "p_value")
        wanted = (self.baseline, trial.seed)
        base = next((each for each in self.done if (each.variant, each.seed) == wanted), trial)
        if base == trial:
            return dict.fromkeys(keys)
        from translation.metrics import paired_bootstrap

        references = trial.lines(split, "ref")
        if base.lines(split, "ref") != references:
            raise UserError(
                f"{base.folder} and {trial.folder} were scored on other sentences: delete one to "
                "run it again"
            )
        samples = trial.config.evaluate.bootstrap_samples
        found = base.lines(split, "hyp"), trial.lines(split, "hyp")
        paired = paired_bootstrap(*found, references, samples=samples, seed=0)
        figures = (self.baseline, paired.difference, *paired.interval, paired.p_value)
        return dict(zip(keys, figures))

    def _ranked(self, rows: Rows, split: str) -> dict[str, Rows]:
        of_split = ((row[self.noun], row) for row in rows if row.get("split") == split)
        return ranked(of_split, lambda row: row["sacrebleu"])

    def report(self, rows: Rows) -> str:
        """Training, then each test split, best variant first; what failed and what is missing."""
        training: Columns = {
            "seeds": len,
            "parameters": means("parameters", ",.0f", spread=False),
            "tokens/s": means("tokens_per_second", ",.0f", spread=False),
            "peak memory (MB)": means("peak_memory_mb", ",.0f", spread=False),
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
            f"# {self.noun.capitalize()}s compared\n\n{self._about(rows)}\n",
            f"## Training\n\n{seeds_table(self.noun, trained, training, self.failures)}",
            f"## Losses and {self.tests[0]}\n\n"
            f"{seeds_table(self.noun, trained | best, reached, {})}",
        ]
        missing = [row for row in rows if row["status"] == "not run"]
        if missing:
            titles = [f"{row[self.noun]}, seed {row['seed']}" for row in missing]
            parts.append(f"Not run yet: {'; '.join(titles)}.\n")
        parts += [f"## {split}\n\n{self._split_table(rows, split)}" for split in self.tests]
        averaged, each, spread = "", "", ""
        if len(self.args.seeds) > 1:
            averaged, each = ", averaged over the seeds", ", p for each seed"
            spread = " ± is the standard deviation over the seeds; a line with one seed is "
            spread += "that of the lowest validation loss."
        parts.append(
            "BLEU-4 is nltk's on 13a tokens (0 to 1), the rest is sacreBLEU (0 to 100). Intervals "
            f"are 95%, by bootstrap over the sentences{averaged}. Difference and p value: paired "
            f"bootstrap against {self.baseline} of the same seed{each}. People: of 100 pairs of "
            "systems so far apart, in how many the better one is preferred (Kocmi et al. 2024). "
            "Words are source words."
            f"{spread}\n"
        )
        return "\n".join(parts)

    def _about(self, rows: Rows) -> str:
        config, seeds, provenance = self.about()
        signature = self.done[0].scores(self.tests[0])["scores"]["signature"]
        jobs = max(row["jobs"] for row in rows if row["status"] == "done")
        text = f"{config}; {seeds}; {self.args.search} search, sacreBLEU {signature}; {provenance}"
        if jobs > 1:
            text += (
                f"; up to {jobs} runs at once, so tokens/s and minutes are not those of a run alone"
            )
        return f"{text}."

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
        for split in self.tests:
            groups = self._ranked(rows, split)
            keys = ("sacrebleu", "interval_low", "interval_high")
            panels[f"sacreBLEU, {split}"] = {
                name: tuple(known(groups[name], key) for key in keys) for name in order
            }
        title = f"sacreBLEU by {self.noun}, 95% intervals"
        figure = score_figure(panels, title=title, baseline=self.baseline)
        save_figure(figure, folder / "comparison_bleu.png")
        best = dict.fromkeys([*order[: N_CURVES - 1], self.baseline])
        curves = [name for name in self.args.curves or best if name in order]
        if curves:
            of = partial(bleu_by_length, splits=self.tests, edges=self.edges)
            bleu = {name: [of(t) for t in self.done if t.variant == name] for name in curves}
            sources = [line for split in self.tests for line in self.done[0].lines(split, "src")]
            figure = length_figure(bleu, sources, self.edges, "sacreBLEU by source length")
            save_figure(figure, folder / "comparison_lengths.png")


def known(rows: Rows, key: str) -> list[Any]:
    return [row[key] for row in rows if row[key] is not None]


def _agreement(seeds: Rows) -> str:
    from translation.metrics import human_agreement

    differences = known(seeds, "difference")
    return f"{human_agreement(fmean(differences)):.0f}" if differences else NOTHING
