"""Tune beam size and length penalty on the validation split: `python tune.py --beam 1 4 8`."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from translation.arguments import add_model_arguments, add_set_argument, load_from_arguments
from utils.cli import Parser, positive, run_main
from utils.errors import UserError


def penalty(text: str) -> float:
    """A finite number >= 0 from text; argparse reports the rest."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r}: a number >= 0")
    return value


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        description="BLEU of beam sizes against length penalties; the best pair and the flags to use it."
    )
    parser.add_argument(
        "--beam", type=positive, nargs="+", default=[1, 4, 8], metavar="N", help="default: 1 4 8"
    )
    parser.add_argument(
        "--length_penalty",
        type=penalty,
        nargs="+",
        default=[0.0, 0.6, 1.0],
        metavar="A",
        help="default: 0 0.6 1",
    )
    parser.add_argument("--split", metavar="NAME", help="default: the validation split")
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="only the first N pairs of the split"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    add_set_argument(parser, "SECTION.FIELD=VALUE", "field of data, evaluate or decode")
    add_model_arguments(parser, ensemble=True)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    import logging

    from data.corpora.build import build_corpus
    from translation import evaluation
    from translation.tuning import tune

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    evaluation.check_overrides(args.overrides)
    loaded, translator = load_from_arguments(args, evaluation.change_config(None, args.overrides))
    corpus = build_corpus(loaded.config.data)
    [split] = evaluation.choose_splits(corpus, args.split or corpus.validation)
    references, ids = evaluation.references_of(loaded, split, args.limit)
    print(loaded.about(), flush=True)
    grid = tune(
        translator,
        ids,
        references,
        split=split,
        beams=args.beam,
        penalties=args.length_penalty,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if args.markdown is not None:
        try:
            args.markdown.write_text(f"{grid.markdown()}\n", encoding="utf-8", newline="\n")
        except OSError as error:
            raise UserError(
                f"--markdown {args.markdown}: cannot be written: {error.strerror}"
            ) from None
    print(f"\n{grid.markdown()}\n\n{grid.flags()}")


if __name__ == "__main__":
    run_main(main)
