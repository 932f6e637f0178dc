"""`python benchmarks/bench_scaling.py`: known exponents are found, the work is what it says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from made_runs import Scripts

from benchmarks import bench_scaling, common
from benchmarks.bench_scaling import (
    AXES,
    KINDS,
    Bench,
    Point,
    fit,
    parse_args,
    random_batch,
    thread_counts,
    upper_half,
)
from benchmarks.common import CPU
from benchmarks.train_setup import BOS, EOS, PAD, SIZES, Setup
from configs.positions import Sinusoidal

POINT = Point(length=5, sentences=3, vocabulary=40)
TINY = "--size tiny --lengths 4,8,16 --sentences 1,2 --thread_counts 1 --vocabularies 50,100"


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(Setup(SIZES["tiny"], CPU, threads=torch.get_num_threads()), Sinusoidal())


# ------------------------------------------------------------------------------------------ the fit


@pytest.mark.parametrize("power", [2.0, 1.0, 0.0, -1.0, 0.37])
def test_the_fit_finds_the_exponent_and_the_factor_of_an_exact_power(power: float) -> None:
    xs = [1, 3, 10, 64]
    growth = fit(xs, [0.25 * x**power for x in xs])
    assert growth is not None
    assert growth.exponent == pytest.approx(power, abs=1e-12)
    assert growth.factor == pytest.approx(0.25)
    assert growth(7) == pytest.approx(0.25 * 7**power)


@pytest.mark.parametrize(("xs", "ys"), [([], []), ([2], [3.0]), ([2, 2], [3.0, 4.0])])
def test_there_is_no_growth_without_two_places(xs: list[float], ys: list[float]) -> None:
    assert fit(xs, ys) is None


@pytest.mark.parametrize(
    ("xs", "kept"),
    [
        ([32, 64, 128, 256, 512, 1024], [256, 512, 1024]),
        ([2, 4, 8], [4, 8]),
        ([1, 2], [2]),
        ([5], [5]),
    ],
)
def test_the_upper_half_begins_at_the_geometric_middle(xs: list[float], kept: list[float]) -> None:
    assert upper_half(xs, [10 * x for x in xs]) == (kept, [10 * x for x in kept])


@pytest.mark.parametrize(
    ("cores", "counts"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))],
)
def test_threads_double_up_to_the_cores(cores: int, counts: tuple[int, ...]) -> None:
    assert thread_counts(cores) == counts


# --------------------------------------------------------------------------------- what is measured


def test_a_batch_has_the_length_and_the_words_of_its_point_and_no_padding() -> None:
    batch = random_batch(POINT)
    for ids in (batch.src, batch.tgt_out):
        assert ids.shape == (3, 5)
        assert (ids[:, -1] == EOS).all()
        assert ((ids[:, :-1] > EOS) & (ids[:, :-1] < 40)).all()
    assert (batch.tgt_in[:, 0] == BOS).all()
    assert not (batch.tgt_in == PAD).any()
    assert batch.n_tokens == 15
    assert not torch.equal(batch.src, batch.tgt_out)


def test_a_training_run_is_one_update_of_the_trainer(bench: Bench) -> None:
    ours = bench.model(POINT.vocabulary)
    before = [parameter.detach().clone() for parameter in ours.learner.model.parameters()]
    bench.train(ours, POINT)()
    assert ours.trainer.state.iteration == 1
    assert ours.trainer.state.output["n_tokens"] == 15
    assert any(not torch.equal(a, b) for a, b in zip(before, ours.learner.model.parameters()))


def test_a_decoding_run_gives_as_many_tokens_as_the_source_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    search = bench_scaling.greedy_search
    spy = lambda *args: found.append(search(*args)) or found[-1]  # noqa: E731
    monkeypatch.setattr(bench_scaling, "greedy_search", spy)
    bench.decode(bench.model(POINT.vocabulary), POINT)()
    assert [len(best.ids) for [best] in found[0]] == [5, 5, 5]

    early = [[SimpleNamespace(ids=(7, 7))]]
    monkeypatch.setattr(bench_scaling, "greedy_search", lambda *args: early)
    with pytest.raises(RuntimeError, match="ended before 5 tokens"):
        bench.decode(bench.model(POINT.vocabulary), POINT)()


def test_points_of_one_vocabulary_share_a_model_and_others_do_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    model = bench.model
    spy = lambda bench, size: made.append(size) or model(size)  # noqa: E731
    monkeypatch.setattr(Bench, "model", spy)
    at = [Point(length=4, sentences=2, vocabulary=size) for size in (40, 50)]
    at.append(Point(length=5, sentences=2, vocabulary=40))
    assert len(bench.runs("train", at)) == 3
    assert made == [40, 50]


def test_a_run_has_the_threads_of_its_point_and_leaves_those_that_were_set(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen = torch.get_num_threads(), []
    spy = lambda *args: lambda: seen.append(torch.get_num_threads())  # noqa: E731
    monkeypatch.setattr(Bench, "train", spy)
    at = [Point(threads=n, vocabulary=40) for n in (3, 1)]
    for number, run in enumerate(bench.runs("train", at).values()):
        run(number)
    assert seen == [3, 1]
    assert torch.get_num_threads() == bench.setup.threads == before


def test_the_axis_of_threads_is_left_out_on_a_gpu(bench: Bench) -> None:
    args = parse_args(["--lengths", "8,4"])
    on_cpu = bench_scaling.chosen_points(args, bench.setup)
    assert list(on_cpu) == list(AXES)
    assert [point.length for point in on_cpu["length"]] == [4, 8]
    on_gpu = bench_scaling.chosen_points(
        args, dataclasses.replace(bench.setup, device=torch.device("cuda"))
    )
    assert list(on_gpu) == [axis for axis in AXES if axis != "threads"]


# --------------------------------------------------------------------------------------- the script


@pytest.mark.slow
def test_the_script_writes_tables_growths_and_a_picture(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "REST_S", 0)
    script = Scripts(bench_scaling.main, capsys, monkeypatch)
    done = script(*TINY.split(), "--rounds", "2", "--output_dir", tmp_path)
    assert done.code == 0, done.err
    suffixes = sorted(path.name.removeprefix("bench_scaling") for path in tmp_path.iterdir())
    assert suffixes == [".json", ".md", ".png"]
    assert (tmp_path / "bench_scaling.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "bench_scaling.md").read_text("utf-8")
    assert all(line in done.out for line in text.splitlines())
    record = json.loads((tmp_path / "bench_scaling.json").read_text("utf-8"))
    sections = {section["axis"]: section for section in record["sections"] if "axis" in section}
    expected = {"length": [4, 8, 16], "sentences": [1, 2], "threads": [1], "vocabulary": [50, 100]}
    assert list(sections) == list(expected)
    for axis, xs in expected.items():
        for kind in KINDS:
            found = sections[axis][kind]
            assert [row["at"][axis] for row in found["rows"]] == xs
            seconds = [row["seconds"] for row in found["rows"]]
            assert all(len(taken) == 2 and all(0 < s < 60 for s in taken) for taken in seconds)
            medians = [sum(taken) / 2 for taken in seconds]
            for row, median in zip(found["rows"], medians):
                tokens = row["at"]["length"] * row["at"]["sentences"]
                assert row["us_per_token"] == pytest.approx(1e6 * median / tokens)
            growth = fit(xs, medians)
            if growth is None:
                assert found["growth"] is None
            else:
                assert found["growth"] == pytest.approx(dataclasses.asdict(growth))
                assert f"{growth.exponent:.2f}" in text
