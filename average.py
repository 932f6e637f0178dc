"""Average the weights of a run's checkpoints: `python average.py --model_path RUN --best 2`."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from translation.arguments import add_run_arguments
from utils.cli import Parser, positive, run_main
from utils.errors import UserError


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(
        description="Write a checkpoint whose weights are the mean of several of one run's."
    )
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="CHECKPOINT", help="the checkpoints to average"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--best", type=positive, metavar="K", help="the K best by validation loss")
    which.add_argument("--last", type=positive, metavar="K", help="the last K regular checkpoints")
    add_run_arguments(parser)
    args = parser.parse_args(argv)
    if args.files and (args.best or args.last or args.model_path):
        raise UserError(
            "checkpoints are named one by one, or chosen with --model_path, --best and --last: "
            "not both"
        )
    if not (args.files or args.best or args.last):
        raise UserError("which checkpoints? Give --best K, --last K, or the files")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    from checkpoints.average import average_checkpoints, choose_checkpoints, write_average
    from checkpoints.run import resolve_checkpoint

    paths = args.files or [args.model_path]
    found = [resolve_checkpoint(path, runs_dir=args.runs_dir, prefer="best") for path in paths]
    run = found[0][1]
    if args.files:
        paths, how = [path for path, _ in found], f"files{len(found)}"
    else:
        paths = choose_checkpoints(run, best=args.best, last=args.last)
        how = f"best{args.best}" if args.best else f"last{args.last}"
    payload = average_checkpoints(paths)
    written = write_average(run, payload, how=how)
    for path, source in zip(paths, payload["averaged"]):
        print(f"{path}: epoch {source['epoch']}, update {source['step']}")
    print(f"written: {written}; use it with --model_path")


if __name__ == "__main__":
    run_main(main)
