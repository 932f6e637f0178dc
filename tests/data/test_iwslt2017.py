"""IWSLT2017 from small files in the official formats, and from a local server that answers like the
hub.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.schema import DataConfig, Iwslt2017
from data.corpora.base import ParallelText
from data.corpora.build import build_corpus
from utils.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
YEARS = range(2010, 2016)

TRAIN_FR = """<url>http://www.ted.com/talks/1</url>
<keywords>talks, design</keywords>
<title>Jane Doe : L'art &amp; la science</title>
Merci beaucoup , Chris .
C' est  vraiment\u00a0un honneur\u202f!
 Mesdames &amp; messieurs : 3 &lt; 5 .\x20

Cette ligne reste seule .
<reviewer></reviewer>
"""
TRAIN_EN = """<url>http://www.ted.com/talks/1</url>
<keywords>talks, design</keywords>
<title>Jane Doe : Art &amp; science</title>
Thank you so much , Chris .
And it 's truly a great honor!
 Ladies &amp; gentlemen: 3 &lt; 5 .\x20

\x20
<reviewer></reviewer>
"""


def xml(kind: str, lang: str, docs: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A development or test file as the campaign wrote it."""
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        "<mteval>",
        f'<{kind} setid="iwslt2017-x" srclang="french">',
    ]
    for docid, segments in docs:
        lines += [
            f'<doc docid="{docid}" genre="lectures">',
            "<url>http://www.ted.com/talks/x</url>",
        ]
        lines += [f"<title>Titre {lang}</title>", '<talkid id="4">4</talkid>']
        lines += [f'<seg id="{i}"> {segment} </seg>' for i, segment in enumerate(segments, start=1)]
        lines += ["</doc>"]
    return "\n".join([*lines, f"</{kind}>", "</mteval>", ""])


def official_files(pair: str = "fr-en") -> dict[str, str]:
    """All files of the archive of one direction, with two talks a year; segment numbers restart in
    each.
    """
    first, second = pair.split("-")
    text = {
        "fr": ("R&D : été {y}", "Deux\u00a0 fois {y} &amp; plus", "Autre {y}"),
        "en": ("R&D: {y}", "Two {y}", "x {y}"),
    }
    files = {f"train.tags.{pair}.fr": TRAIN_FR, f"train.tags.{pair}.en": TRAIN_EN}
    for name in ("dev2010", *(f"tst{year}" for year in YEARS)):
        for lang, kind in ((first, "srcset"), (second, "refset")):
            a, b, c = (template.format(y=name) for template in text[lang])
            files[f"IWSLT17.TED.{name}.{pair}.{lang}.xml"] = xml(
                kind, lang, [("69", [a, b]), ("129", [c])]
            )
    return files


def write_folder(root: Path, files: dict[str, str], under: str = "fr-en") -> Path:
    (root / under).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / under / name).write_bytes(content.encode())
    return root


def zip_bytes(files: dict[str, Any], under: str = "fr-en") -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(f"{under}/{name}", content)
    return raw.getvalue()


def tgz_bytes(files: dict[str, bytes | str], under: str) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{under}/{name}")
            data = content.encode() if isinstance(content, str) else content
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return raw.getvalue()


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
    text = load(write_folder(tmp_path, official_files()), "train")
    assert pairs(text) == [
        ("Merci beaucoup , Chris .", "Thank you so much , Chris ."),
        ("C' est vraiment un honneur !", "And it 's truly a great honor!"),
        ("Mesdames & messieurs : 3 < 5 .", "Ladies & gentlemen: 3 < 5 ."),
    ]
    assert text.skipped == {"empty": 2}


def test_segments_restart_in_each_talk_and_test_years_come_in_order(tmp_path: Path) -> None:
    root = write_folder(tmp_path, official_files())
    assert pairs(load(root, "validation")) == [
        ("R&D : été dev2010", "R&D: dev2010"),
        ("Deux fois dev2010 & plus", "Two dev2010"),
        ("Autre dev2010", "x dev2010"),
    ]
    test = load(root, "test")
    assert len(test) == 18
    assert [line.split()[-1] for line in test.tgt[::3]] == [f"tst{year}" for year in YEARS]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_other_direction_is_the_same_text(tmp_path: Path, split: str) -> None:
    root = write_folder(tmp_path, official_files())
    there, back = load(root, split), load(root, split, direction="en-fr")
    assert (there.src, there.tgt) == (back.tgt, back.src)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_every_wrapping_gives_the_same_text(tmp_path: Path, split: str) -> None:
    expected = pairs(
        load(write_folder(tmp_path / "plain", official_files(), under="some/where"), split)
    )
    tmp = tmp_path / "packed"
    tmp.mkdir()
    (tmp / "a.zip").write_bytes(zip_bytes(official_files()))
    (tmp / "b.tgz").write_bytes(tgz_bytes(official_files(), "fr-en"))
    nested = {"fr-en.tgz": tgz_bytes(official_files(), "fr-en"), "de-en.tgz": b"of no interest"}
    (tmp / "c.tar.gz").write_bytes(tgz_bytes(nested, "2017-01-trnted/texts/fr/en"))
    (tmp / "d.zip").write_bytes(
        zip_bytes({"fr-en.zip": zip_bytes(official_files())}, under="texts")
    )
    (tmp / "e.zip").write_bytes(zip_bytes(official_files("en-fr"), under="en-fr"))
    for path in sorted(tmp.iterdir()):
        assert pairs(load(path, split)) == expected, path.name
    (tmp / "folder").mkdir()
    (tmp / "folder" / "fr-en.zip").write_bytes((tmp / "a.zip").read_bytes())
    assert pairs(load(tmp / "folder", split)) == expected


def test_nothing_is_unpacked_to_the_disk(tmp_path: Path) -> None:
    evil = official_files() | {"../../outside.txt": "escaped"}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.zip").write_bytes(zip_bytes(evil))
    load(tmp_path / "in" / "a.zip", "train")
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "a.zip"]


def test_sides_in_another_order_are_paired_by_number(tmp_path: Path) -> None:
    files = official_files()
    name = "IWSLT17.TED.dev2010.fr-en.en.xml"
    files[name] = xml("refset", "en", [("129", ["x"]), ("69", ["R&D", "Two"])])
    assert pairs(load(write_folder(tmp_path, files), "validation")) == [
        ("R&D : été dev2010", "R&D"),
        ("Deux fois dev2010 & plus", "Two"),
        ("Autre dev2010", "x"),
    ]


@pytest.mark.parametrize(
    ("docs", "message"),
    [
        (
            [("69", ["a"]), ("129", ["c"])],
            r"fr\.xml: segment 2 of document 69 has no partner in .*en\.xml",
        ),
        (
            [("69", ["a", "b"]), ("129", ["c", "d"])],
            r"en\.xml: segment 2 of document 129 has no partner",
        ),
        ([("69", ["a", "b"]), ("69", ["c"])], r"segment 1 comes twice in document 69"),
    ],
)
def test_segments_without_partner_are_named(tmp_path: Path, docs, message: str) -> None:
    files = official_files() | {"IWSLT17.TED.dev2010.fr-en.en.xml": xml("refset", "en", docs)}
    with pytest.raises(UserError, match=message):
        load(write_folder(tmp_path, files), "validation")


def test_a_segment_that_does_not_end_is_named(tmp_path: Path) -> None:
    name = "IWSLT17.TED.dev2010.fr-en.fr.xml"
    content = official_files()[name]
    for cut in (content[: content.rindex("</seg>")], content.replace("</seg>", "", 1)):
        with pytest.raises(UserError, match=r"fr\.xml: segment 1 of document \d+ is not closed"):
            load(write_folder(tmp_path, official_files() | {name: cut}), "validation")


def test_entity_bombs_and_outside_files_are_plain_text(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    bomb = (
        '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;"><!ENTITY f SYSTEM "file://'
        + str(tmp_path)
    )
    bomb += '/secret">]>\n' + xml("srcset", "fr", [("1", ["&b; &f;", "I <3 XML & co"])])
    files = official_files() | {
        "IWSLT17.TED.dev2010.fr-en.fr.xml": bomb,
        "IWSLT17.TED.dev2010.fr-en.en.xml": xml("refset", "en", [("1", ["one", "two"])]),
    }
    assert load(write_folder(tmp_path / "in", files), "validation").src == [
        "&b; &f;",
        "I <3 XML & co",
    ]


def test_a_stray_line_separator_keeps_train_parallel(tmp_path: Path) -> None:
    files = official_files()
    files["train.tags.fr-en.fr"] = TRAIN_FR.replace(
        "Merci beaucoup", "Merci\u2028beaucoup"
    ).replace("\n", "\r\n")
    assert pairs(load(write_folder(tmp_path, files), "train"))[:2] == [
        ("Merci beaucoup , Chris .", "Thank you so much , Chris ."),
        ("C' est vraiment un honneur !", "And it 's truly a great honor!"),
    ]


def test_uneven_train_files_name_both_counts(tmp_path: Path) -> None:
    files = official_files() | {"train.tags.fr-en.en": TRAIN_EN + "one more\n"}
    with pytest.raises(
        UserError, match=r"train\.tags\.fr-en\.fr has 9 lines and .*train\.tags\.fr-en\.en has 10"
    ):
        load(write_folder(tmp_path, files), "train")


def test_bad_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    root = write_folder(tmp_path, official_files())
    (root / "fr-en" / "train.tags.fr-en.fr").write_bytes(TRAIN_FR.encode("latin-1", "replace"))
    with pytest.raises(UserError, match=r"train\.tags\.fr-en\.fr, line 5: not UTF-8"):
        load(root, "train")


def test_a_missing_side_or_year_is_named(tmp_path: Path, caplog) -> None:
    files = official_files()
    del files["IWSLT17.TED.tst2012.fr-en.en.xml"]
    with pytest.raises(
        UserError, match=r"test are not complete; missing: IWSLT17\.TED\.tst2012\.fr-en\.en\.xml"
    ):
        load(write_folder(tmp_path / "a", files), "test")
    del files["IWSLT17.TED.tst2012.fr-en.fr.xml"]
    root = write_folder(tmp_path / "b", files)
    with pytest.raises(UserError, match=r"missing: IWSLT17\.TED\.tst2012\.fr-en\.fr\.xml, "):
        load(root, "test", check=True)
    assert len(load(root, "test")) == 15
    assert "tst2012" in caplog.text


def test_a_path_without_the_corpus_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere': no such folder or archive"):
        load(tmp_path / "nowhere", "train")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match=r"train\.tags\.fr-en\.\{fr,en\}.*found: notes\.txt"):
        load(tmp_path, "train")
    with pytest.raises(UserError, match=r"a folder, or an archive"):
        load(tmp_path / "notes.txt", "train")
    with pytest.raises(UserError, match=r"no split 'dev': its splits are train, validation, test"):
        load(tmp_path, "dev")


@pytest.mark.parametrize("name", ["a.zip", "a.tgz"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "not an archive"])
def test_a_damaged_archive_is_one_line(tmp_path: Path, name: str, damage: str) -> None:
    whole = zip_bytes(official_files()) if name == "a.zip" else tgz_bytes(official_files(), "fr-en")
    flipped = whole[:60] + bytes(byte ^ 0xFF for byte in whole[60:200]) + whole[200:]
    content = {"cut": whole[: len(whole) // 2], "flipped": flipped, "not an archive": b"hello"}[
        damage
    ]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}: damaged or unreadable") as caught:
        load(tmp_path / name, "train")
    assert "\n" not in str(caught.value)


def test_official_sizes_are_asserted(tmp_path: Path) -> None:
    root = write_folder(tmp_path, official_files())
    for split, found, official in (
        ("train", "5", "232,825"),
        ("validation", "3", "890"),
        ("test", "18", "8,597"),
    ):
        with pytest.raises(
            UserError,
            match=rf"{split} has {found} pairs in .* not the official {official}.*check_sizes",
        ):
            load(root, split, check=True)


# ------------------------------------------------------------------------------------------ parquet


ROWS = {
    "train": [
        ("L'art &amp; la science\u00a0!", "Art &amp; science!"),
        ("", "alone"),
        ("Deux", "Two"),
    ],
    "validation": [("Un", "One")],
    "test": [("Trois", "Three"), (None, "null")],
}


def parquet_bytes(rows: Sequence[tuple[str | None, str | None]]) -> bytes:
    raw = io.BytesIO()
    pq.write_table(pa.table({"translation": [{"fr": fr, "en": en} for fr, en in rows]}), raw)
    return raw.getvalue()


def hub_files(config: str = "iwslt2017-fr-en") -> dict[str, bytes]:
    return {f"{config}/{split}/0000.parquet": parquet_bytes(rows) for split, rows in ROWS.items()}


def write_parquet(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def check_rows(root: Path) -> None:
    train = load(root, "train")
    assert pairs(train) == [("L'art & la science !", "Art & science!"), ("Deux", "Two")]
    assert train.skipped == {"empty": 1}
    assert pairs(load(root, "test")) == [("Trois", "Three")]
    assert pairs(load(root, "validation", direction="en-fr")) == [("One", "Un")]


def test_a_folder_in_the_layout_of_the_hub(tmp_path: Path) -> None:
    root = write_parquet(
        tmp_path, hub_files() | {"iwslt2017-de-en/train/0000.parquet": parquet_bytes([("x", "y")])}
    )
    check_rows(root)
    check_rows(root / "iwslt2017-fr-en")
    with pytest.raises(UserError, match=r"train has 3 pairs in .* not the official 232,825"):
        load(root, "train", check=True)


def test_a_folder_in_the_layout_of_datasets_with_shards_in_order(tmp_path: Path) -> None:
    files = {
        f"data/{split}-00000-of-00001.parquet": parquet_bytes(rows) for split, rows in ROWS.items()
    }
    del files["data/train-00000-of-00001.parquet"]
    for i, row in enumerate(ROWS["train"]):
        files[f"data/train-{i:05}-of-00003.parquet"] = parquet_bytes([row])
    check_rows(write_parquet(tmp_path, files))


def test_another_pair_of_languages_is_never_taken_for_this_one(tmp_path: Path) -> None:
    write_parquet(tmp_path, hub_files("iwslt2017-de-en"))
    with pytest.raises(UserError, match="holds iwslt2017-de-en and not iwslt2017-fr-en"):
        load(tmp_path, "train")


def test_parquet_of_other_columns_or_damaged_is_named(tmp_path: Path) -> None:
    raw = io.BytesIO()
    pq.write_table(pa.table({"translation": [{"de": "x", "en": "y"}]}), raw)
    for content in (raw.getvalue(), parquet_bytes(ROWS["train"])[:-20], b""):
        write_parquet(tmp_path, {"train/0000.parquet": content})
        with pytest.raises(
            UserError, match=r"train/0000\.parquet: not a parquet file with translation\.fr"
        ):
            load(tmp_path, "train")


# ------------------------------------------------------------------------------------------ the hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub(files: dict[str, bytes], broken: str = "") -> Iterator[tuple[str, list[str]]]:
    """A server on this machine that answers like the hub; yields its address and the list of
    requests it got.
    """
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def send(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_GET(self) -> None:
            path, _, _ = self.path.partition("?")
            requests.append(f"{self.command} {path}")
            api = "/api/datasets/IWSLT/iwslt2017"
            resolve = f"/datasets/IWSLT/iwslt2017/resolve/{COMMIT}/"
            if broken and broken in path:
                self.send(403, b"")
            elif path in (
                f"{api}/revision/refs%2Fconvert%2Fparquet",
                f"{api}/revision/refs/convert/parquet",
            ):
                siblings = [{"rfilename": name} for name in files]
                answer = {
                    "id": "IWSLT/iwslt2017",
                    "sha": COMMIT,
                    "siblings": siblings,
                    "private": False,
                    "tags": [],
                }
                self.send(200, json.dumps(answer).encode(), Content_Type="application/json")
            elif path == f"{api}/tree/{COMMIT}":
                tree = [
                    {
                        "type": "file",
                        "path": name,
                        "size": len(raw),
                        "oid": hashlib.sha1(raw).hexdigest(),
                    }
                    for name, raw in files.items()
                ]
                self.send(200, json.dumps(tree).encode(), Content_Type="application/json")
            elif path.startswith(resolve) and path.removeprefix(resolve) in files:
                raw = files[path.removeprefix(resolve)]
                self.send(200, raw, ETag=f'"{hashlib.sha1(raw).hexdigest()}"', X_Repo_Commit=COMMIT)
            else:
                self.send(404, b"", X_Error_Code="RepoNotFound")

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(endpoint: str, home: Path, **environment: str) -> dict[str, Any]:
    """Load all splits from the hub in a process of its own (the client reads its environment when
    imported).
    """
    code = """
import json, time
import huggingface_hub
from tests.data.test_iwslt2017 import UserError, load, pairs
start = time.monotonic()
try:
    answer = {split: pairs(load(None, split)) for split in ("train", "validation", "test")}
except UserError as error:
    answer = {"error": str(error)}
print(json.dumps(answer | {"seconds": time.monotonic() - start}))
"""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(("HF_", "HUGGINGFACE"))
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=inherited
        | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "log": done.stderr}


EXPECTED = {
    "train": [["L'art & la science !", "Art & science!"], ["Deux", "Two"]],
    "validation": [["Un", "One"]],
    "test": [["Trois", "Three"]],
}


def test_from_the_hub_once_and_then_from_its_cache_without_it(tmp_path: Path) -> None:
    with hub(hub_files() | {"iwslt2017-de-en/train/0000.parquet": b"not wanted"}) as (
        endpoint,
        requests,
    ):
        answer = ask(endpoint, tmp_path)
        assert {split: answer[split] for split in EXPECTED} == EXPECTED
        assert answer["log"].count("fetching IWSLT/iwslt2017 (iwslt2017-fr-en)") == 1
        fetched = [path for path in requests if path.startswith("GET") and "/resolve/" in path]
        assert len(fetched) == 3
        assert not any("de-en" in path for path in requests)
    again = ask(endpoint, tmp_path)  # the server is gone
    assert {split: again[split] for split in EXPECTED} == EXPECTED
    assert "fetching" not in again["log"]


def test_a_download_that_was_cut_off_is_taken_up_again(tmp_path: Path) -> None:
    with hub(
        hub_files(),
        broken="/resolve/0123456789abcdef0123456789abcdef01234567/iwslt2017-fr-en/test/",
    ) as (broken, _):
        assert "cannot be fetched" in ask(broken, tmp_path)["error"]
    shutil.rmtree(
        tmp_path / "hub" / "datasets--IWSLT--iwslt2017" / "trees"
    )  # as in caches of older clients
    with hub(hub_files()) as (endpoint, _):
        answer = ask(endpoint, tmp_path)
        assert {split: answer[split] for split in EXPECTED} == EXPECTED


def three_ways(answer: dict[str, Any]) -> bool:
    error = answer["error"]
    return (
        all(way in error for way in ("(1) run once with network", "data.corpus.path=", "HF_HOME"))
        and "\n" not in error
        and answer["seconds"] < 5
    )


def test_without_network_or_cache_the_three_ways_within_seconds(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert three_ways(ask(closed, tmp_path))
    assert three_ways(ask(closed, tmp_path, HF_HUB_OFFLINE="1"))


def test_a_hub_that_never_answers_is_given_up_within_seconds(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert three_ways(ask(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path))


def test_a_hub_without_the_corpus_is_one_line(tmp_path: Path) -> None:
    with hub({}, broken="/api/") as (endpoint, _):
        assert three_ways(ask(endpoint, tmp_path))
