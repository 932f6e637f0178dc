"""KERPLE's two kernels against their formulas, their gradients and bounds, and known mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from references import DOUBLE, bias_of, catches, check_near_keys_win, close, distances, loop, whole
from torch import Tensor

from models.positional_encodings.alibi import alibi_bias, alibi_slopes
from models.positional_encodings.kerple import (
    Kerple,
    kept_within,
    kerple_log_bias,
    kerple_power_bias,
)

H = 8
KernelOf = Callable[[Tensor, Tensor, Tensor], Tensor]  # distances, a [H], p [H] -> [H,...]
both_forms: Any = pytest.mark.parametrize("form", ["log", "power"])


def our_log_kernel(distance: Tensor, a: Tensor, p: Tensor) -> Tensor:
    return kerple_log_bias(distance, p, a)


def check_kernel_is_trained(kernel: KernelOf) -> None:
    """p and a get finite gradients that agree with finite differences, also at distance 0."""
    distance = distances(5)
    a = torch.tensor([0.05, 0.4, 0.9], dtype=DOUBLE, requires_grad=True)
    p = torch.tensor([0.2, 1.0, 1.7], dtype=DOUBLE, requires_grad=True)
    out = kernel(distance, a, p)
    assert out.requires_grad
    gradients = torch.autograd.grad(out.sum(), (a, p), allow_unused=True)
    for index, gradient in enumerate(gradients):
        assert gradient is not None
        assert torch.isfinite(gradient).all()
        for h in range(3):
            step = torch.zeros(3, dtype=DOUBLE)
            step[h] = 1e-6
            with torch.no_grad():
                up, down = ((a + s * step, p) if index == 0 else (a, p + s * step) for s in (1, -1))
                slope = (kernel(distance, *up).sum() - kernel(distance, *down).sum()) / 2e-6
            close(gradient[h], slope, 1e-6)
            assert gradient[h].abs() > 1e-3


def check_power_kernel(kernel: KernelOf) -> None:
    """With p = 1 it is ALiBi, and the exponent is the distance's, not the slope's."""
    slopes = alibi_slopes(H, dtype=DOUBLE)
    one = torch.ones_like(slopes)
    close(kernel(distances(9), slopes, one), alibi_bias(distances(9), slopes, causal=False))
    close(kernel(torch.tensor([3]), slopes, 2 * one)[:, 0], -9 * slopes)


@both_forms
def test_kerple_follows_the_papers_formula(form) -> None:
    module = Kerple(n_heads=H, form=form).double()
    p, a = module.p.tolist(), module.a.tolist()

    def entry(h: int, i: int, j: int) -> float:
        d = abs(i - j)
        if form == "log":
            return -p[h - 1] * math.log(1 + a[h - 1] * d)
        return -a[h - 1] * d ** p[h - 1]

    close(whole(bias_of(module), 12), loop(12, entry, H))


def test_the_power_kernel_contains_alibi() -> None:
    check_power_kernel(kerple_power_bias)


@pytest.mark.parametrize("kernel", [our_log_kernel, kerple_power_bias])
def test_the_parameters_are_trained(kernel: KernelOf) -> None:
    check_kernel_is_trained(kernel)


@both_forms
@pytest.mark.parametrize("n_heads", [1, 2, 8])
def test_heads_start_apart_and_within_bounds(form, n_heads: int) -> None:
    module = Kerple(n_heads=n_heads, form=form)
    assert ((module.p > 1e-2) & (module.p < 2)).all()
    assert ((module.a > 1e-2) & (module.a < 1)).all()
    far = bias_of(module.double())(torch.tensor([5]), torch.tensor([0])).flatten()
    assert (far.diff() < -0.05).all()


@both_forms
def test_parameters_act_clamped_and_find_the_way_back(form) -> None:
    module, clamped = (Kerple(n_heads=2, form=form).double() for _ in range(2))
    with torch.no_grad():
        module.p.copy_(torch.tensor([-0.3, 2.5]))
        module.a.copy_(torch.tensor([0.4, -1.0]))
        clamped.p.copy_(torch.tensor([0.01, 2.0 if form == "power" else 2.5]))
        clamped.a.copy_(torch.tensor([0.4, 0.01]))
    before = module.p.clone()
    close(whole(bias_of(module), 6), whole(bias_of(clamped), 6))
    assert torch.equal(module.p, before)
    # A loss that wants far keys lower asks for more of p in head 0, which lies below its bound.
    for sign in (1, -1):
        module.zero_grad()
        (sign * whole(bias_of(module), 6).sum()).backward()
        assert module.p.grad is not None
        assert module.p.grad[0] < 0 if sign == 1 else module.p.grad[0] == 0


def test_a_clamped_value_takes_gradients_that_lead_back_and_no_others() -> None:
    x = torch.tensor([-1.0, 0.5, 3.0], requires_grad=True)
    inside = kept_within(x, 0.0, 2.0)
    assert inside.tolist() == [0.0, 0.5, 2.0]
    for sign, expected in ((1, [0.0, 1.0, 1.0]), (-1, [-1.0, -1.0, 0.0])):
        (gradient,) = torch.autograd.grad(sign * inside.sum(), x, retain_graph=True)
        assert gradient.tolist() == expected


# ----------------------------------------------------------------------------------------- mistakes


def zero_without_gradient(distance: Tensor, a: Tensor, p: Tensor) -> Tensor:
    """a is a zero, and no parameter (NeMo's KERPLE)."""
    return kerple_log_bias(distance, p, torch.zeros_like(a).detach())


def power_by_logarithm(distance: Tensor, a: Tensor, p: Tensor) -> Tensor:
    """|d|^p as exp(p ln |d|): its gradient at distance 0 is 0 times infinity."""
    d = distance.abs().to(a.dtype)
    return -a[:, None, None] * torch.exp(p[:, None, None] * d.log())


def power_of_everything(distance: Tensor, a: Tensor, p: Tensor) -> Tensor:
    """-(a |d|)^p."""
    shape = (-1, *[1] * distance.dim())
    return -((a.view(shape) * distance.abs()) ** p.view(shape))


def power(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    return kerple_power_bias(q_positions[:, None] - k_positions, torch.ones(2), torch.ones(2))


MISTAKES: dict[str, Callable[[], None]] = {
    "a is zero and no parameter": lambda: check_kernel_is_trained(zero_without_gradient),
    "NaN for a gradient at distance 0": lambda: check_kernel_is_trained(power_by_logarithm),
    "power of everything": lambda: check_power_kernel(power_of_everything),
    "the sign reversed": lambda: check_near_keys_win(lambda q, k: -power(q, k)),
    "the distance with its sign": lambda: check_near_keys_win(
        lambda q, k: -torch.log1p(0.1 * (q[:, None] - k).clamp(min=0).to(DOUBLE))[None]
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    check_near_keys_win(power)
    catches(MISTAKES[mistake])
