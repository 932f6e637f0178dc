"""`python test.py` and `python tune.py`: what they print, what they write, and what they reuse."""

import contextlib
import io
import json
import os
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from made_runs import copy_run
from sacrebleu.metrics import CHRF

import test as test_script
import tune
from checkpoints.run import REGULAR, Run
from configs.schema import Beam, DecodeConfig, Sampling
from configs.serialize import apply_overrides
from tokenizer.build import load_tokenizer
from translation import mbr, metrics, tuning
from translation.evaluation import EvaluationSet, Result, evaluate, search_identity
from translation.loading import load_run
from translation.metrics import bleu_tokenizer, score_corpus
from translation.translator import Translator
from translation.tuning import Grid
from utils.errors import UserError

SPLIT = 40  # pairs of the tiny run's test split
FEW = ("--set", "evaluate.bootstrap_samples=2")


@pytest.fixture(scope="module")
def run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tiny run that may be written to."""
    return copy_run(trained_run, tmp_path_factory.mktemp("scored"))


@pytest.fixture(scope="module")
def printed(run: Path) -> str:
    return score("--model_path", run, "--char_bleu")


def score(*args: str | Path) -> str:
    """What test.py prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        test_script.main([str(arg) for arg in args])
    return out.getvalue()


@pytest.fixture(autouse=True)
def of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """BLEU counts words as the language of the translations has them, wherever it is asked for."""

    def tokenizer(language: str) -> str:
        assert language == "en"
        return bleu_tokenizer(language)

    for module in (mbr, metrics):
        monkeypatch.setattr(module, "bleu_tokenizer", tokenizer)


def record_of(run: Path, name: str) -> dict[str, Any]:
    return json.loads((run / "results" / f"{name}_scores.json").read_text("utf-8"))


def test_every_promised_figure_is_printed_and_written(run: Path, printed: str) -> None:
    record = record_of(run, "test_beam")
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
    tokenizer = load_tokenizer(run / "tokenizer")
    references = (run / "results" / "test_beam.ref.txt").read_text("utf-8").splitlines()
    n_tokens = sum(len(tokenizer.encode_tgt(line)) for line in references)
    by_character = record["loss"] * n_tokens / len("".join(references))
    assert record["character_loss"] == pytest.approx(by_character)
    assert f"loss a character {by_character:.4f}; " in printed
    assert sum(bucket["n"] for bucket in scores["buckets"]) == SPLIT
    assert {"commit", "python", "torch", "device", "hardware"} <= record["provenance"].keys()
    trained = record["trained"]  # with precision "auto"
    assert (trained["device"], trained["precision"]) == ("cpu", "fp32")
    assert trained["hardware"].endswith(" threads")
    # All that decides the translations, by which stored ones are known again.
    decisive = {"checkpoint_sha256", "data_fingerprint", "limit", "max_len", "eval_long", "search"}
    assert decisive <= record.keys()
    assert record["config"]["model"]["position"]["kind"] == "rope"
    assert record["epoch"] == 2
    # The written lines are the scored ones.
    names = {kind: f"test_beam.{kind}.txt" for kind in ("hyp", "ref", "src")}
    lines = [(run / "results" / name).read_text("utf-8").splitlines() for name in names.values()]
    again = score_corpus(*lines, length_buckets=(10, 15), bootstrap_samples=2, language="en")
    assert (again.n, again.chrf) == (SPLIT, scores["chrf"])
    assert scores["chrf"] > 0
    written = {path.name for path in (run / "results").glob("*test_beam*")}
    assert written == {*names.values(), "test_beam_scores.json"}


def test_a_part_of_a_split_does_not_pass_for_the_whole(run: Path) -> None:
    args = ("--model_path", run, "--split", "validation", "--search", "greedy", *FEW)
    score(*args)
    score(*args, "--limit", "3", "--set", "data.max_len=5")  # longer references are kept
    whole, part = (record_of(run, f"validation{first}_greedy") for first in ("", "_first3"))
    assert (whole["scores"]["n"], part["scores"]["n"]) == (SPLIT, 3)
    assert part["search"]["kind"] == "greedy"
    assert part["scores"]["char_bleu"] is None
    assert part["character_loss"] > 0
    said = score(
        *args, "--limit", "3", *"--set data.max_len=5 --set data.eval_long=truncate".split()
    )
    cut = record_of(run, "validation_first3_greedy")
    assert (cut["eval_long"], cut["character_loss"]) == ("truncate", None)
    assert "loss a character –; " in said
    # The loss is the one in the name of the checkpoint.
    assert f"_loss=-{whole['loss']:.4f}.pt" in whole["checkpoint"]
    assert 0 <= whole["accuracy"] <= 1


def test_a_scored_search_has_a_name_and_an_identity_of_its_own(run: Path) -> None:
    def search_of(args: str, name: str) -> dict[str, Any]:
        score("--model_path", run, "--limit", "2", *FEW, *args.split())
        return record_of(run, f"test_first2_{name}")["search"]

    found = search_of("--search sample --mbr bleu --set decode.n_best=6", "sample_mbr_bleu")
    assert (found["n_best"], found["mbr"]) == (6, "bleu")
    found = search_of("--search sample --set decode.search.temperature=0.5", "sample")
    assert (found["kind"], found["temperature"], found["seed"]) == ("sample", 0.5, 0)
    assert found["n_best"] == 1  # only one is scored
    assert "beam_size" not in found
    assert search_of("--search diverse", "diverse")["strength"] == 0.5


def test_a_run_against_its_copy_differs_by_nothing_and_stored_translations_are_reused(
    run: Path, printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = copy_run(run, tmp_path)
    against, stored = ("--model_path", run, "--compare", other), other / "results/test_beam.hyp.txt"
    # Other stored lines are taken as they are: nothing has said that they are stale.
    references = (other / "results/test_beam.ref.txt").read_text("utf-8")
    stored.write_text(references, "utf-8")
    record = record_of(other, "test_beam") | {"hyp_crc32": zlib.crc32(references.encode())}
    (other / "results/test_beam_scores.json").write_text(json.dumps(record), "utf-8")
    lowest, apart = (
        score(*against, "--worst", "2").split("\nlowest chrF:\n")[1].split("\ntest_beam: ")
    )
    apart, line = apart.splitlines(), f"test_beam: {apart.splitlines()[0]}"
    ours = (run / "results/test_beam.hyp.txt").read_text("utf-8").splitlines()
    theirs, sources = (
        references.splitlines(),
        (run / "results/test_beam.src.txt").read_text("utf-8"),
    )
    chrf = [CHRF().sentence_score(a, [b]).score for a, b in zip(ours, theirs)]
    first, second = sorted(range(len(chrf)), key=chrf.__getitem__)[:2]
    one = [f"line {first + 1}", f"    src    {sources.splitlines()[first]}"]
    one += [f"    ref    {theirs[first]}", f"  {chrf[first]:5.1f}    {ours[first]}"]
    assert lowest.splitlines()[:5] == [*one, f"line {second + 1}"]
    what = f"chrF differs most, {run.name} first:"
    assert apart[2:9] == [what, *one, f"  100.0    {theirs[first]}", f"line {second + 1}"]
    assert line.startswith(f"test_beam: {run.name} ")
    assert f"{other.name} 100.00: second minus first +" in line
    assert float(re.findall(r"p = ([\d.]+)", line)[0]) < 0.01
    # Another search makes them stale, and so does a bit turned over: the model translates anew, and
    # is its own equal again.
    equal = "second minus first +0.00, 95% interval +0.00 to +0.00, p = 1.000"
    assert "replaced" not in capsys.readouterr().err
    assert equal in score(*against, "--set", "decode.beam_size=2").splitlines()[-2]
    assert (
        "/results/test_beam.*, which were of other weights, another text or search"
        in capsys.readouterr().err
    )
    stored.write_text(chr(ord(references[0]) ^ 1) + references[1:], "utf-8")
    of_bleu, of_chrf = score(*against).splitlines()[-2:]
    assert equal in of_bleu
    assert re.fullmatch(rf"chrF ([0-9.]+), \1: {re.escape(equal)}", of_chrf)
    # Of one run, however its path is spelt, the checkpoints are named; an ensemble says that it is.
    last = os.path.relpath(Run(run).files(REGULAR)[-1])
    line = score("--model_path", run, "--compare", last, "--limit", "2").splitlines()[-2]
    assert f": {Run(run).best().name} " in line
    assert f" {Path(last).name} " in line
    line = score("--model_path", run, last, "--compare", run, "--limit", "2").splitlines()[-2]
    # The results of one checkpoint do not take the place of another's.
    score("--model_path", last, "--limit", "2", *FEW)
    score("--model_path", run, "--limit", "2", *FEW)
    kept = record_of(run, f"test_first2_beam_{Path(last).stem}")
    assert not list((run / "results").glob(f"test_first2_beam_{Run(run).best().stem}*"))
    assert (kept["checkpoint"], kept["scores"]["n"]) == (Path(last).name, 2)
    translate = EvaluationSet.translate
    with mock.patch.object(EvaluationSet, "translate", autospec=True) as searched:
        searched.side_effect = translate
        score("--model_path", run, "--compare", last, "--limit", "2", *FEW)
    assert searched.call_count == 1  # what was kept is read
    capsys.readouterr()
    score("--model_path", last, "--limit", "2", *FEW, "--set", "decode.beam_size=2")
    replaced = f"/test_first2_beam_{Path(last).stem}.*, which were of other weights, another text"
    assert replaced in capsys.readouterr().err
    score("--model_path", run, "--limit", "2", *FEW)
    assert record_of(run, "test_first2_beam")["checkpoint"] == Run(run).best().name
    assert re.search(f": {run.name} and 1 more [0-9.]+, {run.name} [0-9.]+: ", line)


def test_pairs_that_are_left_out_are_counted(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "test.fr").write_text("Le chat dort.\n\nOui.\nNon.\n", "utf-8")
    (tmp_path / "test.en").write_text("The cat sleeps.\nNo one.\nE\u0301ve.\n\n", "utf-8")
    corpus = "data.corpus=files", f"data.corpus.root={tmp_path}", "data.corpus.test=test"
    out = score("--model_path", run, *(each for text in corpus for each in ("--set", text)))
    assert "\nleft out of the split: 2 empty\n" in out
    record = record_of(run, "test_beam")
    assert (record["skipped"], record["scores"]["n"]) == ({"empty": 2}, 2)
    assert caplog.messages[0].startswith("test: 1 of 2 references are not in Unicode's form NFC")


def test_every_split_is_read_before_the_first_is_translated(run: Path, tmp_path: Path) -> None:
    for lang in ("fr", "en"):
        (tmp_path / f"test.{lang}").write_text("Non.\n", "utf-8")
    corpus = "data.corpus=files", f"data.corpus.root={tmp_path}", "data.corpus.test=test,nws"
    with (
        mock.patch("translation.evaluation.evaluate") as search,
        pytest.raises(UserError, match=r"neither .*nws\.fr nor"),
    ):
        score("--model_path", run, *(each for text in corpus for each in ("--set", text)))
    assert not search.mock_calls


def test_stored_translations_are_those_of_the_same_text(trained_run: Path, tmp_path: Path) -> None:
    run = copy_run(trained_run, tmp_path)
    (tmp_path / "test.en").write_text("Yes.\nNo.\n", "utf-8")
    sets = ["data.corpus=files", f"data.corpus.root={tmp_path}", "data.corpus.test=test"]
    sets += FEW[1:]

    def pairs(french: str) -> EvaluationSet:
        (tmp_path / "test.fr").write_text(french, "utf-8")
        loaded = load_run(run, change=lambda config: apply_overrides(config, sets))
        translator = Translator.of(loaded, torch.device("cpu"))
        return EvaluationSet(loaded, translator, "test", True, None)

    before = pairs("Oui.\nNon.\n")
    evaluate(before).write()
    assert pairs("Oui.\nNon.\n").stored_hypotheses() is not None
    assert pairs("Oui.\nSi.\n").stored_hypotheses() is None
    before.loaded.checkpoint.unlink()  # as a training that goes on does
    assert before.stored_hypotheses() is not None


@pytest.mark.parametrize("greedy", [False, True])
def test_all_that_decides_a_search_is_in_its_identity(run: Path, greedy: bool) -> None:
    loaded = load_run(run)
    decode = loaded.config.decode
    changes = {"beam_size": 9, "length_penalty": 0.1, "max_len": 7, "max_len_ratio": 1.1}
    changes |= {"search": Sampling(seed=1), "batch_size": 3}
    found = {}
    for name, value in {"": None, **changes}.items():
        config = replace(loaded.config, decode=replace(decode, **({name: value} if name else {})))
        changed = replace(loaded, config=config)
        translator = Translator.of(changed, torch.device("cpu"))
        found[name] = search_identity(changed, translator, greedy=greedy)
    of_no_matter = {name for name in changes if found[name] == found[""]}
    assert of_no_matter == {"batch_size", *(("beam_size", "search") if greedy else ())}


# ------------------------------------------------------------------------------------------- tuning


def test_the_best_is_the_highest_and_of_equals_the_cheapest() -> None:
    cells = {(4, 1.0): 31.5, (4, 0.0): 30.0, (1, 1.0): 30.0, (1, 0.0): 30.0}
    grid = Grid("valid", 9, cells)
    assert grid.best() == (4, 1.0)
    assert Grid("valid", 9, {**cells, (4, 1.0): 29.0}).best() == (1, 0.0)
    assert grid.markdown().splitlines() == [
        "| beam | penalty 0 | penalty 1 |",
        "| --- | ---: | ---: |",
        "| 1 | 30.00 | 30.00 |",
        "| 4 | 30.00 | **31.50** |",
    ]
    more = {("9", *cell): bleu for cell, bleu in cells.items()} | {("8", 1, 0.0): 31.5}
    varied = Grid(
        "valid",
        9,
        more | {("8", 4, 0.0): 0.0, ("8", 1, 1.0): 0.0, ("8", 4, 1.0): 1.0},
        ("decode.max_len",),
    )
    assert varied.best() == ("8", 1, 0.0)  # the smaller beam
    assert varied.markdown().splitlines()[2:] == [
        "| 9 | 1 | 30.00 | 30.00 |",
        "| 9 | 4 | 30.00 | 31.50 |",
        "| 8 | 1 | **31.50** | 0.00 |",
        "| 8 | 4 | 0.00 | 1.00 |",
    ]
    best, *commands = varied.flags().splitlines()
    assert best == "best: decode.max_len=8, beam 1, length penalty 0 (valid, 9 sentences)"
    assert [command.endswith(" --set decode.max_len=8") for command in commands] == [True, True]
    given = ["decode.max_len=20", "data.corpus.root=a b", "decode.mbr=none"]
    assert grid.flags(["run 1"], given).splitlines()[
        1:
    ] == [  # no config line: it would lack what was set
        "python inference.py --beam_size 4 --length_penalty 1 --model_path 'run 1' "
        "--set decode.max_len=20 --set decode.mbr=none",
        "python test.py --set decode.beam_size=4 --set decode.length_penalty=1 --model_path "
        "'run 1' --set decode.max_len=20 --set 'data.corpus.root=a b' --set decode.mbr=none",
    ]
    as_config = "decode=replace(base.decode, beam_size=4, length_penalty=1.0, n_best=4)"
    assert grid.flags().splitlines()[3:] == [as_config]


@pytest.mark.slow
def test_every_cell_of_the_grid_is_the_score_of_test_py_and_the_flags_name_the_best(
    run: Path, tmp_path: Path, in_process: Any
) -> None:
    table = tmp_path / "grid.md"
    args = ("--beam", "3", "1", "--length_penalty", "0", "1.5", "--limit", "4", "--markdown", table)
    table.symlink_to(tmp_path / "kept.md")
    search = in_process(tune.main)
    ended = search("--model_path", run, *args)
    assert ended.code == 0, ended
    assert table.is_symlink()
    assert ended.err.count("length penalty") == 3  # a beam of 1 is searched once
    rows = [line for line in ended.out.splitlines() if line.startswith("|")]
    assert table.read_text("utf-8").splitlines() == rows
    figures = [[float(cell.strip(" *")) for cell in row.strip("|").split("|")] for row in rows[2:]]
    assert [row[0] for row in figures] == [1, 3]
    found = {}
    for beam, *scores in figures:
        for penalty, shown in zip((0, 1.5), scores):
            flags = f"--set decode.beam_size={beam:g} --set decode.length_penalty={penalty:g}"
            score("--model_path", run, *f"--split validation --limit 4 {flags}".split(), *FEW)
            record = record_of(run, "validation_first4_beam")
            assert shown == pytest.approx(record["scores"]["sacrebleu"], abs=0.00501)
            found[f"python test.py {flags} --model_path {run}"] = record["scores"]["sacrebleu"]
    [best] = [line for line in ended.out.splitlines() if line.startswith("python test.py")]
    assert found[best] == max(found.values())
    newest = ["--runs_dir", run.parent, "--beam", "1", "--length_penalty", "0", "--limit", "4"]
    ended = search(*newest, "--vary", "decode.max_len=1,50", "--set", "decode.max_len_ratio=2")
    set_so = "--set decode.max_len_ratio=2 --set decode.max_len=50"
    assert f" --model_path {run} {set_so}\n" in ended.out, ended
    [short, whole] = [line for line in ended.out.splitlines() if line.startswith("| ")][2:]
    assert short == "| 1 | 1 | 0.00 |"
    assert whole.startswith("| 50 | 1 | **")
    assert "decode.max_len=1, beam 1, length penalty 0: BLEU 0.00 (" in ended.err
    assert "s, cut off: 4)\n" in ended.err
    flags = "--split validation --limit 4 --search greedy --set decode.max_len=1"
    out = score("--model_path", run, *flags.split(), *FEW)
    said = "\ntranslations cut off by decode.max_len or decode.max_len_ratio: 4\n"
    assert said in out
    assert record_of(run, "validation_first4_greedy")["cut_off"] == 4


def test_another_run_has_to_be_given_the_same_references() -> None:
    pairs, other = mock.Mock(references=["a", "b"]), mock.Mock(references=["a", "c"])
    with pytest.raises(UserError, match="was scored on other pairs of"):
        Result(pairs, ["a", "b"], mock.Mock(), 0.0, 0.0, 0.0, 0).compared_with(other)


def test_a_grid_is_of_plain_beams_whatever_the_run_searches_by() -> None:
    pairs = mock.Mock(references=["a"], split="valid")
    pairs.loaded.config.data.tgt_lang = "en"
    decode = DecodeConfig(search=Sampling(), mbr="chrf", n_best=4)
    pairs.translate.return_value = ["a"], 0.1, 0
    tuning.tune(pairs, {(): decode}, beams=[1, 2], penalties=[0.5, 1.0])
    asked = [call.args[0] for call in pairs.translate.call_args_list]
    assert {(each.search, each.mbr, each.n_best) for each in asked} == {(Beam(), None, 1)}
    of_one, *rest = [(each.beam_size, each.length_penalty) for each in asked]
    assert (of_one, rest) == ((1, 0.5), [(2, 0.5), (2, 1.0)])
