"""`python rerank.py`: the n best of inference.py by the sum of both directions' scores."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_runs import Scripts, scripted
from sacrebleu.metrics import BLEU

import inference
import rerank
from translation import reranking
from translation.answers import Candidate, Translated
from translation.metrics import paired_bootstrap
from translation.search import BatchSearch
from translation.translator import Translator
from utils.errors import UserError

TEXTS = ["The cat sleeps.", "A\ncat.", "", "The dog eats the bread and the cat sleeps here."]
SOURCES = ["Le chat dort.", "Un chien mange.", "", "Le chat"]

reranked = scripted(rerank.main)


def line(src: str, texts: list[str]) -> dict[str, Any]:
    """As inference.py writes it, each candidate 0.02 behind the one before."""
    beam = [
        {"text": text, "score": -n / 50, "log_prob": -n / 10, "finished": True}
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
def sums(translator: Translator) -> Any:
    """weight -> for each line texts, sums and reverse scores, best first, each pair alone."""
    alpha = translator.decode.length_penalty

    def score(text: str, src: str) -> float:
        found = translator.score(text, src)
        return found.log_prob / ((5 + len(found.tokens)) / 6) ** alpha if src else 0.0

    scores = {(t, src): score(t, src) for src in SOURCES for t in TEXTS}

    def of_weight(weight: float) -> list[list[tuple[str, float, float]]]:
        of_lines = []
        for each in LINES:
            reverse = [scores[found["text"], each["src"]] for found in each["beam"]]
            summed = [
                (found["text"], found["score"] + weight * other, other)
                for found, other in zip(each["beam"], reverse)
            ]
            of_lines.append(sorted(summed, key=lambda found: -found[1]))
        return of_lines

    return of_weight


@pytest.mark.parametrize("weight", [0, None, 0.7])
def test_candidates_rank_by_the_sum_of_the_scores_of_each_pair_alone(
    reranked: Scripts,
    nbest: Path,
    sums: Any,
    trained_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    weight: float | None,
) -> None:
    monkeypatch.setattr(reranking, "CHUNK", 3)
    args = ["--model_path", trained_run, "--output", tmp_path / "made", "--nbest_file", nbest]
    args += [] if weight is None else ["--weight", f"{weight}"]
    ended = reranked(*args)
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == "the n best are taken to go en to fr: --model_path goes fr to en\n"
    expected = sums(0.2 if weight is None else weight)
    written = (tmp_path / "made").read_text("utf-8").split("\n")
    assert written == [*(best.replace("\n", " ") for (best, *_), *_ in expected), ""]
    assert reranked(*args, "--json").code == 0
    again = reranked("--model_path", trained_run, "--nbest_file", tmp_path / "made").error()
    assert "line 1: not as inference.py --json --n_best N writes (beam or samples, not rer" in again
    objects = [json.loads(each) for each in (tmp_path / "made").read_text("utf-8").splitlines()]
    for found, given, of_line in zip(objects, LINES, expected, strict=True):
        assert {**found, "beam": None} == {**given, "beam": None}
        candidates = {each["text"]: each for each in given["beam"]}
        for each, (text, total, other) in zip(found["beam"], of_line, strict=True):
            score, reverse = (pytest.approx(value, abs=1e-4) for value in (total, other))
            assert each == {**candidates[text], "score": score, "reverse": reverse}
    changed = [of_line[0][0] != each["beam"][0]["text"] for of_line, each in zip(expected, LINES)]
    assert any(changed) == (weight != 0)


def test_the_table_has_the_bleu_of_what_each_weight_chooses_beside_that_of_none(
    reranked: Scripts, nbest: Path, sums: Any, trained_run: Path, tmp_path: Path
) -> None:
    references = ["The cat sleeps here.", "A dog eats the bread.", "", "The cat"]
    (tmp_path / "ref").write_text("\n".join(references), "utf-8")
    args = ("--model_path", trained_run, "--nbest_file", nbest, "--ref_file", tmp_path / "ref")

    def rows(*more: str) -> list[list[str]]:
        ended = reranked(*args, *more)
        assert ended.code == 0, ended
        return [row.strip("| ").split(" | ") for row in ended.out.splitlines()[2:]]

    weights = (0, 0.7, 3)
    chosen = [[best for (best, *_), *_ in sums(weight)] for weight in weights]
    bleu = [BLEU(force=True).corpus_score(texts, [references]).score for texts in chosen]
    assert len(set(bleu)) > 1
    expected = [[f"{bleu[0]:.2f}"]]
    for texts in chosen[1:]:
        paired = paired_bootstrap(chosen[0], texts, references, samples=1000, seed=0)
        low, high = paired.interval
        beside = f"{paired.difference:+.2f} ({low:+.2f} to {high:+.2f})"
        expected.append([f"{paired.score_b:.2f}", beside, f"{paired.p_value:.3f}"])
    for row, value in zip(expected, bleu):
        row[0] = f"**{row[0]}**" if value == max(bleu) else row[0]
    found = rows("--weight", "3", "--weight", "0.7")
    assert found[1:] == [[f"{w:g}", *row] for w, row in zip(weights[1:], expected[1:])]
    assert found[0][:2] == ["0", *expected[0]]
    assert [row[0] for row in rows()] == "0 0.1 0.2 0.3 0.4 0.5 0.7 1".split()


def test_what_was_cut_off_has_not_paid_for_its_end_and_comes_last() -> None:
    cut, whole = Candidate("A", -1.0, -1.0, False), Candidate("A cat.", -2.0, -2.0, True)
    found = reranking.Scored(Translated("Un chat.", None, [whole, cut]), [0.0, 0.0]).ranked(0)
    assert [each.text for each in found.beam] == ["A cat.", "A"]


def test_what_inference_writes_is_read(
    reranked: Scripts, trained_run: Path, tmp_path: Path, in_process: Any
) -> None:
    model = ("--model_path", trained_run)
    texts = [part for src in SOURCES if src for part in ("--src_text", src)]
    search = ("--search", "both", "--beam_size", "3", "--n_best", "3", "--json")
    found = in_process(inference.main)(*model, *texts, *search).out
    path = tmp_path / "found.gz"
    path.write_bytes(gzip.compress(found.encode()))
    ended = reranked(*model, "--nbest_file", path, "--weight", "0", "--json")
    again = [json.loads(each) for each in ended.out.splitlines()]
    for each in again:
        assert all(candidate.pop("reverse") < 0 for candidate in each["beam"])
    assert again == [json.loads(each) for each in found.splitlines()]


GOOD = json.dumps(line("Oui.", ["Yes."]))
BAD = ["", "[]", "3", "null", "[" * 100_000, '{"src": "Oui."}', GOOD.replace('"Oui."', "3")]
BAD += [GOOD.replace(*each) for each in (("[{", "[3, {"), ('"Yes."', "null"), (": 0.0", ': "0"'))]
BAD += [GOOD.replace(": 0.0", f": {number}", 1) for number in ("NaN", "-1e999", f"-1{'0' * 400}")]
BAD += [GOOD.replace('"log_prob": 0.0', '"log_prob": NaN')]
BAD += [GOOD.replace('"text"', '"words"'), json.dumps({**line("Oui.", [])})]


@pytest.mark.parametrize("bad", BAD)
def test_a_line_that_is_no_n_best_list_is_named(bad: str) -> None:
    lines = reranking.read_nbest([GOOD, bad], "nbest")
    assert next(lines).src == "Oui."
    with pytest.raises(
        UserError, match=r"nbest, line 2: not as inference\.py --json --n_best N wri"
    ):
        next(lines)
    above = GOOD.replace(": 0.0", ": 71.3", 1)
    with pytest.raises(UserError, match="line 1: a score above 0 is not a log-probability"):
        next(reranking.read_nbest([above], "nbest"))


def test_a_candidate_that_is_too_long_is_named_by_its_line(
    reranked: Scripts, nbest: Path, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reranking, "CHUNK", 3)
    long = f"{json.dumps(line('Oui.', ['Yes.', 'cat ' * 99]))}\n"
    nbest.write_text(nbest.read_text("utf-8") + long, "utf-8")
    most = {"source": None, "target": 90}  # of a scheme that is bounded on one side
    monkeypatch.setattr(BatchSearch, "longest", lambda self, side: most[side])
    ended = reranked("--model_path", trained_run, "--nbest_file", nbest)
    assert re.search(
        r"error: line 5 of the translations: \d+ tokens, and the model takes 90 at", ended.err
    )
    assert (ended.code, ended.out.count("\n")) == (2, 3)
