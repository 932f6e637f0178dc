"""What an update minimises: one callable for each section of `configs/schema.py`, all with one
signature.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from configs import schema as config
from data.batching import Batch
from models.loss import TokenSums, token_sums
from training.pair_loss import PairWeights, pair_sums


class Objective(Protocol):
    """Sums over the N target tokens of a batch, to be divided by the number of tokens of the whole
    update.

    `targets` [B,T] bool says where the targets are, `weight` [V,D] is that of the output. The model
    is called exactly once, as DistributedDataParallel needs it. nll and n_correct are the plain
    figures of N tokens, whatever else the objective holds, so that the figures of a log compare
    between objectives.
    """

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        targets: Tensor,
        weight: Tensor,
        label_smoothing: float,
    ) -> TokenSums: ...


def build_objective(objective: config.Objective) -> Objective:
    """The callable of a configured objective."""
    match objective:
        case config.CrossEntropy():
            return cross_entropy
        case config.RDrop(alpha=alpha):
            return RDrop(alpha)
        case config.SimCut(alpha=alpha, cut=cut):
            return SimCut(alpha, cut)


def cross_entropy(
    model: nn.Module, batch: Batch, targets: Tensor, weight: Tensor, label_smoothing: float
) -> TokenSums:
    """One pass and its cross-entropy; see `token_sums`."""
    hidden = model(batch.src, batch.tgt_in, select=targets, project=False)
    return token_sums(hidden, weight, batch.tgt_out[targets], label_smoothing=label_smoothing)


class RDrop:
    """R-Drop (Liang et al. 2021): two passes with dropout of their own, over the batch joined to
    itself.

    The paper minimises CE1 + CE2 + alpha (KL(P1||P2) + KL(P2||P1)) / 2 (equations 2 to 4). Here it is half of that,
    (CE1 + CE2) / 2 + alpha (KL(P1||P2) + KL(P2||P1)) / 4: alpha is the paper's, and the cross-entropy has the scale
    of a single pass, so that rates, clipping and weight decay mean what they mean without R-Drop. nll and n_correct
    are the means of both passes. Without dropout the divergences are exactly 0, and so are their gradients.
    """

    def __init__(self, alpha: float) -> None:
        self.weights = PairWeights(
            cross_entropy=(0.5, 0.5), first_from_second=alpha / 4, second_from_first=alpha / 4
        )

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        targets: Tensor,
        weight: Tensor,
        label_smoothing: float,
    ) -> TokenSums:
        hidden = model(
            _twice(batch.src), _twice(batch.tgt_in), select=_twice(targets), project=False
        )
        first, second = hidden.tensor_split(2)
        return pair_sums(
            first,
            second,
            weight,
            batch.tgt_out[targets],
            label_smoothing=label_smoothing,
            weights=self.weights,
        )


class SimCut:
    """SimCut (Gao et al. 2022, section 3): CE(P) + alpha KL(P || Pcut), in one pass over the batch joined to itself.

    Pcut is predicted from a source and a target input whose tokens lose their embedding, each with
    probability `cut` and independently, special tokens included; positions stay, and what stays is
    not scaled up. The gradient flows through both sides of the divergence, which the paper finds to
    matter. Dropout is drawn for each pass anew. nll and n_correct are those of the whole sentences.
    """

    def __init__(self, alpha: float, cut: float) -> None:
        self.weights = PairWeights(
            cross_entropy=(1.0, 0.0), first_from_second=alpha, second_from_first=0.0
        )
        self.cut = cut

    def __call__(
        self,
        model: nn.Module,
        batch: Batch,
        targets: Tensor,
        weight: Tensor,
        label_smoothing: float,
    ) -> TokenSums:
        keep = self._keep(batch.src), self._keep(batch.tgt_in)
        hidden = model(
            _twice(batch.src),
            _twice(batch.tgt_in),
            select=_twice(targets),
            project=False,
            keep=keep,
        )
        whole, cut = hidden.tensor_split(2)
        return pair_sums(
            whole,
            cut,
            weight,
            batch.tgt_out[targets],
            label_smoothing=label_smoothing,
            weights=self.weights,
        )

    def _keep(self, ids: Tensor) -> Tensor:
        """ids [B,T] -> [2B,T] bool: all of the first B rows, of the others each token with
        probability 1 - cut.
        """
        stays = torch.rand(ids.shape, device=ids.device) >= self.cut
        return torch.cat((torch.ones_like(stays), stays))


def _twice(x: Tensor) -> Tensor:
    return torch.cat((x, x))
