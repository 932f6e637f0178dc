"""Train a translation model: `python train.py --config configs/demo.py`."""

import functools
import logging
import os
import shlex
import signal
import sys
from argparse import Namespace
from pathlib import Path

from checkpoints.run import FinishedError, hub_name, require_there
from configs.load import add_config_arguments, config_of, load_config
from configs.schema import TRAINING_ONLY, Config
from configs.serialize import apply_overrides, diff, fields_named, parse_override
from utils.cli import Parser, imported, keep_shapes, processes, run_main, threads
from utils.errors import UserError

AUTO = Path("auto")  # of --resume
DEFAULT_CONFIG = Path(__file__).parent / "configs/demo.py"


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(description="Train a translation model from a config file.")
    add = parser.add_argument
    add("--config", metavar="FILE", help="a Python config file (default: configs/demo.py)")
    what = "continue a run exactly where it stopped; auto: this config's newest run, or a new one"
    add("--resume", type=Path, metavar="RUN_OR_CHECKPOINT|auto", help=what)
    what = "processes on this machine"
    add("--nproc_per_node", type=processes, default=1, metavar="N", help=what)
    add("--threads", type=threads, metavar="N", help="CPU threads of each process")
    add_config_arguments(parser)
    add(
        "--init_from",
        metavar="RUN_OR_CHECKPOINT",
        action="append",
        dest="overrides",
        type="train.init_from={}".format,
        help="begin a new run with the weights and tokenizer of another run or a Marian model",
    )
    add(
        "--diff",
        metavar="CONFIG_OR_RUN_OR_CHECKPOINT",
        type=Path,
        help="train nothing: show where this run's config (--config or --resume, with --set) "
        "differs from another, one field a line, as FIELD: HERE -> THERE",
    )
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        fields = fields_named(unknown[0].lstrip("-").partition("=")[0])
        set_by = f"; --set sets fields: {', '.join(fields)}" if fields else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{set_by}")
    here = "train.runs_dir" in dict(map(parse_override, args.overrides))
    if here and args.resume not in (None, AUTO):
        raise UserError("--set train.runs_dir: a run goes on in its own folder; leave this out")
    return args


def choose_config(args: Namespace) -> tuple[Config, Path | None]:
    """The config of the wanted training, and the checkpoint or run to resume."""
    file = DEFAULT_CONFIG if args.config is None else args.config
    if args.resume == AUTO:
        from training.start import run_to_resume

        config = load_config(file, args.overrides, args.position)
        return config, run_to_resume(config)
    if args.resume is not None:
        require_there(args.resume)
        from checkpoints.content import checkpoint_config
        from training.start import find_checkpoint

        # What is no checkpoint is reported here, before anything is written beside it.
        saved = checkpoint_config(find_checkpoint(args.resume)[2])
        if args.config is None:
            return apply_overrides(saved, args.overrides, position=args.position), args.resume
    return load_config(file, args.overrides, args.position), args.resume


def refuse_inherited(args: Namespace, config: Config) -> None:
    """Raises UserError for settings of a tokenizer or model that train.init_from gives."""
    if config.train.init_from is None:
        return
    keys = [key for key, _ in map(parse_override, args.overrides) if key not in TRAINING_ONLY]
    # With sampling, kind and algorithm say how segmentations are drawn: `as_parent` compares that.
    way = ("tokenizer", "tokenizer.algorithm") * bool(getattr(config.tokenizer, "sampling", 0))
    for key in keys:
        if key.startswith("tokenizer") and key not in way:
            said = "the tokenizer comes from train.init_from; leave one of the two out"
            raise UserError(f"--set {key}: {said}")
    if not config.train.init_model:
        return
    given = [f"--set {key}" for key in keys if key.startswith("model.")]
    if args.position is not None:
        given.append(f"--position {args.position}")
    if given:
        raise UserError(
            f"{given[0]}: with train.init_model=true the model comes from train.init_from; leave "
            "one of the two out"
        )


def show_differences(here: Config, other: Path) -> None:
    """Print each field in which the two configs differ; None for one that a config lacks."""
    there = None if hub_name(other) else config_of(other)
    if there is None:
        from checkpoints.content import checkpoint_config, read_checkpoint
        from checkpoints.resolve import resolve_checkpoint

        checkpoint, _ = resolve_checkpoint(other, prefer="best")
        there = checkpoint_config(read_checkpoint(checkpoint))
    found = diff(here, there)
    for key, a, b in found:
        print(f"{key}: {a!r} -> {b!r}")
    if not found:
        print("no difference", file=sys.stderr)


def work(*, args: Namespace, config: Config, resume: Path | None) -> None:
    """One process of the training. With --resume auto, a finished run is no error."""
    import ignite.distributed as idist

    from training.run import train
    from utils.machine import computing_with

    imported()
    main = idist.get_rank() == 0
    logging.basicConfig(level=logging.INFO if main else logging.ERROR, format="%(message)s")
    for name in ("httpx", "httpx2", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        with computing_with(args.threads):
            result = train(config, resume=resume)
    except FinishedError as error:
        if args.resume != AUTO:
            raise
        logging.info(error)
        if main:
            print(resume)
        return
    if result.signal is not None:
        name, path = signal.Signals(result.signal).name, shlex.quote(str(result.run.path))
        logging.info(f"stopped by {name}; go on with: python train.py --resume {path}")
        idist.barrier()  # the message comes before a process ends, and the others with it
        raise SystemExit(128 + result.signal)
    if not main:
        return
    measure = {"loss": "loss", "bleu": "BLEU", "chrf": "chrF"}[config.evaluate.choose_by]
    best = result.best_loss if result.best_metric is None else result.best_metric
    if result.stopped_early:
        patience = f"train.patience = {config.train.patience}"
        logging.info(f"stopped early: no better validation {measure} ({patience})")
    logging.info(f"finished: best validation {measure} {best:.4f}: {result.best}")
    print(result.run.path)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    keep_shapes(64)
    config, checkpoint = choose_config(args)
    if args.diff is not None:
        return show_differences(config, args.diff)
    if checkpoint is None and config.train.init_from is not None:
        require_there(Path(os.path.expanduser(config.train.init_from)))
    refuse_inherited(args, config)
    from training.processes import run_processes

    job = functools.partial(work, args=args, config=config, resume=checkpoint)
    run_processes(job, nproc_per_node=args.nproc_per_node, device=config.train.device)


if __name__ == "__main__":
    run_main(main)
elif __name__ == "__mp_main__" and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback during the seconds of its imports
