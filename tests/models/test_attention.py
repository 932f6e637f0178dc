"""The attention kernels against each other and the formula; the modules against torch's own."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import D_MODEL, N_HEADS, N_LAYERS, close, model_with, sources, targets, tiny_config
from torch import Tensor

from models.attention import kernels
from models.attention.kernels import attend, attend_eager, attend_sdpa
from models.attention.multi_head import SelfAttention
from models.attention.tap import AttentionTap
from models.decode_state import KeyValueCache
from models.positional_encodings.base import Places
from models.positional_encodings.kerple import Kerple

DOUBLE = torch.float64
B, H, TQ, TK, DH = 2, 3, 5, 5, 4


def qkv(tq: int = TQ, tk: int = TK, *, grad: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    shapes = ((B, H, tq, DH), (B, H, tk, DH), (B, H, tk, DH))
    q, k, v = (torch.randn(shape, dtype=DOUBLE, requires_grad=grad) for shape in shapes)
    return q, k, v


MASKS = {
    "none": None,
    "padding": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()[:, None, None, :],
    "full": torch.tensor([[1, 0, 1, 0, 1]] * 5).bool().logical_or(torch.eye(5).bool()),
}
BIASES = {"none": None, "heads": (H, TQ, TK), "full": (B, H, TQ, TK), "one": (1, 1, TQ, TK)}


def test_layers_with_biases_of_their_own_do_not_share_one() -> None:
    torch.manual_seed(0)
    attention, at = SelfAttention(tiny_config(), kind="encoder", layer=0).double(), torch.arange(TQ)
    first, second = (Kerple(n_heads=N_HEADS, form="log").double() for _ in range(2))
    second.p.data.mul_(3)
    x, places = torch.randn(1, TQ, D_MODEL, dtype=DOUBLE), Places(at, at)
    together = [attention(x, position=bias, places=places) for bias in (first, second)]
    apart = [attention(x, position=bias, places=Places(at, at)) for bias in (first, second)]
    assert torch.equal(torch.stack(together), torch.stack(apart))
    assert (apart[0] - apart[1]).abs().max() > 1e-3


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("is_causal", [False, True])
def test_both_kernels_equal_the_formula(mask: str, bias: str, is_causal: bool) -> None:
    q, k, v = leaves = list(qkv(grad=True))
    allowed, shape, term = MASKS[mask], BIASES[bias], None
    if shape is not None:
        term = torch.randn(shape, dtype=DOUBLE, requires_grad=True)
        leaves.append(term)
    arguments = {"mask": allowed, "bias": term, "is_causal": is_causal, "scale": 0.7}
    eager, weights = attend(q, k, v, **arguments, need_weights=True)
    fast, no_weights = attend(q, k, v, **arguments)
    assert no_weights is None

    # row by row, key by key
    expected, full = torch.zeros_like(q), (B, H, TQ, TK)
    seen = torch.ones(full).bool() if allowed is None else allowed.expand(full)
    extra = torch.zeros(full, dtype=DOUBLE) if term is None else term.expand(full)
    for b, h, i in itertools.product(range(B), range(H), range(TQ)):
        keys = [j for j in range(TK) if seen[b, h, i, j] and (not is_causal or j <= i)]
        logits = [0.7 * (q[b, h, i] * k[b, h, j]).sum() + extra[b, h, i, j] for j in keys]
        terms = torch.stack(logits).exp()
        expected[b, h, i] = sum(w * v[b, h, j] for w, j in zip(terms / terms.sum(), keys)).detach()
        assert all(weights[b, h, i, j] == 0 for j in range(TK) if j not in keys)
    close(eager, expected)
    close(fast, expected)
    close(weights.sum(-1), torch.ones(B, H, TQ, dtype=DOUBLE))
    seed = torch.randn_like(eager)
    close(*(torch.autograd.grad(out, leaves, seed) for out in (eager, fast)))


@pytest.mark.parametrize("need_weights", [False, True])
def test_is_causal_needs_as_many_queries_as_keys(need_weights: bool) -> None:
    with pytest.raises(ValueError, match="1 against 5"):
        attend(*qkv(1, 5), is_causal=True, scale=1.0, need_weights=need_weights)


def kernels_used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels, "eager" or "sdpa", as they are called from here on."""
    used: list[str] = []

    def spy(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            used.append(name)
            return kernel(*args, **options)

        return call

    monkeypatch.setattr(kernels, "attend_eager", spy("eager", attend_eager))
    monkeypatch.setattr(kernels, "attend_sdpa", spy("sdpa", attend_sdpa))
    return used


@pytest.mark.parametrize(
    ("queries", "fewest", "kernel"),
    [(1, 1, "eager"), (1, 2, "sdpa"), (5, 2, "eager"), (17, 1, "sdpa")],
)
def test_many_rows_of_few_queries_take_the_eager_kernel(
    queries: int, fewest: int, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = kernels_used(monkeypatch)
    monkeypatch.setattr(kernels, "_FEWEST", fewest)
    torch.manual_seed(0)
    q, k, v = (torch.randn(150, 2, n, DH, dtype=DOUBLE) for n in (queries, 9, 9))
    mask = (torch.arange(9) < torch.arange(1, 151)[:, None])[:, None, None]
    with torch.inference_mode():
        fast, none = attend(q, k, v, mask=mask, scale=0.5)
    assert none is None
    with_gradients, _ = attend(q, k, v, mask=mask, scale=0.5)
    few, _ = attend(q[:20], k[:20], v[:20], mask=mask[:20], scale=0.5)
    assert used == [kernel, "sdpa", "sdpa"]

    close(fast, with_gradients)
    close(fast[:20], few)


@pytest.mark.parametrize(("keys", "kernel"), [(128, "eager"), (129, "sdpa")])
def test_bfloat16_takes_the_eager_kernel_up_to_a_length(
    keys: int, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = (torch.zeros(1, 1, n, 4, dtype=torch.bfloat16) for n in (128, keys, keys))
    used = kernels_used(monkeypatch)
    attend(q, k, v, scale=0.5)
    assert used == [kernel]


def test_weights_are_returned_before_dropout() -> None:
    q, k, v = qkv()
    torch.manual_seed(0)
    out, weights = attend(q, k, v, scale=0.5, dropout_p=0.5, need_weights=True)
    close(weights, (0.5 * q @ k.mT).softmax(-1))
    assert (out - weights @ v).abs().max() > 0.05  # the values are mixed with dropped weights


def test_a_value_term_gets_the_weights_after_dropout() -> None:
    q, k, v = qkv()
    torch.manual_seed(0)
    seen: list[Tensor] = []

    def term(weights: Tensor) -> Tensor:
        seen.append(weights)
        return weights.sum(-1, keepdim=True).expand(-1, -1, -1, DH)

    out, weights = attend(q, k, v, scale=0.5, dropout_p=0.5, value_term=term)
    assert weights is None
    assert (seen[0] == 0).any()
    close(out, seen[0] @ v + seen[0].sum(-1, keepdim=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, DOUBLE])
def test_the_bias_may_have_a_type_of_its_own(dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in qkv())
    bias = torch.randn(H, TQ, TK, dtype=torch.float64 if dtype == torch.float32 else torch.float32)
    expected = (0.5 * q.double() @ k.double().mT + bias.double()).softmax(-1) @ v.double()
    eager, weights = attend(q, k, v, bias=bias.to(dtype), scale=0.5, need_weights=True)
    fast, _ = attend(q, k, v, bias=bias, scale=0.5)
    assert weights is not None
    assert eager.dtype == weights.dtype == fast.dtype == dtype
    tolerance = 0.03 if dtype == torch.bfloat16 else 1e-5
    close(eager.double(), expected, tolerance)
    close(fast.double(), expected, tolerance)


# ---------------------------------------------------------------------------------------- the cache


def cache_of(n_rows: int, max_len: int) -> KeyValueCache:
    return KeyValueCache(n_rows, 2, H, max_len, DH, like=torch.empty(0, dtype=DOUBLE))


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [1, 0, 0, 3], [2] * 4, [3], [1, 0, 2, 2, 3, 0]])
def test_the_cache_keeps_the_order_and_takes_rows_in_any(rows: list[int]) -> None:
    cache = cache_of(4, 6)
    layers = [(*torch.randn(2, 4, H, 5, DH, dtype=DOUBLE), torch.randn(4, H, 5)) for _ in range(2)]
    cache.grow(2)
    for layer, whole in enumerate(layers):
        cache.put(layer, *(x[:, :, :2] for x in whole))
    cache.take(torch.arange(4))  # into a second buffer, which is then there
    cache.take(torch.tensor(rows))
    cache.grow(3)
    assert cache.length == 5
    for layer, whole in enumerate(layers):
        got = cache.put(layer, *(x[rows][:, :, 2:] for x in whole))
        assert all(torch.equal(x, expected[rows]) for x, expected in zip(got, whole))


@pytest.mark.parametrize("n_new", [1, 2])
def test_a_full_cache_refuses_more(n_new: int) -> None:
    cache = cache_of(1, 2)
    cache.grow(2)
    with pytest.raises(ValueError, match="room for 2"):
        cache.grow(n_new)


# ------------------------------------------------------------------------------------------ the tap


def test_the_tap_records_every_layer_in_its_place() -> None:
    model = model_with("rope", n_encoder_layers=3)
    src, tgt_in = sources(6, 4), targets(2, 5)
    tap = AttentionTap()
    close(model(src, tgt_in, tap=tap), model(src, tgt_in))
    assert tap.maps("encoder").shape == (3, 2, N_HEADS, 6, 6)
    assert tap.maps("decoder").shape == (N_LAYERS, 2, N_HEADS, 5, 5)
    assert tap.maps("cross").shape == (N_LAYERS, 2, N_HEADS, 5, 6)
    crossing = AttentionTap(("cross",))
    model(src, tgt_in, tap=crossing)
    assert {kind for kind, _ in crossing._records} == {"cross"}
    assert torch.equal(crossing.maps("cross"), tap.maps("cross"))
    for kind in ("encoder", "decoder", "cross"):
        maps = tap.maps(kind)
        close(maps.sum(-1), torch.ones(maps.shape[:-1], dtype=DOUBLE))
        assert not maps.requires_grad
        assert (maps[0] - maps[1]).abs().max() > 1e-3
    assert (tap.maps("decoder").triu(1) == 0).all()
    assert (tap.maps("encoder")[:, 1, :, :, 4:] == 0).all()  # columns of padding
    assert (tap.maps("cross")[:, 1, :, :, 4:] == 0).all()
    assert (tap.maps("encoder")[:, 1, :, :, :4] > 0).all()

    # the maps of the first layer alone, from the embeddings
    x = model.src_embedding(src) * math.sqrt(D_MODEL)
    layer = model.encoder.layers[0]
    position = model.scheme.attention("encoder", 0)
    q, k, _ = layer.self_attention.qkv_proj(layer.norm1(x)).chunk(3, -1)
    q, k = (y.unflatten(-1, (N_HEADS, -1)).transpose(1, 2) for y in (q, k))
    q, k = (position.rotate(y, torch.arange(6), "query") for y in (q, k))
    close(tap.maps("encoder")[0, 0], (q @ k.mT / math.sqrt(D_MODEL / N_HEADS)).softmax(-1)[0])


def test_a_tap_alone_asks_for_the_eager_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    used = kernels_used(monkeypatch)
    model, src, tgt_in = model_with("rope"), sources(4), targets(1, 3)
    model(src, tgt_in)
    assert used == ["sdpa"] * 3 * N_LAYERS
    used.clear()
    model(src, tgt_in, tap=AttentionTap())
    assert used == ["eager"] * 3 * N_LAYERS
