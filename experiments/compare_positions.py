"""One translation config under every position scheme: `python experiments/compare_positions.py`.

Output files and how to read them: experiments/comparison.py.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run as a file: imports begin at the root of the repository, not here
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from configs.load import load_config
from configs.position_names import POSITIONS
from configs.schema import Config
from experiments.common import add_trial_arguments, chosen_positions, make_trials
from experiments.comparison import Comparison
from utils.cli import Parser, run_main
from utils.errors import UserError


def baseline(text: str) -> str:
    """The one scheme that `text` names. Raises UserError for several, and as chosen_positions."""
    name, *others = chosen_positions(text)
    if others:
        raise UserError(f"--baseline {text!r}: give one scheme, and the others by --positions")
    return name


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, see Experiment.main."""
    parser = Parser(description="Train one config with every position scheme; compare the scores.")
    config, folder = "configs/multi30k_small_rope.py", Path("runs/compare")
    add_trial_arguments(parser, config=config, output_dir=folder, positions=",".join(POSITIONS))
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        type=baseline,
        default="sinusoidal",
        help="the scheme to compare the others with (it is run too; default: sinusoidal)",
    )
    curves = "schemes in the plot by length (default: best and baseline)"
    parser.add_argument("--curves", metavar="NAME,...", type=chosen_positions, help=curves)
    args = parser.parse_args(argv)

    def load(name: str, more: list[str]) -> Config:
        return load_config(args.config, [*args.overrides, *more], name)

    names = dict.fromkeys([args.baseline, *args.positions])
    trials = make_trials(args, load, names, instead={"model.position": "--positions"})
    return Comparison(args, trials, "scheme", args.baseline).main()


if __name__ == "__main__":
    run_main(lambda: sys.exit(main()))
