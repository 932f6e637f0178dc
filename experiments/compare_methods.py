"""One translation config with each method for small data alone, and several together:
`compare_methods.py`.

A method is a few changes of the config (METHODS). `--methods plain,r_drop,r_drop+bpe_dropout` names
those that are run; names joined by + are put together. What is written and how it is to be read:
experiments/comparison.py.

All are trained for as many epochs, so as many updates. R-Drop and SimCut work twice as long at
each: `plain_twice` is the baseline with that much work, in epochs.
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

from configs.load import load_config
from configs.schema import Config
from data.corpora.build import build_corpus
from experiments import runs
from experiments.comparison import Comparison, run_comparison
from experiments.runs import Trial
from utils.cli import Parser, run_main
from utils.errors import UserError

BASELINE = "plain"
TWICE = "plain_twice"
INVERSE_SQRT = "inverse_sqrt"

METHODS: dict[str, tuple[str, ...]] = {
    BASELINE: (),
    TWICE: (),  # max_epochs doubled
    "r_drop": ("optim.objective=r_drop", "optim.objective.alpha=5"),
    "sim_cut": ("optim.objective=sim_cut", "optim.objective.alpha=3"),
    "bpe_dropout": ("tokenizer.sampling=0.1",),
    "unigram": ("tokenizer.algorithm=unigram",),
    "unigram_sampling": ("tokenizer.algorithm=unigram", "tokenizer.sampling=0.5"),
    "no_dropout": ("model.dropout=0",),
    "dropout_02": ("model.dropout=0.2",),
    "dropout_03": ("model.dropout=0.3",),
    "word_dropout": ("model.word_dropout=0.1",),
    "attention_dropout": ("model.attention_dropout=0.1",),
    "activation_dropout": ("model.activation_dropout=0.1",),
    "stochastic_depth": ("model.stochastic_depth=0.1",),
    "no_label_smoothing": ("optim.label_smoothing=0",),
    "post_norm": ("model.norm=post",),
    "depth_scaled_init": ("model.init=depth_scaled",),
    INVERSE_SQRT: ("optim.schedule=inverse_sqrt",),  # with the config's own peak and warm-up
    "weight_decay": ("optim.optimizer=adamw", "optim.weight_decay=0.01", "optim.decay=matrices"),
    "muon": ("optim.optimizer=muon",),
    "moving_average": ("train.ema_decay=0.999",),
    "cleaning": ("data.clean=rules",),
}


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = Parser(
        description="Train one translation config with each of several methods and compare the scores."
    )
    runs.add_trial_arguments(
        parser, config="configs/multi30k_compare.py", output_dir="runs/compare_methods"
    )
    parser.add_argument(
        "--methods",
        metavar="NAME,...",
        help="methods, separated by commas; A+B: both together (default: each alone). There are "
        + ", ".join(METHODS),
    )
    parser.add_argument(
        "--curves",
        metavar="NAME,...",
        help="methods in the plot by length (default: best and plain)",
    )
    return parser.parse_args(argv)


def chosen_methods(text: str) -> list[str]:
    """The methods named in `text`, each once. Raises UserError for one that there is not, and for
    none.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [part for name in names for part in name.split("+") if part not in METHODS]
    if unknown:
        raise UserError(
            f"no method {', '.join(map(repr, unknown))}: there are {', '.join(METHODS)}"
        )
    if not names:
        raise UserError("--methods: name at least one method")
    return names


def method_config(args: Namespace, name: str, more: list[str]) -> Config:
    """The config of the command line with the changes of the method `name` (or of several, joined
    by +).
    """
    parts = name.split("+")
    changes = [*args.overrides, *(change for part in parts for change in METHODS[part]), *more]
    if (
        INVERSE_SQRT in parts
    ):  # its defaults are for long trainings: a short one would end within their warm-up
        schedule = load_config(args.config, args.overrides).optim.schedule
        shared = [field for field in ("lr", "warmup_steps") if hasattr(schedule, field)]
        changes += [f"optim.schedule.{field}={getattr(schedule, field)}" for field in shared]
    config = load_config(args.config, changes)
    if TWICE in parts:
        config = load_config(
            args.config, [*changes, f"train.max_epochs={2 * config.train.max_epochs}"]
        )
    return config


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, see run_comparison."""
    args = parse_args(argv)
    chosen = list(METHODS) if args.methods is None else chosen_methods(args.methods)
    methods = list(dict.fromkeys([BASELINE, *chosen]))
    if args.curves is not None:
        args.curves = chosen_methods(args.curves)
    seeds = runs.chosen_seeds(args.seeds)
    configs, refused = runs.resolve_configs(partial(method_config, args), methods, seeds)
    trials = [
        Trial(
            name, seed, config, args.output_dir, build_corpus(config.data).test, search=args.search
        )
        for (name, seed), config in configs.items()
    ]
    return run_comparison(
        Comparison(args, "method", methods, seeds, trials, failures=dict(refused))
    )


if __name__ == "__main__":
    run_main(lambda: sys.exit(main()))
