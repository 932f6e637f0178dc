"""One translation config under every position scheme: `python experiments/compare_positions.py`.

What is written and how it is to be read: experiments/comparison.py.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

if (
    not __package__
):  # run as a file: the root of the repository is where imports begin, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from data.corpora.build import build_corpus
from experiments import runs
from experiments.comparison import Comparison, run_comparison
from experiments.runs import Trial
from utils.cli import Parser, run_main


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = Parser(
        description="Train one translation config with every position scheme and compare the scores."
    )
    runs.add_trial_arguments(
        parser, config="configs/multi30k_small_rope.py", output_dir="runs/compare"
    )
    runs.add_positions_argument(parser)
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        default="sinusoidal",
        help="what the others are compared with (it is run too)",
    )
    parser.add_argument(
        "--curves",
        metavar="NAME,...",
        help="schemes in the plot by length (default: best and baseline)",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, see run_comparison."""
    args = parse_args(argv)
    [baseline] = runs.chosen_positions(args.baseline, ())[:1]
    positions = list(
        dict.fromkeys([baseline, *runs.chosen_positions(args.positions, runs.position_names())])
    )
    if args.curves is not None:
        args.curves = runs.chosen_positions(args.curves, ())
    seeds = runs.chosen_seeds(args.seeds)
    configs, refused = runs.resolve_configs(partial(runs.position_config, args), positions, seeds)
    trials = [
        Trial(
            name, seed, config, args.output_dir, build_corpus(config.data).test, search=args.search
        )
        for (name, seed), config in configs.items()
    ]
    return run_comparison(
        Comparison(args, "scheme", positions, seeds, trials, failures=dict(refused))
    )


if __name__ == "__main__":
    run_main(lambda: sys.exit(main()))
