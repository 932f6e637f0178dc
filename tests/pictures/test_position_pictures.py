"""What the pictures of position schemes show: measured numbers against formulas, and drawn numbers
against measured.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tiny_models import tiny_config, tiny_model

from configs.positions import POSITIONS, Fire, Kerple
from configs.schema import (
    T5,
    Alibi,
    Combined,
    Cope,
    DynamicNtkScaling,
    Learnable,
    LinearScaling,
    ModelConfig,
    NoPosition,
    Position,
    Randomized,
    Rope,
    Shaw,
    Sinusoidal,
    XPos,
    YarnScaling,
)
from models.positional_encodings.alibi import alibi_slopes
from models.positional_encodings.base import AttentionPosition, Places, PositionScheme
from models.positional_encodings.sinusoidal import sinusoid_table
from pictures import arrays as arrays, positions as visuals
from pictures.distance import decay_figures, projection_figures, similarity_figures
from pictures.maps import map_figures
from pictures.schemes import Subject, fresh_subject
from utils.errors import UserError

SHAPE = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 2, "n_decoder_layers": 2}


def subject(position: Position, name: str = "", **changes: int) -> Subject:
    sizes = {**SHAPE, **changes}
    return fresh_subject(name or position.kind, ModelConfig(position=position, **sizes))


def drawn(figure) -> list[np.ndarray]:
    """The matrices of a figure, NaN where nothing is drawn."""
    images = [
        axes.images[0] for axes in figure.axes if axes.images and axes.get_label() != "<colorbar>"
    ]
    return [np.ma.filled(image.get_array().astype(float), np.nan) for image in images]


def titles(figure) -> list[str]:
    return [
        axes.get_title().replace("\n", " ")
        for axes in figure.axes
        if axes.axison and axes.get_title()
    ]


def suptitle(figure) -> str:
    return figure.get_suptitle().replace("\n", " ")


def bar_labels(figure) -> list[str]:
    return [axes.get_ylabel() for axes in figure.axes if axes.get_label() == "<colorbar>"]


def lines(figure) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """{panel: {name in the legend: (x, y)}}."""
    legend = [text.get_text() for text in figure.legends[0].get_texts()] if figure.legends else []
    colours = [line.get_color() for line in figure.legends[0].get_lines()] if figure.legends else []
    found = {}
    for axes in figure.axes:
        if axes.axison:
            by_name = {}
            for line in axes.lines:
                name = next(
                    (n for n, c in zip(legend, colours) if str(c) == str(line.get_color())), ""
                )
                by_name[name] = (np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
            found[axes.get_title().replace("\n", " ")] = by_name
    return found


def frequencies(n: int, base: float = 10000.0) -> np.ndarray:
    return base ** (-np.arange(n) / n)


# ---------------------------------------------------------------------------------------- heat-maps


@pytest.mark.parametrize("layout", ["interleaved", "half", "t2t"])
def test_sinusoids_of_every_layout_are_drawn_as_they_are(layout) -> None:
    [(name, figure)] = visuals.encoding_figures(subject(Sinusoidal(base=500.0, layout=layout)))
    table = sinusoid_table(torch.arange(128), 16, base=500.0, layout=layout, dtype=torch.float64)
    assert name == "sinusoidal"
    np.testing.assert_array_equal(drawn(figure)[0], table.numpy())


@pytest.mark.parametrize("form", ["real", "complex"])
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_rope_is_drawn_as_cosine_and_sine_of_its_angles(form, layout) -> None:
    figures = dict(
        visuals.encoding_figures(subject(Rope(form=form, layout=layout, base=100.0)), 40)
    )
    angles = np.arange(40)[:, None] * frequencies(4, 100.0)
    assert figures.keys() == {"rope_cos", "rope_sin"}
    np.testing.assert_allclose(drawn(figures["rope_cos"])[0], np.cos(angles), atol=1e-12)
    np.testing.assert_allclose(drawn(figures["rope_sin"])[0], np.sin(angles), atol=1e-12)


def test_a_rotation_over_the_whole_model_is_drawn_head_by_head() -> None:
    figures = dict(visuals.encoding_figures(subject(Rope(base=100.0, rope_dim="model")), 40))
    angles = np.arange(40)[:, None] * frequencies(8, 100.0)
    np.testing.assert_allclose(drawn(figures["rope_cos"])[0], np.cos(angles), atol=1e-12)


def test_scalings_and_magnitudes_are_drawn() -> None:
    linear = dict(visuals.encoding_figures(subject(Rope(scaling=LinearScaling(factor=4.0))), 40))
    np.testing.assert_allclose(
        drawn(linear["rope_cos"])[0],
        np.cos(np.arange(40)[:, None] / 4 * frequencies(4)),
        atol=1e-12,
    )
    yarn = dict(visuals.encoding_figures(subject(Rope(scaling=YarnScaling(factor=4.0))), 40))
    assert yarn.keys() == {"rope_cos", "rope_sin"}
    factor = 0.1 * np.log(4) + 1
    assert f"queries x {factor:.3f}; keys x {factor:.3f}" in yarn[
        "rope_cos"
    ].get_suptitle().replace("\n", " ")
    assert np.abs(drawn(yarn["rope_cos"])[0]).max() == pytest.approx(1.0, abs=1e-12)

    xpos = dict(visuals.encoding_figures(subject(XPos()), 40))
    decoder = {
        f"xpos_decoder_{part}" for part in ("cos", "sin", "magnitude_queries", "magnitude_keys")
    }
    assert xpos.keys() == {"xpos_encoder_cos", "xpos_encoder_sin"} | decoder
    zeta = (2 * np.arange(4) / 8 + 0.4) / 1.4
    queries, keys = (
        drawn(xpos[f"xpos_decoder_magnitude_{what}"])[0] for what in ("queries", "keys")
    )
    np.testing.assert_allclose(queries, zeta ** (np.arange(40)[:, None] / 512), rtol=1e-12)
    np.testing.assert_allclose(queries * keys, 1.0, rtol=1e-12)
    image = xpos["xpos_decoder_magnitude_keys"].axes[0].images[0]
    assert sum(image.get_clim()) == pytest.approx(2.0)  # centred at 1


def test_a_length_dependent_scaling_says_that_it_is_more_than_the_picture() -> None:
    scaled, plain = subject(Rope(scaling=DynamicNtkScaling(trained_length=24))), subject(Rope())
    said = "; frequencies up to L=24; beyond, the logits are corrected"
    for picture, name in (
        (visuals.encoding_figures, "rope_cos"),
        (visuals.rotation_figures, "rope"),
    ):
        assert suptitle(dict(picture(scaled, 40))[name]).endswith(said)
        assert "L=" not in suptitle(dict(picture(plain, 40))[name])


def test_randomized_positions_are_drawn_where_they_stand() -> None:
    made = subject(Randomized(scheme=Sinusoidal(), spread=300, max_positions=50))
    [(_, figure)] = visuals.encoding_figures(made)
    fixed = made.scheme.positions("source", 0, 50, torch.device("cpu"))
    assert not torch.equal(fixed, torch.arange(50))
    np.testing.assert_array_equal(
        drawn(figure)[0], sinusoid_table(fixed, 16, dtype=torch.float64).numpy()
    )


def test_axes_of_randomized_schemes_count_tokens_and_those_of_others_positions() -> None:
    for scheme, label in (
        (Rope(), "position"),
        (Randomized(scheme=Rope()), "token (at a drawn position)"),
    ):
        made = subject(scheme, "made")
        assert {f.axes[0].get_ylabel() for _, f in visuals.encoding_figures(made)} == {label}
        [(_, rotation)] = visuals.rotation_figures(made)
        assert bar_labels(rotation) == [label]
    table = Randomized(scheme=Sinusoidal())
    [(_, figure)] = visuals.encoding_figures(subject(table))
    assert figure.axes[0].get_ylabel() == "token (at a drawn position)"
    assert list(lines(dict(similarity_figures([subject(table)], 9))["randomized_by_offset"])) == [
        "randomized, by token: dot product",
        "randomized, by token: cosine",
    ]
    assert "of randomized, by token" in suptitle(
        dict(projection_figures(subject(table), None, 9))["randomized_curves"]
    )


def test_the_bias_of_randomized_positions_is_drawn_by_their_distance() -> None:
    made = subject(Randomized(scheme=Alibi(), spread=300, max_positions=12))
    figures = dict(visuals.bias_figures(made))
    matrix = figures["randomized_encoder_matrices"]
    assert (matrix.get_supxlabel(), matrix.get_supylabel()) == (
        "key token (at a drawn position)",
        "query token (at a drawn position)",
    )
    fixed = made.scheme.positions("source", 0, 12, torch.device("cpu")).numpy()
    slopes = alibi_slopes(2).double().numpy()
    for stack, query in (("encoder", 6), ("decoder", 11)):
        figure = figures[f"randomized_{stack}_curves"]
        [curves] = lines(figure).values()
        x, y = curves["head 1"]
        keys = fixed if stack == "encoder" else fixed[:12]
        np.testing.assert_array_equal(x, keys - fixed[query])
        np.testing.assert_allclose(y, -slopes[0] * np.abs(x), rtol=1e-6)
        stands = f"(the query stands at {fixed[query]} of {fixed[0]} .. {fixed[-1]})"
        assert figure.axes[0].get_xlabel().endswith(stands)


def test_shaws_tables_stand_by_distance_and_layer() -> None:
    made = subject(Shaw(clip=3))
    figures = dict(visuals.encoding_figures(made))
    assert figures.keys() == {"shaw_encoder_tables", "shaw_decoder_tables"}
    figure = figures["shaw_decoder_tables"]
    module = made.scheme.attention("decoder", 1)
    tables = drawn(figure)
    assert len(tables) == 4
    np.testing.assert_array_equal(tables[1], module.key_table.detach().numpy())
    np.testing.assert_array_equal(tables[3], module.value_table.detach().numpy())
    assert figure.axes[0].images[0].get_extent()[2:] == [
        3.5,
        -3.5,
    ]  # the distances -3 .. 3, downwards
    assert (
        len(
            drawn(
                dict(visuals.encoding_figures(subject(Shaw(values=False))))["shaw_encoder_tables"]
            )
        )
        == 2
    )


def test_every_named_scheme_gives_a_picture_or_says_which_other_would() -> None:
    outcomes = {}
    for name, position in POSITIONS.items():
        made = fresh_subject(name, ModelConfig(position=position, **SHAPE))
        for picture in (visuals.encoding_figures, visuals.bias_figures):
            try:
                outcomes[name, picture] = [found for found, _ in picture(made, 20)]
            except UserError as error:
                outcomes[name, picture] = str(error)
    encoding = {
        name for name in POSITIONS if isinstance(outcomes[name, visuals.encoding_figures], list)
    }
    bias = {name for name in POSITIONS if isinstance(outcomes[name, visuals.bias_figures], list)}
    content = {
        name
        for name in POSITIONS
        if "depends on content" in str(outcomes[name, visuals.bias_figures])
    }
    assert content >= {"shaw", "transformer_xl", "xlnet", "deberta", "deberta_log", "cope", "fox"}
    assert bias == {
        *(
            "alibi",
            "alibi_asymmetric",
            "t5",
            "sinusoidal_t5",
            "kerple_log",
            "kerple_power",
            "fire",
            "sandwich",
        )
    }
    assert set(POSITIONS) - encoding - bias - content == {"none"}


# ------------------------------------------------------------------------------------------- biases


def test_alibis_matrices_and_curves_are_slopes_times_distance() -> None:
    figures = dict(visuals.bias_figures(subject(Alibi()), 12))
    assert list(figures) == [
        f"alibi_{s}_{what}" for s in ("encoder", "decoder") for what in ("matrices", "curves")
    ]
    slopes = alibi_slopes(2).double().numpy()
    distance = np.arange(12)[:, None] - np.arange(12)
    expected = -slopes[:, None, None] * np.abs(distance)
    np.testing.assert_allclose(drawn(figures["alibi_encoder_matrices"]), expected, atol=1e-7)
    decoder = np.where(distance >= 0, expected, np.nan)
    np.testing.assert_allclose(drawn(figures["alibi_decoder_matrices"]), decoder, atol=1e-7)
    assert titles(figures["alibi_decoder_matrices"]) == ["head 1", "head 2"]

    [encoder] = lines(figures["alibi_encoder_curves"]).values()
    offsets = np.arange(-6, 6)
    np.testing.assert_array_equal(encoder["head 2"][0], offsets)
    np.testing.assert_allclose(encoder["head 2"][1], -slopes[1] * np.abs(offsets), atol=1e-7)
    [decoder_lines] = lines(figures["alibi_decoder_curves"]).values()
    np.testing.assert_array_equal(decoder_lines["head 1"][0], np.arange(-11, 1))
    np.testing.assert_allclose(decoder_lines["head 1"][1], slopes[0] * np.arange(-11, 1), atol=1e-7)


@pytest.mark.parametrize(
    "position", [T5(), Kerple(), Fire(), Combined(attention=T5())], ids=lambda p: p.kind
)
def test_a_trained_bias_is_drawn_as_the_model_asks_for_it(position) -> None:
    scheme = tiny_model(position).scheme.float()
    model = tiny_config(position)
    made = Subject(position.kind, scheme, model, trained=True)
    assert made.label == f"{position.kind}, trained"
    positions = torch.arange(9)
    for kind, causal, k_end in (("encoder", False, torch.tensor([9])), ("decoder", True, None)):
        places = Places(positions, positions, causal=causal, k_end=k_end)
        whole = (
            scheme.attention(kind, 0)
            .bias(places)
            .detach()
            .double()
            .expand(1, model.n_heads, 9, 9)[0]
        )
        expected = (
            whole.masked_fill(~torch.ones(9, 9, dtype=torch.bool).tril(), float("nan"))
            if causal
            else whole
        )
        figure = dict(visuals.bias_figures(made, 9))[f"{position.kind}_{kind}_matrices"]
        first = drawn(figure)[: model.n_heads]
        np.testing.assert_allclose(first, expected.numpy(), rtol=1e-6, atol=1e-7)


class LayerBias(AttentionPosition):
    """A number for each layer."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def bias(self, places: Places) -> torch.Tensor:
        return torch.full((len(places.q_positions), len(places.k_positions)), self.value)


class LayerBiases(PositionScheme):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([LayerBias(1.0), LayerBias(2.0)])

    def attention(self, kind, layer):
        return self.layers[layer] if kind == "encoder" else self.no_attention


def test_layers_with_a_bias_of_their_own_take_a_row_each() -> None:
    made = Subject("layers", LayerBiases(), ModelConfig(**SHAPE), trained=False)
    figures = dict(visuals.bias_figures(made, 5))
    assert figures.keys() == {"layers_encoder_matrices", "layers_encoder_curves"}
    figure = figures["layers_encoder_matrices"]
    assert [matrix.mean() for matrix in drawn(figure)] == [1, 1, 2, 2]
    assert [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()] == [
        "layer 1",
        "layer 2",
        "added to the logit",
    ]
    assert list(lines(figures["layers_encoder_curves"])) == ["layer 1", "layer 2"]


# --------------------------------------------------------------------------------------- similarity


def test_the_similarity_of_sinusoids_is_a_sum_of_cosines_of_the_offset() -> None:
    figures = dict(similarity_figures([subject(Sinusoidal())], 30))
    panels = lines(figures["sinusoidal_by_offset"])
    expected = np.cos(np.arange(30)[:, None] * frequencies(8)).sum(1)
    np.testing.assert_allclose(panels["sinusoidal: dot product"][""][1], expected, atol=1e-12)
    np.testing.assert_allclose(panels["sinusoidal: cosine"][""][1], expected / 8, atol=1e-12)
    [matrix] = drawn(figures["sinusoidal_matrices"])
    offsets = np.abs(np.arange(30)[:, None] - np.arange(30))
    np.testing.assert_allclose(matrix, expected[offsets] / 8, atol=1e-12)
    # The band: every pair of one offset is equally alike.
    _, low, high = arrays.by_offset(
        arrays.dot_products(arrays.input_table(*table_of(Sinusoidal()), 16, 30))
    )
    np.testing.assert_allclose(low, high, atol=1e-12)


def table_of(position: Position):
    return subject(position).scheme, "source"


def test_by_offset_takes_mean_and_range_of_each_diagonal() -> None:
    products = np.array([[1.0, 2, 3], [2, 5, 6], [3, 6, 9]])
    mean, low, high = arrays.by_offset(products)
    assert mean.tolist() == [5, 4, 3]
    assert low.tolist() == [1, 2, 3]
    assert high.tolist() == [9, 6, 3]
    assert not arrays.cosines(np.zeros((2, 3))).any()
    np.testing.assert_allclose(
        arrays.cosines(np.array([[1.0, 0], [2, 2]])), [[1, 0.5**0.5], [0.5**0.5, 1]]
    )


def test_a_trained_table_stands_beside_an_untrained_one_and_sinusoids() -> None:
    position = Learnable(max_positions=20)
    model = tiny_model(position)
    made = Subject("learnable", model.scheme, tiny_config(position), trained=True)
    figures = dict(similarity_figures([made]))
    assert titles(figures["learnable_matrices"]) == [
        "learnable, trained, source side",
        "learnable, trained, target side",
        "learnable, untrained, source side",
        "sinusoidal",
    ]
    table = model.scheme.input("source").table.weight.detach().numpy()
    panels = lines(figures["learnable_by_offset"])
    mean = [np.diagonal(table @ table.T, k).mean() for k in range(20)]
    np.testing.assert_allclose(
        panels["learnable, trained, source side: dot product"][""][1], mean, atol=1e-12
    )
    # Two schemes at once, and a table that is shown once.
    both = dict(similarity_figures([subject(Sinusoidal()), subject(Learnable())], 10))
    assert titles(both["sinusoidal_learnable_matrices"]) == [
        "sinusoidal",
        "learnable, untrained, source side",
        "learnable, untrained, target side",
    ]


def test_a_fresh_scheme_leaves_the_random_state_alone_and_is_the_same_each_time() -> None:
    model = ModelConfig(position=Learnable(), **SHAPE)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first, second = (arrays.fresh_scheme(model).input("target").table.weight for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.rand(2), expected)


# -------------------------------------------------------------------------------------------- decay


def test_the_decay_of_sinusoids_and_rope_is_a_mean_of_cosines() -> None:
    [(name, figure)] = decay_figures([subject(Sinusoidal()), subject(Rope(layout="half"))], 50)
    assert name == "sinusoidal_rope"
    product, bound = lines(figure).values()
    k = np.arange(50)[:, None]
    np.testing.assert_allclose(
        product["sinusoidal (16 dimensions)"][1], np.cos(k * frequencies(8)).mean(1), atol=1e-12
    )
    np.testing.assert_allclose(
        product["rope (heads of 8)"][1], np.cos(k * frequencies(4)).mean(1), atol=1e-12
    )
    sums = np.abs(np.cumsum(np.exp(1j * k * frequencies(4)), axis=1))
    assert list(bound) == ["rope (heads of 8)"]
    np.testing.assert_allclose(bound["rope (heads of 8)"][1], sums.mean(1), atol=1e-12)
    # By distance, wherever a scheme puts its tokens.
    [(_, figure)] = decay_figures(
        [subject(Randomized(scheme=Rope(), spread=300, max_positions=50))]
    )
    for panel, expected in zip(lines(figure).values(), (product, bound)):
        np.testing.assert_allclose(
            panel["randomized (heads of 8)"][1], expected["rope (heads of 8)"][1], atol=1e-12
        )
    [(_, figure)] = decay_figures(
        [subject(Randomized(scheme=Sinusoidal(), spread=300, max_positions=50))]
    )
    [panel] = lines(figure).values()
    sinusoids = product["sinusoidal (16 dimensions)"][1]
    np.testing.assert_allclose(panel["randomized (16 dimensions)"][1], sinusoids, atol=1e-12)


def test_the_panel_of_products_is_titled_by_what_it_shows() -> None:
    def title(*positions: Position) -> str:
        [(_, figure)] = decay_figures([subject(position) for position in positions], 20)
        return titles(figure)[0]

    table = "mean cosine of position vectors (of sinusoids: the mean of cos(k w))"
    rotation = "q.k of unit vectors of equal entries (without magnitudes: the mean of cos(k w))"
    assert title(Learnable()) == title(Sinusoidal()) == table
    for position in (Rope(), XPos(), Rope(scaling=YarnScaling())):
        assert title(position) == rotation
    assert title(Sinusoidal(), Rope(), Learnable(), XPos()) == f"{table}; {rotation}"


def test_the_sides_of_a_table_keep_their_names_in_the_legend_of_decay() -> None:
    [(_, figure)] = decay_figures(
        [fresh_subject("learnable", ModelConfig(position=Learnable()))], 9
    )
    source, target = (text.get_text() for text in figure.legends[0].get_texts())
    assert source.startswith("learnable, untrained, source")
    assert target.startswith("learnable, untrained, target")


def test_the_bound_holds_for_real_products_and_is_met() -> None:
    module = subject(Rope()).scheme.attention("encoder", 0)
    positions = torch.arange(60)
    turned = arrays.rotation(module, positions, n_heads=1, head_dim=8)
    bound = arrays.decay_bound(turned[0])
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        q, k = (torch.randn(1, 1, 1, 8, generator=generator, dtype=torch.float64) for _ in range(2))
        h = (
            torch.view_as_complex(q.unflatten(-1, (4, 2)))
            * torch.view_as_complex(k.unflatten(-1, (4, 2))).conj()
        )
        steps = np.abs(np.diff(np.append(h.flatten().numpy(), 0))).max()
        # The query stands at distance d after the key at 0.
        q_d = module.rotate(q.expand(1, 1, 60, 8), positions, "query")
        product = (q_d @ module.rotate(k, torch.tensor([0]), "key").mT).flatten().numpy()
        assert (np.abs(product) <= 4 * steps * bound + 1e-12).all()
    assert bound[0] == 2.5  # at distance 0 the sums are 1, 2, 3, 4


def test_magnitudes_and_lengths_take_part_in_the_decay() -> None:
    def curve(position: Position, n: int = 50) -> tuple[np.ndarray, int]:
        [(_, figure)] = decay_figures([subject(position)], n)
        panels = list(lines(figure).values())
        return next(iter(panels[0].values()))[1], len(panels)

    k = np.arange(50)[:, None]
    zeta = (2 * np.arange(4) / 8 + 0.4) / 1.4
    values, n_panels = curve(XPos())
    np.testing.assert_allclose(
        values, (zeta ** (k / 512) * np.cos(k * frequencies(4))).mean(1), atol=1e-12
    )
    assert n_panels == 1  # RoFormer's bound is one of pure rotations
    assert curve(Rope(scaling=YarnScaling(factor=4.0)))[0][0] == pytest.approx(
        (0.1 * np.log(4) + 1) ** 2
    )
    # Dynamic NTK: plain as long as trained, and another base beyond.
    short = DynamicNtkScaling(factor=4.0, trained_length=50)
    np.testing.assert_allclose(curve(Rope(scaling=short))[0], curve(Rope())[0], atol=1e-12)
    base = 10000 * (4 * 100 / 50 - 3) ** (8 / 6)
    expected = np.cos(np.arange(100)[:, None] * frequencies(4, base)).mean(1)
    np.testing.assert_allclose(curve(Rope(scaling=short), 100)[0], expected, atol=1e-9)


# -------------------------------------------------------------------------------------- projections


def test_projections_are_those_of_the_first_encoder_layer() -> None:
    for backend, dropout in (
        ("scratch", {}),
        ("torch", {"attention_dropout": 0.0, "activation_dropout": 0.0}),
    ):
        model = tiny_model(Sinusoidal(), backend=backend, **dropout)
        w_q, w_k = arrays.encoder_projections(model.encoder)
        layer = model.encoder.layers[0] if backend == "scratch" else model.encoder.stack.layers[0]
        joint = (
            layer.self_attention.qkv_proj.weight
            if backend == "scratch"
            else layer.self_attn.in_proj_weight
        )
        np.testing.assert_array_equal(w_q, joint[:16].detach().numpy())
        np.testing.assert_array_equal(w_k, joint[16:32].detach().numpy())


def test_projected_products_are_logits_of_positions_alone() -> None:
    generator = np.random.default_rng(0)
    table, w_q, w_k = (
        generator.normal(size=(5, 16)),
        generator.normal(size=(16, 16)),
        generator.normal(size=(16, 16)),
    )
    found = arrays.projected_products(table, w_q, w_k, 2)
    for head, t, s in np.ndindex(2, 5, 5):
        part = slice(8 * head, 8 * head + 8)
        expected = (w_q @ table[t])[part] @ (w_k @ table[s])[part] / 8**0.5
        assert found[head, t, s] == pytest.approx(expected)


def test_without_projection_only_the_offset_counts_and_random_ones_lose_that() -> None:
    model = tiny_model(Sinusoidal())
    made = subject(Sinusoidal())
    figures = dict(projection_figures(made, model.encoder, 40))
    panels = lines(figures["sinusoidal_curves"])
    assert list(panels) == [
        "no projection",
        "random W_q, W_k (Xavier-uniform)",
        "trained W_q, W_k of the first encoder layer",
    ]
    offset_5 = {
        panel: [
            y[x == 5][0] for x, y in queries.values()
        ]  # the same offset from the queries 10, 20 and 30
        for panel, queries in panels.items()
    }
    plain = np.cos(5 * frequencies(8)).sum() / 8**0.5
    assert offset_5["no projection"] == pytest.approx([plain] * 3)
    assert np.ptp(offset_5["random W_q, W_k (Xavier-uniform)"]) > 0.1
    table = arrays.input_table(made.scheme, "source", 16, 40)
    trained = arrays.projected_products(table, *arrays.encoder_projections(model.encoder), 2)
    assert offset_5["trained W_q, W_k of the first encoder layer"] == pytest.approx(
        [trained[:, t, t + 5].sum() for t in (10, 20, 30)]
    )
    matrices = drawn(figures["sinusoidal_matrices"])
    assert len(matrices) == 3 * 2
    np.testing.assert_allclose(matrices[4], trained[0] / np.abs(trained[0]).max(), atol=1e-12)
    assert len(drawn(dict(projection_figures(made, None, 40))["sinusoidal_matrices"])) == 2 * 2


# ----------------------------------------------------------------------------------------- rotation


def test_the_rotation_goes_round_the_circle_by_each_frequency() -> None:
    [(name, figure)] = visuals.rotation_figures(subject(Rope(base=100.0)), 20)
    assert name == "rope"
    assert titles(figure) == [
        "pair 0: period 6.3",
        "pair 1: period 19.9",
        "pair 2: period 62.8",
        "pair 3: period 199",
    ]
    for axes, omega in zip(figure.axes, frequencies(4, 100.0)):
        points = axes.collections[0].get_offsets()
        expected = np.stack((np.cos(np.arange(20) * omega), np.sin(np.arange(20) * omega)), axis=1)
        np.testing.assert_allclose(points, expected, atol=1e-12)
    xpos = dict(visuals.rotation_figures(subject(XPos()), 20))
    assert list(xpos) == ["xpos_encoder", "xpos_decoder"]
    said = "; shown for queries, keys have the inverse magnitudes"
    assert [suptitle(picture).endswith(said) for picture in xpos.values()] == [False, True]
    [(_, yarn)] = visuals.rotation_figures(subject(Rope(scaling=YarnScaling())), 20)
    assert "queries" not in suptitle(yarn)  # both have the same magnitude
    assert [name for name, _ in visuals.rotation_figures(subject(Cope()), 20)] == ["cope_encoder"]


def test_periods_are_counted_in_positions_wherever_tokens_stand() -> None:
    [(_, plain)] = visuals.rotation_figures(subject(Rope(base=100.0)))
    for spread, max_positions in ((40, 30), (3000, 20), (20, 1)):
        made = subject(
            Randomized(scheme=Rope(base=100.0), spread=spread, max_positions=max_positions)
        )
        [(_, figure)] = visuals.rotation_figures(made)
        assert titles(figure) == titles(plain)
        assert len(figure.axes[0].collections[0].get_offsets()) == min(32, max_positions)


# --------------------------------------------------------------------------------------------- maps


def test_pca_and_mds_keep_what_a_plane_can_keep() -> None:
    generator = np.random.default_rng(0)
    flat = generator.normal(size=(12, 2)) * [3, 1]
    turn, _ = np.linalg.qr(generator.normal(size=(16, 16)))
    table = np.hstack((flat, np.zeros((12, 14)))) @ turn + 5.0
    mean, axes, shares = arrays.principal_axes(table)
    assert shares.sum() == pytest.approx(1.0)
    assert shares[0] > shares[1]
    points, stress = arrays.scaled_map(table)
    distances = np.linalg.norm(table[:, None] - table, axis=-1)
    for found in ((table - mean) @ axes.T, points):
        np.testing.assert_allclose(
            np.linalg.norm(found[:, None] - found, axis=-1), distances, atol=1e-6
        )
    assert stress == pytest.approx(0.0, abs=1e-6)
    assert arrays.scaled_map(np.eye(6))[1] > 0.1  # six equal distances do not fit in a plane


def test_a_map_shows_both_sides_by_both_methods() -> None:
    made = subject(Learnable(max_positions=30))
    [(name, figure)] = map_figures(made)
    assert name == "learnable"
    assert [title.split(" (")[0] for title in titles(figure)] == [
        f"{method}, {side} side" for side in ("source", "target") for method in ("PCA", "MDS")
    ]
    table = made.scheme.input("target").table.weight.detach().double().numpy()
    mean, axes, _ = arrays.principal_axes(table)
    np.testing.assert_allclose(
        figure.axes[2].collections[0].get_offsets(), (table - mean) @ axes.T, atol=1e-12
    )


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("picture", "position", "n", "said"),
    [
        ("encoding", NoPosition(), None, "'none' adds nothing to embeddings and turns nothing"),
        ("encoding", Alibi(), None, "`bias` draws what it adds to the logits"),
        (
            "encoding",
            Learnable(max_positions=20),
            21,
            "--positions 21: the learnable encoding has 20",
        ),
        (
            "bias",
            Rope(),
            None,
            "'rope' adds no bias to the logits; choose one that does, as in --position alibi",
        ),
        (
            "bias",
            Shaw(),
            None,
            "depends on content; look at a trained run with `visualize.py attention",
        ),
        ("similarity", Rope(), None, "'rope' adds nothing to embeddings, so there is no table"),
        ("projections", T5(), None, "'t5' adds nothing to embeddings, so there is no table"),
        ("decay", T5(), None, "nothing decays there; `bias` draws a bias by distance"),
        ("rotation", Sinusoidal(), None, "'sinusoidal' turns no queries and keys"),
        ("embedding_map", Rope(), None, "'rope' adds nothing to embeddings"),
        (
            "embedding_map",
            Sinusoidal(),
            2,
            "--positions 2: a map in the plane needs 3 positions or more",
        ),
    ],
)
def test_a_scheme_without_such_a_picture_says_so_and_names_another(
    picture, position, n, said
) -> None:
    with pytest.raises(UserError) as error:
        list(visuals.draw(picture, [subject(position)], n, None))
    assert said in str(error.value)


def test_a_scheme_is_labelled_by_what_has_become_of_it() -> None:
    made = subject(T5())
    assert (made.state, made.label) == ("untrained", "t5, untrained")
    assert dataclasses.replace(made, trained=True).label == "t5, trained"
    assert subject(Rope(), "rope_half").label == "rope_half"
    assert dataclasses.replace(subject(Rope()), trained=True).state == "fixed"
