"""Score a trained model on the test splits of its corpus: `python test.py`."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from configs.load import add_set_argument
from configs.schema import Config
from translation.arguments import (
    ENSEMBLE,
    add_engine_arguments,
    add_model_arguments,
    load_from_arguments,
    require_runs,
)
from translation.settings import SEARCHES, config_change
from utils.cli import Parser, positive, run_main


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(
        description="Score a trained model: BLEU, chrF, loss, confidence interval, comparison."
    )
    add = parser.add_argument
    what = "a config that must fit the model; its data, evaluate and decode settings are used"
    add("--config", metavar="FILE", help=what)
    add("--split", metavar="NAME", help="one split (default: every test split)")
    what = "default: that of the run's config (decode.search), a beam"
    add("--search", choices=("greedy", *SEARCHES), help=what)
    add("--limit", type=positive, metavar="N", help="only the first N pairs")
    what = "BLEU of characters too: the figure that the original project reported"
    add("--char_bleu", action="store_true", help=what)
    what = "paired bootstrap against another run on the same text; repeatable"
    add("--compare", action="append", default=[], type=Path, metavar="RUN_B", help=what)
    what = "minimum Bayes risk among the decode.n_best translations of the search"
    add("--mbr", choices=("chrf", "bleu"), help=what)
    add_set_argument(parser, "SECTION.FIELD=VALUE", "field of data, evaluate or decode")
    add_model_arguments(parser, several=ENSEMBLE)
    add_engine_arguments(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    overrides = [*args.overrides, *([f"decode.mbr={args.mbr}"] if args.mbr else [])]
    change = config_change(args.config, args.search, overrides, scoring=True)
    require_runs(args, *args.compare)
    import logging

    from data.corpora.build import build_corpus
    from translation.evaluation import EvaluationSet, choose_splits, evaluate

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    loaded, translator = load_from_arguments(args, change)
    config = loaded.config

    def like_a(other: Config) -> Config:
        """Another run on the same text with the same search; lengths and languages stay its own."""
        ours = config.data
        data = replace(
            other.data, corpus=ours.corpus, eval_long=ours.eval_long, cache_dir=ours.cache_dir
        )
        return replace(other, data=data, evaluate=config.evaluate, decode=config.decode)

    others = []
    for path in args.compare:
        args.model_path = path
        others.append(load_from_arguments(args, like_a))

    splits = choose_splits(build_corpus(config.data), args.split)
    asked = {"greedy": args.search == "greedy", "limit": args.limit}
    print(loaded.about())
    for split in splits:
        pairs = EvaluationSet(loaded, translator, split, **asked)
        result = evaluate(pairs, char_bleu=args.char_bleu)
        print(f"\n{result.block()}\nwritten: {result.write()}", flush=True)
        for other in others:
            print(result.compared_with(EvaluationSet(*other, split, **asked)), flush=True)


if __name__ == "__main__":
    run_main(main)
