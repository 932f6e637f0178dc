"""Average the weights of a run's checkpoints: `python average.py --model_path RUN --best 2`."""

import argparse
from pathlib import Path
from zlib import crc32

from translation.arguments import add_run_arguments, require_runs
from utils.cli import Parser, integer, run_main
from utils.errors import UserError


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        description="Average the weights of several checkpoints of one run, or of runs that began "
        "with the same parent, into a new checkpoint."
    )
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="CHECKPOINT", help="the checkpoints to average")
    which = parser.add_mutually_exclusive_group()
    best, last = "the run's K best by validation", "the run's last K by epochs, with its end"
    which.add_argument("--best", type=integer(2), metavar="K", help=best)
    which.add_argument("--last", type=integer(2), metavar="K", help=last)
    last = "the run's last K, with those that were written within an epoch"
    which.add_argument("--last_steps", type=integer(2), metavar="K", help=last)
    add_run_arguments(parser)
    args = parser.parse_args(argv)
    args.chosen = {name: getattr(args, name) for name in ("best", "last", "last_steps")}
    if args.files and (any(args.chosen.values()) or args.model_path):
        raise UserError(
            "name the checkpoints one by one, or choose them with --model_path, --best, --last and "
            "--last_steps: not both"
        )
    if not (args.files or any(args.chosen.values())):
        raise UserError("which checkpoints? Give --best K, --last K, --last_steps K, or the files")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    args.model_path = args.files or args.model_path
    require_runs(args)
    from checkpoints.average import average_checkpoints, choose_checkpoints, write_average
    from checkpoints.resolve import resolve_checkpoint

    if args.files:
        found = [resolve_checkpoint(path, prefer="best") for path in args.files]
        paths, runs = map(list, zip(*found))
        run = max(runs, key=lambda run: run.checkpoints.is_dir())  # the first that can hold it
        which = crc32("\n".join(sorted(str(path.resolve()) for path in paths)).encode())
        how = f"files{len(paths)}_{which:08x}"  # other averages of this run do not overwrite it
    else:
        _, run = resolve_checkpoint(args.model_path, prefer="best")
        paths = choose_checkpoints(run, **args.chosen)
        how = "".join(f"{name}{k}" for name, k in args.chosen.items() if k)
    payload = average_checkpoints(paths)
    written = write_average(run, payload, how=how)
    for path, source in zip(paths, payload["averaged"]):
        print(f"{path}: epoch {source['epoch']}, update {source['step']}")
    print(f"written: {written}; use it with --model_path")


if __name__ == "__main__":
    run_main(main)
