"""What biases by distance share: one value for each distance, and the type they are computed in."""

from collections.abc import Callable

import torch
from torch import Tensor

from models.positional_encodings.base import AttentionPosition, Places, exact_dtype


def by_distance(places: Places, values: Callable[[Tensor], Tensor]) -> Tensor:
    """values(i - j) for every pair of places, [H,Tq,Tk]: computed once for each distance.

    values: distances [N], integers -> [H,N], each column from its own distance alone. Where the
    range of distances is wider than there are pairs, and where none can occur twice (the single
    query of a decoding step), values gets the distances of the pairs themselves.
    """
    distance = places.distance
    n_pairs = distance.numel()
    if n_pairs > max(distance.shape):
        q, k = places.q_positions, places.k_positions
        lowest, highest = torch.stack((q.min() - k.max(), q.max() - k.min())).tolist()
        if highest - lowest < n_pairs:
            vector = values(torch.arange(lowest, highest + 1, device=distance.device))
            # On a CPU its backward pass is much faster than that of vector[:, index].
            chosen = vector.index_select(1, (distance - lowest).flatten())
            return chosen.unflatten(1, distance.shape)
    return values(distance.flatten()).unflatten(1, distance.shape)


class FixedBias(AttentionPosition):
    """A bias without parameters: a buffer that is never saved follows the model's type."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("like", torch.zeros(()), persistent=False)
        self.like: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """float64 after .double(), otherwise float32."""
        return exact_dtype(self.like.dtype)
