"""A run that begins with another one's weights has its tokenizer too, and nothing else of it."""

import json
import logging
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ignite.engine import Engine, Events
from toy_runs import assert_same, content, copied, log_of, run_here, same, toy_config, toy_corpus

import train as script
from checkpoints.content import checkpoint_config, checksum
from checkpoints.run import Run, create_run
from configs.load import write_config_json
from configs.schema import Config, Marian, Subword
from configs.serialize import apply_overrides, to_dict
from tokenizer.build import load_tokenizer
from training.prepare import Learner
from training.start import MODELS, as_parent, run_to_resume
from utils.errors import ConfigError, UserError


@pytest.fixture(scope="module")
def parent(folder: Path) -> Run:
    return run_here(toy_config(folder, "train.max_epochs=2 optim.accumulate=2")).run


def child_changes(folder: Path, parent: Run | Path) -> str:
    """Another half of the toy corpus, another vocabulary size."""
    corpus = folder / "half"
    if not corpus.exists():
        shutil.copytree(toy_corpus(folder), corpus)
        for language in ("fr", "en"):
            lines = (corpus / f"train.{language}").read_text("utf-8").splitlines(keepends=True)
            (corpus / f"train.{language}").write_text("".join(lines[100:]), "utf-8")
    path = parent.path if isinstance(parent, Run) else parent
    changes = f"data.corpus.root={corpus} tokenizer.vocab_size=80 optim.accumulate=2"
    return f"{changes} train.init_from={path}"


def child_config(folder: Path, parent: Run | Path, *overrides: str) -> Config:
    return toy_config(folder, child_changes(folder, parent), *overrides)


def config_file(folder: Path, config: Config) -> str:
    """What --config takes."""
    file, content = folder / "child.py", f"config = from_dict({to_dict(config)!r})\n"
    file.write_text(f"from configs.serialize import from_dict\n{content}")
    return str(file)


def test_it_begins_with_the_parents_best_weights_and_tokenizer(
    folder: Path, parent: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    best = parent.best()
    saved = content(best)

    def hook(trainer: Engine, learner: Learner) -> None:
        @trainer.on(Events.STARTED)
        def look(engine: Engine) -> None:
            for model in (learner.model, learner.average.model):
                assert same(dict(model.state_dict()), saved["model"])
            assert learner.optimizer.state == {}
            assert learner.scheduler.last_epoch == engine.state.iteration == 0
            assert engine.state.epoch_length == 5  # of its own corpus

    changes = "model.activation=gelu tokenizer.sampling=0.2 train.max_steps=1 train.ema_decay=0.9"
    with mock.patch("training.start.require_alike") as alike:
        run = run_here(child_config(folder, parent, changes), hook=hook).run
    # Processes of several machines may each read it from a place of their own.
    assert alike.call_args.args == ({"the weights of train.init_from": checksum(saved["model"])},)
    assert any(message.endswith(f"; weights of {best}") for message in caplog.messages)
    different = "model.activation is 'relu' there and 'gelu' here"
    assert any(m.endswith(f"trained for another model: {different}") for m in caplog.messages)
    tokenizer = json.loads(run.config_file.read_text("utf-8"))["tokenizer"]
    assert (tokenizer["vocab_size"], tokenizer["sampling"]) == (100, 0.2)
    with pytest.raises(ConfigError, match=r"sampling = 0\.2 is for unigram, but train"):
        run_here(child_config(folder, parent, "tokenizer.sampling=0.2 tokenizer.algorithm=unigram"))
    mine = checkpoint_config(content(run.newest()))
    other = replace(mine, tokenizer=Marian())  # asks for no sampling
    assert as_parent(other, mine).tokenizer == replace(mine.tokenizer, sampling=0.0)
    both = replace(mine, data=replace(mine.data, directions="both"))
    with pytest.raises(ConfigError, match="init_from has a vocabulary for each language: set data"):
        as_parent(replace(both, tokenizer=replace(mine.tokenizer, sampling=0.0)), other)
    with pytest.raises(ConfigError, match="init_from has a vocabulary for each language: set data"):
        as_parent(both, Config(tokenizer=Subword(joint=False)))


def test_it_trains_on_and_says_in_its_config_where_it_began(folder: Path, parent: Run) -> None:
    config = child_config(folder, parent, "train.max_epochs=1")
    run = run_here(config).run
    scratch = run_here(apply_overrides(config, ["train.init_from=none"])).run
    first = [log_of(r)[1]["loss"] for r in (run, scratch)]
    assert first[0] < first[1] - 0.3
    config = json.loads(run.config_file.read_text("utf-8"))
    assert config["train"]["init_from"] == str(parent.path)
    tokenizers = [load_tokenizer(r.tokenizer).fingerprint() for r in (run, parent, scratch)]
    assert tokenizers[0] == tokenizers[1] != tokenizers[2]


def test_it_goes_on_without_its_parent(folder: Path, parent: Run, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(parent.path, tmp_path / "moved"))
    settings = "train.max_epochs=2 train.freeze=encoder.*"
    config = child_config(folder, moved, settings)
    whole = run_here(config).run
    first = run_here(apply_overrides(config, ["train.max_steps=7"])).run
    shutil.rmtree(moved)
    for auto in (False, True):
        stopped = copied(first, tmp_path / f"auto_{auto}")
        saved = checkpoint_config(content(stopped.newest()))
        on = ["--resume", str(stopped.path), "--set", "train.max_steps=none"]
        if auto:
            runs = f"train.runs_dir={stopped.path.parent}"
            again = child_config(folder, moved, settings, runs)
            on = ["--config", config_file(tmp_path, again), "--resume", "auto"]
        script.main(on)
        assert log_of(stopped) == log_of(whole)
        assert_same(whole, stopped, "regular_checkpoint_2.pt")
        words = r"^train\.init_from = 'elsewhere', but .* a run goes on as it began"
        changes = ["train.max_steps=none", "train.init_from=elsewhere", "name=other"]
        with pytest.raises(UserError, match=words):  # and not its name, which comes of --position
            run_here(apply_overrides(saved, changes), resume=stopped.path)


def test_frozen_weights_stay_and_the_others_are_trained(
    folder: Path, parent: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = "train.max_steps=3 train.ema_decay=0.5 train.precision=bf16 optim.optimizer=muon"
    settings += " train.freeze=src_embedding.*,encoder.*.linear1.*,decoder.*.weight,output.*"
    config = child_config(folder, parent, settings)
    run = run_here(config).run
    before, after = content(parent.best())["model"], content(run.newest())
    kept = {n for n in before if re.match(r"(src_|output|decoder.*weight|encoder.*linear1)", n)}
    for part in MODELS:
        assert {name for name in before if same(before[name], after[part][name])} == kept
    n_kept = sum(before[name].numel() for name in kept)
    assert any(f" parameters ({n_kept:,} frozen), " in message for message in caplog.messages)
    with pytest.raises(UserError, match=r"^train\.freeze = .* a run goes on as it began"):
        run_here(apply_overrides(config, ["train.freeze="]), resume=run.path)


def test_a_pattern_that_freezes_nothing_or_all_is_refused(folder: Path) -> None:
    settings = "model.tie_embeddings=all train.freeze"
    rule = r"'embed\*': no weight has such a name; there are src_embedding\.\*, tgt_embedding\.\*, "
    with pytest.raises(ConfigError, match=rf"train\.freeze = {rule}.*, such as output\.weight"):
        run_here(toy_config(folder, f"{settings}=tgt_*,embed*"))
    with pytest.raises(ConfigError, match=r"freeze = \*code\*, output\.\*: no weight is left to "):
        run_here(toy_config(folder, f"{settings}=*code*,output.*"))


def test_auto_passes_over_a_run_whose_model_does_not_fit_the_data(
    folder: Path, parent: Run, tmp_path: Path
) -> None:
    here = f"train.init_model=true model.dropout=0.35 train.runs_dir={tmp_path}"
    mine = run_here(child_config(folder, parent, "train.max_steps=1", here)).run
    assert json.loads(mine.config_file.read_text("utf-8"))["model"]["dropout"] == 0.35
    other = create_run(tmp_path, "other")  # the newest
    shutil.copy(mine.newest(), other.checkpoints)
    short = (
        "model.position=learnable model.position.max_positions=20 data.max_len=20 decode.max_len=9"
    )
    write_config_json(toy_config(folder, short), other.config_file)
    assert run_to_resume(child_config(folder, parent, here)) == mine.path
    words = r"^--set model\.norm: with train\.init_model=true the model comes from"
    file = config_file(tmp_path, child_config(folder, parent, here))
    for run in ([mine.path], ["auto", "--config", file]):
        with pytest.raises(UserError, match=words):
            script.main(["--resume", *map(str, run), "--set", "model.norm=post"])
    with pytest.raises(UserError, match=r"^--set train\.runs_dir: a run goes on in its own folder"):
        script.main(["--resume", str(mine.path), "--set", "train.runs_dir=elsewhere"])


@pytest.mark.parametrize("given", ["--position alibi", "--set model.norm=post"])
def test_the_model_of_another_run_cannot_be_changed(parent: Run, given: str) -> None:
    taken = ["--set", "train.init_model=true", "--init_from", str(parent.path)]
    words = rf"^{given.partition('=')[0]}: with train\.init_model=true the model comes from"
    with pytest.raises(UserError, match=words):
        script.main([*taken, "--set", "model.dropout=0", *given.split()])


@pytest.mark.parametrize("given", [".vocab_size=300", "=marian", ".algorithm=unigram"])
def test_the_tokenizer_of_another_run_cannot_be_changed(parent: Run, given: str) -> None:
    words = rf"^--set tokenizer{given.partition('=')[0]}: the tokenizer comes from train\.init_from"
    with pytest.raises(UserError, match=words):
        script.main(["--init_from", str(parent.path), "--set", f"tokenizer{given}"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ("model.d_ff=64", r"d_ff is 32 there and 64 here\. Set the same model"),
        (
            "model.position=learnable model.dropout=0",
            r"position is 'sinusoidal' there and 'learnable' here",
        ),
        ("model.n_encoder_layers=2", r"n_encoder_layers is 1 there and 2 here"),
    ],
)
def test_weights_that_do_not_fit_are_named_by_the_fields(
    folder: Path, parent: Run, changes: str, words: str
) -> None:
    before = sorted((folder / "runs").iterdir())
    words = rf"^train\.init_from = '.*': its weights do not fit: .*model\.{words}"
    with pytest.raises(UserError, match=words) as caught:
        run_here(child_config(folder, parent, changes))
    assert "dropout" not in str(caught.value)
    assert sorted((folder / "runs").iterdir()) == before


def test_a_parent_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no such checkpoint or run folder"):
        run_here(child_config(folder, Path("nowhere")))


def test_a_strange_tokenizer_is_refused(folder: Path, parent: Run, tmp_path: Path) -> None:
    other = copied(parent, tmp_path)
    strange = run_here(toy_config(folder, "train.max_steps=1 tokenizer.vocab_size=90")).run
    shutil.rmtree(other.tokenizer)
    shutil.copytree(strange.tokenizer, other.tokenizer)
    longer = toy_config(folder, "train.max_epochs=3 optim.accumulate=2")
    for config, resumed in ((child_config(folder, other), None), (longer, other.path)):
        with pytest.raises(UserError, match="is not the one this checkpoint was trained with"):
            run_here(config, resumed)


def test_on_the_command_line_it_is_one_flag(parent: Run, in_process: Any) -> None:
    begin = ["--init_from", str(parent.checkpoints / "regular_checkpoint_1.pt")]
    config, _ = script.choose_config(script.parse_args(["--config", "configs/demo.py", *begin]))
    assert config.train.init_from == begin[1]
    assert isinstance(config.tokenizer, Subword)
    assert in_process(script.main)("--resume", parent.path, *begin).code == 2
