"""Sentence pairs as token ids, made once and kept as memory-mapped NumPy files.

An entry of the cache is a folder named by a hash of all that decides its content. It is written
under another name, brought to disk, and renamed: an entry that has its name is complete, whatever
was killed meanwhile, and of two processes that make the same entry one uses the other's.
"""

import contextlib
import errno
import hashlib
import io
import json
import logging
import os
import time
import uuid
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from configs.schema import DataConfig
from data.corpora.base import CorpusReader, ParallelText
from tokenizer.base import BaseTokenizer
from utils.errors import UserError
from utils.files import crc32, remove, sync

logger = logging.getLogger(__name__)

TooLong = Literal["drop", "keep", "truncate"]

CODE_VERSION = 1  # raise it when code outside this module changes what an entry holds
ARRAYS = ("src_ids", "src_offsets", "tgt_ids", "tgt_offsets", "kept")
MANIFEST = "manifest.json"
PARTIAL = ".partial-"
STALE_AFTER_S = 24 * 3600.0
CHUNK = 4096  # sentences handed to the tokenizer at a time
REMEDY = "make room there or choose another folder with --set data.cache_dir=FOLDER"
TOO_MANY_FILES = errno.EMFILE, errno.ENFILE  # open ones: no damage to an entry
TOLD = {  # at every opening
    "long_kept": "%d pairs have a side of more than %d tokens; they are kept as they are",
    "truncated": "%d pairs had a side of more than %d tokens; it was cut to that length",
}


@dataclass(frozen=True, slots=True)
class TokenizedSplit:
    """Ids of N pairs: sentence i of a side is `ids[offsets[i] : offsets[i + 1]]`, ending in EOS.

    ids int32; offsets int64 [N+1]; kept int64 [N], the row of each pair in its text; n_skipped
    counts the longer pairs under what became of them: "too_long" (dropped), "truncated",
    "long_kept".
    """

    src_ids: np.ndarray
    src_offsets: np.ndarray
    tgt_ids: np.ndarray
    tgt_offsets: np.ndarray
    kept: np.ndarray
    n_skipped: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.src_offsets) - 1

    def src(self, i: int) -> np.ndarray:
        return self.src_ids[self.src_offsets[i] : self.src_offsets[i + 1]]

    def tgt(self, i: int) -> np.ndarray:
        return self.tgt_ids[self.tgt_offsets[i] : self.tgt_offsets[i + 1]]

    @property
    def src_lengths(self) -> np.ndarray:
        """Tokens of each source sentence with EOS, int64 [N]."""
        return np.diff(self.src_offsets)

    @property
    def tgt_lengths(self) -> np.ndarray:
        """Tokens of each target sentence with EOS, int64 [N]."""
        return np.diff(self.tgt_offsets)


def load_split(
    config: DataConfig,
    corpus: CorpusReader,
    split: str,
    tokenizer: BaseTokenizer,
    *,
    training: bool,
) -> tuple[ParallelText, TokenizedSplit]:
    """The text of a split and its ids; `ids.kept[i]` is the row of pair i in the text.

    Training takes the pairs in the directions that the config says, evaluation forward alone. Pairs
    longer than config.max_len are dropped in training; in evaluation config.eval_long decides. What
    was left out is counted in one log line. UserError: as the corpus and the cache say.
    """
    text = corpus.load(split)
    if training and config.directions == "both":
        text = text.both_ways()
    too_long: TooLong = "drop" if training else config.eval_long
    cache_dir = Path(os.path.expanduser(config.cache_dir))
    ids = tokenize_split(
        text, tokenizer, max_len=config.max_len, too_long=too_long, cache_dir=cache_dir
    )
    counts = {**text.skipped, **ids.n_skipped}
    logger.info(
        "%s: %s pairs, %s source and %s target tokens (skipped or long: %s)",
        split,
        f"{len(ids):,}",
        f"{len(ids.src_ids):,}",
        f"{len(ids.tgt_ids):,}",
        ", ".join(f"{reason} {count:,}" for reason, count in counts.items()) or "none",
    )
    return text, ids


def open_training(
    config: DataConfig, tokenizer: BaseTokenizer, fingerprint: str
) -> TokenizedSplit | None:
    """The ids of the training text with this fingerprint, if the cache has them."""
    key = cache_key(fingerprint, tokenizer, max_len=config.max_len, too_long="drop")
    return _open(Path(os.path.expanduser(config.cache_dir)) / key)


def tokenize_split(
    text: ParallelText,
    tokenizer: BaseTokenizer,
    *,
    max_len: int,
    too_long: TooLong,
    cache_dir: Path,
) -> TokenizedSplit:
    """The ids of `text`, from the cache where it has them.

    A pair is too long when either side has more than max_len tokens with EOS; it is dropped, kept,
    or cut to max_len - 1 tokens and EOS. UserError: the cache folder cannot be written, or no pair
    is left.
    """
    key = cache_key(text.fingerprint(), tokenizer, max_len=max_len, too_long=too_long)
    final = cache_dir / key
    split = _open(final)
    if split is None:
        with _partial_folder(cache_dir) as partial:
            made = _tokenize(text, tokenizer, max_len=max_len, too_long=too_long)
            with _disk_errors(cache_dir):
                _write(made, partial)
                _publish(partial, final)
        split = _open(final)
        if split is None:
            raise UserError(
                f"{final} cannot be read back after writing: is the disk sound? {REMEDY}"
            )
    for name, words in TOLD.items():
        if name in split.n_skipped:
            logger.warning(words, split.n_skipped[name], max_len)
    return split


def cache_key(
    fingerprint: str, tokenizer: BaseTokenizer, *, max_len: int, too_long: TooLong
) -> str:
    """A hash of all that decides the ids: the text, the tokenizer, the length rule and the code."""
    code = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    parts = [fingerprint, tokenizer.fingerprint(), max_len, too_long, CODE_VERSION, code]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


# ------------------------------------------------------------------------------------------- making


def _tokenize(
    text: ParallelText, tokenizer: BaseTokenizer, *, max_len: int, too_long: TooLong
) -> TokenizedSplit:
    src, tgt = Side(), Side()
    kept = array("q")
    n_long = 0
    for start in range(0, len(text), CHUNK):
        stop = start + CHUNK
        pairs = zip(
            tokenizer.encode_src_batch(text.src[start:stop]),
            tokenizer.encode_tgt_batch(text.tgt[start:stop]),
        )
        for row, (s, t) in enumerate(pairs, start=start):
            if max(len(s), len(t)) > max_len:
                n_long += 1
                if too_long == "drop":
                    continue
                if too_long == "truncate":
                    s, t = (
                        ids if len(ids) <= max_len else [*ids[: max_len - 1], tokenizer.eos_id]
                        for ids in (s, t)
                    )
            src.add(s)
            tgt.add(t)
            kept.append(row)
    if not len(text):
        raise UserError("the split has no pair")
    if not kept:
        raise UserError(
            f"no pair is left: all {len(text):,} have a side of more than {max_len} tokens; "
            "--set data.max_len=N"
        )
    name = {"drop": "too_long", "keep": "long_kept", "truncate": "truncated"}[too_long]
    return TokenizedSplit(
        *src.arrays(), *tgt.arrays(), np.frombuffer(kept, "q"), {name: n_long} if n_long else {}
    )


class Side:
    """The ids of one side as they come, four bytes each; a list takes nine times that."""

    def __init__(self) -> None:
        self.ids = array("i")
        self.offsets = array("q", [0])

    def add(self, ids: Sequence[int]) -> None:
        self.ids.extend(ids)
        self.offsets.append(len(self.ids))

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids and the offsets; nothing can be added any more."""
        return np.frombuffer(self.ids, "i"), np.frombuffer(self.offsets, "q")


# ------------------------------------------------------------------------------------------ on disk


def _open(folder: Path) -> TokenizedSplit | None:
    """An entry, memory-mapped; None where there is none or it is damaged."""
    if not folder.exists():
        return None
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        arrays = {}
        for name in ARRAYS:
            path = folder / f"{name}.npy"
            if crc32(path) != manifest["crc32"][name]:
                raise ValueError(f"{name}: wrong checksum")
            arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        return TokenizedSplit(**arrays, n_skipped=manifest["n_skipped"])
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        if getattr(error, "errno", None) in TOO_MANY_FILES:
            raise
        logger.warning("cache entry %s is damaged (%s); it is made anew", folder, error)
        return None


def _write(split: TokenizedSplit, folder: Path) -> None:
    """All files of an entry, brought to disk; the manifest last."""
    checksums = {}
    for name in ARRAYS:
        values = getattr(split, name)
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, np.lib.format.header_data_from_array_1_0(values)
        )
        parts = header.getvalue(), values.data
        checksums[name] = zlib.crc32(parts[1], zlib.crc32(parts[0]))
        path = folder / f"{name}.npy"
        with path.open("wb") as file:
            file.writelines(parts)  # np.save to a file says nothing when the disk is full
        sync(path)
    (folder / MANIFEST).write_text(
        json.dumps({"crc32": checksums, "n_skipped": dict(split.n_skipped)}), "utf-8"
    )
    sync(folder / MANIFEST)
    sync(folder)


def _publish(partial: Path, final: Path) -> None:
    """Rename to the final name, unless another process was first with a sound entry."""
    while True:
        try:
            os.rename(partial, final)
        except OSError:
            if not final.exists():  # not a lost race: a full disk, a folder that went away
                raise
            if _open(final) is not None:
                return
            _set_aside(final)
        else:
            sync(final.parent)
            return


def _set_aside(damaged: Path) -> None:
    """Take a damaged entry off its name in one move, so that nobody meets half of it; remove it."""
    trash = damaged.with_name(f"{PARTIAL}{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):  # another process was first
        os.rename(damaged, trash)
        remove(trash)


@contextlib.contextmanager
def _partial_folder(cache_dir: Path) -> Iterator[Path]:
    """A fresh folder to write in, gone afterwards; what a crash left a day ago goes in passing.

    It is made before the tokenizer runs: a cache that cannot be written is reported at once.
    """
    partial = cache_dir / f"{PARTIAL}{uuid.uuid4().hex}"
    with _disk_errors(cache_dir):
        cache_dir.mkdir(parents=True, exist_ok=True)
        for old in cache_dir.glob(f"{PARTIAL}*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - old.stat().st_mtime > STALE_AFTER_S:
                    remove(old)
        partial.mkdir()
    try:
        yield partial
    finally:
        remove(partial)


@contextlib.contextmanager
def _disk_errors(cache_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{cache_dir}: the cache cannot be written ({error.strerror or error}); {REMEDY}"
        ) from error
