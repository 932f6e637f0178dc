"""Statistics of attention heads."""

import numpy as np


def head_statistics(weights: np.ndarray) -> dict[str, np.ndarray]:
    """Attention weights [L,H,Tq,Tk] -> means over the queries, [L,H] each.

    entropy: in bits; 0 where a query looks at one key alone, log2(Tk) where at all keys alike.
    distance: the mean of |key - place|, in keys, weighted by attention. The place of a query is its
    own position; in a rectangle the point on the diagonal, so that translation in step has 0.
    diagonal: the share of the attention within half a key of that place.
    """
    n_queries, n_keys = weights.shape[-2:]
    place = np.arange(n_queries) * ((n_keys - 1) / max(n_queries - 1, 1))
    away = np.abs(np.arange(n_keys) - place[:, None])  # [Tq,Tk]
    logs = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
    per_query = {
        "entropy": -(weights * logs).sum(-1),
        "distance": (weights * away).sum(-1),
        "diagonal": (weights * (away <= 0.5 + 1e-9)).sum(-1),
    }
    return {name: values.mean(-1) for name, values in per_query.items()}
