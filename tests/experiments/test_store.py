"""What is kept of a training, and what is said of several seeds."""

import json
import re
import resource
import shutil
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from stand_in import StandIn

from configs.schema import Config
from experiments.comparison import Comparison
from experiments.ranking import standings
from experiments.store import Record, Sentences, add_record, append_line, read_store
from experiments.trials import Runner, Trial
from translation.metrics import quantile_interval, resampled_scores, summed_bleu
from utils.errors import UserError


def test_a_store_makes_every_file_again_where_the_runs_are_gone(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stand_in.compare("rope", "--seeds", "0,1") == 0
    names = ("comparison.md", "comparison.csv", "comparison_bleu.png", "comparison_lengths.png")
    before = {name: (stand_in.output / name).read_bytes() for name in names}
    [ranking] = [part for part in stand_in.text().split("## ") if part.startswith("Ranking")]
    assert "| rope | 2 |" in ranking
    store = stand_in.folder / "kept.jsonl"
    shutil.move(stand_in.output / "comparison.jsonl", store)
    shutil.rmtree(stand_in.output)
    stand_in.calls()
    assert stand_in.compare("rope", "--seeds", "0,1", "--store", str(store)) == 0
    assert stand_in.calls() == []
    assert {name: (stand_in.output / name).read_bytes() for name in names} == before
    assert not (stand_in.output / "comparison.jsonl").exists()
    assert str(stand_in.folder / "out") not in store.read_text("utf-8")  # no place of this machine

    # A variant is compared with the baseline of its seed.
    monkeypatch.setattr(Comparison, "draw", lambda *_: None)
    *first, base, rope = [json.loads(line) for line in store.read_text("utf-8").splitlines()]
    base["sentences"], rope["training"]["validation_loss"] = rope["sentences"], 1.25
    rope["scores"]["test"]["trained"]["precision"] = "fp32"
    store.write_text("".join(f"{json.dumps(each)}\n" for each in (*first, base, rope)), "utf-8")
    assert stand_in.compare("rope", "--seeds", "0,1", "--store", str(store)) == 0
    apart = {row["seed"]: float(row["difference"]) for row in stand_in.table() if row["baseline"]}
    assert apart["0"] > apart["1"] == 0
    alone = re.findall(r"^\| rope, seed (\d) \|", stand_in.text(), re.MULTILINE)
    assert alone == ["1"]  # of the lowest validation loss
    assert [row["precision"] for row in stand_in.table()] == ["bf16"] * 3 + ["fp32"]
    assert "trained in bf16, fp32, some, 1 thread; not all in one precision" in stand_in.text()
    assert stand_in.compare("sinusoidal", "--seeds", "0,1", "--store", str(store)) == 0
    assert "ranking" not in stand_in.text().lower()  # one variant is no race


def test_a_record_is_found_by_all_that_decides_its_scores(tmp_path: Path) -> None:
    path, words = tmp_path / "store.jsonl", np.ones(1, dtype=int)
    names = "parameters training_loss validation_loss validation_accuracy tokens_per_second"
    training = dict.fromkeys([*names.split(), "peak_memory_mb", "train_minutes", "jobs"])
    of_test = dict.fromkeys(("data_fingerprint", "loss", "accuracy", "provenance"))
    names = "bleu4 sacrebleu interval chrf n signature buckets"
    scores = {"test": {**of_test, "scores": dict.fromkeys(names.split())}}
    sentences = {"test": Sentences(words, made(1, 0.8, seed=0))}
    record = Record("run", training, scores, sentences, Config())
    plain = Trial("rope", 0, Config(), tmp_path, ("test",), ("test",))
    others: list[Any] = [{"search": "greedy"}, {"average": 3}, {"weights_of": "0123456789"}]
    trials = [plain, *(replace(plain, **other) for other in others)]
    for trial in trials:
        add_record(path, trial, record)
    assert list(read_store(path)) == [trial.digest for trial in trials]
    assert len({trial.digest for trial in trials}) == 4


def test_a_training_is_kept_when_it_ends_and_once_though_two_look(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stand_in.output / "comparison.jsonl"
    do, begun = Runner._do, []

    def watched(runner: Runner, trial: Trial) -> None:
        deadline = time.monotonic() + 30
        while len(read_store(store)) < len(begun) and time.monotonic() < deadline:
            time.sleep(0.01)  # the one before is added by another thread
        begun.append(len(read_store(store)))
        do(runner, trial)
        if trial.variant == "rope":  # a second process, before the first adds it
            stand_in.compare("rope", "--report_only")

    monkeypatch.setattr(Runner, "_do", watched)
    assert stand_in.compare("rope,alibi") == 0
    assert begun == [0, 1, 2]
    assert len(store.read_text("utf-8").splitlines()) == 3


def test_a_record_holds_what_was_scored_and_a_broken_line_is_named(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stand_in.compare("sinusoidal") == 0
    path = stand_in.output / "comparison.jsonl"
    [record] = read_store(path).values()
    [run] = stand_in.trial_folder("sinusoidal").glob("toy_*")
    sources = (run / "results" / "test_beam.src.txt").read_text("utf-8").splitlines()
    assert record.sentences["test"].words.tolist() == [len(line.split()) for line in sources]
    whole = path.read_bytes()
    misspelt = whole.replace(b'"search":"beam"', b'"seerch":"beam"')
    of_others = whole.replace(b'"sentences":{"test"', b'"sentences":{"other"')
    untimed = whole.replace(b'"jobs"', b'"jops"')
    for broken in (whole[:-9], misspelt, of_others, untimed, b"[1]", b"5", b"\xff"):
        path.write_bytes(whole + broken)
        with pytest.raises(UserError, match=r"comparison\.jsonl, line 2: no record"):
            stand_in.compare("sinusoidal")
    # A training of other code is none of this one's.
    other = whole.replace(b'"run":"runs', b'"run":"other').replace(b'"d_ff"', b'"d_new"')
    path.write_bytes(other + whole)
    capsys.readouterr()
    assert stand_in.compare("sinusoidal", "--report_only") == 0
    said = capsys.readouterr().err
    assert re.match(r"warning: \S+: other/\S+ is left out: ConfigError: .*'model.d_new'", said)


def test_what_was_scored_again_by_hand_is_not_taken_for_the_trials_own(stand_in: StandIn) -> None:
    assert stand_in.compare("sinusoidal") == 0
    [run] = stand_in.trial_folder("sinusoidal").glob("toy_*")
    scores, found = run / "results/test_beam_scores.json", run / "results/test_beam.hyp.txt"
    wider = json.loads(scores.read_text("utf-8"))
    wider["config"]["decode"]["beam_size"] += 1
    for path, text, said in (
        (scores, json.dumps(wider), "test was scored again with another search"),
        (found, "edited\n", "test_beam.hyp.txt is not what was scored"),
    ):
        stand_in.forget()
        before = path.read_text("utf-8")
        path.write_text(text, "utf-8")
        with pytest.raises(UserError, match=rf"{said}\): delete .*scored\.json to score it again"):
            stand_in.compare("sinusoidal")
        path.write_text(before, "utf-8")
        assert stand_in.compare("sinusoidal") == 0


def test_a_line_is_appended_whole_or_not_at_all(tmp_path: Path) -> None:
    path, limits = tmp_path / "store.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    path.write_text('{"a":1}', "utf-8")  # as an editor leaves the last line
    append_line(path, {"b": 2})
    assert path.read_text("utf-8") == '{"a":1}\n{"b":2}\n'
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .*store\.jsonl: File too large"):
            append_line(path, {"c": "much text"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text("utf-8") == '{"a":1}\n{"b":2}\n'


def test_trainings_that_were_scored_on_other_text_are_not_compared(stand_in: StandIn) -> None:
    assert stand_in.compare("rope") == 0
    path = stand_in.output / "comparison.jsonl"
    first, second = path.read_text("utf-8").splitlines()
    words = "sinusoidal, seed 0 and rope, seed 0 were scored on other sentences or tokens of test"
    for old, new in (('"data_fingerprint":"', "another"), ('"signature":"', "tok:char|")):
        assert old in second
        path.write_text(f"{first}\n{second.replace(old, old + new)}\n", "utf-8")
        with pytest.raises(UserError, match=words):
            stand_in.compare("rope", "--report_only")
    records = json.loads(first), json.loads(second)
    for text, record in zip("ab", records):
        record["scores"]["test"]["trained"]["training_text"] = text
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    with pytest.raises(UserError, match="rope, seed 0 were trained on other text: delete the line"):
        stand_in.compare("rope", "--report_only")


def made(n: int, share: float, seed: int) -> np.ndarray:
    """Statistics [n,10] of made sentences of 5 to 30 tokens, of which a share is right."""
    rng = np.random.default_rng(seed)
    length = rng.integers(5, 30, n)
    totals = length[:, None] - np.arange(4)
    matches = rng.binomial(totals, share ** np.arange(1, 5))
    return np.column_stack([length, length, matches, totals]).astype(float)


def test_statistics_come_back_from_their_packing() -> None:
    statistics = made(50, 0.8, seed=0)
    statistics[0] = [2, 9, 1, 0, 0, 0, 2, 1, 0, 0]  # shorter than four tokens
    for longest in (255, 256):
        words = np.arange(50) + longest - 49
        back = Sentences.unpack(Sentences(words, statistics).pack())
        assert np.array_equal(back.words, words)
        assert np.array_equal(back.statistics, statistics)


def test_one_seed_has_the_bootstrap_over_sentences() -> None:
    weak, strong = made(200, 0.6, seed=1), made(200, 0.8, seed=2)
    found = standings({"weak": [[weak]], "strong": [[strong]]}, "weak", samples=500)
    assert list(found) == ["strong", "weak"]
    low, high = resampled_scores([weak, strong], 500, seed=0)
    assert found["strong"].interval == quantile_interval(high)
    apart = summed_bleu(strong.sum(0)) - summed_bleu(weak.sum(0))
    assert found["strong"].difference == (apart, *quantile_interval(high - low))
    assert [each.best for each in found.values()] == [1, 0]
    assert found["weak"].difference == (0, 0, 0)


def test_seeds_are_drawn_by_students_t_the_same_for_all_variants() -> None:
    # One sentence each: drawing sentences changes nothing, so what is left is the seeds' part.
    seeds = [[made(1, share, seed=3)] for share in (0.7, 0.8, 0.9)]
    bleu = [float(summed_bleu(run[0].sum(0))) for run in seeds]
    assert len(set(bleu)) == 3
    turned = [*seeds[1:], seeds[0]]
    found = standings({"a": seeds, "b": seeds, "c": turned}, "a", samples=5_000)
    assert found["a"].seeds == bleu
    quantile = 4.303  # of t with two degrees, 97.5%
    away = quantile * np.std(bleu, ddof=1) / 3**0.5
    expected = fmean(bleu) - away, fmean(bleu) + away
    assert found["a"].interval == pytest.approx(expected, abs=0.05 * away)
    assert found["b"].difference == (0, 0, 0)
    apart = np.array(found["c"].seeds) - bleu
    low, high = found["c"].difference[1:]
    away = quantile * np.std(apart, ddof=1) / 3**0.5
    assert (low, high) == pytest.approx((-away, away), rel=0.05)
    # Of equal means each is behind half of the time.
    assert found["a"].best == found["b"].best == pytest.approx(0.5, abs=0.02)
    assert found["c"].best == pytest.approx(0.5, abs=0.02)
