"""Sinusoids: the paper's formula and invariants, the layouts of other programs, known mistakes."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from references import DOUBLE, catches, normal, shift_matrix, theta_of
from tiny_models import close, sources, targets, tiny_config, tiny_model
from torch import Tensor
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.xlnet.modeling_xlnet import XLNetModel

from configs.schema import Sinusoidal
from models.positional_encodings.sinusoidal import SinusoidalInput, sinusoid_table
from models.schemes import build_scheme

Table = Callable[..., Tensor]  # positions [T], d and, but for the paper's, base -> [T,d]


def check_table(table: Table) -> None:
    """The invariants of a table in the paper's layout; it must know positions, not rows."""
    d, positions = 32, torch.arange(3, 43)
    rows = table(positions, d)
    close(rows.pow(2).sum(-1), torch.full((40,), d / 2, dtype=DOUBLE))
    for k in (1, 7):
        products = (rows[k:] * rows[:-k]).sum(-1)
        close(products, torch.cos(k * theta_of(d)).sum().expand(40 - k))
        close(rows[:-k] @ shift_matrix(k, d).T, rows[k:])
    close(table(positions[11:12], d), rows[11:12])
    close(table(torch.tensor([0]), d)[0], torch.tensor([0.0, 1.0] * (d // 2), dtype=DOUBLE))


def check_half(table: Table) -> None:
    """Marian's table, and XLNet's of distances that are negative too."""
    marian = MarianSinusoidalPositionalEmbedding(60, 16).create_weight()
    close(table(torch.arange(60), 16, 10000.0).float(), marian, 1e-7)
    distances = torch.arange(9, -9, -1)
    frequencies = 1 / 500 ** (torch.arange(0, 16, 2).double() / 16)
    xlnet = XLNetModel.positional_embedding(distances.double(), frequencies)
    close(table(distances, 16, 500.0), xlnet[:, 0])


def check_t2t(table: Table) -> None:
    """M2M100's table, and the formula with another base at some positions."""
    theirs = M2M100SinusoidalPositionalEmbedding.get_embedding(60, 16)
    ours = table(torch.arange(60), 16, 10000.0)
    close(ours.float(), theirs, 2e-5)  # theirs are angles of float32
    expected = [
        [f(t * 500.0 ** (-i / 4)) for f in (math.sin, math.cos) for i in range(5)]
        for t in (0, 3, 50)
    ]
    close(table(torch.tensor([0, 3, 50]), 10, 500.0), torch.tensor(expected, dtype=DOUBLE))


def our_table(layout: Any) -> Table:
    return lambda positions, d, base: sinusoid_table(
        positions, d, base=base, layout=layout, dtype=DOUBLE
    )


def paper(positions: Tensor, d: int) -> Tensor:
    return sinusoid_table(positions, d, dtype=DOUBLE)


def test_tables_are_those_of_the_paper_and_of_other_programs() -> None:
    check_table(paper)
    angles = torch.arange(60)[:, None] * theta_of(12, 500.0)
    close(our_table("interleaved")(torch.arange(60), 12, 500.0), _sinusoids(angles))
    check_half(our_table("half"))
    check_t2t(our_table("t2t"))
    one_pair = our_table("t2t")(torch.tensor([1]), 2, 9.0)[0]
    close(one_pair, torch.tensor([math.sin(1), math.cos(1)], dtype=DOUBLE))


@pytest.mark.parametrize("layout", ["interleaved", "half", "t2t"])
def test_the_table_of_the_layout_is_added_to_both_sides(layout: Any) -> None:
    x, positions = normal(2, 3, 8), torch.tensor([4, 5, 6])
    expected = x + our_table(layout)(positions, 8, 50.0)
    scheme = build_scheme(tiny_config(Sinusoidal(base=50.0, layout=layout)))
    for side in ("source", "target"):
        close(scheme.input(side)(x, positions), expected)


def test_bfloat16_input_does_not_blur_sinusoids() -> None:
    positions = torch.tensor([2047, 2048])
    add = SinusoidalInput(base=10000.0)
    out = add(torch.zeros(1, 2, 64, dtype=torch.bfloat16), positions)
    assert out.dtype == torch.bfloat16
    assert not torch.equal(out[0, 0], out[0, 1])
    # one rounding to bfloat16, and float32 angles
    assert (out[0].double() - paper(positions, 64)).abs().max() < 5e-3


def test_sinusoids_exist_far_past_training() -> None:
    out = paper(torch.tensor([1_000_000]), 8)
    close(out[0, :2], torch.tensor([math.sin(1e6), math.cos(1e6)], dtype=DOUBLE), 1e-9)
    assert torch.isfinite(tiny_model(Sinusoidal())(sources(1500), targets(1, 3))).all()


def test_an_odd_size_is_refused() -> None:
    with pytest.raises(ValueError, match="d_model = 7 must be even"):
        paper(torch.arange(3), 7)


# ----------------------------------------------------------------------------------------- mistakes


def _sinusoids(angles: Tensor) -> Tensor:
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def _halves(
    exponents: Callable[[int], Tensor], first: Any = torch.sin, second: Any = torch.cos
) -> Table:
    """first of all angles, then second; exponents of the base for n frequencies."""

    def table(positions: Tensor, d: int, base: float) -> Tensor:
        angles = positions[:, None] * base ** -exponents(d // 2)
        return torch.cat((first(angles), second(angles)), dim=-1)

    return table


def _over(less: float) -> Callable[[int], Tensor]:
    return lambda n: torch.arange(n, dtype=DOUBLE) / (n - less)


def _by_turns(positions: Tensor, d: int, base: float) -> Tensor:
    return our_table("t2t")(positions, d, base)[:, torch.arange(d).view(2, -1).T.flatten()]


MISTAKES: dict[str, tuple[Callable[..., None], Table]] = {
    # exponent 2i/d with i that already counts in steps of two
    "exponent counted twice": (check_table, lambda p, d: _sinusoids(p[:, None] * theta_of(d) ** 2)),
    # pe[:, :x.size(1)]: the rows are counted, the positions not looked at
    "table sliced from the front": (check_table, lambda p, d: paper(torch.arange(len(p)), d)),
    "sine and cosine exchanged": (check_table, lambda p, d: paper(p, d)[:, torch.arange(d) ^ 1]),
    "rising frequencies": (check_table, lambda p, d: _sinusoids(p[:, None] * theta_of(d).flip(0))),
    "another layout": (check_table, lambda p, d: our_table("half")(p, d, 10000.0)),
    "t2t's frequencies": (check_table, lambda p, d: _by_turns(p, d, 10000.0)),
    "half: the paper's order": (check_half, our_table("interleaved")),
    "half: cosines first": (check_half, _halves(_over(0), torch.cos, torch.sin)),
    "half: exponents over d/2 - 1": (check_half, _halves(_over(1))),
    "half: the last frequencies first": (check_half, _halves(lambda n: _over(0)(n).flip(0))),
    "half: no sign": (check_half, lambda p, d, base: our_table("half")(p.abs(), d, base)),
    "t2t: the paper's order": (check_t2t, _by_turns),
    "t2t: cosines first": (check_t2t, _halves(_over(1), torch.cos, torch.sin)),
    "t2t: exponents over d/2": (check_t2t, _halves(_over(0))),
    "t2t: exponents over d - 1": (check_t2t, _halves(_over(0.5))),
    # Where padding has id 1, fairseq and its heirs give the first token position 2.
    "t2t: from the padding": (check_t2t, lambda p, d, base: our_table("t2t")(p + 2, d, base)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(*MISTAKES[mistake])


def test_the_made_mistakes_are_the_only_fault() -> None:
    check_half(_halves(_over(0)))
    check_t2t(_halves(_over(1)))
