"""Keep a model's states of a text, to search in: `python datastore.py --model_path RUN`."""

from argparse import Namespace
from pathlib import Path

from configs.load import add_set_argument
from translation.arguments import add_model_arguments, load_from_arguments, require_runs
from translation.settings import config_change
from utils.cli import Parser, positive, run_main


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(
        description="Write the hidden state before each target token of a text, and the token: the "
        "datastore of nearest-neighbour translation (decode.neighbours)."
    )
    add = parser.add_argument
    add("--split", metavar="NAME", help="whose pairs are read (default: the training split)")
    add("--limit", type=positive, metavar="N", help="only the first N pairs")
    what = "default: RUN/datastores/CHECKPOINT_SPLIT.safetensors"
    add("--output", type=Path, metavar="FILE", help=what)
    add_set_argument(parser, "SECTION.FIELD=VALUE", "field of data")
    add_model_arguments(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    change = config_change(None, None, args.overrides, settable=("data.",))
    require_runs(args)
    import logging

    from data.corpora.build import build_corpus
    from translation.datastore import make_datastore, write_datastore
    from translation.evaluation import EvaluationSet, choose_splits
    from utils.files import write_errors
    from utils.progress import Bar

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    loaded, translator = load_from_arguments(args, change)
    corpus = build_corpus(loaded.config.data)
    [split] = choose_splits(corpus, args.split or corpus.train)
    pairs = EvaluationSet(loaded, translator, split, greedy=True, limit=args.limit)
    name = f"{loaded.checkpoint.stem}_{pairs.split.replace('/', '_')}.safetensors"
    path = args.output or loaded.run.path / "datastores" / name
    with write_errors(path.parent):
        path.parent.mkdir(exist_ok=True)
    with Bar(total=len(pairs.ids), unit="pair", leave=False, disable=None) as bar:
        tensors = make_datastore(translator.searcher, pairs.ids, bar.update)
    write_datastore(path, tensors, loaded.checksum)
    print(f"{len(tensors['values']):,} target tokens of {len(pairs.ids):,} pairs, written: {path}")
    print(f"use it with --set decode.neighbours.datastore={path}")


if __name__ == "__main__":
    run_main(main)
