"""What an update asks of a device: how many operations, and that it never waits for an answer."""

from collections import Counter

import pytest
import torch
from operations import WAITS, Operations
from tiny_models import POSITIONS
from updates import VOCABULARY, batch_of, plain_update, sentences

from configs.schema import Constant, ModelConfig, OptimConfig, Position, Rope
from models import linear
from models.attention import kernels
from models.build import build_model
from models.dropout import Dropout
from training.schedules import build_optimizer

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
