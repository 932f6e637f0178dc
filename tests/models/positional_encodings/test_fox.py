"""Forgetting attention: the sums of its gates, x-transformers, precision, known mistakes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from references import DOUBLE, catches, close, normal
from torch import Tensor
from x_transformers.x_transformers import DataDependentAlibi

from models.positional_encodings.base import Places
from models.positional_encodings.forgetting import ForgetGate, fox_bias

B, H = 2, 2
BiasOf = Callable[[Tensor, int], Tensor]


def check_bias(implementation: BiasOf) -> None:
    n_keys = 7
    log_gates = F.logsigmoid(normal(B, H, n_keys, seed=3))
    for n_queries in (7, 3, 1):
        got, first = implementation(log_gates, n_queries), n_keys - n_queries
        assert got.shape == (B, H, n_queries, n_keys)
        assert torch.isfinite(got).all()
        for i in range(first, n_keys):
            for j in range(i + 1):
                close(got[:, :, i - first, j], log_gates[:, :, j + 1 : i + 1].sum(-1))


def test_the_bias_is_the_sum_of_the_gates_between() -> None:
    check_bias(fox_bias)


def test_forgetting_is_that_of_x_transformers() -> None:
    torch.manual_seed(0)
    theirs = DataDependentAlibi(dim=12, heads=H).double()
    ours = ForgetGate(d_model=12, n_heads=H).double()
    ours.gate.load_state_dict(theirs.to_forget_gates[0].state_dict())
    x = normal(B, 9, 12)
    for n in (9, 3):
        q, places = normal(B, H, n, 6), Places(torch.arange(9 - n, 9), torch.arange(9), causal=True)
        bias = ours.logit_term(q, q, places, ours.token_state(x))
        close(bias.tril(9 - n), theirs(x)[:, :, -n:].tril(9 - n))


def test_a_head_that_forgets_nothing_has_no_positions_and_a_constant_gate_is_alibi() -> None:
    assert torch.equal(fox_bias(torch.zeros(B, H, 6), 4), torch.zeros(B, H, 4, 6))
    where, slopes = torch.arange(8), torch.tensor([2**-4, 2**-8], dtype=DOUBLE)
    distance = (where[:, None] - where).clamp(min=0)
    bias = fox_bias(-slopes[None, :, None].expand(1, H, 8), 8)[0]
    close(bias, -slopes[:, None, None] * distance)


def test_gates_begin_mild_and_are_logarithms_of_a_sigmoid() -> None:
    torch.manual_seed(0)
    module, x = ForgetGate(d_model=512, n_heads=8), torch.randn(4, 30, 512)
    kept = module.token_state(x).exp().detach()
    assert kept.shape == (4, 8, 30)
    assert kept.mean().item() == pytest.approx(1 / (1 + math.exp(-5)), abs=2e-3)
    assert kept.min() > 0.9
    logit = (x[1, 7] @ module.gate.weight[3] + module.gate.bias[3]).item()
    assert kept[1, 3, 7].item() == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-6)


def test_gates_keep_their_precision_under_autocast() -> None:
    torch.manual_seed(0)
    module, x = ForgetGate(d_model=32, n_heads=2), torch.randn(1, 200, 32)
    exact = copy.deepcopy(module).double().token_state(x.double())
    with torch.autocast("cpu", torch.bfloat16):
        state = module.token_state(x)
    assert state.dtype == torch.float32
    close(state.double(), exact, 1e-5)
    assert module.bfloat16().token_state(x.bfloat16()).dtype == torch.float32
    # also where the mask forbids, whose sums would overflow
    assert fox_bias(torch.full((1, 1, 2000), -100.0), 2000).to(torch.float16).isnan().sum() == 0
    assert fox_bias(torch.full((1, 1, 2000), -100.0), 2000).max() == 0


def test_what_cannot_be_is_refused() -> None:
    q, where = normal(B, H, 4, 4), torch.arange(4)
    with pytest.raises(ValueError, match=r"5 queries .* 4"):
        fox_bias(torch.zeros(1, 1, 4), 5)
    with pytest.raises(ValueError, match="self-attention only"):
        ForgetGate(d_model=8, n_heads=2).logit_term(q, q, Places(where, where), None)


# ----------------------------------------------------------------------------------------- mistakes


MISTAKES: dict[str, BiasOf] = {
    "the key's own gate": lambda gates, n: fox_bias(gates, n) + gates[..., None, :],
    "not the query's own gate": lambda gates, n: fox_bias(F.pad(gates, (1, 0))[..., :-1], n),
    "a step gets the first row": lambda gates, n: fox_bias(gates, gates.shape[-1])[..., :n, :],
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(lambda: check_bias(MISTAKES[mistake]))
