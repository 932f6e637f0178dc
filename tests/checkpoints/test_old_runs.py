"""Checkpoints of earlier releases load, translate, score and go on as they did then."""

from pathlib import Path
from typing import Any

import pytest
import torch
from old_run import described, described_schemes, write_old_run
from toy_runs import log_of, run_here

from checkpoints.content import checkpoint_config, read_checkpoint
from checkpoints.run import FORMAT, Run, newest_run
from configs.serialize import apply_overrides
from translation.loading import load_run
from translation.translator import Translator

TEXTS = ["le roi prend le livre", "le chien voit le jardin"]
SCHEMES = described_schemes()


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return described()["expected"]


def test_it_translates_as_the_first_release_did(tmp_path: Path, expected: dict[str, Any]) -> None:
    write_old_run(tmp_path)
    loaded = load_run(newest_run(tmp_path).path)
    tokenizer = loaded.tokenizer
    src = torch.tensor([tokenizer.encode_src("le roi prend le livre")])
    tgt = torch.tensor([[tokenizer.bos_id, *tokenizer.encode_tgt("the king takes the book")[:-1]]])
    with torch.inference_mode():
        logits = loaded.model(src, tgt)[0, -1]
    assert logits.tolist() == pytest.approx(expected["logits"], abs=2e-5)
    assert_translates(Translator.of(loaded, torch.device("cpu")), expected)


def test_it_goes_on_as_the_first_release_did(tmp_path: Path, expected: dict[str, Any]) -> None:
    run = write_old_run(tmp_path)
    payload = read_checkpoint(run / "checkpoints" / "regular_checkpoint_1.pt")
    assert payload["format"]["version"] == 1 <= FORMAT
    assert_goes_on(run, expected)
    assert len(Run(run).by_age()) == 3  # with the regular and the best one of the second epoch


@pytest.mark.parametrize("name", SCHEMES)
def test_a_run_of_each_family_of_schemes_translates_and_scores_as_it_did(
    tmp_path: Path, name: str
) -> None:
    expected = SCHEMES[name]["expected"]
    translator = Translator.load(write_old_run(tmp_path, SCHEMES[name]), device="cpu")
    assert_translates(translator, expected)
    found = translator.score(TEXTS, ["the king takes the book", "the dog sees the garden"])
    for scores, then in zip(found, expected["log_probs"], strict=True):
        assert scores.log_probs == pytest.approx(then, abs=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "fox_learnable", "randomized_t5"])
def test_a_run_of_a_scheme_goes_on_as_it_did(tmp_path: Path, name: str) -> None:
    assert_goes_on(write_old_run(tmp_path, SCHEMES[name]), SCHEMES[name]["expected"])


def assert_translates(translator: Translator, expected: dict[str, Any]) -> None:
    greedy = [found.text for found in translator.translate(TEXTS, search="greedy")]
    assert greedy == expected["greedy"]
    for found, then in zip(translator.translate(TEXTS), expected["beam"], strict=True):
        texts, scores = zip(*then)
        assert tuple(h.text for h in found.hypotheses) == texts
        assert tuple(h.score for h in found.hypotheses) == pytest.approx(scores, abs=1e-4)


def assert_goes_on(run: Path, expected: dict[str, Any]) -> None:
    payload = read_checkpoint(run / "checkpoints" / "regular_checkpoint_1.pt")
    beside = run.parent
    places = [f"data.corpus.root={beside / 'corpus'}", f"data.cache_dir={beside / 'cache'}"]
    run_here(apply_overrides(checkpoint_config(payload), places), resume=run)
    for tag, points in expected["resumed"].items():
        kind, _, name = tag.partition("/")
        now = {step: line[name] for step, line in log_of(run, kind).items()}
        assert now == {step: pytest.approx(figure, abs=2e-5) for step, figure in points}, tag
