"""Make training pairs from text in one language: `python back_translate.py --src_file mono.en
--output data/bt/train`.

A model that was trained in the reverse direction (`data.src_lang=en data.tgt_lang=fr`) translates
monolingual English into French; the pairs of synthetic French and real English then help to train
French to English (Sennrich et al. 2016). They are written as `OUTPUT.fr` and `OUTPUT.en`, for
ParallelFiles to read as a part of a mixture.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from configs.schema import Config
from data.corpora.text import normalize_whitespace
from translation.arguments import (
    SEARCHES,
    add_decode_arguments,
    add_model_arguments,
    apply_decode_overrides,
    check_decode_overrides,
    choose_search,
    load_from_arguments,
)
from utils.cli import Parser, run_main
from utils.errors import UserError
from utils.lines import as_line, bounded_lines, count_lines, open_source, read_lines, writer

CHUNK = 512  # lines read, sorted by length and translated at a time
# A symbol that no text has: the tokenizer cuts it off as a word, and training on tagged text makes
# it one piece. A tag such as <BT> would be cut into three.
TAG = "⟲"


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(
        description="Make synthetic training pairs from monolingual text with a reverse model."
    )
    parser.add_argument(
        "--src_file",
        type=Path,
        required=True,
        metavar="FILE",
        help="a sentence a line in the model's source language",
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="PREFIX",
        help="write PREFIX.LANGUAGE for both languages",
    )
    parser.add_argument(
        "--tag",
        nargs="?",
        const=TAG,
        metavar="WORD",
        help=f"put a word before each synthetic sentence, that training may tell them apart (default WORD: {TAG})",
    )
    parser.add_argument(
        "--reverse",
        action="store_true",
        help="translate from the target language, with a model of data.directions=both",
    )
    parser.add_argument("--search", choices=("greedy", *SEARCHES), default="beam")
    add_decode_arguments(parser)
    add_model_arguments(parser)
    args = parser.parse_args(argv)
    check_decode_overrides(args.overrides)
    if args.tag is not None and len(args.tag.split()) != 1:
        raise UserError(f"--tag {args.tag!r}: one word, for example --tag {TAG}")
    return args


def languages(config: Config, *, reverse: bool) -> tuple[str, str]:
    """(of the file that is read, of the translations). UserError: --reverse with a model that has
    one direction.
    """
    data = config.data
    if not reverse:
        return data.src_lang, data.tgt_lang
    if data.directions != "both":
        raise UserError(
            f"--reverse: this model translates {data.src_lang} to {data.tgt_lang} alone; train one with "
            f"--set data.src_lang={data.tgt_lang} --set data.tgt_lang={data.src_lang}, or with data.directions=both"
        )
    return data.tgt_lang, data.src_lang


def unpacked(path: Path) -> Iterator[bytes]:
    """The raw lines of a file, plain or .gz. Raises UserError."""
    raw, name = open_source(path)
    if path.suffix != ".gz":
        yield from bounded_lines(raw, name)
        return
    try:
        with gzip.open(raw) as file:
            yield from bounded_lines(file, name)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{path}: a damaged or truncated gzip file ({error}); copy it anew"
        ) from error


def usable(
    lines: Iterable[str], n_tokens: Callable[[str], int], max_len: int, dropped: Counter[str]
) -> Iterator[str]:
    """Sentences as a corpus has them: white space levelled, none blank, none longer than any in
    training.
    """
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
    lines = read_lines(unpacked(args.src_file), str(args.src_file))
    total = None if args.src_file.suffix == ".gz" else count_lines(args.src_file)
    from tqdm import tqdm

    loaded, translator = load_from_arguments(
        args,
        lambda config: apply_decode_overrides(choose_search(config, args.search), args.overrides),
    )
    real, synthetic = (
        Path(f"{args.output}.{language}")
        for language in languages(loaded.config, reverse=args.reverse)
    )
    try:  # where a corpus begins, its folder may be new
        args.output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--output: the folder {args.output.parent} cannot be made: {error.strerror}"
        ) from None
    dropped: Counter[str] = Counter()
    texts = usable(
        lines, lambda text: len(translator.encode([text])[0]), loaded.config.data.max_len, dropped
    )
    greedy, n_written = args.search == "greedy", 0
    with (
        writer(real, never=args.src_file) as write_real,
        writer(synthetic, never=args.src_file) as write_synthetic,
        tqdm(total=total, unit=" lines", disable=not sys.stderr.isatty(), smoothing=0) as bar,
    ):
        for items in translator.translate_stream(
            texts, chunk=CHUNK, greedy=greedy, beam=not greedy
        ):
            kept = [item for item in items if item.best.finished and item.best.text.strip()]
            dropped["unfinished_or_empty"] += len(items) - len(kept)
            n_written += len(kept)
            if kept:
                tag = [args.tag] if args.tag is not None else []
                write_real([item.src for item in kept])
                write_synthetic(
                    [
                        " ".join([*tag, normalize_whitespace(as_line(item.best.text))])
                        for item in kept
                    ]
                )
            bar.update(len(items))
        if not n_written:
            raise UserError(
                f"{args.src_file}: no sentence of it could be translated: is the model a trained one?"
            )
    counts = (
        ", ".join(f"{reason} {count:,}" for reason, count in dropped.items() if count) or "none"
    )
    print(f"{n_written:,} pairs in {synthetic} and {real} (dropped: {counts})")


if __name__ == "__main__":
    run_main(main)
