"""Score a trained model on the test splits of its corpus: `python test.py`."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from translation.arguments import (
    SEARCHES,
    add_model_arguments,
    add_set_argument,
    load_from_arguments,
)
from utils.cli import Parser, positive, run_main

if TYPE_CHECKING:  # torch is imported when the command line is known to be right
    from configs.schema import Config


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        description="Score a trained model: BLEU, chrF, loss, confidence interval, comparison of two runs."
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="a config that must fit the model; its data, evaluate and decode settings are used",
    )
    parser.add_argument(
        "--split", metavar="NAME", help="one split of the corpus (default: every test split)"
    )
    parser.add_argument(
        "--search",
        choices=("greedy", *SEARCHES),
        help="default: that of the run's config (decode.search), a beam",
    )
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="only the first N pairs of a split"
    )
    parser.add_argument(
        "--char_bleu",
        action="store_true",
        help="BLEU of characters too: the figure that the original project reported",
    )
    parser.add_argument(
        "--compare",
        action="append",
        default=[],
        type=Path,
        metavar="RUN_B",
        help="paired bootstrap against another run on the same text; repeatable",
    )
    parser.add_argument(
        "--mbr",
        choices=("chrf", "bleu"),
        help="minimum Bayes risk among the decode.n_best translations of the search",
    )
    add_set_argument(parser, "SECTION.FIELD=VALUE", "field of data, evaluate or decode")
    add_model_arguments(parser, ensemble=True)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    import logging

    from data.corpora.build import build_corpus
    from translation import evaluation

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    overrides = [*args.overrides, *([f"decode.mbr={args.mbr}"] if args.mbr else [])]
    evaluation.check_overrides(overrides)
    change = evaluation.change_config(args.config, overrides, args.search)
    loaded, translator = load_from_arguments(args, change)
    config, greedy = loaded.config, args.search == "greedy"

    def like_a(other: Config) -> Config:
        """Another run on the same text with the same search; lengths and languages stay its own."""
        data = dataclasses.replace(
            other.data,
            corpus=config.data.corpus,
            eval_long=config.data.eval_long,
            cache_dir=config.data.cache_dir,
        )
        return dataclasses.replace(other, data=data, evaluate=config.evaluate, decode=config.decode)

    others = []
    for path in args.compare:
        args.model_path = path
        others.append(load_from_arguments(args, like_a))

    print(loaded.about())
    for split in evaluation.choose_splits(build_corpus(config.data), args.split):
        result = evaluation.evaluate_split(
            loaded, translator, split, greedy=greedy, limit=args.limit, char_bleu=args.char_bleu
        )
        scores = evaluation.write_results(result, loaded)
        print(f"\n{result.block()}\nwritten: {scores}", flush=True)
        for other, other_translator in others:
            hypotheses = evaluation.hypotheses_of_other(
                other, other_translator, split, result, greedy=greedy, limit=args.limit
            )
            paired = evaluation.compare(
                result, hypotheses, samples=config.evaluate.bootstrap_samples
            )
            print(evaluation.comparison_line(result, other, paired), flush=True)


if __name__ == "__main__":
    run_main(main)
