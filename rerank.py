"""Rank the n best translations anew by a model of the other direction: `python rerank.py`."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

from translation.arguments import ENSEMBLE, add_model_arguments, load_from_arguments, require_runs
from utils.cli import Parser, number, run_main
from utils.errors import UserError
from utils.lines import as_line, open_source, read_lines, writer

WEIGHT, MOST_WEIGHT = 0.2, 100
GRID = [0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0]


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(
        description="Noisy-channel reranking: of the n best translations that inference.py wrote, "
        "take the one with the best score(translation | source) + weight * score(source | "
        "translation). The second score is by --model_path, a model of the other direction."
    )
    add = parser.add_argument
    what = "the output of inference.py --json --n_best N, plain or .gz"
    add("--nbest_file", type=Path, metavar="FILE", required=True, help=what)
    what = f"default: {WEIGHT}; with --ref_file {' '.join(f'{each:g}' for each in GRID)}"
    weight = number(MOST_WEIGHT)
    add("--weight", type=weight, nargs="+", action="extend", metavar="W", help=what)
    what = "references, one a line, plain or .gz: print sacreBLEU by weight, also for 0, and no "
    add("--ref_file", type=Path, metavar="FILE", help=f"{what}translations")
    add("--output", type=Path, metavar="FILE", help="write the best translations, one a line")
    what = "write all of them, reranked, as inference.py does: score is the sum, reverse the second"
    add("--json", action="store_true", help=what)
    add_model_arguments(parser, several=ENSEMBLE, newest=False)
    args = parser.parse_args(argv)
    if args.ref_file is not None and (args.output is not None or args.json):
        given = "--json" if args.output is None else f"--output {args.output}"
        raise UserError(f"{given} is of no use with --ref_file: leave one of them out")
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
        from translation.reranking import read_nbest, score_reverse, weights_table

        items = read_nbest(read_lines(file, name), name)
        if references is not None:
            known = list(items)  # errors in them are reported before scoring
            if not 0 < len(known) == len(references):
                counts = f"{len(references):,} references for {len(known):,} lines of {name}"
                raise UserError(f"{counts}: give one for each")
            items = iter(known)
        loaded, reverse = load_from_arguments(args)
        from models.linear import weights_fixed
        from utils.progress import Bar

        data, scored = loaded.config.data, []
        n_lines = None if references is None else len(references)
        bar = Bar(total=n_lines, unit=" lines", disable=None, smoothing=0)
        with bar, weights_fixed():
            for place, chunk in enumerate(score_reverse(reverse, items)):
                if place == 0:
                    src, tgt = data.src_lang, data.tgt_lang
                    told = f"the n best are taken to go {tgt} to {src}: --model_path goes {src} to "
                    bar.write(f"{told}{tgt}", sys.stderr)
                bar.update(len(chunk))
                if references is not None:
                    scored += chunk
                    continue
                found = [each.ranked(*args.weight) for each in chunk]
                as_json = (json.dumps(asdict(each), ensure_ascii=False) for each in found)
                write(list(as_json) if args.json else [as_line(each.best.text) for each in found])
        if references is not None:
            weights = sorted({0.0, *args.weight})
            write(weights_table(scored, references, weights, data.src_lang).splitlines())


if __name__ == "__main__":
    run_main(main)
