"""The training loss: summed over real target tokens, divided by their number exactly once, by the caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class TokenSums:
    """Sums over N target tokens: `objective` carries the gradient; `nll` (without smoothing) and `n_correct` do not."""

    objective: Tensor
    nll: Tensor
    n_correct: Tensor


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Loss and gradient in one go: autograd's own chain of log_softmax, gather and mean passes over [N,V] far more
    often (a fifth of a training step on a CPU). Differentiable once."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
        top, best = logits.max(dim=-1)
        at_target = logits.gather(-1, targets[:, None]).squeeze(-1)
        mean = logits.mean(dim=-1)
        probs = (logits - top[:, None]).exp_()
        total = probs.sum(dim=-1)
        log_total = total.log() + top
        nll = (log_total - at_target).sum()
        objective = nll
        if label_smoothing:
            objective = (log_total - (1 - label_smoothing) * at_target - label_smoothing * mean).sum()
        if ctx.needs_input_grad[0]:
            # d objective / d logits = softmax - (1 - eps) onehot - eps / V
            gradient = probs.div_(total[:, None])
            if label_smoothing:
                gradient.sub_(label_smoothing / logits.shape[-1])
            gradient.scatter_add_(-1, targets[:, None], gradient.new_full((len(targets), 1), label_smoothing - 1))
            ctx.save_for_backward(gradient)
        n_correct = (best == targets).sum()
        nll = nll.clone()  # an output of its own where it would be the objective itself
        ctx.mark_non_differentiable(nll, n_correct)
        return objective, nll, n_correct

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_objective: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad_objective, None, None


def token_sums(logits: Tensor, targets: Tensor, *, label_smoothing: float) -> TokenSums:
    """logits [N,V], targets [N] (no padding among them) -> sums over the N tokens.

    Label smoothing (Szegedy et al. 2016, section 7) mixes the targets with the uniform distribution over the
    vocabulary: (1 - eps) nll + eps times the mean of -log p over the vocabulary, as torch's cross_entropy with
    label_smoothing=eps.
    """
    exact = logits.float() if logits.dtype.itemsize < 4 else logits
    return TokenSums(*_SmoothedCrossEntropy.apply(exact, targets, label_smoothing))
