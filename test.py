"""Score a trained model on the test splits of its corpus: `python test.py`."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from configs.load import add_set_argument
from configs.schema import NO_NEIGHBOURS, Config
from translation.arguments import (
    ENSEMBLE,
    add_align_argument,
    add_decode_arguments,
    add_engine_arguments,
    add_model_arguments,
    load_from_arguments,
    refuse_beside,
    require_runs,
)
from translation.settings import SEARCHES, config_change, require_same_languages
from utils.cli import Parser, positive, run_main
from utils.errors import UserError

if TYPE_CHECKING:
    from translation.loading import LoadedRun
    from translation.translator import Translator


SCORING = "data.", "evaluate.", "decode."  # what --set may change


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(
        description="Score a trained model: BLEU, chrF, loss, confidence interval, comparison."
    )
    add = parser.add_argument
    what = "use the data, evaluate and decode settings of this config, which must fit the model"
    add("--config", metavar="FILE", help=what)
    add("--split", metavar="NAME", help="one split (default: every test split)")
    what = "default: decode.search of the run's config, which is beam unless it was changed"
    add("--search", choices=("greedy", *SEARCHES), help=what)
    add("--limit", type=positive, metavar="N", help="only the first N pairs")
    what = "also character BLEU, the figure that the original project reported"
    add("--char_bleu", action="store_true", help=what)
    what = "multi30k: also BLEU as papers on that corpus report it, beside sacreBLEU"
    add("--protocol", choices=("multi30k",), help=what)
    what = "paired bootstrap against another run on the same text; repeatable"
    add("--compare", action="append", default=[], type=Path, metavar="RUN_B", help=what)
    what = "show the N translations with the lowest chrF; with --compare also the N whose chrF "
    what += "differs most"
    add("--worst", type=positive, metavar="N", help=what)
    what = "score only word alignments, against gold links (1-2 sure, 1p2 possible; counted from 1)"
    add("--align", type=Path, metavar="GOLD.talp", help=what)
    what = "for --align: the sentences, PREFIX.LANGUAGE (default: test.LANGUAGE beside the links)"
    add("--align_text", type=Path, metavar="PREFIX", help=what)
    what = "for --align: choose layer and heads on the first N pairs, report on the others"
    add("--align_dev", type=positive, metavar="N", help=what)
    add_align_argument(parser)
    add_set_argument(parser, "SECTION.FIELD=VALUE", "field of data, evaluate or decode")
    add_decode_arguments(parser)
    add_model_arguments(parser, several=ENSEMBLE)
    add_engine_arguments(parser)
    args = parser.parse_args(argv)
    for flag in ("align_text", "align_dev", "align_with"):
        if args.align is None and (value := getattr(args, flag)) is not None:
            raise UserError(f"--{flag} {value} is for --align: add it")
    useless = "compare", "search", "limit", "split", "protocol", "char_bleu", "engine", "worst"
    if args.align is not None:
        flags = *useless, "workers", "config"
        refuse_beside("--align", parser, args, flags, ("batch_size",))
    if args.align is not None and not args.align.is_file():
        raise UserError(f"--align {args.align}: no such file")
    return args


def report_alignment(args: Namespace, loaded: LoadedRun, translator: Translator) -> None:
    """Precision, recall and AER of links between words, by layer and for one choice of heads."""
    from translation.alignment import ALL_HEADS
    from translation.alignment_error import GoldPairs, read_gold_pairs

    prefix, data = args.align_text or args.align.parent / "test", loaded.config.data
    if args.align_text is None and not Path(f"{prefix}.{data.src_lang}").exists():
        remedy = f"no such file as {prefix}.{data.src_lang}; give --align_text PREFIX"
        raise UserError(f"--align {args.align}: {remedy}")
    src, tgt, gold = read_gold_pairs(args.align, prefix, data.src_lang, data.tgt_lang)
    if (args.align_dev or 0) >= len(src):
        raise UserError(f"--align_dev {args.align_dev}: give fewer than the {len(src):,} pairs")
    choice = args.align_with or ALL_HEADS
    translator.align("", "", choice)  # refuses impossible heads at once
    pairs = GoldPairs(translator.word_attention(src, tgt), gold)
    print(f"{loaded.about()}\n\n{args.align}, {len(src):,} pairs, mean of all heads:")
    print(pairs.by_layer())
    print(f"--align_with {args.align_with or '(default)'}: {pairs.scores(choice)}")
    if args.align_dev is not None:
        n = args.align_dev
        best = pairs[:n].best()
        print(f"chosen on the first {n:,} pairs: --align_with {best}: {pairs[:n].scores(best)}")
        print(f"the same on the other {len(src) - n:,}: {pairs[n:].scores(best)}")


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    given = args.config, args.search, args.overrides
    change = config_change(*given, settable=SCORING, best_alone=True)
    require_runs(args, *args.compare)
    import logging

    from data.corpora.build import build_corpus
    from translation.evaluation import EvaluationSet, choose_splits, evaluate

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("ignite").setLevel(logging.CRITICAL)  # it would report an error again
    loaded, translator = load_from_arguments(args, change)
    if args.align is not None:
        report_alignment(args, loaded, translator)
        return
    config = loaded.config

    def like_a(path: Path, other: Config) -> Config:
        """Another run on the same text with the same search; its lengths stay its own."""
        ours = config.data
        require_same_languages(ours, other.data, path)
        decode = replace(config.decode, neighbours=NO_NEIGHBOURS)  # they are of ours
        names = "corpus", "clean", "src_lang", "tgt_lang", "eval_long", "cache_dir"
        data = replace(other.data, **{name: getattr(ours, name) for name in names})
        return replace(other, data=data, evaluate=config.evaluate, decode=decode)

    others = [  # whose translations may be there already
        load_from_arguments(args, partial(like_a, path), path=path, at_once=False)
        for path in args.compare
    ]
    splits = choose_splits(build_corpus(config.data), args.split)
    asked = {"greedy": args.search == "greedy", "limit": args.limit}
    print(loaded.about())
    # All are read before the first is translated.
    for pairs in [EvaluationSet(loaded, translator, split, **asked) for split in splits]:
        multi30k = args.protocol == "multi30k"
        result = evaluate(pairs, char_bleu=args.char_bleu, multi30k=multi30k)
        print(f"\n{result.block()}", flush=True)  # before writing files, which may fail
        print(f"written: {result.write()}", flush=True)
        if args.worst:
            print(result.worst(args.worst), flush=True)
        for other in others:
            theirs = EvaluationSet(*other, pairs.split, **asked)
            print(result.compared_with(theirs, worst=args.worst or 0), flush=True)


if __name__ == "__main__":
    run_main(main)
