"""DeBERTa: the equations pair by pair, exact buckets, the published code, known mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from references import ANYWHERE, DOUBLE, bounded, catches, close, dot, logits_of, normal
from torch import Tensor, nn
from transformers import DebertaV2Config
from transformers.models.deberta_v2.modeling_deberta_v2 import (
    DisentangledSelfAttention,
    make_log_bucket_position,
)

from models.positional_encodings.base import Places
from models.positional_encodings.deberta import (
    Deberta,
    c2p_products,
    deberta_index,
    deberta_logits,
    log_bucket,
    log_bucket_bounds,
)

B, H, DH, REACH = 2, 2, 6, 4
D_MODEL = H * DH
Logits = Callable[..., Tensor]
BucketsOf = Callable[[Tensor, int, int], Tensor]  # distances, buckets to a side, max_distance
# In the last two the logarithms of the formula, rounded, miss a bound: in float64 and in float32.
BUCKETS = [(4, 9), (6, 13), (8, 20), (32, 128), (64, 512), (256, 512), (32, 129), (18, 65)]


@cache
def bucket_by_definition(x: int, n_buckets: int, max_distance: int) -> int:
    """The signed logarithmic bucket of a distance, in whole numbers."""
    middle, longest, steps = n_buckets // 2, max_distance - 1, abs(x)
    if steps <= middle:
        return x
    # The smallest n with steps <= middle (longest / middle)^(n / (middle - 1)), one more than the
    # last past longest.
    power = steps ** (middle - 1)
    fits = (n for n in range(1, middle) if power <= longest**n * middle ** (middle - 1 - n))
    return (middle + next(fits, middle)) * (1 if x > 0 else -1)


def logits_by_loop(
    q: Tensor,
    k: Tensor,
    keys: Tensor | None,
    queries: Tensor | None,
    where: tuple[Tensor, Tensor],
    bucket: Callable[[int], int],
) -> Tensor:
    def delta(i: int, j: int) -> int:
        return bounded(bucket(i - j) + REACH, 0, 2 * REACH - 1)

    m, n = (at.tolist() for at in where)
    out = torch.empty(B, H, len(m), len(n), dtype=DOUBLE)
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, out.shape)).tolist():
        terms = [dot(q[b, h, i], k[b, h, j])]
        if keys is not None:
            terms.append(dot(q[b, h, i], keys[delta(m[i], n[j]), h]))
        if queries is not None:
            terms.append(dot(k[b, h, j], queries[delta(n[j], m[i]), h]))
        out[b, h, i, j] = sum(terms) / math.sqrt(len(terms) * DH)
    return out


def check_logits(implementation: Logits, *, log: bool = False) -> None:
    """With and without logarithmic buckets, with both terms and with each alone."""
    keys, queries = normal(2 * REACH, H, DH, seed=3), normal(2 * REACH, H, DH, seed=4)
    sizes = {"max_distance": 9, "log_buckets": REACH} if log else {"max_distance": REACH}
    for where in ANYWHERE.values():
        q, k = (normal(B, H, len(at), DH, seed=seed) for seed, at in enumerate(where))
        for tables in ((keys, queries), (keys, None), (None, queries)):
            bucket = partial(bucket_by_definition, n_buckets=REACH, max_distance=9)
            expected = logits_by_loop(q, k, *tables, where, bucket if log else lambda x: x)
            close(implementation(q, k, *tables, *where, **sizes), expected)


def module_logits(
    q: Tensor, k: Tensor, keys: Tensor | None, queries: Tensor | None, *where: Tensor, **sizes: Any
) -> Tensor:
    """Of a module whose table is the identity, so that its projections are the tables."""
    table = nn.Embedding(2 * REACH, D_MODEL).double()
    # the tables have fewer rows than d_model columns: the rest of W is idle
    table.weight.data = torch.eye(2 * REACH, D_MODEL, dtype=DOUBLE)
    terms = {"c2p": keys is not None, "p2c": queries is not None}
    module = Deberta(n_heads=H, table=table, **sizes, **terms).double()
    for projection, rows in ((module.w_kr, keys), (module.w_qr, queries)):
        if projection is not None and rows is not None:
            projection.weight.data[:, : 2 * REACH] = rows.flatten(1).T
    return logits_of(module, q, k, Places(*where))


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("implementation", [deberta_logits, module_logits])
def test_the_papers_equations_hold(implementation: Logits, log: bool) -> None:
    check_logits(implementation, log=log)


def test_zero_tables_are_plain_attention_over_the_root_of_the_number_of_terms() -> None:
    q, k, where = normal(B, H, 6, DH), normal(B, H, 6, DH, seed=1), torch.arange(6)
    zeros = torch.zeros(2 * REACH, H, DH, dtype=DOUBLE)
    for tables, n in (
        ((zeros, zeros), 3),
        ((zeros, None), 2),
        ((None, zeros), 2),
        ((None, None), 1),
    ):
        got = deberta_logits(q, k, *tables, where, where, max_distance=REACH)
        close(got, q @ k.mT / math.sqrt(n * DH))


def test_what_lies_past_the_reach_counts_as_the_farthest() -> None:
    far = torch.tensor([-9, -4, -3, 0, 3, 4, 9])
    assert deberta_index(far, max_distance=4).tolist() == [0, 0, 1, 4, 7, 7, 7]


def test_a_table_that_does_not_fit_is_refused_with_the_numbers() -> None:
    q, where = normal(B, H, 4, DH), torch.arange(4)
    with pytest.raises(ValueError, match=r"7 rows .* 8"):
        deberta_logits(q, q, normal(7, H, DH), None, where, where, max_distance=4)


@pytest.mark.parametrize(("max_distance", "log_buckets"), [(40, None), (40, 8)])
@pytest.mark.parametrize("terms", [["c2p"], ["p2c"], ["c2p", "p2c"]])
def test_the_weights_are_those_of_the_published_code(
    terms: list[str], max_distance: int, log_buckets: int | None
) -> None:
    """All but the p2c index, which mirrors the rows of the table: given such rows, they agree.

    Head sizes make their factor, a float32 root, a whole number.
    """
    n_heads, head_dim, n = 2, 12 if len(terms) == 2 else 8, 30
    d_model = n_heads * head_dim
    config = DebertaV2Config(
        hidden_size=d_model,
        num_attention_heads=n_heads,
        relative_attention=True,
        pos_att_type=terms,
        max_relative_positions=max_distance,
        position_buckets=-1 if log_buckets is None else log_buckets,
        share_att_key=False,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    theirs = DisentangledSelfAttention(config).double().eval().requires_grad_(False)
    x, rows = normal(B, n, d_model, seed=1), 2 * (log_buckets or max_distance)
    table, mask = normal(rows, d_model, seed=2), torch.ones(B, 1, n, n)
    _, expected = theirs(x, mask, output_attentions=True, rel_embeddings=table)

    def heads(y: Tensor) -> Tensor:
        return y.unflatten(-1, (n_heads, head_dim))

    q, k = (heads(p(x)).transpose(1, 2) for p in (theirs.query_proj, theirs.key_proj))
    keys = heads(theirs.pos_key_proj(table)) if "c2p" in terms else None
    queries = None
    if "p2c" in terms:
        queries = heads(theirs.pos_query_proj(table)).flip(0).roll(1, 0)
    where, sizes = torch.arange(n), {"max_distance": max_distance, "log_buckets": log_buckets}
    close(deberta_logits(q, k, keys, queries, where, where, **sizes).softmax(-1), expected)


# ------------------------------------------------------------------------------ logarithmic buckets


def check_buckets_of_the_code(buckets_of: BucketsOf) -> None:
    for n_buckets, max_distance in BUCKETS[:-1]:  # the published code is in float32
        distance = torch.arange(-3 * max_distance, 3 * max_distance + 1)
        theirs = make_log_bucket_position(distance, n_buckets, max_distance).long()
        ours = buckets_of(distance, n_buckets, max_distance)
        # As rows of a table: beyond the last bucket the published code counts on, and its clip
        # takes that back.
        rows = [(b + n_buckets).clamp(0, 2 * n_buckets - 1).double() for b in (ours, theirs)]
        close(*rows)


def check_buckets(buckets_of: BucketsOf) -> None:
    for sizes in BUCKETS:
        distance = torch.arange(-2 * sizes[1], 2 * sizes[1])
        expected = [bucket_by_definition(x, *sizes) for x in distance.tolist()]
        close(buckets_of(distance, *sizes).double(), torch.tensor(expected, dtype=DOUBLE))


def test_buckets_are_those_of_the_definition_and_of_the_published_code() -> None:
    check_buckets(log_bucket)
    check_buckets_of_the_code(log_bucket)
    check_buckets_of_the_code(
        lambda x, n, far: deberta_index(x, max_distance=far, log_buckets=n) - n
    )


def test_a_bound_that_a_logarithm_would_miss() -> None:
    """6 = 3 sqrt(12 / 3) is the last distance of its bucket: rounding may push it into the next."""
    assert log_bucket_bounds(6, 13) == (6, 12)
    assert log_bucket(torch.tensor([3, 4, 6, 7, 12, 13]), 6, 13).tolist() == [3, 4, 4, 5, 5, 6]


# ----------------------------------------------------------------------------------------- mistakes


def with_other_p2c(index_of: Callable[..., Tensor]) -> Logits:
    """deberta_logits with index_of(distance i - j [Tq,Tk], **sizes) [Tk,Tq] in its p2c term."""

    def logits(
        q: Tensor, k: Tensor, keys: Any, queries: Any, *where: Tensor, **sizes: Any
    ) -> Tensor:
        right = deberta_logits(q, k, keys, queries, *where, **sizes)
        if queries is None:
            return right
        scale, distance = ((2 + (keys is not None)) * DH) ** -0.5, where[0][:, None] - where[1]
        put_in = c2p_products(k, queries, index_of(distance, **sizes))
        taken_out = c2p_products(k, queries, deberta_index(-distance.T, **sizes))
        return right + scale * (put_in - taken_out).mT

    return logits


def from_zero(
    q: Tensor, k: Tensor, keys: Any, queries: Any, *where: Tensor, **sizes: Any
) -> Tensor:
    m, n = (torch.arange(len(at)) for at in where)
    return deberta_logits(q, k, keys, queries, m, n, **sizes)


def scaled_as_plain(q: Tensor, k: Tensor, *tables_and_places: Any, **sizes: Any) -> Tensor:
    n_terms = 1 + sum(table is not None for table in tables_and_places[:2])
    return deberta_logits(q, k, *tables_and_places, **sizes) * math.sqrt(n_terms)


def rounded_log_bucket(
    distance: Tensor,
    n_buckets: int,
    max_distance: int,
    *,
    longer: int = 0,
    rounded: Callable[[Tensor], Tensor] = torch.ceil,
    signed: bool = True,
    dtype: torch.dtype = DOUBLE,
) -> Tensor:
    """The formula of the buckets with its logarithms in floating point."""
    middle, steps = n_buckets // 2, distance.abs()
    most = torch.tensor((max_distance - 1 + longer) / middle, dtype=dtype).log()
    share = (steps.clamp(min=1) / middle).to(dtype).log() / most
    far = middle + rounded(share * (middle - 1)).long().clamp(max=middle)
    buckets = torch.where(steps <= middle, steps, far)
    return buckets * distance.sign() if signed else buckets


def sizes_swapped_in_a_step(distance: Tensor, *, max_distance: int, log_buckets: int) -> Tensor:
    """Where queries and keys differ in number, max_distance and log_buckets are exchanged."""
    if distance.shape[0] == distance.shape[1]:
        return deberta_index(-distance.T, max_distance=max_distance, log_buckets=log_buckets)
    swapped = rounded_log_bucket(-distance.T, max_distance, log_buckets)
    return (swapped + log_buckets).clamp(0, 2 * log_buckets - 1)


def code_check(**changes: Any) -> Callable[[], None]:
    return lambda: check_buckets_of_the_code(partial(rounded_log_bucket, **changes))


MISTAKES: dict[str, Callable[[], None]] = {
    "p2c indexed by delta(i,j)": lambda: check_logits(
        with_other_p2c(lambda distance, **sizes: deberta_index(distance.T, **sizes))
    ),
    "a step counted from 0": lambda: check_logits(from_zero),
    "divided by the root of Dh alone": lambda: check_logits(scaled_as_plain),
    "log: the number of buckets and max_distance swapped": lambda: check_buckets_of_the_code(
        lambda distance, n, far: rounded_log_bucket(distance, far, n)
    ),
    "log: the two swapped where a step has fewer queries than keys": lambda: check_logits(
        with_other_p2c(sizes_swapped_in_a_step), log=True
    ),
    "log: rounded down": code_check(rounded=torch.floor),
    "log: no sign, the future as the past": code_check(signed=False),
    "log: max_distance in place of max_distance - 1": code_check(longer=1),
    "log: logarithms of float64": lambda: check_buckets(rounded_log_bucket),
    "log: logarithms of float32": lambda: check_buckets(
        partial(rounded_log_bucket, dtype=torch.float32)
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(MISTAKES[mistake])


def test_the_made_mistakes_are_the_only_fault() -> None:
    check_buckets_of_the_code(partial(rounded_log_bucket, dtype=torch.float32))
    check_logits(with_other_p2c(lambda distance, **sizes: deberta_index(-distance.T, **sizes)))
