"""Transformer-XL and XLNet: the equation pair by pair, XLNet's relative shift, known mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from references import ANYWHERE, DOUBLE, catches, close, dot, logits_of, normal, sinusoids
from tiny_models import tiny_config
from torch import Tensor
from transformers import XLNetConfig
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

import configs.positions as config
from models.positional_encodings import transformer_xl
from models.positional_encodings.base import AttentionScheme, Places, PositionScheme
from models.positional_encodings.transformer_xl import (
    HeadBiases,
    TransformerXl,
    relative_sinusoids,
    xl_content_logits,
    xl_logits,
    xl_position_logits,
)
from models.schemes import build_scheme

B, H, DH, BASE = 2, 2, 6, 500.0
D_MODEL = H * DH
Logits = Callable[..., Tensor]


def scheme_of(reading: Any) -> PositionScheme:
    position = config.TransformerXl(reading=reading)
    return build_scheme(tiny_config(position, d_model=D_MODEL, n_heads=H)).double()


def logits_by_loop(
    q: Tensor, k: Tensor, u: Tensor, v: Tensor, w_kr: Tensor, m: Tensor, n: Tensor
) -> Tensor:
    """[(q_i + u) . k_j + (q_i + v) . W_kR R_(i-j)] / sqrt(Dh), each pair by itself."""
    out = torch.empty(B, H, len(m), len(n), dtype=DOUBLE)
    projected = {
        t: [dot(row, sinusoids(t, D_MODEL, BASE)) for row in w_kr]
        for t in {int(i - j) for i in m for j in n}
    }
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, out.shape)).tolist():
        r = projected[int(m[i] - n[j])][h * DH : (h + 1) * DH]
        out[b, h, i, j] = dot(q[b, h, i] + u[h], k[b, h, j]) + dot(q[b, h, i] + v[h], r)
    return out / math.sqrt(DH)


def check_logits(implementation: Logits) -> None:
    u, v, w_kr = normal(H, DH, seed=3), normal(H, DH, seed=4), normal(D_MODEL, D_MODEL, seed=5)
    for where in ANYWHERE.values():
        q, k = (normal(B, H, len(at), DH, seed=seed) for seed, at in enumerate(where))
        expected = logits_by_loop(q, k, u, v, w_kr, *where)
        close(implementation(q, k, u, v, w_kr, *where, base=BASE), expected)


def module_logits(
    q: Tensor, k: Tensor, u: Tensor, v: Tensor, w_kr: Tensor, *where: Tensor, base: float
) -> Tensor:
    shared = HeadBiases(n_heads=H, head_dim=DH)
    module = TransformerXl(d_model=D_MODEL, n_heads=H, base=base, shared=shared)
    with torch.no_grad():
        for parameter, value in ((shared.u, u), (shared.v, v), (module.w_kr.weight, w_kr)):
            parameter.data = value
    return logits_of(module, q, k, Places(*where))


@pytest.mark.parametrize("implementation", [xl_logits, module_logits])
def test_the_papers_equation_holds(implementation: Logits) -> None:
    check_logits(implementation)


def test_the_layers_of_a_stack_share_one_table_of_sinusoids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    def counting(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        made.append(arguments)
        return relative_sinusoids(*arguments, **options)

    monkeypatch.setattr(transformer_xl, "relative_sinusoids", counting)
    scheme, places, q = (
        scheme_of("xl"),
        Places(torch.arange(5), torch.arange(5)),
        normal(B, H, 5, DH),
    )
    for layer in range(2):
        scheme.attention("encoder", layer).logit_term(q, q, places, None)
    assert len(made) == 1


def test_bfloat16_tells_far_distances_apart() -> None:
    far = torch.tensor([2048]), torch.tensor([0, 1])
    table, index = relative_sinusoids(*far, 64, dtype=torch.bfloat16)
    assert not torch.equal(table[index[0, 0]], table[index[0, 1]])


# -------------------------------------------------------------------------------------------- XLNet


def xlnet_layer(seed: int = 20) -> XLNetRelativeAttention:
    config = XLNetConfig(vocab_size=5, d_model=D_MODEL, n_head=H, n_layer=1, d_inner=8, dropout=0.0)
    layer = XLNetRelativeAttention(config).double().eval().requires_grad_(False)
    for number, parameter in enumerate(layer.parameters()):
        scale = 2 if parameter.dim() == 3 else 1
        parameter.data = normal(*parameter.shape, seed=seed + number) / scale
    return layer


def xlnets_weights(
    layer: XLNetRelativeAttention, n_memory: int
) -> tuple[Tensor, Tensor, Places, Tensor]:
    """q and k of a few tokens after a memory, their places, and the layer's weights."""
    n = 5
    h, memory = normal(n, B, D_MODEL, seed=1), normal(n_memory, B, D_MODEL, seed=2)
    table = [sinusoids(t, D_MODEL) for t in range(n_memory + n, -n, -1)]
    r = torch.tensor(table, dtype=DOUBLE)[:, None].expand(-1, B, -1)
    mems = memory if n_memory else None
    weights = layer(h, None, None, None, r, None, mems=mems, output_attentions=True)[2]
    q = torch.einsum("ibh,hnd->bnid", h, layer.q)
    k = torch.einsum("ibh,hnd->bnid", torch.cat((memory, h)), layer.k)
    places = Places(torch.arange(n_memory, n_memory + n), torch.arange(n_memory + n))
    return q, k, places, weights.permute(2, 3, 0, 1)


def check_xlnet_reading(make: Callable[[], PositionScheme]) -> None:
    """Two layers take over the parameters of two XLNet layers, and give the weights of each."""
    scheme, layers = make().double(), [xlnet_layer(20), xlnet_layer(40)]
    for kind in ("encoder", "decoder"):
        modules = [scheme.attention(kind, number) for number in range(2)]  # type: ignore[arg-type]
        for module, layer in zip(modules, layers, strict=True):
            assert isinstance(module, TransformerXl)
            with torch.no_grad():
                module.biases.u.copy_(layer.r_w_bias)
                module.biases.v.copy_(layer.r_r_bias)
                module.w_kr.weight.copy_(layer.r.flatten(1).T)
        for module, layer in zip(modules, layers, strict=True):
            for n_memory in (0, 4):
                q, k, places, theirs = xlnets_weights(layer, n_memory)
                close(logits_of(module, q, k, places).softmax(-1), theirs)


def test_the_xlnet_reading_is_that_of_xlnets_layers() -> None:
    check_xlnet_reading(lambda: scheme_of("xlnet"))


def test_the_sinusoids_of_distances_are_xlnets() -> None:
    shape = {"d_model": D_MODEL, "n_head": H, "n_layer": 1, "d_inner": 8}
    n, model = 6, XLNetModel(XLNetConfig(vocab_size=5, **shape, attn_type="bi"))
    theirs = model.relative_positional_encoding(n, n)[:, 0]  # rows for distances n .. -n + 1
    table, index = relative_sinusoids(torch.arange(n), torch.arange(n), D_MODEL, dtype=DOUBLE)
    rows = n - (torch.arange(n)[:, None] - torch.arange(n))
    close(table[index].float(), theirs[rows], 1e-6)


# ----------------------------------------------------------------------------------------- mistakes


def changed(change: Callable[..., tuple]) -> Logits:
    """xl_logits of changed u, v, w_kr, and positions of queries and keys."""

    def logits(q: Tensor, k: Tensor, *rest: Tensor, base: float) -> Tensor:
        return xl_logits(q, k, *change(*rest), base=base)

    return logits


BY_TURNS = torch.arange(D_MODEL).view(-1, 2).T.flatten()


class OfChangedDistances(TransformerXl):
    """A layer with u and v of its own that takes the sinusoids of change(distance)."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__(d_model=D_MODEL, n_heads=H)
        self.change = change

    def logit_term(self, q: Tensor, k: Tensor, places: Places, state: Tensor | None) -> Tensor:
        distances, index = torch.unique(self.change(places.distance), return_inverse=True)
        table, where = relative_sinusoids(distances, torch.zeros(1).long(), D_MODEL, dtype=DOUBLE)
        projected = self.w_kr(table[where[:, 0]]).unflatten(-1, self.head_shape)
        u, v = self.biases.u, self.biases.v
        return xl_content_logits(k, u) + xl_position_logits(q, v, projected, index)


def of_distances(change: Callable[[Tensor], Tensor]) -> Callable[[], PositionScheme]:
    def layers() -> list[TransformerXl]:
        return [OfChangedDistances(change) for _ in range(2)]

    return lambda: AttentionScheme(encoder=layers(), decoder=layers())


MISTAKES: dict[str, Callable[[], None]] = {
    "no u": lambda: check_logits(changed(lambda u, *rest: (torch.zeros_like(u), *rest))),
    "u in place of v": lambda: check_logits(changed(lambda u, v, *rest: (u, u, *rest))),
    "the distance reversed": lambda: check_logits(changed(lambda u, v, w, m, n: (u, v, w, -m, -n))),
    "no relative shift": lambda: check_logits(  # every query reads the table as the last one does
        changed(lambda u, v, w, m, n: (u, v, w, m.max().expand(len(m)), n))
    ),
    "sinusoids in another layout": lambda: check_logits(
        changed(lambda u, v, w, *where: (u, v, w[:, BY_TURNS], *where))
    ),
    "xlnet: u and v shared by all layers": lambda: check_xlnet_reading(lambda: scheme_of("xl")),
    "xlnet: no sign, the future as the past": lambda: check_xlnet_reading(of_distances(torch.abs)),
    "xlnet: the past alone": lambda: check_xlnet_reading(of_distances(lambda d: d.clamp(min=0))),
    "xlnet: clamped to a trained length": lambda: check_xlnet_reading(
        of_distances(lambda d: d.clamp(-5, 5))
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(MISTAKES[mistake])


def test_the_made_mistakes_are_the_only_fault() -> None:
    check_xlnet_reading(of_distances(lambda distance: distance))
    check_logits(changed(lambda *rest: rest))
