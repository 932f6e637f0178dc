"""DeBERTa, disentangled attention: content and distance have queries and keys of their own.

He et al. 2021, equations 3-4. With i a query's position, j a key's, P [2k,d] the trained table of a
stack, K^r = P W_kr and Q^r = P W_qr of a layer:

    logits_ij = [q_i . k_j + q_i . K^r_delta(i,j) + k_j . Q^r_delta(j,i)] / sqrt(3 Dh)
    delta(i,j) = clip(i - j + k, 0, 2k - 1)

The second term is "content to position" (c2p), the third "position to content" (p2c); with one of
them left out the factor is 1/sqrt(2 Dh). The third is indexed by delta(j,i), as in the paper. The
published programs take delta(i,j), which is another model: the table has its rows mirrored, except
at the clip, where clipped distances share the other end of the table.

Logarithmic buckets (DeBERTa v2): with k buckets to a side and m = k/2, distances up to m keep a row
each; a longer one x, up to max_distance - 1, goes to bucket
m + ceil((m - 1) ln(x/m) / ln((max_distance - 1)/m)). Those beyond go to bucket k, which the clip in
delta joins to the last on one side. In delta the bucket replaces |i - j|, with the sign of i - j.
Bounds are computed in integers, so that no logarithm is rounded across one.
"""

from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from models.positional_encodings.base import AttentionPosition, Places


@cache
def log_bucket_bounds(n_buckets: int, max_distance: int) -> tuple[int, ...]:
    """The longest distance of each bucket m+1 .. 2m-1 past the middle m = n_buckets/2."""
    middle, longest = n_buckets // 2, max_distance - 1
    bounds = []
    for n in range(1, middle):
        # x is in bucket m + n or nearer where x <= m (longest/m)^(n/(m-1)): x^(m-1) <= power.
        power = longest**n * middle ** (middle - 1 - n)
        x = round(middle * (longest / middle) ** (n / (middle - 1)))  # the bound, or one more
        bounds.append(x if x ** (middle - 1) <= power else x - 1)
    return tuple(bounds)


def log_bucket(
    distance: Tensor, n_buckets: int, max_distance: int, bounds: Tensor | None = None
) -> Tensor:
    """Integers i - j of any shape -> signed buckets, from -n_buckets to n_buckets.

    bounds: those of `log_bucket_bounds`, if already computed.
    """
    if bounds is None:
        bounds = torch.tensor(log_bucket_bounds(n_buckets, max_distance), device=distance.device)
    middle, steps = n_buckets // 2, distance.abs().contiguous()
    far = torch.bucketize(steps, bounds) + middle + 1
    return torch.where(steps <= middle, distance, far * distance.sign())


def table_rows(max_distance: int, log_buckets: int | None = None) -> int:
    """2k: how many vectors a table has."""
    return 2 * (max_distance if log_buckets is None else log_buckets)


def deberta_index(
    distance: Tensor,
    *,
    max_distance: int,
    log_buckets: int | None = None,
    bounds: Tensor | None = None,
) -> Tensor:
    """delta of the integers i - j, of any shape: rows of a table of `table_rows`."""
    rows = table_rows(max_distance, log_buckets)
    if log_buckets is not None:
        distance = log_bucket(distance, log_buckets, max_distance, bounds)
    return (distance + rows // 2).clamp(0, rows - 1)


def c2p_products(q: Tensor, key_rows: Tensor, index: Tensor) -> Tensor:
    """q_i . K^r of row index[i,j], not yet scaled.

    q [B,H,Tq,Dh], key_rows [N,H,Dh], index [Tq,Tk] -> [B,H,Tq,Tk].
    """
    products = torch.einsum("bhqd,nhd->bhqn", q, key_rows)
    return products.gather(-1, index.expand(*q.shape[:-1], -1))


def p2c_products(k: Tensor, query_rows: Tensor, index: Tensor) -> Tensor:
    """k_j . Q^r of row index[j,i], not yet scaled.

    k [B,H,Tk,Dh], query_rows [N,H,Dh], index [Tk,Tq] -> [B,H,Tq,Tk].
    """
    return c2p_products(k, query_rows, index).transpose(-2, -1)


def deberta_logits(
    q: Tensor,
    k: Tensor,
    key_table: Tensor | None,
    query_table: Tensor | None,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    max_distance: int,
    log_buckets: int | None = None,
) -> Tensor:
    """The whole logits, content and position: the formula at the head of this file.

    q [B,H,Tq,Dh], k [B,H,Tk,Dh]; key_table K^r (None: no c2p) and query_table Q^r (None: no p2c)
    [2k,H,Dh]; positions [Tq] and [Tk] -> [B,H,Tq,Tk]. Raises ValueError for a table without 2k
    rows.
    """
    rows = table_rows(max_distance, log_buckets)
    for table in (key_table, query_table):
        if table is not None and table.shape[0] != rows:
            raise ValueError(f"a table has {table.shape[0]} rows where {rows} are needed")
    distance = q_positions[:, None] - k_positions[None, :]
    logits, n_terms = torch.matmul(q, k.transpose(-2, -1)), 1
    if key_table is not None:
        index = deberta_index(distance, max_distance=max_distance, log_buckets=log_buckets)
        logits, n_terms = logits + c2p_products(q, key_table, index), n_terms + 1
    if query_table is not None:
        index = deberta_index(-distance.T, max_distance=max_distance, log_buckets=log_buckets)
        logits, n_terms = logits + p2c_products(k, query_table, index), n_terms + 1
    return logits * (n_terms * q.shape[-1]) ** -0.5


class Deberta(AttentionPosition):
    """One layer: its own W_kr (c2p) and W_qr (p2c), without bias, on the table of the stack.

    Only the rows in use are projected. W_kr and W_qr start Xavier-uniform.
    """

    def __init__(
        self,
        *,
        n_heads: int,
        table: nn.Embedding,
        max_distance: int,
        log_buckets: int | None = None,
        c2p: bool = True,
        p2c: bool = True,
    ) -> None:
        super().__init__()
        d_model = table.embedding_dim
        self.head_shape = (n_heads, d_model // n_heads)
        self.max_distance = max_distance
        self.log_buckets = log_buckets
        bounds = log_bucket_bounds(log_buckets, max_distance) if log_buckets is not None else ()
        self.register_buffer("bounds", torch.tensor(bounds, dtype=torch.long), persistent=False)
        self.bounds: Tensor
        self.w_kr = nn.Linear(d_model, d_model, bias=False) if c2p else None
        self.w_qr = nn.Linear(d_model, d_model, bias=False) if p2c else None
        for projection in (self.w_kr, self.w_qr):
            if projection is not None:
                nn.init.xavier_uniform_(projection.weight)
        # A tuple hides the table from the registry: its owner saves it, once.
        self._table = (table,)

    def logit_scale(self, head_dim: int, places: Places) -> float:
        n_terms = 1 + (self.w_kr is not None) + (self.w_qr is not None)
        return (n_terms * head_dim) ** -0.5

    def logit_term(self, q: Tensor, k: Tensor, places: Places, state: Tensor | None) -> Tensor:
        terms = []
        if self.w_kr is not None:
            rows, index = self._needed(places, "c2p")
            terms.append(c2p_products(q, self._project(self.w_kr, rows), index))
        if self.w_qr is not None:
            rows, index = self._needed(places, "p2c")
            terms.append(p2c_products(k, self._project(self.w_qr, rows), index))
        total = terms[0] if len(terms) == 1 else terms[0] + terms[1]
        return total * self.logit_scale(q.shape[-1], places)

    def _needed(self, places: Places, term: Literal["c2p", "p2c"]) -> tuple[Tensor, Tensor]:
        """The rows of the table in use, and the index into them."""
        reach, buckets = self.max_distance, self.log_buckets
        distances, index = places.distances(reach)

        def make() -> Tensor:
            sizes: Any = {"max_distance": reach, "log_buckets": buckets, "bounds": self.bounds}
            return deberta_index(distances if term == "c2p" else -distances, **sizes)

        rows = places.once(("deberta", term, reach, buckets), make)
        return rows, index if term == "c2p" else index.T

    def _project(self, projection: nn.Linear, rows: Tensor) -> Tensor:
        return projection(self._table[0](rows)).unflatten(-1, self.head_shape)
