"""What an update asks of a device: how many operations, and that it never waits for an answer."""

import itertools
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from ignite.engine import Engine, Events
from operations import WAITS, Operations
from tiny_models import POSITIONS
from toy_runs import run_here, toy_config
from updates import VOCABULARY, batch_of, plain_update, sentences

from configs.schema import (
    Config,
    Constant,
    DataConfig,
    DecodeConfig,
    ModelConfig,
    OptimConfig,
    Position,
    Rope,
    TrainConfig,
)
from data.batching import Batch
from models import linear
from models.attention import kernels
from models.build import build_model
from models.dropout import Dropout
from models.loss import TokenSums
from training import run
from training.graphs import GraphedPasses, graphs_wanted
from training.prepare import Learner
from training.schedules import build_optimizer
from utils.errors import UserError
from utils.machine import CPU

OPTIM = OptimConfig(schedule=Constant(lr=1e-3), grad_clip=1.0)


def on_a_gpu(self: Dropout, x: torch.Tensor) -> torch.Tensor:
    """The one operation that dropout is there."""
    return torch.native_dropout(x, self.p, True)[0] if self.training and self.p else x


def operations(
    monkeypatch: pytest.MonkeyPatch, position: Position, dtype: torch.dtype, layers: int
) -> Counter[str]:
    """Of the second update of a model: forward, backward, clipping and Adam, as on a GPU."""
    monkeypatch.setattr(kernels, "_eager_is_faster", lambda q, k: False)
    monkeypatch.setattr(Dropout, "forward", on_a_gpu)
    monkeypatch.setattr(linear, "_few_operations", lambda x: True)
    depths = {"n_encoder_layers": layers, "n_decoder_layers": layers}
    config = ModelConfig(position=position, d_model=32, n_heads=2, d_ff=32, dropout=0.1, **depths)
    torch.manual_seed(0)
    model = build_model(config, VOCABULARY).train()
    optimizer = build_optimizer(model.parameters(), OPTIM, config)
    batch = batch_of(sentences(6, seed=1), range(6))
    plain_update(model, optimizer, batch, dtype)
    with Operations() as found:
        plain_update(model, optimizer, batch, dtype)
    return found.counts


# Drawn positions are the exception: which distances occur, the device must say.
@pytest.mark.parametrize("name", [name for name in POSITIONS if "randomized" not in name])
def test_an_update_never_waits_for_the_device(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    layers = 2 if "interleaved" in name or name == "repo" else 1
    counts = operations(monkeypatch, POSITIONS[name], torch.float32, layers=layers)
    assert {wait: counts[wait] for wait in WAITS} == dict.fromkeys(WAITS, 0)


def test_an_update_launches_no_more_operations_than_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six layers a stack under autocast."""
    plain, rope = (
        operations(monkeypatch, position, torch.bfloat16, layers=6)
        for position in (POSITIONS["none"], Rope(form="real"))
    )
    assert plain.total() <= 700
    assert rope.total() - plain.total() <= 60


class Cuda:
    """What stands for torch.cuda: graphs that note what is asked of them, so many bytes free."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *free: int) -> None:
        self.told: list[str] = []
        self.left = itertools.chain(free, itertools.repeat(free[-1]))
        here, side, graph = mock.Mock(), mock.Mock(), mock.Mock()
        for name, stream in {"here": here, "side": side}.items():
            stream.wait_stream = lambda other, name=name: self.told.append(f"{name} waits")
        for name in ("capture_begin", "capture_end", "replay"):
            getattr(graph, name).side_effect = lambda name=name, **_: self.told.append(name)
        stand_ins: dict[str, Any] = {"Stream": lambda _: side, "current_stream": lambda _: here}
        stand_ins |= {"CUDAGraph": lambda: graph, "graph_pool_handle": lambda: 0}
        stand_ins |= {"stream": nullcontext, "mem_get_info": lambda _: (next(self.left), 100)}
        stand_ins |= {"memory_allocated": lambda _: 10, "max_memory_allocated": lambda _: 30}
        stand_ins |= {"empty_cache": lambda: self.told.append("empty_cache")}
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)


@pytest.mark.parametrize("free", [(40,), (39, 40), (39, 39), (40, 40, 0)])
def test_the_second_batch_of_a_shape_is_captured_and_the_next_replayed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, free: tuple[int, ...]
) -> None:
    """Where there is memory for it, twice that of a pass."""
    cuda, factors = Cuda(monkeypatch, *free), []

    def compute(batch: Batch, factor: torch.Tensor) -> TokenSums:
        cuda.told.append("compute")
        factors.append(factor.item())
        if free[-1] == 0 and cuda.told[-2] == "capture_begin":
            raise torch.OutOfMemoryError
        return TokenSums(*torch.zeros(3))

    passes = GraphedPasses(compute, CPU)
    split = sentences(6, seed=1)
    batch, other = batch_of(split, range(2)), batch_of(split, range(6))
    of_one_shape = [replace(batch, src=batch.src + i) for i in range(4)]
    sums = [passes(each, 0.5**i) for i, each in enumerate(of_one_shape)]
    passes(other, 5.0)
    assert cuda.told[:3] == ["side waits", "compute", "here waits"]
    if free[-1] < 40:
        assert "replay" not in cuda.told
        in_vain = [0.5] if free[-1] == 0 else []
        assert factors == [1, *in_vain, 0.5, 0.25, 0.125, 5]
        assert caplog.messages == [
            "train.cuda_graphs: memory for only 0 graphs; other batches run without one"
        ]
        return
    captured = ["side waits", "capture_begin", "compute", "capture_end", "replay", "here waits"]
    replayed = ["side waits", "replay", "here waits"]
    emptied = [told for told in cuda.told if told != "empty_cache"]
    assert emptied[3:-3] == [*captured, *replayed, *replayed]
    assert len(cuda.told) - len(emptied) == len(free) - 1
    assert factors == [1, 0.5, 5]
    assert sums[1] is sums[2] is sums[3]  # what the graph leaves
    [(_, place, _)] = passes.captured.values()
    assert torch.equal(place.src, of_one_shape[3].src)  # where it reads
    assert torch.equal(of_one_shape[1].src, batch.src + 1)


def test_a_capture_that_fails_says_why_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch, 40)

    def compute(batch: Batch, factor: torch.Tensor) -> TokenSums:
        if "capture_begin" in cuda.told:
            monkeypatch.setattr(torch.cuda.CUDAGraph(), "capture_end", mock.Mock(side_effect=later))
            raise RuntimeError("operation not permitted when stream is capturing")
        return TokenSums(*torch.zeros(3))

    later = RuntimeError("operation failed due to a previous error during capture")
    passes, batch = GraphedPasses(compute, CPU), batch_of(sentences(2, seed=1), range(2))
    passes(batch, 1.0)
    with pytest.raises(RuntimeError, match="not permitted"):
        passes(batch, 1.0)


def test_a_run_of_graphs_adds_to_gradients_that_stay_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs add there; these here leave out what they were captured from."""
    cuda, places = Cuda(monkeypatch, 40), []

    def note(trainer: Engine, learner: Learner) -> None:
        @trainer.on(Events.ITERATION_COMPLETED)
        def _(engine: Engine) -> None:
            gradients = [p.grad for p in learner.model.parameters() if p.grad is not None]
            assert not any(gradient.any() for gradient in gradients)
            places.append([gradient.data_ptr() for gradient in gradients])

    monkeypatch.setattr(run, "graphs_wanted", lambda config, device: config.train.cuda_graphs)
    run_here(toy_config(tmp_path, "train.cuda_graphs=true train.max_epochs=2"), hook=note)
    assert cuda.told.count("replay") >= len(places) / 2
    assert places[0]
    assert all(each == places[0] for each in places)


def test_what_cannot_be_captured_is_refused_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = torch.device("cuda")

    def wanted(name: str, device: torch.device, graphs: bool = True) -> bool:
        model = ModelConfig(position=POSITIONS[name])
        train, data = TrainConfig(cuda_graphs=graphs), DataConfig(max_len=16)
        config = Config(model=model, data=data, decode=DecodeConfig(max_len=16), train=train)
        return graphs_wanted(config, device)

    assert wanted("rope", gpu)
    assert not wanted("randomized_rope", CPU, graphs=False)
    with pytest.raises(UserError, match=r"needs a CUDA device; use --set train\.cuda_graphs=false"):
        wanted("rope", CPU)
    with pytest.raises(UserError, match="Randomized draws positions on the host; use --set"):
        wanted("randomized_rope", gpu)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(UserError, match=r"is for one process, without torchrun or .*; use --set"):
        wanted("rope", gpu)
