"""The training loss: a sum over target tokens, which the caller divides by their number."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.products import by_onednn, product

# Rows of logits at once; on a CPU few enough for the cache to hold them between two passes.
_ROWS_CPU, _ROWS = 512, 4096
# On a CPU in bfloat16, a weight of _LARGE numbers takes more rows, since its gradient leaves the
# cache each time that a product is added. _LOGITS logits at once are then made float32.
_LARGE, _ROWS_LARGE, _LOGITS = 4_000_000, 2048, 1_000_000
# Rows of zeros make the vocabulary a multiple of this, for the tensor cores of a GPU.
_MULTIPLE_CPU, _MULTIPLE = 1, 64

Exponentials = Callable[[Tensor, Tensor, torch.dtype], tuple[Tensor, ...]]


@dataclass(slots=True)
class TokenSums:
    """Sums over N target tokens."""

    objective: Tensor  # alone carries the gradient
    nll: Tensor  # without smoothing
    n_correct: Tensor


def exponentials(logits: Tensor, target: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """logits [N,V], target [N] -> exp(logits - a row's maximum) [N,V] in dtype, and four of [N].

    The four are, in float32 or better: the sum of the exponentials, logsumexp, the logit at the
    target, and whether it is the highest. The logits may be overwritten. Made to be compiled.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    at_target = logits.gather(1, target[:, None]).squeeze(1)
    top, best = logits.max(dim=1)
    exps = logits.sub_(top[:, None]).exp_()
    total = exps.sum(dim=1)
    return exps.to(dtype), total, total.log() + top, at_target, best == target


def _in_place(
    softmax: Exponentials, logits: Tensor, target: Tensor, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """`softmax`, a few rows at a time, written into the logits, which are of dtype."""
    rows, rest = max(1, _LOGITS // logits.shape[1]), []
    for some, at in zip(logits.split(rows), target.split(rows)):
        exps, *others = softmax(some, at, torch.float32)
        some.copy_(exps)
        rest.append(others)
    return logits, *map(torch.cat, zip(*rest))


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Projection, loss and gradient, some rows at a time: the [N,V] logits never exist whole.

    The forward pass computes the gradient too, while a row's exponentials are at hand. This takes
    no further pass over the vocabulary: softmax, one-hot target and smoothing enter the two
    products as three terms each. Differentiable once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        label_smoothing: float,
        dtype: torch.dtype,
        softmax: Exponentials,
    ) -> tuple[Tensor, Tensor, Tensor]:
        exact = torch.promote_types(dtype, torch.float32)
        h, w = hidden.to(dtype), weight.to(dtype)
        mean_w = weight.mean(dim=0, dtype=exact)
        on_cpu, vocab_size = h.device.type == "cpu", len(w)
        if idle := -vocab_size % (_MULTIPLE_CPU if on_cpu else _MULTIPLE):
            w = F.pad(w, (0, 0, 0, idle))
        objective, nll = (torch.zeros((), dtype=exact, device=h.device) for _ in range(2))
        n_correct = torch.zeros((), dtype=torch.long, device=h.device)
        differentiate, of_weight = any(ctx.needs_input_grad[:2]), ctx.needs_input_grad[1]
        if differentiate:
            grad_hidden = torch.empty(h.shape, dtype=exact, device=h.device)
        grad_weight = torch.zeros(w.shape, dtype=exact, device=h.device) if of_weight else None
        large = on_cpu and of_weight and dtype != exact and w.numel() >= _LARGE
        rows = _ROWS_CPU if on_cpu else _ROWS
        if large:
            rows, softmax = _ROWS_LARGE, partial(_in_place, softmax)
        for start in range(0, len(h), rows):
            some, target = h[start : start + rows], targets[start : start + rows]
            logits = product(some, w.t())
            logits[:, vocab_size:].fill_(-torch.inf)
            exps, total, log_total, at_target, hits = softmax(
                logits, target, dtype if differentiate else exact
            )
            n_correct += hits.sum()
            nll += (log_total - at_target).sum()
            mean = some.to(exact) @ mean_w  # of the logits over the vocabulary, by exact weights
            losses = log_total - (1 - label_smoothing) * at_target - label_smoothing * mean
            objective += losses.sum()
            if not differentiate:
                continue
            # d objective / d logits = exps / total - (1 - eps) onehot - eps / V
            part = product(exps, w).to(exact).div_(total[:, None])
            part.sub_(w[target], alpha=1 - label_smoothing).sub_(mean_w, alpha=label_smoothing)
            grad_hidden[start : start + rows] = part
            if grad_weight is not None:
                _add_product(grad_weight, exps.t(), (some / total[:, None]).to(dtype))
        if grad_weight is not None:
            grad_weight = grad_weight[:vocab_size]
            grad_weight.sub_(h.to(exact).sum(dim=0), alpha=label_smoothing / vocab_size)
            grad_weight.index_add_(0, targets, h.to(exact), alpha=label_smoothing - 1)
            grad_weight = grad_weight.to(weight.dtype)
        if differentiate:
            ctx.save_for_backward(grad_hidden.to(hidden.dtype), grad_weight)
        ctx.mark_non_differentiable(nll, n_correct)
        return objective, nll, n_correct

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_objective: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (each if each is None else each * grad_objective for each in ctx.saved_tensors)
        return *gradients, None, None, None, None


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, where a and b may be less exact than total."""
    if total.dtype == a.dtype and not by_onednn(a, b):
        total.addmm_(a, b)
    else:
        total += product(a, b)


def product_dtype(weight: Tensor) -> torch.dtype:
    """The type of products with `weight`: autocast's where that is on, else the weight's."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def token_sums(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    label_smoothing: float,
    softmax: Exponentials = exponentials,
) -> TokenSums:
    """hidden [N,D], output weight [V,D], targets [N] without padding -> sums over the N tokens.

    The logits are hidden @ weight^T. Label smoothing (Szegedy et al. 2016, section 7) mixes the
    targets with the uniform distribution over the vocabulary: (1 - eps) nll + eps times the mean of
    -log p over the vocabulary, as torch's cross_entropy with label_smoothing=eps. Under autocast
    the products have its dtype; the sums are float32 or better. `softmax` is `exponentials`,
    perhaps compiled.
    """
    dtype = product_dtype(weight)
    if not torch.is_grad_enabled():  # which forward cannot ask
        hidden, weight = hidden.detach(), weight.detach()
    with torch.autocast(hidden.device.type, enabled=False):
        return TokenSums(
            *_ProjectedCrossEntropy.apply(hidden, weight, targets, label_smoothing, dtype, softmax)
        )
