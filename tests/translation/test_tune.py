"""`python tune.py`: the grid is what test.py finds cell by cell, and the flags that it names give
the best cell.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from made_runs import Scripts, copy_run

import test as test_script
import tune as script
from translation.tuning import Grid


@pytest.fixture
def tuned(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Scripts:
    return Scripts(script.main, capsys, monkeypatch)


def test_the_best_is_the_highest_and_of_equals_the_cheapest() -> None:
    grid = Grid("valid", 9, (1, 4), (0.0, 1.0), ((30.0, 30.0), (30.0, 31.5)))
    assert grid.best() == (4, 1.0)
    assert Grid("valid", 9, (1, 4), (0.0, 1.0), ((30.0, 30.0), (30.0, 29.0))).best() == (1, 0.0)
    assert grid.markdown().splitlines() == [
        "| beam | penalty 0 | penalty 1 |",
        "| ---: | --------: | --------: |",
        "|    1 |     30.00 |     30.00 |",
        "|    4 |     30.00 | **31.50** |",
    ]
    assert "python inference.py --beam_size 4 --length_penalty 1\n" in grid.flags()


def test_every_cell_is_the_score_of_test_py(
    tuned: Scripts, trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy_run(trained_run, tmp_path)
    table = tmp_path / "grid.md"
    args = ("--beam", "3", "1", "--length_penalty", "0", "1.5", "--limit", "4", "--markdown", table)
    ended = tuned("--model_path", run, *args)
    assert ended.code == 0, ended
    rows = [line for line in ended.out.splitlines() if line.startswith("|")]
    assert table.read_text("utf-8").splitlines() == rows
    figures = [[float(cell.strip(" *")) for cell in row.strip("|").split("|")] for row in rows[2:]]
    assert [row[0] for row in figures] == [1, 3]
    found = {}
    for beam, *scores in figures:
        for penalty, score in zip((0, 1.5), scores):
            beam_and_penalty = (f"decode.beam_size={beam:g}", f"decode.length_penalty={penalty}")
            settings = (*beam_and_penalty, "evaluate.bootstrap_samples=2")
            changes = [part for text in settings for part in ("--set", text)]
            test_script.main(
                ["--model_path", str(run), "--split", "validation", "--limit", "4", *changes]
            )
            capsys.readouterr()
            record = json.loads(
                (run / "results" / "validation_first4_beam_scores.json").read_text("utf-8")
            )
            assert score == pytest.approx(record["scores"]["sacrebleu"], abs=0.00501)
            found[beam, penalty] = record["scores"]["sacrebleu"]
    named = re.search(
        r"test.py --set decode.beam_size=(\d+) --set decode.length_penalty=([\d.]+)", ended.out
    )
    assert named is not None
    beam, penalty = map(float, named.groups())
    assert found[beam, penalty] == max(found.values())
    assert ended.err.count("length penalty") == 3  # a beam of 1 is searched once


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--beam", "0"), "an integer >= 1"),
        (("--length_penalty", "-1"), "'-1': a number >= 0"),
        (("--length_penalty", "nan"), "'nan': a number >= 0"),
        (("--split", "tset"), "--split tset: the corpus has test, validation, train"),
        (("--set", "model.d_ff=4"), "model.d_ff was fixed by training"),
    ],
)
def test_a_mistake_gets_one_line(
    tuned: Scripts, trained_run: Path, args: tuple[str, ...], words: str
) -> None:
    assert words in tuned("--model_path", trained_run, *args).error()
