"""`python benchmarks/bench_data.py`: padding, starts, the memory of a part, reports."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run_script
from made_runs import Scripts, copy_run

import inference
import test as test_script
import visualize
from benchmarks import bench_data, common
from benchmarks.bench_data import PARTS, Script, Task, first_output, in_own_process, measure, orders
from configs.load import load_config
from configs.serialize import apply_overrides
from data.batching import collate
from data.corpora.build import build_corpus
from utils.errors import UserError

SMALL = (
    "tokenizer.vocab_size=300",
    "data.corpus.n_validation=10",
    "data.corpus.n_test=10",
    "data.batch_size=256",
)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """With the tokenizer made."""
    config = apply_overrides(load_config("configs/demo.py"), [*SMALL, "data.corpus.n_train=200"])
    text = build_corpus(config.data).load("train")
    task = Task(config, text, tmp_path_factory.mktemp("data"), rounds=1)
    measure(bench_data.make_tokenizer, task)
    return task


# ------------------------------------------------------------------------------------------ padding


@pytest.mark.parametrize("batch_by", ["tokens", "sentences"])
def test_the_share_of_padding_is_that_of_a_direct_count_in_batches_of_one_budget(
    task: Task, batch_by: str
) -> None:
    size = {"tokens": 256, "sentences": 16}[batch_by]
    data = dataclasses.replace(task.config.data, batch_by=batch_by, batch_size=size)
    config = dataclasses.replace(task.config, data=data)
    split, tokenizer = task.split(), task.tokenizer()
    shares = {}
    rows = bench_data.compare_padding(dataclasses.replace(task, config=config))
    for (name, recipe), row in zip(orders(split, config).items(), rows, strict=True):
        batches = recipe()
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(split))), name
        padding = positions = 0
        for rows in batches:
            batch = collate(split, rows.tolist(), pad_id=tokenizer.pad_id, bos_id=tokenizer.bos_id)
            longest = max(batch.src.shape[1], batch.tgt_out.shape[1])
            assert len(rows) * (longest if batch_by == "tokens" else 1) <= data.batch_size, name
            for ids in (batch.src, batch.tgt_out):
                padding += int((ids == tokenizer.pad_id).sum())
                positions += ids.numel()
        assert (row["batches"], row["positions"]) == (len(batches), positions), name
        assert row["padding"] == pytest.approx(padding / positions), name
        shares[name] = padding / positions
    ours, *others, random = shares.values()
    assert list(shares) == ["ours", "by source, then target", "by source alone", "random"]
    assert ours <= others[0] <= others[1] < random


# -------------------------------------------------------------------------------------------- parts


def grow_by_eighty_mb(task: Task) -> Any:
    return lambda number: np.ones(10_000_000), os.getpid()


@pytest.mark.slow
def test_a_part_has_a_process_and_a_memory_of_its_own(task: Task) -> None:
    held = np.ones(40_000_000)  # 320 MB of this process, none of them in the part's
    row = in_own_process(measure, grow_by_eighty_mb, task)
    assert row["sentences"] != os.getpid()
    assert row["growth_mb"] == pytest.approx(80, abs=12)
    assert row["peak_mb"] - row["growth_mb"] < held.nbytes / 1e6 + 130


def test_the_cache_is_built_in_every_round_and_then_opened(task: Task) -> None:
    measure(bench_data.build_cache, dataclasses.replace(task, rounds=2))
    entries = [path for path in task.folder.glob("cache_*/*") if path.is_dir()]
    assert {path.parent.name for path in entries} == {"cache_-1", "cache_0", "cache_1"}
    [entry] = [path for path in entries if path.parent.name == "cache_0"]
    before = [path.stat().st_mtime_ns for path in entry.iterdir()]
    assert measure(bench_data.open_cache, task)["sentences"] == 400
    assert [path.stat().st_mtime_ns for path in entry.iterdir()] == before


@pytest.mark.slow
def test_the_script_writes_both_tables_of_the_data(tmp_path: Path) -> None:
    settings = [part for text in SMALL for part in ("--set", text)]
    done = run_script(
        *"benchmarks/bench_data.py --only data --sentences 150 --rounds 2".split(),
        *(*settings, "--output_dir", tmp_path),
    )
    assert done.returncode == 0, done.stderr
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"bench_data.md", "bench_data.json"}  # the work is cleared
    record = json.loads((tmp_path / "bench_data.json").read_text("utf-8"))
    data, padding = record["sections"]
    assert data["pairs"] == 150
    assert data["cache_bytes"] > 0
    assert [row["part"] for row in data["rows"]] == list(PARTS)
    for row in data["rows"]:
        assert len(row["seconds"]) == 2
        assert all(0 < s < 60 for s in row["seconds"])
        assert row["sentences"] == 300
        assert 0 <= row["growth_mb"] < row["peak_mb"] < 4000
        workers = row["part"] == "collating, num_workers=2"
        assert 0 < row["worker_peak_mb"] < 4000 if workers else row["worker_peak_mb"] == 0
    assert all(0 < row["padding"] < 1 and row["positions"] > 0 for row in padding["rows"])
    text = (tmp_path / "bench_data.md").read_text("utf-8")
    assert all(f"| {part} |" in text for part in PARTS)


# ----------------------------------------------------------------------------------------- start-up


def command(code: str, seen: str | tuple[Path, str]) -> Script:
    return Script("made up", ("-c", code), "first word", seen)


def test_a_start_ends_with_the_first_line_that_counts() -> None:
    code = "import time; print('not yet'); time.sleep(0.3); print('word'); time.sleep(60)"
    began = time.perf_counter()
    seconds = first_output(command(code, "^word$"))
    assert 0.3 <= seconds <= time.perf_counter() - began < 30


def test_a_start_ends_when_a_new_file_has_content(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old/log").write_text("from an earlier start")
    code = (
        f"import pathlib, time; new = pathlib.Path({str(tmp_path / 'new')!r}); new.mkdir(); file = "
        "open(new / 'log', 'w'); time.sleep(0.3); file.write('x'); file.flush(); time.sleep(60)"
    )
    seconds = first_output(command(code, (tmp_path, "*/log")))
    assert 0.3 <= seconds < 30


def test_a_script_that_fails_is_named_with_its_last_words() -> None:
    with pytest.raises(UserError, match="made up ended without its first word: ValueError: alas"):
        first_output(command("raise ValueError('alas')", "^word$"))


def test_the_table_has_each_start_beside_that_of_torch() -> None:
    rows = [
        {"script": "import torch", "until": "first line", "seconds": [1.0, 2.0, 1.0]},
        {"script": "inference.py", "until": "first translation", "seconds": [2.0, 4.0, 3.0]},
    ]
    line = bench_data.start_table(rows).splitlines()[-1]
    assert line == "| inference.py | first translation | 3.00 (2.50–3.50) | 2.00 |"


@pytest.fixture
def real(trained_run: Path, tmp_path: Path) -> dict[str, Script]:
    found = bench_data.scripts(copy_run(trained_run, tmp_path), tmp_path / "work", common.CPU, 1)
    return {script.name: script for script in found}


@pytest.mark.slow
def test_training_is_seen_to_begin(real: dict[str, Script], tmp_path: Path) -> None:
    seconds = first_output(real["train.py"])
    assert 0 < seconds < bench_data.LIMIT_S
    [log] = (tmp_path / "work/began").glob("*/logs/metrics.jsonl")
    assert json.loads(log.read_text("utf-8").splitlines()[0])["step"] == 1


@pytest.mark.parametrize(
    "main", [inference.main, test_script.main, visualize.main], ids=lambda main: main.__module__
)
def test_each_script_prints_what_is_waited_for(
    real: dict[str, Script],
    main: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"{main.__module__}.py"
    script = real[name]
    assert script.args[0] == name
    assert isinstance(script.seen, str)
    done = Scripts(main, capsys, monkeypatch)(*script.args[1:])
    assert done.code == 0, done.err
    assert any(re.search(script.seen, line) for line in done.out.splitlines())
