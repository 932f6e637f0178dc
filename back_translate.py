"""Make training pairs from text in one language.

    python back_translate.py --src_file mono.en --output data/bt/train

A model of the reverse direction translates English into French; the pairs of synthetic French and
real English then help to train French to English (Sennrich et al. 2016). They are written as
`OUTPUT.fr` and `OUTPUT.en`, for ParallelFiles to read as a part of a mixture.
"""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from configs.schema import DataConfig
from data.corpora.text import normalize_whitespace
from translation.arguments import (
    add_decode_arguments,
    add_engine_arguments,
    add_model_arguments,
    load_from_arguments,
    require_runs,
)
from translation.settings import SEARCHES, config_change
from utils.cli import Parser, run_main
from utils.errors import UserError
from utils.lines import as_line, count_lines, open_source, read_lines, writer

CHUNK = 512  # lines read, sorted by length and translated at a time
# A symbol that no text has: the tokenizer cuts it off as a word, and training on tagged text makes
# it one piece. A tag such as <BT> would be cut into three.
TAG = "⟲"


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(
        description="Make synthetic training pairs from monolingual text with a reverse model."
    )
    add = parser.add_argument
    what = "a sentence a line in the model's source language; .gz too"
    add("--src_file", type=Path, required=True, metavar="FILE", help=what)
    what = "write PREFIX.LANGUAGE for both languages"
    add("--output", type=Path, required=True, metavar="PREFIX", help=what)
    what = f"a word before each synthetic sentence, to tell them apart (default WORD: {TAG})"
    add("--tag", nargs="?", const=TAG, metavar="WORD", help=what)
    what = "translate from the target language, with a model of data.directions=both"
    add("--reverse", action="store_true", help=what)
    add("--search", choices=("greedy", *SEARCHES), default="beam")
    add_decode_arguments(parser)
    add_model_arguments(parser)
    add_engine_arguments(parser)
    args = parser.parse_args(argv)
    if args.tag is not None and len(args.tag.split()) != 1:
        raise UserError(f"--tag {args.tag!r}: one word, for example --tag {TAG}")
    return args


def languages(data: DataConfig, *, reverse: bool) -> tuple[str, str]:
    """Those of the file and of the translations. Raises UserError where they cannot be reversed."""
    src, tgt = data.src_lang, data.tgt_lang
    if reverse and data.directions != "both":
        raise UserError(
            f"--reverse: this model translates {src} to {tgt} alone; train one with "
            f"--set data.src_lang={tgt} --set data.tgt_lang={src}, or with data.directions=both"
        )
    return (tgt, src) if reverse else (src, tgt)


def usable(
    lines: Iterable[str], n_tokens: Callable[[str], int], max_len: int, dropped: Counter[str]
) -> Iterator[str]:
    """Sentences as a corpus has them: white space levelled, none blank, none of over max_len."""
    for line in lines:
        text = normalize_whitespace(line)
        if not text:
            dropped["blank"] += 1
        elif n_tokens(text) > max_len:
            dropped["too_long"] += 1
        else:
            yield text


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    change = config_change(None, args.search, args.overrides, best_alone=True)
    require_runs(args)
    lines = read_lines(*open_source(args.src_file))
    total = count_lines(args.src_file)
    from tqdm import tqdm

    loaded, translator = load_from_arguments(args, change)
    from models.linear import weights_fixed

    data, greedy = loaded.config.data, args.search == "greedy"
    langs = languages(data, reverse=args.reverse)
    real, synthetic = (Path(f"{args.output}.{lang}") for lang in langs)
    tag = "" if args.tag is None else f"{args.tag} "
    dropped: Counter[str] = Counter()
    texts = usable(lines, lambda text: len(translator.encode([text])[0]), data.max_len, dropped)
    found = translator.translate_stream(
        texts, chunk=CHUNK * args.workers, greedy=greedy, beam=not greedy
    )
    n_written = 0
    with (
        writer(real, never=args.src_file) as write_real,
        writer(synthetic, never=args.src_file) as write_synthetic,
        tqdm(total=total, unit=" lines", disable=not sys.stderr.isatty(), smoothing=0) as bar,
        weights_fixed(),
    ):
        for items in found:
            kept = [item for item in items if item.best.finished and item.best.text.strip()]
            dropped["unfinished_or_empty"] += len(items) - len(kept)
            n_written += len(kept)
            if kept:
                made = (normalize_whitespace(as_line(item.best.text)) for item in kept)
                write_real([item.src for item in kept])
                write_synthetic([f"{tag}{text}" for text in made])
            bar.update(len(items))
        if not n_written:
            raise UserError(
                f"{args.src_file}: no sentence could be translated: is the model a trained one?"
            )
    counts = ", ".join(f"{reason} {count:,}" for reason, count in dropped.items() if count)
    print(f"{n_written:,} pairs in {synthetic} and {real} (dropped: {counts or 'none'})")


if __name__ == "__main__":
    run_main(main)
