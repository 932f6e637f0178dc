"""For biases that have one value for each distance."""

from collections.abc import Callable

from torch import Tensor

from models.positional_encodings.base import Places


def by_distance(places: Places, values: Callable[[Tensor], Tensor]) -> Tensor:
    """values(i - j) for every pair of places, [H,Tq,Tk]: computed once for each distance.

    values: distances [N], integers -> [H,N], each column from its own distance alone. Where no
    distance can occur twice (the single query of a decoding step), it gets them as they come.
    """
    shape = places.distance.shape
    if min(shape) == 1:
        return values(places.distance.flatten()).unflatten(1, shape)
    distances, index = places.distances()
    # On a CPU its backward pass is much faster than that of values(distances)[:, index].
    return values(distances).index_select(1, index.flatten()).unflatten(1, shape)
