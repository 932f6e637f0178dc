"""`python rerank.py`: the n best of inference.py by the sum of both directions' scores."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import Scripts, scripted
from sacrebleu.metrics import BLEU

import inference
import rerank
from translation import reranking
from translation.translator import Translator

TEXTS = ["The cat sleeps.", "A cat.", "", "The dog eats the bread and the cat sleeps here."]
SOURCES = ["Le chat dort.", "Un chien mange.", "", "Le chat"]

reranked = scripted(rerank.main)


def line(src: str, texts: list[str]) -> dict[str, Any]:
    """As inference.py writes it, each candidate 0.05 behind the one before."""
    beam = [
        {"text": text, "score": -n / 20, "log_prob": -n / 10, "finished": True}
        for n, text in enumerate(texts)
    ]
    return {"src": src, "greedy": None, "beam": beam}


LINES = [line(src, TEXTS[n:] + TEXTS[:n] if src else [""]) for n, src in enumerate(SOURCES)]


@pytest.fixture
def nbest(tmp_path: Path) -> Path:
    path = tmp_path / "nbest.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in LINES), "utf-8")
    return path


@pytest.fixture(scope="module")
def sums(trained_run: Path) -> Any:
    """weight -> for each line its texts and sums, best first, from each pair scored alone."""
    reverse = Translator.load(trained_run, device="cpu")
    alpha = reverse.decode.length_penalty

    def score(text: str, src: str) -> float:
        found = reverse.score(text, src)
        return found.log_prob / ((5 + len(found.tokens)) / 6) ** alpha if src else 0.0

    scores = {(t, src): score(t, src) for src in SOURCES for t in TEXTS}

    def of_weight(weight: float) -> list[list[tuple[str, float]]]:
        of_lines = []
        for each in LINES:
            texts = [(c["text"], c["score"]) for c in each["beam"]]
            summed = [(t, score + weight * scores[t, each["src"]]) for t, score in texts]
            of_lines.append(sorted(summed, key=lambda pair: -pair[1]))
        return of_lines

    return of_weight


@pytest.mark.parametrize("weight", [0, 0.7])
def test_candidates_rank_by_the_sum_of_the_scores_of_each_pair_alone(
    reranked: Scripts,
    nbest: Path,
    sums: Any,
    trained_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    weight: float,
) -> None:
    monkeypatch.setattr(reranking, "CHUNK", 3)
    args = ("--model_path", trained_run, "--weight", str(weight), "--output", tmp_path / "made")
    assert reranked(*args, "--nbest_file", nbest).code == 0
    expected = sums(weight)
    written = (tmp_path / "made").read_text("utf-8").split("\n")
    assert written == [*(best for (best, _), *_ in expected), ""]
    assert reranked(*args, "--json", stdin=nbest.read_bytes()).code == 0
    objects = [json.loads(each) for each in (tmp_path / "made").read_text("utf-8").splitlines()]
    for found, given, pairs in zip(objects, LINES, expected, strict=True):
        assert {**found, "beam": None} == {**given, "beam": None}
        assert [each["text"] for each in found["beam"]] == [text for text, _ in pairs]
        assert [each["score"] for each in found["beam"]] == pytest.approx(
            [score for _, score in pairs], abs=1e-4
        )
    changed = [pairs[0][0] != each["beam"][0]["text"] for pairs, each in zip(expected, LINES)]
    assert any(changed) == (weight > 0)


def test_the_table_has_the_bleu_of_what_each_weight_chooses(
    reranked: Scripts, nbest: Path, sums: Any, trained_run: Path, tmp_path: Path
) -> None:
    references = ["The cat sleeps here.", "A dog eats the bread.", "", "The cat"]
    (tmp_path / "ref").write_text("\n".join(references), "utf-8")
    args = ("--model_path", trained_run, "--nbest_file", nbest, "--ref_file", tmp_path / "ref")
    weights = (0, 0.7, 3)
    ended = reranked(*args, "--weight", *map(str, weights))
    assert ended.code == 0, ended
    rows = [row.strip("| ").split(" | ") for row in ended.out.splitlines()[2:]]
    chosen = [[best for (best, _), *_ in sums(weight)] for weight in weights]
    bleu = [BLEU(force=True).corpus_score(texts, [references]).score for texts in chosen]
    assert len(set(bleu)) > 1
    shown = [f"**{each:.2f}**" if each == max(bleu) else f"{each:.2f}" for each in bleu]
    assert [row[:2] for row in rows] == [[f"{w:g}", each] for w, each in zip(weights, shown)]
    differences = [row[2].split()[0] for row in rows[1:]]
    assert differences == [f"{each - bleu[0]:+.2f}" for each in bleu[1:]]


def test_what_inference_writes_is_read(
    reranked: Scripts, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ("--model_path", trained_run)
    texts = [part for src in SOURCES if src for part in ("--src_text", src)]
    search = ("--search", "beam", "--beam_size", "3", "--n_best", "3", "--json")
    monkeypatch.setattr(reranked, "main", inference.main)
    found = reranked(*model, *texts, *search).out
    monkeypatch.setattr(reranked, "main", rerank.main)
    assert reranked(*model, "--weight", "0", "--json", stdin=found.encode()).out == found
    best = [json.loads(each)["beam"][0]["text"] for each in found.splitlines()]
    assert reranked(*model, "--weight", "0", stdin=found.encode()).out.split("\n") == [*best, ""]
