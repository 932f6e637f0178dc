"""DeepNorm and weights by depth against their formulas."""

import math
from typing import Any

import pytest
import torch
from tiny_models import D_MODEL, tiny_config, tiny_model, vocabulary
from torch import Tensor

from models.build import build_model
from models.masks import padding_attn_mask
from models.positional_encodings.base import Places
from models.transformer_backend import deepnorm_constants
from utils.errors import ConfigError


def test_deepnorms_constants_are_those_of_the_papers_figure_2() -> None:
    encoder, decoder = deepnorm_constants(6, 6)
    # 6^5 = 7776 and its 16th root, 18^(1/4), 72^(1/4)
    assert encoder == pytest.approx((0.81 * 1.750541, 0.87 / 1.750541), rel=1e-6)
    assert decoder == pytest.approx((2.059767, 0.3432945), rel=1e-6)
    (alpha_e, beta_e), (alpha_d, beta_d) = deepnorm_constants(18, 3)
    assert math.log(alpha_e / 0.81) == pytest.approx((4 * math.log(18) + math.log(3)) / 16)
    assert alpha_e * beta_e == pytest.approx(0.81 * 0.87)
    assert (alpha_d**4, beta_d**-4) == (pytest.approx(9), pytest.approx(36))


def test_a_deepnorm_layer_is_equation_1_written_out() -> None:
    """LN(alpha x + branch(x)), in both stacks with the alpha of its own depths."""
    model = tiny_model(norm="deepnorm", n_encoder_layers=3, n_decoder_layers=1)
    (alpha, _), (alpha_decoder, _) = deepnorm_constants(3, 1)
    layer: Any = model.encoder.layers[1]
    torch.manual_seed(0)
    x = torch.randn(2, 5, D_MODEL, dtype=torch.float64)
    mask = padding_attn_mask(torch.zeros(2, 5, dtype=torch.bool))
    places = Places(torch.arange(5), torch.arange(5), real_keys=mask)
    out = layer(x, scheme=model.scheme, places=places, tap=None)

    def norm(y: Tensor, module: Any) -> Tensor:
        variance = y.var(-1, correction=0, keepdim=True) + module.eps
        return (y - y.mean(-1, keepdim=True)) / variance.sqrt() * module.weight + module.bias

    attended = layer.self_attention(x, position=model.scheme.attention("encoder", 1), places=places)
    y = norm(alpha * x + attended, layer.norm1)
    expected = norm(alpha * y + layer.feed_forward(y), layer.norm2)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    assert model.decoder.layers[0].residual_scale == pytest.approx(alpha_decoder)
    assert isinstance(model.encoder.norm, torch.nn.Identity)


def test_deepnorm_begins_with_its_gains() -> None:
    """Xavier's normal: std = gain (2 / (fan_in + fan_out))^0.5, for each projection by itself."""
    torch.manual_seed(0)
    d, d_ff = 128, 256
    shape: Any = {"d_model": d, "d_ff": d_ff, "n_encoder_layers": 2, "gated": True}
    model: Any = build_model(tiny_config(norm="deepnorm", **shape), vocabulary())
    (_, beta_e), (_, beta_d) = deepnorm_constants(2, 2)
    for stack, beta in ((model.encoder, beta_e), (model.decoder, beta_d)):
        layer = stack.layers[1]
        q, k, v = layer.self_attention.qkv_proj.weight.chunk(3)
        plain, scaled = [q, k], [v, layer.self_attention.out_proj.weight]
        scaled += [*layer.feed_forward.linear1.weight.chunk(2), layer.feed_forward.linear2.weight]
        if stack is model.decoder:
            cross = layer.cross_attention
            k, v = cross.kv_proj.weight.chunk(2)
            plain += [cross.q_proj.weight, k]
            scaled += [v, cross.out_proj.weight]
        for weight, gain in [*((w, 1.0) for w in plain), *((w, beta) for w in scaled)]:
            xavier = math.sqrt(2 / sum(weight.shape))
            assert weight.std().item() == pytest.approx(gain * xavier, rel=0.04)
        assert not layer.feed_forward.linear1.bias.any()


def test_weights_by_depth_are_the_plain_ones_over_the_root_of_the_layer() -> None:
    plain, scaled = (
        tiny_model(gain=1.0, n_encoder_layers=4, init=init) for init in ("xavier", "depth_scaled")
    )
    for ours, theirs in ((plain.encoder, scaled.encoder), (plain.decoder, scaled.decoder)):
        for number, layers in enumerate(zip(ours.layers, theirs.layers), start=1):
            for p, q in zip(*(layer.parameters() for layer in layers)):
                torch.testing.assert_close(q, p * number**-0.5 if p.dim() > 1 else p)
    assert torch.equal(plain.output.weight, scaled.output.weight)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            "norm=deepnorm backend=torch",
            r'norm = .deepnorm.: model\.backend = "torch" has only .pre. or .post.',
        ),
        (
            "init=depth_scaled backend=torch",
            r'init = .depth_scaled.: model\.backend = "torch" has only .xavier.',
        ),
        (
            "init=depth_scaled norm=deepnorm",
            r"init = 'depth_scaled': .* has an initialisation of its own",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(changes: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.{message}"):
        tiny_config(**dict(change.split("=") for change in changes.split()))
