"""The linear map of a search step against the plain one, whatever became of the weight."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import models.linear
from models.linear import Linear, linear, side_by_side, unpacked, weights_cast, weights_fixed
from utils.machine import CPU, computes_bf16


def difference(module: Linear, x: torch.Tensor) -> float:
    with torch.inference_mode(), weights_fixed():
        module(x)  # it is laid out when it is met again
        return (module(x) - F.linear(x, module.weight, module.bias)).abs().max().item()


def was_laid_out(module: Linear, x: torch.Tensor) -> bool:
    with torch.inference_mode(), weights_fixed():
        module(x)
        held = models.linear._laid_out.get()
        assert held == {}  # it may not be met again
        module(x)
        return id(module.weight) in dict(held.keys())


@pytest.fixture
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Linear:
    """With a bias, but for a test that has one without as a parameter."""
    monkeypatch.setattr(models.linear, "_WORTH", 1)
    monkeypatch.setattr(models.linear, "_BY_MKL", False)
    torch.manual_seed(0)
    return Linear(16, 70, bias=getattr(request, "param", True))


@pytest.mark.parametrize("shape", [(1, 16), (5, 1, 16), (8, 8, 16), (3, 300, 16), (0, 16)])
@pytest.mark.parametrize("module", [True, False], indirect=True)
@pytest.mark.parametrize("by_columns", [70 * 16 + 1, 70 * 16])  # a weight of fewer numbers
def test_equals_the_plain_product(
    shape: tuple[int, ...], module: Linear, by_columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models.linear, "_BY_COLUMNS", by_columns)
    x = torch.randn(shape)
    with torch.inference_mode(), weights_fixed():
        plain = F.linear(x, module.weight, module.bias)
        out = linear(x, module.weight, module.bias, at_once=True)
        one_row = list(models.linear._laid_out.get() or ()) == [(id(module.weight), True)]
    assert one_row == (by_columns > module.weight.numel() and shape == (1, 16))
    assert out.shape == plain.shape == (*shape[:-1], 70)
    assert torch.allclose(out, plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "by_columns", "columns"),
    [([1, 5, 1], 10**6, True), ([5, 1], 10**6, False), ([5, 1], math.inf, True)],
)
def test_with_avx512_a_search_that_began_with_more_rows_goes_on_with_their_layout(
    module: Linear,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[int],
    by_columns: float,
    columns: bool,
) -> None:
    monkeypatch.setattr(models.linear, "_BY_COLUMNS", by_columns)
    with torch.inference_mode(), weights_fixed():
        product = unpacked(module)
        for n in rows:
            x = torch.randn(n, 1, 16)
            plain = F.linear(x, module.weight, module.bias)
            assert torch.allclose(product(x), plain, rtol=0, atol=1e-5)
        held = {by_columns for _, by_columns in models.linear._laid_out.get() or ()}
    assert held == {False, columns}


@pytest.mark.parametrize(
    ("rows", "by_columns", "layouts"),
    [
        *((rows, 70 * 16 + 1, [True]) for rows in (1, 5, 256)),
        *((rows, 70 * 16, []) for rows in (1, 3, 257)),
        *((rows, 70 * 16, [False]) for rows in (4, 256)),
        *((rows, 70 * 16 + 1, []) for rows in (0, 257)),
    ],
)
def test_where_mkl_is_faster_few_rows_go_by_columns_and_onednn_has_large_weights(
    module: Linear, monkeypatch: pytest.MonkeyPatch, rows: int, by_columns: int, layouts: list[bool]
) -> None:
    monkeypatch.setattr(models.linear, "_BY_MKL", True)
    monkeypatch.setattr(models.linear, "_SOME", 256)
    monkeypatch.setattr(models.linear, "_BY_COLUMNS", by_columns)
    x = torch.randn(rows, 1, 16)
    with torch.inference_mode(), weights_fixed():
        out, plain = unpacked(module)(x), F.linear(x, module.weight, module.bias)
        assert [columns for _, columns in models.linear._laid_out.get() or ()] == layouts
    assert torch.allclose(out, plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize("activation", [F.relu, F.gelu])
@pytest.mark.parametrize("worth", [1, 10**9])  # by oneDNN, and by torch
def test_an_activation_follows(
    module: Linear, activation: Any, worth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models.linear, "_WORTH", worth)
    x = torch.randn(5, 1, 16)
    with torch.inference_mode(), weights_fixed():
        out, plain = unpacked(module, activation)(x), F.linear(x, module.weight, module.bias)
    assert torch.allclose(out, activation(plain), rtol=0, atol=1e-5)
    assert (plain < 0).any()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_follows_the_weight_from_scope_to_scope(module: Linear, optimizer: Any) -> None:
    x = torch.randn(4, 16)
    before = module.weight.detach().clone()
    assert was_laid_out(module, x)
    assert difference(module, x) < 1e-5
    with weights_fixed():
        loss = module(x).square().sum()
    assert loss.requires_grad  # with gradients: the plain product
    loss.backward()
    optimizer(module.parameters(), lr=0.1, fused=True).step()  # counts no version
    assert (module.weight - before).abs().max() > 0.01
    assert difference(module, x) < 1e-5
    module.weight.data = torch.randn(70, 16)
    assert difference(module, x) < 1e-5


def test_keeps_a_layout_within_the_outermost_scope_alone(module: Linear) -> None:
    x = torch.randn(4, 16)
    with torch.inference_mode(), weights_fixed():
        module(x)
        with weights_fixed():
            module(x)
            held = models.linear._laid_out.get()
            assert held is not None
            assert list(held) == [(id(module.weight), False)]
        assert models.linear._laid_out.get() is held
    assert models.linear._laid_out.get() is None
    with torch.inference_mode():
        assert torch.equal(module(x), F.linear(x, module.weight, module.bias))  # the plain product
    with pytest.raises(RuntimeError, match="inside"), weights_fixed():
        raise RuntimeError("inside")
    assert models.linear._laid_out.get() is None


def test_keeps_nothing_of_a_weight_made_for_one_call(module: Linear) -> None:
    x, weight = torch.randn(4, 16), torch.cat((module.weight.detach(), torch.randn(4, 16)))
    with torch.inference_mode(), weights_fixed():
        assert torch.equal(linear(x, weight), F.linear(x, weight))
        assert models.linear._laid_out.get() == {}


def test_serves_bfloat16_where_the_processor_computes_in_it(module: Linear) -> None:
    x = torch.randn(4, 16).bfloat16()
    module.bfloat16()
    assert was_laid_out(module, x) == computes_bf16(CPU)
    assert difference(module, x) < 0.02


def test_leaves_other_precisions_to_torch(module: Linear) -> None:
    x = torch.randn(4, 16)
    with torch.inference_mode(), weights_fixed():
        double = (x.double(), module.weight.double(), module.bias.double())
        assert torch.equal(linear(*double), F.linear(*double))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert module(x).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("rows", "size", "laid_out"),
    [
        *((7, 512, False), (8, 512, True), (64, 512, True), (65, 512, False)),  # 262,144 products
        *((1, 1500, True), (256, 1500, True), (257, 1500, False)),
    ],
)
def test_few_rows_and_many_products_are_worth_it(
    rows: int, size: int, laid_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models.linear, "_FEW", 64)  # as without AVX-512
    monkeypatch.setattr(models.linear, "_SOME", 256)
    monkeypatch.setattr(models.linear, "_WORTH", 2_000_000)
    monkeypatch.setattr(models.linear, "_FETCHED", 2_000_000)
    monkeypatch.setattr(models.linear, "_BY_MKL", False)
    module = Linear(size, size)
    assert was_laid_out(module, torch.randn(rows, size)) == laid_out


@pytest.mark.parametrize("bias", [True, False])
def test_weights_cast_together_are_those_that_autocast_casts(bias: bool) -> None:
    torch.manual_seed(0)
    layer, x = nn.Sequential(Linear(4, 6, bias=bias), Linear(6, 3, bias=bias)), torch.randn(5, 4)

    found: list[int] = []  # maps, in each scope

    def results(scope: AbstractContextManager[None]) -> list[torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16), scope:
            found.append(len(models.linear._cast.get() or ()))
            out = layer(x)
        return [out, *torch.autograd.grad(out.float().square().sum(), list(layer.parameters()))]

    for ours, autocasts in zip(results(weights_cast(layer)), results(nullcontext()), strict=True):
        assert ours.dtype == autocasts.dtype
        assert torch.equal(ours, autocasts)
    assert found == [2, 0]
    with weights_cast(layer):  # without autocast the weights are as they are
        assert layer(x).dtype == torch.float32


@pytest.mark.parametrize("bias", [True, False])
def test_maps_side_by_side_are_those_one_after_the_other(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    maps = nn.ModuleList(Linear(4, 6, bias=bias) for _ in range(3)).double()
    x = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)

    def results() -> list[torch.Tensor]:
        outs = side_by_side(cast(list[Linear], list(maps)), x)
        weighed = sum((i + 1) * out.square().sum() for i, out in enumerate(outs))
        return [*outs, *torch.autograd.grad(weighed, [x, *maps.parameters()])]

    apart = results()
    monkeypatch.setattr(models.linear, "_few_operations", lambda x: True)
    for together, alone in zip(results(), apart, strict=True):
        assert torch.allclose(together, alone, rtol=0, atol=1e-12)
