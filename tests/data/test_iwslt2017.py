"""IWSLT2017 from small files in the official formats, and from a server that answers as the hub."""

import io
import re
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import local_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.schema import DataConfig, Iwslt2017
from data.corpora.base import ParallelText
from data.corpora.build import build_corpus
from utils.errors import UserError

YEARS = range(2010, 2016)
SPLITS = ("train", "validation", "test")
TRAIN_FR = """<url>http://www.ted.com/talks/1</url>
<title>Jane Doe : L'art &amp; la science</title>
Merci beaucoup , Chris .
C' est  vraiment\u00a0un honneur\u202f!
 Mesdames &amp; messieurs : 3 &lt; 5 .\x20

Cette ligne reste seule .
"""
TRAIN_EN = """<url>http://www.ted.com/talks/1</url>
<title>Jane Doe : Art &amp; science</title>
Thank you so much , Chris .
And it 's truly a great honor!
 Ladies &amp; gentlemen: 3 &lt; 5 .\x20

\x20
"""


def xml(kind: str, lang: str, docs: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A development or test file as the campaign wrote it."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>"]
    lines += [f'<{kind} setid="iwslt2017-x" srclang="french">']
    for docid, segments in docs:
        lines += [f'<doc docid="{docid}" genre="lectures">', "<url>http://www.ted.com/x</url>"]
        lines += [f"<title>Titre {lang}</title>", '<talkid id="4">4</talkid>']
        lines += [f'<seg id="{i}"> {segment} </seg>' for i, segment in enumerate(segments, start=1)]
        lines += ["</doc>"]
    return "\n".join([*lines, f"</{kind}>", "</mteval>", ""])


def official_files(pair: str = "fr-en", **changes: str) -> dict[str, str]:
    """All files of a direction's archive, two talks a year; fr= and en= are dev2010's content."""
    text = {
        "fr": ("R&D : été {y}", "Deux\u00a0 fois {y} &amp; plus", "Autre {y}"),
        "en": ("R&D: {y}", "Two {y}", "x {y}"),
    }
    files = {f"train.tags.{pair}.fr": TRAIN_FR, f"train.tags.{pair}.en": TRAIN_EN}
    for name in ("dev2010", *(f"tst{year}" for year in YEARS)):
        for lang, kind in zip(pair.split("-"), ("srcset", "refset")):
            a, b, c = (template.format(y=name) for template in text[lang])
            docs = [("69", [a, b]), ("129", [c])]
            files[f"IWSLT17.TED.{name}.{pair}.{lang}.xml"] = xml(kind, lang, docs)
    return files | {f"IWSLT17.TED.dev2010.{pair}.{k}.xml": text for k, text in changes.items()}


def write(root: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def packed(root: Path, name: str) -> Path:
    """The files of a folder, in a folder fr-en of an archive beside it."""
    kind = "zip" if name.endswith(".zip") else "gztar"
    (root / "in").mkdir(exist_ok=True)
    shutil.copytree(root / "plain", root / "in" / "fr-en", dirs_exist_ok=True)
    made = shutil.make_archive(str(root / "made"), kind, root / "in")
    return Path(shutil.move(made, root / name))


def load(
    path: Path | None, split: str, *, check: bool = False, direction: str = "fr-en"
) -> ParallelText:
    src, tgt = direction.split("-")
    corpus = Iwslt2017(path=None if path is None else str(path), check_sizes=check)
    return build_corpus(DataConfig(corpus=corpus, src_lang=src, tgt_lang=tgt)).load(split)


def pairs(text: ParallelText) -> list[tuple[str, str]]:
    return list(zip(text.src, text.tgt))


# ------------------------------------------------------------------------------- the official files


def test_train_lines_stay_parallel_and_markup_goes(tmp_path: Path) -> None:
    text = load(write(tmp_path, official_files()), "train")
    stray = TRAIN_FR.replace("Merci beaucoup", "Merci\u2028beaucoup").replace("\n", "\r\n")
    assert load(write(tmp_path, {"train.tags.fr-en.fr": stray}), "train") == text
    angle = {"train.tags.fr-en.en": TRAIN_EN.replace("Thank you", "< Thank you")}
    assert load(write(tmp_path, angle), "train").src == text.src
    assert pairs(text) == [
        ("Merci beaucoup , Chris .", "Thank you so much , Chris ."),
        ("C' est vraiment un honneur !", "And it 's truly a great honor!"),
        ("Mesdames & messieurs : 3 < 5 .", "Ladies & gentlemen: 3 < 5 ."),
    ]
    assert text.skipped == {"empty": 2}


def test_segments_restart_in_each_talk_and_test_years_come_in_order(tmp_path: Path) -> None:
    root = write(tmp_path, official_files())
    assert pairs(load(root, "validation")) == [
        ("R&D : été dev2010", "R&D: dev2010"),
        ("Deux fois dev2010 & plus", "Two dev2010"),
        ("Autre dev2010", "x dev2010"),
    ]
    test = load(root, "test")
    assert len(test) == 18
    assert [line.split()[-1] for line in test.tgt[::3]] == [f"tst{year}" for year in YEARS]


def test_sides_in_another_order_are_paired_by_number(tmp_path: Path) -> None:
    files = official_files(en=xml("refset", "en", [("129", ["x"]), ("69", ["R&D", "Two"])]))
    assert load(write(tmp_path, files), "validation").tgt == ("R&D", "Two", "x")


def test_every_wrapping_and_direction_gives_the_same_text(tmp_path: Path) -> None:
    write(tmp_path / "plain/some/where", official_files())
    write(tmp_path / "turned", official_files("en-fr"))
    names = ["turned", *(packed(tmp_path, f"a.{kind}").name for kind in ("zip", "tgz", "tar.gz"))]
    for split in SPLITS:
        plain = load(tmp_path / "plain", split)
        assert len(plain) >= 3
        for name in names:
            assert load(tmp_path / name, split) == plain, name
        back = load(tmp_path / "plain", split, direction="en-fr")
        assert (back.src, back.tgt) == (plain.tgt, plain.src)


def test_entity_bombs_and_outside_files_are_plain_text(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    entities = '<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;">'
    entities += f'<!ENTITY f SYSTEM "file://{tmp_path}/secret">'
    french = xml("srcset", "fr", [("1", ["&b; &f;", "I <3 XML & co"])])
    english = xml("refset", "en", [("1", ["one", "two"])])
    files = official_files(fr=f"<!DOCTYPE x [{entities}]>\n{french}", en=english)
    assert load(write(tmp_path / "in", files), "validation").src == ("&b; &f;", "I <3 XML & co")


FR = official_files()["IWSLT17.TED.dev2010.fr-en.fr.xml"]
BAD, ALONE = "xml, document", "has no partner in fr-en/IWSLT17.TED.dev2010.fr-en.fr"
LINES_EN = {"train.tags.fr-en.en": TRAIN_EN + "one more\n"}
LATIN_FR = {"train.tags.fr-en.fr": TRAIN_FR.encode("latin-1", "replace")}


def english(*docs: tuple[str, Sequence[str]]) -> dict[str, str]:
    return official_files(en=xml("refset", "en", docs))


@pytest.mark.parametrize(
    ("files", "split", "message"),
    [
        (english(("69", ["a"]), ("129", ["c"])), "validation", "segment 2 of document 69"),
        (english(("69", ["a", "b"]), ("129", ["c", "d"])), "validation", f"129 {ALONE}"),
        (english(("69", ["a", "b"]), ("69", ["c"])), "validation", f'en.{BAD} 69, <seg id="1">'),
        (official_files(fr=FR[: FR.rindex("</seg>")]), "validation", f'fr.{BAD} 129, <seg id="1">'),
        (official_files(fr=FR.replace("</seg>", "", 1)), "validation", f'{BAD} 69, <seg id="1">'),
        (official_files(fr=FR.replace(' id="1"', "")), "validation", f"fr.{BAD} 69, <seg>: not"),
        (official_files(fr=FR.replace("docid", "id")), "validation", f"fr.{BAD} None, <seg id"),
        (official_files(fr=FR.replace("<seg", "</doc><seg")), "validation", f"fr.{BAD} None, <seg"),
        (official_files() | LINES_EN, "train", "has 7 lines and fr-en/train.tags.fr-en.en has 8"),
        (official_files() | LATIN_FR, "train", "train.tags.fr-en.fr, line 4: not UTF-8"),
        ({"notes.txt": "hello"}, "train", "train.tags.fr-en.{fr,en}) nor iwslt2017-fr-en/train/"),
        ({"notes.txt": "hello"}, "train", "found: fr-en/notes.txt"),
        ({}, "dev", "no split 'dev': its splits are train, validation, test"),
    ],
)
def test_a_mistake_in_the_files_is_named(
    tmp_path: Path, files: dict[str, str | bytes], split: str, message: str
) -> None:
    write(tmp_path / "fr-en", files)
    with pytest.raises(UserError, match=re.escape(message)):
        load(tmp_path, split)


def test_a_missing_side_or_year_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = write(tmp_path, official_files())
    missing = [root / f"IWSLT17.TED.tst2012.fr-en.{lang}.xml" for lang in ("en", "fr")]
    missing[0].unlink()
    words = r"test are not complete; missing: IWSLT17\.TED\.tst2012\.fr-en\."
    with pytest.raises(UserError, match=rf"{words}en\.xml$"):
        load(root, "test")
    missing[1].unlink()
    with pytest.raises(UserError, match=rf"{words}fr\.xml, "):
        load(root, "test", check=True)
    assert len(load(root, "test")) == 15
    assert "tst2012" in caplog.text


def test_a_path_that_is_no_corpus_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for name in ("nowhere", "nowhere.zip", "nowhere.tgz", "notes.txt"):
        words = rf"{name}': no such folder or archive \(\.zip, \.tgz, \.tar\.gz\)"
        with pytest.raises(UserError, match=words):
            load(tmp_path / name, "train")


@pytest.mark.parametrize("name", ["a.zip", "a.tgz"])
def test_a_damaged_archive_is_one_line(tmp_path: Path, name: str) -> None:
    write(tmp_path / "plain", official_files())
    whole = packed(tmp_path, name).read_bytes()
    at = max(60, whole.find(b"train.tags.fr-en.fr"))  # in a .tgz no name can be read
    flipped = whole[:at] + bytes(byte ^ 0xFF for byte in whole[at : at + 140]) + whole[at + 140 :]
    for damaged in (whole[: len(whole) // 2], flipped, b"hello"):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(UserError, match=rf"{name}: (a )?damaged .*again$") as caught:
            load(tmp_path / name, "train")
        assert "\n" not in str(caught.value)


def test_official_sizes_are_asserted(tmp_path: Path) -> None:
    root = write(tmp_path, official_files())
    for split, found, official in zip(SPLITS, (5, 3, 18), ("232,825", "890", "8,597")):
        words = rf"{split} has {found} pairs in .* not the official {official}.*check_sizes"
        with pytest.raises(UserError, match=words):
            load(root, split, check=True)


# ------------------------------------------------------------------------------------------ parquet


ROWS = {
    "train": [("L'art &amp; la\u00a0science", "Art &amp; science"), ("", "alone"), ("Deux", "Two")],
    "validation": [("Un", "One")],
    "test": [("Trois", "Three"), (None, "null")],
}
EXPECTED = {
    "train": [("L'art & la science", "Art & science"), ("Deux", "Two")],
    "validation": [("Un", "One")],
    "test": [("Trois", "Three")],
}


def parquet_bytes(rows: Sequence[tuple[Any, Any]], src: str = "fr") -> bytes:
    raw = io.BytesIO()
    pq.write_table(pa.table({"translation": [{src: fr, "en": en} for fr, en in rows]}), raw)
    return raw.getvalue()


HUB = {f"iwslt2017-fr-en/{split}/0000.parquet": parquet_bytes(rows) for split, rows in ROWS.items()}
GERMAN = {"iwslt2017-de-en/train/0000.parquet": parquet_bytes([("x", "y")], "de")}


def load_all(path: Path | None) -> dict[str, list[tuple[str, str]]]:
    return {split: pairs(load(path, split)) for split in SPLITS}


def test_a_folder_in_the_layout_of_the_hub(tmp_path: Path) -> None:
    root = write(tmp_path, HUB | GERMAN)
    assert load_all(root) == load_all(root / "iwslt2017-fr-en") == EXPECTED
    assert load(root, "train").skipped == {"empty": 1}


def test_a_folder_in_the_layout_of_datasets_with_shards_in_order(tmp_path: Path) -> None:
    shards = {f"train-{i:05}-of-00003": [row] for i, row in enumerate(ROWS["train"])}
    shards |= {f"{split}-00000-of-00001": ROWS[split] for split in SPLITS[1:]}
    files = {f"data/{name}.parquet": parquet_bytes(rows) for name, rows in shards.items()}
    assert load_all(write(tmp_path, files)) == EXPECTED


def test_another_pair_of_languages_is_never_taken_for_this_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nor iwslt2017-fr-en/train.* found: iwslt2017-de-en"):
        load(write(tmp_path, GERMAN), "train")


def test_parquet_of_other_columns_or_damaged_is_named(tmp_path: Path) -> None:
    words = r"train/0000\.parquet: not a parquet file with translation\.fr"
    others = parquet_bytes([("x", "y")], "de"), parquet_bytes([(["x"], ["y"])])
    for content in (*others, parquet_bytes(ROWS["train"])[:-20], b""):
        root = write(tmp_path, {"train/0000.parquet": content})
        with pytest.raises(UserError, match=words):
            load(root, "train")


# ------------------------------------------------------------------------------------------ the hub

REPO = "datasets/IWSLT/iwslt2017"


def test_from_the_hub_once_and_then_from_its_cache_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with local_hub.serve(REPO, HUB | GERMAN) as (endpoint, asked):
        local_hub.ask(monkeypatch, endpoint, tmp_path)
        assert load_all(None) == EXPECTED
        assert caplog.text.count("fetching IWSLT/iwslt2017 (iwslt2017-fr-en)") == 1
        assert sum(path.startswith("GET") and "/resolve/" in path for path in asked) == 3
        assert not any("de-en" in path for path in asked)
    caplog.clear()
    assert load_all(None) == EXPECTED  # the server is gone
    assert "fetching" not in caplog.text


def test_a_download_that_was_cut_off_is_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with local_hub.serve(REPO, HUB, broken="/iwslt2017-fr-en/test/") as (endpoint, _):
        local_hub.ask(monkeypatch, endpoint, tmp_path)
        with pytest.raises(UserError, match="cannot be fetched"):
            load(None, "train")
    # As in caches of older clients.
    shutil.rmtree(tmp_path / "datasets--IWSLT--iwslt2017" / "trees")
    with local_hub.serve(REPO, HUB) as (endpoint, _):
        local_hub.ask(monkeypatch, endpoint, tmp_path)
        assert load_all(None) == EXPECTED


@pytest.mark.parametrize(
    ("hub", "reason"),
    [
        ("http://127.0.0.1:9", "ConnectError"),
        ("offline", "HF_HUB_OFFLINE is set"),
        ("silent", "no answer within 0.3 s"),
        ("forbidden", "403"),
        ("misspelt", r"no IWSLT/iwslt2017 for you: check the name, .* log in \(hf auth login\)\)"),
        ("without the corpus", "lacks iwslt2017-fr-en/train/"),
    ],
)
def test_without_hub_or_cache_the_three_ways_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: str, reason: str
) -> None:
    if hub == "silent":
        monkeypatch.setattr("utils.hub.ANSWER_S", 0.3)
    start = time.monotonic()
    files, broken = ({}, None) if hub == "without the corpus" else (HUB, "/api/")
    repo, broken = (f"{REPO}s", None) if hub == "misspelt" else (REPO, broken)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        local_hub.serve(repo, files, broken) as (answering, _),
    ):
        addresses = {"silent": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        endpoint = hub if hub.startswith("http") else addresses.get(hub, answering)
        local_hub.ask(monkeypatch, endpoint, tmp_path, offline=hub == "offline")
        with pytest.raises(UserError, match=reason) as caught:
            load(None, "train")
    for way in ("(1) run once with network", "data.corpus.path=", "HF_HOME"):
        assert way in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 10
