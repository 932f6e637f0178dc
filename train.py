"""Train a translation model: `python train.py --config configs/demo.py`."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from configs.load import add_config_arguments, config_of, load_config
from configs.schema import Config
from configs.serialize import apply_overrides, diff
from utils.cli import Parser, positive, run_main, threads

DEFAULT_CONFIG = Path(__file__).parent / "configs/demo.py"


@dataclass(frozen=True, slots=True)
class Job:
    """What every process is told."""

    config: Config
    resume: Path | None
    threads: int | None


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(description="Train a translation model as a config file says.")
    parser.add_argument(
        "--config", metavar="FILE", help="a Python config file (default: configs/demo.py)"
    )
    parser.add_argument(
        "--resume",
        metavar="RUN_OR_CHECKPOINT",
        type=Path,
        help="go on with a stopped run, exactly where it was",
    )
    parser.add_argument(
        "--nproc_per_node", type=positive, default=1, metavar="N", help="processes on this machine"
    )
    parser.add_argument("--threads", type=threads, metavar="N", help="CPU threads of each process")
    add_config_arguments(parser)
    parser.add_argument(
        "--init_from",
        metavar="RUN_OR_CHECKPOINT",
        action="append",
        dest="overrides",
        type="train.init_from={}".format,
        help="begin a new run with the weights and the tokenizer of another one",
    )
    parser.add_argument(
        "--diff",
        metavar="CONFIG_OR_RUN_OR_CHECKPOINT",
        type=Path,
        help="train nothing: show each field in which this run's config (--config or --resume, with --set) and that of "
        "another differ, as FIELD: HERE -> THERE",
    )
    return parser.parse_args(argv)


def choose_job(args: argparse.Namespace) -> Job:
    """The config file's training, or that of the run that goes on, with the changes of the command
    line.
    """
    if args.resume is None:
        return Job(
            load_config(args.config or DEFAULT_CONFIG, args.overrides, args.position),
            None,
            args.threads,
        )
    from checkpoints.content import checkpoint_config
    from training.start import find_checkpoint

    checkpoint, _, payload = find_checkpoint(args.resume)
    if args.config is not None:
        config = load_config(args.config, args.overrides, args.position)
    else:
        config = apply_overrides(checkpoint_config(payload), args.overrides, position=args.position)
    return Job(config, checkpoint, args.threads)


def config_at(checkpoint: Path) -> Config:
    from checkpoints.content import checkpoint_config, read_checkpoint
    from checkpoints.run import resolve_checkpoint

    path, _ = resolve_checkpoint(checkpoint, runs_dir="runs", prefer="newest")
    return checkpoint_config(read_checkpoint(path))


def show_differences(here: Config, there: Config) -> None:
    """A line for each field in which the two differ; None for one that a config has not."""
    found = diff(here, there)
    for key, a, b in found:
        print(f"{key}: {a!r} -> {b!r}")
    if not found:
        print("no difference", file=sys.stderr)


def work(local_rank: int, job: Job) -> None:
    """One process of the training."""
    import ignite.distributed as idist
    import torch

    from training.run import train

    main = idist.get_rank() == 0
    logging.basicConfig(level=logging.INFO if main else logging.ERROR, format="%(message)s")
    for name in ("httpx", "httpx2", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if job.threads is not None:
        torch.set_num_threads(job.threads)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    result = train(job.config, resume=job.resume, say=say)
    if not main:
        return
    if result.signal is not None:
        say(
            f"stopped by {signal.Signals(result.signal).name}; go on with: python train.py --resume {result.run.path}"
        )
        raise SystemExit(128 + result.signal)
    if result.stopped_early:
        say(f"stopped early: no better validation loss in {job.config.train.patience} evaluations")
    best = (
        f"best validation loss {result.best_loss:.4f}: {result.best}"
        if result.best
        else "no validation was run"
    )
    say(f"finished: {best}")
    print(result.run.path)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    job = choose_job(args)
    if args.diff is not None:
        show_differences(job.config, config_of(args.diff) or config_at(args.diff))
        return
    from training.processes import run_processes

    run_processes(work, job, nproc_per_node=args.nproc_per_node, device=job.config.train.device)


if __name__ == "__main__":
    run_main(main)
