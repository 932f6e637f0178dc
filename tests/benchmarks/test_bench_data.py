"""`python benchmarks/bench_data.py`: padding counted right, starts seen as they happen, memory of a
part, reports.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import run_script
from made_runs import Scripts, copy_run

import inference
import test as test_script
import visualize
from benchmarks import bench_data
from benchmarks.bench_data import Script, Task, first_output, in_own_process, orders
from configs.load import load_config
from configs.schema import Config
from configs.serialize import apply_overrides
from data.batching import collate
from data.corpora.build import build_corpus
from utils.errors import UserError

CPU = torch.device("cpu")
SMALL = (
    "tokenizer.vocab_size=300",
    "data.corpus.n_validation=10",
    "data.corpus.n_test=10",
    "data.batch_size=256",
)
PARTS = [
    *(
        "making the tokenizer",
        "tokenising",
        "token cache, built",
        "token cache, opened",
        "forming batches",
    ),
    *("collating, num_workers=0", "collating, num_workers=2"),
]


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Scripts:
    return Scripts(bench_data.main, capsys, monkeypatch)


@pytest.fixture(scope="module")
def config() -> Config:
    return apply_overrides(load_config("configs/demo.py"), [*SMALL, "data.corpus.n_train=200"])


@pytest.fixture(scope="module")
def task(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Task:
    """With the tokenizer made."""
    task = Task(
        config, build_corpus(config.data).load("train"), tmp_path_factory.mktemp("data"), rounds=1
    )
    bench_data.make_tokenizer(task)
    return task


# ------------------------------------------------------------------------------------------ padding


@pytest.mark.parametrize("batch_by", ["tokens", "sentences"])
def test_the_share_of_padding_is_that_of_a_direct_count_in_batches_of_one_budget(
    task: Task, batch_by: str
) -> None:
    data = dataclasses.replace(
        task.config.data, batch_by=batch_by, batch_size={"tokens": 256, "sentences": 16}[batch_by]
    )
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
    assert (
        shares["ours"]
        <= shares["by source, then target"]
        <= shares["by source alone"]
        < shares["random"]
    )


# -------------------------------------------------------------------------------------------- parts


def grow_by_eighty_mb(task: Task) -> dict[str, Any]:
    row = bench_data.measured(lambda number: np.ones(10_000_000), task, sentences=None)
    return {**row, "process": os.getpid()}


def test_a_part_has_a_process_and_a_memory_of_its_own(task: Task) -> None:
    held = np.ones(40_000_000)  # 320 MB of this process, none of them in the part's
    row = in_own_process(grow_by_eighty_mb, task)
    assert row["process"] != os.getpid()
    assert row["growth_mb"] == pytest.approx(80, abs=12)
    assert row["peak_mb"] - row["growth_mb"] < held.nbytes / 1e6 + 130


def test_the_cache_is_built_in_every_round_and_then_opened(task: Task) -> None:
    built = bench_data.build_cache(dataclasses.replace(task, rounds=2))
    entries = [path for path in task.folder.glob("cache_*/*") if path.is_dir()]
    assert {path.parent.name for path in entries} == {"cache_-1", "cache_0", "cache_1"}
    [entry] = [path for path in entries if path.parent.name == "cache_0"]
    assert built["bytes"] == sum(path.stat().st_size for path in entry.iterdir())
    before = [path.stat().st_mtime_ns for path in entry.iterdir()]
    assert bench_data.open_cache(task)["sentences"] == 400
    assert [path.stat().st_mtime_ns for path in entry.iterdir()] == before


def test_the_script_writes_both_tables_of_the_data(tmp_path: Path) -> None:
    settings = [part for text in SMALL for part in ("--set", text)]
    done = run_script(
        *"benchmarks/bench_data.py --only data --sentences 150 --rounds 2".split(),
        *(*settings, "--output_dir", tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        "bench_data.md",
        "bench_data.json",
    }  # the work is cleared
    record = json.loads((tmp_path / "bench_data.json").read_text("utf-8"))
    data, padding = record["sections"]
    assert data["pairs"] == 150
    assert [row["part"] for row in data["rows"]] == PARTS
    for row in data["rows"]:
        assert len(row["seconds"]) == 2
        assert all(0 < s < 60 for s in row["seconds"])
        assert row["sentences"] == 300
        assert 0 <= row["growth_mb"] < row["peak_mb"] < 4000
        assert math.isfinite(row["peak_mb"])
    workers = {
        row["part"]: row["worker_peak_mb"] for row in data["rows"] if "worker_peak_mb" in row
    }
    assert workers["collating, num_workers=0"] == 0 < workers["collating, num_workers=2"] < 4000
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
    found = bench_data.scripts(copy_run(trained_run, tmp_path), tmp_path / "work", CPU, threads=1)
    return {script.name: script for script in found}


def test_training_is_seen_to_begin(real: dict[str, Script], tmp_path: Path) -> None:
    seconds = first_output(real["train.py"])
    assert 0 < seconds < bench_data.LIMIT_S
    [log] = (tmp_path / "work/began").glob("*/logs/metrics.jsonl")
    assert json.loads(log.read_text("utf-8").splitlines()[0])["step"] == 1


@pytest.mark.parametrize(
    ("name", "main"),
    [
        ("inference.py", inference.main),
        ("test.py", test_script.main),
        ("visualize.py", visualize.main),
    ],
)
def test_each_script_prints_what_is_waited_for(
    real: dict[str, Script],
    name: str,
    main: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = real[name]
    assert script.args[0] == name
    assert isinstance(script.seen, str)
    done = Scripts(main, capsys, monkeypatch)(*script.args[1:])
    assert done.code == 0, done.err
    assert any(re.search(script.seen, line) for line in done.out.splitlines())


# -------------------------------------------------------------------------------- a user's mistakes


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--sentences", "0"], "argument --sentences: '0': an integer >= 1"),
        (["--config", "configs/none.py"], "configs/none.py: no such config file"),
        (["--only", "data", "--output_dir", "/dev/null/here"], "/dev/null/here"),
    ],
)
def test_a_bad_command_line_is_told_in_one_line(
    script: Scripts, args: list[str], message: str
) -> None:
    assert message in script(*args).error()
