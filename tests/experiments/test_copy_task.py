"""`python experiments/copy_task.py`: its rows, its schemes, and that its runs resume."""

import csv
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from made_runs import Scripts
from torch import nn

from configs.position_names import POSITIONS
from configs.positions import Rope, Ssmax
from experiments import copy_task
from experiments.common import SSMAX, mean_plus_minus
from experiments.copier import (
    VARIANTS,
    Copier,
    Task,
    Variant,
    accuracies,
    fit_to_task,
    make_rows,
    train_and_test,
)
from experiments.copy_task import (
    accuracy_by_length_figure,
    accuracy_figure,
    family,
    what_blanks_know,
)
from models.positional_encodings.base import Places
from utils.errors import UserError
from utils.files import write_text
from utils.tables import markdown_table

TASK = Task()
MARK, BLANK = TASK.n_symbols, TASK.n_symbols + 1
TINY = Task(steps=2, n_test=20)


@pytest.fixture
def script(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Scripts:
    """The script in `tmp_path`, whose --fast is tiny."""
    monkeypatch.setattr(copy_task, "FAST_TASK", TINY)

    def main(arguments: list[str]) -> None:
        copy_task.main(["--fast", "--output_dir", str(tmp_path), *arguments])

    return Scripts(main, capsys, monkeypatch)


def undrawn(patch: pytest.MonkeyPatch) -> None:
    """Pictures take long, and are no matter from here on."""
    patch.setattr(copy_task, "save_figure", lambda figure, path: path)


def rows_of(n: int, length: int = TASK.length) -> tuple[torch.Tensor, torch.Tensor]:
    return make_rows(n, length, TASK, torch.Generator().manual_seed(0))


def model_of(variant: str | Variant) -> Copier:
    torch.manual_seed(0)
    return Copier(VARIANTS[variant] if isinstance(variant, str) else variant, TASK).eval()


@pytest.mark.parametrize("length", [10, 4, 17])
def test_the_target_repeats_the_symbols_after_the_mark_as_far_as_there_is_room(length: int) -> None:
    rows, targets = rows_of(500, length)
    assert rows.shape == targets.shape == (500, length)
    numbers = set()
    for row, target in zip(rows.tolist(), targets.tolist()):
        n = row.index(MARK)
        numbers.add(n)
        symbols = row[:n]
        assert all(0 <= symbol < TASK.n_symbols for symbol in symbols)
        assert row == [*symbols, MARK, *[BLANK] * (length - n - 1)]
        assert target == [*symbols, MARK, *symbols, *[BLANK] * length][:length]
    assert numbers == set(range(1, length - 2))
    assert rows.unique().tolist() == list(range(TASK.n_symbols + 2))


def test_exact_counts_whole_rows_and_token_the_repeated_symbols_alone() -> None:
    rows = torch.tensor([[1, 2, MARK, BLANK, BLANK, BLANK], [3, MARK, BLANK, BLANK, BLANK, BLANK]])
    targets = torch.tensor([[1, 2, MARK, 1, 2, BLANK], [3, MARK, 3, BLANK, BLANK, BLANK]])
    wrong_symbol, wrong_elsewhere = targets.clone(), targets.clone()
    wrong_symbol[0, 4] = 7
    wrong_elsewhere[0, 0], wrong_elsewhere[1, 5] = 5, 5
    assert accuracies(targets, rows, targets, TASK) == (1.0, 1.0)
    assert accuracies(wrong_symbol, rows, targets, TASK) == (0.5, pytest.approx(2 / 3))
    assert accuracies(wrong_elsewhere, rows, targets, TASK) == (0.0, 1.0)
    assert accuracies(rows, rows, targets, TASK) == (0.0, 0.0)


def test_every_named_scheme_stands_here_unless_it_serves_causal_attention_alone() -> None:
    assert set(POSITIONS) - set(VARIANTS) == {"xpos", "cope", "fox"}


# Numbers that the scheme adds to the encoder. t5: one table for both layers, none for a decoder;
# deberta: two maps of d_model x d_model for each layer, and a table for both.
PARAMETERS = {"none": 0, "rope": 0, "learnable": TASK.length * TASK.d_model, "t5": 32 * 4}
PARAMETERS |= {"sinusoidal_t5": 32 * 4, "deberta": (2 * 2 * TASK.d_model + 2 * 64) * TASK.d_model}
PARAMETERS |= {"sinusoidal_concatenated": 2 * TASK.d_model**2, "t5_ssmax": 32 * 4 + 2 * 4}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_scheme_trains_and_answers_at_every_length_that_it_can_place(name: str) -> None:
    result = train_and_test(VARIANTS[name], 0, TINY)
    bound = fit_to_task(VARIANTS[name].position, TINY).bound("source")
    lengths = [str(n) for n in TINY.test_lengths if bound is None or n <= bound.length]
    assert list(result["exact"]) == list(result["token"]) == lengths
    model = Copier(VARIANTS[name], TASK)
    if name in PARAMETERS:
        assert model.n_position_parameters == PARAMETERS[name]
    model(rows_of(8)[0]).square().sum().backward()
    trained = sum(p.numel() for p in model.parameters() if p.grad is not None)
    plain = nn.ModuleList([model.embedding, model.encoder, model.out]).parameters()
    assert model.n_position_parameters == trained - sum(p.numel() for p in plain)
    assert family(VARIANTS[name]) != "of your own"


def test_only_schemes_differ_between_models_of_one_seed() -> None:
    models = [model_of(name) for name in ("none", "learnable", "rope", "none_causal")]
    for part in ("embedding", "encoder", "out"):
        first, *others = [getattr(model, part).state_dict() for model in models]
        for other in others:
            assert all(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize(("name", "moves"), [("none", False), ("sinusoidal", True)])
def test_the_scheme_is_what_tells_the_order(name: str, moves: bool) -> None:
    rows, _ = rows_of(8)
    model = model_of(name)
    with torch.no_grad():
        turned = model(torch.roll(rows, 3, dims=1))
        difference = (turned - torch.roll(model(rows), 3, dims=1)).abs().max()
    assert difference > 0.1 if moves else difference < 1e-5


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


def test_concatenated_positions_stand_beside_the_embeddings() -> None:
    model = model_of("sinusoidal_concatenated")
    x = torch.randn(2, 5, TASK.d_model)
    p = model_of("sinusoidal").input(torch.zeros(1, 5, TASK.d_model), torch.arange(5))
    first, second = model.input.map.weight.split(TASK.d_model, dim=1)
    torch.testing.assert_close(model.input(x, torch.arange(5)), x @ first.T + p @ second.T)


def test_what_blanks_know_and_where_they_look(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(TASK.length)
    rows, targets = make_rows(TASK.n_test, TASK.length, TASK, generator)
    weights = torch.rand(2, TASK.n_test, 4, 10, 10, generator=generator)
    monkeypatch.setattr(copy_task, "attention_weights", lambda model, rows: weights)
    on_mark, on_origin = [], []  # of single blanks, [L,H]
    for b, q in ((rows == BLANK) & (targets != BLANK)).nonzero().tolist():
        n = rows[b].tolist().index(MARK)
        on_mark.append(weights[:, b, :, q, n])
        on_origin.append(weights[:, b, :, q, q - n - 1])
    best = [torch.stack(each).mean(0).amax(1) for each in (on_mark, on_origin)]
    model = model_of("none")
    # The first symbol in every blank to be filled, but for one row, which is left blank.
    named = torch.where((rows == BLANK) & (targets != BLANK), rows[:, :1], targets)
    named[0] = BLANK
    monkeypatch.setattr(Copier, "forward", lambda self, rows: F.one_hot(named, 12))
    split, of_row, *found = what_blanks_know(model, TASK)
    n_filled = ((rows == BLANK) & (targets != BLANK)).sum(1)
    assert split == 1 - 1 / TASK.n_test
    assert of_row == pytest.approx(1 - (n_filled[0] / n_filled.sum()).item())
    assert found == pytest.approx(torch.stack(best, 1).flatten().tolist())


def test_given_slopes_are_those_of_the_bias() -> None:
    model = model_of(Variant(position=POSITIONS["alibi"], n_heads=2, slopes=(0.5, 0.25)))
    places = Places(torch.arange(3), torch.arange(3))
    bias = model.scheme.attention("encoder", 1).bias(places)
    distance = torch.tensor([[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    assert torch.equal(bias, torch.stack([-0.5 * distance, -0.25 * distance]))


def test_positions_are_learned_from_and_nothing_is_learned_without_them() -> None:
    task = Task(steps=150, n_test=300, test_lengths=(10,))
    with_order, without = (train_and_test(VARIANTS[name], 0, task) for name in ("rope", "none"))
    assert with_order["token"]["10"] > 0.6
    assert without["token"]["10"] < 0.4
    assert without["exact"]["10"] < 0.1


def test_the_seed_decides_the_outcome() -> None:
    task = Task(steps=40, n_test=200, test_lengths=(10, 14))
    runs = [train_and_test(VARIANTS["rope"], seed, task) for seed in (0, 0, 1)]
    first, again, other = ((run["exact"], run["token"]) for run in runs)
    assert first == again
    assert first != other


def test_an_interrupted_experiment_goes_on_and_writes_table_csv_and_plots(
    script: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["learnable", "alibi_1_head_slope_half", "none_causal"]
    arguments = ["--schemes", ",".join(names), "--seeds", "0,1", "--steps", "1,2", "--attention"]
    trained: list[int] = []
    last = 0

    def interrupted(variant: Variant, seed: int, task: Task) -> dict[str, Any]:
        if seed > last:
            raise KeyboardInterrupt
        trained.append(seed)
        return train_and_test(variant, seed, task)

    monkeypatch.setattr(copy_task, "train_and_test", interrupted)
    assert script(*arguments).code == 130
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]
    last = 1
    first = script(*arguments)
    assert first.code == 0, first
    assert trained == [0] * 6 + [1] * 6
    assert first.out.count("done before") == 6
    files = first.out.splitlines()[-8:]
    kinds = ["copy_task.md", "copy_task.csv", "copy_task_accuracy.png", "copy_task_lengths.png"]
    kinds += ["copy_task_updates.png", *(f"attention_{name}.png" for name in names)]
    assert files == [str(tmp_path / name) for name in kinds]
    text, table, *pictures = written = [Path(name).read_bytes() for name in files]
    assert all(f"| {name} |" in text.decode() for name in names)
    assert text.decode() in first.out
    rows = list(csv.DictReader(table.decode().splitlines()))
    of_one = [row for row in rows if row["scheme"] == "none_causal"]
    of_one = [(row["updates"], row["seed"], row["length"]) for row in of_one]
    assert of_one == list(itertools.product("12", "01", map(str, TASK.test_lengths)))
    assert {row["length"] for row in rows if row["scheme"] == "learnable"} == {"10"}
    assert all(0 <= float(row["exact"]) <= float(row["token"]) <= 1 for row in rows)
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)

    assert script(*arguments).out.count("done before") == 12
    assert written == [Path(name).read_bytes() for name in files]

    last = 2
    undrawn(monkeypatch)
    three = ("--seeds", "0,1,2", "--steps", "1")
    assert script("--schemes", "none_causal", *three).code == 0
    told = script("--schemes", "rope,none_causal,learnable", *three, "--report_only").out
    assert "left out: nothing is stored for rope, 2 layers, 1 updates" in told
    assert "; seeds 0, 1, 2 (learnable: 0, 1)." in told


def test_ssmax_is_trained_beside_every_scheme_and_what_it_adds_is_told_by_seed(
    script: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = script("--ssmax", "--schemes", "rope,none_causal").error()
    assert said.endswith("--ssmax: not for none_causal; leave it out")
    arguments = ("--ssmax", "--schemes", "rope,learnable")
    with monkeypatch.context() as patch:
        undrawn(patch)
        assert script(*arguments).code == 0
        # "ssmax" is RoPE with it: the run is there.
        assert script("--schemes", "ssmax").out.count("done before") == 2
    lines = (tmp_path / "results.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    names = ["rope", "rope_ssmax", "learnable", "learnable_ssmax"]
    assert [record["scheme"] for record in records] == names * 2
    assert records[1]["settings"]["position"]["scheme"]["kind"] == "rope"

    added = {"rope": (0.25, 0.5), "rope_ssmax": (0.5, 1.0), "learnable": (1.0, 0.5)}
    for record in records:
        share = added.get(record["scheme"], (1.0, 1.0))[record["result"]["seed"]]
        record["result"]["exact"] = dict.fromkeys(record["result"]["exact"], share)
    write_text(tmp_path / "results.jsonl", "".join(f"{json.dumps(r)}\n" for r in records))
    told = script(*arguments, "--report_only").out
    assert "| rope | 0.375 ± 0.177 | 0.375 ± 0.177 |" in told
    assert "| learnable | 0.250 ± 0.354 | – | – |" in told
    assert "| all, the mean | 0.312 ± 0.088 | 0.375 | 0.375 |" in told
    assert (tmp_path / "copy_task_ssmax.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_is_known_by_its_settings_and_a_broken_result_is_named(
    script: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undrawn(monkeypatch)
    for steps in ("1", "2", "1"):
        assert script("--schemes", "t5", "--seeds", "0", "--steps", steps).code == 0
    store = tmp_path / "results.jsonl"
    stored = [json.loads(line) for line in store.read_text("utf-8").splitlines()]
    assert sorted(record["settings"]["task"]["steps"] for record in stored) == [1, 2]
    assert set(stored[0]["result"]["provenance"]) >= {"commit", "torch", "hardware"}
    # As an older and another version have it: without a field, and with a scheme that is not here.
    for record, kind in zip(stored, ("t5", "mine")):
        record["settings"]["position"] = {"kind": kind}
    lines = [json.dumps(record) for record in stored]
    store.write_text("\n".join(lines))
    told = script("--schemes", "t5", "--seeds", "0", "--steps", "1,2", "--report_only").out
    assert re.findall(r"\[(\d)/2\] t5, .*, (.*)", told) == [("1", "done before")]
    store.write_text(f"{lines[0]}\n{{}}\n")
    error = script("--schemes", "t5", "--seeds", "0", "--steps", "1").error()
    assert error.endswith(
        "jsonl, line 2: no result of a run (KeyError: 'settings'): name another file, or delete "
        "the line"
    )


def test_tables_say_mean_and_spread() -> None:
    assert mean_plus_minus([0.5, None, 0.7]) == "0.600 ± 0.141"
    assert mean_plus_minus([0.5]) == "0.500"
    assert mean_plus_minus([-1e-9, -2e-9]) == "0.000 ± 0.000"
    assert mean_plus_minus([None]) == "–"
    assert markdown_table(["a", "b"], [["x|y", 1]]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |\n"


def test_a_plot_shows_mean_spread_and_every_seed() -> None:
    results = {
        name: [{"exact": {"10": value}} for value in seeds]
        for name, seeds in {"rope": [0.2, 0.4], "alibi_1_head": [1.0]}.items()
    }
    [axes] = accuracy_figure(results, TASK).axes
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["rope (H=4)", "alibi_1_head (H=1)"]
    spread, mean, seeds, *one_seed = [list(line.get_xdata()) for line in axes.lines]
    assert spread == pytest.approx([0.3 - 0.02**0.5, 0.3 + 0.02**0.5])
    assert (mean, seeds) == ([pytest.approx(0.3)], [0.2, 0.4])
    assert one_seed == [[1.0, 1.0], [1.0]]


def test_curves_are_told_apart_in_a_panel_of_many() -> None:
    names = [name for name in VARIANTS if family(VARIANTS[name]) == "rotation"]
    seed = {measure: {"10": 0.5} for measure in ("exact", "token")}
    for axes in accuracy_by_length_figure({name: [seed] for name in names}, TASK).axes:
        curves = axes.get_legend_handles_labels()[0]
        looks = {(line.get_color(), line.get_linestyle()) for line in curves}
        assert len(looks) == len(names) > 10


def test_a_scheme_that_does_not_fit_a_size_is_left_out_or_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one_layer = [Task(n_layers=1)]
    assert copy_task.fitting(["none", "interleaved"], one_layer, wanted=()) == ["none"]
    assert capsys.readouterr().out.startswith("left out: interleaved: model.position.every = 2")
    for name in ("interleaved", "interleaved_ssmax"):
        with pytest.raises(UserError, match=f"^{name}: model"):
            copy_task.fitting(["none", name], one_layer, wanted=[name])


def test_a_scheme_with_fields_is_a_variant_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_task, "VARIANTS", dict(VARIANTS))
    names = copy_task.chosen_schemes("rope,rope:base=500")
    assert names == ["rope", "rope:base=500"]
    slow = Rope(base=500.0)
    assert copy_task.VARIANTS["rope:base=500"] == Variant(position=slow)
    assert copy_task.VARIANTS[f"rope:base=500{SSMAX}"] == Variant(position=Ssmax(scheme=slow))
    with pytest.raises(UserError, match=r"unknown key 'model\.position\.bas'"):
        copy_task.chosen_schemes("rope:bas=500")
    with pytest.raises(UserError, match="length=32: the task sets trained_length itself: leave it"):
        copy_task.chosen_schemes("fope:trained_length=32")
    with pytest.raises(UserError, match="no scheme 'roppe:base=5'"):
        copy_task.chosen_schemes("roppe:base=5")
