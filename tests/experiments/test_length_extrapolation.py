"""The extrapolation in length: the sentences of training, RoPE scaled at test, what is written."""

import dataclasses
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import ROOT
from stand_in import StandIn
from toy_runs import toy_config

from configs.load import load_config, read_config_json
from configs.positions import YarnScaling
from configs.serialize import apply_overrides
from data.corpora.base import ParallelText
from data.corpora.build import build_corpus
from experiments import length_extrapolation
from experiments.common import buckets
from experiments.store import read_store
from experiments.trials import Trial
from translation.loading import load_run
from translation.metrics import compare_statistics
from utils.errors import UserError


def words(lines: Iterable[str]) -> list[int]:
    return [len(line.split()) for line in lines]


def test_training_files_hold_no_longer_sentences_and_test_files_all(tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    before = {split: build_corpus(config.data).load(split) for split in ("train", "valid", "test")}
    short = length_extrapolation.write_short_corpus(config, 6, tmp_path / "out")
    corpus = build_corpus(dataclasses.replace(config.data, corpus=short))
    for split in ("train", "valid"):
        pairs = list(zip(before[split].src, before[split].tgt))
        wanted = [pair for pair in pairs if max(words(pair)) <= 6]
        text = corpus.load(split)
        assert list(zip(text.src, text.tgt)) == wanted
        assert 0 < len(wanted) < len(pairs)
    assert corpus.test == ("test",)
    assert corpus.load("test") == before["test"]
    other = length_extrapolation.write_short_corpus(config, 8, tmp_path / "out")
    assert other.root != short.root
    text, copy = tmp_path / "text", tmp_path / "elsewhere/a"
    copy.parent.mkdir()
    for language in ("fr", "en"):
        lines = Path(f"{config.data.corpus.root}/test.{language}").read_text("utf-8")
        Path(f"{copy}.{language}").write_text(f" \n{lines}", "utf-8")
    names = str(copy), os.path.relpath(copy, config.data.corpus.root)
    config = apply_overrides(config, [f"data.corpus.test={','.join(names)}"])
    kept = {path: path.read_bytes() for path in copy.parent.iterdir()}
    away = length_extrapolation.write_short_corpus(config, 6, tmp_path / "out")
    assert away.test == ("test_0", "test_1")
    corpus = build_corpus(dataclasses.replace(config.data, corpus=away))
    assert corpus.load("test_1") == before["test"]
    assert {path: path.read_bytes() for path in copy.parent.iterdir()} == kept
    shutil.copy(f"{copy}.fr", f"{config.data.corpus.root}/test_0.fr")
    shutil.copy(f"{copy}.en", f"{config.data.corpus.root}/test_0.en")
    config = apply_overrides(config, [f"data.corpus.test={copy},test_0"])
    assert length_extrapolation.write_short_corpus(config, 6, tmp_path).test == away.test
    one_side = ParallelText(["a b", "a b c", "a b"], ["a b", "a", "a b c"])
    assert length_extrapolation.short_pairs(one_side, 2) == ParallelText(["a b"], ["a b"])


def test_buckets_meet_at_the_limit_and_end_where_sentences_are_few() -> None:
    few = length_extrapolation.FEWEST
    # Beyond 15 words there are just enough, beyond 18 one too few.
    words = [5] * 100 + [17] + [40] * (few - 1)
    assert length_extrapolation.length_edges(words, 12) == (6, 9, 12, 15)
    assert list(buckets((6, 9, 12))) == ["1–6", "7–9", "10–12", "≥13"]
    found = buckets((1, 3), [1, 2, 3, 4])
    assert found == {"1": [0], "2–3": [1, 2], "≥4": [3]}


def test_a_scaled_copy_has_the_trained_weights_and_another_rotation(
    tmp_path: Path, trained_run: Path
) -> None:
    config = read_config_json(trained_run / "config.json")
    source = Trial("rope", 0, config, tmp_path, ("test",), ("test",), "greedy")
    source.write_config()
    run = shutil.copytree(trained_run, source.folder / trained_run.name)
    (source.folder / "train.log").touch()
    (source.folder / "train.out").write_text(f"{run}\n")
    trial = length_extrapolation.scaled_trial(source, "rope_yarn", max_words=10)
    position = dataclasses.replace(config.model.position, scaling=YarnScaling(trained_length=20))
    assert trial.config.model.position == position
    # One that is trained so is another trial, whatever the config has in common.
    trained = dataclasses.replace(source, config=trial.config)
    assert trained.digest != trial.digest
    length_extrapolation.copy_run(source, trial)
    old, new = (load_run(each.run) for each in (source, trial))
    assert new.config.model.position == position
    states = old.model.state_dict().values(), new.model.state_dict().values()
    assert all(torch.equal(a, b) for a, b in zip(*states))
    src, tgt = torch.arange(5, 35)[None], torch.arange(5, 11)[None]
    with torch.inference_mode():
        assert not torch.allclose(old.model(src, tgt), new.model(src, tgt), atol=1e-4)
    assert not trial.is_scored()  # it is trained, so that scoring is what is left to do


def test_a_table_curves_and_counts_are_written_and_a_rotation_without_weights_is_named(
    stand_in: StandIn,
) -> None:
    stand_in.fates(rope="error")
    arguments = stand_in.arguments("--corpus", "files", "--max_words", "6")
    arguments += ["--positions", "sinusoidal,learnable,rope", "--scaled_at_test", "rope_ntk"]
    calls = ["train sinusoidal", "test sinusoidal", "train learnable", "test learnable"]
    for expected in (calls, []):
        assert length_extrapolation.main(arguments) == 1
        assert stand_in.calls() == [*expected, "train rope"]
    rows = stand_in.table("extrapolation.csv")
    reasons = {row["position"]: row["reason"] for row in rows}
    copied = {"rope_ntk_at_test": "rope, seed 0 is not trained"}
    assert reasons == {"sinusoidal": "", "learnable": "", "rope": "no such luck", **copied}
    for name in ("sinusoidal", "learnable"):
        own = [row for row in rows if row["position"] == name]
        spans = [(row["from_words"], row["to_words"], row["beyond"]) for row in own]
        assert spans == [("1", "4", "0"), ("5", "5", "0"), ("6", "6", "0"), ("7", "", "1")]
        assert sum(int(row["sentences"]) for row in own) == 12  # the whole test split
        assert [row["sacrebleu"] != "" for row in own] == [row["sentences"] != "0" for row in own]
    text = stand_in.text("extrapolation.md")
    assert "| scheme | seeds | up to 6 words | beyond 6 | 1–4 words (n=" in text
    assert "| length, up to 6 | length, beyond 6 |\n" in text
    assert (stand_in.output / "extrapolation.png").read_bytes().startswith(b"\x89PNG")
    [root] = stand_in.output.glob("text_max6_*")
    assert stand_in.config("learnable")["data"]["corpus"]["root"] == str(root)


def test_the_phrasebook_is_scored_on_both_sides_of_the_limit(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(length_extrapolation, "MOST_LINES", 1)  # so that dots are drawn
    arguments = ["--config", str(ROOT / "configs/demo.py"), "--output_dir", str(stand_in.output)]
    arguments += ["--positions", "sinusoidal", "--ssmax", "--max_words", "8", "--threads", "1"]
    for size in ("n_train=60", "n_validation=30", "n_test=40"):
        arguments += ["--set", f"data.corpus.{size}"]
    assert length_extrapolation.main(arguments) == 0
    calls = ["train sinusoidal", "test sinusoidal", "test sinusoidal"]  # test and validation
    assert stand_in.calls() == [*calls, *(f"{call}_ssmax" for call in calls)]
    position = stand_in.config("sinusoidal_ssmax")["model"]["position"]
    assert (position["kind"], position["scheme"]["kind"]) == ("ssmax", "sinusoidal")
    rows = [row for row in stand_in.table("extrapolation.csv") if row["position"] == "sinusoidal"]
    sides = [[int(row["sentences"]) for row in rows if row["beyond"] == side] for side in "01"]
    assert list(map(sum, sides)) == [30, 40]
    # validation is up to the limit, the test beyond it
    records = [
        each.sentences for each in read_store(stand_in.output / "extrapolation.jsonl").values()
    ]
    gains = []
    for split in ("validation", "test"):
        plain, ssmax = (each[split].statistics for each in records)
        found = compare_statistics(plain, ssmax, samples=1000, seed=0)
        assert found.difference > 1
        low, high = found.interval
        gains.append(f"{found.difference:+.2f} ({low:+.2f} to {high:+.2f})")
    assert f"| sinusoidal | {' | '.join(gains)} |" in stand_in.text("extrapolation.md")
    arguments += ["--set", "data.src_lang=en", "--set", "data.tgt_lang=fr"]
    with pytest.raises(UserError, match="its limit counts French words; leave"):
        length_extrapolation.main(arguments)


def test_the_default_sizes_are_in_the_phrasebook_and_defaults_follow_the_corpus() -> None:
    args = length_extrapolation.parse_args([])
    config = load_config(args.config)
    short = length_extrapolation.limited_corpus(args)
    corpus = build_corpus(dataclasses.replace(config.data, corpus=short))
    splits = [corpus.load(split) for split in ("train", "validation", "test")]
    assert list(map(len, splits)) == [20_000, 500, 500]
    assert max(words(splits[0].src)) == 10 < min(words(splits[2].src))
    args = length_extrapolation.parse_args(["--corpus", "files"])
    assert (Path(args.config), args.max_words) == (ROOT / "configs/multi30k_small_rope.py", 12)
    assert args.output_dir == Path("runs/extrapolation_files")


def test_lengths_are_those_of_the_translations_over_the_references() -> None:
    short = np.array([[3, 4, *[0] * 8], [3, 4, *[0] * 8]])
    sides = mock.Mock(sides=lambda trial: [short, short[:0]])  # nothing is beyond the limit
    assert length_extrapolation.Extrapolation.lengths(sides, mock.Mock()) == [0.75, None]
