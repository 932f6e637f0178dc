"""`python benchmarks/bench_serve.py`: a real server, every answer compared."""

import json
from pathlib import Path

import pytest

from benchmarks import bench_serve
from utils.errors import UserError


@pytest.mark.slow
def test_it_counts_answers_that_are_those_of_inference(trained_run: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("Le chat dort.\n\nOui.\n", "utf-8")
    args = ["--runs_dir", str(trained_run.parent), "--src_file", str(source), "--threads", "1"]
    args += ["--requests", "12", "--clients", "3", "--max_batch", "4"]
    empty = tmp_path / "empty"
    empty.write_text("\n", "utf-8")
    with pytest.raises(UserError, match="empty: no sentence"):
        bench_serve.main([*args, "--src_file", str(empty)])
    bench_serve.main([*args, "--output_dir", str(tmp_path)])
    report = json.loads((tmp_path / "bench_serve.json").read_text("utf-8"))
    [row] = report["sections"][0]["rows"]
    assert row["requests"] == row["answered"] == row["same"] == 12
    assert 0 < row["median"] <= row["late"]
    assert row["rate"] > 0 < row["before"]
