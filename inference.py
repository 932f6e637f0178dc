"""Translate with a trained model: `python inference.py --src_text "Le chat dort."`."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import count, repeat
from pathlib import Path
from typing import TYPE_CHECKING

from configs.schema import DecodeConfig
from data.corpora.text import plain_text
from translation.arguments import (
    ENSEMBLE,
    add_align_argument,
    add_search_arguments,
    load_from_arguments,
    refuse_beside,
    require_runs,
)
from translation.settings import SEARCHES, config_change
from utils.cli import Parser, report, run_main
from utils.errors import UserError
from utils.lines import as_line, at_terminal, count_lines, open_source, prompted, read_lines, writer

if TYPE_CHECKING:  # torch is imported once the command line is known to be valid
    from translation.alignment import Alignment
    from translation.answers import Translated
    from translation.loading import LoadedRun

CHUNK = 512  # lines read, sorted by length and translated at a time, in batches of 32


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(description="Translate sentences with a trained model.")
    source = parser.add_mutually_exclusive_group()
    what = "a sentence to translate; repeatable"
    source.add_argument("--src_text", action="append", metavar="TEXT", help=what)
    what = "one sentence a line, plain or .gz (default: standard input; at a terminal, a prompt)"
    source.add_argument("--src_file", type=Path, metavar="FILE", help=what)
    target = parser.add_mutually_exclusive_group()
    what = "score this translation of the sentence instead of searching; repeatable"
    target.add_argument("--tgt_text", action="append", metavar="TEXT", help=what)
    what = "score these translations, one a line, plain or .gz, instead of searching"
    target.add_argument("--tgt_file", type=Path, metavar="FILE", help=what)
    what = "the beginning of the translation, which the search continues; repeatable"
    target.add_argument("--prefix", action="append", metavar="TEXT", help=what)
    what = "the beginning of each translation, one a line (it may be empty), plain or .gz"
    target.add_argument("--prefix_file", type=Path, metavar="FILE", help=what)
    add = parser.add_argument
    add("--output", type=Path, metavar="FILE", help="write one translation or score a line")
    add("--json", action="store_true", help="write one JSON object for each line")
    what = "translate each sentence of a line by itself (one in capitals as if it were not), and "
    what += "join the translations"
    add("--split_sentences", action="store_true", help=what)
    what = "leave the output of a line empty that is not UTF-8 or too long for the model, and go on"
    add("--skip_bad", action="store_true", help=what)
    what = "align the words: pairs SOURCE-TARGET, counted from 0; in lines they follow a tab"
    add("--align", action="store_true", help=what)
    add_align_argument(parser)
    what = "both: greedy and the config's (default: the config's; with --src_text both, unless one "
    what += "a line is written)"
    add("--search", choices=("greedy", *SEARCHES, "both"), help=what)
    what = "use the decode settings of this config, which must fit the model"
    add("--config", metavar="FILE", help=what)
    add_search_arguments(parser, several=ENSEMBLE)
    args = parser.parse_args(argv)
    args.scores = args.tgt_text is not None or args.tgt_file is not None
    if args.scores:
        beside = "--tgt_file" if args.tgt_text is None else "--tgt_text"
        settings = "batch_size", "length_penalty"
        idle = ("search", "engine", "workers", "split_sentences")
        refuse_beside(beside, parser, args, idle, settings)
    given = args.src_text or args.src_file or args.output or args.json or args.scores
    args.prompt = not (given or args.prefix or args.prefix_file) and at_terminal()
    as_lines = args.src_text is None or args.output is not None or args.scores
    args.one_a_line = as_lines and not args.json and not args.prompt
    if args.search == "both" and args.one_a_line:
        raise UserError(
            "--search both finds two translations of a line: choose greedy or beam, or add --json"
        )
    if args.search is None and args.src_text is not None and not args.one_a_line:
        args.search = "both"
    if args.split_sentences:
        refuse_beside("--split_sentences", parser, args, ("align", "prefix", "prefix_file"))
    if args.align_with is not None and not args.align:
        raise UserError(f"--align_with {args.align_with} is for --align: add it")
    for text in args.src_text or ():
        if not plain_text(text):
            raise UserError(f"--src_text {text!r}: there is nothing to translate")
    if args.src_text is not None:
        refuse_beside("--src_text", parser, args, ("skip_bad",))
        args.workers = 1
    args.skipped = [] if args.skip_bad else None
    return args


def opened(args: Namespace) -> tuple[Iterable[str], Iterable[str] | None, str, bool]:
    """The sentences, the texts given with them, their source in words, whether they are typed."""
    given, file = args.tgt_text or args.prefix, args.tgt_file or args.prefix_file
    if file is not None:
        given = read_lines(*open_source(file), args.skipped)
    if args.src_text is not None:
        return args.src_text, given, "--src_text number", False
    raw, name = open_source(args.src_file)
    where = "" if args.prompt else f"{name}, line"
    return read_lines(raw, name, args.skipped), given, where, args.prompt or raw.isatty()


def require_as_many(args: Namespace) -> None:
    """Raises UserError for files of different lengths, where both can be counted beforehand."""
    for file, what in ((args.tgt_file, "translations"), (args.prefix_file, "prefixes")):
        if file is not None and args.src_file is not None:
            n_src, n = count_lines(args.src_file), count_lines(file)
            if n_src is not None and n is not None and n_src != n:
                raise UserError(f"sources: {n_src:,}, {what}: {n:,}; give as many of each")


def at_once(args: Namespace, typed: bool, decode: DecodeConfig, device: str = "cpu") -> int:
    """How many sentences to read before the first is answered."""
    if args.src_text is not None:
        return len(args.src_text) + 1  # one more, so that their end is seen
    single = (typed or decode.batch_size == 1) and args.workers == 1
    return 1 if single else decode.chunk_on(device, CHUNK) * args.workers


def shown(
    items: list[Translated],
    alignments: list[Alignment] | None,
    args: Namespace,
    decode: DecodeConfig,
    n_before: int = 0,
) -> list[str]:
    """The output for some sentences: lines of JSON, translations or scores, or blocks to read.

    Alignments, if there are any, are those of the best translations. n_before: the earlier lines.
    """
    found, skipped = [], set(args.skipped or ())
    numbers = count(n_before + 1)
    for number, item, alignment in zip(numbers, items, alignments or repeat(None)):
        if args.json:
            more: dict[str, object] = {"skipped": True} if number in skipped else {}
            more |= {} if alignment is None else {"alignment": alignment.pharaoh()}
            found.append(json.dumps(asdict(item) | more, ensure_ascii=False))
        elif number in skipped:
            found.append("")
        elif args.one_a_line:
            line = f"{item.best.score:.4f}" if args.scores else as_line(item.best.text)
            if alignment is not None:
                line = line.replace("\t", " ") + f"\t{alignment.pharaoh()}"
            found.append(line)
        else:
            several = len(args.src_text or ()) > 1
            found.append(block(item, decode, alignment, title=several))
    return [*found[:-1], found[-1].rstrip("\n")]  # a block ends in an empty line


def block(
    item: Translated, decode: DecodeConfig, alignment: Alignment | None, *, title: bool
) -> str:
    parts = []
    if item.greedy is not None:
        parts.append(f"=== greedy search ===\n{as_line(item.greedy.text)}\n")
    if item.beam:
        titles = {"beam": "beam search", "diverse": "diverse beam search", "sample": "samples"}
        risk = f", minimum Bayes risk ({decode.mbr})" if decode.mbr is not None else ""
        ranked = "".join(f"{found.score:.4f} {as_line(found.text)}\n" for found in item.beam)
        parts.append(f"=== {titles[decode.search.kind]}{risk} ===\n{ranked}")
    if alignment is not None:
        words = " ".join(f"{src}-{tgt}" for src, tgt in alignment.pairs)
        parts.append(f"=== word alignment of the best ===\n{alignment.pharaoh()}\n{words}\n")
    return (f">>> {as_line(item.src)}\n" if title else "") + "\n".join(parts)


class Doubts:
    """What a model may translate poorly, to be told once all is translated.

    Args:
        most: the most tokens that it takes.
        where: what comes before the number of a line in a message; at a prompt nothing.
        skipped: the numbers of lines that are left empty; None: such a line is an error.
    """

    def __init__(
        self, loaded: LoadedRun, most: int, where: str, skipped: list[int] | None = None
    ) -> None:
        self.loaded, self.most, self.where, self.skipped = loaded, most, where, skipped
        self.long: list[int] = []  # the tokens of each line beyond data.max_len
        self.shortened, self.in_capitals, self.cut_off = list[int](), list[int](), list[int]()
        self.foreign = list[int]()
        self.first = self.n_lines = 0

    def fitting(
        self,
        lines: Iterable[str],
        encode: Callable[[list[str]], list[list[int]]],
        *,
        split: bool = False,
    ) -> Iterator[str]:
        """The lines; if such lines are skipped, "" for one with too many tokens (split: a part)."""
        from translation.sentences import lower_capitals, split_sentences

        language = self.loaded.config.data.src_lang
        for number, line in enumerate(lines, start=1):
            if self.skipped is not None:
                whole = [line] if not split else split_sentences(line, language)
                parts = list(map(lower_capitals, whole)) if split else whole
                if max(map(len, encode(parts)), default=0) > self.most:
                    self.skipped.append(number)
                    line = ""
            yield line

    def watch(self, number: int, n_tokens: int) -> None:
        """Raises UserError for too many tokens."""
        if n_tokens > self.most:
            line = f"{self.where} {number:,}" if self.where else "the line"
            raise UserError(
                f"{line}: {n_tokens:,} tokens, and the model takes {self.most:,} at most; split it"
            )
        if n_tokens > self.loaded.config.data.max_len:
            self.first = self.first if self.long else number
            self.long.append(n_tokens)

    def compare(self, items: Sequence[Translated], *, whole: bool) -> None:
        """Note what was cut off and what is of another language; if lines are searched whole, too
        few sentences and capitals.
        """
        from data.cleaning import STOP_WORDS, speaks
        from translation.sentences import lower_capitals, split_sentences

        data = self.loaded.config.data
        for number, item in enumerate(items, start=self.n_lines + 1):
            shown = (item.greedy, *item.beam[:1])
            self.cut_off += [number] * any(each and not each.finished for each in shown)
            other = data.src_lang in STOP_WORDS and not speaks(item.src, data.src_lang)
            self.foreign += [number] * other
            if whole:
                n = len(split_sentences(item.src, data.src_lang))
                few = n > 1 and len(split_sentences(item.best.text, data.tgt_lang)) < n
                self.shortened += [number] * few
                self.in_capitals += [number] * (lower_capitals(item.src) != item.src)
        self.n_lines += len(items)

    def tell(self, split: str) -> None:
        """Print the warnings; split: the flag that translates each sentence by itself."""
        language = self.loaded.config.data.src_lang
        warnings = {
            "lines left empty, too long or not UTF-8": (sorted(set(self.skipped or ())), ""),
            f"lines that do not read like {language}": (self.foreign, ""),
            "lines in capitals": (
                self.in_capitals,
                f"; {split} translates them as if they were not",
            ),
            "translations cut off by the limits of length": (
                self.cut_off,
                "; raise decode.max_len or decode.max_len_ratio",
            ),
            "lines of several sentences with fewer in the translation": (
                self.shortened,
                f"; {split} translates each sentence by itself",
            ),
        }
        for what, (numbers, remedy) in warnings.items():
            if numbers:
                some = ", ".join(map(str, numbers[:20])) + ", ..." * (len(numbers) > 20)
                some = f" ({self.where} {some})" if self.where else ""
                print(f"warning: {what}: {len(numbers):,}{some}{remedy}", file=sys.stderr)
        if self.long and self.loaded.step:  # of an imported model's training nothing is known
            warning = "inputs longer than any sentence in training (data.max_len = "
            warning += f"{self.loaded.config.data.max_len}), where the model may do poorly: "
            warning += f"{len(self.long):,}, of up to {max(self.long):,} tokens"
            warning += f", the first in {self.where} {self.first:,}" if self.where else ""
            print(f"warning: {warning}", file=sys.stderr)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    change = config_change(args.config, args.search, args.overrides, best_alone=args.one_a_line)
    require_runs(args)
    greedy, beam = args.search in ("greedy", "both"), args.search != "greedy"
    texts, given, where, typed = opened(args)
    hidden = args.src_file is None or not sys.stderr.isatty()
    total = None if hidden else count_lines(args.src_file)
    with writer(args.output, never=(args.src_file, args.tgt_file, args.prefix_file)) as write:
        require_as_many(args)
        loaded, translator = load_from_arguments(args, change)
        from models.linear import weights_fixed
        from translation.alignment import ALL_HEADS
        from translation.answers import NOTHING, Translated
        from utils.progress import Bar

        heads = args.align_with or ALL_HEADS
        if args.align:
            translator.align("", "", heads)  # refuses impossible heads before the search
        most = translator.most_tokens("source", "target" if args.scores else "source")
        doubts = Doubts(loaded, most, "pair" if args.scores else where, args.skipped)
        stream = partial(translator.translate_stream, prefixes=given, greedy=greedy, beam=beam)
        if args.split_sentences:
            stream = partial(stream, sentences_of=loaded.config.data.src_lang)
        elif args.scores:
            given = doubts.fitting(given or (), translator.encode_target)
            stream = partial(translator.score_stream, given=given)
        bar = Bar(total=total, unit=" lines", disable=hidden, smoothing=0)

        def translate(texts: Iterable[str]) -> None:
            size = at_once(args, typed, translator.decode, translator.searcher.device.type)
            for items in stream(texts, chunk=size, watch=doubts.watch):
                if args.skipped:
                    left = {*args.skipped}
                    numbers = count(doubts.n_lines + 1)
                    nothing = (Translated(item.src, None, [NOTHING]) for item in items)
                    rows = zip(numbers, items, nothing)
                    items = [none if number in left else item for number, item, none in rows]
                alignments = None
                if args.align:
                    pairs = [item.src for item in items], [item.best.text for item in items]
                    alignments = translator.align(*pairs, heads)
                write(shown(items, alignments, args, translator.decode, doubts.n_lines))
                doubts.compare(items, whole=not (args.split_sentences or given))
                bar.update(len(items))

        with bar, weights_fixed():
            if not args.prompt:
                translate(doubts.fitting(texts, translator.encode, split=args.split_sentences))
            for text in prompted(f"{loaded.config.data.src_lang}> ") if args.prompt else ():
                try:
                    translate([text])
                except UserError as error:
                    report(error)  # and the conversation goes on
    doubts.tell("--split_sentences" + " (without --align)" * args.align)


if __name__ == "__main__":
    run_main(main)
