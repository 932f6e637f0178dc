"""Sandwich against its formula, the product of sinusoids that it is, and known mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from references import (
    DOUBLE,
    SlicedFromTheFront,
    bias_of,
    catches,
    check_rows_do_not_depend_on_the_other_queries,
    close,
    distances,
    loop,
    whole,
)
from torch import Tensor

from models.positional_encodings.sandwich import Sandwich, sandwich_bias

H = 8
SandwichOf = Callable[[Tensor, int, int], Tensor]  # distances, heads, width -> [H,...]


def our_sandwich(distance: Tensor, n_heads: int, width: int) -> Tensor:
    return sandwich_bias(distance, n_heads, width=width, dtype=DOUBLE)


def check_sandwich(sandwich: SandwichOf) -> None:
    """0 at distance 0, nowhere positive; heads as 1 : 1/2 : ...; one pair has frequency 1/base."""
    bias = sandwich(distances(30), 4, 16)
    assert (bias.diagonal(dim1=1, dim2=2) == 0).all()
    assert (bias <= 0).all()
    assert torch.equal(bias, bias.transpose(1, 2))
    far = bias[:, 20, 3]
    close(far[:1] / far, torch.arange(1, 5, dtype=DOUBLE))
    single = sandwich(torch.tensor([3000]), 1, 2)[0, 0]
    close(single, torch.tensor((math.cos(0.3) - 1) / 8, dtype=DOUBLE))


@pytest.mark.parametrize(("width", "base"), [(128, 10000.0), (6, 50.0)])
def test_sandwich_follows_its_formula(width: int, base: float) -> None:
    def entry(h: int, i: int, j: int) -> float:
        exponents = (-2 * pair / width for pair in range(1, width // 2 + 1))
        cosines = sum(math.cos((i - j) * base**exponent) for exponent in exponents)
        return (cosines - width / 2) / (8 * h / H)

    module = Sandwich(n_heads=H, width=width, base=base).double()
    close(whole(bias_of(module), 10), loop(10, entry, H))


def test_sandwich_is_a_product_of_sinusoids() -> None:
    """sin and cos of both positions, multiplied and summed: a cosine of the distance."""
    width, n = 32, 12
    theta = 10000.0 ** (-2 * torch.arange(1, width // 2 + 1, dtype=DOUBLE) / width)
    angles = torch.arange(n, dtype=DOUBLE)[:, None] * theta
    encoding = torch.cat((angles.sin(), angles.cos()), dim=1)
    close(our_sandwich(distances(n), 8, width)[0], encoding @ encoding.T - width / 2)


def test_the_invariants_of_sandwich() -> None:
    check_sandwich(our_sandwich)


def mistaken(
    first: int = 1, shift: float = 0.5, heads: bool = True, sine: bool = False
) -> SandwichOf:
    def bias(distance: Tensor, n_heads: int, width: int) -> Tensor:
        theta = 10000.0 ** (-2 * torch.arange(first, first + width // 2, dtype=DOUBLE) / width)
        angles = distance.to(DOUBLE)[..., None] * theta
        total = (angles.sin() if sine else angles.cos()).sum(-1) - shift * width
        scale = torch.arange(1, n_heads + 1, dtype=DOUBLE) if heads else torch.ones(n_heads)
        return total / (8 * scale / n_heads).view(-1, *[1] * distance.dim())

    return bias


MISTAKES: dict[str, Callable[[], None]] = {
    "frequencies from zero on": lambda: check_sandwich(mistaken(first=0)),
    "no shift to zero": lambda: check_sandwich(mistaken(shift=0)),
    "shift by the width": lambda: check_sandwich(mistaken(shift=1)),
    "all heads alike": lambda: check_sandwich(mistaken(heads=False)),
    "sine of the distance": lambda: check_sandwich(mistaken(sine=True)),
    "sliced from the front": lambda: check_rows_do_not_depend_on_the_other_queries(
        SlicedFromTheFront(bias_of(Sandwich(n_heads=H).double()))
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    check_sandwich(mistaken())
    catches(MISTAKES[mistake])
