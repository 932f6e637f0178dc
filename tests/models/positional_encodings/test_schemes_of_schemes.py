"""Trained tables, randomized positions, and the schemes that are made of two others."""

from typing import Any

import pytest
import torch
from references import normal
from tiny_models import (
    D_MODEL,
    N_LAYERS,
    POSITIONS as TINY,
    sources,
    targets,
    tiny_config,
    tiny_model,
)

from configs.schema import (
    Combined,
    Fox,
    Interleaved,
    Learnable,
    Position,
    Randomized,
    Rope,
    Shape,
    Shaw,
    Sinusoidal,
    Ssmax,
    TransformerXl,
)
from models.positional_encodings.base import PositionScheme
from models.positional_encodings.randomized import draw_positions
from models.positional_encodings.rope import LearnedRotary
from models.schemes import build_scheme
from utils.errors import UserError

CPU = torch.device("cpu")


def scheme_of(position: Position) -> PositionScheme:
    return build_scheme(tiny_config(position))


# ----------------------------------------------------------------------------------- trained tables


def test_rows_are_looked_up_in_a_table_for_each_side() -> None:
    torch.manual_seed(0)
    scheme = scheme_of(Learnable(max_positions=6))
    x, positions = torch.randn(2, 3, D_MODEL), torch.tensor([5, 0, 2])
    tables = dict(scheme.named_parameters())
    for side in ("source", "target"):
        rows = tables[f"{side}.table.weight"][positions]
        assert torch.equal(scheme.input(side)(x, positions), x + rows)
        assert scheme.max_length(side) == 6
        assert rows.std().item() == pytest.approx(D_MODEL**-0.5, rel=0.2)  # as an embedding's
    assert not torch.equal(*tables.values())


def test_a_step_past_a_table_names_the_side_the_length_and_the_table() -> None:
    model = tiny_model(Learnable(max_positions=5))
    state = model.init_state(model.encode(sources(5)), beam_size=2, max_len=8)
    for _ in range(5):
        model.decode_step(torch.full((1, 2), 3), state)
    with pytest.raises(UserError, match=r"target of 6 tokens.*max_positions allows for 5;"):
        model.decode_step(torch.full((1, 2), 3), state)


# ----------------------------------------------------------------------------- randomized positions


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


def test_positions_are_drawn_anew_in_training_and_fixed_in_evaluation() -> None:
    scheme = scheme_of(Randomized(spread=200, max_positions=20))
    scheme.train()
    torch.manual_seed(0)
    draws = [tuple(scheme.positions("source", 0, 7, CPU).tolist()) for _ in range(20)]
    assert len(set(draws)) == 20
    torch.manual_seed(0)
    assert tuple(scheme.positions("source", 0, 7, CPU).tolist()) == draws[0]
    scheme.eval()
    fixed = scheme.positions("target", 0, 20, CPU)
    assert (fixed.diff() > 0).all()
    assert torch.equal(scheme.positions("source", 4, 9, CPU), fixed[4:9])
    other = scheme_of(Randomized(spread=200, max_positions=20)).eval()
    assert torch.equal(other.positions("source", 0, 20, CPU), fixed)
    with pytest.raises(ValueError, match="token 21 is beyond the 20 positions"):
        scheme.positions("source", 0, 21, CPU)


def test_in_training_every_length_up_to_the_longest_is_drawn_equally_often() -> None:
    """Two tokens of up to four, from four positions: both first in 1/6, 3/6 and 6/6 of the draws
    of 2, 3 and 4.
    """
    scheme = scheme_of(Randomized(spread=4, max_positions=4)).train()
    torch.manual_seed(0)
    first = [scheme.positions("source", 0, 2, CPU).tolist() == [0, 1] for _ in range(3000)]
    assert sum(first) / 3000 == pytest.approx((1 + 3 + 6) / 18, abs=0.03)


# ------------------------------------------------------------------------------ positions shifted


@pytest.mark.parametrize("inner", [Sinusoidal(), Learnable(max_positions=9)])
def test_in_training_every_sentence_begins_anywhere_and_later_at_its_beginning(inner: Any) -> None:
    """Of 5000 sentences each of 0 .. 3 is the beginning of a quarter, whatever the other side's."""
    scheme, at = scheme_of(Shape(input=inner, max_shift=3)), torch.arange(4)
    plain, x, seen = scheme.inner, torch.zeros(5000, 4, D_MODEL), []
    for side in ("source", "target"):
        assert torch.equal(scheme.eval().input(side)(x, at), plain.input(side)(x, at))
        torch.manual_seed(0 if side == "source" else 1)
        rows = scheme.train().input(side)(x, at)
        starts = torch.stack([plain.input(side)(x[:1], at + k)[0] for k in range(4)])
        which = (rows[:, None] == starts).all(-1).all(-1)  # [5000,4]
        assert (which.sum(1) == 1).all()
        seen.append(which.float())
    together = seen[0].T @ seen[1] / 5000
    assert (together - 1 / 16).abs().max() < 0.015
    bound = Shape(input=inner, max_shift=3).tightest()
    length = None if inner == Sinusoidal() else 6
    assert scheme.max_length("source") == (bound and bound.length) == length


# --------------------------------------------------------------------------------------- two in one


def test_a_pair_acts_by_stack_and_on_the_source_alone() -> None:
    scheme, at = scheme_of(Fox(encoder=Rope())), torch.arange(3)
    x, tokens = normal(1, 2, 3, 8), normal(1, 3, 16).float()
    for kind, gates, turns in (("encoder", 0, 1), ("decoder", 1, 0), ("cross", 0, 0)):
        module = scheme.attention(kind, 0)
        assert (module.token_state(tokens) is not None) == gates
        assert (not torch.equal(module.rotate(x, at, "query"), x)) == turns
    scheme = scheme_of(Fox(encoder=Sinusoidal()))
    assert not torch.equal(scheme.input("source")(tokens, at), tokens)
    assert torch.equal(scheme.input("target")(tokens, at), tokens)
    assert (scheme_of(Fox(encoder=Learnable())).max_length("target")) is None


ROTATED = Rope(cross=True, learn_frequencies=True)
WITH_INPUT = Combined(attention=ROTATED)


@pytest.mark.parametrize(
    "position",
    [
        WITH_INPUT,
        Ssmax(scheme=WITH_INPUT),
        Randomized(scheme=WITH_INPUT),
        Combined(attention=Interleaved(others=ROTATED, nth=ROTATED)),
    ],
    ids=lambda position: position.kind,
)
def test_what_schemes_do_to_embeddings_and_in_cross_attention_reaches_it(position: Any) -> None:
    scheme, x = scheme_of(position), torch.randn(1, 3, D_MODEL)
    for side in ("source", "target"):
        assert not torch.equal(scheme.input(side)(x, torch.arange(3)), x)
    crossing = {scheme.attention("cross", layer) for layer in range(N_LAYERS)}
    assert len(crossing) == N_LAYERS
    assert all(isinstance(module, LearnedRotary) for module in crossing)


def test_layers_are_counted_from_one_and_each_scheme_has_its_own_alone() -> None:
    """Seven and five layers, every third: 2 and 5 of the encoder, 2 of the decoder."""
    position = Interleaved(others=Shaw(), nth=TransformerXl(reading="xlnet"), every=3)
    scheme = build_scheme(tiny_config(position, n_encoder_layers=7, n_decoder_layers=5))
    kinds = {"encoder": "SSXSSXS", "decoder": "SSXSS"}
    for kind, expected in kinds.items():
        modules = [scheme.attention(kind, i) for i in range(len(expected))]
        assert "".join(type(module).__name__[0].replace("T", "X") for module in modules) == expected
        assert len(set(modules)) == len(modules)
    reached = {
        p
        for k, e in kinds.items()
        for i in range(len(e))
        for p in scheme.attention(k, i).parameters()
    }
    assert reached == set(scheme.parameters())


@pytest.mark.parametrize(
    "name",
    ["learnable", "t5", "kerple_log", "shaw", "transformer_xl", "xlnet", "deberta", "tupe_r"],
)
def test_a_partner_in_the_encoder_has_no_parameters_for_the_decoder(name: str) -> None:
    partner = scheme_of(TINY[name])
    pair = scheme_of(Fox(encoder=TINY[name]))
    gates = sum(p.numel() for p in scheme_of(Fox()).parameters())
    both = sum(p.numel() for p in partner.parameters())
    assert sum(p.numel() for p in pair.parameters()) == gates + both // 2


@pytest.mark.parametrize("name", "rope_learned repo deberta dape interleaved_fox ssmax".split())
def test_stacks_of_unlike_depths_have_a_module_for_each_of_their_layers(name: str) -> None:
    model = tiny_model(TINY[name], n_encoder_layers=4, n_decoder_layers=2)
    model(sources(5), targets(1, 4)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.scheme.parameters())
