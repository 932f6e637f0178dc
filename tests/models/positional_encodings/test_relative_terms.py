"""Shaw, Transformer-XL and DeBERTa: equations pair by pair, the published code, known mistakes."""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from references import ANYWHERE, DOUBLE, attention, by_pair, catches, logits_of, normal, sinusoids
from tiny_models import close, configured, tiny_config
from torch import Tensor, nn
from transformers import DebertaV2Config, XLNetConfig
from transformers.models.deberta_v2.modeling_deberta_v2 import (
    DisentangledSelfAttention,
    make_log_bucket_position,
)
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import (
    _apply_relative_key_position_encoding,
)
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

import configs.positions as config
from models.positional_encodings import deberta as deberta_module, transformer_xl
from models.positional_encodings.base import Places, PositionScheme
from models.positional_encodings.deberta import (
    Deberta,
    deberta_index,
    log_bucket,
    log_bucket_bounds,
)
from models.positional_encodings.shaw import Shaw, shaw_logits, shaw_values
from models.schemes import build_scheme

B, H, DH = 2, 2, 6
D_MODEL = H * DH
SHAPE = {"d_model": D_MODEL, "n_heads": H}
Terms = Callable[..., Tensor]
Row = Callable[[int, int, int, int], int]


def queries_and_keys(where: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return normal(B, H, len(where[0]), DH), normal(B, H, len(where[1]), DH, seed=1)


# --------------------------------------------------------------------------------------------- Shaw

CLIP = 3


def row(i: int, j: int, m: int, n: int) -> int:
    """Of query i at m and key j at n."""
    return max(-CLIP, min(n - m, CLIP)) + CLIP


def check_shaw_logits(row: Row) -> None:
    table = normal(2 * CLIP + 1, DH, seed=3)
    for where in ANYWHERE.values():
        q, _ = queries_and_keys(where)
        expected = by_pair(*where, lambda i, *at, q=q: (q[:, :, i] * table[row(i, *at)]).sum(-1))
        close(shaw_logits(q, table, *where, CLIP), expected)


def check_shaw_values(row: Row) -> None:
    table = normal(2 * CLIP + 1, DH, seed=4)
    for where in ANYWHERE.values():
        weights = normal(B, H, *map(len, where), seed=5).softmax(-1)
        vectors = by_pair(*where, lambda *pair: table[row(*pair)])  # [Dh,Tq,Tk]
        expected = torch.einsum("bhqk,dqk->bhqd", weights, vectors)
        close(shaw_values(weights, table, *where, CLIP), expected)


def shaw_by_loop(module: Shaw, q: Tensor, k: Tensor, v: Tensor, places: Places) -> Tensor:
    """Equations 3 and 4, softmax(q (k + a^K) / sqrt(Dh)) (v + a^V), each pair by itself."""
    where = places.q_positions, places.k_positions

    def logit(i: int, j: int, m: int, n: int) -> Tensor:
        key = k[:, :, j] + module.key_table[row(i, j, m, n)]
        logit = (q[:, :, i] * key).sum(-1) / math.sqrt(DH)
        return logit - torch.inf if places.causal and n > m else logit

    def value(i: int, j: int, m: int, n: int) -> Tensor:
        return v[:, :, j] + (module.value_table[row(i, j, m, n)] if module.needs_weights else 0)

    weights = by_pair(*where, logit).softmax(-1)
    return torch.einsum("bhqk,bhdqk->bhqd", weights, by_pair(*where, value))


def check_shaw_attention(make: Callable[[], Shaw]) -> None:
    """What an attention returns, and the gradients of q, k, v and the tables: the kernel that forms
    weights for a term on the values is the eager one, so no comparison of kernels stands behind it.
    """
    torch.manual_seed(0)
    module = make().double()
    for where in ANYWHERE.values():
        q, k = (x.requires_grad_() for x in queries_and_keys(where))
        v = normal(*k.shape, seed=2).requires_grad_()
        weight, trained = normal(*q.shape, seed=7), [q, k, v, *module.parameters()]
        for causal in (False, True):
            places = Places(*where, causal=causal)
            results = [f(module, q, k, v, places) for f in (attention, shaw_by_loop)]
            close(*results)
            got, expected = (
                torch.autograd.grad(out, trained, weight, materialize_grads=True) for out in results
            )
            for a, b in zip(got, expected, strict=True):
                assert b.abs().max() > 1e-3
                close(a, b)


def test_shaws_logits_are_those_of_wav2vec2_bert() -> None:
    where = torch.arange(11)
    q, k = queries_and_keys((where, where))
    theirs = nn.Module()
    theirs.left_max_position_embeddings = theirs.right_max_position_embeddings = CLIP
    theirs.scaling = 1 / math.sqrt(DH)
    theirs.distance_embedding = nn.Embedding(2 * CLIP + 1, DH, dtype=DOUBLE)
    table = theirs.distance_embedding.weight.detach()
    _, expected = _apply_relative_key_position_encoding(theirs, q, k)
    close(shaw_logits(q, table, where, where, CLIP) / math.sqrt(DH), expected.detach())


def test_a_table_of_shaw_that_does_not_fit_is_refused_with_the_numbers() -> None:
    where, q = torch.arange(4), normal(B, H, 4, DH)
    with pytest.raises(ValueError, match=r"clip = 3 needs a table \[7, 6\].*\[8, 6\]"):
        shaw_logits(q, normal(8, DH), where, where, 3)
    with pytest.raises(ValueError, match=r"clip = 3 needs a table \[7, Dh\].*\[8, 6\]"):
        shaw_values(q @ q.mT, normal(8, DH), where, where, 3)
    with pytest.raises(TypeError, match="no value term"):
        Shaw(head_dim=DH, clip=2, values=False).value_term(q @ q.mT, Places(where, where))


class OneTable(Shaw):
    def value_term(self, weights: Tensor, places: Places) -> Tensor:
        where = places.q_positions, places.k_positions
        return shaw_values(weights, self.key_table, *where, self.clip)


class Unscaled(Shaw):
    def logit_term(self, q: Tensor, *rest) -> Tensor:
        return super().logit_term(q, *rest) * math.sqrt(DH)


class DetachedWeights(Shaw):
    """The right numbers, but the term on the values does not train what the weights come from."""

    def value_term(self, weights: Tensor, places: Places) -> Tensor:
        return super().value_term(weights.detach(), places)


def shaw(cls: type[Shaw] = Shaw, **changes: Any) -> Callable[[], Shaw]:
    return partial(configured, config.Shaw(clip=CLIP, **changes), cls=cls, **SHAPE)


# ----------------------------------------------------------------------------------- Transformer-XL

BASE = 500.0


def check_xl(implementation: Terms) -> None:
    """[(q_i + u) . k_j + (q_i + v) . W_kR R_(i-j)] / sqrt(Dh), each pair by itself."""
    u, v, w_kr = normal(H, DH, seed=3), normal(H, DH, seed=4), normal(D_MODEL, D_MODEL, seed=5)
    for where in ANYWHERE.values():
        q, k = queries_and_keys(where)

        def entry(i: int, j: int, m: int, n: int, q: Tensor = q, k: Tensor = k) -> Tensor:
            r = w_kr @ torch.tensor(sinusoids(m - n, D_MODEL, BASE), dtype=DOUBLE)
            content, position = (q[:, :, i] + u) * k[:, :, j], (q[:, :, i] + v) * r.view(H, DH)
            return (content + position).sum(-1) / math.sqrt(DH)

        close(implementation(q, k, u, v, w_kr, *where), by_pair(*where, entry))


def xl_logits(q: Tensor, k: Tensor, u: Tensor, v: Tensor, w_kr: Tensor, *where: Tensor) -> Tensor:
    module = configured(config.TransformerXl(base=BASE), **SHAPE).double()
    given = ((module.biases.u, u), (module.biases.v, v), (module.w_kr.weight, w_kr))
    for parameter, value in given:
        parameter.data = value
    return logits_of(module, q, k, Places(*where))


def test_bfloat16_tells_far_distances_apart() -> None:
    module = configured(config.TransformerXl(reading="xlnet"), **SHAPE).bfloat16()
    q, k = normal(1, H, 1, DH).bfloat16(), torch.zeros(1, H, 2, DH, dtype=torch.bfloat16)
    far = Places(torch.tensor([2048]), torch.tensor([0, 1]))
    near, next_one = module.logit_term(q, k, far, None).unbind(-1)
    assert not torch.equal(near, next_one)


def xl_scheme(reading: Any) -> PositionScheme:
    position = config.TransformerXl(reading=reading)
    return build_scheme(tiny_config(position, **SHAPE)).double()


def xlnet_layer(seed: int) -> XLNetRelativeAttention:
    config = XLNetConfig(vocab_size=5, d_model=D_MODEL, n_head=H, n_layer=1, d_inner=8)
    layer = XLNetRelativeAttention(config).double().eval().requires_grad_(False)
    for number, parameter in enumerate(layer.parameters()):
        scale = 2 if parameter.dim() == 3 else 1
        parameter.data = normal(*parameter.shape, seed=seed + number) / scale
    return layer


def xlnets_weights(
    layer: XLNetRelativeAttention, n_memory: int, distance: Callable[[int], int]
) -> tuple[Tensor, Tensor, Places, Tensor]:
    """q and k of a few tokens after a memory, their places, and the layer's weights."""
    n = 5
    h, memory = normal(n, B, D_MODEL, seed=1), normal(n_memory, B, D_MODEL, seed=2)
    table = [sinusoids(distance(t), D_MODEL) for t in range(n_memory + n, -n, -1)]
    r = torch.tensor(table, dtype=DOUBLE)[:, None].expand(-1, B, -1)
    mems = memory if n_memory else None
    weights = layer(h, None, None, None, r, None, mems=mems, output_attentions=True)[2]
    q = torch.einsum("ibh,hnd->bnid", h, layer.q)
    k = torch.einsum("ibh,hnd->bnid", torch.cat((memory, h)), layer.k)
    places = Places(torch.arange(n_memory, n_memory + n), torch.arange(n_memory + n))
    return q, k, places, weights.permute(2, 3, 0, 1)


def check_xlnet(reading: str, distance: Callable[[int], int] = lambda t: t) -> None:
    """Two layers take over the parameters of two XLNet layers, and give the weights of each."""
    scheme, layers = xl_scheme(reading), [xlnet_layer(20), xlnet_layer(40)]
    for kind in ("encoder", "decoder"):
        modules: Any = [scheme.attention(kind, number) for number in range(2)]
        with torch.no_grad():
            for module, layer in zip(modules, layers):
                module.biases.u.copy_(layer.r_w_bias)
                module.biases.v.copy_(layer.r_r_bias)
                module.w_kr.weight.copy_(layer.r.flatten(1).T)
        for module, layer in zip(modules, layers):
            for n_memory in (0, 4):
                q, k, places, theirs = xlnets_weights(layer, n_memory, distance)
                close(logits_of(module, q, k, places).softmax(-1), theirs)


def changed(change: Callable[..., tuple]) -> Terms:
    """xl_logits of changed u, v, w_kr, and positions of queries and keys."""
    return lambda q, k, *rest: xl_logits(q, k, *change(*rest))


BY_TURNS = torch.arange(D_MODEL).view(-1, 2).T.flatten()


# ------------------------------------------------------------------------------------------ DeBERTa

REACH, FAR = 4, 9
# Buckets to a side, max_distance. In the last two the logarithms of the formula, rounded, miss a
# bound: in float64 and in float32.
BUCKETS = [(4, FAR), (6, 13), (8, 20), (32, 128), (64, 512), (256, 512), (32, 129), (18, 65)]


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


Where = tuple[Tensor, Tensor]  # positions of queries and keys
Delta = Callable[..., int]  # distance, and sizes of other buckets than REACH, FAR -> row


def paper_rows(delta: Delta, where: Where, i: int, j: int) -> tuple[int, int]:
    """Of c2p and p2c."""
    distance = int(where[0][i] - where[1][j])
    return delta(distance), delta(-distance)


def swapped_in_a_step(delta: Delta, where: Where, i: int, j: int) -> tuple[int, int]:
    """Where queries and keys differ in number, max_distance and log_buckets are exchanged."""
    sizes = (REACH, FAR) if len(where[0]) == len(where[1]) else (FAR, REACH)
    return paper_rows(delta, where, i, j)[0], delta(int(where[1][j] - where[0][i]), *sizes)


def check_deberta(
    implementation: Terms,
    *,
    log: bool = False,
    rows: Any = paper_rows,
    divisor: Callable[[int], int] = lambda n_terms: n_terms * DH,
) -> None:
    """With both terms and with each alone; delta of the distances or of their buckets."""
    both = normal(2 * REACH, H, DH, seed=3), normal(2 * REACH, H, DH, seed=4)
    sizes = {"max_distance": FAR, "log_buckets": REACH} if log else {"max_distance": REACH}

    def delta(distance: int, *sizes: int) -> int:
        bucket = bucket_by_definition(distance, *sizes or (REACH, FAR)) if log else distance
        return max(0, min(bucket + REACH, 2 * REACH - 1))

    for where in ANYWHERE.values():
        q, k = queries_and_keys(where)
        for keys, queries in (both, (both[0], None), (None, both[1])):

            def entry(i, j, m, n, where=where, q=q, k=k, keys=keys, queries=queries) -> Tensor:
                terms, (c2p, p2c) = [q[:, :, i] * k[:, :, j]], rows(delta, where, i, j)
                if keys is not None:
                    terms.append(q[:, :, i] * keys[c2p])
                if queries is not None:
                    terms.append(k[:, :, j] * queries[p2c])
                return torch.stack(terms).sum(dim=(0, -1)) / math.sqrt(divisor(len(terms)))

            got = implementation(q, k, keys, queries, *where, **sizes)
            close(got, by_pair(*where, entry))


def deberta(keys: Tensor | None, queries: Tensor | None, **sizes: Any) -> Deberta:
    """A layer whose table is the identity, so that its projections are K^r and Q^r [2k,H,Dh]."""
    given = {"w_kr": keys, "w_qr": queries}
    head_dim = next(rows for rows in given.values() if rows is not None).shape[-1]
    terms = {"c2p": keys is not None, "p2c": queries is not None}
    shape = {"d_model": H * head_dim, "n_heads": H}
    module = configured(config.Deberta(**sizes, **terms), **shape)
    [table] = module._table
    table.weight.data = torch.eye(len(table.weight), dtype=DOUBLE)
    for name, rows in given.items():
        if rows is not None:
            getattr(module, name).weight.data = rows.flatten(1).T
    return module


def deberta_logits(
    q: Tensor, k: Tensor, keys: Tensor | None, queries: Tensor | None, *where: Tensor, **sizes: Any
) -> Tensor:
    return logits_of(deberta(keys, queries, **sizes), q, k, Places(*where))


@pytest.mark.parametrize(("max_distance", "log_buckets"), [(40, None), (40, 8)])
@pytest.mark.parametrize("terms", [["c2p"], ["p2c"], ["c2p", "p2c"]])
def test_debertas_weights_are_those_of_the_published_code(
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


BucketsOf = Callable[[Tensor, int, int], Tensor]  # distances, buckets to a side, max_distance


def check_published(buckets_of: BucketsOf) -> None:
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


def rows_of_buckets(distance: Tensor, n_buckets: int, max_distance: int) -> Tensor:
    index = deberta_index(distance, max_distance=max_distance, log_buckets=n_buckets)
    return index - n_buckets


def test_a_bound_that_a_logarithm_would_miss() -> None:
    """6 = 3 sqrt(12 / 3) is the last distance of its bucket: rounding may push it into the next."""
    assert log_bucket_bounds(6, 13) == (6, 12)
    assert log_bucket(torch.tensor([3, 4, 6, 7, 12, 13]), 6, 13).tolist() == [3, 4, 4, 5, 5, 6]


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


# --------------------------------------------------------------------------- equations and mistakes

check_log = partial(check_deberta, log=True)


def other_deberta(changes: dict[str, Any]) -> None:
    check_deberta(deberta_logits, **changes)


RIGHT: list[tuple[Callable[..., None], Any]] = [
    (check_shaw_logits, row),
    (check_shaw_values, row),
    (check_shaw_attention, shaw()),
    (check_shaw_attention, shaw(values=False)),
    (check_xl, xl_logits),
    (check_xl, partial(transformer_xl.xl_logits, base=BASE)),
    (check_xlnet, "xlnet"),
    *((check, deberta_logits) for check in (check_deberta, check_log)),
    *((check, deberta_module.deberta_logits) for check in (check_deberta, check_log)),
    (check_buckets, log_bucket),
    (check_published, rows_of_buckets),
    # what the mistakes are made from
    (check_published, partial(rounded_log_bucket, dtype=torch.float32)),
]
MISTAKES: dict[str, tuple[Any, ...]] = {
    # Rows before the first are taken from the end of the table, as negative indices are.
    "shaw: no clip": (check_shaw_logits, lambda i, j, m, n: (n - m + CLIP) % (2 * CLIP + 1)),
    "shaw: the distance reversed": (check_shaw_logits, lambda i, j, m, n: row(j, i, n, m)),
    "shaw: a step counted from 0": (check_shaw_values, lambda i, j, m, n: row(i, j, i, j)),
    "shaw: one table for keys and values": (check_shaw_attention, shaw(OneTable)),
    "shaw: the key term not scaled": (check_shaw_attention, shaw(Unscaled)),
    "shaw: the weights of the values not trained": (check_shaw_attention, shaw(DetachedWeights)),
    "xl: no u": (check_xl, changed(lambda u, *rest: (torch.zeros_like(u), *rest))),
    "xl: u in place of v": (check_xl, changed(lambda u, v, *rest: (u, u, *rest))),
    "xl: the distance reversed": (check_xl, changed(lambda u, v, w, m, n: (u, v, w, -m, -n))),
    "xl: no relative shift": (
        check_xl,
        changed(lambda u, v, w, m, n: (u, v, w, m.amax().expand_as(m), n)),
    ),
    "xl: another layout": (check_xl, changed(lambda u, v, w, *at: (u, v, w[:, BY_TURNS], *at))),
    "xlnet: u and v shared by all layers": (check_xlnet, "xl"),
    "xlnet: no sign, the future as the past": (check_xlnet, "xlnet", abs),
    "xlnet: the past alone": (check_xlnet, "xlnet", lambda t: max(t, 0)),
    "xlnet: clamped": (check_xlnet, "xlnet", lambda t: max(-5, min(t, 5))),
    "deberta: p2c by delta(i,j)": (other_deberta, {"rows": lambda *at: paper_rows(*at)[:1] * 2}),
    "deberta: a step counted from 0": (
        other_deberta,
        {"rows": lambda delta, where, i, j: (delta(i - j), delta(j - i))},
    ),
    "deberta: divided by the root of Dh alone": (other_deberta, {"divisor": lambda n: DH}),
    "log: sizes swapped": (check_published, lambda d, n, far: rounded_log_bucket(d, far, n)),
    "log: sizes swapped in a step": (other_deberta, {"log": True, "rows": swapped_in_a_step}),
    "log: rounded down": (check_published, partial(rounded_log_bucket, rounded=torch.floor)),
    "log: no sign": (check_published, partial(rounded_log_bucket, signed=False)),
    "log: up to max_distance": (check_published, partial(rounded_log_bucket, longer=1)),
    "log: logarithms of float64": (check_buckets, rounded_log_bucket),
    "log: logarithms of float32": (check_buckets, partial(rounded_log_bucket, dtype=torch.float32)),
}


@pytest.mark.parametrize(("check", "implementation"), RIGHT)
def test_the_papers_equations_hold(check: Any, implementation: Any) -> None:
    check(implementation)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(*MISTAKES[mistake])
