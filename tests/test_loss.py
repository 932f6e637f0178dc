"""Token sums against torch's cross-entropy, and their meaning: sums that may be added before the one division."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from utils.loss import token_sums

DOUBLE = torch.float64


def example(n: int = 7, vocab: int = 11, *, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return (scale * torch.randn(n, vocab, dtype=DOUBLE)).requires_grad_(), torch.randint(0, vocab, (n,))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_sums_equal_torchs_cross_entropy_with_gradient(smoothing: float, scale: float) -> None:
    logits, targets = example(scale=scale)
    sums = token_sums(logits, targets, label_smoothing=smoothing)
    expected = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(sums.objective, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        sums.nll, F.cross_entropy(logits, targets, reduction="sum").detach(), rtol=1e-12, atol=1e-12
    )
    for factor in (1.0, -0.3):
        (ours,) = torch.autograd.grad(sums.objective * factor, logits, retain_graph=True)
        (theirs,) = torch.autograd.grad(expected * factor, logits, retain_graph=True)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_passes_gradcheck(smoothing: float) -> None:
    logits, targets = example(4, 5, scale=1.0)
    assert torch.autograd.gradcheck(lambda x: token_sums(x, targets, label_smoothing=smoothing).objective, (logits,))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_no_tokens_give_zero(smoothing: float) -> None:
    logits, targets = example(0)
    sums = token_sums(logits, targets, label_smoothing=smoothing)
    assert sums.objective.item() == sums.nll.item() == sums.n_correct.item() == 0
    (gradient,) = torch.autograd.grad(sums.objective, logits)
    assert gradient.shape == (0, 11)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_summed_in_float32(dtype: torch.dtype) -> None:
    logits = example(300)[0].detach().to(dtype).requires_grad_()
    targets = torch.arange(300) % 11
    sums = token_sums(logits, targets, label_smoothing=0.1)
    assert sums.objective.dtype == sums.nll.dtype == torch.float32
    expected = F.cross_entropy(logits.detach().double(), targets, label_smoothing=0.1, reduction="sum")
    assert sums.objective.item() == pytest.approx(expected.item(), rel=1e-5)
    sums.objective.backward()
    assert logits.grad is not None
    assert logits.grad.dtype == dtype


def test_nll_and_hits_carry_no_gradient_and_leave_smoothing_out() -> None:
    logits, targets = example()
    plain, smoothed = (token_sums(logits, targets, label_smoothing=s) for s in (0.0, 0.3))
    assert plain.nll.item() == smoothed.nll.item() == pytest.approx(plain.objective.item(), abs=1e-12)
    assert smoothed.objective.item() != pytest.approx(smoothed.nll.item(), abs=1e-3)
    assert plain.objective.requires_grad
    assert not plain.nll.requires_grad
    assert smoothed.n_correct.item() == (logits.argmax(-1) == targets).sum().item() > 0


def test_the_logits_are_left_as_they_were_and_no_graph_is_kept_without_gradients() -> None:
    logits, targets = example()
    before = logits.detach().clone()
    token_sums(logits, targets, label_smoothing=0.1)
    assert torch.equal(logits, before)
    with torch.no_grad():
        assert not token_sums(logits, targets, label_smoothing=0.1).objective.requires_grad


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_micro_batches_divided_once_equal_the_whole_batch(smoothing: float) -> None:
    logits, targets = example(9)
    whole = token_sums(logits, targets, label_smoothing=smoothing).objective / 9
    (gradient,) = torch.autograd.grad(whole, logits)
    parts = [token_sums(logits[i:j], targets[i:j], label_smoothing=smoothing) for i, j in ((0, 1), (1, 6), (6, 9))]
    torch.testing.assert_close(sum(p.objective for p in parts) / 9, whole, rtol=1e-12, atol=1e-12)
    for part in parts:
        (part.objective / 9).backward(retain_graph=True)
    torch.testing.assert_close(logits.grad, gradient, rtol=1e-12, atol=1e-12)
