"""`python test.py`: what it prints, what it writes, what it reuses, and what it says to a mistake."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from conftest import run_script

import test as script
from configs.schema import Subword
from tokenizer.subword import SubwordTokenizer
from translation.metrics import score_corpus
from utils.errors import UserError

SPLIT = 40  # pairs of the tiny run's test split


@pytest.fixture(scope="module")
def run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tiny run that may be written to."""
    return Path(shutil.copytree(trained_run, tmp_path_factory.mktemp("scored") / trained_run.name))


@pytest.fixture(scope="module")
def printed(run: Path) -> str:
    done = run_script("test.py", "--model_path", run, "--char_bleu")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def scores_of(run: Path, name: str) -> dict:
    return json.loads((run / "results" / f"{name}_scores.json").read_text("utf-8"))


def test_every_promised_figure_is_printed_and_written(run: Path, printed: str) -> None:
    record = scores_of(run, "test_beam")
    scores = record["scores"]
    assert scores["n"] == SPLIT
    low, high = scores["interval"]
    assert low <= scores["sacrebleu"] <= high
    for label, figure in (
        ("BLEU-4 (nltk, tokens)", f"{scores['bleu4']:.4f}"),
        ("sacreBLEU", f"{scores['sacrebleu']:.2f}"),
        ("chrF", f"{scores['chrf']:.2f}"),
        ("brevity penalty", f"{scores['brevity_penalty']:.4f}"),
        ("length ratio", f"{scores['length_ratio']:.4f}"),
        ("character BLEU (nltk)", f"{scores['char_bleu']:.4f}"),
    ):
        assert re.search(rf"^{re.escape(label)} +{re.escape(figure)}", printed, re.MULTILINE), label
    assert scores["signature"] in printed
    assert f"loss {record['loss']:.4f}, token accuracy {record['accuracy']:.4f}" in printed
    assert sum(bucket["n"] for bucket in scores["buckets"]) == SPLIT
    assert {"commit", "python", "torch", "hardware"} <= record["provenance"].keys()
    assert record["config"]["model"]["position"]["kind"] == "rope"
    assert record["epoch"] == 2


def test_the_written_lines_are_the_scored_ones(run: Path, printed: str) -> None:
    folder = run / "results"
    src, ref, hyp = (
        (folder / f"test_beam.{kind}.txt").read_text("utf-8").splitlines()
        for kind in ("src", "ref", "hyp")
    )
    again = score_corpus(hyp, ref, src, length_buckets=(10, 15, 20, 30), bootstrap_samples=1000)
    assert len(src) == SPLIT
    assert again.sacrebleu == scores_of(run, "test_beam")["scores"]["sacrebleu"]
    assert sorted(path.name for path in folder.glob("test_beam*")) == [
        "test_beam.hyp.txt",
        "test_beam.ref.txt",
        "test_beam.src.txt",
        "test_beam_scores.json",
    ]
    assert not list(folder.glob(".*"))


def test_a_part_of_a_split_does_not_pass_for_the_whole(
    run: Path, printed: str, capsys: pytest.CaptureFixture
) -> None:
    script.main(
        ["--model_path", str(run), "--limit", "3", "--search", "greedy", "--split", "validation"]
    )
    record = scores_of(run, "validation_first3_greedy")
    assert record["scores"]["n"] == 3
    assert record["search"]["kind"] == "greedy"
    assert record["scores"]["char_bleu"] is None
    assert scores_of(run, "test_beam")["scores"]["n"] == SPLIT


def test_the_loss_is_the_one_in_the_name_of_the_checkpoint(
    run: Path, capsys: pytest.CaptureFixture
) -> None:
    script.main(["--model_path", str(run), "--split", "validation", "--search", "greedy"])
    record = scores_of(run, "validation_greedy")
    assert f"_loss=-{record['loss']:.4f}.pt" in record["checkpoint"]
    assert 0 <= record["accuracy"] <= 1


def test_a_run_against_its_copy_differs_by_nothing_and_stored_translations_are_reused(
    run: Path, printed: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    script.main(["--model_path", str(run), "--compare", str(other)])
    assert f"{run.name} " in capsys.readouterr().out
    # Other stored lines are taken as they are: nothing has said that they are stale.
    references = (other / "results" / "test_beam.ref.txt").read_text("utf-8")
    (other / "results" / "test_beam.hyp.txt").write_text(references, "utf-8")
    script.main(["--model_path", str(run), "--compare", str(other)])
    line = capsys.readouterr().out.splitlines()[-1]
    assert "other 100.00: second minus first +" in line
    assert float(re.search(r"p = ([\d.]+)", line)[1]) < 0.01  # type: ignore[index]
    # Another search makes them stale: the model translates anew, and is its own equal again.
    script.main(["--model_path", str(run), "--compare", str(other), "--set", "decode.beam_size=2"])
    line = capsys.readouterr().out.splitlines()[-1]
    assert "second minus first +0.00, 95% interval +0.00 to +0.00, p = 1.000" in line


def test_scores_do_not_depend_on_the_batch_of_the_search(run: Path, printed: str) -> None:
    found = []
    for search, evaluation in ((3, 7), (32, 64)):
        batches = [f"decode.batch_size={search}", f"evaluate.batch_size={evaluation}"]
        script.main(
            ["--model_path", str(run), *(part for text in batches for part in ("--set", text))]
        )
        record = scores_of(run, "test_beam")
        found.append(
            (
                record["scores"],
                round(record["loss"], 5),
                (run / "results" / "test_beam.hyp.txt").read_text(),
            )
        )
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--split", "tset"], "--split tset: the corpus has test, validation, train"),
        (["--search", "wide"], "invalid choice: 'wide'"),
        (["--limit", "0"], "an integer >= 1"),
        (["--set", "model.d_model=64"], "model.d_model was fixed by training"),
        (["--set", "decode.beam=3"], "unknown key 'decode.beam'"),
        (
            ["--config", "configs/demo.py"],
            "does not fit the checkpoint: model.d_model is 32 in the checkpoint",
        ),
        (["--config", "configs/none.py"], "no such config file"),
        (["--compare", "runs/none_at_all"], "no such checkpoint or run folder"),
        (
            ["--set", "data.src_lang=en", "--set", "data.tgt_lang=fr"],
            "the model translates fr to en",
        ),
        (["--device", "tpu"], "--device tpu"),
    ],
)
def test_a_mistake_gets_one_line_that_names_it(run: Path, args: list[str], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as caught:
        script.main(["--model_path", str(run), *args])
    assert "\n" not in str(caught.value)


def test_a_truncated_checkpoint_and_a_foreign_tokenizer_end_with_one_line(
    run: Path, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(run, tmp_path / "broken"))
    checkpoint = next((broken / "checkpoints").glob("best_checkpoint_2*"))
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    done = run_script("test.py", "--model_path", checkpoint)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {checkpoint}: not a whole checkpoint")
    assert done.stderr.count("\n") == 1

    foreign = Path(shutil.copytree(run, tmp_path / "foreign"))
    shutil.rmtree(foreign / "tokenizer")
    words = ["un tout autre texte", "quite another text"] * 9
    SubwordTokenizer.train(words, Subword(vocab_size=300)).save(foreign / "tokenizer")
    with pytest.raises(UserError, match="is not the one this checkpoint was trained with"):
        script.main(["--model_path", str(foreign)])


def test_results_that_cannot_be_written_end_with_one_line(run: Path, tmp_path: Path) -> None:
    full = Path(shutil.copytree(run, tmp_path / "full"))
    shutil.rmtree(full / "results", ignore_errors=True)
    (full / "results").write_text("a file where the folder should be", "utf-8")
    with pytest.raises(UserError, match="the results cannot be written"):
        script.main(["--model_path", str(full), "--limit", "2"])


def test_help_answers_before_torch_is_imported() -> None:
    code = "import sys, test\ntry: test.main(['--help'])\nexcept SystemExit: print('torch' in sys.modules)"
    done = run_script("-c", code)
    assert done.stdout.strip().endswith("False"), done.stderr
