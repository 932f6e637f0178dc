"""Options shared by the scripts that use a trained model. Imports torch when they are used."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkpoints.run import newest_run, require_there
from configs.load import add_set_argument
from configs.schema import Config
from configs.serialize import parse_override
from translation.workers import Processes, Threads, Workers, threads_of_each
from utils.cli import imported, processes, threads
from utils.errors import UserError

if TYPE_CHECKING:
    from translation.alignment import HeadChoice
    from translation.loading import LoadedRun
    from translation.translator import Translator

ENSEMBLE = "several translate together, as an ensemble"
DECODE_FLAGS = (
    ("beam_size", "N", "hypotheses kept by beam search"),
    (
        "n_best",
        "N",
        "translations of each sentence: at most beam_size, but any number of samples; where one "
        "is used, only with --mbr",
    ),
    ("length_penalty", "A", "alpha of the GNMT length penalty; 0: none"),
    ("mbr", "chrf|bleu", "rank the n_best by minimum Bayes risk under this metric"),
    ("batch_size", "N", "most sentences in one batch"),
    ("max_len", "N", "most tokens in a translation"),
    ("search.groups", "N", "for a diverse search: groups in the beam (default: beam_size)"),
    ("search.strength", "X", "for a diverse search: how strongly groups avoid each other's tokens"),
    ("search.temperature", "X", "for sampling: divides the log-probabilities"),
    ("search.top_k", "N", "for sampling: only the N most probable tokens of a step"),
    ("search.top_p", "P", "for sampling: only the fewest tokens that sum to probability P"),
    ("search.seed", "N", "for sampling: seed of the draws"),
)


def add_run_arguments(parser: ArgumentParser, *, several: str = "", newest: bool = True) -> None:
    """Add --model_path (a list of paths where `several` says what they do) and --runs_dir.

    newest=False: --model_path is required.
    """
    what = "a run's folder, a checkpoint or a Marian model"
    what += newest * " (default: newest run)" + (several and f"; {several}")
    how: dict[str, Any] = {"nargs": "+", "action": "extend"} if several else {}
    add, metavar = parser.add_argument, "RUN_OR_CHECKPOINT"
    add("--model_path", type=Path, metavar=metavar, required=not newest, help=what, **how)
    where = "where to look for the newest run"
    if newest:
        add("--runs_dir", type=Path, default=Path("runs"), metavar="DIR", help=where)


def add_model_arguments(parser: ArgumentParser, *, several: str = "", newest: bool = True) -> None:
    """Add what `load_from_arguments` reads: `add_run_arguments`, --device and --threads."""
    add_run_arguments(parser, several=several, newest=newest)
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda, cuda:N")
    parser.add_argument("--threads", type=threads, metavar="N", help="CPU threads of each process")
    parser.set_defaults(engine="torch", compute_type=None, precision="fp32", workers=1)


def add_engine_arguments(parser: ArgumentParser) -> None:
    """Add options for how `load_from_arguments` searches; in float32 they do not change results."""
    add = parser.add_argument
    what = "what searches: torch (default), ctranslate2 (with an export made once), or auto:"
    what += " ctranslate2 where it can find the same, else torch"
    add("--engine", choices=("torch", "ctranslate2", "auto"), help=what)
    what = "for --engine ctranslate2: float32 (default), int8, ..."
    add("--compute_type", metavar="TYPE", help=what)
    what = "for --engine torch (default: fp32)"
    add("--precision", choices=("auto", "fp32", "bf16", "fp16"), help=what)
    what = "batches translated at once, by processes that share the CPU's cores (default: 1)"
    add("--workers", type=processes, metavar="N", help=what)


def add_search_arguments(parser: ArgumentParser, *, several: str) -> None:
    """Add --set and its short forms; `add_model_arguments` and `add_engine_arguments` follow."""
    add_set_argument(parser, "decode.FIELD=VALUE", "decode setting")
    add_decode_arguments(parser)
    add_model_arguments(parser, several=several)
    add_engine_arguments(parser)


def add_decode_arguments(parser: ArgumentParser) -> None:
    """Add the short forms of --set decode.*, into `overrides` with it, in the order given."""
    for field, metavar, what in DECODE_FLAGS:
        parser.add_argument(
            f"--{field.removeprefix('search.')}",
            action="append",
            dest="overrides",
            type=f"decode.{field}={{}}".format,
            metavar=metavar,
            help=what,
        )


def require_runs(args: Namespace, *others: Path) -> None:
    """Raises UserError where a run of `add_run_arguments`, or one of `others`, does not exist.

    If none is named, the newest is taken and named on standard error. Imports no torch.
    """
    if args.model_path is None:
        args.model_path = newest_run(args.runs_dir).path
        print(f"run: {args.model_path}, the newest", file=sys.stderr)
    for path in (*run_paths(args), *others):
        require_there(path)


def run_paths(args: Namespace) -> list[Path]:
    """The paths of --model_path, which takes one or several, depending on the script."""
    return args.model_path if isinstance(args.model_path, list) else [args.model_path]


def refuse_beside(
    what: str,
    parser: ArgumentParser,
    args: Namespace,
    flags: Iterable[str],
    settings: Sequence[str] | None = None,
) -> None:
    """Raises UserError for any of `flags`, and for a decode setting that is not in `settings`.

    settings: None allows all.
    """
    for flag in flags:
        if (value := getattr(args, flag)) != parser.get_default(flag):
            given = value[0] if isinstance(value, list) else value
            refused = f"--{flag}" if given is True else f"--{flag} {given}"
            raise UserError(f"{refused} is of no use with {what}: leave it out")
    for text in args.overrides:
        field = parse_override(text)[0].removeprefix("decode.")
        if settings is not None and field not in settings:
            raise UserError(f"{text} is of no use with {what}: leave it out")


def add_align_argument(parser: ArgumentParser) -> None:
    """Add --align_with: the attention from which links between words are read."""
    what = "for --align: decoder layer and heads, from 1, to read links off (default: all heads of "
    what += "the last layer but one, of two the last); shift: in the step that reads the word"

    def heads(text: str) -> HeadChoice:
        from translation.alignment import HeadChoice

        return HeadChoice.parse(text)

    parser.add_argument("--align_with", type=heads, metavar="[shift:]LAYER[:HEAD,...]", help=what)


def load_from_arguments(
    args: Namespace,
    change: Callable[[Config], Config] = lambda config: config,
    *,
    path: Path | None = None,
    at_once: bool = True,
) -> tuple[LoadedRun, Translator]:
    """The model of `add_model_arguments`, on its device; `change` as in `load_run`.

    `path` takes precedence over --model_path. The model searches as `add_engine_arguments` say, if
    the script has them. at_once: it will search, so its --workers start now. Raises UserError.
    """
    if args.compute_type is not None and args.engine != "ctranslate2":
        why = f"is for --engine ctranslate2, not {args.engine}; torch has --precision"
        raise UserError(f"--compute_type {args.compute_type} {why}")
    if args.precision != "fp32" and args.engine != "torch":
        why = f"is for --engine torch, not {args.engine}; ctranslate2 has --compute_type"
        raise UserError(f"--precision {args.precision} {why}")
    workers: Workers | None = None
    if args.workers > 1 and args.engine == "torch":
        # They start while this one imports torch.
        workers = Processes(args.workers, args.threads, at_once=at_once)
    import torch

    from translation.loading import load_run
    from translation.translator import Translator
    from utils.machine import (
        DTYPES,
        IN_A_SEARCH,
        keep_freed_memory,
        resolve_device,
        resolve_precision,
    )

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    keep_freed_memory(IN_A_SEARCH)
    device = resolve_device(args.device)
    if args.workers > 1 and device.type != "cpu":
        raise UserError(f"--workers {args.workers} is for a CPU; add --device cpu or leave it out")
    loaded = load_run(*(run_paths(args) if path is None else [path]), change=change)
    d_model = loaded.config.model.d_model
    exact = args.precision == "auto" and loaded.config.decode.neighbours.datastore
    wanted = "fp32" if exact else args.precision
    precision = resolve_precision(wanted, device, d_model, setting="--precision")
    engine, said = None, "torch"
    if args.engine != "torch":
        try:
            engine = loaded.ctranslate2(
                device,
                greedy=getattr(args, "search", None) == "greedy",
                compute_type=args.compute_type or "float32",
                inter_threads=args.workers,
                intra_threads=args.threads or threads_of_each(args.workers),
            )
            said = engine.name
        except UserError as error:
            if args.engine == "ctranslate2":
                raise UserError(f"--engine ctranslate2: {error}; use --engine torch") from error
            said = f"torch, since {error}"
    if args.engine == "auto":
        print(f"engine: {said}", file=sys.stderr)
    if args.workers > 1 and engine is not None:
        workers = Threads(args.workers)
    elif args.workers > 1 and workers is None:
        workers = Processes(args.workers, args.threads, at_once=at_once)
    translator = Translator.of(loaded, device, DTYPES[precision], engine=engine, workers=workers)
    imported()
    return loaded, translator
