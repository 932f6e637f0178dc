"""The command line of the pictures of position schemes."""

from __future__ import annotations

import argparse
from typing import Any

from configs.load import load_config
from configs.positions import POSITIONS
from configs.schema import Config
from configs.serialize import apply_overrides
from pictures.distance import decay, projections, similarity
from pictures.maps import embedding_map
from pictures.positions import bias, encoding, rotation
from translation.arguments import add_set_argument
from utils.cli import positive
from utils.errors import UserError

PICTURES = {
    picture.name: picture
    for picture in (encoding, bias, similarity, decay, projections, rotation, embedding_map)
}


def add_picture_commands(commands: Any) -> None:
    """Add a subcommand for each of PICTURES to argparse's subparsers."""
    for name, picture in PICTURES.items():
        shows = picture.shows
        command = commands.add_parser(name, help=shows.split(":")[0], description=f"Draws {shows}.")
        drawn = " ".join(picture.schemes) or "the scheme of --model_path"
        command.add_argument(
            "--position",
            nargs="+",
            metavar="NAME",
            help=f"schemes as a training begins with them (default: {drawn}): "
            f"{', '.join(POSITIONS)}",
        )
        command.add_argument(
            "--config",
            metavar="FILE",
            help="the scheme of a config; with --position, only its other fields",
        )
        field = "field of the config, or with --position of the model of 512 dimensions"
        add_set_argument(command, "model.FIELD=VALUE", field)
        command.add_argument(
            "--positions",
            type=positive,
            metavar="N",
            help=f"how many positions (default: {picture.n_positions}, or all that are known)",
        )
        if picture is embedding_map:
            command.add_argument(
                "--gif",
                action="store_true",
                help="an animation over a run's checkpoints too (a training keeps N of them with "
                "train.keep_regular=N)",
            )


def check_picture_arguments(args: argparse.Namespace) -> None:
    """Raises UserError for arguments that exclude each other."""
    given = {"--config": args.config, "--position": args.position, "--set": args.overrides}
    for flag, value in given.items():
        if args.model_path and value:
            raise UserError(
                f"{flag} and --model_path: give one of them; a run brings its own scheme"
            )
    if getattr(args, "gif", False) and (args.config or args.position):
        raise UserError(
            "--gif draws the checkpoints of a run: give --model_path RUN instead of --config and "
            "--position"
        )


def asked_configs(args: argparse.Namespace) -> list[tuple[str, Config]]:
    """(name of the scheme, config) of all that is to be drawn without a run; empty where a run is.

    Raises ConfigError for a file, a name or a change that is not right.
    """
    if args.model_path:
        return []
    names = args.position or ([None] if args.config else PICTURES[args.command].schemes)
    if not names and args.overrides:
        raise UserError(
            f"--set {args.overrides[0]}: a run is as it was trained; give --position NAME or "
            "--config FILE"
        )
    plain = load_config(args.config) if args.config else Config()
    overrides = [f"name={plain.name}", *args.overrides]  # one folder for all pictures of a config
    found = []
    for name in names:
        config = apply_overrides(plain, overrides, position=name)
        position = config.model.position
        known = (known for known, named in POSITIONS.items() if named == position)
        found.append((name or next(known, position.kind), config))
    return found
