"""Averaged checkpoints: the mean itself, what lies beside it, and every script that reads it."""

from pathlib import Path

import pytest
import torch
from made_runs import Scripts, best_of, copy_run, scripted
from toy_runs import content, run_here, same, toy_config

import average
import export
import inference
import test as test_script
from checkpoints.average import average_checkpoints
from checkpoints.content import checkpoint_config, read_checkpoint, tied_names
from checkpoints.run import BEST, REGULAR, Run
from configs.schema import Config
from configs.serialize import apply_overrides, to_dict
from training.start import open_run
from translation.loading import load_run
from utils.errors import UserError


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    kept = "train.keep_regular=3 train.keep_best=3 model.tie_embeddings=all optim.accumulate=2"
    return toy_config(tmp_path_factory.mktemp("averaging"), kept)


@pytest.fixture(scope="module")
def run(config: Config) -> Run:
    return run_here(config).run


averaged = scripted(average.main)


def test_the_last_k_are_averaged_weight_by_weight_in_float64(run: Run, averaged: Scripts) -> None:
    ended = averaged("--model_path", run.path, "--last", "3")
    path = run.checkpoints / "averaged_checkpoint_last3_step30.pt"
    assert ended.out.splitlines()[-1] == f"written: {path}; use it with --model_path"
    assert ended.out.count("regular_checkpoint") == 3
    payload, sources = content(path), [content(file) for file in run.files(REGULAR)]
    for name, tensor in payload["model"].items():
        columns = zip(*(source["model"][name].flatten().tolist() for source in sources))
        mean = torch.tensor([sum(values) / 3 for values in columns], dtype=torch.float64)
        assert torch.equal(tensor.flatten(), mean.to(tensor.dtype)), name
    assert {entry["step"] for entry in payload["averaged"]} == {10, 20, 30}
    assert payload["progress"] == {"epoch": 3, "step": 30}
    assert payload["config"] == sources[-1]["config"]
    assert payload["tokenizer"] == sources[-1]["tokenizer"]


def test_the_end_within_an_epoch_is_one_of_the_last(folder: Path, averaged: Scripts) -> None:
    often = "train.checkpoint_every_steps=4 train.keep_steps=4"
    config = toy_config(folder, often, "train.keep_regular=3 train.max_steps=25 optim.accumulate=2")
    run = run_here(config).run
    for which, k, steps in (("last", 2, [25, 20]), ("last_steps", 5, [25, 24, 20, 16, 12])):
        averaged("--model_path", run.path, f"--{which}", str(k))
        [path] = run.checkpoints.glob(f"averaged_checkpoint_{which}{k}_step25.pt")
        assert [entry["step"] for entry in content(path)["averaged"]] == steps


def test_the_best_k_are_those_of_the_lowest_loss(run: Run, averaged: Scripts) -> None:
    averaged("--model_path", run.path, "--best", "2")
    losses = {path: float(path.stem.partition("=-")[2]) for path in run.files(BEST)}
    expected = sorted(losses, key=losses.__getitem__)[:2]
    [path] = run.checkpoints.glob("averaged_checkpoint_best2_*")
    assert [entry["file"] for entry in content(path)["averaged"]] == [p.name for p in expected]
    assert expected[0] == run.best()


def test_shared_weights_are_stored_once_and_other_numbers_are_the_newest_ones(
    run: Run, tmp_path: Path
) -> None:
    files = []
    for step, value in ((7, 4), (9, 6), (8, 5)):
        payload = content(run.files(REGULAR)[0])
        payload["progress"]["step"] = step
        payload["model"]["counter"] = torch.tensor(value)
        payload["data"]["fingerprint"] = "another" if step == 9 else "one"
        files.append(tmp_path / f"{step}.pt")
        torch.save(payload, files[-1])
    assert average_checkpoints(files[::2])["data"]["fingerprint"] == "one"
    averaged = average_checkpoints(files)
    assert "data" not in averaged  # of no one text
    del payload["data"]  # as in older releases
    torch.save(payload, files[-1])
    assert "data" not in average_checkpoints(files[::2])
    model = averaged["model"]
    assert model["counter"] == 6
    assert model["src_embedding.weight"] is model["tgt_embedding.weight"] is model["output.weight"]


def test_tensors_that_only_begin_in_one_place_are_two() -> None:
    x = torch.ones(4)
    assert tied_names({"a": x, "b": x[:2], "c": x}) == {"a": "a", "b": "b", "c": "a"}


def test_a_model_averaged_with_itself_is_itself_and_a_run_never_means_an_average(
    trained_run: Path, tmp_path: Path, averaged: Scripts
) -> None:
    run = copy_run(trained_run, tmp_path)
    best = best_of(run)
    twin = best.with_name("twin.pt")
    twin.write_bytes(best.read_bytes())
    assert averaged(best, twin).code == 0
    [path] = (run / "checkpoints").glob("averaged_checkpoint_files2_*")
    third = best.with_name("third.pt")
    third.write_bytes(best.read_bytes())
    assert averaged(best, third).code == 0 == averaged(twin, best).code
    assert len([*(run / "checkpoints").glob("averaged_checkpoint_files2_*")]) == 2
    assert same(content(path)["model"], content(best)["model"])
    assert load_run(run).checkpoint == best
    again = best.parent / ".." / "checkpoints" / best.name
    assert "each of them once" in averaged(best, twin, again).error()
    assert path not in Run(run).by_age()


def test_every_script_takes_an_average_but_training_does_not_go_on_from_it(
    config: Config, run: Run, averaged: Scripts, tmp_path: Path
) -> None:
    averaged("--model_path", run.path, "--last", "2")
    path = run.checkpoints / "averaged_checkpoint_last2_step30.pt"
    averaged.main = inference.main
    assert "=== beam search ===" in averaged("--model_path", path, "--src_text", "le chat").out
    averaged.main = test_script.main
    said = averaged("--model_path", path, "--limit", "3", "--set", "evaluate.bootstrap_samples=2")
    assert said.out.startswith(f"{path}: epoch 3, update 30\n")
    averaged.main, exported = export.main, tmp_path / "exported"
    form = ("--format", "safetensors", "--output_dir", exported)
    assert averaged("--model_path", path, *form).code == 0
    ours, theirs = (load_run(p).model.state_dict() for p in (path, exported))
    assert same(dict(ours), dict(theirs))
    averaged.main = average.main
    for how in ("--best", "--last"):
        error = averaged("--model_path", exported, how, "2").error()
        assert f"{exported}: an exported or a Marian model has only weights" in error
    with pytest.raises(UserError, match="holds weights to translate with, and no state"):
        open_run(config, path)
    longer = apply_overrides(config, ["train.max_epochs=5", "train.precision=auto"])
    goes_on = open_run(longer, run.path)
    assert (goes_on.checkpoint, goes_on.config.train.precision) == (run.newest(), "fp32")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("", "which checkpoints?"),
        ("--best 2 --last 2", "not allowed with argument"),
        (
            "--best 9",
            "only 3 of the 9 checkpoints asked for exist: ask for fewer (train.keep_best says",
        ),
        ("--last 1", "an integer >= 2"),
    ],
)
def test_a_mistake_gets_one_line(run: Run, averaged: Scripts, args: str, words: str) -> None:
    model = ("--model_path", run.path) if args else ()
    assert words in averaged(*model, *args.split()).error()


def test_checkpoints_of_different_models_or_tokenizers_are_refused(
    run: Run, tmp_path: Path, averaged: Scripts
) -> None:
    file, other = run.files(REGULAR)[0], tmp_path / "other.pt"
    payload = read_checkpoint(file)
    config = to_dict(checkpoint_config(payload))
    config["model"]["d_ff"] = 48
    torch.save({**payload, "config": config}, other)
    assert "are not of one model: model.d_ff is 32 and 48" in averaged(file, other).error()
    kernels = tmp_path / "log.pt", tmp_path / "power.pt"
    for each in kernels:
        config["model"]["position"] = {"kind": "kerple", "form": each.stem}
        torch.save({**payload, "config": config}, each)
    assert "of one model: model.position.form is 'log' and 'power'" in averaged(*kernels).error()
    config = to_dict(checkpoint_config(payload))
    config["data"].update(src_lang="en", tgt_lang="fr")
    torch.save({**payload, "config": config}, other)
    assert "are not of one model: data.src_lang is 'fr' and 'en'" in averaged(file, other).error()
    torch.save({**payload, "tokenizer": {**payload["tokenizer"], "fingerprint": "0"}}, other)
    assert "have different tokenizers" in averaged(file, other).error()
    assert "name the checkpoints one by one" in averaged(file, "--best", "2").error()


def test_checkpoints_of_different_runs_have_a_mean_where_they_began_alike(
    run: Run, tmp_path: Path, averaged: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(run.path.parent))
    file, folder = run.files(REGULAR)[0], tmp_path / "other" / "checkpoints"
    payload, others = content(file), []
    folder.mkdir(parents=True)
    home = f"~/{run.path.name}"
    parents = None, file, home, run.checkpoints, "elsewhere", folder.parent
    parents += (run.path.relative_to(tmp_path.parent),)  # as typed where the child was trained
    for seed, parent in ((0, None), *enumerate(parents, 1)):
        init_from = parent and str(parent)
        train = {**payload["config"]["train"], "seed": seed, "init_from": init_from}
        config = {**payload["config"], "train": train}
        if seed == 4:  # which is no other model
            config["model"] = {**config["model"], "dropout": 0.4}
        torch.save({**payload, "config": config}, folder / f"{len(others)}.pt")
        others.append(folder / f"{len(others)}.pt")
    copy, seed, child, sibling, third, stranger, grandchild, typed = others
    words = "are of different runs (train.seed is {} and {}), whose mean is not a model: translate"
    assert words.format(0, 1) in averaged(file, seed).error()
    assert words.format(2, 5) in averaged(child, stranger).error()
    for between in ((), (child,)):
        assert words.format(0, 6) in averaged(file, *between, grandchild).error()
    moved = content(copy)
    moved["data"]["fingerprint"] = "another"
    torch.save(moved, folder / "other_text.pt")
    assert "are of different runs (its text is" in averaged(file, folder / "other_text.pt").error()
    related = (file, copy), (file, child), (child, sibling), (sibling, third), (grandchild, child)
    related += ((typed, file), (typed, child))
    for path, other in related:
        assert averaged(path, other).code == 0
    last = run.files(REGULAR)[-1]
    for pair in (last, child), (child, last):  # a child counts its updates from its own beginning
        assert average_checkpoints(pair)["config"]["train"]["init_from"] == str(file)
