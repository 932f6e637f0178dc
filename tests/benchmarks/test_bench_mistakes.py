"""A mistake on the command line of a benchmark is told in one line, before anything is measured."""

from pathlib import Path
from typing import Any

import pytest
from made_runs import as_file


@pytest.mark.parametrize(
    ("script", "args", "message"),
    [
        ("bench_train", "--schemes rope,ropes", "no position scheme 'ropes'"),
        ("bench_train", "--schemes rope:base=500", "no position scheme 'rope:base=500'"),
        ("bench_train", "--peers sockeye", "invalid choice: 'sockeye'"),
        ("bench_train", "--device tpu", "device 'tpu' is not on this machine"),
        ("bench_train", "--rounds 0", "argument --rounds: '0': must be an integer >= 1"),
        ("bench_train", "--widths 64 66", "model.d_model = 66: must be a multiple"),
        ("bench_train", "--seed -1", "argument --seed: '-1': must be an integer >= 0"),
        ("bench_decode", f"--seed {2**63}", "at most 9223372036854775807"),
        ("bench_decode", "--size huge", "'huge'"),
        ("bench_decode", "--size", "nothing to measure: name a --size, or a model"),
        ("bench_decode", "--model_path nowhere", "nowhere: no such checkpoint or run folder"),
        ("bench_decode", "--batch 0", "argument --batch: '0': must be an integer >= 1"),
        ("bench_data", "--sentences 0", "argument --sentences: '0': must be an integer >= 1"),
        ("bench_data", "--config configs/none.py", "configs/none.py: no such config file"),
        ("bench_data", "--only data --output_dir /dev/null/here", "/dev/null/here"),
        ("bench_scaling", "--vocabularies 100 4", "--vocabularies 4: at least 5"),
        ("bench_scaling", "--thread_counts 1 100000", "'100000': must be at most 1024"),
        ("bench_scaling", "--lengths 4 x", "argument --lengths: 'x': must be an integer >= 1"),
        ("bench_scaling", "--position nope", "argument --position: invalid choice: 'nope'"),
        ("bench_scaling", "--device cuda:99", "device 'cuda:99'"),
        ("bench_serve", "--runs_dir nowhere", "no run with a checkpoint in nowhere"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    script: str, args: str, message: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    run = as_file(f"benchmarks/{script}.py", capsys, monkeypatch)
    done = run("--output_dir", tmp_path, *args.split())
    assert message in done.error()
    assert not list(tmp_path.iterdir())
