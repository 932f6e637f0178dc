"""What the pictures of position schemes show, against formulas and models."""

import contextlib
import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from drawn import assert_legible, curves, images, legend, points, suptitle, titles
from matplotlib.figure import Figure
from tiny_models import RelativeBias, tiny_config, tiny_model

from configs.position_names import POSITIONS
from configs.positions import Combined, Dape, Interleaved, NoPosition, Pope, Shape
from configs.schema import (
    T5,
    Alibi,
    Cope,
    DynamicNtkScaling,
    Learnable,
    LinearScaling,
    ModelConfig,
    Position,
    Randomized,
    Rope,
    Shaw,
    Sinusoidal,
    Ssmax,
    XPos,
    YarnScaling,
)
from models.attention.multi_head import SelfAttention
from models.attention.tap import AttentionTap
from models.positional_encodings.alibi import alibi_slopes
from models.positional_encodings.base import AttentionScheme, Places
from models.positional_encodings.sinusoidal import sinusoid_table
from pictures.distance import by_offset, cosines, decay_bound, first_ideas, projected_products
from pictures.maps import principal_axes, scaled_map
from pictures.schemes import STACKS, Scheme, fresh_scheme
from utils.errors import UserError
from visualize import PICTURES

SHAPE = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 2, "n_decoder_layers": 2}
K = np.arange(50)[:, None]
ZETA = (2 * np.arange(4) / 8 + 0.4) / 1.4  # of xPos


def scheme(position: Position, name: str = "") -> Scheme:
    return fresh_scheme(name or position.kind, ModelConfig(position=position, **SHAPE))


def draw(picture: str, *asked: Position | Scheme, n: int | None = None) -> dict[str, Figure]:
    schemes = [made if isinstance(made, Scheme) else scheme(made) for made in asked]
    return dict(PICTURES[picture].draw(schemes, n))


def frequencies(n: int, base: float = 10000.0) -> np.ndarray:
    return base ** (-np.arange(n) / n)


# ------------------------------------------------------------------------------------- every scheme


@pytest.mark.slow
def test_every_scheme_that_is_fixed_by_positions_has_a_picture() -> None:
    drawn: dict[str, set[str]] = {"encoding": set(), "bias": set()}
    for (name, position), picture in itertools.product(POSITIONS.items(), drawn):
        with contextlib.suppress(UserError):
            assert draw(picture, scheme(position, name), n=5)
            drawn[picture].add(name)
    linear = {"alibi", "alibi_asymmetric", "kerple_log", "kerple_power", "fire", "sandwich"}
    assert drawn["bias"] == {"t5", "sinusoidal_t5", "dape", "tupe", "tupe_r", *linear}
    content = {"selective_rope", "pope", "transformer_xl", "xlnet", "deberta", "deberta_log"}
    assert set(POSITIONS) - drawn["encoding"] - drawn["bias"] == {"none", *content}


@pytest.mark.parametrize(
    ("picture", "position"),
    [
        ("encoding", Learnable()),
        ("encoding", XPos()),
        ("encoding", Shaw()),
        ("bias", Alibi()),
        ("bias", T5()),
        ("similarity", Learnable()),
        ("decay", Learnable()),
        ("projections", Sinusoidal()),
        ("rotation", Randomized(scheme=XPos())),
        ("embedding_map", Learnable()),
        ("ideas", Learnable()),
        ("permutation", Learnable()),
    ],
)
@pytest.mark.slow
def test_every_picture_is_legible(picture: str, position: Position) -> None:
    made = dataclasses.replace(scheme(position), about=" (a_run_with_a_name_20260101, epoch 12)")
    for name, figure in draw(picture, made, n=12).items():
        assert name.startswith(f"{picture}_{position.kind}")
        assert_legible(figure)


@pytest.mark.parametrize("name", POSITIONS)
def test_what_depends_on_the_words_is_known(name: str) -> None:
    """In a real attention: logits of x = 0 are the bias that is drawn, those of 2x less the bias
    four times those of x; but not where words have a say."""
    made, at = scheme(POSITIONS[name], name), torch.arange(6)
    made.module.double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 6, 16, generator=generator, dtype=torch.float64)
    biases = made.biases(6)

    def logits(x: torch.Tensor, stack: str, layer: int) -> np.ndarray:
        """Less a constant of each row; NaN where the mask forbids."""
        torch.manual_seed(1)
        attention = SelfAttention(made.model, kind=stack, layer=layer).double().eval()
        torch.nn.init.zeros_(attention.qkv_proj.bias)
        places, tap = Places(at, at, causal=stack == "decoder"), AttentionTap()
        attention(x, position=made.attention(stack, layer), places=places, tap=tap)
        weights = tap.maps(stack)[0, 0].numpy()
        return np.log(weights, where=weights > 0, out=np.full_like(weights, np.nan))

    def constant_rows(values: np.ndarray) -> bool:
        return bool((np.nanmax(values, -1) - np.nanmin(values, -1) < 1e-9).all())

    for stack in STACKS:
        by_words = []
        for layer in (0, 1):
            bias = biases.get(stack, np.zeros((1, 2, 6, 6)))
            bias = bias[layer if len(bias) > 1 else 0]
            nothing, once, twice = (logits(factor * x, stack, layer) - bias for factor in range(3))
            weighed = made.attention(stack, layer).needs_weights  # its values change with the words
            if weighed or not (constant_rows(nothing) and constant_rows(twice - 4 * once)):
                by_words.append(layer)
        assert made.beyond(stack, 6) == {"words": by_words, "length": []}


@pytest.mark.parametrize(
    ("position", "n_layers", "said"),
    [
        (Pope(), 3, "the encoder and the decoder"),
        (Interleaved(others=Pope(), nth=Rope(), every=3), 3, "the {} (layers 1, 2)"),
        (Interleaved(others=NoPosition(), nth=Pope(), every=2), 2, "the {} (layer 2)"),
        (Interleaved(others=NoPosition(), nth=Rope(), every=2), 2, ""),
    ],
)
def test_where_words_matter_is_told_by_layer(position: Position, n_layers: int, said: str) -> None:
    shape = SHAPE | {"n_encoder_layers": n_layers, "n_decoder_layers": n_layers}
    made = fresh_scheme(position.kind, ModelConfig(position=position, **shape))
    both = " and ".join(dict.fromkeys(said.format(stack) for stack in STACKS))
    assert made.decided_by("words") == both
    assert made.reservations(9) == (f" (in {both} words matter too)" if both else "")


def test_a_scheme_is_labelled_by_what_has_become_of_it() -> None:
    made = scheme(T5())
    assert (made.state, made.label) == ("untrained", "t5, untrained")
    assert dataclasses.replace(made, trained=True).label == "t5, trained"
    assert scheme(Rope(), "rope_half").label == "rope_half"
    assert dataclasses.replace(scheme(Rope()), trained=True).state == "fixed"
    for position, n_references in (
        (Combined(input=Sinusoidal(), attention=T5()), 0),  # it is trained, but not what is added
        (Shape(input=Learnable()), 2),
    ):
        made = dataclasses.replace(scheme(position), trained=True)
        assert (made.state, len(made.references())) == ("trained", n_references)


def test_a_fresh_scheme_leaves_the_random_state_alone_and_is_the_same_each_time() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first, second = (scheme(Learnable()).module.input("target").table.weight for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize(
    ("picture", "position", "n", "said"),
    [
        ("encoding", Alibi(), None, "'alibi' adds nothing to embeddings and turns nothing"),
        ("bias", Rope(), None, "'rope' adds no bias to the logits that is independent of queries"),
        ("similarity", Rope(), None, "'rope' adds nothing to embeddings; choose one that does"),
        ("projections", T5(), None, "'t5' adds nothing to embeddings"),
        ("encoding", Pope(), None, "in the encoder and the decoder depends on the words too"),
        ("encoding", Dape(), None, "`bias` draws what it adds to the logits; what it does in"),
        ("decay", T5(), None, "'t5' adds nothing to embeddings and turns nothing"),
        ("rotation", Sinusoidal(), None, "'sinusoidal' turns no queries and keys"),
        ("embedding_map", Rope(), None, "'rope' adds nothing to embeddings"),
        ("ideas", Sinusoidal(), 1, "--positions 1: distances need 2 or more"),
        ("embedding_map", Sinusoidal(), 2, "--positions 2: a map in the plane needs 3 positions"),
    ],
)
def test_a_scheme_without_such_a_picture_says_so(picture, position, n, said) -> None:
    with pytest.raises(UserError) as error:
        draw(picture, position, n=n)
    assert said in str(error.value)


# ---------------------------------------------------------------------------------------- heat-maps


@pytest.mark.parametrize("layout", ["interleaved", "half", "t2t"])
def test_sinusoids_of_every_layout_are_drawn_as_they_are(layout: str) -> None:
    figures = draw("encoding", Sinusoidal(base=500.0, layout=layout))
    table = sinusoid_table(torch.arange(128), 16, base=500.0, layout=layout, dtype=torch.float64)
    np.testing.assert_array_equal(images(figures["encoding_sinusoidal"])[0], table.numpy())


@pytest.mark.parametrize(
    ("position", "angles"),
    [
        (Rope(base=100.0, form="real"), K * frequencies(4, 100.0)),
        (Rope(base=100.0, form="complex"), K * frequencies(4, 100.0)),
        (Rope(base=100.0, layout="half"), K * frequencies(4, 100.0)),
        (Rope(base=100.0, rope_dim="model"), K * frequencies(8, 100.0)),  # head by head
        (Randomized(scheme=Rope(base=100.0)), K * frequencies(4, 100.0)),  # as plain positions
        (Rope(scaling=LinearScaling(factor=4.0)), K / 4 * frequencies(4)),
    ],
)
def test_rope_is_drawn_as_cosine_and_sine_of_its_angles(position: Position, angles) -> None:
    figures = draw("encoding", position, n=50)
    assert list(figures) == [f"encoding_{position.kind}_{part}" for part in ("cos", "sin")]
    for figure, expected in zip(figures.values(), (np.cos(angles), np.sin(angles))):
        np.testing.assert_allclose(np.hstack(images(figure)), expected, atol=1e-12)


def test_magnitudes_are_drawn_where_they_are_not_1() -> None:
    yarn = draw("encoding", Rope(scaling=YarnScaling(factor=4.0)), n=50)
    parts = ("cos", "sin", "magnitude_queries", "magnitude_keys")
    assert list(yarn) == [f"encoding_rope_{part}" for part in parts]
    cosine, _, *both = (images(figure)[0] for figure in yarn.values())
    np.testing.assert_allclose(both, 0.1 * np.log(4) + 1, rtol=1e-12)
    assert np.abs(cosine).max() == pytest.approx(1.0, abs=1e-12)

    xpos = draw("encoding", XPos(), n=50)
    both = {
        f"encoding_xpos_{stack}_{part}"
        for stack in ("encoder", "decoder")
        for part in ("cos", "sin")
    }
    magnitudes = [f"encoding_xpos_decoder_magnitude_{what}" for what in ("queries", "keys")]
    assert xpos.keys() == {*both, *magnitudes}
    queries, keys = (images(xpos[name])[0] for name in magnitudes)
    np.testing.assert_allclose(queries, ZETA ** (K / 512), rtol=1e-12)
    np.testing.assert_allclose(queries * keys, 1.0, rtol=1e-12)
    image = xpos[magnitudes[1]].axes[0].images[0]
    assert sum(image.get_clim()) == pytest.approx(2.0)  # centred at 1


def test_shaws_tables_stand_by_distance_and_layer() -> None:
    assert len(draw("encoding", Ssmax(scheme=Shaw()))) == 2
    made = scheme(Shaw(clip=3))
    figures = draw("encoding", made)
    assert list(figures) == ["encoding_shaw_encoder_tables", "encoding_shaw_decoder_tables"]
    figure = figures["encoding_shaw_decoder_tables"]
    module = made.module.attention("decoder", 1)
    _, keys, _, values = images(figure)
    np.testing.assert_array_equal(keys, module.key_table.detach().numpy())
    np.testing.assert_array_equal(values, module.value_table.detach().numpy())
    # The distances -3 .. 3, downwards.
    assert figure.axes[0].images[0].get_extent()[2:] == [3.5, -3.5]
    without = draw("encoding", Shaw(values=False))["encoding_shaw_encoder_tables"]
    assert len(images(without)) == 2
    every_second = draw("encoding", Interleaved(others=NoPosition(), nth=Shaw(), every=2))
    assert titles(every_second["encoding_interleaved_encoder_tables"]) == ["layer 2"]
    unlike = draw("encoding", Interleaved(others=Shaw(clip=3), nth=Shaw(clip=2), every=2))
    names = [
        f"encoding_interleaved_{s}_tables_layer_{n}" for s in ("encoder", "decoder") for n in (1, 2)
    ]
    assert [*unlike] == names


# --------------------------------------------------------------------------- why positions, and how


@pytest.mark.parametrize("n", [5, 9, 10])
def test_two_orders_of_words_differ_with_a_scheme_and_without_one_are_the_same(n: int) -> None:
    for name in ("none", "sinusoidal", "t5"):
        [figure] = draw("permutation", scheme(POSITIONS[name], name), n=n).values()
        one, other = (figure.axes[i].get_title() for i in range(2))
        assert sorted(one.split()) == sorted(other.split())
        assert one != other
        first, second, difference = images(figure)
        np.testing.assert_array_equal(difference, second - first)
        apart = np.abs(difference).max()
        assert apart < 1e-12 if name == "none" else apart > 1e-3, name
        assert figure.axes[0].get_ylabel().endswith(f"\ndiffers by {apart:.2g}")


def test_the_first_ideas_are_drawn_beside_a_scheme_with_all_distances() -> None:
    figure = draw("ideas", Sinusoidal(), n=9)["ideas_sinusoidal"]
    tables = [*first_ideas(9, 16).values(), scheme(Sinusoidal()).tables(9)[""]]
    assert tables[1][:, 0].tolist() == [n / 8 for n in range(9)]  # a fraction of the length
    np.testing.assert_array_equal(images(figure)[:6], tables)
    apart = [[[np.linalg.norm(a - b) for b in table] for a in table] for table in tables]
    np.testing.assert_allclose(images(figure)[6:], apart)
    assert titles(figure)[6] == "nearest two: 4"  # the number itself, in 16 dimensions


# ------------------------------------------------------------------------------------------- biases


def test_alibis_matrices_and_curves_are_slopes_times_distance() -> None:
    figures = draw("bias", Alibi(), n=12)
    slopes = alibi_slopes(2).double().numpy()
    distance = np.arange(12)[:, None] - np.arange(12)
    whole = -slopes[:, None, None] * np.abs(distance)
    for stack, expected, offsets in (
        ("encoder", whole, np.arange(-6, 6)),
        ("decoder", np.where(distance >= 0, whole, np.nan), np.arange(-11, 1)),
    ):
        matrices = figures.pop(f"bias_alibi_{stack}_matrices")
        np.testing.assert_allclose(images(matrices), expected, atol=1e-7)
        assert titles(matrices) == ["head 1", "head 2"]
        [lines] = curves(figures.pop(f"bias_alibi_{stack}_curves")).values()
        for slope, (x, y) in zip(slopes, lines.values()):
            np.testing.assert_array_equal(x, offsets)
            np.testing.assert_allclose(y, -slope * np.abs(offsets), atol=1e-7)
    assert not figures


def test_layers_with_a_bias_of_their_own_take_a_row_each() -> None:
    module = AttentionScheme(encoder=[RelativeBias(), RelativeBias()])
    figures = draw("bias", Scheme("own", module, ModelConfig(**SHAPE)), n=5)
    assert list(figures) == ["bias_own_encoder_matrices", "bias_own_encoder_curves"]
    matrices, lines = figures.values()
    last = module.attention("encoder", 1).table.detach().numpy()[4:, 1]  # by distance
    np.testing.assert_allclose(images(matrices)[3][0], last)
    rows = [axes.get_ylabel() for axes in matrices.axes if axes.get_ylabel()]
    assert rows == ["layer 1", "layer 2", "added to the logit"]
    assert list(curves(lines)) == ["layer 1", "layer 2"]


@pytest.mark.parametrize("nth", [Alibi(), NoPosition()], ids=lambda p: p.kind)
def test_interleaved_layers_each_have_their_own_bias(nth: Position) -> None:
    shape = SHAPE | {"n_encoder_layers": 6, "n_decoder_layers": 6}
    position = Interleaved(others=T5(), nth=nth, every=3)
    made = fresh_scheme("interleaved", ModelConfig(position=position, **shape))
    found, ids = made.biases(5)["encoder"], torch.arange(5)
    assert found.shape == (6, 2, 5, 5)
    for layer, drawn in enumerate(found):
        bias = made.module.attention("encoder", layer).bias(Places(ids, ids))
        expected = np.zeros((2, 5, 5)) if bias is None else bias.detach().numpy()
        np.testing.assert_array_equal(drawn, expected)


# --------------------------------------------------------------------------------------- similarity


def test_the_similarity_of_sinusoids_is_a_sum_of_cosines_of_the_offset() -> None:
    offsets, matrices = draw("similarity", Sinusoidal(), n=30).values()
    expected = np.cos(K[:30] * frequencies(8)).sum(1)
    panels = curves(offsets)
    dot_product, cosine = (
        panels[f"sinusoidal: {what}"]["mean, range"][1] for what in ("dot product", "cosine")
    )
    np.testing.assert_allclose(dot_product, expected, atol=1e-12)
    np.testing.assert_allclose(cosine, expected / 8, atol=1e-12)
    distance = np.abs(K[:30] - K[:30].T)
    np.testing.assert_allclose(images(matrices)[0], expected[distance] / 8, atol=1e-12)
    # The band: every pair of one offset is equally alike.
    table = scheme(Sinusoidal()).tables(30)[""]
    _, low, high = by_offset(table @ table.T)
    np.testing.assert_allclose(low, high, atol=1e-12)


def test_by_offset_takes_mean_and_range_of_each_diagonal() -> None:
    found = by_offset(np.array([[1.0, 2, 3], [2, 5, 6], [3, 6, 9]]))
    np.testing.assert_array_equal(found, [[5, 4, 3], [1, 2, 3], [9, 6, 3]])
    assert not cosines(np.zeros((2, 3))).any()
    half = 0.5**0.5
    np.testing.assert_allclose(cosines(np.array([[1.0, 0], [2, 2]])), [[1, half], [half, 1]])


def test_a_trained_table_stands_beside_an_untrained_one_and_sinusoids() -> None:
    position = Learnable(max_positions=20)
    module = tiny_model(position).scheme
    made = Scheme("learnable", module, tiny_config(position), trained=True)
    offsets, matrices = draw("similarity", made).values()
    sides = ["learnable, trained, source side", "learnable, trained, target side"]
    assert titles(matrices) == [*sides, "learnable, untrained, source side", "sinusoidal"]
    table = module.input("source").table.weight.detach().numpy()
    mean = [np.diagonal(table @ table.T, k).mean() for k in range(20)]
    _, drawn = curves(offsets)[f"{sides[0]}: dot product"]["mean, range"]
    np.testing.assert_allclose(drawn, mean, atol=1e-12)
    # Two schemes at once, and a table that is shown once.
    both = draw("similarity", Sinusoidal(), Learnable(), n=10)[
        "similarity_sinusoidal_learnable_matrices"
    ]
    assert titles(both) == ["sinusoidal", *(side.replace("trained", "untrained") for side in sides)]


# -------------------------------------------------------------------------------------------- decay


def test_the_decay_of_sinusoids_and_rope_is_a_mean_of_cosines() -> None:
    [(name, figure)] = draw("decay", Sinusoidal(), Rope(layout="half"), n=50).items()
    assert name == "decay_sinusoidal_rope"
    product, bound = curves(figure).values()
    expected = {
        "sinusoidal (16 dimensions)": np.cos(K * frequencies(8)).mean(1),
        "rope (heads of 8)": np.cos(K * frequencies(4)).mean(1),
    }
    sums = np.abs(np.cumsum(np.exp(1j * K * frequencies(4)), axis=1)).mean(1)
    assert list(bound) == ["rope (heads of 8)"]
    np.testing.assert_allclose(bound["rope (heads of 8)"][1], sums, atol=1e-12)
    for label, mean in expected.items():
        np.testing.assert_allclose(product[label][1], mean, atol=1e-12)
    # Long names keep the side in the legend.
    long = fresh_scheme("learnable", ModelConfig(position=Learnable()))
    [figure] = draw("decay", long, n=9).values()
    sides = [f"learnable, untrained, {side} (512 dimensions)" for side in ("source", "target")]
    assert legend(figure) == sides


def test_the_bound_holds_for_real_products_and_is_met() -> None:
    rope = Scheme("rope", scheme(Rope()).module, ModelConfig(position=Rope(), d_model=8, n_heads=1))
    module = rope.attention("")
    bound = decay_bound(rope.rotation("", 60)[0, 0])
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        q, k = torch.randn(2, 1, 1, 1, 8, generator=generator, dtype=torch.float64)
        planes_q, planes_k = (torch.view_as_complex(v.unflatten(-1, (4, 2))) for v in (q, k))
        h = (planes_q * planes_k.conj()).flatten().numpy()
        steps = np.abs(np.diff(np.append(h, 0))).max()
        # The query stands at distance d after the key at 0.
        q_d = module.rotate(q.expand(1, 1, 60, 8), torch.arange(60), "query")
        product = (q_d @ module.rotate(k, torch.tensor([0]), "key").mT).flatten().numpy()
        assert (np.abs(product) <= 4 * steps * bound + 1e-12).all()
    assert bound[0] == 2.5  # at distance 0 the sums are 1, 2, 3, 4
    drawn = [draw("decay", Rope(share=share), n=9).values() for share in (1.0, 0.5)]
    lower = [list(curves(figure).values())[1] for [figure] in drawn]
    [(_, all_turn)], [(_, half_turn)] = (panel.values() for panel in lower)
    assert all_turn[0] == half_turn[0]  # planes at rest count too


@pytest.mark.parametrize("picture", ["encoding", "rotation"])
def test_a_rotation_that_depends_on_the_length_is_told_beyond_what_was_trained(
    picture: str,
) -> None:
    position = Rope(scaling=DynamicNtkScaling(trained_length=20))
    for n, there in ((20, False), (21, True)):
        figure = next(iter(draw(picture, position, n=n).values()))
        said = "(in the encoder and the decoder a sentence of this length turns by other angles)"
        assert (said in suptitle(figure)) == there
        assert ("other angles" in suptitle(figure)) == there


def test_heads_that_turn_apart_are_told_apart() -> None:
    for position, there in ((Rope(), False), (Rope(rope_dim="model"), True)):
        [decay], [turns] = (draw(p, position, n=9).values() for p in ("decay", "rotation"))
        assert any(", head 1)" in label for label in legend(decay)) == there
        assert (", head 1" in suptitle(turns)) == there


def test_magnitudes_and_lengths_take_part_in_the_decay() -> None:
    def decay(position: Position, n: int = 50) -> tuple[np.ndarray, int]:
        [figure] = draw("decay", position, n=n).values()
        panels = list(curves(figure).values())
        return next(iter(panels[0].values()))[1], len(panels)

    values, n_panels = decay(XPos())
    expected = (ZETA ** (K / 512) * np.cos(K * frequencies(4))).mean(1)
    np.testing.assert_allclose(values, expected, atol=1e-12)
    assert n_panels == 1  # RoFormer's bound is one of pure rotations
    yarn, _ = decay(Rope(scaling=YarnScaling(factor=4.0)))
    assert yarn[0] == pytest.approx((0.1 * np.log(4) + 1) ** 2)
    # Dynamic NTK: plain as long as trained, and another base beyond.
    short = Rope(scaling=DynamicNtkScaling(factor=4.0, trained_length=50))
    np.testing.assert_allclose(decay(short)[0], decay(Rope())[0], atol=1e-12)
    assert (decay(short)[1], decay(short, 100)[1]) == (2, 1)
    base = 10000 * (4 * 100 / 50 - 3) ** (8 / 6)
    expected = np.cos(np.arange(100)[:, None] * frequencies(4, base)).mean(1)
    np.testing.assert_allclose(decay(short, 100)[0], expected, atol=1e-9)


# -------------------------------------------------------------------------------------- projections


@pytest.mark.parametrize("backend", ["scratch", "torch"])
def test_projections_are_those_of_the_first_encoder_layer(backend: str) -> None:
    off = {"attention_dropout": 0.0, "activation_dropout": 0.0} if backend == "torch" else {}
    encoder = tiny_model(Sinusoidal(), backend=backend, **off).encoder
    made = dataclasses.replace(scheme(Sinusoidal()), encoder=encoder)
    if backend == "scratch":
        joint = encoder.layers[0].self_attention.qkv_proj.weight
    else:
        joint = encoder.stack.layers[0].self_attn.in_proj_weight
    np.testing.assert_array_equal(
        np.concatenate(made.projections()["trained"]), joint[:32].detach()
    )


def test_projected_products_are_logits_of_positions_alone() -> None:
    generator = np.random.default_rng(0)
    table = generator.normal(size=(5, 16))
    w_q, w_k = generator.normal(size=(2, 16, 16))
    found = projected_products(table, w_q, w_k, 2)
    for head, t, s in np.ndindex(2, 5, 5):
        part = slice(8 * head, 8 * head + 8)
        expected = (w_q @ table[t])[part] @ (w_k @ table[s])[part] / 8**0.5
        assert found[head, t, s] == pytest.approx(expected)


def test_without_projection_only_the_offset_counts_and_random_ones_lose_that() -> None:
    made = dataclasses.replace(scheme(Sinusoidal()), encoder=tiny_model(Sinusoidal()).encoder)
    lines, matrices = draw("projections", made, n=40).values()
    # The same offset from the queries 10, 20 and 30.
    plain, random, trained = (
        [y[x == 5][0] for x, y in queries.values()] for queries in curves(lines).values()
    )
    assert list(curves(lines)) == ["no projection", "random", "trained"]
    assert plain == pytest.approx([np.cos(5 * frequencies(8)).sum() / 8**0.5] * 3)
    assert np.ptp(random) > 0.1
    products = projected_products(made.tables(40)[""], *made.projections()["trained"], 2)
    assert trained == pytest.approx([products[:, t, t + 5].sum() for t in (10, 20, 30)])
    assert len(images(matrices)) == 3 * 2
    for of_head, drawn in zip(products, images(matrices)[4:]):
        np.testing.assert_allclose(drawn, of_head / np.abs(of_head).max(), atol=1e-12)
    _, untrained = draw("projections", Sinusoidal(), n=40).values()
    assert len(images(untrained)) == 2 * 2


# ----------------------------------------------------------------------------------------- rotation


def test_the_rotation_goes_round_the_circle_by_each_frequency() -> None:
    figure = draw("rotation", Rope(base=100.0), n=20)["rotation_rope"]
    periods = ["6.3", "19.9", "62.8", "199"]
    assert titles(figure) == [f"pair {n}: period {period}" for n, period in enumerate(periods)]
    for axes, omega in zip(figure.axes, frequencies(4, 100.0)):
        angles = np.arange(20) * omega
        expected = np.stack((np.cos(angles), np.sin(angles)), axis=1)
        np.testing.assert_allclose(points(axes), expected, atol=1e-12)
    assert list(draw("rotation", Cope(), n=20)) == ["rotation_cope_encoder"]
    assert len(draw("rotation", XPos(), n=20)) == 2


def test_layers_that_turn_are_told_from_those_that_do_not() -> None:
    made = scheme(Interleaved(others=NoPosition(), nth=Rope(), every=2))
    for part, plain in (("cos", 1), ("sin", 0)):
        at_rest, turned = images(draw("encoding", made, n=9)[f"encoding_interleaved_{part}"])
        [expected] = images(draw("encoding", Rope(), n=9)[f"encoding_rope_{part}"])
        assert (at_rest == plain).all()
        np.testing.assert_array_equal(turned, expected)
    figure, plain = draw("rotation", made, n=9), draw("rotation", Rope(), n=9)["rotation_rope"]
    np.testing.assert_array_equal(
        points(figure["rotation_interleaved"].axes[0]), points(plain.axes[0])
    )
    assert "turned by position (period: positions a turn), layer 2" in suptitle(
        figure["rotation_interleaved"]
    )
    assert draw("rotation", made, n=1)
    product, bound = curves(draw("decay", made, n=9)["decay_interleaved"]).values()
    assert list(product) == list(bound) == ["interleaved (heads of 8, layer 2)"]


# --------------------------------------------------------------------------------------------- maps


def test_pca_and_mds_keep_what_a_plane_can_keep() -> None:
    generator = np.random.default_rng(0)
    flat = generator.normal(size=(12, 2)) * [3, 1]
    turn, _ = np.linalg.qr(generator.normal(size=(16, 16)))
    table = np.hstack((flat, np.zeros((12, 14)))) @ turn + 5.0
    mean, axes, shares = principal_axes(table)
    assert shares.sum() == pytest.approx(1.0)
    assert shares[0] > shares[1]
    mapped, stress = scaled_map(table)
    distances = np.linalg.norm(table[:, None] - table, axis=-1)
    for found in ((table - mean) @ axes.T, mapped):
        kept = np.linalg.norm(found[:, None] - found, axis=-1)
        np.testing.assert_allclose(kept, distances, atol=1e-6)
    assert stress == pytest.approx(0.0, abs=1e-6)
    # Four at equal distances become a triangle and its middle.
    assert scaled_map(np.eye(4))[1] == pytest.approx(2 - math.sqrt(3))


def test_a_map_shows_both_sides_by_both_methods() -> None:
    made = scheme(Learnable(max_positions=30))
    figure = draw("embedding_map", made, n=30)["embedding_map_learnable"]  # all that there are
    assert [title.split(" (")[0] for title in titles(figure)] == [
        f"{method}, {side} side" for side in ("source", "target") for method in ("PCA", "MDS")
    ]
    table = made.module.input("target").table.weight.detach().double().numpy()
    mean, axes, _ = principal_axes(table)
    np.testing.assert_allclose(points(figure.axes[2]), (table - mean) @ axes.T, atol=1e-12)
