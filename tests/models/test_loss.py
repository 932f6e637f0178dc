"""Token sums against torch's cross-entropy: sums that may be added before the one division."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from models import loss
from models.loss import token_sums

DOUBLE = torch.float64


def example(n: int = 7, vocab: int = 11, width: int = 5, *, scale: float = 1.0) -> list[Tensor]:
    """Hidden states [n,width], weight [vocab,width] and targets [n]."""
    torch.manual_seed(0)
    hidden = (scale * torch.randn(n, width, dtype=DOUBLE)).requires_grad_()
    weight = torch.randn(vocab, width, dtype=DOUBLE).requires_grad_()
    return [hidden, weight, torch.randint(0, vocab, (n,))]


@pytest.fixture(scope="module")
def compiled() -> Iterator[Any]:
    yield torch.compile(loss.exponentials, backend="aot_eager", fullgraph=True)
    torch._dynamo.reset()


@pytest.fixture(params=["whole", "in parts", "as on a GPU", "compiled"])
def how(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, compiled: Any
) -> dict[str, Any]:
    """Some rows of logits at a time, with a shorter last part; a vocabulary of whole 64s."""
    monkeypatch.setattr(loss, "_ROWS_CPU", 256 if request.param == "whole" else 3)
    monkeypatch.setattr(loss, "_MULTIPLE_CPU", 64 if request.param == "as on a GPU" else 1)
    return {"softmax": compiled} if request.param == "compiled" else {}


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_sums_equal_torchs_cross_entropy(
    smoothing: float, scale: float, how: dict[str, Any]
) -> None:
    hidden, weight, targets = example(scale=scale)
    sums = token_sums(hidden, weight, targets, label_smoothing=smoothing, **how)
    logits = F.linear(hidden, weight)
    expected = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(sums.objective, expected, rtol=1e-12, atol=1e-12)
    nll = F.cross_entropy(logits, targets, reduction="sum").detach()
    torch.testing.assert_close(sums.nll, nll, rtol=1e-12, atol=1e-12)
    assert not sums.nll.requires_grad
    assert sums.n_correct.item() == (logits.argmax(-1) == targets).sum().item()
    for factor in (1.0, -0.3):
        ours = torch.autograd.grad(sums.objective * factor, (hidden, weight), retain_graph=True)
        theirs = torch.autograd.grad(expected * factor, (hidden, weight), retain_graph=True)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-11)


def test_large_weights_in_bfloat16_give_the_same_by_other_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the bit where the rows that are multiplied at once are the same."""
    made, calls = [], []
    inputs = [x.float().detach().requires_grad_() for x in example(20, 50, 16)[:2]]
    targets = torch.arange(20)

    def softmax(logits: Tensor, *args: Any) -> tuple[Tensor, ...]:
        calls.append(len(logits))
        return loss.exponentials(logits, *args)

    monkeypatch.setattr(loss, "_LOGITS", 7 * 50 + 3)
    for large in (50 * 16 + 1, 50 * 16):
        monkeypatch.setattr(loss, "_LARGE", large)
        with torch.autocast("cpu", torch.bfloat16):
            sums = token_sums(*inputs, targets, label_smoothing=0.1, softmax=softmax)
        grads = torch.autograd.grad(sums.objective, inputs)
        made.append((sums.objective, sums.nll, sums.n_correct, *grads))
    assert calls == [20, 7, 7, 6]
    assert all(map(torch.equal, *made))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_no_tokens_give_zero(smoothing: float) -> None:
    hidden, weight, targets = example(0)
    sums = token_sums(hidden, weight, targets, label_smoothing=smoothing)
    assert sums.objective.item() == sums.nll.item() == sums.n_correct.item() == 0
    for_hidden, for_weight = torch.autograd.grad(sums.objective, (hidden, weight))
    assert for_hidden.shape == (0, 5)
    assert not for_weight.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_products_are_short_and_sums_float32(dtype: torch.dtype) -> None:
    hidden, weight, targets = (
        x.detach().float().requires_grad_() if x.is_floating_point() else x
        for x in example(300, 17)
    )
    with torch.autocast("cpu", dtype=dtype):
        sums = token_sums(hidden, weight, targets, label_smoothing=0.1)
    assert sums.objective.dtype == sums.nll.dtype == torch.float32
    short = F.linear(hidden.detach().to(dtype), weight.detach().to(dtype))
    expected = F.cross_entropy(short.double(), targets, label_smoothing=0.1, reduction="sum")
    assert sums.objective.item() == pytest.approx(expected.item(), rel=2e-3)
    exact = token_sums(hidden, weight, targets, label_smoothing=0.1).objective
    assert sums.objective.item() != pytest.approx(exact.item(), rel=1e-9)
    ours = torch.autograd.grad(sums.objective, (hidden, weight))
    for short_gradient, gradient in zip(ours, torch.autograd.grad(exact, (hidden, weight))):
        assert short_gradient.dtype == torch.float32
        assert (short_gradient - gradient).norm() < 0.02 * gradient.norm()


def test_the_inputs_are_left_as_they_were_and_there_is_no_gradient_where_none_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden, weight, targets = example()
    before = hidden.detach().clone(), weight.detach().clone()
    objective = token_sums(hidden, weight, targets, label_smoothing=0.1).objective
    wanted = torch.autograd.grad(objective, hidden)[0]
    assert torch.equal(hidden, before[0])
    assert torch.equal(weight, before[1])
    monkeypatch.setattr(loss, "_add_product", None)  # not even computed
    frozen = token_sums(hidden, weight.detach(), targets, label_smoothing=0.1).objective
    assert torch.equal(torch.autograd.grad(frozen, hidden)[0], wanted)
    with torch.no_grad():
        assert not token_sums(hidden, weight, targets, label_smoothing=0.1).objective.requires_grad


def test_the_logits_never_stand_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 rows of 512 logits, 16 at a time: nothing that is made has as many numbers."""
    monkeypatch.setattr(loss, "_ROWS_CPU", 16)
    hidden, weight, targets = example(64, 512, 8)
    with torch.profiler.profile(profile_memory=True) as profile:
        token_sums(hidden, weight, targets, label_smoothing=0.1).objective.backward()
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert 0 < largest < 64 * 512 * 8
    with torch.profiler.profile(profile_memory=True) as profile:
        F.cross_entropy(F.linear(hidden, weight), targets).backward()
    assert max(event.cpu_memory_usage for event in profile.events()) >= 64 * 512 * 8
