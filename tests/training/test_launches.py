"""What an update asks of a device: how many operations, and that it never waits for an answer."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from operations import WAITS, Operations
from tiny_models import POSITIONS
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
from training.graphs import GraphedPasses, graphs_wanted
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
    assert rope.total() - plain.total() <= 66


@pytest.mark.parametrize("free", [[50], [5, 50], [5, 5], [50, "and not enough"]])
def test_the_second_batch_of_a_shape_is_captured_and_the_next_replayed(
    monkeypatch: pytest.MonkeyPatch, free: list[Any]
) -> None:
    """Where there is memory for it. The graphs are none here, and note what is asked of them."""
    graph, left = mock.Mock(), iter(free)
    if "and not enough" in free:
        graph.capture_end.side_effect = torch.OutOfMemoryError
    cuda = {"Stream": mock.Mock(), "current_stream": mock.Mock(), "CUDAGraph": lambda: graph}
    cuda |= {"stream": nullcontext, "graph_pool_handle": mock.Mock()}
    cuda |= {"mem_get_info": lambda device: (next(left), 100), "memory_reserved": lambda device: 20}
    for name, stand_in in cuda.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    computed: list[tuple[Batch, float]] = []

    def compute(batch: Batch, factor: torch.Tensor) -> TokenSums:
        computed.append((batch, factor.item()))
        return TokenSums(*torch.zeros(3))

    passes = GraphedPasses(compute, CPU)
    split = sentences(6, seed=1)
    short, long = batch_of(split, range(2)), batch_of(split, range(6))
    _, second, third = (passes(short, factor) for factor in (0.5, 0.25, 0.125))
    passes(long, 1.0)
    told = [call[0] for call in graph.method_calls]
    if free[-1] != 50:
        expected = [0.5, 0.25, 0.125, 1.0] if free == [5, 5] else [0.5, 0.25, 0.25, 0.125, 1.0]
        assert [factor for _, factor in computed] == expected
        assert "replay" not in told
        return
    assert [factor for _, factor in computed] == [0.5, 0.25, 1.0]
    assert told == ["capture_begin", "capture_end", "replay", "replay"]
    assert second is third  # what the graph leaves
    other = replace(short, src=short.src + 1)
    passes(other, 1.0)
    assert torch.equal(computed[1][0].src, other.src)  # where the graph reads


def test_what_cannot_be_captured_is_refused_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = torch.device("cuda")

    def wanted(name: str, device: torch.device, graphs: bool = True) -> bool:
        model = ModelConfig(position=POSITIONS[name], d_model=32, n_heads=2, d_ff=32)
        train, data = TrainConfig(cuda_graphs=graphs), DataConfig(max_len=16)
        decode = DecodeConfig(max_len=16)
        config = Config(model=model, data=data, decode=decode, train=train)
        return graphs_wanted(config, build_model(model, VOCABULARY), device)

    assert wanted("rope", gpu)
    assert not wanted("randomized_rope", CPU, graphs=False)
    with pytest.raises(UserError, match=r"needs a CUDA device; use --set train\.cuda_graphs=false"):
        wanted("rope", CPU)
    with pytest.raises(UserError, match="Randomized draws positions on the host; use --set"):
        wanted("randomized_rope", gpu)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(UserError, match="is for one process; use --set"):
        wanted("rope", gpu)
