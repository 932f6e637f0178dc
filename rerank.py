"""Rank the n best translations anew by a model of the other direction: `python rerank.py`."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

from translation.arguments import ENSEMBLE, add_model_arguments, load_from_arguments, require_runs
from utils.cli import Parser, number, run_main
from utils.errors import UserError
from utils.lines import as_line, open_source, read_lines, writer

WEIGHT, MOST_WEIGHT = 0.2, 100
GRID = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0]


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(
        description="Noisy-channel reranking: of the n best translations that inference.py wrote, "
        "the one with the best score(translation | source) + weight * score(source | translation). "
        "The second score is from --model_path, which translates the other way."
    )
    add = parser.add_argument
    what = "of inference.py --json --n_best N, plain or .gz (default: standard input)"
    add("--nbest_file", type=Path, metavar="FILE", help=what)
    what = f"default: {WEIGHT}; with --ref_file {' '.join(f'{each:g}' for each in GRID)}"
    add("--weight", type=number(MOST_WEIGHT), nargs="+", metavar="W", help=what)
    what = "references a line each, plain or .gz: sacreBLEU by weight, and no translations"
    add("--ref_file", type=Path, metavar="FILE", help=what)
    add("--output", type=Path, metavar="FILE", help="write the best translation, a line each")
    add("--json", action="store_true", help="write all, ranked anew, as inference.py does")
    add_model_arguments(parser, several=ENSEMBLE)
    args = parser.parse_args(argv)
    if args.ref_file is not None and (args.output is not None or args.json):
        given = "--json" if args.output is None else f"--output {args.output}"
        raise UserError(f"{given} is of no use beside --ref_file: leave one of them out")
    args.weight = args.weight or ([WEIGHT] if args.ref_file is None else GRID)
    if args.ref_file is None and len(args.weight) > 1:
        raise UserError("several weights are for --ref_file: give one")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    require_runs(args)
    file, name = open_source(args.nbest_file)
    references = None
    if args.ref_file is not None:
        references = list(read_lines(*open_source(args.ref_file)))
    with writer(args.output, never=(args.nbest_file,)) as write:
        _, reverse = load_from_arguments(args)
        from models.linear import weights_fixed
        from translation.reranking import read_nbest, score_reverse, weights_table

        scored = []
        with weights_fixed():
            for chunk in score_reverse(reverse, read_nbest(read_lines(file, name), name)):
                if references is not None:
                    scored += chunk
                    continue
                found = [each.ranked(*args.weight) for each in chunk]
                as_json = (json.dumps(asdict(each), ensure_ascii=False) for each in found)
                write(list(as_json) if args.json else [as_line(each.best.text) for each in found])
        if references is not None:
            write(weights_table(scored, references, args.weight).splitlines())


if __name__ == "__main__":
    run_main(main)
