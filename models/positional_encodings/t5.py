"""T5's relative position bias: a trained number for each head and bucket of distances.

Raffel et al. 2020, section 2.1: narrow buckets for near keys, ever wider ones up to a largest
distance, and one for all beyond.
"""

from bisect import bisect_left

import torch
from torch import Tensor, nn

from models.positional_encodings.base import AttentionPosition, Places, exact_dtype
from models.positional_encodings.relative import by_distance


def t5_boundaries(*, n_buckets: int, max_distance: int, bidirectional: bool) -> list[int]:
    """The distances at which bucket 1, 2, ... of one side begins.

    A side has S buckets: all n_buckets, or half of them where keys stand on both sides. The first
    e = S // 2 distances have a bucket each; a distance n >= e falls into bucket
    e + floor((S-e) ln(n/e) / ln(max_distance/e)), at most S-1. So bucket e + k begins at the
    smallest n with (n/e)^(S-e) >= (max_distance/e)^k, which is compared here in integers:
    logarithms in floating point put some of these n one bucket too low.
    """
    side = n_buckets // 2 if bidirectional else n_buckets
    exact = side // 2
    wide = side - exact
    candidates = range(exact, max_distance)
    starts = [
        exact
        + bisect_left(candidates, max_distance**k * exact ** (wide - k), key=lambda n: n**wide)
        for k in range(1, wide)
    ]
    return [*range(1, exact + 1), *starts]


def buckets_between(rel: Tensor, boundaries: Tensor, *, bidirectional: bool) -> Tensor:
    """The bucket of each integer rel = j - i, given `t5_boundaries` as a tensor."""
    if not bidirectional:
        return torch.bucketize(rel.neg().clamp(min=0), boundaries, right=True)
    return torch.bucketize(rel.abs(), boundaries, right=True) + (rel > 0) * (len(boundaries) + 1)


def t5_buckets(
    rel: Tensor, *, n_buckets: int = 32, max_distance: int = 128, bidirectional: bool
) -> Tensor:
    """The bucket, 0 .. n_buckets - 1, of each rel = j - i (key minus query position), integers of
    any shape.

    bidirectional: the first half of the buckets is for the past and the query's own place, the
    second for the future. Otherwise all are for the past, and the future, which a mask should
    hide, gets bucket 0.
    """
    boundaries = t5_boundaries(
        n_buckets=n_buckets, max_distance=max_distance, bidirectional=bidirectional
    )
    starts = torch.tensor(boundaries, device=rel.device)
    return buckets_between(rel, starts, bidirectional=bidirectional)


def t5_bias(table: Tensor, buckets: Tensor) -> Tensor:
    """table [n_buckets,H], buckets [...] -> [H,...] in the table's type, float32 or better."""
    chosen = table.to(exact_dtype(table.dtype)).T.index_select(1, buckets.flatten())
    return chosen.unflatten(1, buckets.shape)


class T5Bias(AttentionPosition):
    """One table [n_buckets,H], to be shared by the layers of a stack; it starts normal(0, 0.02).

    scaled=False leaves q.k undivided by sqrt(Dh), as T5 does; the bias is added as it stands.
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
        boundaries = t5_boundaries(
            n_buckets=n_buckets, max_distance=max_distance, bidirectional=bidirectional
        )
        self.bidirectional = bidirectional
        self.scaled = scaled
        self.table = nn.Parameter(0.02 * torch.randn(n_buckets, n_heads))
        self.register_buffer("boundaries", torch.tensor(boundaries), persistent=False)
        self.boundaries: Tensor

    def logit_scale(self, head_dim: int, places: Places) -> float | Tensor:
        return super().logit_scale(head_dim, places) if self.scaled else 1.0

    def bias(self, places: Places) -> Tensor:
        def values(distance: Tensor) -> Tensor:
            rel = -distance
            buckets = buckets_between(rel, self.boundaries, bidirectional=self.bidirectional)
            return t5_bias(self.table, buckets)

        return by_distance(places, values)
