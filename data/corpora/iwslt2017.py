"""IWSLT2017 French-English (TED talks): from the hub, or from a folder or archive of its files."""

import html
import io
import logging
import os
import re
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from configs.schema import Iwslt2017
from data.corpora.base import CorpusReader, ParallelText
from data.corpora.text import normalize_whitespace, read_packed
from utils.errors import UserError, one_line
from utils.hub import fetch
from utils.lines import read_lines

logger = logging.getLogger(__name__)

REPO = "IWSLT/iwslt2017"
REVISION = "refs/convert/parquet"  # the main one has a loading script, which no longer runs
CONFIG = "iwslt2017-fr-en"
SIZES = {"train": 232_825, "validation": 890, "test": 8_597}
OFFICIAL = {
    "train": ("train.tags.{pair}.{lang}",),
    "validation": ("IWSLT17.TED.dev2010.{pair}.{lang}.xml",),
    "test": tuple(f"IWSLT17.TED.tst{y}.{{pair}}.{{lang}}.xml" for y in range(2010, 2016)),
}
MAX_FILE = 1 << 29  # bytes of one file, unpacked; the largest official one has about 25 MB
REMEDY = (
    "(1) run once with network, it is then downloaded and kept; (2) --set "
    "data.corpus.path=FOLDER_OR_ZIP with the official archive (fr-en.zip) or its files; (3) copy "
    "the Hugging Face cache of a machine that has it, and set HF_HOME to the copy"
)

OTHER_TEXT = "write text from another source to plain files (docs/usage.md, Data)"

# A character reference with more digits than any has: beyond 4,300 Python refuses to read it.
ENDLESS = re.compile(r"&#(?:[0-9]{20,}|[xX][0-9a-fA-F]{20,});?")
TAG = re.compile(r"<(/?(?:doc|seg)\b[^<>]*)>")
DOC_ID = re.compile(r"""\bdocid\s*=\s*["']?([^"'\s>]+)""")
SEG_ID = re.compile(r"""\bid\s*=\s*["']?(\d{1,9})(?!\d)""")

Pairs = list[tuple[str, str]]  # French, English
Files = dict[str, Callable[[], bytes]]  # path inside the folder or archive, and how to read it


class Iwslt2017Corpus(CorpusReader):
    """The splits train, validation (dev2010) and test (tst2010 to tst2015), in either direction."""

    train, validation, test = "train", "validation", ("test",)

    def __init__(self, config: Iwslt2017, src_lang: str, tgt_lang: str) -> None:
        self.config = config
        self.src_lang = src_lang

    def load(self, split: str) -> ParallelText:
        """The pairs of one split: entities unescaped, white space normalised, empty sides counted.

        UserError: files are unavailable or damaged, or the split does not have its official size.
        """
        if split not in SIZES:
            raise UserError(f"IWSLT2017 has no split {split!r}: its splits are {', '.join(SIZES)}")
        strict, where = self.config.check_sizes, self.config.path or REPO
        pairs = _read_split(self._path(), split, strict=strict)
        if strict and len(pairs) != SIZES[split]:
            raise UserError(
                f"IWSLT2017 {split} has {len(pairs):,} pairs in {where}, not the official "
                f"{SIZES[split]:,}: another pair of languages, or files missing or duplicated; "
                "--set data.corpus.check_sizes=False accepts it"
            )
        kept = [pair for pair in ((_clean(fr), _clean(en)) for fr, en in pairs) if all(pair)]
        if not kept:
            raise UserError(f"IWSLT2017 {split}: no pair of sentences in {where}")
        fr, en = zip(*kept)
        n_empty = len(pairs) - len(kept)
        src, tgt = (fr, en) if self.src_lang == "fr" else (en, fr)
        return ParallelText(src, tgt, {"empty": n_empty} if n_empty else {})

    def _path(self) -> Path:
        if self.config.path is not None:
            return Path(os.path.expanduser(self.config.path))
        patterns, what = [f"{CONFIG}/{split}/*.parquet" for split in SIZES], f"{REPO} ({CONFIG})"
        place = {"repo_type": "dataset", "revision": REVISION}
        return fetch(REPO, patterns, what=what, remedy=REMEDY, **place)


def _clean(text: str) -> str:
    # In this order: &nbsp; is white space.
    return normalize_whitespace(html.unescape(ENDLESS.sub("\ufffd", text)))


def _read_split(path: Path, split: str, *, strict: bool) -> Pairs:
    """Official files or parquet files, wherever they lie in a folder or an archive."""
    try:
        files = _list_files(path)
        pairs = _official_pairs(files, split, path, strict=strict)
        pairs = _parquet_pairs(files, split, path) if pairs is None else pairs
    except UserError:
        raise
    except Exception as error:  # the readers of archives and of parquet raise many kinds
        reason = one_line(error)
        raise UserError(f"{path}: damaged or unreadable ({reason}); fetch it again") from error
    if pairs is None:
        wanted = OFFICIAL[split][0].format(pair="fr-en", lang="{fr,en}")
        there = ", ".join(sorted(files)[:8]) + (", ..." if len(files) > 8 else "")
        raise UserError(
            f"{path}: neither the official files ({wanted}) nor {CONFIG}/{split}/*.parquet or "
            f"{split}-*.parquet; found: {there or 'nothing'}; {OTHER_TEXT}"
        )
    return pairs


def _list_files(path: Path) -> Files:
    """Every file of a folder or an archive; files of an archive are never written to disk."""
    opened: dict[str, Callable[[], Any]]
    if path.is_dir():
        paths = (file for file in sorted(path.rglob("*")) if file.is_file())
        opened = {file.relative_to(path).as_posix(): partial(file.open, "rb") for file in paths}
    elif path.is_file() and path.name.endswith(".zip"):
        packed = zipfile.ZipFile(path)
        infos = (info for info in packed.infolist() if not info.is_dir())
        opened = {info.filename: partial(packed.open, info) for info in infos}
    elif path.is_file() and path.name.endswith((".tgz", ".tar.gz")):
        tar = tarfile.open(fileobj=io.BytesIO(read_packed(path)), mode="r:")  # noqa: SIM115
        members = (member for member in tar if member.isfile())
        opened = {member.name: partial(tar.extractfile, member) for member in members}
    else:
        raise UserError(
            f"data.corpus.path = {str(path)!r}: no such folder or archive (.zip, .tgz, .tar.gz)"
        )
    return {name: partial(_read, name, open_it) for name, open_it in opened.items()}


def _read(name: str, open_it: Callable[[], Any]) -> bytes:
    with open_it() as stream:
        raw = stream.read(MAX_FILE + 1)
    if len(raw) > MAX_FILE:
        raise UserError(
            f"{name}: more than {MAX_FILE >> 20} MiB once unpacked; this is not an official file"
        )
    return raw


def _official_pairs(files: Files, split: str, path: Path, *, strict: bool) -> Pairs | None:
    """The split from `train.tags.*` or `IWSLT17.TED.*.xml`; None where it has no such file.

    The archive comes once for each direction, under fr-en and en-fr names; the text is the same.
    Unless strict, a year that is missing on both sides is left out with a warning.
    """
    by_name = {PurePosixPath(name).name: name for name in reversed(files)}
    parse = _train_pairs if split == "train" else _xml_pairs
    for pair in ("fr-en", "en-fr"):
        wanted = [
            [template.format(pair=pair, lang=lang) for lang in pair.split("-")]
            for template in OFFICIAL[split]
        ]
        absent = [names for names in wanted if by_name.keys().isdisjoint(names)]
        if absent == wanted:
            continue
        missing = [name for names in wanted for name in names if name not in by_name]
        if len(missing) > (0 if strict else 2 * len(absent)):
            lacking = ", ".join(missing)
            raise UserError(f"{path}: files of {split} are not complete; missing: {lacking}")
        if missing:
            logger.warning("%s: %s is without %s", path, split, ", ".join(missing))
        pairs: Pairs = []
        for names in wanted:
            if names not in absent:
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
            "fetch them again"
        )
    return [(src, tgt) for src, tgt in zip(*lines) if not src.startswith("<")]


def _xml_pairs(names: list[str], lines: list[list[str]]) -> Pairs:
    """`IWSLT17.TED.*.xml`: segments are paired by document and number, not by place."""
    src, tgt = (_segments(name, "\n".join(text)) for name, text in zip(names, lines))
    if alone := sorted(src.keys() ^ tgt):
        document, number = alone[0]
        name, other = names if alone[0] in src else names[::-1]
        raise UserError(
            f"{name}: segment {number} of document {document} has no partner in {other}"
        )
    return [(text, tgt[key]) for key, text in src.items()]


def _segments(name: str, text: str) -> dict[tuple[str, int], str]:
    """Text by (document, segment number); the numbers start anew in each document.

    Only the tags of segments and documents are looked for: the official files have some bare `&`
    and `<`, which an XML parser refuses. Only HTML's own entities are expanded; no file is opened.
    """
    found: dict[tuple[str, int], str] = {}
    document = None
    parts = [*TAG.split(text), ""]  # text, tag, text, tag, ...
    for tag, content, following in zip(parts[1::2], parts[2::2], parts[3::2]):
        if "doc" in tag[:4]:
            document = DOC_ID.search(tag)
        elif tag.startswith("seg"):
            number = SEG_ID.search(tag)
            key = (document[1], int(number[1])) if document and number else None
            if key is None or key in found or not following.startswith("/seg"):
                raise UserError(
                    f"{name}, document {document and document[1]}, <{tag}>: not closed, comes "
                    "twice, or has no id or document; fetch the file again"
                )
            found[key] = content
    return found


def _parquet_pairs(files: Files, split: str, path: Path) -> Pairs | None:
    """The split from {split}/*.parquet or {split}-*.parquet, by name; None where there is none.

    Folders of other language pairs, as on the hub, are left out.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Dataset

    of_split = re.compile(rf"(?:^|/){split}(?:[/.-][^/]*)?\.parquet$")
    other = re.compile(r"(?:^|/)iwslt2017-(?!fr-en/)\w\w-\w\w/")
    names = sorted(name for name in files if of_split.search(name) and not other.search(name))
    columns = [f"translation.{lang}" for lang in ("fr", "en")]
    pairs: Pairs = []
    for name in names:
        try:
            table = pq.ParquetFile(pa.BufferReader(files[name]())).read(columns).flatten()
            table = table.select(columns).cast(pa.schema([(each, pa.string()) for each in columns]))
            rows = Dataset(table)  # in memory: nothing is copied into a cache
            fr, en = (rows[each][:] for each in columns)  # row by row it takes ten times as long
        except (pa.ArrowException, KeyError, OSError, ValueError) as error:
            raise UserError(
                f"{path / name}: not a parquet file with translation.fr and translation.en "
                f"({one_line(error)}); fetch it again, or {OTHER_TEXT}"
            ) from error
        pairs += ((a or "", b or "") for a, b in zip(fr, en))
    return pairs if names else None
