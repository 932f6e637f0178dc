"""The speedrun: what its clock holds, what is begun anew, and which entries are records."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from stand_in import StandIn
from toy_runs import toy_corpus

from configs.multi30k_small_rope import MULTI30K
from experiments import speedrun
from utils.errors import UserError

ABOVE = [50.5, 50.4, 50.6, 50.7, 50.1]


@pytest.fixture
def stand_in(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr("experiments.trials.cores", lambda: 2)
    return stand_in


def run(stand_in: StandIn, *more: str, bleu: list[float] = ABOVE) -> int:
    """The script, on the toy corpus under the names of Multi30k."""
    (stand_in.folder / "bleu.json").write_text(json.dumps(bleu))
    corpus = toy_corpus(stand_in.folder)
    for language in ("fr", "en"):
        shutil.copy(corpus / f"valid.{language}", corpus / f"{MULTI30K.validation}.{language}")
    names = {"validation": MULTI30K.validation, "test": json.dumps(MULTI30K.test)}
    changes = [x for key, name in names.items() for x in ("--set", f"data.corpus.{key}={name}")]
    records = ("--records", str(stand_in.folder / "records.jsonl"))
    return speedrun.main([*stand_in.arguments(*changes), *records, *more])


def records(stand_in: StandIn) -> list[dict]:
    path = stand_in.folder / "records.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_five_seeds_above_the_mark_are_a_record(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(stand_in) == 0
    assert stand_in.calls() == ["train toy", "test toy"] * 5
    rows = stand_in.table("speedrun.csv")
    assert [float(row["sacrebleu"]) for row in rows] == ABOVE
    folder = stand_in.trial_folder("toy")
    # The clock is that of the process, which has a cache of its own and reads no test.
    [attempt] = json.loads((folder / "attempts.json").read_text())
    assert float(rows[0]["seconds"]) == pytest.approx(attempt["seconds"])
    assert stand_in.config("toy")["data"]["cache_dir"] == str(folder / "cache")
    assert "\nA record by the rules.\n" in stand_in.text("speedrun.md")

    assert run(stand_in) == 0  # nothing more is run or added
    assert stand_in.calls() == []
    [record] = records(stand_in)
    assert record["seeds"] == [0, 1, 2, 3, 4]
    assert (record["commit"], record["hardware"]) == ("abc", "some, 1 threads")
    assert record["log"] == [[[3, 3.0], [3, 1.5]]] * 5
    t = (np.mean(ABOVE) - speedrun.MARK) / (np.std(ABOVE, ddof=1) / 5**0.5)
    square = t**2 / (1 + t**2 / 4)  # Student's distribution of four degrees, in closed form
    assert record["p_value"] == pytest.approx(0.5 - 0.375 * square**0.5 * (1 - square / 12))
    [*page, row] = (stand_in.folder / "records.md").read_text("utf-8").splitlines()
    assert "± is the standard deviation over the seeds" in " ".join(page)
    assert row.startswith("| 1 | 0.0 ± 0.0 | 50.46 ± 0.23 | 0.006 | 5 | toy.py with ")

    # Cores are those of the race, not of its report; and it is the same one without its logs.
    monkeypatch.setattr("experiments.trials.cores", lambda: 8)
    shutil.rmtree(stand_in.output / "runs")
    assert run(stand_in, "--report_only") == 0
    assert "\nA record by the rules.\n" in stand_in.text("speedrun.md")
    assert records(stand_in) == [record]
    path = stand_in.folder / "records.jsonl"
    path.write_text(f"{path.read_text('utf-8')}<<<<<<< HEAD\n", "utf-8")
    with pytest.raises(
        UserError, match=r"records\.jsonl, line 2: no record .*, or delete the line"
    ):
        run(stand_in, "--report_only")


def test_an_entry_that_is_no_record_says_why(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.trials.cores", lambda: 8)
    below = [50.3, 50.1, 49.6, 50.4, 49.9]
    assert run(stand_in, bleu=below) == 0
    said = "No record: 8 cores (try `taskset -c 0,1`); mean 50.06, p = 0.35 and not below 0.01."
    assert said in stand_in.text("speedrun.md")
    assert run(stand_in, "--seeds", "1,2", "--report_only") == 0
    assert "No record: all seeds from 0 to 4 are needed; " in stand_in.text("speedrun.md")
    assert records(stand_in) == []


def test_every_seed_that_was_asked_for_or_run_counts(stand_in: StandIn) -> None:
    assert run(stand_in, "--seeds", "0,1,2,3,4,5", bleu=[*ABOVE, 40.0]) == 0
    assert run(stand_in) == 0
    assert "No record: seeds that count too: 5." in stand_in.text("speedrun.md")
    assert run(stand_in, "--seeds", "0,1,2,3,4,6", "--report_only") == 0
    assert "No record: seeds that count too: 5, 6." in stand_in.text("speedrun.md")
    assert records(stand_in) == []


def test_a_seed_that_was_interrupted_is_begun_anew(stand_in: StandIn) -> None:
    stand_in.fates(toy="killed")
    assert run(stand_in, "--seeds", "0") == 1
    folder = stand_in.trial_folder("toy")
    [killed] = folder.glob("toy_*")
    (folder / "cache").mkdir()
    stand_in.fates()
    assert run(stand_in, "--seeds", "0") == 0
    assert stand_in.calls() == ["train toy", "train toy", "test toy"]
    assert not killed.exists()
    assert not (folder / "cache").exists()
    # So is one that came to an end which nobody saw.
    attempt = {"seconds": None, "peak_mb": None, "jobs": 1}
    (folder / "attempts.json").write_text(json.dumps([attempt]))
    (stand_in.output / "speedrun.jsonl").unlink()
    assert run(stand_in, "--seeds", "0") == 0
    assert stand_in.calls() == ["train toy", "test toy"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ("data.corpus.train=more", "data.corpus"),
        ("data.src_lang=en data.tgt_lang=fr", "data.src_lang"),
        ("tokenizer=marian", "tokenizer"),
        ("train.init_from=runs/other", "train.init_from"),
        ("evaluate.also=train", "evaluate.also"),
    ],
)
def test_more_than_the_pairs_is_refused(changes: str, field: str, tmp_path: Path) -> None:
    settings = [x for change in changes.split() for x in ("--set", change)]
    with pytest.raises(UserError, match=rf"^{field}: the speedrun begins with Multi30k's own"):
        speedrun.main(["--output_dir", str(tmp_path), *settings])
    assert list(tmp_path.iterdir()) == []
