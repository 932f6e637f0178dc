"""A mistake on the command line of a benchmark is told in one line, before anything is measured."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from made_runs import Scripts

from benchmarks import bench_data, bench_decode, bench_scaling, bench_train


@pytest.mark.parametrize(
    ("script", "args", "message"),
    [
        (bench_train, "--schemes rope,ropes", "no position scheme 'ropes'"),
        (bench_train, "--peers sockeye", "invalid choice: 'sockeye'"),
        (bench_train, "--device tpu", "--device tpu: not on this machine"),
        (bench_train, "--rounds 0", "argument --rounds: '0': an integer >= 1"),
        (bench_decode, "--size huge", "'huge'"),
        (bench_decode, "--batch 0", "argument --batch: '0': an integer >= 1"),
        (bench_decode, "--model_path run --train_steps 5", "not allowed with"),
        (bench_data, "--sentences 0", "argument --sentences: '0': an integer >= 1"),
        (bench_data, "--config configs/none.py", "configs/none.py: no such config file"),
        (bench_data, "--only data --output_dir /dev/null/here", "/dev/null/here"),
        (bench_scaling, "--vocabularies 4,100", "--vocabularies 4: at least 5"),
        (bench_scaling, "--lengths 4,x", "argument --lengths: 'x': an integer >= 1"),
        (bench_scaling, "--position nope", "argument --position: invalid choice: 'nope'"),
        (bench_scaling, "--device cuda:99", "--device cuda:99"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    script: ModuleType,
    args: str,
    message: str,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = Scripts(script.main, capsys, monkeypatch)("--output_dir", tmp_path, *args.split())
    assert message in done.error()
    assert not list(tmp_path.iterdir())
