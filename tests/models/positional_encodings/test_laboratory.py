"""Every named scheme as a user meets it: configs, parameter counts, wrappers, and what happens past
the length.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import torch
from tiny_models import POSITIONS as TINY, sources, targets, tiny_config, tiny_model, vocabulary

from configs.load import load_config
from configs.positions import POSITIONS
from configs.schema import (
    T5,
    Alibi,
    Combined,
    Cope,
    DynamicNtkScaling,
    Fox,
    Learnable,
    ModelConfig,
    NoPosition,
    NtkScaling,
    Position,
    Randomized,
    Rope,
    Shaw,
    Sinusoidal,
    XPos,
)
from configs.serialize import apply_overrides, from_dict, to_dict
from models.attention.multi_head import KeyValueCache
from models.build import build_model
from models.positional_encodings.base import Places
from models.positional_encodings.randomized import RandomizedScheme, draw_positions
from models.positional_encodings.rope import Rotary, inverse_frequencies, rotate
from models.positional_encodings.rope_scaling import (
    dynamic_ntk_frequencies,
    linear_frequencies,
    ntk_frequencies,
    yarn_frequencies,
)
from models.schemes import build_scheme
from models.transformer import TranslationTransformer
from utils.errors import ConfigError, UserError

ROOT = Path(__file__).resolve().parents[3]


# ------------------------------------------------------------------------------------------ configs


@pytest.mark.parametrize("name", POSITIONS)
def test_every_name_is_one_word_on_the_command_line(name: str) -> None:
    base = load_config(ROOT / "configs/multi30k_small_rope.py")
    config = apply_overrides(base, [], position=name)
    assert from_dict(to_dict(config)) == config
    expected = (
        base.model.position if name == "rope" else POSITIONS[name]
    )  # a kind keeps the config's own section
    assert config.model.position == expected


def test_a_kind_among_the_names_stands_for_its_defaults() -> None:
    for name, position in POSITIONS.items():
        if name == position.kind:
            assert position == type(position)()


@pytest.mark.parametrize("n", [300, 40])
def test_a_position_table_chosen_by_name_is_long_enough_for_the_config(n: int) -> None:
    base = load_config(ROOT / "configs/multi30k_small_rope.py")
    changed = apply_overrides(
        base, [f"data.max_len={n}", f"decode.max_len={n}"], position="randomized_rope"
    )
    assert changed.model.position.longest() == max(n, 256)
    own = apply_overrides(base, ["model.position.max_positions=130"], position="randomized")
    assert own.model.position.longest() == 130


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Cope(encoder=Fox()), r"model.position.encoder = .*allowed: .*Rope"),  # type: ignore[arg-type]
        (lambda: Fox(encoder=XPos()), r"model.position.encoder = .*allowed: .*Rope"),  # type: ignore[arg-type]
        (
            lambda: Combined(input=Rope()),
            r"model.position.input = .*allowed: Sinusoidal, Learnable",
        ),  # type: ignore[arg-type]
        (
            lambda: Randomized(spread=100, max_positions=200),
            r"spread = 100: must be at least max_positions = 200",
        ),
        (lambda: Randomized(scheme=Learnable(max_positions=50)), r"learnable knows 50 positions"),
        (
            lambda: Rope(rope_dim="model", scaling=NtkScaling()),
            r"the ntk scaling is defined for rope_dim = 'head'",
        ),
        (
            lambda: Rope(cross=True, scaling=DynamicNtkScaling()),
            r"dynamic_ntk has a length of its own on each side",
        ),
        (
            lambda: Combined(attention=Fox(encoder=Learnable())),
            r"position.attention.encoder = .*scheme already",
        ),
        (lambda: Fox(encoder=Rope(cross=True)), r"encoder.cross = .*allowed: False"),
        (lambda: Randomized(scheme=NoPosition()), r"none puts the drawn positions to no use"),
        (
            lambda: Randomized(scheme=Cope(encoder=NoPosition())),
            r"cope puts the drawn positions to no use",
        ),
        (lambda: T5(n_buckets=30), r"n_buckets = 30: must be a multiple of 4"),
        (
            lambda: T5(n_buckets=32, max_distance=16),
            r"max_distance = 16: must be greater than n_buckets / 2 = 16",
        ),
        (
            lambda: ModelConfig(position=Fox(encoder=Rope()), d_model=6, n_heads=2),
            r"rope needs an even head size",
        ),
        (
            lambda: ModelConfig(position=Rope(scaling=NtkScaling()), d_model=8, n_heads=4),
            r"head size of 4 or more",
        ),
        (
            lambda: ModelConfig(position=Alibi(), backend="torch"),
            r"no place for positions inside attention",
        ),
    ],
)
def test_what_cannot_serve_is_refused_when_the_config_is_made(make, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


# --------------------------------------------------------------------------------------- parameters


# Trained numbers of the scheme alone at H = 8, d_model = 512, six layers a side.
COUNTS = {
    "none": 0,
    "sinusoidal": 0,
    "learnable": 2 * 512 * 512,
    "rope": 0,
    "sinusoidal_half": 0,
    "sinusoidal_t2t": 0,
    "rope_half": 0,
    "rope_ntk": 0,
    "alibi_asymmetric": 0,
    "deberta_log": 2 * 64 * 512 + 12 * 2 * 512 * 512,
    "rope_linear": 0,
    "rope_dynamic_ntk": 0,
    "rope_yarn": 0,
    "xpos": 0,
    "alibi": 0,
    "sandwich": 0,
    "t5": 2 * 32 * 8,
    "kerple_log": 2 * 2 * 8,
    "kerple_power": 2 * 2 * 8,
    "fire": 2 * 330,
    "shaw": 12 * 2 * 33 * 64,
    "transformer_xl": 12 * 512 * 512 + 2 * 2 * 512,
    "xlnet": 12 * 263_168,
    "deberta": 2 * 128 * 512 + 12 * 2 * 512 * 512,
    "cope": 6 * 64 * 64,
    "fox": 6 * (512 * 8 + 8),
    "randomized_rope": 0,
    "sinusoidal_t5": 2 * 32 * 8,
}


def test_no_named_scheme_is_left_out_of_the_counts_and_the_whole_model_tests() -> None:
    assert set(COUNTS) == set(POSITIONS)
    assert set(POSITIONS) <= set(TINY)


@pytest.mark.parametrize("name", COUNTS)
def test_a_scheme_has_as_many_parameters_as_its_formula(name: str) -> None:
    scheme = build_scheme(ModelConfig(position=POSITIONS[name]))
    assert sum(parameter.numel() for parameter in scheme.parameters()) == COUNTS[name]


@pytest.mark.parametrize(
    "partner", ["learnable", "t5", "kerple_log", "shaw", "transformer_xl", "xlnet", "deberta"]
)
def test_a_partner_in_the_encoder_has_no_parameters_for_the_decoder(partner: str) -> None:
    def count(scheme) -> int:
        return sum(p.numel() for p in scheme.parameters())

    whole = count(build_scheme(tiny_config(TINY[partner])))
    gates = count(build_scheme(tiny_config(Fox())))
    assert count(build_scheme(tiny_config(Fox(encoder=TINY[partner])))) == gates + whole // 2  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------ low precision


@pytest.mark.parametrize("name", TINY)
def test_a_scheme_trains_under_autocast_and_stays_near_full_precision(name: str) -> None:
    """bfloat16 products, float32 parameters, dropout of weights: what a GPU run does, in small."""
    torch.manual_seed(0)
    model = build_model(tiny_config(TINY[name], attention_dropout=0.1), vocabulary())
    src, tgt_in = sources(9, 5), targets(2, 8)
    model.eval()
    exact = model(src, tgt_in)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close_by = model(src, tgt_in)
        state = model.init_state(model.encode(src), beam_size=1, max_len=8)
        steps = [model.decode_step(tgt_in[:, t : t + 1], state)[:, 0] for t in range(8)]
    assert (close_by.float() - exact).abs().max() < 0.15 * exact.abs().max()
    assert (torch.stack(steps, dim=1).float() - exact).abs().max() < 0.15 * exact.abs().max()
    model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(src, tgt_in).float().logsumexp(dim=-1).sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.dtype == torch.float32
        assert torch.isfinite(parameter.grad).all(), key


# ---------------------------------------------------------------------------------- past the length


@pytest.mark.parametrize("name", TINY)
def test_past_the_trained_length_a_scheme_works_or_names_the_length(name: str) -> None:
    model = tiny_model(TINY[name])
    src, tgt_in = sources(40), targets(1, 40)
    if (TINY[name].longest() or 1000) > 40:
        assert torch.isfinite(model(src, tgt_in)).all()
    else:
        with pytest.raises(
            UserError, match="a source of 40 tokens is longer than the position table of 24"
        ):
            model(src, tgt_in)


# --------------------------------------------------------------------------- schemes made of others


def test_a_combination_adds_its_input_and_acts_inside_attention() -> None:
    both = build_scheme(tiny_config(Combined(input=Sinusoidal(), attention=Shaw(clip=2))))
    x = torch.zeros(1, 3, 16)
    assert both.input("source")(x, torch.arange(3)).abs().max() > 0.5
    assert both.attention("decoder", 1).needs_weights
    assert not both.attention("cross", 1).needs_weights


def test_a_pair_acts_by_stack_and_never_in_cross_attention() -> None:
    scheme = build_scheme(tiny_config(Fox(encoder=Rope())))
    x = torch.randn(1, 2, 3, 8)
    at = torch.arange(3)
    assert isinstance(scheme.attention("encoder", 0), Rotary)
    assert scheme.attention("decoder", 0).token_state(torch.randn(1, 3, 16)) is not None
    assert torch.equal(scheme.attention("cross", 0).rotate(x, at, "query"), x)
    assert torch.equal(scheme.attention("decoder", 0).rotate(x, at, "query"), x)


def test_drawn_positions_increase_and_every_choice_is_equally_likely() -> None:
    generator = torch.Generator().manual_seed(1)
    seen = torch.zeros(6)
    for _ in range(3000):
        drawn = draw_positions(2, 6, generator)
        assert drawn[0] < drawn[1]
        seen[drawn] += 1
    assert (seen / 3000 - 2 / 6).abs().max() < 0.03
    assert draw_positions(6, 6, generator).tolist() == list(range(6))
    with pytest.raises(ValueError, match="there are 6 positions to draw from, not 7"):
        draw_positions(7, 6)


def test_randomized_positions_are_drawn_anew_in_training_and_fixed_in_evaluation() -> None:
    scheme = build_scheme(tiny_config(Randomized(spread=200, max_positions=20)))
    cpu = torch.device("cpu")
    scheme.train()
    torch.manual_seed(0)
    draws = [tuple(scheme.positions("source", 0, 7, cpu).tolist()) for _ in range(20)]
    assert len(set(draws)) == 20
    torch.manual_seed(0)
    assert tuple(scheme.positions("source", 0, 7, cpu).tolist()) == draws[0]
    # seven positions of a draw of 7 to 20 among 200: some draws reach far, others keep close
    # together
    assert min(draw[-1] for draw in draws) < 100 < max(draw[-1] for draw in draws)
    scheme.eval()
    fixed = scheme.positions("target", 0, 20, cpu)
    assert (fixed.diff() > 0).all()
    assert torch.equal(scheme.positions("source", 4, 9, cpu), fixed[4:9])
    assert torch.equal(
        build_scheme(tiny_config(Randomized(spread=200, max_positions=20)))
        .eval()
        .positions("source", 0, 20, cpu),
        fixed,
    )
    with pytest.raises(ValueError, match="token 21 is beyond the 20 positions"):
        scheme.positions("source", 0, 21, cpu)


def test_randomized_positions_reach_the_scheme_inside() -> None:
    scheme = build_scheme(
        tiny_config(Randomized(scheme=Alibi(), spread=200, max_positions=20))
    ).eval()
    assert isinstance(scheme, RandomizedScheme)
    positions = scheme.positions("source", 0, 5, torch.device("cpu"))
    bias = scheme.attention("encoder", 0).bias(Places(positions, positions))
    assert bias is not None
    assert bias[0, 4, 0] / bias[0, 1, 0] == pytest.approx(
        float(positions[4] - positions[0]) / float(positions[1] - positions[0]), rel=1e-6
    )


# -------------------------------------------------------------- the tests' own test: known mistakes


def check_a_step_goes_on_where_the_prefix_ended(model: TranslationTransformer) -> None:
    src, tgt_in = sources(6, 4), targets(2, 5)
    whole = model(src, tgt_in)
    state = model.init_state(model.encode(src), beam_size=1, max_len=5)
    steps = [model.decode_step(tgt_in[:, t : t + 1], state)[:, 0] for t in range(5)]
    torch.testing.assert_close(torch.stack(steps, dim=1), whole, rtol=1e-10, atol=1e-10)


def check_an_encoder_without_positions_is_blind_to_order(model: TranslationTransformer) -> None:
    src, order = sources(6), torch.tensor([3, 1, 0, 2, 4, 5])
    torch.testing.assert_close(
        model.encode(src[:, order]).states,
        model.encode(src).states[:, order],
        rtol=1e-10,
        atol=1e-10,
    )


@pytest.mark.parametrize(
    "name", ["sinusoidal", "learnable", "rope", "alibi", "sinusoidal_t5", "learnable_shaw"]
)
def test_a_known_mistake_is_caught_positions_that_start_anew_at_every_step(name: str) -> None:
    """`pe[:, : x.size(1)]`: a one-token step stands at position 0."""
    model = tiny_model(TINY[name])
    check_a_step_goes_on_where_the_prefix_ended(model)
    model.scheme.positions = lambda side, start, end, device: torch.arange(end - start)  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        check_a_step_goes_on_where_the_prefix_ended(model)


@pytest.mark.parametrize("name", ["randomized_rope", "randomized_t5"])
def test_a_known_mistake_is_caught_positions_drawn_anew_at_every_step(name: str) -> None:
    model = tiny_model(TINY[name])
    check_a_step_goes_on_where_the_prefix_ended(model)
    generator = torch.Generator().manual_seed(3)
    model.scheme.positions = lambda side, start, end, device: draw_positions(end, 48, generator)[
        start:
    ]  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        check_a_step_goes_on_where_the_prefix_ended(model)


def test_a_known_mistake_is_caught_an_encoder_that_is_not_quite_without_positions() -> None:
    model = tiny_model(TINY["none"])
    check_an_encoder_without_positions_is_blind_to_order(model)
    model.scheme = build_scheme(tiny_config(Alibi())).double()
    with pytest.raises(AssertionError):
        check_an_encoder_without_positions_is_blind_to_order(model)


def test_a_known_mistake_is_caught_a_state_that_does_not_follow_its_beam(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forget gates stand beside the keys: where beams change places, they must too."""
    model = tiny_model(TINY["fox"])
    src, tgt_in = sources(5), targets(2, 4)
    swapped = torch.tensor([[1, 0]])

    def last_logits() -> torch.Tensor:
        state = model.init_state(model.encode(src), beam_size=2, max_len=4)
        for t in range(3):
            model.decode_step(tgt_in[None, :, t], state)
        state.reorder(swapped)
        return model.decode_step(tgt_in[None, [1, 0], 3], state)[0]

    def check() -> None:
        expected = model(src.repeat(2, 1), tgt_in)[:, -1]
        torch.testing.assert_close(last_logits(), expected[[1, 0]], rtol=1e-10, atol=1e-10)

    check()
    take = KeyValueCache.take

    def forgetful(self: KeyValueCache, rows: torch.Tensor) -> None:
        gates = None if self.state is None else self.state.clone()
        take(self, rows)
        self.state = gates

    monkeypatch.setattr(KeyValueCache, "take", forgetful)
    with pytest.raises(AssertionError):
        check()


def test_a_length_past_the_scheme_names_the_field_and_the_side() -> None:
    base = load_config(ROOT / "configs/multi30k_small_rope.py")

    def lengths(position: Position, source: int, target: int) -> None:
        model = replace(base.model, position=position)
        replace(
            base,
            model=model,
            data=replace(base.data, max_len=source),
            decode=replace(base.decode, max_len=target),
        )

    small = Learnable(max_positions=100)
    with pytest.raises(
        ConfigError, match=r"position.encoder.max_positions = 100: .* 100 tokens on the source side"
    ):
        lengths(Fox(encoder=small), 128, 100)
    lengths(Fox(encoder=small), 100, 200)  # the decoder has no table
    with pytest.raises(
        ConfigError, match=r"position.input.max_positions = 100: .* 100 tokens on the target side"
    ):
        lengths(Combined(input=small, attention=T5()), 100, 101)
    with pytest.raises(
        ConfigError, match=r"position.scale_base = 1.0: allows for \d+ tokens on the target side"
    ):
        lengths(XPos(scale_base=1.0), 30, 100)


def test_xpos_is_finite_up_to_its_bound() -> None:
    position = XPos(scale_base=1.0)
    bound = position.bound("target")
    assert bound is not None
    q = 100 * torch.randn(1, 1, 1, 8, generator=torch.Generator().manual_seed(0))
    for beyond, finite in ((0, True), (20, False)):
        at = torch.tensor([bound.length + beyond])
        key = build_scheme(tiny_config(position)).attention("decoder", 0).rotate(q, at, "key")
        assert bool(key.isfinite().all()) == finite


# ----------------------------------------------------------------- pure functions in any float type


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_frequencies_of_half_precision_are_the_exact_ones_rounded_once(dtype: torch.dtype) -> None:
    calls = (
        inverse_frequencies,
        partial(linear_frequencies, factor=4.0),
        partial(ntk_frequencies, factor=4.0),
        partial(dynamic_ntk_frequencies, factor=4.0, trained_length=64, length=200),
        partial(yarn_frequencies, factor=4.0, trained_length=64),
    )
    for call in calls:
        assert torch.equal(call(128, dtype=dtype), call(128).to(dtype))


@pytest.mark.parametrize("form", ["real", "complex"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rotation_at_given_positions_takes_any_float_type(
    form: Literal["real", "complex"], dtype: torch.dtype
) -> None:
    x = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    at, theta = torch.tensor([0, 3, 4, 9]), inverse_frequencies(6, dtype=torch.float64)
    turned = torch.view_as_complex(x.unflatten(-1, (3, 2))) * torch.exp(1j * at[:, None] * theta)
    got = rotate(x.to(dtype), at, theta.to(dtype), form=form)
    assert got.dtype == dtype
    # angles of up to 9 radians carry the rounding of theta
    assert (got.double() - torch.view_as_real(turned).flatten(-2)).abs().max() < 60 * torch.finfo(
        dtype
    ).eps
