"""The token cache: the right entry for the right input, whatever crashes, races or rots."""

import errno
import hashlib
import itertools
import logging
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from configs.schema import DataConfig, ParallelFiles
from data import cache
from data.cache import PARTIAL, STALE_AFTER_S, TokenizedSplit, cache_key, load_split, tokenize_split
from data.corpora.base import ParallelText
from data.corpora.build import build_corpus
from tokenizer.base import BaseTokenizer
from utils.errors import UserError

PROCESSES = multiprocessing.get_context("fork")


class WordTokenizer(BaseTokenizer):
    """A word is its own hash; EOS is 0 and padding the last id, as in Marian's vocabularies."""

    kind = "words"
    eos_id, unk_id, bos_id, pad_id = 0, 1, 999, 999

    def __init__(self, salt: str = "", before: Callable[[], None] = lambda: None) -> None:
        self.salt = salt
        self.before = before
        self.n_encoded = 0

    def encode_src_batch(self, texts: Sequence[str]) -> list[list[int]]:
        self.before()
        self.n_encoded += len(texts)
        return [[*map(self._id, text.split()), self.eos_id] for text in texts]

    encode_tgt_batch = encode_src_batch

    def _id(self, word: str) -> int:
        return 2 + int.from_bytes(hashlib.sha256((self.salt + word).encode()).digest()[:4]) % 990

    def fingerprint(self) -> str:
        return f"words {self.salt}"

    decode_batch = src_pieces = files = None  # never asked for


TEXT = ParallelText(
    [f"la phrase {i}" for i in range(50)] + ["un"], [f"sentence {i}" for i in range(50)] + ["one"]
)


def make(cache_dir: Path, text=TEXT, tokenizer=None, max_len=8, too_long="drop") -> TokenizedSplit:
    return tokenize_split(
        text, tokenizer or WordTokenizer(), max_len=max_len, too_long=too_long, cache_dir=cache_dir
    )


def entries(cache_dir: Path) -> list[Path]:
    return sorted(path for path in cache_dir.iterdir() if not path.name.startswith(PARTIAL))


def assert_made(cache_dir: Path, expected: str, *, anew: bool) -> None:
    """There is one entry in the end, and it has these ids."""
    tokenizer = WordTokenizer()
    assert digest(make(cache_dir, tokenizer=tokenizer)) == expected
    assert (tokenizer.n_encoded > 0) == anew
    assert len(entries(cache_dir)) == 1


def digest(split: TokenizedSplit) -> str:
    return hashlib.sha256(split.src_ids.tobytes() + split.tgt_ids.tobytes()).hexdigest()


# ------------------------------------------------------------------------------------ what it holds


def test_ids_are_those_of_the_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "CHUNK", 20)
    tokenizer = WordTokenizer()
    split = make(tmp_path / "deep" / "cache", tokenizer=tokenizer)
    assert len(split) == 51
    for i in (0, 17, 50):
        assert split.src(i).tolist() == tokenizer.encode_src(TEXT.src[i])
        assert split.tgt(i).tolist() == tokenizer.encode_tgt(TEXT.tgt[i])
    assert (split.src_lengths.tolist(), split.tgt_lengths[-1]) == ([4] * 50 + [2], 2)
    assert split.src_ids.dtype == np.int32
    assert (split.kept.tolist(), split.n_skipped) == (list(range(51)), {})
    assert isinstance(split.src_ids, np.memmap)
    assert_made(tmp_path / "deep" / "cache", digest(split), anew=False)


LONG = ParallelText(["a b c", "a", "a b c d e", "x y"], ["p", "p q r s t u", "p", "q"])


@pytest.mark.parametrize(
    ("too_long", "kept", "counted", "longest", "told"),
    [
        ("drop", [0, 3], {"too_long": 2}, 4, ""),  # "a b c" and EOS: exactly at the limit
        ("keep", [0, 1, 2, 3], {"long_kept": 2}, 7, "2 pairs have a side of more than 4 tokens"),
        ("truncate", [0, 1, 2, 3], {"truncated": 2}, 4, "2 pairs had a side of more than 4 tokens"),
    ],
)
def test_long_pairs_are_dropped_kept_or_cut_and_told_at_every_opening(
    tmp_path: Path, caplog, too_long, kept, counted, longest, told
) -> None:
    for _ in range(2):
        caplog.clear()
        split = make(tmp_path, LONG, max_len=4, too_long=too_long)
        assert (split.kept.tolist(), split.n_skipped) == (kept, counted)
        assert max(split.src_lengths.max(), split.tgt_lengths.max()) == longest
        assert told in caplog.text
        assert bool(told) == bool(caplog.text)
    for i, row in enumerate(kept):
        whole = WordTokenizer().encode_src(LONG.src[row])
        cut = [*whole[:3], WordTokenizer.eos_id] if too_long == "truncate" and row == 2 else whole
        assert split.src(i).tolist() == cut


def test_nothing_left_names_the_limit_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"all 51 .* more than 1 tokens.*data\.max_len"):
        make(tmp_path, max_len=1)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------ its key


def test_the_key_holds_everything_that_decides_the_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    base = {
        "fingerprint": TEXT.fingerprint(),
        "tokenizer": WordTokenizer(),
        "max_len": 8,
        "too_long": "drop",
    }
    other_text = ParallelText([*TEXT.src[:-1], "deux"], TEXT.tgt)
    moved_word = ParallelText(["a b", "c"], ["x", "y"]), ParallelText(["a", "b c"], ["x", "y"])
    variants = [
        base,
        base | {"tokenizer": WordTokenizer("other")},
        base | {"max_len": 9},
        base | {"too_long": "keep"},
        *(
            base | {"fingerprint": text.fingerprint()}
            for text in (other_text, ParallelText(TEXT.tgt, TEXT.src), *moved_word)
        ),
    ]
    keys = [cache_key(**variant) for variant in variants]
    assert cache_key(**base) == keys[0]
    for name, other in (("CODE_VERSION", -1), ("__file__", __file__)):  # by what code
        with monkeypatch.context() as patched:
            patched.setattr(cache, name, other)
            keys.append(cache_key(**base))
    assert len(set(keys)) == len(keys)


# ------------------------------------------------------------------------------- damage and crashes


def change(name: str, edit: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda entry: (entry / name).write_bytes(edit((entry / name).read_bytes()))


@pytest.mark.parametrize(
    "damage",
    [
        change("src_ids.npy", lambda raw: raw[:-4]),
        change("tgt_ids.npy", lambda raw: raw[:-3] + bytes([raw[-3] ^ 1]) + raw[-2:]),
        change("kept.npy", lambda raw: b""),
        lambda entry: (entry / "src_offsets.npy").unlink(),
        lambda entry: (entry / "manifest.json").unlink(),
        change("manifest.json", lambda raw: b"[1"),
        change("manifest.json", lambda raw: b'{"crc32": {}}'),
        lambda entry: [path.unlink() for path in entry.iterdir()],
    ],
)
def test_a_damaged_entry_is_made_anew(tmp_path: Path, damage, caplog) -> None:
    expected = digest(make(tmp_path))
    damage(entries(tmp_path)[0])
    assert_made(tmp_path, expected, anew=True)
    assert "is damaged" in caplog.text
    assert_made(tmp_path, expected, anew=False)
    assert len(list(tmp_path.iterdir())) == 1


def die_at(n: int, cache_dir: Path) -> None:
    """Make the entry; at step n the process kills itself: 0 and 1 tokenise, the others sync."""
    calls = itertools.count()

    def fatal(*_: int) -> None:
        if next(calls) == n:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = fatal
    make(cache_dir, tokenizer=WordTokenizer(before=fatal))


@pytest.mark.parametrize("n", [0, 2, 5, 7, 8])
def test_killed_while_tokenizing_or_writing_then_made_anew(tmp_path: Path, n: int) -> None:
    cache = tmp_path / "cache"
    process = PROCESSES.Process(target=die_at, args=(n, cache))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert entries(cache) == []
    assert len(list(cache.iterdir())) == 1  # what the crash left
    assert_made(cache, digest(make(tmp_path / "other")), anew=True)


def test_too_many_open_files_are_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = digest(make(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(cache, "crc32", mock.Mock(side_effect=OSError(errno.EMFILE, "too many")))
        with pytest.raises(OSError, match="too many"):
            make(tmp_path)
    assert_made(tmp_path, made, anew=False)


def test_what_a_crash_left_goes_after_a_day_and_not_before(tmp_path: Path) -> None:
    old, fresh = tmp_path / f"{PARTIAL}old", tmp_path / f"{PARTIAL}fresh"
    for folder in (old, fresh):
        folder.mkdir()
        (folder / "src_ids.npy").write_bytes(b"half")
    a_day_ago = time.time() - STALE_AFTER_S - 60
    os.utime(old, (a_day_ago, a_day_ago))
    make(tmp_path)
    assert (old.exists(), fresh.exists()) == (False, True)


def race(folder: Path, name: str, other: str) -> tuple[str, int]:
    """Make the entry; the tokenizer starts only when the other process is tokenizing too."""

    def meet() -> None:
        (folder / f"{name}.here").touch()
        deadline = time.monotonic() + 30
        while not (folder / f"{other}.here").exists() and time.monotonic() < deadline:
            time.sleep(0.005)

    tokenizer = WordTokenizer(before=meet)
    return digest(make(folder / "cache", tokenizer=tokenizer)), tokenizer.n_encoded


def test_two_processes_at_once_share_one_entry(tmp_path: Path) -> None:
    with PROCESSES.Pool(2) as pool:
        both = pool.starmap(race, [(tmp_path, "one", "two"), (tmp_path, "two", "one")], 1)
    assert both == [(digest(make(tmp_path / "cache")), 102)] * 2
    assert len(list((tmp_path / "cache").iterdir())) == 1


# --------------------------------------------------------------------------------------- the folder


def test_a_folder_that_cannot_be_written_is_reported_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    tokenizer = WordTokenizer()
    with pytest.raises(UserError, match=r"the cache cannot be written.*--set data\.cache_dir="):
        make(tmp_path / "file" / "cache", tokenizer=tokenizer)
    assert tokenizer.n_encoded == 0


def fill_the_disk(cache_dir: Path) -> str:
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))  # a longer write fails, as on a full disk
    with pytest.raises(UserError) as caught:
        make(cache_dir)
    return str(caught.value)


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with PROCESSES.Pool(1) as pool:
        said = pool.apply(fill_the_disk, (tmp_path,))
    assert "\n" not in said
    assert "the cache cannot be written" in said
    assert "--set data.cache_dir=" in said
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------- load_split


def test_load_split_drops_in_training_and_keeps_in_evaluation(tmp_path: Path, caplog) -> None:
    (tmp_path / "train.fr").write_text("un\n\nun deux trois quatre\n", "utf-8")
    (tmp_path / "train.en").write_text("one\nx\none two\n", "utf-8")
    files = ParallelFiles(root=str(tmp_path))
    config = DataConfig(corpus=files, max_len=3, batch_size=64, cache_dir=str(tmp_path / "cache"))
    corpus = build_corpus(config)
    caplog.set_level(logging.INFO, logger="data.cache")
    text, ids = load_split(config, corpus, "train", WordTokenizer(), training=True)
    assert (len(text), len(ids), ids.kept.tolist()) == (2, 1, [0])
    told = "train: 1 pairs, 2 source and 2 target tokens (skipped or long: empty 1, too_long 1)"
    assert told in caplog.text
    text, ids = load_split(config, corpus, "train", WordTokenizer(), training=False)
    assert len(text) == len(ids) == 2
