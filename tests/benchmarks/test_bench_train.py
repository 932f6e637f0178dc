"""`python benchmarks/bench_train.py`: models that can be compared, figures that are true."""

import contextlib
import dataclasses
import functools
import importlib
import json
import math
import operator
import os
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from made_runs import in_this_process
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import bench_train, common
from benchmarks.bench_train import (
    Comparison,
    matrix_rate,
    model_flops,
    parts_of,
    split_step,
    training_of,
)
from benchmarks.common import BOS, EOS, PAD, SIZES
from benchmarks.train_models import DROPOUT, MODELS, Ours, Setup, n_parameters
from utils.errors import UserError

SETUP = Setup(dataclasses.replace(SIZES["tiny"], batch_tokens=128), rounds=2, warmup=1, steps=2)


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are drawn from few pairs, and nobody rests: seconds are not what is tested."""
    monkeypatch.setattr(common, "REST_S", 0)
    monkeypatch.setattr(bench_train, "POOL", 500)


def build_models(names: Iterable[str], setup: Setup) -> dict[str, Any]:
    """Those that can be made here."""
    models = {}
    for name in names:
        with contextlib.suppress(ImportError, UserError):
            models[name] = MODELS[name][0](setup)
    return models


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return build_models(MODELS, SETUP)


def logits_of(model: Any, src: torch.Tensor, tgt_in: torch.Tensor) -> torch.Tensor:
    model.model.eval()
    with torch.no_grad():
        return model.model(src, tgt_in)


# ------------------------------------------------------------------------------------------- models


def test_models_of_one_size_have_nearly_as_many_parameters(models: dict[str, Any]) -> None:
    counts = {name: n_parameters(model) for name, model in models.items()}
    assert {"ours", "marian", "torch", "x_transformers"} <= set(counts)
    assert counts["torch"] == counts["ours"] == counts["ours_dropout"]
    ends = 2 * 2 * SETUP.size.d_model  # the norms at the ends of the stacks
    assert counts["marian"] == counts["ours"] - ends
    for name, count in counts.items():
        assert count == pytest.approx(counts["ours"], rel=0.02), name


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_a_translator_that_learns(name: str, models: dict[str, Any]) -> None:
    """With a mask forgotten or upside down its speed would be that of something else."""
    if name not in models:
        pytest.skip("not installed")
    model, close = models[name], {"atol": 1e-5, "rtol": 1e-4}
    src = torch.tensor([[5, 6, 7, EOS], [8, 9, 10, EOS]])
    tgt_in = torch.tensor([[BOS, 11, 12], [BOS, 13, 14]])
    padding = torch.full((2, 2), PAD)
    before = logits_of(model, src, tgt_in)
    assert before.shape == (2, 3, SETUP.size.vocab_size)
    padded = logits_of(model, torch.cat((src, padding), 1), torch.cat((tgt_in, padding), 1))
    torch.testing.assert_close(padded[:, :3], before, **close)
    other_end = torch.cat((tgt_in[:, :2], torch.tensor([[20], [21]])), 1)
    torch.testing.assert_close(logits_of(model, src, other_end)[:, :2], before[:, :2], **close)
    assert not torch.allclose(logits_of(model, src.flip(0), tgt_in), before, atol=1e-3)
    swapped = torch.stack((src[0, [1, 0, 2, 3]], src[1]))  # positions matter
    assert not torch.allclose(logits_of(model, swapped, tgt_in)[0], before[0], atol=1e-5)

    trained = [p for p in model.model.parameters() if p.requires_grad]
    tables = [p for p in trained if p.shape == (500, SETUP.size.d_model)]
    assert len(tables) == 1  # the embeddings are one with the output

    batch = Comparison(SETUP).batches[0][0]
    model.model.train()
    model.train([batch] * 8)
    after = logits_of(model, batch.src, batch.tgt_in)
    untrained = logits_of(build_models([name], SETUP)[name], batch.src, batch.tgt_in)
    loss = functools.partial(F.cross_entropy, target=batch.tgt_out, ignore_index=PAD)
    assert loss(after.mT) < loss(untrained.mT) - 0.01


def test_dropout_is_where_the_legend_says() -> None:
    models = build_models(["ours", "ours_dropout"], SETUP)
    for name, inner in (("ours", 0.0), ("ours_dropout", DROPOUT)):
        model: Any = models[name].model
        layer = model.decoder.layers[0]
        assert model.dropout.p == layer.dropout.p == DROPOUT
        assert layer.self_attention.dropout == layer.cross_attention.dropout == inner
        assert layer.feed_forward.dropout.p == inner


def test_peers_are_compiled_where_ours_is() -> None:
    compiled: Any = MODELS["torch"][0](dataclasses.replace(SETUP, compile=True))
    assert compiled.model._compiled_call_impl is not None


# ------------------------------------------------------------------------------------------ batches


def test_batches_are_formed_as_in_training_and_are_new_in_every_round() -> None:
    comparison = Comparison(SETUP)
    assert [len(comparison.batches[number]) for number in (-1, 0, 1)] == [2, 2, 2]
    made = [batch for batches in comparison.batches.values() for batch in batches]
    rows = [row for batch in made for row in batch.indices.tolist()]
    assert len(rows) == len(set(rows))
    assert rows == [row for batch in comparison.rows for row in batch]
    for batch in made:
        longest = max(batch.src.shape[1], batch.tgt_out.shape[1])
        assert len(batch.src) == 1 or len(batch.src) * longest <= SETUP.size.batch_tokens
        for ids in (batch.src, batch.tgt_out):
            assert (ids == EOS).sum(dim=1).eq(1).all()
            assert not (ids == BOS).any()
        assert batch.tgt_in[:, 0].eq(BOS).all()
    for number in (0, 1):
        real = sum(int((batch.tgt_out != PAD).sum()) for batch in comparison.batches[number])
        assert real == comparison.tokens[number]
    sides = [ids for batch in made for ids in (batch.src, batch.tgt_out)]
    padding = sum(int((ids == PAD).sum()) for ids in sides)
    assert comparison.padding == pytest.approx(padding / sum(ids.numel() for ids in sides))
    again, other = (Comparison(dataclasses.replace(SETUP, seed=seed)).batches for seed in (0, 1))
    assert torch.equal(again[1][0].src, comparison.batches[1][0].src)
    assert not torch.equal(other[1][0].src, comparison.batches[1][0].src)


# -------------------------------------------------------------------------------------------- FLOPs


@pytest.mark.parametrize(("n_src", "n_tgt"), [(7, 5), (60, 90)])
def test_model_flops_are_what_torch_counts(
    n_src: int, n_tgt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one length, so that there is no padding; the plain kernels, whose products it counts."""
    monkeypatch.setattr("models.products.FASTER", False)
    model = Ours(SETUP).model.train()
    src = torch.randint(EOS + 1, SETUP.size.vocab_size, (3, n_src))
    tgt = torch.randint(EOS + 1, SETUP.size.vocab_size, (3, n_tgt))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(src, tgt).sum().backward()
    lengths = np.full(3, n_src), np.full(3, n_tgt)
    assert model_flops(SETUP.size, *lengths) == pytest.approx(counter.get_total_flops(), rel=0.03)


# ------------------------------------------------------------------------------------------- timing


def test_a_system_works_in_a_process_of_its_own_with_as_many_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = mock.Mock(side_effect=RuntimeError("unable to allocate shared memory(shm)"))
    monkeypatch.setattr(torch.UntypedStorage, "_share_fd_cpu_", full)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(n_threads + 1)
    try:
        with ExitStack() as stack:
            call = common.apart(stack, common.CPU, functools.partial, operator.call)
            assert call(os.getpid) == call(os.getpid) != os.getpid()
            assert call(torch.get_num_threads) == n_threads + 1
            with pytest.raises(ImportError, match="'no_such_peer'"):
                call(importlib.import_module, "no_such_peer")
            with pytest.raises(UserError, match=r"shared memory.*docker run --shm-size"):
                call(torch.numel, torch.zeros(1))
            full.side_effect = RuntimeError("out of resource: shared memory")  # as a GPU's kernel
            with pytest.raises(RuntimeError, match="out of resource: shared memory"):
                call(torch.numel, torch.zeros(1))
            with pytest.raises(UserError, match="was killed: has this size enough memory"):
                call(os._exit, 1)
    finally:
        torch.set_num_threads(n_threads)


def test_runs_take_turns_and_the_warm_up_is_not_reported() -> None:
    calls: list[tuple[str, int]] = []
    runs = {name: (lambda number, name=name: calls.append((name, number))) for name in "ab"}
    seconds = common.in_turn(runs, rounds=2, warmup=1, device=common.CPU)
    assert calls == [("a", -1), ("b", -1), ("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert {name: len(taken) for name, taken in seconds.items()} == {"a": 2, "b": 2}


def test_a_run_is_repeated_until_its_time_is_over_and_the_mean_counts(monkeypatch: Any) -> None:
    now = 0.0
    ends = iter([5.0, 5.3, 5.9, 6.2])  # a warm-up, then three in one round

    def run(number: int) -> None:
        nonlocal now
        now = next(ends)

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setitem(common.LEAST_S, "cpu", 1.0)
    assert common.in_turn({"a": run}, rounds=1) == {"a": [pytest.approx(0.4)]}


def test_a_gpu_is_described_with_what_computes_there(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    monkeypatch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: False)
    facts = common.gpu_facts(torch.device("cuda"))
    assert facts["gpu"] == "H100"
    assert {"cuda", "cudnn"} < facts.keys()
    assert facts["attention"] == "flash, mem_efficient, math"


def test_a_ratio_is_taken_round_by_round() -> None:
    # A machine three times slower in the second round: the ratio of the medians would be 2.
    assert common.ratio([2.0, 6.0, 2.0], [1.0, 3.0, 1.0]) == common.Spread(2.0, 2.0, 2.0)
    assert common.ratio([1.0, 9.0, 4.0], [1.0, 3.0, 2.0]) == common.Spread(2.0, 1.5, 2.5)


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12,346"), (123.4, "123"), (1.234, "1.23"), (0.01234, "0.0123"), (0, "0")],
)
def test_a_figure_has_three_significant_digits(value: float, text: str) -> None:
    assert common.figure(value) == text


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_the_parts_of_a_step_are_those_of_the_real_update(precision: str) -> None:
    """In float16 with its scaler, which first looks for its scale."""
    setup = dataclasses.replace(SETUP, precision=precision)
    comparison, plain, timed = Comparison(setup), Ours(setup), Ours(setup)
    plain.train([batch for batches in comparison.batches.values() for batch in batches])
    parts = split_step(timed, comparison)
    assert list(parts) == ["data", "forward", "backward", "optimizer"]
    assert [len(seconds) for seconds in parts.values()] == [6, 6, 6, 6]
    assert all(0 < s < 60 for seconds in parts.values() for s in seconds)
    for key, weight in plain.model.state_dict().items():
        assert torch.equal(weight, timed.model.state_dict()[key]), key


# ------------------------------------------------------------------------------------------ reports


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [n for part in value.values() for n in numbers(part)]
    if isinstance(value, list):
        return [n for part in value for n in numbers(part)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_the_script_writes_tables_and_figures_of_all_models_and_schemes(
    tmp_path: Path, in_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = functools.partial(matrix_rate, most_s=0.02)
    monkeypatch.setattr(bench_train, "matrix_rate", brief)
    monkeypatch.setattr(bench_train, "AT_ONCE", 2)  # and so two groups
    apart: list[Any] = []
    monkeypatch.setattr(common, "apart", functools.partial(in_this_process, apart))
    monkeypatch.setitem(sys.modules, "joeynmt", None)  # not installed
    monkeypatch.setenv("COMPUTES_BF16", "yes")
    monkeypatch.setitem(common.DTYPES, "bfloat16", torch.float32)  # not every machine has it
    done = in_process(bench_train.main)(
        *("--size", "tiny", "--batch_tokens", "128", "--rounds", "2", "--steps", "1"),
        *("--precision", "float16", "--schemes", "rope,shaw", "--threads", "1", "--device", "cpu"),
        *("--peers", "torch", "joeynmt", "ours_graphs"),
        *("--widths", "16", "--output_dir", tmp_path),
    )
    assert done.code == 0, done.err
    trained = [made[1] for made in apart if made[0] is training_of]
    assert trained == ["ours", "torch", "ours", "joeynmt", "ours_graphs"]
    assert [made[1:] for made in apart if made[0] is not training_of] == [(parts_of,)]
    report = json.loads((tmp_path / "bench_train.json").read_text("utf-8"))
    text = (tmp_path / "bench_train.md").read_text("utf-8")
    assert text.strip() == done.out.strip().replace("\n\n\n", "\n\n")
    assert {"date", "commit", "torch", "cpu", "threads"} <= set(report["environment"])
    assert all(report["environment"].values())
    models, schemes, widths = report["sections"]
    assert models["heading"] == "tiny, float16"
    assert [row["model"] for row in models["models"]] == ["ours", "torch"]
    assert list(models["left_out"]) == ["joeynmt", "ours_graphs"]
    assert "joeynmt" in models["left_out"]["joeynmt"]
    assert models["left_out"]["ours_graphs"] == "CUDA graphs need a GPU"
    assert [row["scheme"] for row in schemes["schemes"]] == ["none", "rope", "shaw"]
    figures = [*models["models"], *schemes["schemes"]]
    assert [row["batch_tokens"] for row in widths["widths"]] == [1024, 2048, 4096]
    measured = numbers([figures, widths["widths"], models["parts_ms"], models["matrix_gflops"]])
    assert all(math.isfinite(n) and n > 0 for n in measured)
    for row in figures:
        assert len(row["seconds"]) == 2
        assert f"| {row.get('model', row.get('scheme'))} | {row['parameters']:,} |" in text
    [torch_row] = [row for row in models["models"] if row["model"] == "torch"]
    ours = models["models"][0]
    ratios = [a / b for a, b in zip(torch_row["seconds"], ours["seconds"])]
    assert torch_row["ours_over_it"]["median"] == pytest.approx(sum(ratios) / 2)
    assert ours["ours_over_it"]["median"] == schemes["schemes"][0]["time_over_none"]["median"] == 1
    assert all(row["our_seconds"] == ours["seconds"] for row in (ours, torch_row))
    for name in models["left_out"]:
        assert f"- left out: {name} (" in text


def test_peak_memory_is_that_of_a_process_of_its_own() -> None:
    size = dataclasses.replace(SIZES["tiny"], d_model=256, d_ff=1024, batch_tokens=512)
    setup = dataclasses.replace(SETUP, size=size)
    parameters = n_parameters(Ours(setup))
    held = torch.ones(100_000_000)  # 400 MB of this process are none of its
    peak = bench_train.in_fresh_process("ours", setup)
    assert held.sum() > 0
    # Weights, gradients and two moments, and not what is held here.
    assert 4 * 4 * parameters / 1e6 < peak < 350
