"""The position schemes against their formulas: sinusoids, rotations, trained tables, and what a
model saves of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from tiny_models import (
    D_FF,
    D_MODEL,
    N_HEADS,
    N_LAYERS,
    POSITIONS,
    VOCAB,
    model_with,
    sources,
    targets,
    tiny_config,
    tiny_model,
)
from torch import Tensor, nn

from configs.schema import Learnable, Rope, Sinusoidal
from models.build import build_scheme
from models.positional_encodings.base import (
    AttentionPosition,
    AttentionScheme,
    InputPosition,
    Places,
    PositionScheme,
    Role,
)
from models.positional_encodings.learnable import LearnableScheme
from models.positional_encodings.rope import (
    Rotary,
    inverse_frequencies,
    rotate_complex,
    rotate_real,
)
from models.positional_encodings.sinusoidal import SinusoidalInput, sinusoid_table
from models.transformer import TranslationTransformer
from utils.errors import UserError

DOUBLE = torch.float64


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------------------------------- sinusoids


@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_sinusoids_follow_the_papers_formula(base: float) -> None:
    positions, d = torch.tensor([0, 1, 2, 17, 3]), 12
    expected = torch.zeros(5, d, dtype=DOUBLE)
    for row, t in enumerate(positions.tolist()):
        for i in range(d // 2):
            expected[row, 2 * i] = math.sin(t / base ** (2 * i / d))
            expected[row, 2 * i + 1] = math.cos(t / base ** (2 * i / d))
    close(sinusoid_table(positions, d, base=base, dtype=DOUBLE), expected)


def test_a_shift_of_a_sinusoid_is_a_rotation_with_the_right_sign() -> None:
    d, k = 64, 7
    table = sinusoid_table(torch.arange(40), d, dtype=DOUBLE)
    rotation = torch.zeros(d, d, dtype=DOUBLE)
    for i in range(d // 2):
        angle = k * 10000 ** (-2 * i / d)
        # sin(a+b) = sin a cos b + cos a sin b and cos(a+b) = cos a cos b - sin a sin b, on the pair
        # (sin, cos)
        rotation[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor(
            [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]], dtype=DOUBLE
        )
    close(table[:-k] @ rotation.T, table[k:])
    assert (table[:-k] @ rotation - table[k:]).abs().max() > 0.5


@pytest.mark.parametrize(("d", "first_rise"), [(512, 44), (64, 6)])
def test_the_products_of_sinusoids_depend_on_distance_and_are_not_monotone(
    d: int, first_rise: int
) -> None:
    table = sinusoid_table(torch.arange(60), d, dtype=DOUBLE)
    gram = table @ table.T
    omega = torch.tensor([10000 ** (-2 * i / d) for i in range(d // 2)], dtype=DOUBLE)
    by_distance = torch.stack([torch.cos(k * omega).sum() for k in range(60)])
    distance = (torch.arange(60)[:, None] - torch.arange(60)).abs()
    close(gram, by_distance[distance], 1e-11)
    close(gram.diagonal(), torch.full((60,), d / 2, dtype=DOUBLE))
    assert next(k for k in range(1, 60) if by_distance[k] > by_distance[k - 1]) == first_rise


def test_bfloat16_input_does_not_blur_sinusoids() -> None:
    positions = torch.tensor([2047, 2048])
    out = SinusoidalInput(base=10000.0)(torch.zeros(1, 2, 64, dtype=torch.bfloat16), positions)
    assert out.dtype == torch.bfloat16
    assert not torch.equal(out[0, 0], out[0, 1])
    exact = sinusoid_table(positions, 64, dtype=DOUBLE)
    assert (
        out[0].double() - exact
    ).abs().max() < 5e-3  # one rounding to bfloat16, and float32 angles


def test_sinusoids_exist_far_past_training() -> None:
    out = sinusoid_table(torch.tensor([1_000_000]), 8, dtype=DOUBLE)
    close(out[0, :2], torch.tensor([math.sin(1e6), math.cos(1e6)], dtype=DOUBLE), 1e-9)
    src = sources(1500)
    assert torch.isfinite(tiny_model(Sinusoidal())(src, targets(1, 3))).all()


def test_sinusoids_are_added_once_to_both_sides() -> None:
    x = torch.randn(2, 3, 8, dtype=DOUBLE)
    positions = torch.tensor([4, 5, 6])
    close(
        SinusoidalInput(base=10000.0)(x, positions),
        x + sinusoid_table(torch.arange(7), 8, dtype=DOUBLE)[None, 4:],
    )


@pytest.mark.parametrize(
    "make",
    [lambda: sinusoid_table(torch.arange(3), 7, dtype=DOUBLE), lambda: inverse_frequencies(7)],
)
def test_odd_sizes_are_refused(make) -> None:
    with pytest.raises(ValueError, match="7 must be even"):
        make()


# ----------------------------------------------------------------------------------------- rotation


def rotation_matrix(m: int, dim: int, frequencies: list[float]) -> Tensor:
    """The block-diagonal R of RoFormer, equation 15, written out."""
    matrix = torch.zeros(dim, dim, dtype=DOUBLE)
    for i, theta in enumerate(frequencies):
        c, s = math.cos(m * theta), math.sin(m * theta)
        matrix[2 * i, 2 * i], matrix[2 * i, 2 * i + 1] = c, -s
        matrix[2 * i + 1, 2 * i], matrix[2 * i + 1, 2 * i + 1] = s, c
    return matrix


def rotary(form: str = "real", rope_dim: str = "head", base: float = 10000.0) -> Rotary:
    return Rotary(base=base, form=form, rope_dim=rope_dim)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["real", "complex"])
@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_rope_turns_every_head_by_the_same_matrix(form: str, base: float) -> None:
    torch.manual_seed(0)
    heads, dim = 3, 8
    x, positions = torch.randn(2, heads, 4, dim, dtype=DOUBLE), torch.tensor([0, 3, 11, 5])
    out = rotary(form, base=base).rotate(x, positions, "query")
    close(rotary(form, base=base).rotate(x, positions, "key"), out, 0.0)
    frequencies = [base ** (-2 * i / dim) for i in range(dim // 2)]
    for t, m in enumerate(positions.tolist()):
        close(out[:, :, t], x[:, :, t] @ rotation_matrix(m, dim, frequencies).T)


@pytest.mark.parametrize("form", ["real", "complex"])
def test_rope_dim_model_equals_a_rotation_before_the_head_split(form: str) -> None:
    torch.manual_seed(0)
    heads, dim, positions = 4, 6, torch.tensor([0, 1, 9])
    whole = torch.randn(2, 3, heads * dim, dtype=DOUBLE)

    def split(x: Tensor) -> Tensor:
        return x.view(2, 3, heads, dim).transpose(1, 2)

    frequencies = [10000 ** (-2 * i / (heads * dim)) for i in range(heads * dim // 2)]
    turned = torch.stack(
        [
            whole[:, t] @ rotation_matrix(m, heads * dim, frequencies).T
            for t, m in enumerate(positions.tolist())
        ],
        dim=1,
    )
    out = rotary(form, "model").rotate(split(whole), positions, "query")
    close(out, split(turned))
    assert (out - rotary(form).rotate(split(whole), positions, "query")).abs().max() > 0.1


@pytest.mark.parametrize("rope_dim", ["head", "model"])
def test_rope_scores_depend_on_the_distance_alone(rope_dim: str) -> None:
    torch.manual_seed(0)
    scheme, q, k = rotary(rope_dim=rope_dim), *torch.randn(2, 1, 2, 5, 8, dtype=DOUBLE)
    q_positions, k_positions = torch.arange(5), torch.arange(2, 7)

    def scores(shift: int) -> Tensor:
        return (
            scheme.rotate(q, q_positions + shift, "query")
            @ scheme.rotate(k, k_positions + shift, "key").mT
        )

    close(scores(0), scores(37))
    assert (scores(0) - q @ k.mT).abs().max() > 0.1
    same_q, same_k = q[:, :, :1].expand_as(q), k[:, :, :1].expand_as(k)
    constant = (
        scheme.rotate(same_q, q_positions, "query") @ scheme.rotate(same_k, q_positions, "key").mT
    )
    for offset in range(-4, 5):
        diagonal = constant.diagonal(offset, -2, -1)
        close(diagonal, diagonal[..., :1].expand_as(diagonal))
    # ... and on its sign: it is not a function of |m - n|
    assert (constant - constant.mT).abs().max() > 0.1


def test_rope_keeps_norms_leaves_position_zero_and_composes() -> None:
    torch.manual_seed(0)
    scheme, x = rotary(), torch.randn(1, 2, 1, 8, dtype=DOUBLE)

    def turn(y: Tensor, m: int) -> Tensor:
        return scheme.rotate(y, torch.tensor([m]), "query")

    close(turn(x, 0), x, 0.0)
    close(turn(x, 13).norm(dim=-1), x.norm(dim=-1))
    close(turn(turn(x, 5), 8), turn(x, 13))
    assert (turn(x, 13) - x).abs().max() > 0.1


@pytest.mark.parametrize("per_head", [False, True])
def test_complex_and_real_rotation_agree_with_gradients(per_head: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 8, dtype=DOUBLE, requires_grad=True)
    angles = torch.randn(*((3, 5, 4) if per_head else (5, 4)), dtype=DOUBLE, requires_grad=True)
    weight = torch.randn(2, 3, 5, 8, dtype=DOUBLE)
    results = [rotate(x, angles) for rotate in (rotate_real, rotate_complex)]
    close(*results)
    gradients = [torch.autograd.grad((out * weight).sum(), (x, angles)) for out in results]
    for real, complex_ in zip(*gradients):
        close(real, complex_)
        assert real.abs().max() > 0.1


def test_rope_equals_the_half_layout_of_llama_up_to_a_permutation_of_rows() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    torch.manual_seed(0)
    heads, dim, length = 2, 8, 9
    d_model = heads * dim
    x = torch.randn(2, length, d_model, dtype=DOUBLE)
    w_q, w_k = torch.randn(2, d_model, d_model, dtype=DOUBLE)
    # row j < Dh/2 of a head in the half layout is row 2j of the interleaved one, row Dh/2 + j is
    # row 2j + 1
    order = torch.cat(
        [
            torch.cat((torch.arange(0, dim, 2), torch.arange(1, dim, 2))) + h * dim
            for h in range(heads)
        ]
    )

    def split(y: Tensor) -> Tensor:
        return y.view(2, length, heads, dim).transpose(1, 2)

    config = LlamaConfig(
        hidden_size=d_model, num_attention_heads=heads, head_dim=dim, rope_theta=10000.0
    )
    inv_freq = LlamaRotaryEmbedding(config).inv_freq
    torch.testing.assert_close(inv_freq, inverse_frequencies(dim))
    angles = torch.arange(length)[:, None].double() * inverse_frequencies(dim, dtype=DOUBLE)
    cos, sin = (torch.cat((f(angles), f(angles)), dim=-1)[None] for f in (torch.cos, torch.sin))
    q, k = apply_rotary_pos_emb(split(x @ w_q[order].T), split(x @ w_k[order].T), cos, sin)
    ours = rotary()
    positions = torch.arange(length)
    our_q, our_k = (
        ours.rotate(split(x @ w_q.T), positions, "query"),
        ours.rotate(split(x @ w_k.T), positions, "key"),
    )
    close(our_q @ our_k.mT, q @ k.mT, 1e-11)


@pytest.mark.parametrize("form", ["real", "complex"])
def test_rope_angles_are_exact_for_bfloat16_input(form: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 1, 1, 8, dtype=torch.bfloat16).expand(1, 1, 2, 8)
    positions = torch.tensor([2047, 2048])
    out = rotary(form).rotate(x, positions, "query")
    assert out.dtype == torch.bfloat16
    exact = rotary(form).rotate(x.double(), positions, "query")
    torch.testing.assert_close(out.double(), exact, rtol=2**-8, atol=2e-3)
    assert not torch.equal(out[:, :, 0], out[:, :, 1])


def test_rope_stands_in_cross_attention_only_where_it_is_asked_for() -> None:
    for cross in (False, True):
        model = tiny_model(Rope(cross=cross))
        memory = model.encode(sources(6))
        permuted = replace(memory, states=memory.states[:, [3, 0, 5, 1, 4, 2]])
        change = (
            (model.decode(targets(1, 4), memory) - model.decode(targets(1, 4), permuted))
            .abs()
            .max()
        )
        assert change > 1e-3 if cross else change < 1e-12


def test_rope_in_cross_attention_gives_q_and_k_their_own_positions() -> None:
    torch.manual_seed(0)
    model = tiny_model(Rope(cross=True))
    cross = model.decoder.layers[0].cross_attention
    x, memory = torch.randn(1, 3, D_MODEL, dtype=DOUBLE), torch.randn(1, 5, D_MODEL, dtype=DOUBLE)
    q_positions, k_positions = torch.tensor([4, 5, 6]), torch.arange(5)
    position = model.scheme.attention("cross", 0)
    k, v = cross.project_memory(memory, position=position, k_positions=k_positions)
    out = cross(x, k, v, position=position, places=Places(q_positions, k_positions))

    dim = D_MODEL // N_HEADS
    frequencies = [10000 ** (-2 * i / dim) for i in range(dim // 2)]
    q = cross.q_proj(x).view(3, N_HEADS, dim)
    k_plain, v_plain = (
        part.view(5, N_HEADS, dim) for part in cross.kv_proj(memory)[0].split(D_MODEL, dim=-1)
    )
    heads = []
    for h in range(N_HEADS):
        logits = torch.zeros(3, 5, dtype=DOUBLE)
        for i, m in enumerate(q_positions.tolist()):
            for j, n in enumerate(k_positions.tolist()):
                r_m, r_n = (
                    rotation_matrix(m, dim, frequencies),
                    rotation_matrix(n, dim, frequencies),
                )
                logits[i, j] = (r_m @ q[i, h]) @ (r_n @ k_plain[j, h]) / math.sqrt(dim)
        heads.append(logits.softmax(-1) @ v_plain[:, h])
    close(out[0], cross.out_proj(torch.cat(heads, dim=-1)))


def check_cross_attention_has_no_positions(model: TranslationTransformer) -> None:
    """Each layer's is softmax(q k^T / sqrt(Dh)) v at any places, and a decoder takes the memory in
    any order.
    """
    torch.manual_seed(1)
    x, memory = torch.randn(1, 3, D_MODEL, dtype=DOUBLE), torch.randn(1, 5, D_MODEL, dtype=DOUBLE)
    places = Places(torch.tensor([4, 5, 6]), torch.arange(5))
    for number, layer in enumerate(model.decoder.layers):
        cross, position = layer.cross_attention, model.scheme.attention("cross", number)
        keys, values = cross.project_memory(
            memory, position=position, k_positions=places.k_positions
        )
        out = cross(x, keys, values, position=position, places=places)
        q, k, v = (
            part.unflatten(-1, (N_HEADS, -1)).transpose(1, 2)
            for part in (cross.q_proj(x), *cross.kv_proj(memory).split(D_MODEL, dim=-1))
        )
        mixed = (q @ k.mT / math.sqrt(D_MODEL // N_HEADS)).softmax(-1) @ v
        close(out, cross.out_proj(mixed.transpose(1, 2).flatten(-2)))
    encoded = model.encode(sources(6))
    permuted = replace(encoded, states=encoded.states[:, [3, 0, 5, 1, 4, 2]])
    close(model.decode(targets(1, 4), permuted), model.decode(targets(1, 4), encoded))


@pytest.mark.parametrize("name", [name for name in POSITIONS if name != "rope_cross"])
def test_cross_attention_has_no_positions_in_any_scheme(name: str) -> None:
    check_cross_attention_has_no_positions(model_with(name))


class QueriesAlone(Rotary):
    """Rotated queries over keys as they are (one attention for both, as in T5Gemma 2, unless it is
    told apart).
    """

    def rotate(self, x: Tensor, positions: Tensor, role: Role) -> Tensor:
        return super().rotate(x, positions, role) if role == "query" else x


def with_cross(name: str, *modules: AttentionPosition) -> TranslationTransformer:
    """The model of a scheme whose decoder's modules, or the given ones, stand in cross-attention
    too.
    """
    model = model_with(name)
    model.scheme.cross = nn.ModuleList(modules or model.scheme.decoder)
    return model


CROSS_MISTAKES: dict[str, Callable[[], TranslationTransformer]] = {
    **{
        f"{name} in cross-attention": partial(with_cross, name)
        for name in POSITIONS
        if isinstance(build_scheme(tiny_config(POSITIONS[name])), AttentionScheme)
        and name != "rope_cross"
    },
    "rope asked for": lambda: model_with("rope_cross"),
    "rope on queries alone": lambda: with_cross(
        "rope", QueriesAlone(base=10000.0, form="real", rope_dim="head")
    ),
}


@pytest.mark.parametrize("mistake", CROSS_MISTAKES)
def test_a_position_in_cross_attention_is_caught(mistake: str) -> None:
    model = CROSS_MISTAKES[mistake]()
    with pytest.raises(AssertionError, match="not close"):
        check_cross_attention_has_no_positions(model)


def test_a_rope_scheme_hands_out_rotation_by_kind() -> None:
    x = torch.randn(1, 1, 2, 4, dtype=DOUBLE)
    scheme = build_scheme(tiny_config(Rope()))
    for kind, turns in (("encoder", True), ("decoder", True), ("cross", False)):
        out = scheme.attention(kind, 0).rotate(x, torch.tensor([1, 2]), "key")  # type: ignore[arg-type]
        assert torch.equal(out, x) != turns


# ----------------------------------------------------------------------------------- trained tables


def test_learnable_rows_are_looked_up_in_a_table_for_each_side() -> None:
    torch.manual_seed(0)
    scheme = LearnableScheme(max_positions=6, d_model=4)
    x, positions = torch.randn(2, 3, 4), torch.tensor([5, 0, 2])
    source, target = scheme.input("source"), scheme.input("target")
    for table, module in ((scheme.source.table, source), (scheme.target.table, target)):
        close(module(x, positions), x + torch.stack([table.weight[i] for i in (5, 0, 2)]))
    assert not torch.equal(source(x, positions), target(x, positions))
    assert source.max_positions == target.max_positions == 6


def test_learnable_source_and_target_tables_are_separate_in_the_model() -> None:
    model = model_with("learnable")
    src, tgt_in = sources(5), targets(1, 4)
    memory, logits = model.encode(src).states, model(src, tgt_in)
    with torch.no_grad():
        model.scheme.target.table.weight[:4] += torch.randn(4, D_MODEL)
    close(model.encode(src).states, memory, 0.0)
    assert (model(src, tgt_in) - logits).abs().max() > 1e-3


def test_past_a_table_the_error_names_the_side_the_length_and_the_table() -> None:
    model = tiny_model(Learnable(max_positions=5))
    model(sources(5), targets(1, 5))
    with pytest.raises(UserError, match=r"source of 6 tokens.*table of 5.*larger max_positions"):
        model(sources(6), targets(1, 5))
    with pytest.raises(UserError, match=r"target of 6 tokens.*table of 5.*larger max_positions"):
        model(sources(5), targets(1, 6))
    state = model.init_state(model.encode(sources(5)), beam_size=2, max_len=8)
    for _ in range(5):
        model.decode_step(torch.full((1, 2), 3), state)
    with pytest.raises(UserError, match=r"target of 6 tokens.*table of 5"):
        model.decode_step(torch.full((1, 2), 3), state)


# -------------------------------------------------------------------------- what a model is made of


UNTRAINED = {
    "none",
    "sinusoidal",
    "sinusoidal_half",
    "sinusoidal_t2t",
    "xpos",
    "sandwich",
    "randomized_rope",
}
UNTRAINED |= {name for name in POSITIONS if name.startswith(("rope", "alibi"))}


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_parameter_counts_follow_the_formula(name: str, norm: str) -> None:
    model = model_with(name, norm=norm)
    d, n = D_MODEL, N_LAYERS
    attention, feed_forward, layer_norm = 4 * d * d + 4 * d, 2 * d * D_FF + D_FF + d, 2 * d
    layers = n * (attention + feed_forward + 2 * layer_norm) + n * (
        2 * attention + feed_forward + 3 * layer_norm
    )
    final = 2 * layer_norm if norm == "pre" else 0
    in_scheme = sum(p.numel() for p in model.scheme.parameters())
    assert sum(p.numel() for p in model.parameters()) == 3 * VOCAB * d + layers + final + in_scheme
    if name == "learnable":
        assert in_scheme == 2 * 24 * d
    else:
        assert (in_scheme == 0) == (name in UNTRAINED)


@pytest.mark.parametrize("name", POSITIONS)
def test_a_state_dict_holds_parameters_alone(name: str) -> None:
    model = model_with(name)
    assert set(model.state_dict()) == {key for key, _ in model.named_parameters()}
    in_scheme = {key for key in model.state_dict() if key.startswith("scheme.")}
    if name == "learnable":
        assert in_scheme == {"scheme.source.table.weight", "scheme.target.table.weight"}
    else:
        assert bool(in_scheme) == (name not in UNTRAINED)


def test_the_contracts_default_to_no_position() -> None:
    scheme, x, positions = PositionScheme(), torch.randn(1, 1, 2, 4), torch.tensor([3, 4])
    assert torch.equal(scheme.input("source")(x[0], positions), x[0])
    attention = scheme.attention("cross", 1)
    places = Places(positions, positions)
    assert torch.equal(attention.rotate(x, positions, "key"), x)
    assert attention.bias(places) is None
    assert attention.token_state(x[0]) is None
    assert attention.logit_term(x, x, places, None) is None
    assert attention.logit_scale(16) == 0.25
    assert attention.needs_weights is False
    assert InputPosition.max_positions is None
    with pytest.raises(TypeError, match="AttentionPosition has no value term"):
        AttentionPosition().value_term(x, places)
