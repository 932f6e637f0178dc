"""The linear map of a search step against the plain one, whatever became of the weight."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
import torch.nn.functional as F

import models.linear
from models.linear import Linear, linear


def difference(module: Linear, x: torch.Tensor) -> float:
    with torch.inference_mode():
        return (module(x) - F.linear(x, module.weight, module.bias)).abs().max().item()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Linear:
    monkeypatch.setattr(models.linear, "_WORTH", 1)
    torch.manual_seed(0)
    return Linear(16, 70)


@pytest.mark.parametrize("shape", [(1, 16), (5, 1, 16), (8, 8, 16), (3, 300, 16), (0, 16)])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_the_plain_product(shape: tuple[int, ...], bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.linear, "_WORTH", 1)
    torch.manual_seed(0)
    module, x = Linear(16, 70, bias=bias), torch.randn(shape)
    with torch.inference_mode():
        out, plain = module(x), F.linear(x, module.weight, module.bias)
    assert out.shape == plain.shape == (*shape[:-1], 70)
    assert torch.allclose(out, plain, rtol=0, atol=1e-5)


def test_takes_other_strides(module: Linear) -> None:
    assert difference(module, torch.randn(16, 4).t()) < 1e-5
    assert difference(module, torch.randn(4, 6, 16)[:, 2]) < 1e-5


def test_follows_the_weight(module: Linear) -> None:
    x = torch.randn(4, 16)
    assert difference(module, x) < 1e-5
    loss = module(x).square().sum()
    assert loss.requires_grad  # with gradients: the plain product
    loss.backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    assert difference(module, x) < 1e-5
    with torch.no_grad():
        module.weight.mul_(2)
    assert difference(module, x) < 1e-5
    module.weight.data = torch.randn(70, 16)
    assert difference(module, x) < 1e-5
    module.load_state_dict(Linear(16, 70).state_dict())
    assert difference(module, x) < 1e-5


def test_leaves_nothing_behind(module: Linear) -> None:
    assert difference(module, torch.randn(4, 16)) < 1e-5
    assert module.weight in models.linear._laid_out
    twin = copy.deepcopy(module)
    assert twin.weight not in models.linear._laid_out
    assert set(module.state_dict()) == {"weight", "bias"}
    held = len(models.linear._laid_out)
    del module.weight
    gc.collect()
    assert len(models.linear._laid_out) == held - 1


def test_leaves_other_precisions_to_torch(module: Linear) -> None:
    x = torch.randn(4, 16)
    with torch.inference_mode():
        exact = linear(x.double(), module.weight.double(), module.bias.double())
        assert torch.equal(exact, F.linear(x.double(), module.weight.double(), module.bias.double()))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert module(x).dtype == torch.bfloat16
        frozen = torch.randn(70, 16)  # made here: its versions are not counted
        assert torch.equal(linear(x, frozen), F.linear(x, frozen))
        frozen.zero_()
        assert torch.equal(linear(x, frozen), torch.zeros(4, 70))


@pytest.mark.parametrize(
    ("rows", "size", "laid_out"),
    [
        (7, 512, False),  # 262,144 products a row
        (8, 512, True),
        (64, 512, True),
        (65, 512, False),
        (1, 1500, True),
        (256, 1500, True),
        (257, 1500, False),
    ],
)
def test_few_rows_and_many_products_are_worth_it(rows: int, size: int, laid_out: bool) -> None:
    module = Linear(size, size)
    with torch.inference_mode():
        module(torch.randn(rows, size))
    assert (module.weight in models.linear._laid_out) == laid_out
