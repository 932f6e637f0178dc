"""Products by oneDNN against torch's own, with their gradients, and where which is taken."""

import pytest
import torch
import torch.nn.functional as F

import models.products
import utils.machine
from models.loss import token_sums
from models.products import affine, by_onednn, product

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch without oneDNN"
)


@pytest.fixture(autouse=True, params=[True, False], ids=["zen5", "zen4"])
def everywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the processor and however small."""
    monkeypatch.setattr(models.products, "_ZEN_5", request.param)
    monkeypatch.setattr(models.products, "FASTER", True)
    monkeypatch.setattr(models.products, "_WORTH", 1)
    torch.manual_seed(0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, 5, 8), (40, 8), (1, 8), (8,)])
@pytest.mark.parametrize("n_out", [3, 30])
def test_an_affine_map_has_the_values_and_gradients_of_torchs(
    shape: tuple[int, ...], n_out: int, bias: bool
) -> None:
    x, weight = torch.randn(shape, requires_grad=True), torch.randn(n_out, 8, requires_grad=True)
    inputs = [x, weight, torch.randn(n_out, requires_grad=True)][: 2 + bias]
    grad = torch.randn(*shape[:-1], n_out)
    out = affine(*inputs)
    assert "_Affine" in str(out.grad_fn)
    exact = F.linear(*(each.double() for each in inputs))
    assert torch.allclose(out.double(), exact, rtol=0, atol=1e-5)
    theirs = torch.autograd.grad(exact, inputs, grad.double())
    for ours, wanted in zip(torch.autograd.grad(out, inputs, grad), theirs, strict=True):
        assert ours.shape == wanted.shape
        assert torch.allclose(ours.double(), wanted.double(), rtol=0, atol=2e-5)


def test_an_input_that_is_not_trained_has_no_gradient() -> None:
    x, weight = torch.randn(4, 8), torch.randn(3, 8, requires_grad=True)
    affine(x, weight).sum().backward()
    assert x.grad is None
    assert weight.grad is not None
    assert torch.allclose(weight.grad, x.sum(0).expand(3, 8), rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [(3, 5, 7), (30, 5, 7)])
def test_a_product_of_views_by_columns(size: tuple[int, int, int]) -> None:
    n, inner, m = size
    a, b = torch.randn(inner, n).t(), torch.randn(m, inner).t()
    assert by_onednn(a, b) == models.products._ZEN_5
    assert torch.allclose(product(a, b), a @ b, rtol=0, atol=1e-5)


def test_the_loss_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight = torch.randn(70, 8), torch.randn(30, 8)
    targets = torch.randint(0, 30, (70,))
    inputs = [each.requires_grad_() for each in (hidden, weight)]

    def results() -> list[torch.Tensor]:
        sums = token_sums(hidden, weight, targets, label_smoothing=0.1)
        return [sums.objective, sums.nll, *torch.autograd.grad(sums.objective, inputs)]

    ours = results()
    monkeypatch.setattr(models.products, "FASTER", False)
    for by_one, by_torch in zip(ours, results(), strict=True):
        assert torch.allclose(by_one, by_torch, rtol=1e-5, atol=1e-4)


def test_where_nothing_is_gained_torch_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.randn(4, 8), torch.randn(8, 5)
    assert by_onednn(a, b)
    assert not by_onednn(a.double(), b.double())
    assert not by_onednn(a.bfloat16(), b)
    assert not by_onednn(a.to("meta"), b.to("meta"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert affine(a, b.t()).dtype == torch.bfloat16
    monkeypatch.setattr(models.products, "_WORTH", 4 * 8 * 5 + 1)
    assert not by_onednn(a, b)


@pytest.mark.parametrize(
    ("vendor", "family", "of_amd"), [("AuthenticAMD", "25", 25), ("GenuineIntel", "6", 0)]
)
def test_the_processor_is_known_by_its_maker_and_family(
    vendor: str, family: str, of_amd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"vendor_id": vendor, "cpu family": family}
    monkeypatch.setattr(utils.machine, "_cpuinfo", fields.__getitem__)
    assert utils.machine.amd_family() == of_amd
    assert utils.machine.is_intel() == (vendor == "GenuineIntel")
    monkeypatch.setattr(utils.machine, "_cpuinfo", lambda field: "")  # not on Linux
    assert utils.machine.amd_family() == 0
    assert not utils.machine.is_intel()
