"""TUPE: its equation, as an attention over twice the width too; decoding, bounds, mistakes."""

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import ANYWHERE, by_pair, catches, logits_of, loud, normal
from tiny_models import (
    BUCKETS,
    D_MODEL,
    N_HEADS,
    N_LAYERS,
    POSITIONS,
    close,
    configured,
    sources,
    targets,
    tiny_config,
    tiny_model,
)
from torch import Tensor

from configs.positions import Alibi, Combined, Cope, Interleaved, NoPosition, Rope, Sinusoidal, Tupe
from models.build import build_scheme
from models.positional_encodings.base import Places
from models.positional_encodings.tupe import Tupe as Layer
from utils.errors import UserError

DH = D_MODEL // N_HEADS
RELATIVE: list[Any] = [NoPosition(), BUCKETS, Alibi()]
UNSCALED: Any = POSITIONS["t5_unscaled"]


def layer_of(relative: Any, kind: Any = "encoder") -> Any:
    torch.manual_seed(0)
    return loud(configured(Tupe(max_positions=1200, relative=relative), kind))


def own_vectors(layer: Any, at: Tensor, projection: str, *, norm: bool = True) -> Tensor:
    """U p of every head at the positions [T], one number after the other: [H,T,Dh]."""
    rows = []
    for m in at.tolist():
        p = layer.table.weight[m]
        if norm:
            p = (p - p.mean()) / (p.var(unbiased=False) + 1e-5).sqrt()
            p = layer.norm.weight * p + layer.norm.bias
        rows.append(torch.stack([row @ p for row in getattr(layer, projection).weight]))
    return torch.stack(rows).unflatten(-1, (N_HEADS, DH)).transpose(0, 1)


def paper(layer: Any, q_at: Tensor, k_at: Tensor, **how: bool) -> tuple[Tensor, Tensor]:
    return own_vectors(layer, q_at, "u_q", **how), own_vectors(layer, k_at, "u_k", **how)


def check_logits(
    layer: Any, scale: float = 1 / math.sqrt(2 * DH), *, words: float = 1.0, vectors: Any = paper
) -> None:
    for where in ANYWHERE.values():
        q, k = (normal(2, N_HEADS, len(at), DH, seed=len(at)) for at in where)
        places, (p_q, p_k) = Places(*where), vectors(layer, *where)
        relative = layer.relative.bias(places)

        def entry(i, j, m, n, q=q, k=k, p_q=p_q, p_k=p_k, relative=relative) -> Tensor:
            content, positions = (q[:, :, i] * k[:, :, j]).sum(-1), (p_q[:, i] * p_k[:, j]).sum(-1)
            own = 0 if relative is None else relative[:, i, j]
            return scale * (words * content + positions) + own

        close(logits_of(layer, q, k, places), by_pair(*where, entry))


@pytest.mark.parametrize("relative", [*RELATIVE, UNSCALED], ids=lambda r: r.kind)
def test_logits_are_those_of_the_paper(relative: Any) -> None:
    check_logits(layer_of(relative), math.sqrt(0.5) if relative == UNSCALED else (2 * DH) ** -0.5)


def test_the_relative_bias_is_that_of_its_stack() -> None:
    for kind in ("encoder", "decoder"):
        assert layer_of(BUCKETS, kind).relative.bidirectional == (kind == "encoder")


def test_it_is_attention_over_words_and_positions_side_by_side() -> None:
    layer, at = layer_of(NoPosition()), torch.arange(6)
    q, k, v = (normal(2, N_HEADS, 6, DH, seed=s) for s in range(3))
    both = (
        torch.cat((x, own_vectors(layer, at, u).expand_as(x)), dim=-1)
        for x, u in ((q, "u_q"), (k, "u_k"))
    )
    expected = F.scaled_dot_product_attention(*both, v)
    close(logits_of(layer, q, k, Places(at, at)).softmax(-1) @ v, expected)


def test_the_layers_of_a_stack_compare_positions_once(monkeypatch: Any) -> None:
    model, made, bias = tiny_model(POSITIONS["tupe_r"]), [], Layer.bias
    monkeypatch.setattr(Layer, "bias", lambda self, places: made.append(self) or bias(self, places))
    model(sources(5, 3), targets(2, 4))
    assert made == [model.scheme.attention(kind, 0) for kind in ("encoder", "decoder")]
    assert N_LAYERS > 1


def test_positions_are_compared_in_full_precision() -> None:
    layer, at = layer_of(BUCKETS), torch.arange(7)
    exact = layer.bias(Places(at, at))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = layer.float().bias(Places(at, at))
    assert got.dtype == torch.float32
    close(got.double(), exact, 1e-5)


SHORT = Tupe(max_positions=6)
BOUNDED: list[tuple[Any, int | None, int | None]] = [
    (SHORT, 6, 6),
    (Interleaved(others=SHORT, nth=Tupe(max_positions=5)), 5, 5),
    (Combined(attention=Interleaved(nth=SHORT)), 6, 6),
    (Sinusoidal(max_positions=6), 6, 6),
    (Cope(encoder=SHORT), 6, None),
    (Rope(), None, None),
]


@pytest.mark.parametrize(("position", "source", "target"), BOUNDED)
def test_model_and_configuration_know_where_the_table_ends(position, source, target) -> None:
    scheme = build_scheme(tiny_config(position))
    for side, length in (("source", source), ("target", target)):
        assert scheme.max_length(side) == length
        bound = position.bound(side)
        assert (None if bound is None else bound.length) == length
    model = tiny_model(position)
    for n_source, n_target in ((7, 2), (2, 7), (6, 6)):
        allowed = source is None or n_source <= source
        if allowed and (target is None or n_target <= target):
            assert model(sources(n_source), targets(1, n_target)).isfinite().all()
        else:
            says = rf"{max(n_source, n_target)} tokens .*max_positions allows"
            with pytest.raises(UserError, match=says):
                model(sources(n_source), targets(1, n_target))


# ----------------------------------------------------------------------------------------- mistakes


MISTAKES: dict[str, dict[str, Any]] = {
    "the words keep their scale": {"words": math.sqrt(2)},
    "no norm": {"vectors": lambda layer, m, n: paper(layer, m, n, norm=False)},
    "one map": {"vectors": lambda layer, *both: [own_vectors(layer, at, "u_q") for at in both]},
    "q and k exchanged": {"vectors": lambda layer, m, n: paper(layer, n, m)[::-1]},
    "a step from 0": {"vectors": lambda layer, m, n: paper(layer, torch.arange(len(m)), n)},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(partial(check_logits, **MISTAKES[mistake]), layer_of(NoPosition()))
