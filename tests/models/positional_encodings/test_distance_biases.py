"""What every bias by distance must hold: rows, gaps, types; and the helper that they share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from references import (
    ANYWHERE,
    DOUBLE,
    bias_of,
    check_near_keys_win,
    check_rows_do_not_depend_on_the_other_queries,
    close,
    whole,
)
from torch import Tensor

from models.positional_encodings.alibi import Alibi
from models.positional_encodings.base import AttentionPosition, Places
from models.positional_encodings.fire import Fire
from models.positional_encodings.kerple import Kerple
from models.positional_encodings.relative import by_distance
from models.positional_encodings.sandwich import Sandwich
from models.positional_encodings.t5 import T5Bias

H = 8
MODULES: dict[str, Callable[[], AttentionPosition]] = {
    "alibi": lambda: Alibi(n_heads=H),
    "alibi_asymmetric": lambda: Alibi(n_heads=H, asymmetry=0.5),
    "t5": lambda: T5Bias(n_heads=H, bidirectional=True),
    "t5_causal": lambda: T5Bias(n_heads=H, bidirectional=False),
    "kerple_log": lambda: Kerple(n_heads=H, form="log"),
    "kerple_power": lambda: Kerple(n_heads=H, form="power"),
    "fire": lambda: Fire(n_heads=H, threshold=12.0),
    "sandwich": lambda: Sandwich(n_heads=H),
}
every_bias = pytest.mark.parametrize("name", MODULES)


def module_of(name: str, dtype: torch.dtype = DOUBLE) -> AttentionPosition:
    torch.manual_seed(3)
    return MODULES[name]().to(dtype)


@every_bias
@pytest.mark.parametrize("causal", [False, True])
def test_one_row_is_the_last_row_of_the_whole_bias(name: str, causal: bool) -> None:
    check_rows_do_not_depend_on_the_other_queries(bias_of(module_of(name), causal=causal))


@pytest.mark.parametrize("name", ["alibi", "kerple_log", "kerple_power", "sandwich"])
def test_near_keys_win_on_both_sides(name: str) -> None:
    check_near_keys_win(bias_of(module_of(name)))


@every_bias
@pytest.mark.parametrize("where", ANYWHERE)
def test_places_with_gaps_or_without_order_get_their_entries_of_the_whole(
    name: str, where: str
) -> None:
    q, k = ANYWHERE[where]
    first = 0 if name == "fire" else int(torch.cat((q, k)).min())  # FIRE is absolute past L
    bias = bias_of(module_of(name))
    expected = whole(bias, int(torch.cat((q, k)).max()) - first + 1)[:, q - first][:, :, k - first]
    close(bias(q, k), expected)


@every_bias
def test_positions_may_lie_very_far_apart(name: str) -> None:
    bias = bias_of(module_of(name))
    positions = torch.tensor([0, 5, 10**6])
    each = [bias(positions[i : i + 1], positions[j : j + 1]) for i in range(3) for j in range(3)]
    close(bias(positions, positions), torch.cat(each, dim=2).view(H, 3, 3))


@every_bias
def test_the_type_follows_the_module_and_is_float32_or_better(name: str) -> None:
    exact, single, half = (
        whole(bias_of(module_of(name, dtype)), 300)
        for dtype in (DOUBLE, torch.float32, torch.bfloat16)
    )
    assert (exact.dtype, single.dtype, half.dtype) == (DOUBLE, torch.float32, torch.float32)
    assert exact.shape == (H, 300, 300)
    close(single.double(), exact, 1e-5)
    if not list(module_of(name).parameters()):
        assert torch.equal(half, single)


@every_bias
def test_autocast_does_not_touch_a_bias(name: str) -> None:
    bias = bias_of(module_of(name, torch.float32))
    plain = whole(bias, 40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = whole(bias, 40)
    assert under_autocast.dtype == torch.float32
    assert torch.equal(under_autocast, plain)


@pytest.mark.parametrize("name", ["t5", "t5_causal", "kerple_log", "kerple_power", "fire"])
@pytest.mark.parametrize("one_row", [False, True])
def test_a_gradient_reaches_every_parameter(name: str, one_row: bool) -> None:
    module, at = module_of(name), torch.arange(6)
    made = bias_of(module)(at[-1:] if one_row else at, at)
    (made * torch.randn_like(made)).sum().backward()
    for parameter in module.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().max() > 0


def test_the_shared_helper_evaluates_each_distance_once() -> None:
    asked: list[int] = []

    def values(distance: Tensor) -> Tensor:
        asked.append(len(distance))
        return torch.stack((distance, distance**2))

    q, k = torch.arange(3, 40), torch.arange(25)
    out = by_distance(Places(q, k), values)
    d = q[:, None] - k
    assert torch.equal(out, torch.stack((d, d**2)))
    by_distance(Places(q[-1:], k), values)
    far = torch.tensor([0, 5, 1000])
    by_distance(Places(far, far), values)
    assert asked == [len(q) + len(k) - 1, len(k), 9]
