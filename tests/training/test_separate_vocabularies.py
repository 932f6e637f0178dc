"""A run with a vocabulary for each language: translations, exports, what begins from it."""

from dataclasses import replace
from pathlib import Path

import ctranslate2
import pytest
from made_runs import Scripts, scripted
from toy_runs import assert_same, content, run_here, toy_config, toy_corpus

import export
import inference
from checkpoints.run import Run
from configs.schema import Saved
from tokenizer.build import load_tokenizer
from utils.errors import ConfigError

scripts = scripted(inference.main)

LEARNING = """
    tokenizer.joint=false tokenizer.sampling=0.1 model.d_model=32 model.dropout=0
    optim.schedule.lr=0.01 train.max_epochs=8
"""


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return run_here(toy_config(folder, LEARNING)).run


def test_it_translates_and_so_do_its_exports(
    folder: Path, run: Run, tmp_path: Path, scripts: Scripts
) -> None:
    source = toy_corpus(folder) / "test.fr"
    out = {form: tmp_path / form for form in ("safetensors", "ctranslate2")}
    scripts.main = export.main
    for form in out:
        ended = scripts("--model_path", run.path, "--format", form, "--output_dir", out[form])
        assert ended.code == 0, ended
    scripts.main = inference.main
    text = "--src_file", source, "--device", "cpu", "--search", "greedy"
    ours, exported, engine = (
        scripts("--model_path", *how, *text)
        for how in ([run.path], [out["safetensors"]], [run.path, "--engine", "ctranslate2"])
    )
    assert ours.code == 0, ours
    assert ours.out == exported.out == engine.out
    lines = source.read_text("utf-8").splitlines()
    translations = ours.out.splitlines()
    assert len(set(translations)) > len(lines) / 2

    read = load_tokenizer(out["ctranslate2"] / "tokenizer")
    theirs = ctranslate2.Translator(str(out["ctranslate2"])).translate_batch(
        [read.src_pieces(ids) for ids in read.encode_src_batch(lines)],
        beam_size=1,
        max_decoding_length=24,
        min_decoding_length=0,
    )
    names = read.tgt_pieces(range(read.tgt_vocab_size))
    assert "▁the" in names
    assert "▁the" not in read.src_pieces(range(read.src_vocab_size))
    ids = [[names.index(piece) for piece in each.hypotheses[0]] for each in theirs]
    assert read.decode_batch(ids) == translations


def test_others_begin_with_it_and_it_goes_on(folder: Path, run: Run, tmp_path: Path) -> None:
    fingerprint = load_tokenizer(run.tokenizer).fingerprint()
    runs = f"train.runs_dir={tmp_path} train.max_steps=2"
    child = toy_config(folder, f"train.init_from={run.path} train.init_model=true", runs)
    saved = Saved(path=str(run.path), sampling=0.2)
    for config in (child, replace(toy_config(folder, runs), tokenizer=saved)):
        begun = run_here(config).run
        assert content(begun.newest())["tokenizer"]["fingerprint"] == fingerprint
    with pytest.raises(ConfigError, match=r"^model\.tie_embeddings = 'all': tokenizer\.joint ="):
        run_here(toy_config(folder, f"train.init_from={run.path} model.tie_embeddings=all"))

    runs = f"train.runs_dir={tmp_path}"
    parts = run_here(toy_config(folder, LEARNING, runs, "train.max_steps=70")).run
    run_here(toy_config(folder, LEARNING, runs), parts.path)
    assert_same(parts, run, "regular_checkpoint_8.pt")
