"""Line-parallel text files, plain or gzip-compressed."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from configs.schema import ParallelFiles
from data.corpora.base import ParallelText
from data.corpora.text import normalize_whitespace, read_packed, split_lines
from utils.errors import UserError

MAX_NAMES = 20  # of a folder's files in an error message


class ParallelFilesCorpus:
    """`{root}/{split}.{lang}`, plain or .gz: line n of a language translates that of the other."""

    def __init__(self, config: ParallelFiles, src_lang: str, tgt_lang: str) -> None:
        self.config = config
        self.root = Path(os.path.expanduser(config.root))
        self.langs = src_lang, tgt_lang
        self.train, self.validation, self.test = config.train, config.validation, config.test

    def load(self, split: str) -> ParallelText:
        """The pairs of one split.

        UserError: a missing, damaged or uneven file, or a line that the config forbids.
        """
        paths = [self._find(split, lang) for lang in self.langs]
        sides = [
            split_lines(read_packed(path) if path.suffix == ".gz" else path.read_bytes())
            for path in paths
        ]
        if len(sides[0]) != len(sides[1]):
            raise UserError(
                f"{paths[0]} has {len(sides[0]):,} lines and {paths[1]} has {len(sides[1]):,}: "
                "line n of one must translate line n of the other"
            )
        pairs: list[list[str | None]] = []
        skipped: Counter[str] = Counter()
        for number, lines in enumerate(zip(*sides), start=1):
            texts = [_text(line) for line in lines]
            if all(texts):
                pairs.append(texts)
                continue
            reason = "bad_utf8" if None in texts else "empty"
            if getattr(self.config, f"on_{reason}") == "error":
                found, wrong = (None, "not UTF-8") if None in texts else ("", "an empty line")
                raise UserError(
                    f"{paths[texts.index(found)]}, line {number:,}: {wrong}; mend the file, or "
                    f"leave such pairs out with --set data.corpus.on_{reason}=skip"
                )
            skipped[reason] += 1
        if not pairs:
            raise UserError(
                f"{paths[0]} and {paths[1]}: no pair of sentences left of {len(sides[0]):,} lines"
            )
        src, tgt = map(list, zip(*pairs))
        return ParallelText(src, tgt, dict(skipped))

    def _find(self, split: str, lang: str) -> Path:
        plain, packed = self.root / f"{split}.{lang}", self.root / f"{split}.{lang}.gz"
        if not self.root.is_dir():
            raise UserError(
                f"{self.root}: no such folder; --set data.corpus.root=FOLDER names the one with "
                "the text"
            )
        found = [path for path in (plain, packed) if path.is_file()]
        if len(found) == 2:
            raise UserError(f"{plain} and {packed} both exist: remove one of them")
        if not found:
            names = sorted(path.name for path in self.root.iterdir())
            there = ", ".join(names[:MAX_NAMES]) + (", ..." if len(names) > MAX_NAMES else "")
            raise UserError(
                f"neither {plain} nor {packed.name} exists; the folder holds: {there or 'nothing'}"
            )
        return found[0]


def _text(line: bytes) -> str | None:
    """The line with white space in one form; None where it is not UTF-8."""
    try:
        return normalize_whitespace(line.decode())
    except UnicodeDecodeError:
        return None
