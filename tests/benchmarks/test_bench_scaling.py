"""`python benchmarks/bench_scaling.py`: known exponents are found, the work is what it says."""

import dataclasses
import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import bench_scaling, common
from benchmarks.bench_scaling import AXES, KINDS, Point, decoding, fit, random_batch, runs, training
from benchmarks.common import BOS, CPU, EOS, SIZES
from benchmarks.train_models import Ours, Setup

POINT = Point(length=5, sentences=3, vocabulary=40)
SETUP = Setup(dataclasses.replace(SIZES["tiny"], vocab_size=40), CPU, threads=1)
TINY = "--size tiny --lengths 4 8 16 --sentences 1 2 --thread_counts 1 --vocabularies 50 100"


# ------------------------------------------------------------------------------------------ the fit


@pytest.mark.parametrize("power", [2.0, 1.0, 0.0, -1.0, 0.37])
def test_the_fit_finds_the_exponent_and_the_factor_of_an_exact_power(power: float) -> None:
    xs = np.array([1, 3, 10, 64])
    expected = {"exponent": pytest.approx(power, abs=1e-12), "factor": pytest.approx(0.25)}
    assert fit(xs, 0.25 * xs**power) == expected


def test_there_is_no_growth_without_two_places() -> None:
    for xs in ([], [2.0], [2.0, 2.0]):
        assert fit(np.array(xs), np.arange(1.0, len(xs) + 1)) is None


@pytest.mark.parametrize(
    ("xs", "kept"),
    [
        ([32, 64, 128, 256, 512, 1024], [256, 512, 1024]),
        ([2, 4, 8], [4, 8]),
        ([1, 2], [2]),
        ([5], [5]),
    ],
)
def test_the_upper_half_begins_at_the_geometric_middle(xs: list[int], kept: list[int]) -> None:
    assert np.array(xs)[bench_scaling.upper_half(np.array(xs))].tolist() == kept


def test_values_double_and_threads_do_so_up_to_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {1: [1], 2: [1, 2], 3: [1, 2, 3], 6: [1, 2, 4, 6], 8: [1, 2, 4, 8]}
    for cores, expected in counts.items():
        monkeypatch.setattr("utils.cli.cores", lambda cores=cores: cores)
        axes = runpy.run_path(bench_scaling.__file__)["AXES"]
        assert axes["threads"][2] == expected
    assert axes["length"][2] == [32, 64, 128, 256, 512, 1024]
    assert (axes["vocabulary"][2][0], axes["vocabulary"][2][-1]) == (2000, 64000)


# --------------------------------------------------------------------------------- what is measured


def test_a_batch_has_the_length_and_the_words_of_its_point_and_no_padding() -> None:
    batch = random_batch(POINT)
    for ids in (batch.src, batch.tgt_out):
        assert ids.shape == (3, 5)
        assert (ids[:, -1] == EOS).all()
        assert ((ids[:, :-1] > EOS) & (ids[:, :-1] < 40)).all()
    assert (batch.tgt_in[:, 0] == BOS).all()
    assert torch.equal(batch.tgt_in[:, 1:], batch.tgt_out[:, :-1])
    assert batch.n_tokens == 15
    assert not torch.equal(batch.src, batch.tgt_out)


def test_a_training_run_is_one_update_of_the_trainer() -> None:
    ours = Ours(SETUP)
    before = [parameter.detach().clone() for parameter in ours.model.parameters()]
    training(ours, POINT)()
    assert ours.trainer.state.iteration == 1
    assert ours.trainer.state.output["n_tokens"] == 15
    assert any(not torch.equal(a, b) for a, b in zip(before, ours.model.parameters()))


def test_a_decoding_run_gives_as_many_tokens_as_the_source_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = decoding(Ours(SETUP), POINT)
    run()  # which looks for itself
    early = [[SimpleNamespace(ids=(7, 7))]]
    monkeypatch.setattr(bench_scaling, "greedy_search", lambda *args: early)
    with pytest.raises(RuntimeError, match="ended before 5 tokens"):
        run()


def test_points_of_one_vocabulary_share_a_model_and_each_has_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, made, seen = torch.get_num_threads(), [], []
    monkeypatch.setattr(bench_scaling, "Ours", lambda setup, **_: made.append(setup.size) or setup)

    def spy(setup: Setup, point: Point) -> Any:
        return lambda: seen.append((setup.size.vocab_size, torch.get_num_threads()))

    monkeypatch.setattr(bench_scaling, "training", spy)
    at = [Point(threads=n, vocabulary=size) for n, size in ((3, 40), (1, 50), (2, 40))]
    for number, run in enumerate(runs("train", at, SETUP, "none").values()):
        run(number)
        assert torch.get_num_threads() == SETUP.threads == before
    assert seen == [(40, 3), (50, 1), (40, 2)]
    assert [size.vocab_size for size in made] == [40, 50]


def test_the_axis_of_threads_is_left_out_on_a_gpu() -> None:
    args = bench_scaling.parse_args(["--lengths", "8", "4"])
    on_cpu = bench_scaling.chosen_points(args, SETUP)
    assert list(on_cpu) == list(AXES)
    assert [point.length for point in on_cpu["length"]] == [4, 8]
    gpu = dataclasses.replace(SETUP, device=torch.device("cuda"))
    on_gpu = bench_scaling.chosen_points(args, gpu)
    assert list(on_gpu) == [axis for axis in AXES if axis != "threads"]


# --------------------------------------------------------------------------------------- the script


def test_the_script_writes_tables_growths_and_a_picture(
    tmp_path: Path, in_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "REST_S", 0)
    done = in_process(bench_scaling.main)(*TINY.split(), "--rounds", "2", "--output_dir", tmp_path)
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
            growth = fit(np.array(xs), np.array(medians))
            assert found["growth"] == (growth and pytest.approx(growth))
            assert growth is None or f"{growth['exponent']:.2f} (" in text
