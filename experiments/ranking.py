"""Which variant is best: a bootstrap over sentences, and Student's t over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from translation.metrics import quantile_interval, resampled_scores, summed_bleu

OVER_SEEDS = 100  # draws of seeds for each draw of sentences: Student's t has long tails


@dataclass(frozen=True)
class Standing:
    """sacreBLEU of a variant, the mean over its seeds and the test splits; intervals are 95%."""

    seeds: Sequence[float]  # the mean over the splits, for each seed
    interval: tuple[float, float]
    difference: tuple[float, float, float]  # from the baseline, with its interval
    best: float  # the share of resamples in which no other variant is better

    @property
    def mean(self) -> float:
        return float(np.mean(self.seeds))


def standings(
    statistics: Mapping[str, Sequence[Sequence[np.ndarray]]], baseline: str, samples: int
) -> dict[str, Standing]:
    """The variants, best mean first. statistics: [n,10] by variant, seed and split.

    All have the same seeds, in one order. Each resample draws sentences of every split with
    replacement, the same for all variants. It also draws the mean over all possible seeds: this
    differs from the mean of the n seeds by s/sqrt(n) times a draw of Student's t with n-1 degrees,
    again the same for all. So a difference is paired by both. One seed says nothing about others.
    """
    n_splits = len(next(iter(statistics.values()))[0])
    runs = [run for seeds in statistics.values() for run in seeds]
    drawn = np.zeros((len(runs), samples))
    for split in range(n_splits):
        drawn += resampled_scores([run[split] for run in runs], samples, seed=split)
    rows = iter(drawn / n_splits)
    draw, n = np.random.default_rng(0), len(next(iter(statistics.values())))
    size = samples * (OVER_SEEDS if n > 1 else 1)
    squares = n * draw.chisquare(max(n - 1, 1), size)
    weights = draw.standard_normal((n, size)) / np.sqrt(squares)  # for the seeds, in each draw
    resampled, scores = {}, {}
    for name, seeds in statistics.items():
        of_seeds = np.tile(np.stack([next(rows) for _ in seeds]), size // samples)
        mean = of_seeds.mean(0)
        resampled[name] = mean + (weights * (of_seeds - mean)).sum(0)
        scores[name] = [float(np.mean([summed_bleu(s.sum(0)) for s in run])) for run in seeds]
    highest = np.max(list(resampled.values()), axis=0)
    found = {}
    for name, values in resampled.items():
        apart = float(np.mean(scores[name]) - np.mean(scores[baseline]))
        found[name] = Standing(
            seeds=scores[name],
            interval=quantile_interval(values),
            difference=(apart, *quantile_interval(values - resampled[baseline])),
            best=float((values >= highest).mean()),
        )
    return dict(sorted(found.items(), key=lambda item: -item[1].mean))
