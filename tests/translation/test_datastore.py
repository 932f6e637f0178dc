"""Datastores: what a model read it can say by heart; how they are made, used and refused."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import tiny_args
from made_runs import Scripts, best_of, copy_run
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import datastore
import inference
import test as test_script
import train as train_script
import tune
from data.corpora.build import build_corpus
from translation.evaluation import EvaluationSet
from translation.loading import load_run
from translation.translator import Translator
from utils.files import sha256

SPLIT = 40  # pairs of the tiny run's validation split
BY_HEART = ("k=1", "weight=0.999")
LONG = ("decode.max_len=99", "decode.max_len_ratio=9")


@pytest.fixture(scope="module")
def run(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_run(trained_run, tmp_path_factory.mktemp("datastores"))


@pytest.fixture
def make(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Scripts:
    return Scripts(datastore.main, capsys, monkeypatch)


@pytest.fixture
def translate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Scripts:
    return Scripts(inference.main, capsys, monkeypatch)


@pytest.fixture(scope="module")
def store(run: Path) -> Path:
    """Of the validation split, under the script's own name for it."""
    datastore.main(["--model_path", str(run), "--split", "validation"])
    [path] = (run / "datastores").iterdir()
    return path


def settings(*stores: Path) -> list[str]:
    named = f"datastore={','.join(map(str, stores))}"
    near = (f"decode.neighbours.{each}" for each in (named, *BY_HEART))
    return [word for value in (*near, *LONG) for word in ("--set", value)]


def test_a_text_that_was_read_is_said_by_heart(
    run: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model translates badly, but each state of a reference finds itself in the datastore."""
    score = ["--model_path", str(run), "--split", "validation", "--search", "greedy"]
    test_script.main([*score, *settings(store), "--compare", str(run)])  # without neighbours
    line = capsys.readouterr().out.splitlines()[-2]
    assert " with neighbours 100.00, " in line
    assert " 0.03: second minus first -99.97, " in line
    results = run / "results"
    found = (results / "validation_greedy_neighbours.hyp.txt").read_text("utf-8")
    assert found == (results / "validation_greedy_neighbours.ref.txt").read_text("utf-8")
    record = json.loads((results / "validation_greedy_neighbours_scores.json").read_text("utf-8"))
    near = {"k": 1, "temperature": 10.0, "weight": 0.999, "datastore": [sha256(store)]}
    assert record["neighbours"] == near
    test_script.main(score)
    plain = json.loads((results / "validation_greedy_scores.json").read_text("utf-8"))
    assert plain["loss"] == record["loss"]  # of the model alone
    assert plain["scores"]["sacrebleu"] < 50
    assert "neighbours" not in plain


def test_keys_are_the_states_before_the_tokens(run: Path, store: Path) -> None:
    loaded = load_run(run)
    text = build_corpus(loaded.config.data).load("validation").fingerprint()[:8]
    assert store.name == f"{best_of(run).stem}_validation_{text}.safetensors"
    translator = Translator.of(loaded, torch.device("cpu"))
    pairs = EvaluationSet(loaded, translator, "validation", greedy=True, limit=None)
    tensors = load_file(store)
    assert len(pairs.ids) == SPLIT
    assert tensors["values"].tolist() == pairs.ids.tgt_ids.tolist()
    logits = loaded.model.project(tensors["keys"].float()).detach()
    scores = translator.score(pairs.sources, pairs.references)
    expected = [p for score in scores for p in score.log_probs]
    found = logits.log_softmax(dim=-1).gather(1, tensors["values"].long()[:, None])[:, 0]
    torch.testing.assert_close(found, torch.tensor(expected), atol=0.02, rtol=0)


def test_processes_and_prefixes_and_links_serve_neighbours_too(
    run: Path, store: Path, translate: Scripts, tmp_path: Path
) -> None:
    corpus = build_corpus(load_run(run).config.data)
    text = corpus.load("validation")
    (tmp_path / "fr").write_text("".join(f"{line}\n" for line in text.src[:6]), "utf-8")
    few = ["--model_path", run, "--src_file", tmp_path / "fr", *settings(store)]
    few += ["--set", "decode.batch_size=2"]
    alone = translate(*few)
    assert alone.out.splitlines() == list(text.tgt[:6])
    assert translate(*few, "--workers", "2", "--threads", "1").out == alone.out
    one = ["--model_path", run, "--src_text", text.src[0], *settings(store)]
    begun = text.tgt[0].split()[0]
    assert translate(*one, "--prefix", begun, "--align").out.splitlines()[1] == text.tgt[0]


def test_their_weight_can_be_tuned(run: Path, store: Path, in_process: Any) -> None:
    given = [f"decode.neighbours.datastore={store}", "decode.neighbours.k=1", *LONG]
    sets = [word for text in given for word in ("--set", text)]
    vary = ("--vary", "decode.neighbours.weight=0.999,0.001")
    few = ("--model_path", run, "--split", "validation", "--limit", "4", "--beam", "1")
    ended = in_process(tune.main)(*few, "--length_penalty", "0", *sets, *vary)
    first, second = ended.out.splitlines()[4:6]
    assert first == "| 0.999 | 1 | **100.00** |"
    assert second.startswith("| 0.001 | 1 | 0.")


def test_every_model_of_an_ensemble_has_its_own(run: Path, store: Path, translate: Scripts) -> None:
    corpus = build_corpus(load_run(run).config.data)
    text = corpus.load("validation")
    one = ["--src_text", text.src[1]]
    both = translate("--model_path", run, run, *one, *settings(store, store))
    assert both.out.splitlines()[1] == text.tgt[1]
    said = translate("--model_path", run, run, *one, *settings(store)).error()
    assert said.startswith("decode.neighbours.datastore names 1 files for 2 models")


def test_a_datastore_that_does_not_serve_is_refused(
    run: Path, store: Path, translate: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ["--model_path", run, "--src_text", "Oui."]
    said = translate(*one, *settings(tmp_path / "none")).error()
    make = f"; make its own by datastore.py --model_path {best_of(run)}"
    given = f"decode.neighbours.datastore: {tmp_path}"
    assert said == f"{given}/none: No such file or directory{make}"
    said = translate(*one, *settings(tmp_path)).error()
    assert said == f"{given}: Is a directory{make}"
    (tmp_path / "cut").write_bytes(store.read_bytes()[:-9])
    said = translate(*one, *settings(tmp_path / "cut")).error()
    assert said.startswith(f"{given}/cut: not a datastore, SafetensorError: ")
    assert said.endswith(make)
    save_file(load_file(store), tmp_path / "elsewhere")
    said = translate(*one, *settings(tmp_path / "elsewhere")).error()
    assert said.startswith(
        f"{tmp_path / 'elsewhere'} has the states of another checkpoint or config"
    )
    content = load_file(store)
    with safe_open(store, "pt") as file:
        made_for = file.metadata()
    for wrong in (
        {"values": content["values"] + 10**6},
        {"values": content["values"][1:]},
        {"keys": content["keys"][:, 1:]},
        {"keys": content["keys"] / 0},
        {"keys": content["keys"][:0], "values": content["values"][:0]},
    ):
        tensors = {name: tensor.contiguous() for name, tensor in (content | wrong).items()}
        save_file(tensors, tmp_path / "wrong", made_for)
        said = translate(*one, *settings(tmp_path / "wrong")).error()
        assert said == f"{tmp_path / 'wrong'} is damaged, or no datastore of this model{make}"
    other = copy_run(run, tmp_path / "other")
    payload = torch.load(best_of(other), weights_only=True)
    torch.save({**payload, "more": 1}, best_of(other))
    said = translate("--model_path", other, *one[2:], *settings(store)).error()
    assert said == (
        f"{store} has the states of another checkpoint or config: make its own by datastore.py "
        f"--model_path {best_of(other)}"
    )
    said = translate(*one, *settings(store), "--precision", "bf16").error()
    assert said == "decode.neighbours needs float32: leave --precision out"
    monkeypatch.setattr("utils.machine.BF16_FROM_D_MODEL", 0)
    monkeypatch.setattr("utils.machine.computes_bf16", lambda device: True)
    assert translate(*one, *settings(store), "--precision", "auto").code == 0
    said = translate(*one, *settings(store), "--engine", "ctranslate2").error()
    assert "decode.neighbours: CTranslate2 lacks it; use --engine torch" in said
    said = translate(*one, "--set", "decode.neighbours.k=3").error()
    assert said.endswith("datastore = (): other settings of neighbours need one (datastore.py)")


def test_the_pairs_of_a_datastore_are_those_that_training_takes(
    run: Path, make: Scripts, tmp_path: Path
) -> None:
    for lang, word in (("fr", "oui"), ("en", "yes")):
        lines = f"{word} .", " ".join([word] * 99), "", f"{word} {word} ."
        (tmp_path / f"holes.{lang}").write_text("\n".join([*lines, ""]), "utf-8")
    corpus = "corpus=files", f"corpus.root={tmp_path}", "corpus.test=holes", "max_len=50"
    out = tmp_path / "new folder" / "st"
    args = ["--model_path", run, "--split", "holes", "--output", out]
    args += [word for text in corpus for word in ("--set", f"data.{text}")]
    two = make(*args).out.splitlines()
    assert two[0].endswith(f" target tokens of 2 pairs, written: {out}")
    assert two[1] == f"use it with --set 'decode.neighbours.datastore={out}'"
    first = load_file(out)
    assert len(first["keys"]) == len(first["values"])
    assert make(*args, "--limit", "1").code == 0
    one = load_file(out)
    n = len(one["values"])
    assert torch.equal(one["values"], first["values"][:n])
    torch.testing.assert_close(one["keys"], first["keys"][:n], atol=1e-2, rtol=0)
    args[5] = tmp_path
    assert make(*args).error() == f"cannot write {tmp_path}: Is a directory; give another name"
    os.mkfifo(pipe := tmp_path / "pipe")
    args[5] = pipe
    assert make(*args).error() == f"--output {pipe} is no file: give another name"
    args[5] = best_of(run)
    assert make(*args).error() == f"--output {best_of(run)} is the input itself: give another file"
    args[5] = tmp_path / "a,b"
    said = make(*args).error()
    assert said.endswith("a,b has a comma, which parts names: give another name")
    assert "_train_first2_" in make("--model_path", run, "--limit", "2").out


def test_states_that_its_numbers_do_not_hold_are_refused(
    run: Path, make: Scripts, tmp_path: Path
) -> None:
    other = copy_run(run, tmp_path)
    payload = torch.load(best_of(other), weights_only=True)
    payload["model"]["decoder.norm.weight"].mul_(1e6)
    torch.save(payload, best_of(other))
    said = make("--model_path", other, "--limit", "2").error()
    assert said == "a hidden state of this model is not a number, or too large for float16"


def test_a_training_names_no_datastore(tmp_path: Path, in_process: Any) -> None:
    train = in_process(train_script.main)
    said = train(*tiny_args(tmp_path, "decode.neighbours.datastore=x")).error()
    assert said.endswith("belongs to a trained model: leave it out of a training")
    assert not list((tmp_path / "runs").glob("*"))
