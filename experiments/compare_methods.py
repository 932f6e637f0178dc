"""One translation config with each method for small data: `python experiments/compare_methods.py`.

A method is a few changes of the config (METHODS). `--methods plain,r_drop,r_drop+bpe_dropout` names
those to run; names joined by + are combined. Output files and how to read them:
experiments/comparison.py.

All are trained for the same number of epochs. An update of R-Drop or SimCut takes twice the work:
`plain_twice` is the baseline with as much work. Another tokenizer or cleaning changes the number of
updates, and losses by token cannot be compared between tokenizers.
"""

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

if not __package__:  # run as a file: imports begin at the root of the repository, not here
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from configs.load import load_config
from configs.schema import Config
from configs.serialize import parse_override
from experiments.common import add_trial_arguments, between_commas, chosen, make_trials
from experiments.comparison import Comparison
from utils.cli import Parser, run_main
from utils.errors import ConfigError, UserError

BASELINE = "plain"
TWICE = "plain_twice"
INVERSE_SQRT = "inverse_sqrt"

METHODS: dict[str, tuple[str, ...]] = {
    BASELINE: (),
    TWICE: (),  # doubles every limit of the training's length
    "r_drop": ("optim.objective=r_drop", "optim.objective.alpha=5"),
    "sim_cut": ("optim.objective=sim_cut", "optim.objective.alpha=3"),
    "bpe_dropout": ("tokenizer.algorithm=bpe", "tokenizer.sampling=0.1"),
    "unigram": ("tokenizer.algorithm=unigram", "tokenizer.sampling=0"),
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
        description="Train one config with each of several methods and compare the scores."
    )
    config, folder = "configs/multi30k_compare.py", Path("runs/compare_methods")
    add_trial_arguments(parser, config=config, output_dir=folder)
    parser.add_argument(
        "--methods",
        metavar="NAME,...",
        type=chosen_methods,
        default=list(METHODS),
        help="methods, separated by commas; A+B: both together (default: each alone). There are "
        + ", ".join(METHODS),
    )
    curves = "methods in the plot by length (default: best and plain)"
    parser.add_argument("--curves", metavar="NAME,...", type=chosen_methods, help=curves)
    return parser.parse_args(argv)


def chosen_methods(text: str) -> list[str]:
    """The methods in `text`, between commas, each once. Raises UserError for an unknown part."""
    names = between_commas(text.replace(" ", ""))
    chosen(",".join(parts_of(names)), METHODS, "method")
    return names


def parts_of(names: Sequence[str]) -> list[str]:
    """The parts joined by + in the names. Raises UserError for a part without a name, or twice."""
    for name in names:
        parts = name.split("+")
        if "" in parts or len(set(parts)) < len(parts):
            raise UserError(f"{name!r}: name something else on both sides of +")
    return [part for name in names for part in name.split("+")]


def together(parts: Mapping[str, Sequence[str]]) -> list[str]:
    """The changes of all parts of a name. Raises ConfigError where two set a field differently."""
    said: dict[str, tuple[str, str]] = {}
    for part, changes in parts.items():
        for key, value in map(parse_override, changes):
            first, other = said.setdefault(key, (part, value))
            if other != value:
                raise ConfigError(f"{first} and {part} both set {key}: leave one out")
    return [change for changes in parts.values() for change in changes]


def method_config(args: Namespace, name: str, more: list[str]) -> Config:
    """The config of the command line with the changes of a method, or of several, joined by +.

    Raises ConfigError where one would undo another.
    """
    parts = name.split("+")
    changes = [*args.overrides, *together({part: METHODS[part] for part in parts}), *more]
    if INVERSE_SQRT in parts:
        # Its defaults are for long trainings: a short one would end within its warm-up.
        schedule = load_config(args.config, args.overrides).optim.schedule
        shared = [field for field in ("lr", "warmup_steps") if hasattr(schedule, field)]
        changes += [f"optim.schedule.{field}={getattr(schedule, field)}" for field in shared]
    if TWICE in parts:
        train = load_config(args.config, changes).train
        limits = {name: getattr(train, name) for name in ("max_epochs", "max_steps", "max_tokens")}
        changes += [f"train.{name}={2 * n}" for name, n in limits.items() if n is not None]
    return load_config(args.config, changes)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, see Experiment.main."""
    args = parse_args(argv)
    methods = dict.fromkeys([BASELINE, *args.methods])
    trials = make_trials(args, partial(method_config, args), methods)
    return Comparison(args, trials, "method", BASELINE).main()


if __name__ == "__main__":
    run_main(lambda: sys.exit(main()))
