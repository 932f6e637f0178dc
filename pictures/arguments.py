"""The command line of the pictures of position schemes: what each shows, and which schemes it is
asked to draw.
"""

from __future__ import annotations

import argparse
from typing import Any

from configs.load import load_config
from configs.positions import POSITIONS
from configs.schema import Config
from configs.serialize import apply_overrides
from utils.cli import positive
from utils.errors import UserError

# What each picture shows, and the schemes that it draws where the command line names none; ():
# those of a run.
PICTURES: dict[str, tuple[str, tuple[str, ...]]] = {
    "encoding": (
        "heat-maps by position of what a scheme adds to embeddings, of the cos and sin of the angles by which it turns "
        "queries and keys (and of their magnitudes, where they vary), and of Shaw's tables of distances",
        (),
    ),
    "bias": (
        "the bias that positions alone add to the logits of encoder and decoder self-attention: a matrix for each head "
        "(and layer, where layers differ), and curves by distance from one query",
        (),
    ),
    "similarity": (
        "how alike positions are: dot product and cosine of the position vectors t and t+k by offset k (mean over t, "
        "and range), and the cosine of every pair; a learned table stands beside itself before training and beside "
        "sinusoids",
        (),
    ),
    "decay": (
        "what distance does to a product: the mean of cos(k w) over the frequencies w of sinusoids and of RoPE (q.k of "
        "equal vectors), and RoFormer's upper bound",
        ("sinusoidal", "rope"),
    ),
    "projections": (
        "how projections blur the distance pattern of position vectors: (W_q p_t).(W_k p_s) without projections, with "
        "random ones, and with those of a trained run's first encoder layer",
        (),
    ),
    "rotation": (
        "the rotation in the plane: the vector (1, 0) of eight pairs of dimensions, fast to slow, at each position",
        ("rope",),
    ),
    "embedding_map": (
        "position vectors as points in the plane: by PCA and by MDS; with --gif, PCA over the checkpoints of a run too",
        (),
    ),
}


def add_picture_commands(commands: Any) -> None:
    """Add a subcommand for each of PICTURES to argparse's subparsers."""
    for name, (shows, default) in PICTURES.items():
        command = commands.add_parser(name, help=shows.split(":")[0], description=f"Draws {shows}.")
        drawn = " ".join(default) or "the scheme of --model_path"
        command.add_argument(
            "--position",
            nargs="+",
            metavar="NAME",
            help=f"schemes as a training begins with them (default: {drawn}): {', '.join(POSITIONS)}",
        )
        command.add_argument(
            "--config",
            metavar="FILE",
            help="the scheme of a config; with --position, only its other fields",
        )
        command.add_argument(
            "--set",
            action="append",
            default=[],
            dest="overrides",
            metavar="model.FIELD=VALUE",
            help="change a field of the config, or with --position of the model of 512 dimensions; repeatable",
        )
        command.add_argument("--positions", type=positive, metavar="N", help="how many positions")
        if name == "embedding_map":
            command.add_argument(
                "--gif",
                action="store_true",
                help="an animation over a run's checkpoints too (a training keeps N of them with train.keep_regular=N)",
            )


def check_picture_arguments(args: argparse.Namespace) -> None:
    """Raises UserError for arguments that exclude each other."""
    if args.model_path:
        for flag, value in (
            ("--config", args.config),
            ("--position", args.position),
            ("--set", args.overrides),
        ):
            if value:
                raise UserError(
                    f"{flag} and --model_path: give one of them; a run brings its own scheme"
                )
    if args.command == "embedding_map" and args.gif and (args.config or args.position):
        raise UserError(
            "--gif draws the checkpoints of a run: give --model_path RUN instead of --config and --position"
        )


def asked_configs(args: argparse.Namespace) -> list[tuple[str, Config]]:
    """(name of the scheme, config) of all that is to be drawn without a run; empty where a run is.

    Raises ConfigError for a file, a name or a change that is not right.
    """
    if args.model_path:
        return []
    names: list[str | None] = list(args.position or PICTURES[args.command][1] * (not args.config))
    if not names and args.config:
        names = [None]
    elif not names and args.overrides:
        raise UserError(
            f"--set {args.overrides[0]}: a run is as it was trained; give --position NAME or --config FILE"
        )
    found = []
    plain = load_config(args.config) if args.config else Config()
    overrides = [f"name={plain.name}", *args.overrides]  # one folder for all pictures of a config
    for name in names:
        config = apply_overrides(plain, overrides, position=name)
        known = (
            known for known, position in POSITIONS.items() if position == config.model.position
        )
        found.append((name or next(known, config.model.position.kind), config))
    return found
