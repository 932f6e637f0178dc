"""Translate with a trained model: `python inference.py --src_text "Le chat dort."`."""

from __future__ import annotations

import dataclasses
import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from configs.load import load_config
from configs.schema import Config, DecodeConfig
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

if TYPE_CHECKING:  # torch is imported when the command line is known to be right
    from translation.translator import Translated

CHUNK = 512  # lines read, sorted by length and translated at a time
MOST_TOKENS = 8192  # of a sentence: attention takes memory and time by their square


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(description="Translate sentences with a trained model.")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--src_text", action="append", metavar="TEXT", help="a sentence to translate; repeatable"
    )
    source.add_argument(
        "--src_file", type=Path, metavar="FILE", help="a sentence a line (default: standard input)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write one translation a line there"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a sentence, with all hypotheses"
    )
    parser.add_argument(
        "--search",
        choices=("greedy", *SEARCHES, "both"),
        help="both: greedy and that of the config (decode.search), a beam; default: both where both are shown, else "
        "that of the config",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="a config that must fit the model; its decode settings are used",
    )
    add_decode_arguments(parser)
    add_model_arguments(parser, ensemble=True)
    args = parser.parse_args(argv)
    check_decode_overrides(args.overrides)
    args.one_a_line = not args.json and (args.src_text is None or args.output is not None)
    if args.search is None and args.src_text is not None and not args.one_a_line:
        args.search = "both"
    elif args.search == "both" and args.one_a_line:
        raise UserError(
            "--search both has two translations for a line: choose greedy or beam, or add --json"
        )
    for text in args.src_text or ():
        if not text.strip():
            raise UserError(f"--src_text {text!r}: there is nothing to translate")
    return args


def beam_title(decode: DecodeConfig) -> str:
    title = {"beam": "beam search", "diverse": "diverse beam search", "sample": "samples"}[
        decode.search.kind
    ]
    return title + (f", minimum Bayes risk ({decode.mbr})" if decode.mbr is not None else "")


def block(item: Translated, beam: str, *, title: bool) -> str:
    """What the searches found for one sentence, for a human reader; `beam` is the second one's
    title.
    """
    parts = []
    if item.greedy is not None:
        parts.append(f"=== greedy search ===\n{as_line(item.greedy.text)}\n")
    if item.beam:
        ranked = "".join(f"{found.score:.4f} {as_line(found.text)}\n" for found in item.beam)
        parts.append(f"=== {beam} ===\n{ranked}")
    return (f">>> {as_line(item.src)}\n" if title else "") + "\n".join(parts)


def as_json(item: Translated) -> str:
    return json.dumps(dataclasses.asdict(item), ensure_ascii=False)


def length_watch(
    where: str, most: int | None, max_len: int, beyond: list[int]
) -> Callable[[int, int], None]:
    """Takes a line's number and its tokens. UserError: more than MOST_TOKENS, or than `most`, the
    model's positions.

    `beyond` takes the lengths that training never saw.
    """

    def watch(number: int, length: int) -> None:
        if most is not None and length > most:
            raise UserError(
                f"{where} {number:,}: {length:,} tokens, but the model knows {most:,} positions; split it"
            )
        if length > MOST_TOKENS:
            raise UserError(
                f"{where} {number:,}: {length:,} tokens, and {MOST_TOKENS:,} are the most; split it"
            )
        if length > max_len:
            beyond.append(length)

    return watch


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    given = load_config(args.config) if args.config else None
    if args.src_text is not None:
        texts, where, total = args.src_text, "--src_text number", len(args.src_text)
    else:
        raw, name = open_source(args.src_file)
        texts, where = read_lines(bounded_lines(raw, name), name), f"{name}, line"
        total = count_lines(args.src_file) if args.src_file else None
    with writer(args.output, never=args.src_file) as write:
        from tqdm import tqdm

        from translation.translator import require_same_model

        def change(config: Config) -> Config:
            if given is not None:
                require_same_model(config, given, where=args.config)
                config = dataclasses.replace(config, decode=given.decode)
            return apply_decode_overrides(choose_search(config, args.search), args.overrides)

        loaded, translator = load_from_arguments(args, change)
        beyond: list[int] = []
        max_len = loaded.config.data.max_len
        found = translator.translate_stream(
            texts,
            chunk=1
            if args.src_text is None and args.src_file is None and sys.stdin.isatty()
            else CHUNK,
            greedy=args.search in ("greedy", "both"),
            beam=args.search != "greedy",
            watch=length_watch(where, translator.longest_source, max_len, beyond),
        )
        show = args.src_file is not None and sys.stderr.isatty()
        several = args.src_text is not None and len(args.src_text) > 1
        with tqdm(total=total, unit=" lines", disable=not show, smoothing=0) as bar:
            for items in found:
                if args.json:
                    write([as_json(item) for item in items])
                elif args.one_a_line:
                    write([as_line(item.best.text) for item in items])
                else:
                    title = beam_title(translator.decode)
                    write(
                        [
                            "\n".join(block(item, title, title=several) for item in items).rstrip(
                                "\n"
                            )
                        ]
                    )
                bar.update(len(items))
    if beyond:
        many = f"{len(beyond):,} sentences of up to" if len(beyond) > 1 else "a sentence of"
        print(
            f"warning: {many} {max(beyond):,} tokens, longer than any in training (data.max_len = {max_len}): "
            "the translation may be poor",
            file=sys.stderr,
        )


if __name__ == "__main__":
    run_main(main)
