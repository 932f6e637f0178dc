"""What is read is data: not executed, not unpacked without end, not fetched by surprise."""

import ast
import gzip
import io
import socket
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, tiny_args
from fuzz_inputs import packed

import inference
import test as test_script
from configs.load import load_config
from configs.schema import DataConfig, Iwslt2017, ParallelFiles
from data.corpora import iwslt2017, text
from data.corpora.build import build_corpus
from training.run import train
from utils import lines as text_lines
from utils.errors import ConfigError, UserError
from utils.lines import read_lines

SOURCES = [
    path
    for folder in ("", *(f"{path.parent.name}/**/" for path in ROOT.glob("*/__init__.py")))
    for path in sorted(ROOT.glob(f"{folder}*.py"))
]
SERIALIZERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal"}
SERIALIZERS |= {"shelve", "yaml"}
EXECUTE = {"eval", "exec", "compile", "__import__", "os.system", "os.popen"}
EXECUTE |= {"runpy.run_path", "runpy.run_module"}
STARTS = "subprocess.", "os.exec", "os.spawn", "os.posix_spawn"  # another program
SAFE = {"weights_only": True, "allow_pickle": False, "trust_remote_code": False, "shell": False}


def test_no_file_is_ever_unpickled_and_no_text_executed() -> None:
    executed, loads = [], []
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            where = f"{name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & SERIALIZERS, where
            elif isinstance(node, ast.ImportFrom):
                assert str(node.module).split(".")[0] not in SERIALIZERS, where
            elif isinstance(node, ast.Call):
                function = ast.unparse(node.func)
                given = {each.arg: each.value for each in node.keywords if each.arg in SAFE}
                for keyword, value in given.items():
                    assert isinstance(value, ast.Constant), where
                    assert value.value is SAFE[str(keyword)], where
                if function == "torch.load":
                    loads.append(name)
                    assert "weights_only" in given, where
                if function in EXECUTE or function.startswith(STARTS):
                    executed.append((name, function))
    assert set(loads) == {f"checkpoints/{name}.py" for name in ("content", "marian", "run")}
    # A config file is code; nothing else is. Other programs are git, our own scripts, and peers.
    programs = {name for name, function in executed if function.startswith("subprocess.")}
    assert programs == {
        *("utils/machine.py", "experiments/trials.py"),
        *(f"benchmarks/bench_{name}.py" for name in ("data", "serve")),
    }
    others = [each for each in executed if each[0] not in programs]
    assert others == [("configs/load.py", "runpy.run_path")]


def test_the_readme_says_that_a_config_file_is_executed() -> None:
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert "A config file is Python code and is executed" in readme


@pytest.mark.parametrize("lang", ["", "../en", "en/x", "e\0n", "e n"])
def test_a_language_that_would_lead_a_file_astray_is_refused(lang: str) -> None:
    with pytest.raises(ConfigError, match="tgt_lang"):
        DataConfig(corpus=ParallelFiles(), tgt_lang=lang)


# -------------------------------------------------------------------------------------- without end


def test_a_gz_that_unpacks_without_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "ALWAYS_ALLOWED", 1 << 20)
    corpus = build_corpus(DataConfig(corpus=ParallelFiles(root=str(tmp_path))))
    for lang in ("fr", "en"):
        (tmp_path / f"train.{lang}.gz").write_bytes(gzip.compress(b"mot\n" * 300_000))
    said = r"train\.fr\.gz: more than 100 times its size once unpacked, .*gunzip"
    with pytest.raises(UserError, match=said):
        corpus.load("train")
    for lang in ("fr", "en"):
        (tmp_path / f"train.{lang}.gz").write_bytes(gzip.compress(b"mot\n" * 200_000))
    assert len(corpus.load("train")) == 200_000
    monkeypatch.setattr(text, "ALWAYS_ALLOWED", 1)
    (tmp_path / "train.fr.gz").write_bytes(gzip.compress(b"mot\n"))
    assert text.read_packed(tmp_path / "train.fr.gz") == b"mot\n"


@pytest.mark.parametrize("suffix", [".zip", ".tgz"])
def test_an_archive_that_unpacks_without_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    path = tmp_path / f"fr-en{suffix}"
    members = [("train.tags.fr-en.fr", bytes(1 << 22)), ("train.tags.fr-en.en", b"one")]
    path.write_bytes(packed(suffix, members))
    assert path.stat().st_size < 20_000
    corpus = build_corpus(DataConfig(corpus=Iwslt2017(path=str(path))))
    with monkeypatch.context() as patch:
        patch.setattr(iwslt2017, "MAX_FILE", 1 << 20)
        with pytest.raises(UserError, match="more than 1 MiB once unpacked"):
            corpus.load("train")
    if suffix == ".tgz":  # a zip has its table of contents in one place, a tar all along
        monkeypatch.setattr(text, "ALWAYS_ALLOWED", 1 << 20)
        with pytest.raises(UserError, match="more than 100 times its size once unpacked"):
            corpus.load("train")


def test_a_line_without_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_lines, "MAX_LINE", 10)
    lines = [b"Oui.\n", b"x" * 10 + b"\n", b"Non."]
    assert list(read_lines(io.BytesIO(b"".join(lines)), "f")) == ["Oui.", "xxxxxxxxxx", "Non."]
    lines[1] = b"x" * 11 + b"\n"
    with pytest.raises(UserError, match="f, line 2: more than 10 bytes"):
        list(read_lines(io.BytesIO(b"".join(lines)), "f"))


# ------------------------------------------------------------------------------------------ network


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What asked for the network: whatever does is refused."""
    asked: list[str] = []

    def refused(*args: object, **kwargs: object) -> None:
        asked.append(repr(args))
        raise OSError("no network here")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refused)
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        monkeypatch.setattr(socket, name, refused)
    return asked


def test_the_demo_never_asks_for_the_network(
    tmp_path: Path, no_network: list[str], in_process: Any
) -> None:
    short = ("train.max_steps=2", "data.corpus.n_train=80", "evaluate.bootstrap_samples=2")
    short += ("evaluate.bleu_every_epochs=0", "decode.max_len=5")
    config = load_config(ROOT / "configs/demo.py", tiny_args(tmp_path, *short)[1::2])
    run = train(config).run.path
    for main, args in (
        (inference.main, ["--src_text", "Le chat dort."]),
        (test_script.main, ["--limit", "3"]),
    ):
        ended = in_process(main)("--model_path", run, *args)
        assert ended.code == 0, ended
    assert no_network == []


def test_a_corpus_in_the_hubs_cache_is_read_without_telling_anyone(
    tmp_path: Path, no_network: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"translation": {"fr": "Un", "en": "One"}}]
    for split in ("train", "validation", "test"):
        (tmp_path / f"iwslt2017-fr-en/{split}").mkdir(parents=True)
        pq.write_table(
            pa.Table.from_pylist(rows), tmp_path / f"iwslt2017-fr-en/{split}/0000.parquet"
        )
    cached = mock.Mock(return_value=str(tmp_path))
    monkeypatch.setattr("huggingface_hub.snapshot_download", cached)
    corpus = build_corpus(DataConfig(corpus=Iwslt2017(check_sizes=False)))
    assert corpus.load("train").src == ("Un",)
    assert no_network == []
    assert all(call.kwargs["local_files_only"] for call in cached.call_args_list)
