"""Line-parallel text files, plain or gzip-compressed."""

import codecs
import io
import os
from collections import Counter
from pathlib import Path

from configs.schema import ParallelFiles
from data.corpora.base import CorpusReader, ParallelText
from data.corpora.text import normalize_whitespace, read_packed
from utils.errors import UserError

MAX_NAMES = 20  # of a folder's files in an error message
CONVERT = "convert the file (iconv -f ITS_ENCODING -t UTF-8)"


class ParallelFilesCorpus(CorpusReader):
    """`{root}/{split}.{lang}`, plain or .gz: line n of each file translates line n of the other."""

    def __init__(self, config: ParallelFiles, src_lang: str, tgt_lang: str) -> None:
        self.config = config
        self.root = Path(os.path.expanduser(config.root))
        self.langs = src_lang, tgt_lang
        self.train, self.validation, self.test = config.train, config.validation, config.test

    def load(self, split: str) -> ParallelText:
        """One split. UserError: files missing, damaged or unequally long, or a forbidden line."""
        paths = [self._find(split, lang) for lang in self.langs]
        sides = [_lines(path) for path in paths]
        if len(sides[0]) != len(sides[1]):
            raise UserError(
                f"{paths[0]} has {len(sides[0]):,} lines and {paths[1]} has {len(sides[1]):,}: "
                "line n of one must translate line n of the other"
            )
        kept: tuple[list[str], list[str]] = [], []
        skipped: Counter[str] = Counter()
        for number, (src, tgt) in enumerate(zip(*sides), start=1):
            if src and tgt:
                kept[0].append(src)
                kept[1].append(tgt)
                continue
            bad = None in (src, tgt)
            reason, remedy = "empty", "an empty line; fix the file"
            if bad:
                reason, remedy = "bad_utf8", f"not UTF-8; {CONVERT}"
            if getattr(self.config, f"on_{reason}") == "error":
                path = paths[(src, tgt).index(None if bad else "")]
                raise UserError(
                    f"{path}, line {number:,}: {remedy}, or leave such pairs out with "
                    f"--set data.corpus.on_{reason}=skip"
                )
            skipped[reason] += 1
        if not kept[0]:
            raise UserError(
                f"{paths[0]} and {paths[1]}: no pair of sentences left of {len(sides[0]):,} lines"
            )
        return ParallelText(tuple(kept[0]), tuple(kept[1]), dict(skipped))

    def _find(self, split: str, lang: str) -> Path:
        plain, packed = self.root / f"{split}.{lang}", self.root / f"{split}.{lang}.gz"
        if not self.root.is_dir():
            raise UserError(f"{self.root}: no such folder; --set data.corpus.root=FOLDER names it")
        found = [path for path in (plain, packed) if path.is_file()]
        if len(found) == 1:
            return found[0]
        if found:
            raise UserError(f"{plain} and {packed} both exist: remove one of them")
        if os.path.lexists(plain) or os.path.lexists(packed):
            raise UserError(f"{plain} or .gz: a folder or a broken link; give a file")
        names = sorted(path.name for path in self.root.iterdir())
        there = ", ".join(names[:MAX_NAMES]) + (", ..." if len(names) > MAX_NAMES else "")
        keys = dict.fromkeys(self.test, "test")
        key = (keys | {self.validation: "validation", self.train: "train"}).get(split)
        others = f"--set data.corpus.{key}=NAME names others, " if key else ""
        raise UserError(
            f"neither {plain} nor {packed.name} exists; {others}data.src_lang and data.tgt_lang "
            f"name their ends; the folder holds: {there or 'nothing'}"
        )


def _lines(path: Path) -> list[str | None]:
    r"""The lines, with white space in one form; None where one is not UTF-8.

    Cut at "\n" alone. `str.splitlines` also cuts at U+2028, U+0085, "\v" and "\f", which occur
    inside sentences of real corpora; one such cut shifts the two sides against each other.
    """
    raw = read_packed(path) if path.suffix == ".gz" else path.read_bytes()
    marked = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if marked or b"\0" in raw[:2]:  # UTF-16, whose "\n" are other bytes
        raise UserError(f"{path}: UTF-16; {CONVERT}")
    lines: list[str | None] = []
    for line in io.BytesIO(raw.removeprefix(codecs.BOM_UTF8)):
        try:
            lines.append(normalize_whitespace(line.decode()))
        except UnicodeDecodeError:
            lines.append(None)
    return lines
