"""IWSLT2017 French-English (TED talks): from the hub, from the official files, or from parquet
files in a folder.
"""

from __future__ import annotations

import gzip
import html
import io
import logging
import lzma
import os
import re
import struct
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from configs.schema import Iwslt2017
from data.corpora.base import ParallelText
from data.corpora.text import normalize_whitespace, split_lines
from utils.errors import UserError

logger = logging.getLogger(__name__)

REPO = "IWSLT/iwslt2017"
# the loading script of the main revision no longer runs since datasets 4
REVISION = "refs/convert/parquet"
CONFIG = "iwslt2017-fr-en"
SIZES = {"train": 232_825, "validation": 890, "test": 8_597}
OFFICIAL = {"validation": ("dev2010",), "test": tuple(f"tst{year}" for year in range(2010, 2016))}
HUB_TIMEOUT_S = 3.0  # for the hub's first answer
MAX_FILE = 1 << 29  # bytes of one file inside an archive; the largest official one has about 25 MB
MAX_ARCHIVE = 1 << 32  # bytes of a whole .tgz, unpacked as its files are looked for
ARCHIVES = (".zip", ".tgz", ".tar.gz")

Pairs = list[tuple[str, str]]  # French, English


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
        """The pairs of one split: entities unescaped, white space normalised, pairs with an empty
        side counted.

        UserError: the files cannot be had or are damaged, or the split does not have its official
        size.
        """
        if split not in SIZES:
            raise UserError(f"IWSLT2017 has no split {split!r}: its splits are {', '.join(SIZES)}")
        path = self.config.path
        pairs = (
            _from_hub(split)
            if path is None
            else _from_path(Path(os.path.expanduser(path)), split, self.config)
        )
        if self.config.check_sizes and len(pairs) != SIZES[split]:
            raise UserError(
                f"IWSLT2017 {split} has {len(pairs):,} pairs in {path or REPO}, and not the official "
                f"{SIZES[split]:,}: another pair of languages, or files are missing; "
                "--set data.corpus.check_sizes=False takes it as it is"
            )
        clean = [(_clean(fr), _clean(en)) for fr, en in pairs]
        kept = [pair for pair in clean if all(pair)]
        if not kept:
            raise UserError(f"IWSLT2017 {split}: no pair of sentences in {path or REPO}")
        fr, en = map(list, zip(*kept))
        n_empty = len(clean) - len(kept)
        src, tgt = (fr, en) if self.src_lang == "fr" else (en, fr)
        return ParallelText(src, tgt, {"empty": n_empty} if n_empty else {})


# A character by a number of more digits than any has: beyond 4,300 Python refuses to read it.
_ENDLESS = re.compile(r"&#(?:[0-9]{20,}|[xX][0-9a-fA-F]{20,});?")


def _clean(text: str) -> str:
    return normalize_whitespace(
        html.unescape(_ENDLESS.sub("\ufffd", text))
    )  # in this order: &nbsp; is white space


# ---------------------------------------------------------------------------------------------- hub


def _from_hub(split: str) -> Pairs:
    """The split through the parquet loader of `datasets`, which keeps its Arrow form beside the
    hub's cache.
    """
    files = [str(path) for path in _hub_files(split)]
    import datasets.config
    from datasets import disable_progress_bars, load_dataset
    from datasets.exceptions import DatasetsError

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False  # it would tell a server of each loading

    disable_progress_bars()
    try:
        rows = load_dataset("parquet", data_files=files, split="train", columns=["translation"])[
            "translation"
        ]
        return [(row["fr"] or "", row["en"] or "") for row in rows]
    except (DatasetsError, KeyError, TypeError, ValueError, OSError) as error:
        raise UserError(
            f"{files[0]}: not a parquet file with translation.fr and translation.en ({_one_line(error)}); delete it, "
            "and it is fetched again"
        ) from error


def _hub_files(split: str) -> list[Path]:
    """The split's parquet files in the hub's cache, fetched into it where it lacks them."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    def snapshot(local_files_only: bool) -> Path:
        return Path(
            snapshot_download(
                REPO,
                repo_type="dataset",
                revision=REVISION,
                allow_patterns=f"{CONFIG}/*",
                local_files_only=local_files_only,
            )
        )

    def complete(folder: Path) -> bool:
        return all(any((folder / CONFIG / name).glob("*.parquet")) for name in SIZES)

    try:
        folder = snapshot(local_files_only=True)
    except LocalEntryNotFoundError:  # nothing in the cache, or a download that was cut off
        folder = None
    if folder is None or not complete(folder):
        # A warning, so that every script shows it: nothing is fetched by surprise.
        logger.warning("fetching %s (%s) from the Hugging Face hub, once", REPO, CONFIG)
        try:
            _within(
                HUB_TIMEOUT_S,
                lambda: HfApi().dataset_info(REPO, revision=REVISION, timeout=HUB_TIMEOUT_S),
            )
            folder = snapshot(local_files_only=False)
        except (
            Exception
        ) as error:  # the hub's client raises many kinds; to the user they all mean the same
            raise UserError(
                f"IWSLT2017 is not in the hub's cache and cannot be fetched ({_one_line(error)}). Three ways to get "
                "it: (1) run once with network, it is then downloaded and kept; (2) --set "
                "data.corpus.path=FOLDER_OR_ZIP with the official archive (fr-en.zip) or its files; (3) copy the "
                "Hugging Face cache of a machine that has it, and point HF_HOME to the copy"
            ) from error
        if not complete(folder):
            raise UserError(
                f"the hub's {REPO} at {REVISION} lacks {CONFIG}/{{{','.join(SIZES)}}}/*.parquet"
            )
    return sorted((folder / CONFIG / split).glob("*.parquet"))


def _within(seconds: float, call: Callable[[], object]) -> None:
    """Run a call that may hang where no time-out of its own reaches (name resolution): after that,
    TimeoutError.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {seconds:g} s")
    if errors:
        raise errors[0]


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}{'...' if len(text) > 160 else ''}"


# -------------------------------------------------------------------------------- folder or archive

Reader = Callable[[], bytes]
Files = list[tuple[str, Reader]]  # path inside the folder or archive, and how to read it


def _from_path(path: Path, split: str, config: Iwslt2017) -> Pairs:
    """Official files or parquet files, wherever they lie in a folder or an archive."""
    with _damage_named(path):
        files = _list_files(path)
        pairs = _official_pairs(files, split, path, strict=config.check_sizes)
        if pairs is None:
            pairs = _parquet_pairs(files, split, path)
    if pairs is not None:
        return pairs
    wanted = (
        "train.tags.fr-en.{fr,en}"
        if split == "train"
        else f"IWSLT17.TED.{OFFICIAL[split][0]}.fr-en.{{fr,en}}.xml"
    )
    names = sorted(name for name, _ in files)
    there = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    raise UserError(
        f"{path}: neither the official files ({wanted}) nor {CONFIG}/{split}/*.parquet; found: {there or 'nothing'}"
    )


def _list_files(path: Path) -> Files:
    """Every file of a folder or an archive; of archives inside it, those of this pair of languages
    are opened too.
    """
    if path.is_dir():
        files: Files = [
            (file.relative_to(path).as_posix(), file.read_bytes)
            for file in sorted(path.rglob("*"))
            if file.is_file()
        ]
    elif path.is_file() and path.name.endswith(ARCHIVES):
        files = _list_archive(path.name, path.read_bytes)
    elif path.is_file():
        raise UserError(
            f"data.corpus.path = {str(path)!r}: a folder, or an archive ({', '.join(ARCHIVES)})"
        )
    else:
        raise UserError(f"data.corpus.path = {str(path)!r}: no such folder or archive")
    inner = [
        (name, read)
        for name, read in files
        if re.fullmatch(r"(fr-en|en-fr)\.(zip|tgz|tar\.gz)", _base(name))
    ]
    for name, read in inner:
        files = files + [
            (f"{name}/{member}", opened) for member, opened in _list_archive(name, read)
        ]
    return files


def _list_archive(name: str, read: Reader) -> Files:
    """The files of an archive; they are read in memory and never written to the disk."""
    raw = io.BytesIO(read())
    if name.endswith(".zip"):
        packed = zipfile.ZipFile(raw)
        return [
            (info.filename, partial(_unpack, info.filename, partial(packed.open, info)))
            for info in packed.infolist()
            if not info.is_dir()
        ]
    tar = tarfile.open(fileobj=_Unpacked(name, fileobj=raw), mode="r:")  # noqa: SIM115
    return [
        (member.name, partial(_unpack, member.name, partial(tar.extractfile, member)))
        for member in tar.getmembers()
        if member.isfile()
    ]


class _Unpacked(gzip.GzipFile):
    """The content of a .tgz, which ends where no official archive goes on.

    A tar has its table of contents spread over all of its length, and a file of zeros packs to a
    thousandth.
    """

    def read(self, size: int | None = -1) -> bytes:
        self._require_within(self.tell() + max(size or 0, 0))
        return super().read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._require_within(offset)
        return super().seek(offset, whence)

    def _require_within(self, place: int) -> None:
        if place > MAX_ARCHIVE:
            raise UserError(
                f"{self.name}: more than {MAX_ARCHIVE >> 20} MiB once unpacked; not the official archive"
            )


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


_DAMAGE = (
    OSError,
    EOFError,
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
)


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Turns what the readers of archives raise on damaged bytes into one line."""
    try:
        yield
    except (*_DAMAGE, ArithmeticError, LookupError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{path}: damaged or unreadable ({_one_line(error)}); fetch it anew"
        ) from error


def _base(name: str) -> str:
    return PurePosixPath(name).name


# ------------------------------------------------------------------------------- the official files


def _official_pairs(files: Files, split: str, path: Path, *, strict: bool) -> Pairs | None:
    """The split from `train.tags.*` or `IWSLT17.TED.*.xml`; None where there is none of its files.

    The archive comes once for each direction, under fr-en and en-fr names; the text is the same.
    Unless strict, a year that is missing on both sides is left out with a warning.
    """
    by_name = {
        _base(name): (name, read) for name, read in reversed(files)
    }  # the first of equal names
    for order in (("fr", "en"), ("en", "fr")):
        pair = "-".join(order)
        if split == "train":
            stems, parse, suffix = [f"train.tags.{pair}"], _train_pairs, ""
        else:
            stems, parse, suffix = (
                [f"IWSLT17.TED.{name}.{pair}" for name in OFFICIAL[split]],
                _xml_pairs,
                ".xml",
            )
        wanted = [[f"{stem}.{lang}{suffix}" for lang in order] for stem in stems]
        missing = [name for names in wanted for name in names if name not in by_name]
        if len(missing) == 2 * len(wanted):
            continue
        complete = [names for names in wanted if not set(names) & set(missing)]
        one_sided = len(missing) < 2 * (len(wanted) - len(complete))
        if missing and (strict or one_sided):
            raise UserError(
                f"{path}: the official files of {split} are not complete; missing: {', '.join(missing)}"
            )
        if missing:
            logger.warning("%s: %s is without %s", path, split, ", ".join(missing))
        pairs: Pairs = []
        for names in complete:
            (first_name, first), (second_name, second) = (by_name[name] for name in names)
            pairs += parse((first_name, first()), (second_name, second()))
        return pairs if order == ("fr", "en") else [(fr, en) for en, fr in pairs]
    return None


def _train_pairs(first: tuple[str, bytes], second: tuple[str, bytes]) -> Pairs:
    """`train.tags.*`: line-parallel and not XML; lines that start with "<" in the first language
    are not sentences.
    """
    (first_name, first_raw), (second_name, second_raw) = first, second
    lines = _decode(first_name, first_raw), _decode(second_name, second_raw)
    if len(lines[0]) != len(lines[1]):
        raise UserError(
            f"{first_name} has {len(lines[0]):,} lines and {second_name} has {len(lines[1]):,}: fetch them anew"
        )
    return [(a, b) for a, b in zip(*lines) if not a.startswith("<")]


def _xml_pairs(first: tuple[str, bytes], second: tuple[str, bytes]) -> Pairs:
    """`IWSLT17.TED.*.xml`: segments are paired by document and number, not by place."""
    ours, theirs = (_segments(name, "\n".join(_decode(name, raw))) for name, raw in (first, second))
    for alone, name, other in (
        (ours.keys() - theirs, first[0], second[0]),
        (theirs.keys() - ours, second[0], first[0]),
    ):
        if alone:
            document, number = min(alone)
            raise UserError(
                f"{name}: segment {number} of document {document} has no partner in {other}"
            )
    return [(text, theirs[key]) for key, text in ours.items()]


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
                raise UserError(
                    f"{name}: <seg{attributes}> has no id or stands outside of a <doc docid=...>"
                )
            key, start = (document, int(number[1])), tag.end()
            if key in found:
                raise UserError(f"{name}: segment {key[1]} comes twice in document {key[0]}")
        elif key is not None:
            found[key] = text[start : tag.start()]
            key = None
    if key is not None:
        raise UserError(
            f"{name}: segment {key[1]} of document {key[0]} is not closed; fetch the file anew"
        )
    return found


def _decode(name: str, raw: bytes) -> list[str]:
    lines = []
    for number, line in enumerate(split_lines(raw), start=1):
        try:
            lines.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(f"{name}, line {number:,}: not UTF-8; fetch the file anew") from error
    return lines


# ------------------------------------------------------------------------------------------ parquet


def _parquet_pairs(files: Files, split: str, path: Path) -> Pairs | None:
    """The split from parquet files laid out as on the hub ({split}/*.parquet) or by datasets
    ({split}-*.parquet).

    Where pairs of languages have folders of their own, only French-English is taken: the hub's
    folders merged would be a corpus of another size and language.
    """

    def of_split(name: str) -> bool:
        file = PurePosixPath(name)
        return file.suffix == ".parquet" and (
            file.parent.name == split or re.match(rf"{split}[-.]", file.name) is not None
        )

    found = [(name, read) for name, read in files if of_split(name)]
    named = [(name, read) for name, read in found if CONFIG in PurePosixPath(name).parts]
    others = {
        part
        for name, _ in found
        for part in PurePosixPath(name).parts
        if re.fullmatch(r"iwslt2017-\w\w-\w\w", part)
    }
    if named:
        return _read_parquet(named)
    if others:
        raise UserError(f"{path}: holds {', '.join(sorted(others))} and not {CONFIG}")
    return _read_parquet(found) if found else None


def _read_parquet(files: Sequence[tuple[str, Reader]]) -> Pairs:
    """Rows {"translation": {"fr": ..., "en": ...}} of all files, in order of their names."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    pairs: Pairs = []
    for name, read in sorted(files, key=lambda file: file[0]):
        try:
            column = pq.read_table(pa.BufferReader(read()), columns=["translation"]).column(
                "translation"
            )
            fr, en = (pc.struct_field(column, lang).to_pylist() for lang in ("fr", "en"))
        except (pa.ArrowException, KeyError, OSError) as error:
            raise UserError(
                f"{name}: not a parquet file with translation.fr and translation.en ({_one_line(error)})"
            ) from error
        pairs += [(a or "", b or "") for a, b in zip(fr, en)]
    return pairs
