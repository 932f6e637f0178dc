"""Keep a model's states of a text, to search in: `python datastore.py --model_path RUN`."""

import os
import shlex
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from configs.load import add_set_argument
from configs.schema import NO_NEIGHBOURS, Config
from translation.arguments import add_model_arguments, load_from_arguments, require_runs
from translation.settings import config_change
from utils.cli import Parser, positive, run_main
from utils.errors import UserError
from utils.lines import output_path


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(
        description="Write the hidden state before each target token of a text, and the token: the "
        "datastore of nearest-neighbour translation (decode.neighbours)."
    )
    add = parser.add_argument
    add("--split", metavar="NAME", help="whose pairs are read (default: the training split)")
    add("--limit", type=positive, metavar="N", help="only the first N pairs")
    what = "default: RUN/datastores/CHECKPOINT_SPLIT_TEXT.safetensors, by a checksum of the text"
    add("--output", type=Path, metavar="FILE", help=what)
    add_set_argument(parser, "SECTION.FIELD=VALUE", "field of data")
    add_model_arguments(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    change = config_change(None, None, args.overrides, settable=("data.",))

    def by_itself(trained: Config) -> Config:
        config = change(trained)
        return replace(config, decode=replace(config.decode, neighbours=NO_NEIGHBOURS))

    require_runs(args)
    import logging

    from data.cache import load_split
    from data.corpora.build import build_corpus
    from translation.datastore import make_datastore, write_datastore
    from translation.evaluation import choose_splits, first_pairs
    from utils.progress import Bar

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    loaded, translator = load_from_arguments(args, by_itself)
    data, corpus = loaded.config.data, build_corpus(loaded.config.data)
    [split] = choose_splits(corpus, args.split or corpus.train)
    text, pairs = load_split(data, corpus, split, loaded.tokenizer, training=True)
    name, pairs = split.replace(os.sep, "_"), first_pairs(pairs, args.limit)
    name += f"_first{args.limit}" * (args.limit is not None) + f"_{text.fingerprint()[:8]}"
    default = loaded.run.path / "datastores" / f"{loaded.checkpoint.stem}_{name}.safetensors"
    path = output_path(args.output or default, never=[loaded.checkpoint])
    if "," in str(path) or (path.exists() and not path.is_file()):
        why = "has a comma, which parts names" if "," in str(path) else "is no file"
        raise UserError(f"--output {path} {why}: give another name")
    with Bar(total=len(pairs), unit="pair", leave=False, disable=None) as bar:
        tensors = make_datastore(translator.searcher, pairs, bar.update)
    write_datastore(path, tensors, loaded.checksum)
    print(f"{len(tensors['values']):,} target tokens of {len(pairs):,} pairs, written: {path}")
    print(f"use it with {shlex.join(['--set', f'decode.neighbours.datastore={path}'])}")


if __name__ == "__main__":
    run_main(main)
