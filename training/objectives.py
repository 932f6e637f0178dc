"""What an update minimises: one callable for each section of `configs/schema.py`."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from configs import schema as config
from data.batching import Batch
from models.loss import Exponentials, TokenSums, exponentials, product_dtype, token_sums
from models.products import product

# Rows of each pass whose logits, probabilities and gradients are held at once, half a dozen arrays.
_ROWS_CPU, _ROWS = 256, 1024

# Called with the model, a batch, the weight [V,D] of the output, and the label smoothing. The
# caller divides the sums by the number of tokens of the whole update. The model is called exactly
# once, as DistributedDataParallel requires. nll and n_correct are the plain figures of N tokens, so
# that logs can be compared between objectives.
Objective = Callable[[nn.Module, Batch, Tensor, float], TokenSums]


class PairWeights(NamedTuple):
    """The weight of each part of the loss of two passes; those of the cross-entropies sum to 1."""

    cross_entropy: tuple[float, float]
    first_from_second: float  # of KL(first || second)
    second_from_first: float  # of KL(second || first)


def build_objective(objective: config.Objective, softmax: Exponentials = exponentials) -> Objective:
    """The callable of a configured objective. `softmax` is that of the cross-entropy.

    R-Drop (Liang et al. 2021) has dropout of its own in each pass. The paper minimises
    CE1 + CE2 + alpha (KL(P1||P2) + KL(P2||P1)) / 2 (equations 2 to 4). Here it is half of that:
    alpha is the paper's, and the cross-entropy has the scale of a single pass, so that rates,
    clipping and weight decay mean the same as without R-Drop.

    SimCut (Gao et al. 2022, section 3): CE(P) + alpha KL(P || Pcut). Pcut is predicted from source
    and target inputs whose tokens lose their embedding, each with probability `cut`, special tokens
    included (the authors' program spares the target's start and the source's end). Positions stay,
    and the kept embeddings are not scaled up. The gradient flows through both sides of the
    divergence, which matters according to the paper.
    """
    match objective:
        case config.CrossEntropy():
            return partial(cross_entropy, softmax=softmax)
        case config.RDrop(alpha=alpha):
            return partial(two_passes, weights=PairWeights((0.5, 0.5), alpha / 4, alpha / 4))
        case config.SimCut(alpha=alpha, cut=cut):
            return partial(two_passes, weights=PairWeights((1.0, 0.0), alpha, 0.0), cut=cut)


def cross_entropy(
    model: nn.Module,
    batch: Batch,
    weight: Tensor,
    label_smoothing: float,
    *,
    softmax: Exponentials = exponentials,
) -> TokenSums:
    """One pass and its cross-entropy; see `token_sums`."""
    hidden = model(batch.src, batch.tgt_in, select=batch.flat, project=False)
    how: Any = {"label_smoothing": label_smoothing, "softmax": softmax}
    return token_sums(hidden, weight, batch.targets, **how)


def two_passes(
    model: nn.Module,
    batch: Batch,
    weight: Tensor,
    label_smoothing: float,
    *,
    weights: PairWeights,
    cut: float | None = None,
) -> TokenSums:
    """Two passes in one, over the batch twice. With `cut` the second pass loses embeddings."""
    src, tgt_in = (torch.cat((x, x)) for x in (batch.src, batch.tgt_in))
    select = torch.cat((batch.flat, batch.flat + batch.tgt_in.numel()))
    keep = None if cut is None else (_kept(batch.src, cut), _kept(batch.tgt_in, cut))
    hidden = model(src, tgt_in, select=select, project=False, keep=keep)
    first, second = hidden.tensor_split(2)
    smoothing = {"label_smoothing": label_smoothing}
    return pair_sums(first, second, weight, batch.targets, **smoothing, weights=weights)


def _kept(ids: Tensor, cut: float) -> Tensor:
    """ids [B,T] -> [2B,T] bool: True in the first pass; in the second, with probability 1 - cut."""
    stays = torch.rand(ids.shape, device=ids.device) >= cut
    return torch.cat((torch.ones_like(stays), stays))


def pair_sums(
    first: Tensor,
    second: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    label_smoothing: float,
    weights: PairWeights,
) -> TokenSums:
    """Hidden states of two passes [N,D], output weight [V,D], targets [N] -> sums over N tokens.

    The objective has the cross-entropies (as in `token_sums`) and divergences as `weights` says.
    nll and n_correct are of both passes, weighted like their cross-entropies.
    """
    dtype = product_dtype(weight)
    with torch.autocast(weight.device.type, enabled=False):
        return TokenSums(
            *_ProjectedPair.apply(first, second, weight, targets, label_smoothing, weights, dtype)
        )


class _ProjectedPair(torch.autograd.Function):
    """Projection, losses and gradients of two passes, without a whole [N,V] matrix.

    As in `models/loss.py`, it takes some rows at a time, and the forward pass computes the
    gradient. The logits of both passes serve all four parts. Differentiable once.
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
        mean_w = weight.mean(dim=0, dtype=exact)
        objective, nll, n_correct = (
            torch.zeros((), dtype=exact, device=w.device) for _ in range(3)
        )
        grad_hidden = [torch.empty(h.shape, dtype=exact, device=h.device) for h in hidden]
        grad_weight = torch.zeros(w.shape, dtype=exact, device=w.device)
        rows = _ROWS_CPU if w.device.type == "cpu" else _ROWS
        for start in range(0, len(targets), rows):
            part = slice(start, start + rows)
            target = targets[part]
            logits = [product(h[part], w.t()) for h in hidden]
            apart = logits[0].to(exact) - logits[1]
            probs, log_totals = [], []
            for share, h, of_pass in zip(weights.cross_entropy, hidden, logits):
                exps, total, log_total, at_target, hits = exponentials(of_pass, target, exact)
                nll += share * (log_total - at_target).sum()
                n_correct += share * hits.sum()
                mean = h[part].to(exact) @ mean_w  # of the logits, by exact weights
                losses = log_total - (1 - label_smoothing) * at_target - label_smoothing * mean
                objective += share * losses.sum()
                probs.append(exps.div_(total[:, None]))
                log_totals.append(log_total)
            apart.sub_((log_totals[0] - log_totals[1])[:, None])  # log p - log q
            step = probs[0] - probs[1]
            one, two = weights.first_from_second, weights.second_from_first
            # With KL = sum_v p (log p - log q):
            # d KL / d logits of p = p (log p - log q - KL), of q = q - p
            for i, sign, near, far in ((0, 1, one, two), (1, -1, two, one)):
                share = weights.cross_entropy[i]
                divergence = sign * torch.linalg.vecdot(probs[i], apart)
                objective += near * divergence.sum()
                factor = torch.add((share - near * divergence)[:, None], apart, alpha=sign * near)
                gradient = factor.mul_(probs[i]).add_(step, alpha=sign * far)
                at_target = torch.full_like(target, share * (label_smoothing - 1), dtype=exact)
                short = gradient.scatter_add_(1, target[:, None], at_target[:, None]).to(dtype)
                grad = product(short, w).to(exact)
                grad_hidden[i][part] = grad.sub_(mean_w, alpha=share * label_smoothing)
                grad_weight += product(short.t(), hidden[i][part])
        for share, h in zip(weights.cross_entropy, hidden):
            grad_weight.sub_(h.to(exact).sum(dim=0), alpha=share * label_smoothing / len(w))
        found, of = (*grad_hidden, grad_weight), (first, second, weight)
        ctx.save_for_backward(*(grad.to(x.dtype) for grad, x in zip(found, of)))
        ctx.mark_non_differentiable(nll, n_correct)
        return objective, nll, n_correct

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_objective: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (gradient * grad_objective for gradient in ctx.saved_tensors)
        return *gradients, None, None, None, None
