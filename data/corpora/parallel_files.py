"""Line-parallel text files, plain or gzip-compressed."""

from __future__ import annotations

import os
from pathlib import Path

from configs.schema import ParallelFiles
from data.corpora.base import ParallelText
from data.corpora.text import normalize_whitespace, read_packed, split_lines
from utils.errors import UserError

MAX_NAMES = 20  # of a folder's files in an error message


class ParallelFilesCorpus:
    """`{root}/{split}.{lang}` or `{root}/{split}.{lang}.gz`: line n of one language translates line
    n of the other.
    """

    def __init__(self, config: ParallelFiles, src_lang: str, tgt_lang: str) -> None:
        self.config = config
        self.root = Path(os.path.expanduser(config.root))
        self.src_lang = src_lang
        self.tgt_lang = tgt_lang

    @property
    def train(self) -> str:
        return self.config.train

    @property
    def validation(self) -> str:
        return self.config.validation

    @property
    def test(self) -> tuple[str, ...]:
        return self.config.test

    def load(self, split: str) -> ParallelText:
        """The pairs of one split. UserError: a missing, damaged or uneven file, or a line that the
        config forbids.
        """
        src_path, tgt_path = self._find(split, self.src_lang), self._find(split, self.tgt_lang)
        src_lines, tgt_lines = split_lines(_read(src_path)), split_lines(_read(tgt_path))
        if len(src_lines) != len(tgt_lines):
            raise UserError(
                f"{src_path} has {len(src_lines):,} lines and {tgt_path} has {len(tgt_lines):,}: "
                "line n of one must translate line n of the other"
            )
        src: list[str] = []
        tgt: list[str] = []
        skipped = {"bad_utf8": 0, "empty": 0}
        for number, raw in enumerate(zip(src_lines, tgt_lines), start=1):
            texts = [normalize_whitespace(line.decode("utf-8", "replace")) for line in raw]
            broken = [path for path, line in zip((src_path, tgt_path), raw) if not _is_utf8(line)]
            empty = [path for path, text in zip((src_path, tgt_path), texts) if not text]
            if broken:
                if self.config.on_bad_utf8 == "error":
                    raise UserError(
                        f"{broken[0]}, line {number:,}: not UTF-8; mend the file, or leave such pairs out with "
                        "--set data.corpus.on_bad_utf8=skip"
                    )
                skipped["bad_utf8"] += 1
            elif empty:
                if self.config.on_empty == "error":
                    raise UserError(
                        f"{empty[0]}, line {number:,}: an empty line; mend the file, or leave such pairs out with "
                        "--set data.corpus.on_empty=skip"
                    )
                skipped["empty"] += 1
            else:
                src.append(texts[0])
                tgt.append(texts[1])
        if not src:
            raise UserError(
                f"{src_path} and {tgt_path}: no pair of sentences left of {len(src_lines):,} lines"
            )
        return ParallelText(src, tgt, {reason: count for reason, count in skipped.items() if count})

    def _find(self, split: str, lang: str) -> Path:
        plain, packed = self.root / f"{split}.{lang}", self.root / f"{split}.{lang}.gz"
        if not self.root.is_dir():
            raise UserError(
                f"{self.root}: no such folder; --set data.corpus.root=FOLDER names the one with the text"
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


def _read(path: Path) -> bytes:
    try:
        return read_packed(path) if path.suffix == ".gz" else path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
