"""Which scheme becomes which: whole models with the same weights, equal to 1e-12 in float64."""

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import catches, normal, theta_of
from tiny_models import (
    D_MODEL,
    N_HEADS,
    POSITIONS,
    close,
    configured,
    sources,
    targets,
    tiny_config,
    tiny_model,
)

from configs.positions import (
    Alibi,
    DynamicNtkScaling,
    Fope,
    Fox,
    Interleaved,
    Kerple,
    LinearScaling,
    NtkScaling,
    Pope,
    Randomized,
    Repo,
    Rope,
    SelectiveRope,
    Tupe,
    YarnScaling,
)
from models.attention.multi_head import SelfAttention
from models.positional_encodings.alibi import alibi_bias
from models.positional_encodings.base import Places
from models.positional_encodings.forgetting import fox_bias
from models.positional_encodings.kerple import kerple_power_bias
from models.positional_encodings.rope import rotate
from models.transformer import TranslationTransformer


def same(model: TranslationTransformer, other: TranslationTransformer) -> None:
    batch = sources(7, 4, 6), targets(3, 8)
    close(model(*batch), other(*batch), 1e-12)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_p_rope_with_all_pairs_is_rope_and_with_none_is_no_position(layout) -> None:
    rope, none = tiny_model(Rope(layout=layout)), tiny_model()
    same(tiny_model(Rope(share=1.0, layout=layout)), rope)
    same(tiny_model(Rope(share=0.0, layout=layout)), none)
    for share in (0.25, 0.75):  # of four pairs
        for whole in (rope, none):
            catches(same, tiny_model(Rope(share=share, layout=layout)), whole)


def test_fope_without_other_waves_is_p_rope() -> None:
    half = tiny_model(Rope(share=0.5))  # of the pairs: 1 and 0.1 are above 2 pi / 128
    same(tiny_model(Fope(sigma=0.0)), half)
    catches(same, tiny_model(Fope()), half)


@pytest.mark.parametrize("share", [0.75, 1.0])
def test_learned_frequencies_that_are_those_of_the_paper_are_rope(share: float) -> None:
    learned, rope = (
        tiny_model(Rope(learn_frequencies=learn, share=share)) for learn in (True, False)
    )
    catches(same, learned, rope)
    with torch.no_grad():
        for log_theta in learned.scheme.parameters():
            log_theta.copy_(theta_of(D_MODEL // N_HEADS).log())
    same(learned, rope)


def test_selective_rope_by_constant_steps_is_rope_at_their_speed() -> None:
    selective, rope = tiny_model(SelectiveRope(rank=4)), tiny_model(Rope())
    selective.load_state_dict(rope.state_dict(), strict=False)
    catches(same, selective, rope)
    with torch.no_grad():
        for name, weight in selective.scheme.named_parameters():
            if "up" in name:
                weight.fill_(name.endswith("bias"))
    same(selective, rope)
    # Tokens that are all the same, whatever the map.
    layer, x = configured(SelectiveRope(rank=4)).double(), normal(1, 1, D_MODEL).expand(1, 6, -1)
    qkv = normal(1, 6, 3, N_HEADS, 8)
    places = Places(torch.arange(6), torch.arange(6))
    q, k, _ = layer.rotate_heads(qkv, places, layer.token_state(x))
    speeds = layer.token_state(x[:, :1])[0] * theta_of(8)  # [H,1,Dh/2]
    turned = [rotate(x.transpose(1, 2), torch.arange(6), speeds) for x in qkv.unbind(2)]
    close(q @ k.mT, turned[0] @ turned[1].mT, 1e-12)


def test_repo_that_gives_each_token_its_own_position_is_rope() -> None:
    """Tokens that know where they stand: t in their first number, and 1 in their second."""
    torch.manual_seed(0)
    attention = SelfAttention(tiny_config(), kind="encoder", layer=0).double()
    at, x = torch.arange(6), normal(2, 6, D_MODEL)
    x[..., 0], x[..., 1] = at, 1.0
    repo, rope = (configured(p).double() for p in (Repo(rope_layers=0), Rope()))
    outs = [attention(x, position=p, places=Places(at, at)) for p in (repo, rope)]
    catches(close, *outs)
    with torch.no_grad():
        for weight in repo.parameters():
            weight.zero_()
        repo.gate.weight[0, 1] = repo.content.weight[0, 0] = 1.0
        repo.place.weight[:, 0] = 1 + math.exp(-1)  # silu(1) = 1 / (1 + 1/e)
    close(repo.token_state(x)[..., 0], at.expand(2, N_HEADS, 6).double(), 1e-14)
    close(attention(x, position=repo, places=Places(at, at)), outs[1], 1e-12)


def test_pope_without_phases_is_rope_of_magnitudes_on_one_axis_of_each_plane() -> None:
    q, k, at = normal(1, N_HEADS, 5, 8), normal(1, N_HEADS, 5, 8, seed=1), torch.arange(5)
    pope = configured(Pope()).double()
    polar_q, polar_k = (pope.rotate(x, at, role) for x, role in ((q, "query"), (k, "key")))
    points = (F.pad(F.softplus(x)[..., None], (0, 1)).flatten(-2) for x in (q, k))
    rope_q, rope_k = (rotate(x, at, theta_of(16)) for x in points)
    close(polar_q @ polar_k.mT, rope_q @ rope_k.mT, 1e-12)


@pytest.mark.parametrize(
    "name", ["none", "rope", "alibi", "t5", "kerple_log", "shaw", "xpos", "fox"]
)
@pytest.mark.parametrize("every", [2, 3])
def test_a_scheme_interleaved_with_itself_is_the_scheme(name: str, every: int) -> None:
    scheme: Any = POSITIONS[name]
    layers = {"n_encoder_layers": 3, "n_decoder_layers": 3}
    plain = tiny_model(scheme, **layers)
    both = tiny_model(Interleaved(others=scheme, nth=scheme, every=every), **layers)
    weights = plain.state_dict()
    both.load_state_dict({k: v for k, v in weights.items() if "scheme" not in k}, strict=False)
    for kind, layer in itertools.product(("encoder", "decoder"), range(3)):
        own = [each.scheme.attention(kind, layer) for each in (both, plain)]
        own[0].load_state_dict(own[1].state_dict())
    same(both, plain)


def test_rotations_of_a_line_by_any_matrix_are_rope_with_frequencies_of_its_own() -> None:
    """LieRE and ComRoPE: exp(tA) of a skew-symmetric A turns planes, which are its eigenvectors."""
    q, k, noise = normal(1, 1, 5, 8), normal(1, 1, 5, 8, seed=1), normal(8, 8, seed=2)
    skew, at = noise - noise.T, torch.arange(5)
    frequencies, vectors = torch.linalg.eigh(1j * skew)
    theta, planes = frequencies[4:], 2**0.5 * vectors[:, 4:]
    basis = torch.stack((planes.real, planes.imag), dim=-1).flatten(1)  # goes into W_q and W_k
    lie_q, lie_k = (
        (torch.matrix_exp(at[:, None, None] * skew) @ x[..., None])[..., 0] for x in (q, k)
    )
    rope_q, rope_k = (rotate(x @ basis, at, theta) for x in (q, k))
    close(rope_q @ rope_k.mT, lie_q @ lie_k.mT, 1e-12)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LinearScaling(factor=1), LinearScaling(factor=2)),
        (NtkScaling(factor=1), NtkScaling(factor=2)),
        (YarnScaling(factor=1, trained_length=4), YarnScaling(factor=2, trained_length=4)),
        (DynamicNtkScaling(trained_length=8), DynamicNtkScaling(trained_length=7)),
    ],
)
def test_rope_scaled_by_one_or_within_its_length_is_rope(one: Any, other: Any) -> None:
    rope = tiny_model(Rope())
    same(tiny_model(Rope(scaling=one)), rope)
    catches(same, tiny_model(Rope(scaling=other)), rope)


def test_randomized_positions_of_a_range_without_gaps_are_the_scheme() -> None:
    rope = tiny_model(Rope())
    same(tiny_model(Randomized(scheme=Rope(), spread=8, max_positions=8)), rope)
    catches(same, tiny_model(Randomized(scheme=Rope(), spread=9, max_positions=8)), rope)


def test_kerples_power_form_is_alibi_where_the_power_is_one() -> None:
    alibi, kerple = tiny_model(Alibi()), tiny_model(Kerple(form="power"))
    slopes = torch.tensor([0.5, 2**-6])  # KERPLE's begin at 0.01
    for kind in ("encoder", "decoder"):
        alibi.scheme.attention(kind, 0).exponents.copy_(slopes.log2())
        layer = kerple.scheme.attention(kind, 0)
        with torch.no_grad():
            layer.a.copy_(slopes)
            layer.p.fill_(1.0)
    weights = {k: v for k, v in alibi.state_dict().items() if "scheme" not in k}
    kerple.load_state_dict(weights, strict=False)
    same(kerple, alibi)
    distance = torch.arange(9)[:, None] - torch.arange(9)
    bent = kerple_power_bias(distance, slopes.double(), torch.full_like(slopes, 0.9).double())
    catches(close, bent, alibi_bias(distance, slopes.double(), causal=False), 1e-12)


def test_cables_bias_is_foxs() -> None:
    """Veisi et al. 2025: every token between takes softplus(z) off; FoX with the gate of -z."""
    z = normal(2, N_HEADS, 6)
    fox = fox_bias(F.logsigmoid(-z), 6)
    for i, j in itertools.product(range(6), range(6)):
        taken = torch.log(1 + z[..., j + 1 : i + 1].exp()).sum(-1)  # softplus
        close(fox[..., i, j], -taken, 1e-12)


def test_additive_grape_has_alibi_and_fox_in_it() -> None:
    """Zhang et al. 2025: q and k get two coordinates more, which a nilpotent generator couples."""
    d, t = 4, 6
    q, k, one, zero = normal(t, d), normal(t, d, seed=1), torch.ones(t, 1), torch.zeros(t, 1)
    q, k = torch.cat([q, one, zero], -1), torch.cat([k, zero, one], -1)
    generator = torch.zeros(d + 2, d + 2, dtype=q.dtype)
    generator[d, d + 1] = 1.0
    assert not (generator @ generator).any()

    def logits(log_gates: Any) -> Any:
        """The steps of the tokens between, as a product of matrices: FoX where they differ."""
        found = torch.zeros(t, t, dtype=q.dtype)
        for i, j in itertools.product(range(t), range(t)):
            between = torch.eye(d + 2, dtype=q.dtype)
            for step in log_gates[j + 1 : i + 1]:
                between = between @ torch.matrix_exp(step * generator)
            found[i, j] = q[i] @ between @ k[j]
        return found

    plain = q[:, :d] @ k[:, :d].T
    gates = F.logsigmoid(normal(t, seed=2))
    close(logits(gates), plain + fox_bias(gates[None, None], t)[0, 0], 1e-12)
    slope = torch.tensor([0.25], dtype=q.dtype)
    causal = torch.arange(t)[:, None] - torch.arange(t)
    alibi = alibi_bias(causal.clamp(min=0), slope, causal=True)[0]
    close(logits(-slope.expand(t)), plain + alibi, 1e-12)


def test_fox_with_gates_that_see_nothing_is_alibi_in_the_decoder() -> None:
    fox, alibi = tiny_model(Fox()), tiny_model(Alibi())
    slopes = alibi.scheme.attention("decoder", 0).exponents.exp2().double()
    for layer in range(2):
        gate = fox.scheme.attention("decoder", layer).gate
        with torch.no_grad():
            gate.weight.zero_()
            gate.bias.copy_(-torch.expm1(slopes).log())  # logit of e^-slope
    weights = {k: v for k, v in alibi.state_dict().items() if "scheme" not in k}
    fox.load_state_dict(weights, strict=False)
    memory = alibi.encode(sources(7, 4, 6))
    close(fox.decode(targets(3, 8), memory), alibi.decode(targets(3, 8), memory), 1e-12)


def test_tupe_that_compares_no_positions_is_plain_attention_at_a_lower_scale() -> None:
    tupe, none = tiny_model(Tupe(max_positions=9)), tiny_model()
    weights = {k: v for k, v in none.state_dict().items() if "scheme" not in k}
    tupe.load_state_dict(weights, strict=False)
    with torch.no_grad():
        for layer in (*tupe.encoder.layers, *tupe.decoder.layers):
            for parameter in layer.self_attention.qkv_proj.parameters():
                parameter[:D_MODEL] *= 2**0.5  # W_q and its bias
    catches(same, tupe, none)
    for kind in ("encoder", "decoder"):
        torch.nn.init.zeros_(tupe.scheme.attention(kind, 0).u_q.weight)
    same(tupe, none)
