"""Tune beam size and length penalty on the validation split: `python tune.py --beam 1 4 8`."""

import itertools
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from configs.load import add_set_argument
from configs.schema import MOST_PENALTY, MOST_ROWS, Beam
from configs.serialize import parse_override
from translation.arguments import (
    ENSEMBLE,
    add_model_arguments,
    load_from_arguments,
    require_runs,
    run_paths,
)
from translation.settings import config_change
from utils.cli import Parser, at_most, number, positive, run_main
from utils.errors import UserError
from utils.lines import writer

FIXED = tuple(f"decode.{name}" for name in ("beam_size", "length_penalty", "mbr", "n_best"))


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(
        description="BLEU by beam size and length penalty, and the flags of the best pair."
    )
    add = parser.add_argument
    what, alpha, most = "default: 1 4 8", number(MOST_PENALTY), at_most(MOST_ROWS)
    beams = ["--beam", "--beam_size"]
    add(*beams, type=most, default=[1, 4, 8], nargs="+", metavar="N", help=what)
    what = "default: 0 0.6 1"
    add("--length_penalty", type=alpha, default=[0.0, 0.6, 1.0], nargs="+", metavar="A", help=what)
    what = "values of another field of decode, each with every pair; repeatable: all combinations"
    add("--vary", action="append", default=[], metavar="decode.FIELD=A,B,...", help=what)
    add("--split", metavar="NAME", help="default: the validation split")
    add("--limit", type=positive, metavar="N", help="only the first N pairs")
    add("--markdown", type=Path, metavar="FILE", help="also write the table to FILE")
    add_set_argument(parser, "SECTION.FIELD=VALUE", "field of data or decode")
    add_model_arguments(parser, several=ENSEMBLE)
    args = parser.parse_args(argv)
    given, args.varied = dict(map(parse_override, args.overrides)), {}
    for text in args.vary:
        key, _, values = map(str.strip, text.partition("="))
        if not key.startswith("decode.") or not values or key == "decode.neighbours.datastore":
            raise UserError(f"--vary {text}: write decode.FIELD=A,B; a datastore is for --set")
        if key in given or key in args.varied:
            raise UserError(f"--vary {text}: {key} is given twice")
        args.varied[key] = [*dict.fromkeys(values.split(","))]
    varied = {key: ",".join(values) for key, values in args.varied.items()}
    for flag, fields in (("--set", given), ("--vary", varied)):
        for key, text in fields.items():
            if key in FIXED or key.startswith("decode.search"):
                raise UserError(f"{flag} {key}={text}: tune.py sets it itself: leave it out")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    combinations = [*itertools.product(*args.varied.values())]
    settable = "data.", "decode."
    changes = [
        config_change(
            None,
            None,
            [*args.overrides, *map("=".join, zip(args.varied, values))],
            settable=settable,
            best_alone=True,
        )
        for values in combinations
    ]
    require_runs(args)
    import logging

    from data.corpora.build import build_corpus
    from translation.evaluation import EvaluationSet, choose_splits
    from translation.tuning import tune

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    loaded, translator = load_from_arguments(args, changes[0])
    corpus = build_corpus(loaded.config.data)
    [split] = choose_splits(corpus, args.split or corpus.validation)
    configs = [change(loaded.config) for change in changes]
    for beam, config in itertools.product(args.beam, configs):  # refuse before the first search
        replace(config.decode, search=Beam(), mbr=None, n_best=1, beam_size=beam)
    pairs = EvaluationSet(loaded, translator, split, greedy=False, limit=args.limit)
    settings = {values: config.decode for values, config in zip(combinations, configs)}
    tried = {"beams": args.beam, "penalties": args.length_penalty}
    with writer(args.markdown) if args.markdown else nullcontext(lambda lines: None) as write:
        print(loaded.about(), flush=True)
        grid = tune(pairs, settings, (*args.varied,), **tried)
        write(grid.markdown().splitlines())
    decode = loaded.config.decode  # the grid is for beam search alone
    more = ["decode.search=beam"] * (not isinstance(decode.search, Beam))
    more += ["decode.mbr=none"] * (decode.mbr is not None)
    flags = grid.flags(run_paths(args), [*args.overrides, *more])
    print(f"\n{grid.markdown()}\n{flags}", flush=True)


if __name__ == "__main__":
    run_main(main)
