"""The schemes whose terms depend on queries, keys or tokens: Shaw, Transformer-XL, DeBERTa, CoPE,
forgetting attention.

Each is held against loops written from its paper's equations, against an independent implementation
where a package has one, and against what must hold for any positions. At the end known public
mistakes are put in on purpose: the same checks must refuse them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cache, partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DebertaV2Config, XLNetConfig
from transformers.models.deberta_v2.modeling_deberta_v2 import (
    DisentangledSelfAttention,
    make_log_bucket_position,
)
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import (
    _apply_relative_key_position_encoding,
)
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention
from x_transformers.x_transformers import CoPE, DataDependentAlibi

from models.attention.kernels import attend
from models.masks import causal_attn_mask
from models.positional_encodings import transformer_xl
from models.positional_encodings.base import AttentionPosition, AttentionScheme, Places
from models.positional_encodings.cope import Cope, cope_logits, cope_positions
from models.positional_encodings.deberta import (
    Deberta,
    DebertaScheme,
    c2p_products,
    deberta_index,
    deberta_logits,
    log_bucket,
    log_bucket_bounds,
)
from models.positional_encodings.forgetting import ForgetGate, fox_bias
from models.positional_encodings.shaw import Shaw, clipped_index, shaw_logits, shaw_values
from models.positional_encodings.transformer_xl import (
    HeadBiases,
    TransformerXl,
    TransformerXlScheme,
    relative_sinusoids,
    xl_content_logits,
    xl_logits,
    xl_position_logits,
)

DOUBLE = torch.float64
B, H, DH = 2, 2, 6
D_MODEL = H * DH
CLIP, REACH, BASE = 3, 4, 500.0
Make = Callable[[], AttentionScheme]
Terms = Callable[..., Tensor]

# Query and key positions: a whole sequence, its newest tokens against all of it, positions with
# gaps, far from 0.
NEWEST = {
    "whole": (torch.arange(7), torch.arange(7)),
    "newest": (torch.arange(4, 7), torch.arange(7)),
    "one": (torch.tensor([6]), torch.arange(7)),
    "gaps": (torch.tensor([4, 9, 11]), torch.tensor([0, 1, 4, 9, 11])),
    "far": (torch.arange(1004, 1007), torch.arange(1000, 1007)),
}
# What is defined on both sides of a query also knows queries that are not the last of the keys.
ANYWHERE = {
    **NEWEST,
    "first": (torch.arange(3), torch.arange(9)),
    "middle": (torch.tensor([2, 3]), torch.arange(7)),
    "unsorted": (torch.tensor([5, 0, 3]), torch.tensor([3, 8, 0, 5])),
}


def close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def queries_and_keys(
    q_positions: Tensor, k_positions: Tensor, *, seed: int = 1
) -> tuple[Tensor, Tensor]:
    return normal(B, H, len(q_positions), DH, seed=seed), normal(
        B, H, len(k_positions), DH, seed=seed + 1
    )


def plain_logits(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / math.sqrt(DH)


def for_each_pair(
    q_positions: Tensor, k_positions: Tensor, value: Callable[[int, int, int, int], float]
) -> Tensor:
    """[B,H,Tq,Tk] of value(b, h, i, j), where i and j count the queries and the keys."""
    rows, columns = range(len(q_positions)), range(len(k_positions))
    numbers = [
        [[[value(b, h, i, j) for j in columns] for i in rows] for h in range(H)] for b in range(B)
    ]
    return torch.tensor(numbers, dtype=DOUBLE)


def dot(a: Tensor | list[float], b: Tensor | list[float]) -> float:
    a, b = (x.tolist() if isinstance(x, Tensor) else x for x in (a, b))
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def bounded(x: int, low: int, high: int) -> int:
    return low if x < low else high if x > high else x


# ----------------------------------------- the papers' equations as loops, and checks that use them


def shaw_logits_by_loop(
    q: Tensor, table: Tensor, q_positions: Tensor, k_positions: Tensor
) -> Tensor:
    def value(b: int, h: int, i: int, j: int) -> float:
        return dot(
            q[b, h, i], table[bounded(int(k_positions[j] - q_positions[i]), -CLIP, CLIP) + CLIP]
        )

    return for_each_pair(q_positions, k_positions, value)


def check_shaw_logits(implementation: Terms) -> None:
    table = normal(2 * CLIP + 1, DH, seed=3)
    for q_positions, k_positions in ANYWHERE.values():
        q, _ = queries_and_keys(q_positions, k_positions)
        expected = shaw_logits_by_loop(q, table, q_positions, k_positions)
        close(implementation(q, table, q_positions, k_positions, CLIP), expected)


def check_shaw_values(implementation: Terms) -> None:
    table = normal(2 * CLIP + 1, DH, seed=4)
    for q_positions, k_positions in ANYWHERE.values():
        weights = normal(B, H, len(q_positions), len(k_positions), seed=5).softmax(-1)
        expected = torch.zeros(B, H, len(q_positions), DH, dtype=DOUBLE)
        for i, m in enumerate(q_positions.tolist()):
            for j, n in enumerate(k_positions.tolist()):
                expected[:, :, i] += (
                    weights[:, :, i, j, None] * table[bounded(n - m, -CLIP, CLIP) + CLIP]
                )
        close(implementation(weights, table, q_positions, k_positions, CLIP), expected)


def shaw_attention_by_loop(
    q: Tensor, k: Tensor, v: Tensor, key_table: Tensor, value_table: Tensor | None, places: Places
) -> Tensor:
    """Equations 3 and 4, softmax(q (k + a^K) / sqrt(Dh)) (v + a^V), each pair by itself."""
    rows = []
    for i, m in enumerate(places.q_positions.tolist()):
        seen = [
            (j, n - m)
            for j, n in enumerate(places.k_positions.tolist())
            if not places.causal or n <= m
        ]
        keys, values = [], []
        for j, steps in seen:
            row = bounded(steps, -CLIP, CLIP) + CLIP
            keys.append(k[:, :, j] + key_table[row])
            values.append(v[:, :, j] if value_table is None else v[:, :, j] + value_table[row])
        logits = torch.stack([(q[:, :, i] * key).sum(-1) for key in keys], dim=-1) / math.sqrt(DH)
        weights = logits.softmax(-1).unbind(-1)
        rows.append(
            torch.stack(
                [w[..., None] * value for w, value in zip(weights, values, strict=True)]
            ).sum(0)
        )
    return torch.stack(rows, dim=-2)


def check_shaw_attention(make: Callable[[], Shaw]) -> None:
    """What an attention returns, and the gradients of q, k, v and the tables: the kernel that forms
    weights for a term on the values is the eager one, so no comparison of kernels stands behind it.
    """
    torch.manual_seed(0)
    module = make().double()
    for where in ANYWHERE.values():
        (q, k), v = queries_and_keys(*where), normal(B, H, len(where[1]), DH, seed=6)
        leaves = [t.requires_grad_() for t in (q, k, v)]
        seed = normal(B, H, len(where[0]), DH, seed=7)
        for causal in (False, True):
            places = Places(*where, causal=causal)
            tables = module.key_table, module.value_table if module.needs_weights else None
            results = (
                attention(module, q, k, v, places),
                shaw_attention_by_loop(q, k, v, *tables, places),
            )
            close(*results)
            trained = [*leaves, *module.parameters()]
            got, expected = (
                torch.autograd.grad(out, trained, seed, materialize_grads=True) for out in results
            )
            for a, b in zip(got, expected, strict=True):
                assert b.abs().max() > 1e-3
                close(a, b)


def sinusoids(t: int) -> list[float]:
    angles = [t / BASE ** (2 * i / D_MODEL) for i in range(D_MODEL // 2)]
    return [*map(math.sin, angles), *map(math.cos, angles)]


def xl_logits_by_loop(
    q: Tensor,
    k: Tensor,
    u: Tensor,
    v: Tensor,
    w_kr: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
) -> Tensor:
    distances = {int(m - n) for m in q_positions for n in k_positions}
    projected = {t: [dot(row, sinusoids(t)) for row in w_kr] for t in distances}

    def value(b: int, h: int, i: int, j: int) -> float:
        r = projected[int(q_positions[i] - k_positions[j])][h * DH : (h + 1) * DH]
        return (dot(q[b, h, i] + u[h], k[b, h, j]) + dot(q[b, h, i] + v[h], r)) / math.sqrt(DH)

    return for_each_pair(q_positions, k_positions, value)


def check_xl_logits(implementation: Terms) -> None:
    u, v, w_kr = normal(H, DH, seed=3), normal(H, DH, seed=4), normal(D_MODEL, D_MODEL, seed=5)
    for q_positions, k_positions in ANYWHERE.values():
        q, k = queries_and_keys(q_positions, k_positions)
        expected = xl_logits_by_loop(q, k, u, v, w_kr, q_positions, k_positions)
        close(implementation(q, k, u, v, w_kr, q_positions, k_positions, base=BASE), expected)


def deberta_logits_by_loop(
    q: Tensor,
    k: Tensor,
    keys: Tensor | None,
    queries: Tensor | None,
    q_positions: Tensor,
    k_positions: Tensor,
    bucket: Callable[[int], int] = lambda x: x,
) -> Tensor:
    def delta(m: int, n: int) -> int:
        return bounded(bucket(m - n) + REACH, 0, 2 * REACH - 1)

    def value(b: int, h: int, i: int, j: int) -> float:
        m, n = int(q_positions[i]), int(k_positions[j])
        terms = [dot(q[b, h, i], k[b, h, j])]
        if keys is not None:
            terms.append(dot(q[b, h, i], keys[delta(m, n), h]))
        if queries is not None:
            terms.append(dot(k[b, h, j], queries[delta(n, m), h]))
        return sum(terms) / math.sqrt(len(terms) * DH)

    return for_each_pair(q_positions, k_positions, value)


def check_deberta_logits(
    implementation: Terms, bucket: Callable[[int], int] = lambda x: x, **options: int
) -> None:
    keys, queries = normal(2 * REACH, H, DH, seed=3), normal(2 * REACH, H, DH, seed=4)
    for q_positions, k_positions in ANYWHERE.values():
        q, k = queries_and_keys(q_positions, k_positions)
        for tables in ((keys, queries), (keys, None), (None, queries)):
            expected = deberta_logits_by_loop(q, k, *tables, q_positions, k_positions, bucket)
            options = options or {"max_distance": REACH}
            close(implementation(q, k, *tables, q_positions, k_positions, **options), expected)


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


def check_deberta_logits_with_buckets(implementation: Terms) -> None:
    def bucket(x: int) -> int:
        return bucket_by_definition(x, REACH, 9)

    check_deberta_logits(implementation, bucket, max_distance=9, log_buckets=REACH)


def cope_logits_by_loop(
    q: Tensor, k: Tensor, table: Tensor, q_positions: Tensor, k_positions: Tensor
) -> Tensor:
    """Keys in the order of their positions; 0 for the pairs that a causal mask forbids."""

    def value(b: int, h: int, i: int, j: int) -> float:
        seen = [n for n in range(j, len(k_positions)) if k_positions[n] <= q_positions[i]]
        if not seen:
            return 0.0
        gates = [1 / (1 + math.exp(-dot(q[b, h, i], k[b, h, n]) / math.sqrt(DH))) for n in seen]
        p = min(math.fsum(gates), len(table) - 1)
        below, above = math.floor(p), math.ceil(p)
        return dot(q[b, h, i], (p - below) * table[above] + (1 - p + below) * table[below])

    return for_each_pair(q_positions, k_positions, value)


def check_cope_logits(implementation: Terms) -> None:
    for n_positions in (9, 3):  # enough for every count, and too few for the largest
        table = normal(n_positions, DH, seed=3)
        for q_positions, k_positions in NEWEST.values():
            q, k = queries_and_keys(q_positions, k_positions)
            allowed = causal_attn_mask(q_positions, k_positions)
            got = implementation(q, plain_logits(q, k), table, allowed)
            close(got * allowed, cope_logits_by_loop(q, k, table, q_positions, k_positions))
            assert torch.isfinite(got).all()


def check_fox_bias(implementation: Terms) -> None:
    n_keys = 7
    log_gates = F.logsigmoid(normal(B, H, n_keys, seed=3))
    for n_queries in (7, 3, 1):
        got, first = implementation(log_gates, n_queries), n_keys - n_queries
        assert got.shape == (B, H, n_queries, n_keys)
        assert torch.isfinite(got).all()
        for i in range(first, n_keys):
            for j in range(i + 1):
                close(got[:, :, i - first, j], log_gates[:, :, j + 1 : i + 1].sum(-1))


@pytest.mark.parametrize(
    ("check", "implementation"),
    [
        (check_shaw_logits, shaw_logits),
        (check_shaw_values, shaw_values),
        (check_shaw_attention, lambda: Shaw(head_dim=DH, clip=CLIP)),
        (check_shaw_attention, lambda: Shaw(head_dim=DH, clip=CLIP, values=False)),
        (check_xl_logits, xl_logits),
        (check_deberta_logits, deberta_logits),
        (check_deberta_logits_with_buckets, deberta_logits),
        (check_cope_logits, cope_logits),
        (check_fox_bias, fox_bias),
    ],
)
def test_the_papers_equations_hold(
    check: Callable[[Callable[..., object]], None], implementation: Terms
) -> None:
    check(implementation)


# -------------------------------------------------------------------------- modules and their terms


def attention(
    module: AttentionPosition,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    places: Places,
    x: Tensor | None = None,
) -> Tensor:
    """What an attention with this module gives, [B,H,Tq,Dh]; x [B,Tk,d_model] stands for what the
    keys came from.
    """
    state = None if x is None else module.token_state(x)
    out, _ = attend(
        q,
        k,
        v,
        mask=causal_attn_mask(places.q_positions, places.k_positions) if places.causal else None,
        bias=module.logit_term(q, k, places, state),
        scale=module.logit_scale(q.shape[-1]),
        value_term=(lambda weights: module.value_term(weights, places))
        if module.needs_weights
        else None,
    )
    return out


def deberta(**options: object) -> AttentionScheme:
    sizes = {
        "d_model": D_MODEL,
        "n_heads": H,
        "n_encoder_layers": 1,
        "n_decoder_layers": 0,
        "max_distance": REACH,
    }
    return DebertaScheme(**{**sizes, **options})  # type: ignore[arg-type]


def alone(make: Callable[[], AttentionPosition]) -> Make:
    return lambda: AttentionScheme(encoder=[make()])


# Schemes whose first encoder layer is the module in question: what the layers share is owned by the
# scheme.
BIDIRECTIONAL: dict[str, Make] = {
    "shaw": alone(lambda: Shaw(head_dim=DH, clip=CLIP)),
    "shaw_keys": alone(lambda: Shaw(head_dim=DH, clip=CLIP, values=False)),
    "xl": alone(lambda: TransformerXl(d_model=D_MODEL, n_heads=H)),
    "deberta": deberta,
    "deberta_log": lambda: deberta(max_distance=9, log_buckets=4),
    "deberta_c2p": lambda: deberta(p2c=False),
    "deberta_p2c": lambda: deberta(c2p=False),
}
EVERY: dict[str, Make] = {
    **BIDIRECTIONAL,
    "cope": alone(lambda: Cope(head_dim=DH, n_positions=4)),
    "fox": alone(lambda: ForgetGate(d_model=D_MODEL, n_heads=H)),
}


def scheme_of(name: str) -> AttentionScheme:
    """In float64, every parameter large enough to be seen."""
    torch.manual_seed(0)
    scheme = EVERY[name]().double()
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return scheme


def module_of(name: str) -> AttentionPosition:
    return scheme_of(name).attention("encoder", 0)


# Steps of 1, positions with gaps, and a start far from 0.
SEQUENCES = [torch.arange(9), torch.tensor([0, 2, 3, 4, 8, 12, 13, 40, 41]), torch.arange(70, 79)]


@pytest.mark.parametrize("where", SEQUENCES)
@pytest.mark.parametrize("name", EVERY)
def test_one_token_or_a_chunk_against_all_keys_so_far_is_as_in_the_whole(
    name: str, where: Tensor
) -> None:
    module, n = module_of(name), len(where)
    (q, k), v, x = (
        queries_and_keys(where, where),
        normal(B, H, n, DH, seed=6),
        normal(B, n, D_MODEL, seed=8),
    )
    whole = attention(module, q, k, v, Places(where, where, causal=True), x)
    for chunk in (1, 2, 4):
        for start in range(0, n, chunk):
            end = min(start + chunk, n)
            places = Places(where[start:end], where[:end], causal=True, newest=chunk == 1)
            got = attention(
                module, q[:, :, start:end], k[:, :, :end], v[:, :, :end], places, x[:, :end]
            )
            close(got, whole[:, :, start:end])


@pytest.mark.parametrize("where", SEQUENCES)
@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_queries_and_keys_in_any_order_find_their_places(name: str, where: Tensor) -> None:
    module, n = module_of(name), len(where)
    (q, k), v = queries_and_keys(where, where), normal(B, H, n, DH, seed=6)
    whole = attention(module, q, k, v, Places(where, where))
    rows, columns = (
        torch.tensor([7, 2, 4]),
        torch.randperm(n, generator=torch.Generator().manual_seed(1)),
    )
    places = Places(where[rows], where[columns])
    close(
        attention(module, q[:, :, rows], k[:, :, columns], v[:, :, columns], places),
        whole[:, :, rows],
    )


@pytest.mark.parametrize("name", EVERY)
def test_a_common_shift_of_the_positions_changes_nothing(name: str) -> None:
    module, where = module_of(name), SEQUENCES[1]
    n = len(where)
    (q, k), v, x = (
        queries_and_keys(where, where),
        normal(B, H, n, DH, seed=6),
        normal(B, n, D_MODEL, seed=8),
    )
    results = [
        attention(module, q, k, v, Places(w, w, causal=True), x) for w in (where, where + 1000)
    ]
    close(results[1], results[0])


@pytest.mark.parametrize("name", EVERY)
def test_the_order_of_the_keys_matters(name: str) -> None:
    """Without this the tests above could pass on modules that do nothing."""
    module, where = module_of(name), torch.arange(6)
    (q, k), v, x = (
        queries_and_keys(where, where),
        normal(B, H, 6, DH, seed=6),
        normal(B, 6, D_MODEL, seed=8),
    )
    swapped = torch.tensor([0, 1, 2, 3, 5, 4])
    one = Places(where[-1:], where, causal=True)
    a = attention(module, q[:, :, -1:], k, v, one, x)
    b = attention(module, q[:, :, -1:], k[:, :, swapped], v[:, :, swapped], one, x[:, swapped])
    assert (a - b).abs().max() > 1e-3


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_past_and_future_are_told_apart(name: str) -> None:
    module, where = module_of(name), torch.arange(6)
    (q, k), v = queries_and_keys(where, where), normal(B, H, 6, DH, seed=6)
    forward = attention(module, q, k, v, Places(where, where))
    backward = attention(module, *(t.flip(-2) for t in (q, k, v)), Places(where, where)).flip(-2)
    assert (forward - backward).abs().max() > 1e-3


@pytest.mark.parametrize("name", EVERY)
def test_two_calls_agree_and_leave_no_trace(name: str) -> None:
    scheme, where = scheme_of(name), torch.arange(6)
    module, before = scheme.attention("encoder", 0), copy.deepcopy(scheme.state_dict())
    (q, k), v, x = (
        queries_and_keys(where, where),
        normal(B, H, 6, DH, seed=6),
        normal(B, 6, D_MODEL, seed=8),
    )
    first = attention(module, q, k, v, Places(where, where, causal=True), x)
    longer = torch.arange(30)
    (long_q, long_k), long_v = queries_and_keys(longer, longer), normal(B, H, 30, DH)
    attention(
        module, long_q, long_k, long_v, Places(longer, longer, causal=True), normal(B, 30, D_MODEL)
    )
    assert torch.equal(attention(module, q, k, v, Places(where, where, causal=True), x), first)
    assert before.keys() == scheme.state_dict().keys()
    assert all(torch.equal(before[key], value) for key, value in scheme.state_dict().items())


@pytest.mark.parametrize("name", EVERY)
def test_a_scheme_saves_its_parameters_and_nothing_else(name: str) -> None:
    scheme = scheme_of(name)
    assert list(scheme.state_dict()) == [key for key, _ in scheme.named_parameters()]
    assert not list(scheme.buffers())


@pytest.mark.parametrize("name", EVERY)
def test_terms_are_finite_where_the_mask_forbids(name: str) -> None:
    module, n = module_of(name), 40
    where = torch.arange(n)
    q, k = queries_and_keys(where, where)
    term = module.logit_term(
        q, k, Places(where, where, causal=True), module.token_state(30 * normal(B, n, D_MODEL))
    )
    assert term is not None
    assert term.expand(B, H, n, n).isfinite().all()


@pytest.mark.parametrize("name", EVERY)
def test_the_result_of_a_half_precision_call_is_close(name: str) -> None:
    scheme, where = scheme_of(name).float(), torch.arange(12)
    module = scheme.attention("encoder", 0)
    (q, k), v, x = (
        queries_and_keys(where, where),
        normal(B, H, 12, DH, seed=6),
        normal(B, 12, D_MODEL, seed=8),
    )
    q, k, v, x = (t.float() for t in (q, k, v, x))
    exact = attention(module, q, k, v, Places(where, where, causal=True), x)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = attention(module, q, k, v, Places(where, where, causal=True), x)
    assert (rounded - exact).abs().max() < 0.1 * exact.abs().max()
    scheme.bfloat16()
    places = Places(where, where, causal=True)
    term = module.logit_term(q.bfloat16(), k.bfloat16(), places, module.token_state(x.bfloat16()))
    assert term is not None
    assert term.isfinite().all()


# ---------------------------------------------------------------------- parameters of whole schemes


def schemes(
    d_model: int = D_MODEL, n_heads: int = H, n_layers: int = 2
) -> dict[str, Callable[[], AttentionScheme]]:
    sizes = {
        "d_model": d_model,
        "n_heads": n_heads,
        "n_encoder_layers": n_layers,
        "n_decoder_layers": n_layers,
    }
    head_dim = d_model // n_heads

    def a_layer_each(make: Callable[[], AttentionPosition]) -> AttentionScheme:
        return AttentionScheme(decoder=[make() for _ in range(n_layers)])

    return {
        "shaw": lambda: a_layer_each(lambda: Shaw(head_dim=head_dim, clip=16)),
        "xl": lambda: TransformerXlScheme(**sizes, reading="xl"),
        "xlnet": lambda: TransformerXlScheme(**sizes, reading="xlnet"),
        "deberta": lambda: DebertaScheme(**sizes, max_distance=64),
        "deberta_log": lambda: DebertaScheme(**sizes, max_distance=128, log_buckets=32),
        "cope": lambda: a_layer_each(lambda: Cope(head_dim=head_dim, n_positions=64)),
        "fox": lambda: a_layer_each(lambda: ForgetGate(d_model=d_model, n_heads=n_heads)),
    }


# d_model 512, 8 heads, 6 layers; Shaw, CoPE and FoX in one stack, the others in both.
COUNTS = {
    "shaw": 6 * 2 * (2 * 16 + 1) * 64,
    "xl": 2 * (6 * 512 * 512 + 2 * 8 * 64),
    "xlnet": 2 * 6 * 263_168,
    "deberta": 2 * (2 * 64 * 512 + 6 * 2 * 512 * 512),
    "deberta_log": 2 * (2 * 32 * 512 + 6 * 2 * 512 * 512),
    "cope": 6 * 64 * 64,
    "fox": 6 * (512 * 8 + 8),
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_are_as_many_as_the_papers_and_saved_once(name: str) -> None:
    scheme = schemes(512, 8, 6)[name]()
    assert sum(p.numel() for p in scheme.parameters()) == COUNTS[name]
    assert sum(p.numel() for p in scheme.state_dict().values()) == COUNTS[name]


@pytest.mark.parametrize("name", COUNTS)
def test_gradients_reach_every_parameter_of_every_layer(name: str) -> None:
    torch.manual_seed(0)
    scheme, n = schemes()[name]().double(), 9
    where = torch.arange(n)
    (q, k), v, x = (
        queries_and_keys(where, where),
        normal(B, H, n, DH, seed=6),
        normal(B, n, D_MODEL, seed=8),
    )
    kinds = ("encoder", "decoder") if len(scheme.encoder) else ("decoder",)
    for kind in kinds:
        places = Places(where, where, causal=kind == "decoder")
        for layer in range(2):
            out = attention(scheme.attention(kind, layer), q, k, v, places, x)
            (out * normal(*out.shape, seed=9)).sum().backward()
    gradients = {key: p.grad for key, p in scheme.named_parameters()}
    assert [
        key for key, grad in gradients.items() if grad is None or not grad.abs().max() > 1e-8
    ] == []


@pytest.mark.parametrize("name", ["xl", "deberta"])
def test_what_a_stack_shares_is_its_own_and_follows_copies_and_loading(name: str) -> None:
    torch.manual_seed(0)
    scheme = schemes()[name]().double()
    where = torch.arange(6)
    q, k = queries_and_keys(where, where)

    def terms(of: AttentionScheme, kind: str) -> Tensor:
        layers = [of.attention(kind, layer) for layer in range(2)]  # type: ignore[arg-type]
        return torch.stack([layer.logit_term(q, k, Places(where, where), None) for layer in layers])  # type: ignore[misc]

    before = {kind: terms(scheme, kind) for kind in ("encoder", "decoder")}
    twin = copy.deepcopy(scheme)
    other = schemes()[name]().double()
    other.load_state_dict(scheme.state_dict(), assign=True)
    for loaded in (twin, other):
        close(terms(loaded, "encoder"), before["encoder"])
    with torch.no_grad():
        shared = "encoder_biases.v" if name == "xl" else "encoder_table.weight"
        twin.get_parameter(shared).mul_(3)
    assert torch.equal(terms(scheme, "encoder"), before["encoder"])
    assert torch.equal(terms(twin, "decoder"), before["decoder"])
    changed = (terms(twin, "encoder") - before["encoder"]).flatten(1).abs().amax(1)
    assert (changed > 1e-4).all(), "both layers of the stack use the shared parameters"


def test_xlnets_layers_have_u_and_v_of_their_own() -> None:
    scheme = schemes()["xlnet"]()
    assert [key for key in scheme.state_dict() if key.endswith((".u", ".v"))] == [
        f"{stack}.{layer}.own_biases.{name}"
        for stack in ("encoder", "decoder")
        for layer in (0, 1)
        for name in "uv"
    ]
    assert [key for key in schemes()["xl"]().state_dict() if key.endswith((".u", ".v"))] == [
        f"{stack}_biases.{name}" for stack in ("encoder", "decoder") for name in "uv"
    ]


def test_the_layers_of_a_stack_share_one_table_of_sinusoids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    def counting(*arguments: object, **options: object) -> tuple[Tensor, Tensor]:
        made.append(arguments)
        return relative_sinusoids(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(transformer_xl, "relative_sinusoids", counting)
    scheme, where = schemes()["xl"]().double(), torch.arange(5)
    q, k = queries_and_keys(where, where)
    places = Places(where, where)
    for layer in range(2):
        scheme.attention("encoder", layer).logit_term(q, k, places, None)
    assert len(made) == 1


# ----------------------------------------------------------------------------------- what must hold


def test_zero_tables_leave_plain_attention() -> None:
    where = torch.arange(6)
    (q, k), v = queries_and_keys(where, where), normal(B, H, 6, DH, seed=6)
    places = Places(where, where, causal=True)
    plain = attention(AttentionPosition(), q, k, v, places)
    for module in (
        Shaw(head_dim=DH, clip=2),
        TransformerXl(d_model=D_MODEL, n_heads=H),
        Cope(head_dim=DH, n_positions=4),
    ):
        module = module.double()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
        close(attention(module, q, k, v, places), plain)


def test_deberta_with_zero_tables_is_plain_over_the_root_of_three() -> None:
    where = torch.arange(6)
    q, k = queries_and_keys(where, where)
    zeros = torch.zeros(2 * REACH, H, DH, dtype=DOUBLE)
    for tables, n_terms in (
        ((zeros, zeros), 3),
        ((zeros, None), 2),
        ((None, zeros), 2),
        ((None, None), 1),
    ):
        got = deberta_logits(q, k, *tables, where, where, max_distance=REACH)
        close(got, plain_logits(q, k) / math.sqrt(n_terms))
    assert module_of("deberta").logit_scale(64) == pytest.approx(1 / math.sqrt(3 * 64), rel=1e-15)
    assert module_of("deberta_c2p").logit_scale(64) == pytest.approx(
        1 / math.sqrt(2 * 64), rel=1e-15
    )


@pytest.mark.parametrize("log_buckets", [None, 4])
@pytest.mark.parametrize("terms", [{}, {"p2c": False}, {"c2p": False}])
def test_debertas_module_has_the_logits_of_its_function(
    log_buckets: int | None, terms: dict[str, bool]
) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(2 * (log_buckets or 9), D_MODEL).double()
    module = Deberta(
        n_heads=H, table=table, max_distance=9, log_buckets=log_buckets, **terms
    ).double()
    keys, queries = (
        None if w is None else (table.weight @ w.weight.T).unflatten(-1, (H, DH))
        for w in (module.w_kr, module.w_qr)
    )
    for q_positions, k_positions in ANYWHERE.values():
        q, k = queries_and_keys(q_positions, k_positions)
        term = module.logit_term(q, k, Places(q_positions, k_positions), None)
        got = module.logit_scale(DH) * q @ k.transpose(-2, -1) + term
        close(
            got,
            deberta_logits(
                q,
                k,
                keys,
                queries,
                q_positions,
                k_positions,
                max_distance=9,
                log_buckets=log_buckets,
            ),
        )


def test_xls_module_has_the_logits_of_its_function() -> None:
    torch.manual_seed(0)
    shared = HeadBiases(n_heads=H, head_dim=DH)
    for module in (
        TransformerXl(d_model=D_MODEL, n_heads=H, base=BASE),
        TransformerXl(d_model=D_MODEL, n_heads=H, base=BASE, shared=shared),
    ):
        shared.double()
        module.double()
        for q_positions, k_positions in ANYWHERE.values():
            q, k = queries_and_keys(q_positions, k_positions)
            got = plain_logits(q, k) + module.logit_term(
                q, k, Places(q_positions, k_positions), None
            )
            u, v, w_kr = module.biases.u, module.biases.v, module.w_kr.weight
            close(got, xl_logits(q, k, u, v, w_kr, q_positions, k_positions, base=BASE))


def test_what_lies_past_the_reach_of_a_table_counts_as_the_farthest() -> None:
    where, far = torch.tensor([0]), torch.tensor([50, 3, 20])
    close(clipped_index(where, far, 3), torch.tensor([[6, 6, 6]]))
    close(clipped_index(where, -far, 3), torch.tensor([[0, 0, 0]]))
    assert deberta_index(torch.tensor([-9, -4, -3, 0, 3, 4, 9]), max_distance=4).tolist() == [
        0,
        0,
        1,
        4,
        7,
        7,
        7,
    ]


def test_cope_with_open_gates_counts_tokens() -> None:
    n, n_positions = 6, 5
    allowed = causal_attn_mask(torch.arange(n), torch.arange(n))
    counts = cope_positions(torch.full((1, 1, n, n), 50.0, dtype=DOUBLE), allowed, n_positions)[
        0, 0
    ]
    expected = [[min(max(i - j + 1, 0), n_positions - 1) for j in range(n)] for i in range(n)]
    close(counts, torch.tensor(expected, dtype=DOUBLE))


def test_copes_module_has_the_logits_of_the_equations() -> None:
    module = module_of("cope")
    assert isinstance(module, Cope)
    for q_positions, k_positions in NEWEST.values():
        q, k = queries_and_keys(q_positions, k_positions)
        got = module.logit_term(q, k, Places(q_positions, k_positions, causal=True), None)
        expected = cope_logits_by_loop(q, k, module.table, q_positions, k_positions)
        close(got * causal_attn_mask(q_positions, k_positions), expected)


def test_copes_gates_do_not_count_padding_or_the_future() -> None:
    module, n = module_of("cope"), 6
    where = torch.arange(n)
    q, k = queries_and_keys(where, where)
    before = module.logit_term(q, k, Places(where, where, causal=True), None)
    changed = k.clone()
    changed[:, :, 4:] += 3
    after = module.logit_term(q, changed, Places(where, where, causal=True), None)
    close(after[:, :, :4, :4], before[:, :, :4, :4])
    assert (after[:, :, 4:] - before[:, :, 4:]).abs().max() > 1e-3
    # A real key that is padding for the mask: what the query counts is the same whatever stands
    # there.
    padding = torch.ones(B, 1, 1, n, dtype=torch.bool)
    padding[..., 2] = False
    moved = k.clone()
    moved[:, :, 2] += 3
    a, b = (
        module.logit_term(q, key, Places(where, where, causal=True, padding=padding), None)
        for key in (k, moved)
    )
    close(a, b)


def test_cope_counts_past_what_bfloat16_can_count() -> None:
    n = 300
    positions = cope_positions(
        torch.full((1, 1, 1, n), 50.0, dtype=torch.bfloat16), torch.ones(1, n).bool(), 400
    )
    assert positions.flatten().tolist() == list(range(n, 0, -1))


def test_a_head_that_forgets_nothing_has_no_positions() -> None:
    assert torch.equal(fox_bias(torch.zeros(B, H, 6), 4), torch.zeros(B, H, 4, 6))


def test_a_constant_gate_is_alibi() -> None:
    n, slopes = 8, torch.tensor([2**-4, 2**-8], dtype=DOUBLE)
    where = torch.arange(n)
    log_gates = -slopes[None, :, None].expand(1, H, n)
    distance = (where[:, None] - where).clamp(min=0)
    close(fox_bias(log_gates, n)[0], -slopes[:, None, None] * distance)


def test_forget_gates_begin_mild_and_are_logarithms_of_a_sigmoid() -> None:
    torch.manual_seed(0)
    module = ForgetGate(d_model=512, n_heads=8)
    x = torch.randn(4, 30, 512)
    kept = module.token_state(x).exp().detach()
    assert kept.shape == (4, 8, 30)
    assert kept.mean().item() == pytest.approx(1 / (1 + math.exp(-5)), abs=2e-3)
    assert kept.min() > 0.9
    w, b = module.gate.weight[3], module.gate.bias[3]
    assert kept[1, 3, 7].item() == pytest.approx(
        1 / (1 + math.exp(-(x[1, 7] @ w + b).item())), abs=1e-6
    )


def test_forget_gates_keep_their_precision_under_autocast() -> None:
    torch.manual_seed(0)
    module, x = ForgetGate(d_model=32, n_heads=2), torch.randn(1, 200, 32)
    exact = copy.deepcopy(module).double().token_state(x.double())
    with torch.autocast("cpu", torch.bfloat16):
        state = module.token_state(x)
    assert state.dtype == torch.float32
    close(state.double(), exact, 1e-5)
    assert module.bfloat16().token_state(x.bfloat16()).dtype == torch.float32
    assert fox_bias(torch.full((1, 1, 2000), -100.0), 2000).to(torch.float16).isnan().sum() == 0


def test_bfloat16_tells_far_distances_apart() -> None:
    table, index = relative_sinusoids(
        torch.tensor([2048]), torch.tensor([0, 1]), 64, dtype=torch.bfloat16
    )
    assert not torch.equal(table[index[0, 0]], table[index[0, 1]])


def test_mistaken_sizes_are_refused_with_the_numbers() -> None:
    where = torch.arange(4)
    q, k = queries_and_keys(where, where)
    with pytest.raises(ValueError, match=r"\[7, 6\].*\[8, 6\]"):
        shaw_logits(q, normal(8, DH), where, where, 3)
    with pytest.raises(ValueError, match="7"):
        shaw_values(q @ k.mT, normal(8, DH), where, where, 3)
    with pytest.raises(ValueError, match="negative"):
        shaw_logits(q, normal(1, DH), where, where, -1)
    with pytest.raises(ValueError, match="clip = 0"):
        Shaw(head_dim=DH, clip=0)
    with pytest.raises(ValueError, match=r"10 .* 3"):
        TransformerXl(d_model=10, n_heads=3)
    with pytest.raises(ValueError, match="9 must be even"):
        TransformerXl(d_model=9, n_heads=3)
    with pytest.raises(ValueError, match=r"7 rows .* 8"):
        deberta_logits(q, k, normal(7, H, DH), None, where, where, max_distance=4)
    with pytest.raises(ValueError, match=r"7 rows .* 8"):
        Deberta(n_heads=2, table=nn.Embedding(7, 8), max_distance=4)
    with pytest.raises(ValueError, match="neither"):
        Deberta(n_heads=2, table=nn.Embedding(8, 8), max_distance=4, c2p=False, p2c=False)
    with pytest.raises(ValueError, match=r"8 .* 3"):
        Deberta(n_heads=3, table=nn.Embedding(8, 8), max_distance=4)
    with pytest.raises(ValueError, match="max_distance = 0"):
        deberta_index(where, max_distance=0)
    with pytest.raises(ValueError, match="buckets = 5"):
        DebertaScheme(
            d_model=8,
            n_heads=2,
            n_encoder_layers=1,
            n_decoder_layers=1,
            max_distance=9,
            log_buckets=5,
        )
    with pytest.raises(ValueError, match=r"max_distance = 8 .* 8"):
        log_bucket_bounds(8, 8)
    with pytest.raises(ValueError, match="n_positions = 1"):
        Cope(head_dim=DH, n_positions=1)
    with pytest.raises(ValueError, match=r"5 queries .* 4"):
        fox_bias(torch.zeros(1, 1, 4), 5)
    with pytest.raises(ValueError, match="state"):
        ForgetGate(d_model=8, n_heads=2).logit_term(q, k, Places(where, where), None)
    with pytest.raises(TypeError, match="no value term"):
        Shaw(head_dim=DH, clip=2, values=False).value_term(q @ k.mT, Places(where, where))


# ------------------------------------------------------------------------------ logarithmic buckets


BucketsOf = Callable[
    [Tensor, int, int], Tensor
]  # distances, buckets to a side, max_distance -> signed buckets
# In the last two the logarithms of the formula, rounded, miss a bound: in float64 and in float32.
BUCKETS = [(4, 9), (6, 13), (8, 20), (32, 128), (64, 512), (256, 512), (32, 129), (18, 65)]


def check_buckets_of_the_code(buckets_of: BucketsOf) -> None:
    for n_buckets, max_distance in BUCKETS[:-1]:  # the published code is in float32
        distance = torch.arange(-3 * max_distance, 3 * max_distance + 1)
        theirs = make_log_bucket_position(distance, n_buckets, max_distance).long()
        # As rows of a table: beyond the last bucket the published code counts on, and its clip
        # takes that back.
        rows = [
            (buckets + n_buckets).clamp(0, 2 * n_buckets - 1)
            for buckets in (buckets_of(distance, n_buckets, max_distance), theirs)
        ]
        close(rows[0].double(), rows[1].double())


def check_buckets(buckets_of: BucketsOf) -> None:
    for n_buckets, max_distance in BUCKETS:
        distance = torch.arange(-2 * max_distance, 2 * max_distance)
        expected = [bucket_by_definition(x, n_buckets, max_distance) for x in distance.tolist()]
        close(
            buckets_of(distance, n_buckets, max_distance).double(),
            torch.tensor(expected, dtype=DOUBLE),
        )


def test_logarithmic_buckets_are_those_of_the_published_code() -> None:
    check_buckets_of_the_code(log_bucket)
    check_buckets_of_the_code(
        lambda x, n, far: deberta_index(x, max_distance=far, log_buckets=n) - n
    )


def test_logarithmic_buckets_follow_the_definition_exactly() -> None:
    check_buckets(log_bucket)


@pytest.mark.parametrize(("n_buckets", "max_distance"), BUCKETS)
def test_logarithmic_buckets_are_monotone_and_odd(n_buckets: int, max_distance: int) -> None:
    middle = n_buckets // 2
    buckets = log_bucket(torch.arange(2 * max_distance), n_buckets, max_distance).tolist()
    assert buckets[: middle + 1] == list(range(middle + 1))
    assert buckets == sorted(buckets)
    assert buckets[max_distance - 1] == n_buckets - 1
    assert set(buckets[max_distance:]) == {n_buckets}
    assert log_bucket(-torch.arange(2 * max_distance), n_buckets, max_distance).tolist() == [
        -b for b in buckets
    ]


def test_a_bound_that_a_logarithm_would_miss() -> None:
    """6 = 3 sqrt(12 / 3) is the last distance of its bucket; rounded logarithms may push it into
    the next.
    """
    assert log_bucket_bounds(6, 13) == (6, 12)
    assert log_bucket(torch.tensor([3, 4, 6, 7, 12, 13]), 6, 13).tolist() == [3, 4, 4, 5, 5, 6]


# ----------------------------------------------------------------------------------- other programs


def test_shaws_logits_are_those_of_wav2vec2_bert() -> None:
    where = torch.arange(11)
    q, k = queries_and_keys(where, where)
    theirs = nn.Module()
    theirs.left_max_position_embeddings = theirs.right_max_position_embeddings = CLIP
    theirs.scaling = 1 / math.sqrt(DH)
    theirs.distance_embedding = nn.Embedding(2 * CLIP + 1, DH, dtype=DOUBLE)
    table = theirs.distance_embedding.weight.detach()
    _, expected = _apply_relative_key_position_encoding(theirs, q, k)
    close(shaw_logits(q, table, where, where, CLIP) / math.sqrt(DH), expected.detach())


def xlnet_layer(seed: int = 20) -> XLNetRelativeAttention:
    config = XLNetConfig(vocab_size=5, d_model=D_MODEL, n_head=H, n_layer=1, d_inner=8, dropout=0.0)
    layer = XLNetRelativeAttention(config).double().eval().requires_grad_(False)
    for number, parameter in enumerate(layer.parameters()):
        parameter.data = normal(*parameter.shape, seed=seed + number) / (
            2 if parameter.dim() == 3 else 1
        )
    return layer


def xlnets_weights(
    layer: XLNetRelativeAttention, n_memory: int
) -> tuple[Tensor, Tensor, Places, Tensor]:
    """q and k of a few tokens that continue a memory, their places, and the layer's weights: past
    and future.
    """
    n = 5
    h, memory = normal(n, B, D_MODEL, seed=1), normal(n_memory, B, D_MODEL, seed=2)
    distances = torch.arange(n_memory + n, -n, -1)
    r = torch.tensor([xlnet_sinusoids(t) for t in distances.tolist()], dtype=DOUBLE)[
        :, None
    ].expand(-1, B, -1)
    mems = memory if n_memory else None
    weights = layer(h, None, None, None, r, None, mems=mems, output_attentions=True)[2].permute(
        2, 3, 0, 1
    )
    q = torch.einsum("ibh,hnd->bnid", h, layer.q)
    k = torch.einsum("ibh,hnd->bnid", torch.cat((memory, h)), layer.k)
    return q, k, Places(torch.arange(n_memory, n_memory + n), torch.arange(n_memory + n)), weights


@pytest.mark.parametrize("n_memory", [0, 4])
def test_transformer_xls_weights_are_those_of_xlnets_relative_shift(n_memory: int) -> None:
    layer = xlnet_layer()
    q, k, places, theirs = xlnets_weights(layer, n_memory)
    parameters = layer.r_w_bias, layer.r_r_bias, layer.r.flatten(1).T
    close(
        xl_logits(q, k, *parameters, places.q_positions, places.k_positions, base=10000.0).softmax(
            -1
        ),
        theirs,
    )


def check_xlnet_reading(make: Callable[[], AttentionScheme]) -> None:
    """Two layers take over the parameters of two XLNet layers, and give the weights of each."""
    scheme, layers = make().double(), [xlnet_layer(20), xlnet_layer(40)]
    for kind in ("encoder", "decoder"):
        modules = [scheme.attention(kind, number) for number in range(2)]
        for module, layer in zip(modules, layers, strict=True):
            assert isinstance(module, TransformerXl)
            with torch.no_grad():
                module.biases.u.copy_(layer.r_w_bias)
                module.biases.v.copy_(layer.r_r_bias)
                module.w_kr.weight.copy_(layer.r.flatten(1).T)
        for module, layer in zip(modules, layers, strict=True):
            for n_memory in (0, 4):
                q, k, places, theirs = xlnets_weights(layer, n_memory)
                close(
                    (plain_logits(q, k) + module.logit_term(q, k, places, None)).softmax(-1), theirs
                )


def test_the_xlnet_reading_is_that_of_xlnets_layers() -> None:
    check_xlnet_reading(schemes()["xlnet"])


def xlnet_sinusoids(t: int) -> list[float]:
    angles = [t / 10000 ** (2 * i / D_MODEL) for i in range(D_MODEL // 2)]
    return [*map(math.sin, angles), *map(math.cos, angles)]


def test_the_sinusoids_of_distances_are_xlnets() -> None:
    config = XLNetConfig(
        vocab_size=5, d_model=D_MODEL, n_head=H, n_layer=1, d_inner=8, attn_type="bi"
    )
    n = 6
    theirs = XLNetModel(config).relative_positional_encoding(n, n)[
        :, 0
    ]  # rows for distances n .. -n + 1
    table, index = relative_sinusoids(torch.arange(n), torch.arange(n), D_MODEL, dtype=DOUBLE)
    for i in range(n):
        for j in range(n):
            close(table[index[i, j]].float(), theirs[n - (i - j)], 1e-6)


@pytest.mark.parametrize(("max_distance", "log_buckets"), [(40, None), (40, 8)])
@pytest.mark.parametrize("terms", [["c2p"], ["p2c"], ["c2p", "p2c"]])
def test_debertas_weights_are_those_of_the_published_code(
    terms: list[str], max_distance: int, log_buckets: int | None
) -> None:
    """All but the p2c index, which mirrors the rows of the table (see deberta.py): given such rows,
    they agree.

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
    theirs = DisentangledSelfAttention(config).double().eval()
    x, rows = normal(B, n, d_model, seed=1), 2 * (log_buckets or max_distance)
    table = normal(rows, d_model, seed=2)
    with torch.no_grad():
        mask = torch.ones(B, 1, n, n)
        _, expected = theirs(x, mask, output_attentions=True, rel_embeddings=table)
        q, k = (
            p(x).unflatten(-1, (n_heads, head_dim)).transpose(1, 2)
            for p in (theirs.query_proj, theirs.key_proj)
        )
        keys = (
            theirs.pos_key_proj(table).unflatten(-1, (n_heads, head_dim))
            if "c2p" in terms
            else None
        )
        queries = None
        if "p2c" in terms:
            queries = (
                theirs.pos_query_proj(table).unflatten(-1, (n_heads, head_dim)).flip(0).roll(1, 0)
            )
    where = torch.arange(n)
    ours = deberta_logits(
        q, k, keys, queries, where, where, max_distance=max_distance, log_buckets=log_buckets
    )
    close(ours.softmax(-1), expected)


@pytest.mark.parametrize("n_positions", [4, 12])
def test_copes_logits_are_those_of_x_transformers(n_positions: int) -> None:
    where = torch.arange(9)
    q, k = queries_and_keys(where, where)
    theirs = CoPE(dim=DH, heads=H, max_pos=n_positions).double()
    nn.init.normal_(theirs.pos_emb, generator=torch.Generator().manual_seed(0))
    allowed = causal_attn_mask(where, where)
    masked = plain_logits(q, k).masked_fill(~allowed, -torch.finfo(DOUBLE).max)
    close(cope_logits(q, plain_logits(q, k), theirs.pos_emb, allowed), theirs(q, masked))


def test_forgetting_is_that_of_x_transformers() -> None:
    torch.manual_seed(0)
    theirs = DataDependentAlibi(dim=D_MODEL, heads=H).double()
    ours = ForgetGate(d_model=D_MODEL, n_heads=H).double()
    ours.gate.load_state_dict(theirs.to_forget_gates[0].state_dict())
    x = normal(B, 9, D_MODEL)
    state = ours.token_state(x)
    close(fox_bias(state, 9).tril(), theirs(x).tril())
    close(fox_bias(state, 3).tril(6), theirs(x)[:, :, -3:].tril(6))


# ---------------------------------------------------------------- known mistakes, put in on purpose


def gathered(q: Tensor, table: Tensor, index: Tensor) -> Tensor:
    return (q @ table.T).gather(-1, index.expand(*q.shape[:-1], -1))


def shaw_without_clip(
    q: Tensor, table: Tensor, q_positions: Tensor, k_positions: Tensor, clip: int
) -> Tensor:
    # Rows before the first are taken from the end of the table, as negative indices are.
    return gathered(q, table, (k_positions[None] - q_positions[:, None] + clip) % len(table))


def shaw_reversed(
    q: Tensor, table: Tensor, q_positions: Tensor, k_positions: Tensor, clip: int
) -> Tensor:
    return gathered(q, table, clipped_index(k_positions, q_positions, clip).T)


def from_zero(positions: Tensor) -> Tensor:
    return torch.arange(len(positions))


def shaw_values_from_zero(
    weights: Tensor, table: Tensor, q_positions: Tensor, k_positions: Tensor, clip: int
) -> Tensor:
    return shaw_values(weights, table, from_zero(q_positions), from_zero(k_positions), clip)


class ShawWithOneTable(Shaw):
    def value_term(self, weights: Tensor, places: Places) -> Tensor:
        return shaw_values(
            weights, self.key_table, places.q_positions, places.k_positions, self.clip
        )


class ShawUnscaled(Shaw):
    def logit_term(self, q: Tensor, k: Tensor, places: Places, state: Tensor | None) -> Tensor:
        return shaw_logits(q, self.key_table, places.q_positions, places.k_positions, self.clip)


class ShawWithDetachedWeights(Shaw):
    """The right numbers, but the term on the values does not train what the weights come from."""

    def value_term(self, weights: Tensor, places: Places) -> Tensor:
        return super().value_term(weights.detach(), places)


def xl_without_u(q: Tensor, k: Tensor, u: Tensor, *rest: Tensor, base: float) -> Tensor:
    return xl_logits(q, k, torch.zeros_like(u), *rest, base=base)


def xl_reversed(
    q: Tensor,
    k: Tensor,
    u: Tensor,
    v: Tensor,
    w_kr: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    base: float,
) -> Tensor:
    return xl_logits(q, k, u, v, w_kr, -q_positions, -k_positions, base=base)


def xl_without_shift(
    q: Tensor,
    k: Tensor,
    u: Tensor,
    v: Tensor,
    w_kr: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    base: float,
) -> Tensor:
    # Every query reads the table as the last one does.
    last = q_positions.max().expand(len(q_positions))
    return xl_logits(q, k, u, v, w_kr, last, k_positions, base=base)


def xl_one_query_for_both(
    q: Tensor,
    k: Tensor,
    u: Tensor,
    v: Tensor,
    w_kr: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    base: float,
) -> Tensor:
    return xl_logits(q, k, u, u, w_kr, q_positions, k_positions, base=base)


def xl_interleaved(
    q: Tensor,
    k: Tensor,
    u: Tensor,
    v: Tensor,
    w_kr: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    base: float,
) -> Tensor:
    # Sines and cosines by turns under a projection that was trained on halves.
    order = torch.arange(D_MODEL).view(-1, 2).T.flatten()
    return xl_logits(q, k, u, v, w_kr[:, order], q_positions, k_positions, base=base)


class XlOfChangedDistances(TransformerXl):
    """A layer with u and v of its own that takes the sinusoids of change(distance)."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__(d_model=D_MODEL, n_heads=H)
        self.change = change

    def logit_term(self, q: Tensor, k: Tensor, places: Places, state: Tensor | None) -> Tensor:
        changed, index = torch.unique(self.change(places.distance), return_inverse=True)
        table, where = relative_sinusoids(
            changed, torch.zeros(1, dtype=torch.int64), D_MODEL, dtype=DOUBLE
        )
        projected = self.w_kr(table[where[:, 0]]).unflatten(-1, self.head_shape)
        return xl_content_logits(k, self.biases.u) + xl_position_logits(
            q, self.biases.v, projected, index
        )


def xlnet_of_changed_distances(change: Callable[[Tensor], Tensor]) -> Make:
    def layers() -> list[TransformerXl]:
        return [XlOfChangedDistances(change) for _ in range(2)]

    return lambda: AttentionScheme(encoder=layers(), decoder=layers())


def deberta_published_p2c(
    q: Tensor,
    k: Tensor,
    keys: Tensor | None,
    queries: Tensor | None,
    *where: Tensor,
    max_distance: int,
) -> Tensor:
    logits = deberta_logits(q, k, keys, queries, *where, max_distance=max_distance)
    if queries is None:
        return logits
    scale = ((2 + (keys is not None)) * DH) ** -0.5
    distance = where[0][:, None] - where[1]
    right, wrong = (deberta_index(d, max_distance=max_distance) for d in (-distance.T, distance.T))
    return logits + scale * (
        c2p_products(k, queries, wrong) - c2p_products(k, queries, right)
    ).transpose(-2, -1)


def deberta_from_zero(
    q: Tensor,
    k: Tensor,
    keys: Tensor | None,
    queries: Tensor | None,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    max_distance: int,
) -> Tensor:
    return deberta_logits(
        q,
        k,
        keys,
        queries,
        from_zero(q_positions),
        from_zero(k_positions),
        max_distance=max_distance,
    )


def deberta_scaled_as_plain(
    q: Tensor,
    k: Tensor,
    keys: Tensor | None,
    queries: Tensor | None,
    *where: Tensor,
    max_distance: int,
) -> Tensor:
    n_terms = 1 + (keys is not None) + (queries is not None)
    return deberta_logits(q, k, keys, queries, *where, max_distance=max_distance) * math.sqrt(
        n_terms
    )


def rounded_log_bucket(
    distance: Tensor,
    n_buckets: int,
    max_distance: int,
    *,
    longest: int | None = None,
    rounded: Callable[[Tensor], Tensor] = torch.ceil,
    signed: bool = True,
    dtype: torch.dtype = DOUBLE,
) -> Tensor:
    """The formula of the buckets with its logarithms in floating point."""
    middle, steps = n_buckets // 2, distance.abs()
    longest = max_distance - 1 if longest is None else longest
    share = (steps.clamp(min=1) / middle).to(dtype).log() / torch.tensor(
        longest / middle, dtype=dtype
    ).log()
    far = middle + rounded(share * (middle - 1)).long().clamp(max=middle)
    buckets = torch.where(steps <= middle, steps, far)
    return buckets * distance.sign() if signed else buckets


def deberta_with_sizes_swapped_in_a_step(
    q: Tensor,
    k: Tensor,
    keys: Tensor | None,
    queries: Tensor | None,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    max_distance: int,
    log_buckets: int,
) -> Tensor:
    """Where queries and keys differ in number, the p2c term has max_distance and log_buckets
    exchanged.
    """
    where, sizes = (
        (q_positions, k_positions),
        {"max_distance": max_distance, "log_buckets": log_buckets},
    )
    logits = deberta_logits(q, k, keys, queries, *where, **sizes)
    if queries is None or len(q_positions) == len(k_positions):
        return logits
    scale = ((2 + (keys is not None)) * DH) ** -0.5
    distance = k_positions[:, None] - q_positions
    swapped = rounded_log_bucket(distance, max_distance, log_buckets)
    wrong = (swapped + log_buckets).clamp(0, 2 * log_buckets - 1)
    difference = c2p_products(k, queries, wrong) - c2p_products(
        k, queries, deberta_index(distance, **sizes)
    )
    return logits + scale * difference.transpose(-2, -1)


def cope_that_counts_the_future(
    q: Tensor, qk_logits: Tensor, table: Tensor, allowed: Tensor
) -> Tensor:
    return cope_logits(q, qk_logits, table, torch.ones_like(allowed))


def cope_that_counts_from_the_start(
    q: Tensor, qk_logits: Tensor, table: Tensor, allowed: Tensor
) -> Tensor:
    everyone = torch.ones_like(allowed).expand_as(qk_logits)
    return cope_logits(q, qk_logits.masked_fill(~allowed, -1e9).flip(-1), table, everyone).flip(-1)


def cope_with_bare_logits(q: Tensor, qk_logits: Tensor, table: Tensor, allowed: Tensor) -> Tensor:
    return cope_logits(q, qk_logits * math.sqrt(DH), table, allowed)


def cope_without_interpolation(
    q: Tensor, qk_logits: Tensor, table: Tensor, allowed: Tensor
) -> Tensor:
    whole = cope_positions(qk_logits, allowed, len(table)).round().long()
    return (q @ table.T).gather(-1, whole)


def fox_with_the_keys_own_gate(log_gates: Tensor, n_queries: int) -> Tensor:
    return fox_bias(log_gates, n_queries) + log_gates[..., None, :]


def fox_without_the_querys_own_gate(log_gates: Tensor, n_queries: int) -> Tensor:
    shifted = F.pad(log_gates, (1, 0))[..., :-1]
    return fox_bias(shifted, n_queries)


def fox_of_the_first_rows(log_gates: Tensor, n_queries: int) -> Tensor:
    return fox_bias(log_gates, log_gates.shape[-1])[..., :n_queries, :]


MISTAKES: dict[str, tuple[Callable[..., None], Callable[..., object]]] = {
    "shaw: no clip": (check_shaw_logits, shaw_without_clip),
    "shaw: the distance reversed": (check_shaw_logits, shaw_reversed),
    "shaw: a step counted from 0": (check_shaw_values, shaw_values_from_zero),
    "shaw: one table for keys and values": (
        check_shaw_attention,
        lambda: ShawWithOneTable(head_dim=DH, clip=CLIP),
    ),
    "shaw: the key term not scaled": (
        check_shaw_attention,
        lambda: ShawUnscaled(head_dim=DH, clip=CLIP),
    ),
    "shaw: the weights of the values not trained": (
        check_shaw_attention,
        lambda: ShawWithDetachedWeights(head_dim=DH, clip=CLIP),
    ),
    "xl: no u": (check_xl_logits, xl_without_u),
    "xl: u in place of v": (check_xl_logits, xl_one_query_for_both),
    "xl: the distance reversed": (check_xl_logits, xl_reversed),
    "xl: no relative shift": (check_xl_logits, xl_without_shift),
    "xl: sinusoids in another layout": (check_xl_logits, xl_interleaved),
    "xlnet: u and v shared by all layers": (check_xlnet_reading, schemes()["xl"]),
    "xlnet: no sign, the future as the past": (
        check_xlnet_reading,
        xlnet_of_changed_distances(torch.abs),
    ),
    "xlnet: the past alone, no distance below 0": (
        check_xlnet_reading,
        xlnet_of_changed_distances(lambda distance: distance.clamp(min=0)),
    ),
    "xlnet: distances clamped to a trained length": (
        check_xlnet_reading,
        xlnet_of_changed_distances(lambda distance: distance.clamp(-5, 5)),
    ),
    "deberta: p2c indexed by delta(i,j)": (check_deberta_logits, deberta_published_p2c),
    "deberta: a step counted from 0": (check_deberta_logits, deberta_from_zero),
    "deberta: divided by the root of Dh alone": (check_deberta_logits, deberta_scaled_as_plain),
    "deberta_log: the number of buckets and max_distance swapped": (
        check_buckets_of_the_code,
        lambda distance, n_buckets, max_distance: rounded_log_bucket(
            distance, max_distance, n_buckets
        ),
    ),
    "deberta_log: the two swapped where a step has fewer queries than keys": (
        check_deberta_logits_with_buckets,
        deberta_with_sizes_swapped_in_a_step,
    ),
    "deberta_log: rounded down": (
        check_buckets_of_the_code,
        partial(rounded_log_bucket, rounded=torch.floor),
    ),
    "deberta_log: no sign, the future as the past": (
        check_buckets_of_the_code,
        partial(rounded_log_bucket, signed=False),
    ),
    "deberta_log: max_distance in place of max_distance - 1": (
        check_buckets_of_the_code,
        lambda *sizes: rounded_log_bucket(*sizes, longest=sizes[2]),
    ),
    "deberta_log: logarithms of float64": (check_buckets, rounded_log_bucket),
    "deberta_log: logarithms of float32": (
        check_buckets,
        partial(rounded_log_bucket, dtype=torch.float32),
    ),
    "cope: gates of the future": (check_cope_logits, cope_that_counts_the_future),
    "cope: counted from the start": (check_cope_logits, cope_that_counts_from_the_start),
    "cope: gates of unscaled logits": (check_cope_logits, cope_with_bare_logits),
    "cope: no interpolation": (check_cope_logits, cope_without_interpolation),
    "fox: the key's own gate": (check_fox_bias, fox_with_the_keys_own_gate),
    "fox: not the query's own gate": (check_fox_bias, fox_without_the_querys_own_gate),
    "fox: a step gets the first row": (check_fox_bias, fox_of_the_first_rows),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    check, mistaken = MISTAKES[mistake]
    with pytest.raises(AssertionError, match="not close"):
        check(mistaken)


def test_the_made_mistakes_are_the_only_fault() -> None:
    """Without its mistake, what the mistakes are made from passes."""
    check_xlnet_reading(xlnet_of_changed_distances(lambda distance: distance))
    check_buckets_of_the_code(partial(rounded_log_bucket, dtype=torch.float32))
