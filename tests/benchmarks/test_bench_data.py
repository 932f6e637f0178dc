"""`python benchmarks/bench_data.py`: padding, starts, the memory of a part, reports."""

import json
import re
import time
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import copy_run

import inference
import test as test_script
import visualize
from benchmarks import bench_data, common
from benchmarks.bench_data import Script, data_parts, first_output, orders
from checkpoints.run import Run
from configs.load import load_config
from configs.schema import Config
from configs.serialize import apply_overrides
from data.batching import collate
from data.cache import TokenizedSplit
from data.corpora.base import ParallelText
from data.corpora.build import build_corpus
from tokenizer.subword import SubwordTokenizer
from utils.errors import UserError

SMALL = "tokenizer.vocab_size=300 data.corpus.n_validation=10 data.corpus.n_test=10".split()
SMALL += ["data.batch_size=256"]
PARTS = ["making the tokenizer", "tokenising", "token cache, built", "token cache, opened"]
PARTS += ["forming batches"]


@pytest.fixture(scope="module")
def config() -> Config:
    return apply_overrides(load_config("configs/demo.py"), [*SMALL, "data.corpus.n_train=200"])


@pytest.fixture(scope="module")
def text(config: Config) -> ParallelText:
    return build_corpus(config.data).load("train")


@pytest.fixture(scope="module")
def split(config: Config, text: ParallelText, tmp_path_factory: Any) -> TokenizedSplit:
    return data_parts(config, text, tmp_path_factory.mktemp("data"))[1]


# ------------------------------------------------------------------------------------------ padding


@pytest.mark.parametrize("batch_by", ["tokens", "sentences"])
def test_the_share_of_padding_is_that_of_a_direct_count_in_batches_of_one_budget(
    config: Config, split: TokenizedSplit, batch_by: str
) -> None:
    size = {"tokens": 256, "sentences": 16}[batch_by]
    changes = [f"data.batch_by={batch_by}", f"data.batch_size={size}"]
    config = apply_overrides(config, changes)
    shares = {}
    rows = bench_data.compare_padding(split, config)
    for (name, batches), row in zip(orders(split, config).items(), rows, strict=True):
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(split))), name
        padding = positions = 0
        for rows in batches:
            batch = collate(split, rows.tolist(), pad_id=-1, bos_id=-2)
            longest = max(batch.src.shape[1], batch.tgt_out.shape[1])
            assert len(rows) * (longest if batch_by == "tokens" else 1) <= size, name
            for ids in (batch.src, batch.tgt_out):
                padding += int((ids == -1).sum())
                positions += ids.numel()
        assert (row["batches"], row["positions"]) == (len(batches), positions), name
        assert row["padding"] == pytest.approx(padding / positions), name
        shares[name] = padding / positions
    ours, *others, random = shares.values()
    assert list(shares) == ["ours", "by source, then target", "by source alone", "random"]
    assert ours <= others[0] <= others[1] < random


# -------------------------------------------------------------------------------------------- parts


def test_the_text_is_cut_and_the_cache_built_in_every_round_and_then_opened(
    config: Config, text: ParallelText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, encode = Counter[str](), SubwordTokenizer._encode

    def noted(tokenizer: SubwordTokenizer, words: str) -> list[int]:
        cut[words] += 1
        return encode(tokenizer, words)

    monkeypatch.setattr(SubwordTokenizer, "_encode", noted)
    parts, split = data_parts(config, text, tmp_path)
    assert list(parts) == PARTS
    for number in (-1, 0, 1):
        parts["tokenising"](number)
        parts["token cache, built"](number)
    assert min(cut.values()) == 7  # and not in the first round alone
    entries = {path.parent.name: path for path in tmp_path.glob("cache_*/*") if path.is_dir()}
    assert set(entries) == {"cache_-1", "cache_0", "cache_1", "cache_opened"}
    before = [path.stat().st_mtime_ns for path in entries["cache_opened"].iterdir()]
    opened: Any = parts["token cache, opened"](0)
    assert [path.stat().st_mtime_ns for path in entries["cache_opened"].iterdir()] == before
    assert np.array_equal(opened.src_ids, split.src_ids)


def test_the_script_writes_both_tables_of_the_data(
    tmp_path: Path, in_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "REST_S", 0)
    settings = [part for text in SMALL for part in ("--set", text)]
    done = in_process(bench_data.main)(
        *"--only data --sentences 150 --rounds 2".split(), *settings, "--output_dir", tmp_path
    )
    assert done.code == 0, done.err
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"bench_data.md", "bench_data.json"}  # the work is cleared
    record = json.loads((tmp_path / "bench_data.json").read_text("utf-8"))
    data, padding = record["sections"]
    assert data["pairs"] == 150
    assert [row["part"] for row in data["rows"]] == PARTS
    for row in data["rows"]:
        assert len(row["seconds"]) == 2
        assert all(0 < s < 60 for s in row["seconds"])
        assert row["sentences"] == 300
    assert all(0 < row["padding"] < 1 and row["positions"] > 0 for row in padding["rows"])
    text = (tmp_path / "bench_data.md").read_text("utf-8")
    assert all(f"| {part} |" in text for part in PARTS)


# ----------------------------------------------------------------------------------------- start-up


def command(code: str) -> Script:
    return Script(("-c", code), "first word", "^word$")


def test_a_start_ends_with_the_first_line_that_counts() -> None:
    code = "import time; print('not yet'); time.sleep(0.3); print('word'); time.sleep(60)"
    began = time.perf_counter()
    seconds = first_output(command(code))
    assert 0.3 <= seconds <= time.perf_counter() - began < 30


def test_a_script_that_fails_is_named_with_its_last_words() -> None:
    with pytest.raises(UserError, match="-c ended without its first word: ValueError: alas"):
        first_output(command("raise ValueError('alas')"))


def test_the_table_has_each_start_beside_that_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = {"import torch": [9.0, 1.0, 2.0, 1.0], "inference.py": [9.0, 2.0, 4.0, 3.0]}
    found = {name: Script((name,), "first line", "") for name in taken}
    monkeypatch.setattr(bench_data, "first_output", lambda script: taken[script.args[0]].pop(0))
    report = common.Report("bench_data", "", Namespace(output_dir=tmp_path), common.CPU)
    bench_data.report_start(report, found, starts=3)
    line = report.text.splitlines()[-1]  # without the round that warms up
    assert line == "| inference.py | first line | 3.00 (2.50–3.50) | 2.00 |"


@pytest.fixture
def real(trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Script]:
    for name, value in (("data.corpus.n_train", 200), ("train.log_attention", False)):
        monkeypatch.setitem(bench_data.TINY, name, value)
    copy_run(trained_run, tmp_path / "tiny")
    return bench_data.scripts(tmp_path, "cpu", 1)


def test_training_makes_a_run_before_it_is_ended(real: dict[str, Script], tmp_path: Path) -> None:
    assert first_output(real["train.py"]) > 0
    assert Run(max((tmp_path / "tiny").iterdir())).best() is not None


@pytest.mark.parametrize(
    "main", [inference.main, test_script.main, visualize.main], ids=lambda main: main.__module__
)
def test_each_script_prints_what_is_waited_for(
    real: dict[str, Script], main: Any, in_process: Any
) -> None:
    name = f"{main.__module__}.py"
    [script] = [script for script in real.values() if script.args[0] == name]
    done = in_process(main)(*script.args[1:])
    assert done.code == 0, done.err
    assert any(re.search(script.pattern, line) for line in done.out.splitlines())


def test_the_start_up_table_is_of_the_demo_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--only start times"):
        bench_data.main(["--only", "start", "--position", "t5", "--output_dir", str(tmp_path)])
