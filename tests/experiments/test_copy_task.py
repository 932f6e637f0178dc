"""`python experiments/copy_task.py`: the rows are what the task says, the schemes act as they
should, runs resume.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import run_script
from made_runs import Scripts

from configs.positions import POSITIONS
from experiments import copy_task
from experiments.common import mean_plus_minus
from experiments.copy_task import (
    VARIANTS,
    Copier,
    Task,
    Variant,
    accuracies,
    family,
    make_rows,
    train_and_test,
)
from utils.tables import markdown_table

TASK = Task()
TINY = Task(steps=2, n_test=20)
NAMES = ["none", "learnable", "alibi_1_head_slope_half", "none_causal"]
ARGS = ("--fast", "--schemes", ",".join(NAMES), "--seeds", "0,1")


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Scripts:
    """The script, whose --fast is tiny."""
    monkeypatch.setattr(copy_task, "FAST_TASK", TINY)
    return Scripts(copy_task.main, capsys, monkeypatch)


def rows_of(n: int, length: int = TASK.length, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return make_rows(n, length, TASK, torch.Generator().manual_seed(seed))


def model_of(name: str, seed: int = 0) -> Copier:
    torch.manual_seed(seed)
    return Copier(VARIANTS[name], TASK).eval()


# --------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("length", [10, 4, 17])
def test_the_target_repeats_the_symbols_after_the_mark_as_far_as_there_is_room(length: int) -> None:
    rows, targets = rows_of(500, length)
    assert rows.shape == targets.shape == (500, length)
    numbers = set()
    for row, target in zip(rows.tolist(), targets.tolist()):
        n = row.index(TASK.mark)
        numbers.add(n)
        symbols = row[:n]
        assert all(0 <= symbol < TASK.n_symbols for symbol in symbols)
        assert row == [*symbols, TASK.mark, *[TASK.blank] * (length - n - 1)]
        assert target == [*symbols, TASK.mark, *symbols, *[TASK.blank] * length][:length]
    assert numbers == set(range(1, length - 2))


def test_rows_are_fixed_by_the_seed_and_use_every_symbol() -> None:
    rows, _ = rows_of(200)
    assert torch.equal(rows, rows_of(200)[0])
    assert not torch.equal(rows, rows_of(200, seed=1)[0])
    assert rows.unique().tolist() == list(range(TASK.n_symbols + 2))


def test_exact_counts_whole_rows_and_token_the_repeated_symbols_alone() -> None:
    mark, blank = TASK.mark, TASK.blank
    rows = torch.tensor([[1, 2, mark, blank, blank, blank], [3, mark, blank, blank, blank, blank]])
    targets = torch.tensor([[1, 2, mark, 1, 2, blank], [3, mark, 3, blank, blank, blank]])
    assert accuracies(targets, rows, targets, TASK) == (1.0, 1.0)
    wrong_symbol = targets.clone()
    wrong_symbol[0, 4] = 7
    assert accuracies(wrong_symbol, rows, targets, TASK) == (0.5, pytest.approx(2 / 3))
    wrong_elsewhere = targets.clone()
    wrong_elsewhere[0, 0], wrong_elsewhere[1, 5] = 5, 5
    assert accuracies(wrong_elsewhere, rows, targets, TASK) == (0.0, 1.0)
    assert accuracies(rows, rows, targets, TASK) == (0.0, 0.0)


# ------------------------------------------------------------------------------------------ schemes


def test_every_named_scheme_stands_here_unless_it_serves_causal_attention_alone() -> None:
    assert set(POSITIONS) - set(VARIANTS) == {"xpos", "cope", "fox"}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_scheme_trains_and_answers_at_every_length_that_it_can_place(name: str) -> None:
    result = train_and_test(VARIANTS[name], 0, TINY)
    lengths = [str(TINY.length)] if name == "learnable" else list(map(str, TINY.test_lengths))
    assert list(result["exact"]) == list(result["token"]) == lengths
    assert family(VARIANTS[name])


def test_only_schemes_differ_between_models_of_one_seed() -> None:
    models = [model_of(name) for name in ("none", "learnable", "rope", "none_causal")]
    for part in ("embedding", "encoder", "out"):
        first, *others = [getattr(model, part).state_dict() for model in models]
        for other in others:
            assert all(torch.equal(first[key], other[key]) for key in first)


def test_the_scheme_is_what_tells_the_order() -> None:
    rows, _ = rows_of(8)
    turned = torch.roll(rows, 3, dims=1)
    with torch.no_grad():
        without, with_order = model_of("none"), model_of("sinusoidal")
        torch.testing.assert_close(
            without(turned), torch.roll(without(rows), 3, dims=1), atol=1e-5, rtol=0
        )
        assert (with_order(turned) - torch.roll(with_order(rows), 3, dims=1)).abs().max() > 0.1


@pytest.mark.parametrize(
    ("name", "causal"), [("none_causal", True), ("alibi_causal", True), ("alibi_1_head", False)]
)
def test_a_causal_variant_does_not_see_later_tokens(name: str, causal: bool) -> None:
    model = model_of(name)
    rows, _ = rows_of(8)
    changed = rows.clone()
    changed[:, 6:] = 0
    with torch.no_grad():
        difference = (model(rows) - model(changed))[:, :6].abs().max()
    assert (difference < 1e-6) == causal


def test_given_slopes_are_those_of_the_bias() -> None:
    model = Copier(Variant(position=POSITIONS["alibi"], n_heads=2, slopes=(0.5, 0.25)), TASK)
    places = copy_task.Places(torch.arange(3), torch.arange(3))
    bias = model.scheme.attention("encoder", 1).bias(places)
    distance = torch.tensor([[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    assert torch.equal(bias, torch.stack([-0.5 * distance, -0.25 * distance]))


def test_position_parameters_are_those_of_the_encoder() -> None:
    assert model_of("none").n_position_parameters() == model_of("rope").n_position_parameters() == 0
    assert model_of("learnable").n_position_parameters() == TASK.length * TASK.d_model
    assert (
        model_of("t5").n_position_parameters() == 32 * 4
    )  # one table for both layers, none for a decoder


def test_positions_are_learned_from_and_nothing_is_learned_without_them() -> None:
    task = Task(steps=150, n_test=300, test_lengths=(10,))
    with_order, without = (train_and_test(VARIANTS[name], 0, task) for name in ("rope", "none"))
    assert with_order["token"]["10"] > 0.6
    assert without["token"]["10"] < 0.4
    assert without["exact"]["10"] < 0.1


def test_the_seed_decides_the_outcome() -> None:
    task = Task(steps=40, n_test=1000, test_lengths=(10, 14))
    runs = [train_and_test(VARIANTS["rope"], seed, task) for seed in (0, 0, 1)]
    first, again, other = ((run["exact"], run["token"]) for run in runs)
    assert first == again
    assert first != other


# ------------------------------------------------------------------------------------------- script


def test_the_script_writes_table_csv_and_plots_and_does_not_run_again_what_is_done(
    script: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = script(*ARGS, "--output_dir", tmp_path)
    assert first.code == 0, first
    text = (tmp_path / "copy_task.md").read_text("utf-8")
    assert all(f"| {name} |" in text for name in NAMES)
    assert text in first.out
    with (tmp_path / "copy_task.csv").open() as lines:
        table = list(csv.DictReader(lines))
    of_none = [(row["seed"], row["length"]) for row in table if row["scheme"] == "none"]
    assert of_none == [(seed, str(length)) for seed in "01" for length in TASK.test_lengths]
    assert {row["length"] for row in table if row["scheme"] == "learnable"} == {"10"}
    assert all(0 <= float(row["exact"]) <= float(row["token"]) <= 1 for row in table)
    pictures = {
        name: (tmp_path / f"copy_task_{name}.png").read_bytes() for name in ("accuracy", "lengths")
    }
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())

    def never(*_: Any) -> dict[str, Any]:
        raise AssertionError("a finished run was run again")

    monkeypatch.setattr(copy_task, "train_and_test", never)
    again = script(*ARGS, "--output_dir", tmp_path)
    assert again.code == 0, again
    assert again.out.count("done before") == 2 * len(NAMES)
    assert (tmp_path / "copy_task.md").read_text("utf-8") == text
    assert pictures == {
        name: (tmp_path / f"copy_task_{name}.png").read_bytes() for name in pictures
    }


def test_an_interrupted_experiment_goes_on_where_it_was(
    script: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []

    def interrupted(variant: Variant, seed: int, task: Task) -> dict[str, Any]:
        if len(trained) == 1:
            raise KeyboardInterrupt
        trained.append(seed)
        return train_and_test(variant, seed, task)

    monkeypatch.setattr(copy_task, "train_and_test", interrupted)
    args = ("--fast", "--schemes", "none", "--seeds", "0,1,2", "--output_dir", tmp_path)
    assert script(*args).code == 130
    assert len(list((tmp_path / "results").iterdir())) == 1
    assert not (tmp_path / "copy_task.md").exists()
    trained.clear()
    monkeypatch.setattr(
        copy_task, "train_and_test", lambda v, s, t: trained.append(s) or train_and_test(v, s, t)
    )
    assert script(*args).code == 0
    assert trained == [1, 2]


def test_other_settings_are_another_run(script: Scripts, tmp_path: Path) -> None:
    for steps in (1, 2, 1):
        args = (
            "--fast",
            "--schemes",
            "none",
            "--seeds",
            "0",
            "--steps",
            str(steps),
            "--output_dir",
            tmp_path,
        )
        assert script(*args).code == 0
    assert len(list((tmp_path / "results").iterdir())) == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--schemes", "ropee"), ["no scheme 'ropee'", "rope_yarn"]),
        (("--schemes", "rope,cope"), ["cope", "causal"]),
        (("--schemes", ","), ["','", "at least one"]),
        (("--seeds", "0,x"), ["'0,x'"]),
        (("--seeds", "-1"), ["-1"]),
        (("--steps", "0"), ["'0'"]),
        (("--speed", "9"), ["--speed"]),
    ],
)
def test_a_mistake_gets_one_line_and_runs_nothing(
    script: Scripts, tmp_path: Path, args: tuple[str, ...], words: list[str]
) -> None:
    message = script(*args, "--output_dir", tmp_path).error()
    assert all(word in message for word in words), message
    assert list(tmp_path.iterdir()) == []


def test_the_command_works_as_a_user_types_it(tmp_path: Path) -> None:
    args = ("--schemes", "none", "--seeds", "0", "--steps", "1", "--output_dir", tmp_path)
    done = run_script("experiments/copy_task.py", *args)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-4:] == [
        str(tmp_path / name)
        for name in (
            "copy_task.md",
            "copy_task.csv",
            "copy_task_accuracy.png",
            "copy_task_lengths.png",
        )
    ]


# ------------------------------------------------------------------------------------------- common


def test_a_broken_result_is_named(script: Scripts, tmp_path: Path) -> None:
    args = ("--fast", "--schemes", "none", "--seeds", "0", "--output_dir", tmp_path)
    assert script(*args).code == 0
    [path] = (tmp_path / "results").iterdir()
    path.write_text("{}")
    ended = script(*args)
    assert ended.code == 2
    assert str(path) in ended.err


def test_tables_say_mean_and_spread() -> None:
    assert mean_plus_minus([0.5, 0.7]) == "0.600 ± 0.141"
    assert mean_plus_minus([0.5]) == "0.500"
    assert mean_plus_minus([]) == "–"
    assert markdown_table(["a", "b"], [["x|y", 1]]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n"
