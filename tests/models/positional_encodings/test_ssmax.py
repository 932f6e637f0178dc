"""SSMax: the weights of its paper's equation for any scheme, and known mistakes."""

import math
from typing import Any

import pytest
import torch
from references import DOUBLE, catches
from tiny_models import BUCKETS, close, sources, targets, tiny_model
from torch import Tensor

from configs.positions import Alibi, Combined, Cope, Deberta, Fox, NoPosition, Rope, Shaw, Ssmax
from models.attention.tap import AttentionTap
from models.positional_encodings.base import AttentionPosition, Kind, Places
from models.positional_encodings.ssmax import Ssmax as Layer, ssmax_factor
from models.transformer import TranslationTransformer

SCHEMES: list[Any] = [NoPosition(), Rope(), Alibi(), BUCKETS, Shaw(clip=2), Deberta(max_distance=3)]
SCHEMES += [Cope(n_positions=3), Fox(), Combined(attention=BUCKETS)]
LENGTHS, T = (7, 4, 6), 5


def first_weights(model: TranslationTransformer, kind: Kind) -> Tensor:
    """Of the first layer of a stack, [B,H,T,T]: later ones see other inputs."""
    tap = AttentionTap()
    model(sources(*LENGTHS), targets(3, T), tap=tap)
    return tap.maps(kind)[0]


def check_weights(model: TranslationTransformer, plain: TranslationTransformer) -> None:
    """n^(s z) / sum n^(s z), by the weights w of a softmax over the same z: they are w^(s ln n)."""
    for kind in ("encoder", "decoder"):
        weights = first_weights(plain, kind)
        seen = (weights > 0).sum(-1, keepdim=True).to(DOUBLE)
        by_hand = torch.tensor(LENGTHS)[:, None] if kind == "encoder" else torch.arange(1, T + 1)
        assert torch.equal(seen[:, 0, :, 0], by_hand.expand_as(seen[:, 0, :, 0]).to(DOUBLE))
        s = model.scheme.attention(kind, 0).s
        powers = weights ** (s[:, None, None] * seen.log())
        powers = powers.masked_fill(weights == 0, 0.0)
        close(first_weights(model, kind), powers / powers.sum(-1, keepdim=True))


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.kind)
def test_weights_are_those_of_the_paper_over_the_keys_that_a_query_sees(scheme: Any) -> None:
    check_weights(tiny_model(Ssmax(scheme=scheme)), tiny_model(scheme))


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.kind)
def test_with_s_ln_n_of_one_it_is_the_scheme(scheme: Any) -> None:
    model, plain = tiny_model(Ssmax(scheme=scheme)), tiny_model(scheme)
    for n in (2, 6):
        with torch.no_grad():
            for layer in (*model.scheme.encoder, *model.scheme.decoder):
                layer.s.fill_(1 / math.log(n))
        memories = [each.encode(sources(n, n)) for each in (model, plain)]
        close(memories[0].states, memories[1].states, 1e-12)
        last = []
        for each in (model, plain):
            tap = AttentionTap()
            each.decode(targets(2, n), memories[1], tap=tap)
            last.append(tap.maps("decoder")[0][..., -1, :])
        close(last[0], last[1], 1e-12)


def test_the_factor_is_s_ln_n_and_begins_alike_in_every_head() -> None:
    s, n = torch.tensor([0.5, 2.0]), torch.tensor([[1], [3]])
    close(ssmax_factor(s, n), s[:, None, None] * n.log(), 1e-7)
    assert ssmax_factor(s.bfloat16(), n).dtype == torch.float32
    one, two = (Layer(AttentionPosition(), n_heads=2, start=start) for start in (0.7, 1.4))
    close(one.s, torch.full((2,), 0.7), 0.0)
    places = Places(torch.arange(3), torch.arange(3))  # which layers share, each with its own s
    close(2 * one.factor(places), two.factor(places))


# ----------------------------------------------------------------------------------------- mistakes


class _PaddingCounts(Layer):
    def factor(self, places: Places) -> Tensor:
        return ssmax_factor(self.s, torch.tensor([[len(places.k_positions)]]))


class _BiasUnscaled(Layer):
    def bias(self, places: Places) -> Tensor | None:
        return self.inner.bias(places)


class _TermUnscaled(Layer):
    def logit_term(self, q: Tensor, k: Tensor, places: Places, state: Any) -> Tensor | None:
        return self.inner.logit_term(q, k, places, state)


class _OneForAllHeads(Layer):
    def factor(self, places: Places) -> Tensor:
        return ssmax_factor(self.s[:1].expand_as(self.s), places.n_visible)


@pytest.mark.parametrize(
    ("cls", "scheme"),
    [
        (_PaddingCounts, Rope()),
        (_BiasUnscaled, Alibi()),
        (_TermUnscaled, Shaw(clip=2)),
        (_OneForAllHeads, Rope()),
    ],
)
def test_a_known_mistake_is_caught(cls: type[Layer], scheme: Any) -> None:
    model, plain = tiny_model(Ssmax(scheme=scheme)), tiny_model(scheme)
    check_weights(model, plain)
    for layer in (*model.scheme.encoder, *model.scheme.decoder):
        layer.__class__ = cls
    catches(check_weights, model, plain)
