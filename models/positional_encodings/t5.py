"""Relative position bias in buckets (Raffel et al. 2020, "T5", section 2.1): a trained number for
each head and bucket of distances, narrow buckets for near keys, ever wider ones up to a largest
distance, and one for all beyond.
"""

from __future__ import annotations

from bisect import bisect_left

import torch
from torch import Tensor, nn

from models.positional_encodings.base import AttentionPosition, Places
from models.positional_encodings.relative import by_distance, exact_dtype


def t5_boundaries(*, n_buckets: int, max_distance: int, bidirectional: bool) -> list[int]:
    """The distances at which a new bucket of one side begins; bucket b of a side begins at entry b
    - 1.

    A side has S buckets: all n_buckets, or half of them where keys stand on both sides. With e = S
    // 2 the first e distances have a bucket each; a distance n >= e falls into bucket e +
    floor((S-e) ln(n/e) / ln(max_distance/e)), at most S-1. So bucket e + k begins at the smallest n
    with (n/e)^(S-e) >= (max_distance/e)^k, which is compared here in integers: logarithms in
    floating point put some of these n one bucket too low.

    Raises ValueError where a side has fewer than two buckets, where two sides cannot share
    n_buckets evenly, and where max_distance is not greater than e.
    """
    sides = 2 if bidirectional else 1
    if n_buckets % sides:
        raise ValueError(f"n_buckets = {n_buckets} must be even: half of them for each side")
    side = n_buckets // sides
    if side < 2:
        raise ValueError(f"n_buckets = {n_buckets} must be at least {2 * sides}")
    exact = side // 2
    if max_distance <= exact:
        raise ValueError(
            f"max_distance = {max_distance} must be greater than {exact}, the distances with own buckets"
        )
    wide = side - exact
    candidates = range(exact, max_distance)
    starts = [
        exact
        + bisect_left(candidates, max_distance**k * exact ** (wide - k), key=lambda n: n**wide)
        for k in range(1, wide)
    ]
    return [*range(1, exact + 1), *starts]


def buckets_between(rel: Tensor, boundaries: Tensor, *, bidirectional: bool) -> Tensor:
    """Bucket numbers of integers rel = j - i, given the integers `t5_boundaries` as a tensor. Same
    shape, integers.
    """
    if not bidirectional:
        return torch.bucketize(rel.neg().clamp(min=0), boundaries, right=True)
    return torch.bucketize(rel.abs(), boundaries, right=True) + (rel > 0) * (len(boundaries) + 1)


def t5_buckets(
    rel: Tensor, *, n_buckets: int = 32, max_distance: int = 128, bidirectional: bool
) -> Tensor:
    """The bucket, 0 .. n_buckets - 1, of each rel = j - i (key minus query position), integers of
    any shape.

    bidirectional: the first half of the buckets is for the past and the query's own place, the
    second for the future. Otherwise all are for the past, and the future, which a mask should hide,
    gets bucket 0. Raises ValueError as `t5_boundaries` does.
    """
    boundaries = t5_boundaries(
        n_buckets=n_buckets, max_distance=max_distance, bidirectional=bidirectional
    )
    return buckets_between(
        rel, torch.tensor(boundaries, device=rel.device), bidirectional=bidirectional
    )


def t5_bias(table: Tensor, buckets: Tensor) -> Tensor:
    """table [n_buckets,H], buckets [...] -> [H,...] in the table's type, float32 or better."""
    chosen = table.to(exact_dtype(table.dtype)).T.index_select(1, buckets.flatten())
    return chosen.unflatten(1, buckets.shape)


class T5Bias(AttentionPosition):
    """One table [n_buckets,H], to be shared by the layers of a stack. It starts small (normal,
    0.02).

    scaled=False leaves q.k undivided by sqrt(Dh), as T5 does; the bias is added as it stands in
    both cases.
    """

    def __init__(
        self,
        *,
        n_heads: int,
        n_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool,
        scaled: bool = True,
    ) -> None:
        super().__init__()
        if n_heads < 1:
            raise ValueError(f"n_heads = {n_heads} must be at least 1")
        boundaries = t5_boundaries(
            n_buckets=n_buckets, max_distance=max_distance, bidirectional=bidirectional
        )
        self.bidirectional = bidirectional
        self.scaled = scaled
        self.table = nn.Parameter(0.02 * torch.randn(n_buckets, n_heads))
        self.register_buffer("boundaries", torch.tensor(boundaries), persistent=False)
        self.boundaries: Tensor

    def logit_scale(self, head_dim: int) -> float:
        return super().logit_scale(head_dim) if self.scaled else 1.0

    def bias(self, places: Places) -> Tensor:
        def values(distance: Tensor) -> Tensor:
            return t5_bias(
                self.table,
                buckets_between(-distance, self.boundaries, bidirectional=self.bidirectional),
            )

        return by_distance(places, values)
