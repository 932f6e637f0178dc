"""The loss of two passes over the same targets: their cross-entropies, and the divergences between
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from models.loss import TokenSums, product_dtype

# Rows of logits of each pass that stand at once, half a dozen times: logits, probabilities,
# gradients.
_ROWS_CPU, _ROWS = 256, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PairWeights:
    """What each part of the loss of two passes weighs. The cross-entropies' weights add up to 1."""

    cross_entropy: tuple[float, float]
    first_from_second: float  # of KL(first || second)
    second_from_first: float  # of KL(second || first)


class _ProjectedPair(torch.autograd.Function):
    """Projection, losses and gradients of two passes, some rows at a time, so that no [N,V] matrix
    ever stands whole.

    As in `models/loss.py` the gradient is made on the way forward; the logits of both passes serve
    all four parts. Differentiable once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        weight: Tensor,
        targets: Tensor,
        label_smoothing: float,
        weights: PairWeights,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        exact = torch.promote_types(dtype, torch.float32)
        hidden, w = (first.to(dtype), second.to(dtype)), weight.to(dtype)
        objective, nll, n_correct = (
            torch.zeros((), dtype=exact, device=w.device) for _ in range(3)
        )
        grad_hidden = [torch.empty(h.shape, dtype=exact, device=h.device) for h in hidden]
        grad_weight = torch.zeros(w.shape, dtype=exact, device=w.device)
        rows = _ROWS_CPU if w.device.type == "cpu" else _ROWS
        for start in range(0, len(targets), rows):
            part = slice(start, start + rows)
            target = targets[part, None]
            log_p, log_q = (torch.mm(h[part], w.t()).to(exact).log_softmax(dim=1) for h in hidden)
            p, q = log_p.exp(), log_q.exp()
            gradients = []
            for share, log_probs, probs in zip(weights.cross_entropy, (log_p, log_q), (p, q)):
                at_target = log_probs.gather(1, target).sum()
                nll -= share * at_target
                n_correct += share * (log_probs.argmax(dim=1, keepdim=True) == target).sum()
                mean = log_probs.mean(dim=1).sum()
                objective -= share * ((1 - label_smoothing) * at_target + label_smoothing * mean)
                # d cross-entropy / d logits = probs - (1 - eps) onehot - eps / V
                gradient = (probs - label_smoothing / len(w)).mul_(share)
                gradient.scatter_add_(
                    1, target, torch.full_like(target, -share * (1 - label_smoothing), dtype=exact)
                )
                gradients.append(gradient)
            apart = log_p - log_q
            # With KL = sum_v p (log p - log q): d KL / d logits of p = p (log p - log q - KL), of q
            # = q - p
            for share, near, far, near_p, far_p, log_ratio in (
                (weights.first_from_second, gradients[0], gradients[1], p, q, apart),
                (weights.second_from_first, gradients[1], gradients[0], q, p, -apart),
            ):
                if share:
                    divergence = (near_p * log_ratio).sum(dim=1, keepdim=True)
                    objective += share * divergence.sum()
                    near.add_(near_p * (log_ratio - divergence), alpha=share)
                    far.add_(far_p - near_p, alpha=share)
            for h, gradient, grad in zip(hidden, gradients, grad_hidden):
                short = gradient.to(dtype)
                grad[part] = torch.mm(short, w)
                grad_weight += torch.mm(short.t(), h[part])
        ctx.save_for_backward(
            grad_hidden[0].to(first.dtype),
            grad_hidden[1].to(second.dtype),
            grad_weight.to(weight.dtype),
        )
        ctx.mark_non_differentiable(nll, n_correct)
        return objective, nll, n_correct

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_objective: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        first, second, weight = (gradient * grad_objective for gradient in ctx.saved_tensors)
        return first, second, weight, None, None, None, None


def pair_sums(
    first: Tensor,
    second: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    label_smoothing: float,
    weights: PairWeights,
) -> TokenSums:
    """Hidden states of two passes [N,D] each, output weight [V,D], targets [N] -> sums over the N
    tokens.

    objective: the cross-entropies (as in `token_sums`) and divergences as `weights` says. Both
    sides of a divergence have their gradient. nll and n_correct: of both passes, weighed like their
    cross-entropies.
    """
    dtype = product_dtype(weight)
    with torch.autocast(weight.device.type, enabled=False):
        return TokenSums(
            *_ProjectedPair.apply(first, second, weight, targets, label_smoothing, weights, dtype)
        )
