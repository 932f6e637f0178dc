"""Make training pairs from text in one language.

    python back_translate.py --src_file mono.en --output data/bt/train
    python back_translate.py --distill --model_path RUN_A RUN_B --output data/distilled/train

A model of the reverse direction translates English into French; the pairs of synthetic French and
real English then help to train French to English (Sennrich et al. 2016). Teachers of the same
direction translate the French of their own training pairs again: a small model learns more easily
from their English than from people's (sequence-level knowledge distillation, Kim and Rush 2016).

The pairs are written to `OUTPUT.fr` and `OUTPUT.en`, for ParallelFiles as a part of a mixture, and
their origin to `OUTPUT.json`. An interrupted call continues where it was. One whose pairs exist
makes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import zlib
from argparse import ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.schema import DataConfig
from data.corpora.build import build_corpus
from data.corpora.text import normalize_whitespace, plain_text
from tokenizer.base import require_unicode
from translation.arguments import ENSEMBLE, add_search_arguments, load_from_arguments, require_runs
from translation.settings import SEARCHES, config_change
from utils.cli import Parser, run_main
from utils.errors import UserError
from utils.files import crc32, write_text
from utils.lines import open_source, output_path, read_lines, writer

if TYPE_CHECKING:  # torch is imported once the command line is known to be valid
    from translation.translator import Translator

CHUNK = 512  # lines sorted by length, translated and kept at a time, in batches of 32
# A symbol that no text has: the tokenizer cuts it off as a word, and training on tagged text makes
# it one piece. A tag such as <BT> would become three.
TAG = "⟲"


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(
        description="Make training pairs with synthetic translations: from monolingual text with a "
        "reverse model, or for a student from its teachers' own training pairs."
    )
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    what = "text in the model's source language, one sentence a line, plain or .gz"
    source.add_argument("--src_file", type=Path, metavar="FILE", help=what)
    what = "translate the source side of the model's own training pairs (--set data.corpus.* says "
    what += "where they are)"
    source.add_argument("--distill", action="store_true", help=what)
    what = "write PREFIX.LANGUAGE for both languages"
    add("--output", type=prefix, required=True, metavar="PREFIX", help=what)
    what = f"mark each synthetic sentence by a word at its beginning (default WORD: {TAG})"
    add("--tag", nargs="?", const=TAG, metavar="WORD", help=what)
    what = "translate from the target language, with a model of data.directions=both"
    add("--reverse", action="store_true", help=what)
    add("--search", choices=("greedy", *SEARCHES), default="beam", help="default: beam")
    add_search_arguments(parser, several=ENSEMBLE)
    args = parser.parse_args(argv)
    if args.tag is not None and args.tag.split() != [args.tag]:
        raise UserError(f"--tag {args.tag!r}: one word, for example --tag {TAG}")
    require_unicode([args.tag or ""])
    if args.tag is not None and args.distill:
        raise UserError(f"--tag {args.tag}: the sources of --distill are real; leave this out")
    return args


def prefix(text: str) -> Path:
    if text.endswith(os.sep) or not Path(text).name:
        named = Path(text) / "train"
        raise ArgumentTypeError(f"{text!r} is a folder: name the files in it, as {named}")
    return Path(text)


def languages(data: DataConfig, checkpoint: Path, *, reverse: bool) -> tuple[str, str]:
    """The languages of the file and of the translations. UserError: they cannot be reversed."""
    src, tgt = data.src_lang, data.tgt_lang
    if reverse and data.directions != "both":
        raise UserError(
            f"--reverse: {checkpoint} translates only {src} to {tgt}; train one with "
            f"--set data.src_lang={tgt} --set data.tgt_lang={src}, or with data.directions=both"
        )
    return (tgt, src) if reverse else (src, tgt)


def usable(
    lines: Iterable[str], translator: Translator, max_len: int, dropped: Counter[str]
) -> Iterator[str]:
    """Each `plain_text`, none blank, none over max_len tokens."""
    for line in lines:
        text = plain_text(line)
        if not text:
            dropped["blank"] += 1
        elif len(translator.encode([text])[0]) > max_len:
            dropped["too_long"] += 1
        else:
            yield text


def translations(
    translator: Translator, texts: Sequence[str], folder: Path, *, chunk: int, greedy: bool
) -> Iterator[list[str]]:
    """The translations of the texts in order, some at a time; "" for empty or cut-off ones.

    Each file in `folder` is named by the number of its first text. Texts that an earlier call left
    there are not translated again.
    """
    done = 0
    with suppress(OSError, ValueError, LookupError, TypeError):  # no more files, or a damaged one
        while record := json.loads((folder / f"{done}.json").read_text("utf-8")):
            known = record["found"]
            if record["sha256"] != digest(known):
                break
            done += len(known)
            yield known
    if done:
        print(f"going on after {done:,} translations in {folder}", file=sys.stderr)
    for items in translator.translate_stream(
        texts, chunk=chunk, skip=done, greedy=greedy, beam=not greedy
    ):
        best = [item.best for item in items]
        found = [normalize_whitespace(b.text) if b.finished else "" for b in best]
        record = {"found": found, "sha256": digest(found)}
        write_text(folder / f"{done}.json", json.dumps(record, ensure_ascii=False))
        done += len(found)
        yield found


def digest(content: Any) -> str:
    sha = hashlib.sha256()
    for part in json.JSONEncoder(sort_keys=True).iterencode(content):  # not all of it at once
        sha.update(part.encode())
    return sha.hexdigest()


def read_record(path: Path, pairs: list[Path]) -> dict[str, Any]:
    """The record of existing pairs. Raises UserError for files of another origin."""
    record: dict[str, Any] = {"of": {}}
    made, known = {None}, False
    with suppress(OSError, ValueError, AttributeError, TypeError):
        found = json.loads(path.read_text("utf-8"))
        made = {None, *found.get("crc32", ()), *found.get("replaced", ())}
        if known := isinstance(found.get("of"), dict):
            record = found
    others = [each for each, crc in zip(pairs, checksums(pairs)) if crc not in made]
    if others or (path.exists() and not known):
        raise UserError(
            f"{(others or [path])[0]} would be overwritten, but {path} has no record of it as it "
            "is now: give another --output, or move it away"
        )
    return record


def checksums(paths: Iterable[Path]) -> list[int | None]:
    return [crc32(path) if path.is_file() else None for path in paths]


def summary(record: dict[str, Any], paths: Iterable[Path]) -> str:
    counts = ", ".join(f"{why} {count:,}" for why, count in record["dropped"].items() if count)
    real, synthetic = paths
    way = f"{real.suffix[1:]} to {synthetic.suffix[1:]}"
    made = f"{record['pairs']:,} pairs, {way}, in {synthetic} and {real}"
    return f"{made} (dropped: {counts or 'none'})"


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    overrides = args.overrides
    settable = ("data." if args.distill else "data.max_len", "decode.")
    change = config_change(None, args.search, overrides, settable=settable, best_alone=True)
    require_runs(args)
    lines = [] if args.distill else list(read_lines(*open_source(args.src_file)))

    loaded, translator = load_from_arguments(args, change)
    from models.linear import weights_fixed
    from translation.evaluation import search_identity
    from utils.progress import Bar

    data, greedy = loaded.config.data, args.search == "greedy"
    for member in loaded.members[::-1]:  # the names are the first's
        langs = languages(member.config.data, member.checkpoint, reverse=args.reverse)
    searcher = replace(translator.searcher, language=langs[1])  # by which MBR splits words
    translator = replace(translator, searcher=searcher)
    paths = [Path(f"{args.output}.{lang}") for lang in langs]
    for path in paths:
        output_path(path, never=[args.src_file])
    file = Path(f"{args.output}.json")
    record = read_record(file, paths)
    if args.distill:
        corpus = build_corpus(data)
        pairs = corpus.load(corpus.train)
        lines = list(pairs.tgt if args.reverse else pairs.src)
        del pairs
    dropped: Counter[str] = Counter()
    texts = tuple(usable(lines, translator, data.max_len, dropped))
    del lines
    identity = search_identity(loaded, translator, greedy=greedy)
    identity |= {"text": digest(texts), "languages": list(langs), "tag": args.tag}

    part = Path(f"{args.output}.{digest(identity)[:10]}.part")
    if record["of"] == identity and record.get("crc32") == checksums(paths):
        shutil.rmtree(part, ignore_errors=True)  # of a call killed at its very end
        print(f"{summary(record, paths)}: made before")
        return
    was = record["of"]
    if was and (other := [key for key in was | identity if was.get(key) != identity.get(key)]):
        print(f"{file}: its pairs differ in {', '.join(other)}: all are made anew", file=sys.stderr)
    parts: list[tuple[str, ...]] = []
    bar = Bar(total=len(texts), unit=" lines", disable=None, smoothing=0)
    with bar, weights_fixed():
        chunk = translator.decode.chunk_on(searcher.device.type, CHUNK) * args.workers
        for some in translations(translator, texts, part, chunk=chunk, greedy=greedy):
            parts.append(tuple(some))
            bar.update(len(some))
    found = chain.from_iterable(parts)
    made = [(text, best) for text, best in zip(texts, found, strict=True) if best]
    if not made:
        shutil.rmtree(part, ignore_errors=True)
        where, why = args.src_file or "--distill", "no sentence in it"
        if dropped["too_long"]:
            why = f"no sentence of at most {data.max_len} tokens"
        if texts:
            why = "no sentence could be translated to its end: raise --max_len, or train longer"
        raise UserError(f"{where}: {why}")
    tag = "" if args.tag is None else f"{args.tag} "
    sides = [text for text, _ in made], [f"{tag}{best}" for _, best in made]
    dropped["unfinished_or_empty"] = len(texts) - len(made)
    crcs = [reduce(lambda crc, line: zlib.crc32(f"{line}\n".encode(), crc), s, 0) for s in sides]
    record = {"pairs": len(made), "dropped": dropped, "of": identity, "crc32": crcs}

    def write_record(**more: Any) -> None:
        write_text(file, json.dumps(record | more, indent=2, ensure_ascii=False) + "\n")

    write_record(replaced=checksums(paths))  # from here on, what a kill leaves has a record
    with (  # translations stay in `part` until both are whole
        writer(paths[0], keep=False) as write_real,
        writer(paths[1], keep=False) as write_synthetic,
    ):
        write_real(sides[0])
        write_synthetic(sides[1])
    write_record()
    shutil.rmtree(part, ignore_errors=True)
    print(summary(record, paths))


if __name__ == "__main__":
    run_main(main)
