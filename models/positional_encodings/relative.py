"""What the biases that depend on places alone share: one value for each distance, and the type they
are computed in.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from models.positional_encodings.base import AttentionPosition, Places


def exact_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type to compute a bias in: float64 for float64, float32 for anything smaller."""
    return torch.promote_types(dtype, torch.float32)


def by_distance(places: Places, values: Callable[[Tensor], Tensor]) -> Tensor:
    """values(distance i - j) for every pair of places, computed once for each distance (a Toeplitz
    matrix).

    values: distances [N], integers -> [H,N], each column from its own distance alone. Returns
    [H,Tq,Tk]. Positions may be any integers. Where they are so far apart that there are more
    distances in their range than pairs, and where no distance can occur twice (the single query of
    a decoding step), values gets the distances of the pairs themselves.
    """
    distance = places.distance
    n_pairs = distance.numel()
    if n_pairs > max(distance.shape):
        q, k = places.q_positions, places.k_positions
        lowest, highest = torch.stack((q.min() - k.max(), q.max() - k.min())).tolist()
        if highest - lowest < n_pairs:
            vector = values(torch.arange(lowest, highest + 1, device=distance.device))
            # A selection by a flat index has a much faster backward pass on a CPU than vector[:,
            # index].
            return vector.index_select(1, (distance - lowest).flatten()).unflatten(
                1, distance.shape
            )
    return values(distance.flatten()).unflatten(1, distance.shape)


class FixedBias(AttentionPosition):
    """A bias without parameters. A buffer that is never saved keeps the type that it was converted
    to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("like", torch.zeros(()), persistent=False)
        self.like: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """float64 after .double(), otherwise float32."""
        return exact_dtype(self.like.dtype)
