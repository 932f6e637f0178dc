"""A run with the tokenizer of another one: models of different text have one vocabulary."""

import json
import logging
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import Scripts, scripted
from toy_runs import content, log_of, run_here, toy_command, toy_config, toy_corpus

import export
import inference
import train as script
from checkpoints.run import Run
from configs.schema import Config, Marian, Saved, Subword
from configs.serialize import apply_overrides
from tokenizer.build import load_tokenizer
from tokenizer.marian import FrEnTokenizer
from tokenizer.separate import SeparateTokenizer
from tokenizer.subword import SubwordTokenizer
from training.start import as_parent
from utils.errors import ConfigError

scripts = scripted(script.main)


@pytest.fixture(scope="module")
def first(folder: Path) -> Run:
    return run_here(toy_config(folder, "train.max_epochs=1")).run


def of_other_text(folder: Path) -> str:
    """Each word of the toy corpus turned round."""
    corpus = folder / "other"
    if not corpus.exists():
        shutil.copytree(toy_corpus(folder), corpus)
        for file in corpus.iterdir():
            lines = file.read_text("utf-8").splitlines()
            turned = (" ".join(word[::-1] for word in line.split()) for line in lines)
            file.write_text("".join(f"{line}\n" for line in turned), "utf-8")
    return f"data.corpus.root={corpus} train.max_epochs=1 train.runs_dir={folder / 'second'}"


def sharing(folder: Path, path: Path, *overrides: str) -> Config:
    # The toy's size of a vocabulary is of another kind.
    taken = replace(toy_config(folder, of_other_text(folder)), tokenizer=Saved(path=str(path)))
    return apply_overrides(taken, " ".join(overrides).split())


def vocabulary(run: Path) -> str:
    return load_tokenizer(Run(run).tokenizer).fingerprint()


def test_it_is_learned_from_as_many_pairs_as_asked_for(
    folder: Path, first: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def learned(most: int) -> str:
        settings = f"tokenizer.max_pairs={most} train.max_steps=1"
        return vocabulary(run_here(toy_config(folder, settings)).run.path)

    assert learned(5) == learned(5) != vocabulary(first.path) == learned(200)
    told = [re.search(r"from (\d+) pairs$", message) for message in caplog.messages]
    assert [each[1] for each in told if each] == ["5", "5", "200"]


def test_two_of_different_text_are_an_ensemble_wherever_the_first_has_gone(
    folder: Path, first: Run, tmp_path: Path, scripts: Scripts
) -> None:
    here = Path(shutil.copytree(first.path, tmp_path / "here"))
    second = run_here(sharing(folder, here, f"train.runs_dir={tmp_path / 'runs'}")).run.path
    alone = run_here(toy_config(folder, of_other_text(folder))).run.path
    assert vocabulary(second) == vocabulary(first.path) != vocabulary(alone)
    moved = here.rename(tmp_path / "moved")

    scripts.main = inference.main
    text = "--src_text", "le chat voit le roi", "--json"
    said = [scripts("--model_path", *m, *text) for m in ([moved], [second], [moved, second])]
    assert len({ended.out for ended in said}) == 3
    assert "has another tokenizer" in scripts("--model_path", moved, alone, *text).error()

    scripts.main, n_updates = script.main, max(log_of(second))
    assert scripts("--resume", second, "--set", "train.max_epochs=2").code == 0
    assert max(log_of(second)) == 2 * n_updates
    scripts.main, out = export.main, tmp_path / "exported"
    assert scripts("--model_path", second, "--format", "safetensors", "--output_dir", out).code == 0
    child = toy_config(folder, f"train.init_from={second} train.max_steps=1")
    for config in (child, sharing(folder, out, "train.max_steps=1")):
        assert vocabulary(run_here(config).run.path) == vocabulary(first.path)
    both = sharing(folder, first.path, f"train.init_from={second}")
    with pytest.raises(ConfigError, match="brings the tokenizer of its own run"):
        run_here(both)


def test_auto_goes_on_with_the_run_of_this_tokenizer_though_it_is_gone(
    folder: Path, first: Run, tmp_path: Path
) -> None:
    here = Path(shutil.copytree(first.path, tmp_path / "here"))
    runs, saved = f"train.runs_dir={tmp_path / 'runs'}", f"tokenizer.path={here / 'tokenizer'}"
    run = run_here(sharing(folder, here / "tokenizer", runs, "train.max_steps=3")).run
    shutil.rmtree(here)
    command = toy_command(folder, of_other_text(folder), "tokenizer=saved", saved, runs)[1:]
    at = command.index("tokenizer.vocab_size=100")
    del command[at - 1 : at + 1]
    script.main([*command, "--resume", "auto"])
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [run.path.name]


def test_it_draws_segmentations_of_its_own_text(folder: Path, first: Run) -> None:
    runs = [
        run_here(sharing(folder, first.path, f"tokenizer.sampling={p} train.max_steps=2")).run
        for p in (0.0, 0.4)
    ]
    assert vocabulary(runs[0].path) == vocabulary(runs[1].path)
    assert log_of(runs[0])[1] != log_of(runs[1])[1]
    config = json.loads(runs[1].config_file.read_text("utf-8"))["tokenizer"]
    assert config == {"kind": "saved", "path": str(first.path), "sampling": 0.4}


def test_a_joint_vocabulary_serves_both_directions(folder: Path, first: Run) -> None:
    turned = "data.src_lang=en data.tgt_lang=fr data.directions=both train.max_steps=1"
    run = run_here(sharing(folder, first.path, turned)).run
    fingerprint = content(run.newest())["tokenizer"]["fingerprint"]
    assert fingerprint == vocabulary(first.path)


MISTAKES = [
    ("nowhere", "", "no tokenizer is saved there; give the folder of a run, or the tokenizer/ in"),
    ("", "", "^tokenizer.path = '': name a folder"),
    ("corpus", "", "no tokenizer is saved there"),
    ("my.model", "", "a SentencePiece model is used by tokenizer.kind=marian"),
    ("cut", "", "cannot read the tokenizer .*; give another run's"),
    ("bpe", "tokenizer.sampling=1", "^tokenizer.sampling = 1.0: a probability below 1, for the"),
    ("marian", "tokenizer.sampling=0.1", "^tokenizer.sampling = 0.1: a Marian tokenizer draws no"),
    ("separate", "model.tie_embeddings=all", "has separate vocabularies: set model.tie_emb"),
    ("separate", "data.directions=both", "segments each language by itself: set data.directions"),
    ("marian", "data.directions=both", "segments each language by itself: set data.directions=f"),
    ("marian", "data.src_lang=en data.tgt_lang=fr", " is for fr -> en, the data is en -> fr: "),
    ("separate", "data.src_lang=en data.tgt_lang=fr", " is for fr -> en, the data is en -> fr: "),
]


@pytest.mark.parametrize(("name", "changes", "words"), MISTAKES)
def test_one_that_cannot_be_had_is_told_before_there_is_a_folder(
    name: str,
    changes: str,
    words: str,
    scripts: Scripts,
    folder: Path,
    first: Run,
    marian_folder: Path,
    tmp_path: Path,
) -> None:
    shutil.copytree(first.tokenizer, tmp_path / "bpe")
    shutil.copytree(first.path, tmp_path / "cut")
    (tmp_path / "cut/tokenizer/tokenizer.json").unlink()
    FrEnTokenizer(marian_folder).save(tmp_path / "marian")
    bpe, pair = SubwordTokenizer.load(first.tokenizer), {"src_lang": "fr", "tgt_lang": "en"}
    SeparateTokenizer(bpe, bpe, **pair).save(tmp_path / "separate")
    path = {"": "", "corpus": toy_corpus(folder)}.get(name, tmp_path / name)
    settings = f"tokenizer=saved tokenizer.path={path} train.runs_dir={tmp_path / 'runs'} {changes}"
    arguments = [part for text in settings.split() for part in ("--set", text)]
    said = scripts(*arguments).error()
    assert re.search(words, said), said
    assert f"tokenizer.path = {str(path)!r}" in said or "sampling" in words
    assert not (tmp_path / "runs").exists()


def test_who_begins_with_the_weights_of_such_a_run_draws_as_its_tokenizer_can() -> None:
    parent = Config(tokenizer=Saved(path="gone"))
    taken = as_parent(Config(tokenizer=Saved(sampling=0.5)), parent)
    assert taken.tokenizer == Saved(path="gone", sampling=0.5)
    words = r"0\.5 is for bpe, .*=0, or tokenizer\.kind=saved and tokenizer\.sampling=0\.5$"
    with pytest.raises(ConfigError, match=words):
        as_parent(Config(tokenizer=Subword(sampling=0.5)), parent)
    with pytest.raises(ConfigError, match=r"0\.5 is for subwords, .* set tokenizer\.sampling=0$"):
        as_parent(Config(tokenizer=Saved(sampling=0.5)), Config(tokenizer=Marian()))
    with pytest.raises(ConfigError, match=r"= 1\.0: a probability below 1 for"):
        as_parent(Config(tokenizer=Saved(sampling=1.0)), Config())
