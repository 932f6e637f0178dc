"""IWSLT2017 French-English (TED talks): from the hub, or from a folder or archive of its files."""

from __future__ import annotations

import html
import io
import logging
import lzma
import os
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from configs.schema import Iwslt2017
from data.corpora.base import ParallelText
from data.corpora.text import normalize_whitespace, read_packed
from utils.errors import UserError, one_line
from utils.hub import fetch
from utils.lines import read_lines

logger = logging.getLogger(__name__)

REPO = "IWSLT/iwslt2017"
REVISION = "refs/convert/parquet"  # the loading script of the main one runs no more
CONFIG = "iwslt2017-fr-en"
SIZES = {"train": 232_825, "validation": 890, "test": 8_597}
OFFICIAL = {
    "train": ("train.tags.{pair}.{lang}",),
    "validation": ("IWSLT17.TED.dev2010.{pair}.{lang}.xml",),
    "test": tuple(f"IWSLT17.TED.tst{y}.{{pair}}.{{lang}}.xml" for y in range(2010, 2016)),
}
MAX_FILE = 1 << 29  # bytes of one file inside an archive; the largest official one has about 25 MB
REMEDY = (
    "(1) run once with network, it is then downloaded and kept; (2) --set "
    "data.corpus.path=FOLDER_OR_ZIP with the official archive (fr-en.zip) or its files; (3) copy "
    "the Hugging Face cache of a machine that has it, and point HF_HOME to the copy"
)

Pairs = list[tuple[str, str]]  # French, English
Files = dict[str, Callable[[], bytes]]  # path inside the folder or archive, and how to read it


class Iwslt2017Corpus:
    """The splits train, validation (dev2010) and test (tst2010 to tst2015), in either direction."""

    train = "train"
    validation = "validation"
    test = ("test",)

    def __init__(self, config: Iwslt2017, src_lang: str, tgt_lang: str) -> None:
        self.config = config
        self.src_lang = src_lang
        self.tgt_lang = tgt_lang

    def load(self, split: str) -> ParallelText:
        """The pairs of one split: entities unescaped, white space normalised, empty sides counted.

        UserError: the files cannot be had or are damaged, or the split has not its official size.
        """
        if split not in SIZES:
            raise UserError(f"IWSLT2017 has no split {split!r}: its splits are {', '.join(SIZES)}")
        path, strict = self._path(), self.config.check_sizes
        pairs = _read_split(path, split, strict=strict)
        where = self.config.path or REPO
        if strict and len(pairs) != SIZES[split]:
            raise UserError(
                f"IWSLT2017 {split} has {len(pairs):,} pairs in {where}, and not the official "
                f"{SIZES[split]:,}: another pair of languages, or files are missing; "
                "--set data.corpus.check_sizes=False takes it as it is"
            )
        kept = [pair for pair in ((_clean(fr), _clean(en)) for fr, en in pairs) if all(pair)]
        if not kept:
            raise UserError(f"IWSLT2017 {split}: no pair of sentences in {where}")
        fr, en = map(list, zip(*kept))
        n_empty = len(pairs) - len(kept)
        src, tgt = (fr, en) if self.src_lang == "fr" else (en, fr)
        return ParallelText(src, tgt, {"empty": n_empty} if n_empty else {})

    def _path(self) -> Path:
        if self.config.path is not None:
            return Path(os.path.expanduser(self.config.path))
        return fetch(
            REPO,
            [f"{CONFIG}/{split}/*.parquet" for split in SIZES],
            what=f"{REPO} ({CONFIG})",
            remedy=REMEDY,
            repo_type="dataset",
            revision=REVISION,
        )


# A character by a number of more digits than any has: beyond 4,300 Python refuses to read it.
_ENDLESS = re.compile(r"&#(?:[0-9]{20,}|[xX][0-9a-fA-F]{20,});?")


def _clean(text: str) -> str:
    # In this order: &nbsp; is white space.
    return normalize_whitespace(html.unescape(_ENDLESS.sub("\ufffd", text)))


# What the readers of archives raise on damaged bytes.
_ANY = (OSError, EOFError, ArithmeticError, LookupError, RuntimeError, ValueError)
_DAMAGE = (*_ANY, struct.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, zlib.error)


def _read_split(path: Path, split: str, *, strict: bool) -> Pairs:
    """Official files or parquet files, wherever they lie in a folder or an archive."""
    try:
        files = _list_files(path)
        pairs = _official_pairs(files, split, path, strict=strict)
        if pairs is None:
            pairs = _parquet_pairs(files, split, path)
    except _DAMAGE as error:
        reason = one_line(error)
        raise UserError(f"{path}: damaged or unreadable ({reason}); fetch it anew") from error
    if pairs is None:
        wanted = OFFICIAL[split][0].format(pair="fr-en", lang="{fr,en}")
        there = ", ".join(sorted(files)[:8]) + (", ..." if len(files) > 8 else "")
        raise UserError(
            f"{path}: neither the official files ({wanted}) nor {CONFIG}/{split}/*.parquet; "
            f"found: {there or 'nothing'}"
        )
    return pairs


def _list_files(path: Path) -> Files:
    """Every file of a folder or an archive; those of an archive are never written to the disk."""
    members: dict[str, Callable[[], IO[bytes] | None]]
    if path.is_dir():
        paths = (file for file in sorted(path.rglob("*")) if file.is_file())
        return {file.relative_to(path).as_posix(): file.read_bytes for file in paths}
    if not path.is_file():
        raise UserError(f"data.corpus.path = {str(path)!r}: no such folder or archive")
    if path.name.endswith(".zip"):
        packed = zipfile.ZipFile(path)
        infos = (info for info in packed.infolist() if not info.is_dir())
        members = {info.filename: partial(packed.open, info) for info in infos}
    elif path.name.endswith((".tgz", ".tar.gz")):
        tar = tarfile.open(fileobj=io.BytesIO(read_packed(path)), mode="r:")  # noqa: SIM115
        files = (member for member in tar.getmembers() if member.isfile())
        members = {member.name: partial(tar.extractfile, member) for member in files}
    else:
        raise UserError(
            f"data.corpus.path = {str(path)!r}: a folder, or an archive (.zip, .tgz, .tar.gz)"
        )
    return {name: partial(_unpack, name, open_member) for name, open_member in members.items()}


def _unpack(name: str, open_member: Callable[[], IO[bytes] | None]) -> bytes:
    stream = open_member()
    assert stream is not None  # tarfile's None is for members that are not files
    with stream:
        raw = stream.read(MAX_FILE + 1)
    if len(raw) > MAX_FILE:
        raise UserError(
            f"{name}: more than {MAX_FILE >> 20} MiB once unpacked; this is not an official file"
        )
    return raw


# ------------------------------------------------------------------------------- the official files


def _official_pairs(files: Files, split: str, path: Path, *, strict: bool) -> Pairs | None:
    """The split from `train.tags.*` or `IWSLT17.TED.*.xml`; None where there is none of its files.

    The archive comes once for each direction, under fr-en and en-fr names; the text is the same.
    Unless strict, a year that is missing on both sides is left out with a warning.
    """
    by_name = {PurePosixPath(name).name: name for name in reversed(files)}
    for pair in ("fr-en", "en-fr"):
        wanted = [
            [template.format(pair=pair, lang=lang) for lang in pair.split("-")]
            for template in OFFICIAL[split]
        ]
        missing = [name for names in wanted for name in names if name not in by_name]
        if len(missing) == 2 * len(wanted):
            continue
        one_sided = any((src in by_name) != (tgt in by_name) for src, tgt in wanted)
        if missing and (strict or one_sided):
            raise UserError(
                f"{path}: the official files of {split} are not complete; missing: "
                f"{', '.join(missing)}"
            )
        if missing:
            logger.warning("%s: %s is without %s", path, split, ", ".join(missing))
        parse = _train_pairs if split == "train" else _xml_pairs
        pairs: Pairs = []
        for names in wanted:
            if not set(names) & set(missing):
                found = [by_name[name] for name in names]
                lines = [list(read_lines(io.BytesIO(files[name]()), name)) for name in found]
                pairs += parse(found, lines)
        return pairs if pair == "fr-en" else [(fr, en) for en, fr in pairs]
    return None


def _train_pairs(names: list[str], lines: list[list[str]]) -> Pairs:
    """`train.tags.*`: line-parallel and not XML; a first side that starts with "<" is markup."""
    if len(lines[0]) != len(lines[1]):
        raise UserError(
            f"{names[0]} has {len(lines[0]):,} lines and {names[1]} has {len(lines[1]):,}: "
            "fetch them anew"
        )
    return [(src, tgt) for src, tgt in zip(*lines) if not src.startswith("<")]


def _xml_pairs(names: list[str], lines: list[list[str]]) -> Pairs:
    """`IWSLT17.TED.*.xml`: segments are paired by document and number, not by place."""
    src, tgt = (_segments(name, "\n".join(text)) for name, text in zip(names, lines))
    for alone, (name, other) in ((src.keys() - tgt, names), (tgt.keys() - src, names[::-1])):
        if alone:
            document, number = min(alone)
            raise UserError(
                f"{name}: segment {number} of document {document} has no partner in {other}"
            )
    return [(text, tgt[key]) for key, text in src.items()]


_TAG = re.compile(r"<(/?)(doc|seg)\b([^<>]*)>")
_DOCID = re.compile(r"""\bdocid\s*=\s*["']?([^"'\s>]+)""")
_SEG_ID = re.compile(r"""\bid\s*=\s*["']?(\d{1,9})(?!\d)""")


def _segments(name: str, text: str) -> dict[tuple[str, int], str]:
    """Text by (document, segment number; the numbers start anew in each document).

    Only the tags of documents and segments are looked for. The official files hold a bare `&` or
    `<` here and there, which a strict XML parser refuses; and no entity but HTML's own is ever
    expanded, no other file ever opened.
    """
    found: dict[tuple[str, int], str] = {}
    document: str | None = None
    key: tuple[str, int] | None = None
    start = 0
    for tag in _TAG.finditer(text):
        closing, kind, attributes = tag.groups()
        if key is not None and not (closing and kind == "seg"):
            break
        if kind == "doc":
            docid = _DOCID.search(attributes)
            document = docid[1] if docid and not closing else None
        elif not closing:
            number = _SEG_ID.search(attributes)
            if document is None or number is None:
                where = f"{name}: <seg{attributes}>"
                raise UserError(f"{where} has no id or stands outside of a <doc docid=...>")
            key, start = (document, int(number[1])), tag.end()
            if key in found:
                raise UserError(f"{name}: segment {key[1]} comes twice in document {key[0]}")
        elif key is not None:
            found[key] = text[start : tag.start()]
            key = None
    if key is not None:
        where = f"{name}: segment {key[1]} of document {key[0]}"
        raise UserError(f"{where} is not closed; fetch the file anew")
    return found


# ------------------------------------------------------------------------------------------ parquet


def _parquet_pairs(files: Files, split: str, path: Path) -> Pairs | None:
    """The split from {split}/*.parquet or {split}-*.parquet, by name; None where there is none.

    Where pairs of languages have folders of their own, only French-English is taken: the hub's
    folders merged would be a corpus of another size and language.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Dataset

    of_split = re.compile(rf"(?:^|/){split}(?:[/.-][^/]*)?\.parquet$")
    names = sorted(name for name in files if of_split.search(name))
    parts = {part for name in names for part in name.split("/")}
    languages = sorted(part for part in parts if re.fullmatch(r"iwslt2017-\w\w-\w\w", part))
    if languages:
        names = [name for name in names if CONFIG in name.split("/")]
    if languages and not names:
        raise UserError(f"{path}: holds {', '.join(languages)} and not {CONFIG}")
    pairs: Pairs = []
    for name in names:
        try:
            table = pq.read_table(pa.BufferReader(files[name]()), columns=["translation"])
            rows = Dataset(table).flatten()  # in memory: nothing is copied into a cache
            fr, en = (list(rows[f"translation.{lang}"]) for lang in ("fr", "en"))
        except (pa.ArrowException, KeyError, OSError, ValueError) as error:
            raise UserError(
                f"{path / name}: not a parquet file with translation.fr and translation.en "
                f"({one_line(error)}); delete it and fetch it anew"
            ) from error
        pairs += [(a or "", b or "") for a, b in zip(fr, en)]
    return pairs if names else None
