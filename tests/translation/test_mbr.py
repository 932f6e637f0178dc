"""Minimum Bayes risk against brute force, and the searches of a config through the scripts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from made_runs import Scripts, copy_run
from sacrebleu.metrics import BLEU, CHRF

import inference
import test as test_script
from configs.schema import Beam, DecodeConfig, DiverseBeam, Sampling
from models.decoding.hypothesis import Hypothesis
from translation.mbr import Metric, candidate_weights, minimum_bayes_risk
from utils.errors import ConfigError

TEXTS = [
    "the cat sleeps",
    "a cat is sleeping",
    "the cat sleeps",
    "the dog sleeps",
    "",
    "the cat sleeps here now",
]


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
@pytest.mark.parametrize("weights", [[1 / 6] * 6, [0.05, 0.5, 0.05, 0.1, 0.1, 0.2]])
def test_the_order_is_that_of_the_expected_utility_by_brute_force(
    metric: Metric, weights: list[float]
) -> None:
    scorer = CHRF() if metric == "chrf" else BLEU(effective_order=True)
    expected = [
        sum(
            weight * scorer.sentence_score(text, [other]).score
            for weight, other in zip(weights, TEXTS)
        )
        for text in TEXTS
    ]
    ranked = minimum_bayes_risk(TEXTS, weights, metric)
    assert [index for index, _ in ranked] == sorted(range(6), key=lambda i: -round(expected[i], 9))
    assert [utility for _, utility in ranked] == pytest.approx(
        [expected[index] for index, _ in ranked], abs=1e-9
    )


def test_samples_count_alike_and_what_a_beam_finds_by_its_probability() -> None:
    found = [
        Hypothesis((i,), log_prob, log_prob, True)
        for i, log_prob in enumerate((-800.0, -801.0, -803.0))
    ]
    assert candidate_weights(found, Sampling()) == [1 / 3] * 3
    total = 1 + math.exp(-1) + math.exp(-3)
    for search in (Beam(), DiverseBeam()):
        expected = [1 / total, math.exp(-1) / total, math.exp(-3) / total]
        assert candidate_weights(found, search) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: DecodeConfig(search=DiverseBeam(groups=2)),
            "decode.search.groups = 2: must divide decode.beam_size = 5",
        ),
        (
            lambda: DecodeConfig(search=DiverseBeam(), n_best=6),
            "decode.n_best = 6: at most decode.beam_size = 5",
        ),
        (lambda: Sampling(top_p=1.5), "decode.search.top_p = 1.5"),
        (lambda: Sampling(temperature=0.0), "decode.search.temperature = 0.0"),
    ],
)
def test_a_search_that_cannot_be_is_refused(make, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
    assert DecodeConfig(search=Sampling(top_p=1.0), n_best=64).n_best == 64


# -------------------------------------------------------------------------------------- the scripts


@pytest.fixture
def infer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Scripts:
    return Scripts(inference.main, capsys, monkeypatch)


def test_every_search_is_a_flag_and_a_title(infer: Scripts, trained_run: Path) -> None:
    text = ("--model_path", trained_run, "--src_text", "Le chat dort.")
    for args, title in (
        ((), "beam search"),
        (("--search", "beam", "--mbr", "bleu"), "beam search, minimum Bayes risk (bleu)"),
        (("--search", "diverse", "--groups", "5", "--strength", "2"), "diverse beam search"),
        (("--search", "sample", "--n_best", "7", "--top_k", "20", "--top_p", "0.9"), "samples"),
    ):
        ended = infer(*text, *args)
        assert ended.code == 0, ended
        assert f"=== {title} ===" in ended.out
        assert ("=== greedy search ===" in ended.out) == (args == ())
    assert ended.out.count("\n") == 8
    said = infer(*text, "--top_p", "0.9").error()
    assert said.startswith(
        "unknown key 'decode.search.top_p': decode.search (beam) has no fields; top_p belongs to"
    )
    assert "decode.search=sample" in said


def test_samples_do_not_depend_on_the_batch_and_stand_in_the_order_of_their_score(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source.fr"
    source.write_text(
        "Le chat dort.\n\nIl y a un livre sur la table.\nOui.\nLe chat dort.\n", "utf-8"
    )
    args = (
        "--model_path",
        trained_run,
        "--src_file",
        source,
        "--search",
        "sample",
        "--json",
        "--n_best",
        "4",
    )
    one, many = (infer(*args, "--batch_size", size).out.splitlines() for size in ("1", "8"))
    texts = [
        [[h["text"] for h in json.loads(line)["beam"]] for line in lines] for lines in (one, many)
    ]
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][4]  # the same sentence elsewhere is drawn anew
    by_mbr = [json.loads(line)["beam"] for line in infer(*args, "--mbr", "chrf").out.splitlines()]
    for found, drawn in zip(by_mbr, texts[0]):
        assert sorted(h["text"] for h in found) == sorted(drawn)
        scores = [h["score"] for h in found]
        assert scores == sorted(scores, reverse=True)
    ranked = minimum_bayes_risk(texts[0][2], [1 / 4] * 4, "chrf")
    assert [h["score"] for h in by_mbr[2]] == pytest.approx(
        [utility for _, utility in ranked], abs=1e-6
    )


def test_a_scored_search_has_a_name_and_an_identity_of_its_own(
    trained_run: Path, tmp_path: Path
) -> None:
    run = copy_run(trained_run, tmp_path)
    common = ["--model_path", str(run), "--limit", "2", "--set", "evaluate.bootstrap_samples=2"]
    test_script.main([*common, "--search", "sample", "--mbr", "chrf", "--set", "decode.n_best=6"])
    test_script.main([*common, "--search", "sample", "--set", "decode.search.temperature=0.5"])
    test_script.main([*common, "--search", "diverse"])

    def search_of(name: str) -> dict:
        return json.loads((run / "results" / f"test_first2_{name}_scores.json").read_text("utf-8"))[
            "search"
        ]

    assert search_of("sample_mbr_chrf")["n_best"] == 6
    assert search_of("sample_mbr_chrf")["mbr"] == "chrf"
    sample = search_of("sample")
    assert (sample["kind"], sample["temperature"], sample["n_best"], sample["seed"]) == (
        "sample",
        0.5,
        1,
        0,
    )
    assert search_of("diverse")["strength"] == 0.5
