"""Line-parallel files: alignment is never lost, and each kind of bad input is named or counted."""

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


def pairs(text: ParallelText) -> list[tuple[str, str]]:
    return list(zip(text.src, text.tgt))


def test_pairs_are_read_in_either_direction_plain_or_packed(tmp_path: Path) -> None:
    write(tmp_path, "déjà vu\ndeux chiens\n", "seen before\ntwo dogs\n")
    text = load(tmp_path)
    assert pairs(text) == [("déjà vu", "seen before"), ("deux chiens", "two dogs")]
    back = load(tmp_path, src_lang="en", tgt_lang="fr")
    assert (back.src, back.tgt) == (text.tgt, text.src)
    (tmp_path / "train.pt-BR").write_text("já vi\ndois\n", "utf-8")
    assert load(tmp_path, tgt_lang="pt-BR").tgt == ("já vi", "dois")
    plain = tmp_path / "train.fr"
    (tmp_path / "train.fr.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert load(tmp_path) == text
    assert build_corpus(DataConfig(corpus=ParallelFiles(test=("a", "b")))).test == ("a", "b")


def test_a_stray_line_separator_inside_a_sentence_keeps_the_alignment(tmp_path: Path) -> None:
    for stray in ("\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"):
        write(tmp_path, f"un{stray}chat\ndeux chiens\n", "a cat\ntwo dogs\n")
        assert pairs(load(tmp_path)) == [("un chat", "a cat"), ("deux chiens", "two dogs")]


def test_windows_line_ends_byte_order_mark_and_no_last_line_end(tmp_path: Path) -> None:
    write(tmp_path, codecs.BOM_UTF8 + b"un\r\ndeux\r\n", "one\ntwo")
    assert pairs(load(tmp_path)) == [("un", "one"), ("deux", "two")]


def test_white_space_has_one_form() -> None:
    assert normalize_whitespace("  Ça\u00a0va\u202f?\t Oui\u2028 !\r\n") == "Ça va ? Oui !"
    assert normalize_whitespace("c\u2019est\u200b") == "c\u2019est\u200b"  # no white space
    for c in map(chr, range(0x3100)):
        assert normalize_whitespace(f" x{c}y {c}") == " ".join(f" x{c}y {c}".split()), ascii(c)


ONE = {"train.fr": b"a\n", "train.en": b"b\n"}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (ONE | {"train.fr.gz": b""}, r"train\.fr and .*train\.fr\.gz both exist"),
        (ONE | {"train.fr": b"a\nb\nc\n"}, r"train\.fr has 3 lines and .*train\.en has 1"),
        ({"valid.en": b"a\n", "x": b""}, r"neither .*train\.fr nor train\.fr\.gz .*: valid\.en, x"),
        ({}, r"data\.corpus\.train=NAME names .* their ends; the folder holds: nothing"),
        ({"train.fr/x": b"", "train.en": b"b\n"}, r"train\.fr or \.gz: a folder or a broken link"),
        (ONE | {"train.fr": "\ufeffà".encode("utf-16-le")}, r"train\.fr: UTF-16; convert .*iconv"),
        (ONE | {"train.en": "\ufeffa".encode("utf-16-be")}, r"train\.en: UTF-16; convert .*iconv"),
        (ONE | {"train.fr": "a".encode("utf-16-be")}, r"train\.fr: UTF-16; convert .*iconv"),
        (ONE | {"train.fr": b"\n"}, "no pair of sentences left of 1 lines"),
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


def test_a_damaged_gzip_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("x\n")
    for content in (PACKED[:MIDDLE], FLIPPED, b"phrase\n"):
        (tmp_path / "train.fr.gz").write_bytes(content)
        words = r"train\.fr\.gz: a damaged or truncated gzip file"
        with pytest.raises(UserError, match=words) as caught:
            load(tmp_path)
        assert "\n" not in str(caught.value)


def test_bad_utf8_names_file_and_line_or_is_counted(tmp_path: Path) -> None:
    write(tmp_path, b"un\nd\xe9j\xe0\n", "one \ufffd\nalready\n")
    with pytest.raises(
        UserError, match=r"train\.fr, line 2: not UTF-8; convert .*on_bad_utf8=skip"
    ):
        load(tmp_path)
    text = load(tmp_path, on_bad_utf8="skip")
    assert pairs(text) == [("un", "one \ufffd")]  # that character in the text is none
    assert text.skipped == {"bad_utf8": 1}


def test_empty_lines_on_one_or_both_sides_are_counted_or_named(tmp_path: Path) -> None:
    write(tmp_path, "un\n \u00a0\n\nquatre\n", "one\ntwo\n\n\n")
    text = load(tmp_path)
    assert (pairs(text), text.skipped) == ([("un", "one")], {"empty": 3})
    with pytest.raises(UserError, match=r"train\.fr, line 2: an empty line.*on_empty=skip"):
        load(tmp_path, on_empty="error")
    write(tmp_path, "un\ndeux\n", "one\n\n")
    with pytest.raises(UserError, match=r"train\.en, line 2: an empty line"):
        load(tmp_path, on_empty="error")
    write(tmp_path, b"\xff\n\n\nun\n", b"\n\xff\nx\none\n")  # a pair is counted once
    assert load(tmp_path, on_bad_utf8="skip").skipped == {"bad_utf8": 2, "empty": 1}
