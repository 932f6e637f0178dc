"""Word dropout, embedding dropout and stochastic depth against their definitions written out."""

import itertools
import math
from typing import Any

import pytest
import torch
from tiny_models import BOS, D_MODEL, EOS, POSITIONS, sources, targets, tiny_config, tiny_model
from torch import Tensor

from models.dropout import JointDropout
from models.masks import padding_attn_mask
from models.positional_encodings.base import Places
from models.transformer import TranslationTransformer
from models.transformer_backend import EncoderLayer
from utils.errors import ConfigError


def inputs_of(model: TranslationTransformer, src: Tensor, tgt_in: Tensor) -> dict[str, Tensor]:
    """What enters encoder and decoder."""
    seen: dict[str, Tensor] = {}
    for name, stack in (("source", model.encoder), ("target", model.decoder)):
        stack.register_forward_pre_hook(
            lambda module, args, name=name: seen.update({name: args[0]})
        )
    model(src, tgt_in)
    return seen


# ------------------------------------------------------------------------------------ joint dropout


@pytest.mark.parametrize("shared", [1, 2])
def test_joint_dropout_keeps_or_drops_all_together_and_scales_what_it_keeps(shared: int) -> None:
    torch.manual_seed(0)
    x = 2.0 ** torch.randint(-3, 4, (40, 30, 7)).double()  # divided exactly
    out = JointDropout(0.3, shared=shared).train()(x)
    factors = (out / x).flatten(3 - shared)
    assert (factors == factors[..., :1]).all()
    kept = factors[..., 0]
    assert set(kept.unique().tolist()) == {0.0, 1 / 0.7}
    n = kept.numel()
    assert abs((kept == 0).double().mean().item() - 0.3) < 4 * math.sqrt(0.3 * 0.7 / n)


def test_joint_dropout_does_and_draws_nothing_in_evaluation_and_at_0() -> None:
    x = torch.rand(4, 3, 2)
    before = torch.get_rng_state()
    assert JointDropout(0.5, shared=1).eval()(x) is x
    assert JointDropout(0.0, shared=1).train()(x) is x
    assert torch.equal(torch.get_rng_state(), before)


# ------------------------------------------------------------------------------------- word dropout


@pytest.mark.parametrize("position", ["none", "sinusoidal"])
def test_word_dropout_takes_the_embedding_and_leaves_the_position(position: str) -> None:
    model = tiny_model(POSITIONS[position], word_dropout=0.4).train()
    src, tgt_in = sources(*[9] * 30), targets(30, 8)
    sides = {"source": (src, model.src_embedding), "target": (tgt_in, model.tgt_embedding)}
    for side, x in inputs_of(model, src, tgt_in).items():
        ids, embedding = sides[side]
        places = torch.arange(ids.shape[1])
        nothing = model.scheme.input(side)(torch.zeros(*ids.shape, D_MODEL, dtype=x.dtype), places)
        whole = embedding(ids) * math.sqrt(D_MODEL) / 0.6 + nothing
        dropped, kept = ((x - y).abs().amax(dim=-1) < 1e-12 for y in (nothing, whole))
        assert (dropped ^ kept).all()
        assert 0.25 < dropped.double().mean() < 0.55
        assert len(dropped.unique(dim=0)) > 10  # each sentence for itself
        assert dropped[(ids == EOS) | (ids == BOS)].any()  # special tokens too


@pytest.mark.parametrize("field", ["word_dropout", "stochastic_depth"])
def test_in_evaluation_nothing_is_dropped(field: str) -> None:
    src, tgt_in = sources(6, 3), targets(2, 4)
    assert torch.equal(tiny_model(**{field: 0.5})(src, tgt_in), tiny_model()(src, tgt_in))


def test_embeddings_have_a_dropout_of_their_own_where_one_is_set() -> None:
    src, tgt_in = sources(9, 9), targets(2, 8)
    for dropout, own, least, most in (
        (0.5, None, 0.3, 0.7),
        (0.5, 0.0, 0, 0),
        (0.0, 0.5, 0.3, 0.7),
    ):
        model = tiny_model(dropout=dropout, embedding_dropout=own).train()
        x = inputs_of(model, src, tgt_in)["source"]
        assert least <= (x == 0).double().mean() <= most
    model = tiny_model(dropout=0.0, embedding_dropout=0.5)
    assert all(layer.dropout.p == 0 for layer in [*model.encoder.layers, *model.decoder.layers])


# --------------------------------------------------------------------------------- stochastic depth


def test_branches_are_dropped_more_often_from_layer_to_layer() -> None:
    """Huang et al. 2016, equation 4: p_l = 1 - l/L (1 - p_L) is kept; each stack has its own L."""
    model = tiny_model(stochastic_depth=0.4, n_encoder_layers=4, n_decoder_layers=2)
    for stack, rates in ((model.encoder, [0.1, 0.2, 0.3, 0.4]), (model.decoder, [0.2, 0.4])):
        assert [layer.branch_dropout.p for layer in stack.layers] == pytest.approx(rates)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_each_sentence_loses_each_branch_for_itself(norm: Any) -> None:
    model = tiny_model(norm=norm, n_encoder_layers=1, stochastic_depth=0.5).train()
    layer: EncoderLayer = model.encoder.layers[0]
    x = torch.randn(1, 5, D_MODEL, dtype=torch.float64).expand(64, -1, -1)
    mask = padding_attn_mask(torch.zeros(64, 5, dtype=torch.bool))
    places = Places(torch.arange(5), torch.arange(5), real_keys=mask)
    position = model.scheme.attention("encoder", 0)
    out = layer(x, scheme=model.scheme, places=places, tap=None)

    def attend(y: Tensor) -> Tensor:
        return layer.self_attention(y, position=position, places=places)

    seen = set()
    for kept in itertools.product((0.0, 2.0), repeat=2):  # a kept branch counts 1 / (1 - 0.5)
        y, branches = x, ((layer.norm1, attend), (layer.norm2, layer.feed_forward))
        for factor, (norm_of, branch) in zip(kept, branches):
            if norm == "pre":
                y = y + factor * branch(norm_of(y))
            else:
                y = norm_of(y + factor * branch(y))
        rows = ((out - y).abs().amax(dim=(1, 2)) < 1e-10).nonzero().flatten().tolist()
        assert len(rows) > 4
        seen |= set(rows)
    assert seen == set(range(64))


def test_a_dropped_branch_keeps_its_parameters_in_the_graph() -> None:
    """DistributedDataParallel waits for every gradient: a branch not taken has one of zeros."""
    model = tiny_model(stochastic_depth=0.999999, n_encoder_layers=1, n_decoder_layers=1).train()
    src, tgt_in = sources(5, 4), targets(2, 4)
    model(src, tgt_in).square().sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())
    assert not gradients["encoder.layers.0.feed_forward.linear1.weight"].any()
    assert gradients["tgt_embedding.weight"].any()


def test_the_other_backend_refuses_stochastic_depth_and_has_the_rest() -> None:
    words = r'model\.stochastic_depth = 0\.1: model\.backend = "torch" has only 0'
    with pytest.raises(ConfigError, match=words):
        tiny_config(backend="torch", stochastic_depth=0.1)
    model = tiny_model(backend="torch", word_dropout=0.4, embedding_dropout=0.2).train()
    src, tgt_in = sources(6, 3), targets(2, 4)
    assert (model(src, tgt_in) - model(src, tgt_in)).abs().max() > 1e-3
