"""FIRE's ratio and network against the paper's formula, its edges, and known mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from references import DOUBLE, bias_of, catches, close, loop, normal, whole
from torch import Tensor

from models.positional_encodings.fire import Fire, fire_bias, fire_ratio

# q_positions, k_positions, c, threshold -> [Tq,Tk]
RatioOf = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
C, L = torch.tensor(0.1, dtype=DOUBLE), torch.tensor(16.0, dtype=DOUBLE)


def check_ratio(ratio_of: RatioOf) -> None:
    """0 at the own place, then growing ever more slowly, within 0..1; by distance alone up to L."""
    positions = torch.arange(60)
    ratio = ratio_of(positions, positions, C, L)
    assert torch.isfinite(ratio).all()
    assert (ratio.diagonal() == 0).all()
    assert ratio.min() == 0
    assert ratio.max() <= 1
    assert (ratio[-1].diff() < 0).all()
    assert (ratio[-1].flip(0).diff().diff() < 0).all()
    near = ratio[:17, :17]
    close(near[1:, 1:], near[:-1, :-1])
    assert (ratio[31:, 1:31] - ratio[30:-1, :30]).abs().max() > 1e-3
    # The farthest key is at 1 from L on, whatever the length.
    close(ratio[16:, 0], torch.ones(44, dtype=DOUBLE))


def check_the_length_is_not_seen(ratio_of: RatioOf) -> None:
    short, long = torch.arange(20), torch.arange(50)
    close(ratio_of(long, long, C, L)[:20, :20], ratio_of(short, short, C, L))
    close(ratio_of(long[-1:], long, C, L), ratio_of(long, long, C, L)[-1:])


@pytest.mark.parametrize("threshold", [512.0, 5.0, -5.0])
def test_fire_follows_the_papers_formula(threshold: float) -> None:
    c, width, at = 0.3, 6, torch.arange(13)
    w1, b1, w2, b2 = (
        normal(*s, seed=n) for n, s in enumerate([(width, 1), (width,), (3, width), (3,)])
    )

    def psi(x: float) -> float:
        return math.log(abs(c * x) + 1)

    def entry(h: int, i: int, j: int) -> float:
        ratio = psi(i - j) / psi(max(abs(threshold), i, j))  # i alone in the paper, where j <= i
        hidden = [max(0.0, float(w1[n, 0]) * ratio + float(b1[n])) for n in range(width)]
        return float(b2[h - 1]) + sum(float(w2[h - 1, n]) * x for n, x in enumerate(hidden))

    scalars = torch.tensor(c, dtype=DOUBLE), torch.tensor(threshold, dtype=DOUBLE)
    close(fire_bias(at, at, *scalars, w1, b1, w2, b2), loop(13, entry, 3))


def test_the_module_hands_over_what_it_trains() -> None:
    module, at = Fire(n_heads=8, threshold=12.0).double(), torch.arange(20)
    with torch.no_grad():
        module.threshold_factor.fill_(0.5)
        module.c.fill_(-0.2)
    ratio = fire_ratio(at, at, torch.tensor(0.2), torch.tensor(6.0)).double()
    expected = module.out(module.hidden(ratio[..., None]).relu()).permute(2, 0, 1)
    close(whole(bias_of(module), 20), expected, 1e-6)


def test_fire_starts_as_in_the_paper() -> None:
    module = Fire(n_heads=8)
    assert module.c.item() == pytest.approx(0.1)
    assert module.threshold * module.threshold_factor.item() == 512.0
    assert (module.hidden.out_features, module.out.out_features) == (32, 8)


def test_the_ratio() -> None:
    check_ratio(fire_ratio)
    check_the_length_is_not_seen(fire_ratio)


@pytest.mark.parametrize(("c", "threshold"), [(0.0, 16.0), (0.1, 0.0), (0.0, 0.0), (1e-9, 1e-9)])
def test_fire_stays_finite_where_its_formula_is_not_defined(c: float, threshold: float) -> None:
    scalars = [torch.tensor(x, requires_grad=True) for x in (c, threshold)]
    ratio = fire_ratio(torch.arange(9), torch.arange(9), *scalars)
    assert torch.isfinite(ratio).all()
    assert ((ratio >= 0) & (ratio <= 1)).all()
    assert all(torch.isfinite(g) for g in torch.autograd.grad(ratio.sum(), scalars))


# ----------------------------------------------------------------------------------------- mistakes


def mistaken(
    numerator: Callable[[Tensor], Tensor] = lambda d: torch.log1p((C * d).abs()),
    later: Callable[[Tensor, Tensor], Tensor] = lambda q, k: torch.maximum(q[:, None], k),
    threshold: Tensor = L,
) -> RatioOf:
    """psi(i - j) / psi(max(L, later(i, j))) with a part of it changed."""

    def changed(q: Tensor, k: Tensor, *_: Tensor) -> Tensor:
        most = torch.maximum(later(q, k).to(DOUBLE), threshold)
        return numerator((q[:, None] - k).to(DOUBLE)) / torch.log1p(C * most)

    return changed


MISTAKES: dict[str, Callable[[], None]] = {
    "without the threshold": lambda: check_ratio(mistaken(threshold=torch.ones(()).double())),
    "divided by the query alone": lambda: check_ratio(mistaken(later=lambda q, k: q[:, None])),
    "no absolute value": lambda: check_ratio(mistaken(lambda d: torch.log(C * d + 1))),
    "no logarithm": lambda: check_ratio(
        lambda q, k, c, far: (
            (q[:, None] - k).abs() / torch.maximum(torch.maximum(q[:, None], k), far)
        )
    ),
    "divided by the length": lambda: check_the_length_is_not_seen(
        mistaken(later=lambda q, k: k.max())
    ),
    "positions counted from zero": lambda: check_the_length_is_not_seen(
        lambda q, *rest: fire_ratio(torch.arange(len(q)), *rest)
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    check_ratio(mistaken())
    check_the_length_is_not_seen(mistaken())
    catches(MISTAKES[mistake])
