"""DAPE: its equation pair by pair for every bias, precision, known mistakes."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from references import ANYWHERE, DOUBLE, by_pair, catches, logits_of, loud, normal
from tiny_models import BUCKETS, N_HEADS, POSITIONS, close, configured
from torch import Tensor

from configs.positions import Alibi, Bias, Dape, Fire, Kerple, Sandwich
from models.positional_encodings.base import Places
from models.positional_encodings.dape import dape_term

BIASES: list[Any] = [Alibi(), BUCKETS, Kerple(), Fire(width=4), Sandwich(width=8)]
T5_UNSCALED: Any = POSITIONS["t5_unscaled"]
WIDTH, DH = 5, 8


def layer_of(bias: Any, kind: Any = "encoder") -> Any:
    torch.manual_seed(0)
    return loud(configured(Dape(bias=bias, width=WIDTH), kind))


def by_unit(a: Tensor, b: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """f of one pair, from the logits a [B,H] and the biases b [H], unit by unit: [B,H]."""
    out, both = torch.zeros_like(a), torch.cat((a, b.expand_as(a)), dim=-1)
    for unit in range(len(b1)):
        x = b1[unit] + sum(w1[unit, h] * both[:, h] for h in range(2 * N_HEADS))
        out += w2[:, unit] * torch.where(x > 0, x, 0.01 * x)[:, None]
    return out


def paper(a: Tensor, b: Tensor, f: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return a + b + f(a, b)


def check_logits(layer: Any, scale: float = 1 / math.sqrt(DH), formula: Any = paper) -> None:
    network = layer.hidden.weight, layer.hidden.bias, layer.out.weight
    for where in ANYWHERE.values():
        q, k = (normal(2, N_HEADS, len(at), DH, seed=len(at)) for at in where)
        places = Places(*where)
        bias = layer.inner.bias(places)

        def entry(i: int, j: int, m: int, n: int, q=q, k=k, bias=bias) -> Tensor:
            a = (q[:, :, i] * k[:, :, j]).sum(-1) * scale
            return formula(a, bias[:, i, j], lambda a, b: by_unit(a, b, *network))

        close(logits_of(layer, q, k, places), by_pair(*where, entry))


def test_every_bias_can_stand_in_it() -> None:
    assert {type(bias) for bias in BIASES} == set(get_args(Bias))


@pytest.mark.parametrize("bias", [*BIASES, T5_UNSCALED], ids=lambda b: b.kind)
def test_logits_are_those_of_the_paper(bias: Any) -> None:
    check_logits(layer_of(bias), 1.0 if bias == T5_UNSCALED else 1 / math.sqrt(DH))


def test_the_bias_is_that_of_its_stack() -> None:
    for kind in ("encoder", "decoder"):
        assert layer_of(BUCKETS, kind).inner.bidirectional == (kind == "encoder")


def test_the_bias_is_made_once_for_sum_and_network() -> None:
    layer, at = layer_of(Kerple()), torch.arange(4)
    places, made = Places(at, at), []
    inner = layer.inner.bias
    layer.inner.bias = lambda places: made.append(1) or inner(places)
    q = normal(1, N_HEADS, 4, DH)
    layer.logit_term(q, q, places, None)
    places.once(("bias", id(layer)), lambda: layer.bias(places))  # as an attention asks for it
    assert len(made) == 1


def test_a_network_that_says_nothing_leaves_the_bias() -> None:
    layer, at, q = layer_of(Kerple()), torch.arange(6), normal(1, N_HEADS, 6, DH)
    before = logits_of(layer, q, q, Places(at, at))
    torch.nn.init.zeros_(layer.out.weight)
    after = logits_of(layer, q, q, Places(at, at))
    close(after, logits_of(layer.inner, q, q, Places(at, at)), 1e-12)
    assert (before - after).abs().max() > 0.01


def test_the_network_is_computed_in_full_precision() -> None:
    a, b = (normal(2, N_HEADS, 3, 4, seed=s).bfloat16() for s in (0, 1))
    weights = [normal(5, 2 * N_HEADS), normal(5), normal(N_HEADS, 5)]
    exact = dape_term(a.to(DOUBLE), b[0].to(DOUBLE), *weights)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = dape_term(a, b[0], *(w.float() for w in weights))
    assert got.dtype == torch.float32
    close(got.double(), exact, 1e-5)


# ----------------------------------------------------------------------------------------- mistakes


MISTAKES: dict[str, Any] = {
    "the bias first": lambda a, b, f: a + b + f(b.expand_as(a), a),
    "unscaled logits": lambda a, b, f: a + b + f(a * math.sqrt(DH), b),
    "the bias in the logits": lambda a, b, f: a + b + f(a + b, b),
    "in place of the bias": lambda a, b, f: a + f(a, b),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(partial(check_logits, formula=MISTAKES[mistake]), layer_of(Kerple()))


@pytest.mark.parametrize("other", [torch.relu, F.gelu])
def test_another_function_in_the_network_is_caught(other: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(F, "leaky_relu", other)
    catches(check_logits, layer_of(Kerple()))
