"""Synthetic pairs, of back-translation and of teachers: pairs that training reads."""

import gzip
import itertools
import json
import os
import shutil
import signal
from pathlib import Path
from unittest import mock

import pytest
import torch
from made_runs import Scripts, best_of, copy_run, scripted
from toy_runs import run_here, toy_config, toy_corpus

import back_translate as script
from checkpoints.content import read_checkpoint
from configs.schema import DataConfig, Mixture, ParallelFiles, Subword, Weighted
from data.corpora.build import build_corpus
from data.corpora.text import plain_text
from tokenizer.subword import SubwordTokenizer
from translation.translator import Translator

FAST = "optim.schedule.lr=0.01 optim.accumulate=1"


@pytest.fixture(scope="module")
def english(folder: Path) -> list[str]:
    return (toy_corpus(folder) / "valid.en").read_text("utf-8").splitlines()


@pytest.fixture(scope="module")
def reverse(folder: Path) -> Path:
    """A model from English to French: not good, but it ends its sentences."""
    languages = "data.src_lang=en data.tgt_lang=fr train.max_epochs=5"
    return run_here(toy_config(folder, FAST, languages)).run.path


@pytest.fixture(scope="module")
def mono(folder: Path, english: list[str]) -> Path:
    path = folder / "mono.en"
    odd = ["\u200b", f"the {'cat ' * 60}", f"  {english[10]}\u00a0\ufeff"]
    path.write_text("\n".join([*english[:10], *odd, *english[11:]]) + "\n", "utf-8")
    return path


made = scripted(script.main)


def test_the_pairs_are_the_models_translations_line_by_line(
    made: Scripts, english: list[str], reverse: Path, mono: Path, tmp_path: Path
) -> None:
    output = tmp_path / "a new" / "folder" / "bt"
    args = ("--model_path", reverse, "--src_file", mono, "--search", "greedy", "--device", "cpu")
    ended = made(*args, "--output", output)
    assert ended.code == 0, ended
    translator = Translator.load(reverse, device="cpu")
    found = zip(english, translator.translate(english, search="greedy"))
    pairs = [(text, best.text) for text, best in found if best.finished and best.text]
    written = [output.with_suffix(f".{lang}").read_text("utf-8") for lang in ("en", "fr")]
    assert len(pairs) > 10
    assert list(zip(*(text.splitlines() for text in written))) == pairs
    n_lost = len(english) - len(pairs)
    lost = f", unfinished_or_empty {n_lost}" if n_lost else ""
    assert ended.out == (
        f"{len(pairs)} pairs, en to fr, in {output}.fr and {output}.en "
        f"(dropped: blank 1, too_long 1{lost})\n"
    )


def test_tagged_pairs_are_a_part_of_a_mixture_and_the_tag_is_one_token(
    made: Scripts, folder: Path, reverse: Path, mono: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "mono.en.gz"
    packed.write_bytes(gzip.compress(mono.read_bytes()))
    args = ("--model_path", reverse, "--src_file", packed, "--output", tmp_path / "bt")
    assert made(*args, "--tag", "--beam_size", "2").code == 0
    real = Weighted(corpus=ParallelFiles(root=str(toy_corpus(folder))))
    bt = Weighted(corpus=ParallelFiles(root=str(tmp_path), train="bt"), weight=2.0, name="bt")
    text = build_corpus(DataConfig(corpus=Mixture(parts=(real, bt)))).load("train")
    tagged = [src for src in text.src if src.startswith(f"{script.TAG} ")]
    assert len(text) == 200 + len(tagged)
    assert len(tagged) > 20
    assert not any(script.TAG in tgt for tgt in text.tgt)
    tokenizer = SubwordTokenizer.train([*text.src, *text.tgt], Subword(vocab_size=200))
    assert tokenizer.src_pieces(tokenizer.encode_src(tagged[0]))[0] == f"▁{script.TAG}"


@pytest.mark.slow
def test_a_model_of_both_directions_translates_from_its_target_language(
    made: Scripts, folder: Path, mono: Path, tmp_path: Path
) -> None:
    both = toy_config(folder, FAST, "data.directions=both train.max_epochs=2")
    run = run_here(both).run
    args = ("--src_file", mono, "--search", "greedy", "--output", tmp_path / "bt", "--reverse")
    partner = copy_run(run.path, tmp_path)
    payload = read_checkpoint(best_of(partner))
    payload["config"]["data"]["directions"] = "forward"
    torch.save(payload, best_of(partner))
    words = f"--reverse: {best_of(partner)} translates only fr to en"
    assert made("--model_path", run.path, best_of(partner), *args).error().startswith(words)
    assert made("--model_path", run.path, *args).code == 0
    written = (tmp_path / "bt.en").read_text("utf-8").splitlines()
    assert set(written) <= set(map(plain_text, mono.read_text("utf-8").splitlines()))
    assert len((tmp_path / "bt.fr").read_text("utf-8").splitlines()) == len(written) > 0


def test_teachers_translate_the_sources_of_their_own_training_pairs(
    made: Scripts, folder: Path, reverse: Path, tmp_path: Path
) -> None:
    """Those of a model from English to French are English."""
    others = sorted((reverse / "checkpoints").glob("regular_*"))
    teachers = (reverse, others[0])
    args = ("--model_path", *teachers, "--device", "cpu", "--beam_size", "2")
    assert made("--distill", *args, "--output", tmp_path / "train").code == 0
    sources = (toy_corpus(folder) / "train.en").read_text("utf-8").splitlines()
    translator = Translator.load(*teachers, device="cpu")
    found = zip(sources, translator.translate(sources, beam_size=2))
    pairs = [(text, best.text) for text, best in found if best.finished and best.text]
    assert len(pairs) > 100
    distilled = ParallelFiles(root=str(tmp_path), train="train")
    read = build_corpus(DataConfig(corpus=distilled, src_lang="en", tgt_lang="fr")).load("train")
    assert list(zip(read.src, read.tgt)) == pairs


def test_pairs_whose_making_was_killed_are_those_made_at_once(
    made: Scripts, reverse: Path, mono: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of samples, which are drawn by the numbers of their sentences."""
    monkeypatch.setattr(script, "CHUNK", 4)
    args = ["--model_path", str(reverse), "--src_file", str(mono), "--device", "cpu"]
    args += ["--search", "sample", "--output"]
    whole, killed = tmp_path / "whole" / "bt", tmp_path / "killed" / "bt"
    assert made(*args, whole).code == 0
    if (child := os.fork()) == 0:
        write = script.write_text

        def write_until(path: Path, text: str) -> None:
            if path.name == "12.json":
                os.kill(os.getpid(), signal.SIGKILL)
            write(path, text)

        script.write_text = write_until
        try:
            script.main([*args, str(killed)])
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    [part] = killed.parent.iterdir()
    names = ["0.json", "4.json", "8.json"]
    assert sorted(path.name for path in part.iterdir()) == names
    # Another search takes nothing of it, nor does it lose anything by that.
    other = made(*args, killed, "--seed", "1")
    assert (other.code, other.err) == (0, "")
    assert other.out.replace("killed", "whole") != made(*args, whole).out
    (part / "8.json").write_bytes((part / "8.json").read_bytes()[:-1])
    ended = made(*args, killed)
    said = f"{killed}.json: its pairs differ in search: all are made anew\n"
    assert (ended.code, ended.err) == (0, f"{said}going on after 8 translations in {part}\n")
    files = {path.name: path.read_bytes() for path in whole.parent.iterdir()}
    assert files.keys() == {"bt.en", "bt.fr", "bt.json"}
    assert {path.name: path.read_bytes() for path in killed.parent.iterdir()} == files


def test_what_an_earlier_call_left_is_taken_as_far_as_it_is_whole(tmp_path: Path) -> None:
    translator = mock.Mock(translate_stream=lambda texts, **how: iter(()))
    whole = {"found": ["x", "y"], "sha256": script.digest(["x", "y"])}
    turned = {**whole, "found": ["x", "z"]}
    for content in (json.dumps(turned), "[]", '["a"]', "null", "5", '["a"'):
        (tmp_path / "0.json").write_text(json.dumps(whole), "utf-8")
        (tmp_path / "2.json").write_text(content, "utf-8")
        found = script.translations(translator, ["z"] * 9, tmp_path, chunk=4, greedy=True)
        assert list(itertools.islice(found, 3)) == [["x", "y"]]


def test_pairs_are_made_again_where_the_model_the_text_or_the_pairs_are_others(
    made: Scripts, reverse: Path, mono: Path, tmp_path: Path
) -> None:
    text, output = Path(shutil.copy(mono, tmp_path)), tmp_path / "bt"
    args = ("--src_file", text, "--output", output, "--search", "greedy", "--device", "cpu")

    def call(*models: Path) -> tuple[str, bool]:
        """What was said on standard error, and whether the pairs were made before."""
        ended = made("--model_path", *models, *args)
        assert ended.code == 0, ended
        return ended.err, ended.out.endswith(": made before\n")

    assert call(reverse) == ("", False)
    pairs = output.with_suffix(".fr").read_text("utf-8")
    assert call(reverse) == ("", True)
    output.with_suffix(".fr").unlink()
    assert call(reverse) == ("", False)
    assert output.with_suffix(".fr").read_text("utf-8") == pairs

    early = min((reverse / "checkpoints").glob("regular_*"))
    anew = f"{output}.json: its pairs differ in {{}}: all are made anew\n"
    assert call(early) == (anew.format("checkpoint, checkpoint_sha256"), False)
    assert output.with_suffix(".fr").read_text("utf-8") != pairs
    text.write_text(mono.read_text("utf-8") + "the cat\n", "utf-8")
    assert call(early) == (anew.format("text"), False)
    assert call(early, reverse) == (anew.format("partners"), False)


def test_files_of_another_making_are_never_overwritten(
    made: Scripts, reverse: Path, mono: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, output = tmp_path / "train.en", tmp_path / "bt"
    args = ("--src_file", mono, "--search", "greedy", "--device", "cpu", "--output")
    files = [output.with_suffix(suffix) for suffix in (".en", ".fr", ".json")]

    def refused(prefix: Path, path: Path) -> None:
        before = path.read_bytes()
        error = made("--model_path", reverse, *args, prefix).error()
        assert error == (
            f"{path} would be overwritten, but {prefix}.json has no record of it as it is "
            "now: give another --output, or move it away"
        )
        assert path.read_bytes() == before
        path.unlink()

    real.write_text("real\n", "utf-8")
    files[0].symlink_to(real)
    refused(output, files[0])
    assert real.read_text("utf-8") == "real\n"
    files[2].write_text("{}", "utf-8")
    refused(output, files[2])
    assert made("--model_path", reverse, *args, output).code == 0
    whole = [path.read_bytes() for path in files]
    files[1].write_bytes(whole[1].upper())
    refused(output, files[1])

    # Killed before or after the French is replaced: the same command makes the pairs whole.
    early = min((reverse / "checkpoints").glob("regular_*"))
    replace = os.replace
    for last in files[:2]:
        assert made("--model_path", early, *args, output).code == 0

        def dying(aside: Path, path: Path, last: Path = last) -> None:
            if path == last:
                raise KeyboardInterrupt
            replace(aside, path)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", dying)
            with pytest.raises(KeyboardInterrupt):
                script.main(["--model_path", str(reverse), *map(str, args), str(output)])
        assert (files[1].read_bytes() == whole[1]) == (last == files[0])
        assert made("--model_path", reverse, *args, output).code == 0
        assert [path.read_bytes() for path in files[:2]] == whole[:2]
        assert not list(tmp_path.glob("*.part"))
