"""Train a translation model: `python train.py --config configs/demo.py`."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from pathlib import Path

from utils.cli import run_main
from utils.config import add_config_arguments, load_config


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a translation model as a config file says.")
    parser.add_argument("--config", metavar="FILE", help="a Python config file (default: configs/base.py)")
    parser.add_argument(
        "--resume", metavar="RUN_OR_CHECKPOINT", type=Path, help="go on with a stopped run, exactly where it was"
    )
    parser.add_argument("--nproc_per_node", type=int, default=1, metavar="N", help="processes on this machine")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads of each process")
    add_config_arguments(parser)
    return parser.parse_args(argv)


def work(local_rank: int, args: argparse.Namespace) -> None:
    """One process of the training."""
    import ignite.distributed as idist
    import torch

    from configs.errors import UserError
    from utils.runs import checkpoint_config, read_checkpoint, resolve_checkpoint
    from utils.training import train

    logging.basicConfig(level=logging.INFO if idist.get_rank() == 0 else logging.ERROR, format="%(message)s")
    if args.threads is not None:
        if args.threads < 1:
            raise UserError(f"--threads {args.threads}: at least 1")
        torch.set_num_threads(args.threads)
    if args.resume is not None and args.config is None:
        from configs.serialize import apply_overrides

        checkpoint, _ = resolve_checkpoint(args.resume, runs_dir="runs", prefer="newest")
        config = apply_overrides(checkpoint_config(read_checkpoint(checkpoint)), args.overrides, position=args.position)
    else:
        config = load_config(args.config or Path(__file__).parent / "configs/base.py", args.overrides, args.position)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    result = train(config, resume=args.resume, say=say)
    if idist.get_rank() != 0:
        return
    if result.signal is not None:
        say(f"stopped by {signal.Signals(result.signal).name}; go on with: python train.py --resume {result.run.path}")
        raise SystemExit(128 + result.signal)
    best = f"best validation loss {result.best_loss:.4f}: {result.best}" if result.best else "no validation was run"
    say(f"finished: {best}")
    print(result.run.path)


def main() -> None:
    args = parse_args()
    import ignite.distributed as idist

    from configs.errors import UserError
    from utils.parallel import choose_backend

    if args.nproc_per_node < 1:
        raise UserError(f"--nproc_per_node {args.nproc_per_node}: at least 1")
    backend, spawn = choose_backend(args.nproc_per_node)
    with idist.Parallel(backend=backend, **spawn) as parallel:
        parallel.run(work, args)


if __name__ == "__main__":
    run_main(main)
