"""Line-parallel files: alignment is never lost, and each kind of bad input is named or counted."""

from __future__ import annotations

import codecs
import gzip
from pathlib import Path
from typing import Any

import pytest

from configs.schema import DataConfig, ParallelFiles
from data.corpora.base import ParallelText
from data.corpora.build import build_corpus
from data.corpora.text import normalize_whitespace
from utils.errors import UserError


def load(
    root: Path, split: str = "train", src_lang: str = "fr", tgt_lang: str = "en", **options: Any
) -> ParallelText:
    corpus = ParallelFiles(root=str(root), **options)
    return build_corpus(DataConfig(corpus=corpus, src_lang=src_lang, tgt_lang=tgt_lang)).load(split)


def write(root: Path, fr: bytes | str, en: bytes | str, split: str = "train") -> None:
    for lang, content in (("fr", fr), ("en", en)):
        (root / f"{split}.{lang}").write_bytes(
            content.encode() if isinstance(content, str) else content
        )


def test_pairs_are_read_in_either_direction(tmp_path: Path) -> None:
    write(tmp_path, "un chat\ndeux chiens\n", "a cat\ntwo dogs\n")
    text = load(tmp_path)
    assert (list(text.src), list(text.tgt)) == (["un chat", "deux chiens"], ["a cat", "two dogs"])
    back = load(tmp_path, src_lang="en", tgt_lang="fr")
    assert (back.src, back.tgt) == (text.tgt, text.src)
    (tmp_path / "train.pt-BR").write_text("um gato\ndois\n", "utf-8")
    assert load(tmp_path, tgt_lang="pt-BR").tgt == ["um gato", "dois"]


def test_gzip_reads_like_plain_and_sides_may_differ(tmp_path: Path) -> None:
    (tmp_path / "train.fr.gz").write_bytes(gzip.compress("déjà vu\n".encode()))
    (tmp_path / "train.en").write_text("seen before\n", "utf-8")
    assert load(tmp_path).src == ["déjà vu"]


def test_the_config_names_the_splits(tmp_path: Path) -> None:
    config = ParallelFiles(root=str(tmp_path), train="t", validation="dev", test=("a", "b"))
    corpus = build_corpus(DataConfig(corpus=config))
    assert (corpus.train, corpus.validation, corpus.test) == ("t", "dev", ("a", "b"))


@pytest.mark.parametrize("stray", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_a_stray_line_separator_inside_a_sentence_keeps_the_alignment(
    tmp_path: Path, stray: str
) -> None:
    write(tmp_path, f"un{stray}chat\ndeux chiens\n", "a cat\ntwo dogs\n")
    text = load(tmp_path)
    assert list(zip(text.src, text.tgt)) == [("un chat", "a cat"), ("deux chiens", "two dogs")]


def test_windows_line_ends_byte_order_mark_and_no_last_line_end(tmp_path: Path) -> None:
    write(tmp_path, codecs.BOM_UTF8 + b"un\r\ndeux\r\n", "one\ntwo")
    text = load(tmp_path)
    assert list(zip(text.src, text.tgt)) == [("un", "one"), ("deux", "two")]


def test_white_space_has_one_form() -> None:
    assert normalize_whitespace("  Ça\u00a0va\u202f?\t Oui\u2028 !\r\n") == "Ça va ? Oui !"
    assert normalize_whitespace("c\u2019est\u200b") == "c\u2019est\u200b"  # no white space


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"train.fr": b"a\n", "train.en": b"b\n", "train.fr.gz": b""},
            r"train\.fr and .*train\.fr\.gz both exist",
        ),
        (
            {"train.fr": b"a\nb\nc\n", "train.en": b"x\ny\n"},
            r"train\.fr has 3 lines and .*train\.en has 2",
        ),
        (
            {"valid.fr": b"a\n", "valid.en": b"b\n"},
            r"neither .*train\.fr nor train\.fr\.gz exists.*holds: valid\.en, valid\.fr",
        ),
        ({}, "the folder holds: nothing"),
        ({"train.fr/x": b"", "train.en": b"b\n"}, r"neither .*train\.fr nor"),
        ({"train.fr": b"\n\n", "train.en": b"a\nb\n"}, "no pair of sentences left of 2 lines"),
        ({"train.fr": b"", "train.en": b""}, "no pair of sentences left of 0 lines"),
    ],
)
def test_files_that_cannot_be_read_are_named(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        load(tmp_path)


def test_a_missing_folder_is_named() -> None:
    with pytest.raises(UserError, match=r"nowhere: no such folder.*data\.corpus\.root"):
        load(Path("nowhere"))


PACKED = gzip.compress("\n".join(f"phrase {i}" for i in range(500)).encode())
MIDDLE = len(PACKED) // 2
FLIPPED = PACKED[:MIDDLE] + bytes([PACKED[MIDDLE] ^ 0xFF]) + PACKED[MIDDLE + 1 :]


@pytest.mark.parametrize(
    "content", [PACKED[:MIDDLE], FLIPPED, b"phrase\n"], ids=["truncated", "flipped", "not gzip"]
)
def test_a_damaged_gzip_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train.fr.gz").write_bytes(content)
    (tmp_path / "train.en").write_text("x\n")
    words = r"train\.fr\.gz: a damaged or truncated gzip file"
    with pytest.raises(UserError, match=words) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_bad_utf8_names_file_and_line_or_is_counted(tmp_path: Path) -> None:
    write(tmp_path, b"un\nd\xe9j\xe0\ntrois\n", "one\nalready\nthree\n")
    with pytest.raises(UserError, match=r"train\.fr, line 2: not UTF-8.*on_bad_utf8=skip"):
        load(tmp_path)
    text = load(tmp_path, on_bad_utf8="skip")
    assert list(zip(text.src, text.tgt)) == [("un", "one"), ("trois", "three")]
    assert text.skipped == {"bad_utf8": 1}


def test_a_replacement_character_in_the_text_is_not_bad_utf8(tmp_path: Path) -> None:
    write(tmp_path, "un \ufffd\n", "one\n")
    assert load(tmp_path).src == ["un \ufffd"]


def test_empty_lines_on_one_or_both_sides_are_counted_or_named(tmp_path: Path) -> None:
    write(tmp_path, "un\n \u00a0\n\nquatre\n", "one\ntwo\n\n\n")
    text = load(tmp_path)
    assert (list(text.src), list(text.tgt), text.skipped) == (["un"], ["one"], {"empty": 3})
    with pytest.raises(UserError, match=r"train\.fr, line 2: an empty line.*on_empty=skip"):
        load(tmp_path, on_empty="error")


def test_reasons_are_counted_apart_and_a_pair_once(tmp_path: Path) -> None:
    write(tmp_path, b"\xff\n\nun\n", b"\nx\none\n")
    assert load(tmp_path, on_bad_utf8="skip").skipped == {"bad_utf8": 1, "empty": 1}
