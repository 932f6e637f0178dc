"""Command lines of the scripts that use a trained model: one-line errors, and the options they
share.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from configs.schema import Config, Search
from configs.serialize import apply_overrides, kinds, parse_override
from utils.cli import threads
from utils.errors import UserError

if TYPE_CHECKING:  # torch is imported when the command line is known to be right
    from translation.translator import LoadedRun, Translator


SEARCHES = tuple(kinds(Search))  # of decode.search


def add_model_arguments(parser: argparse.ArgumentParser, *, ensemble: bool = False) -> None:
    """Add --model_path (with `ensemble` one or more: a list of paths), --runs_dir, --device and
    --threads.
    """
    what = "a run's folder or a checkpoint (default: newest run)"
    if ensemble:
        parser.add_argument(
            "--model_path",
            metavar="RUN_OR_CHECKPOINT",
            type=Path,
            nargs="+",
            action="extend",
            help=f"{what}; several translate together, as an ensemble",
        )
    else:
        parser.add_argument("--model_path", metavar="RUN_OR_CHECKPOINT", type=Path, help=what)
    parser.add_argument(
        "--runs_dir",
        metavar="DIR",
        type=Path,
        default=Path("runs"),
        help="where the newest run is sought",
    )
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda, cuda:N")
    parser.add_argument("--threads", type=threads, metavar="N", help="CPU threads")


def add_set_argument(parser: argparse.ArgumentParser, metavar: str, what: str) -> None:
    """Add --set, repeatable, into `overrides`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar=metavar,
        help=f"change one {what}; repeatable",
    )


def add_decode_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --set and its short forms for decode.*, all into `overrides`, in the order in which they
    were given.
    """
    add_set_argument(parser, "decode.FIELD=VALUE", "decode setting")
    for field, metavar, what in (
        ("beam_size", "N", "hypotheses kept by beam search"),
        (
            "n_best",
            "N",
            "translations found for each sentence; at most beam_size, but any number of samples",
        ),
        ("length_penalty", "A", "alpha of the GNMT length penalty; 0: none"),
        ("mbr", "chrf|bleu", "rank the n_best by minimum Bayes risk under this metric"),
        ("batch_size", "N", "sentences translated at once"),
        ("max_len", "N", "tokens of a translation at most"),
        (
            "search.groups",
            "N",
            "of --search diverse: groups that share out the beam (default: one a hypothesis)",
        ),
        (
            "search.strength",
            "X",
            "of --search diverse: how strongly the groups avoid each other's tokens",
        ),
        ("search.temperature", "X", "of --search sample: divides the log-probabilities"),
        ("search.top_k", "N", "of --search sample: only the N most probable tokens of a step"),
        ("search.top_p", "P", "of --search sample: only the fewest tokens that have probability P"),
        ("search.seed", "N", "of --search sample"),
    ):
        parser.add_argument(
            f"--{field.removeprefix('search.')}",
            action="append",
            dest="overrides",
            type=f"decode.{field}={{}}".format,
            metavar=metavar,
            help=what,
        )


def check_decode_overrides(overrides: Sequence[str]) -> None:
    """Raises UserError for an override of anything but decode.*: the rest is fixed by training."""
    for text in overrides:
        key, _ = parse_override(text)
        if not key.startswith("decode."):
            raise UserError(
                f"--set {text}: {key} was fixed by training; only decode.* can be set here"
            )


def choose_search(config: Config, name: str | None) -> Config:
    """`config` with the search of this kind, with its defaults unless it is of this kind already.

    None and words that name no kind (greedy, both) leave it.
    """
    if name not in SEARCHES or name == config.decode.search.kind:
        return config
    return apply_overrides(config, [f"decode.search={name}"])


def apply_decode_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """`config` with decode.* set. A smaller beam takes n_best down with it, unless n_best is set
    too.
    """
    if "decode.n_best" in {parse_override(text)[0] for text in overrides}:
        return apply_overrides(config, overrides)
    changed = apply_overrides(config, ["decode.n_best=1", *overrides])
    n_best = min(config.decode.n_best, changed.decode.beam_size)
    return dataclasses.replace(changed, decode=dataclasses.replace(changed.decode, n_best=n_best))


def load_from_arguments(
    args: argparse.Namespace, change: Callable[[Config], Config] | None = None
) -> tuple[LoadedRun, Translator]:
    """The model that `add_model_arguments` describe, on its device; `change` as in `load_run`.
    Raises UserError.
    """
    import torch

    from translation.translator import load_runs
    from utils.machine import resolve_device

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    try:
        device = resolve_device(args.device)
    except UserError:
        device = None
    if device is None or (device.index or 0) >= max(1, torch.cuda.device_count()):
        raise UserError(
            f"--device {args.device}: not on this machine; allowed: auto, cpu, cuda, cuda:N"
        )
    paths = args.model_path if isinstance(args.model_path, list) else [args.model_path]
    loaded = load_runs(paths, runs_dir=args.runs_dir, change=change)
    return loaded, loaded.translator(device)
