"""CoPE and forgetting attention: the equations pair by pair, x-transformers, known mistakes."""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import DOUBLE, NEWEST, by_pair, catches, distances, normal
from tiny_models import close, configured
from torch import Tensor, nn
from x_transformers.x_transformers import CoPE, DataDependentAlibi

from configs.positions import Cope
from models.masks import causal_attn_mask
from models.positional_encodings.base import Places
from models.positional_encodings.cope import cope_logits, cope_positions
from models.positional_encodings.forgetting import ForgetGate, fox_bias

B, H, DH = 2, 2, 6


def queries_and_keys(n_queries: int, n_keys: int) -> tuple[Tensor, Tensor]:
    return normal(B, H, n_queries, DH, seed=1), normal(B, H, n_keys, DH, seed=2)


# --------------------------------------------------------------------------------------------- CoPE


def plain_logits(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / math.sqrt(DH)


def counted(qk: Tensor, j: int, allowed: Tensor) -> Tensor:
    """The gates from key j on of a query's logits [B,H,Tk], of which a causal mask allows some."""
    return (qk.sigmoid() * allowed)[..., j:].sum(-1)


def cope_by_pair(
    q: Tensor, k: Tensor, table: Tensor, at: Tensor, k_at: Tensor, count: Any
) -> Tensor:
    """Keys in the order of their positions; 0 for the pairs that a causal mask forbids."""

    def entry(i: int, j: int, m: int, n: int) -> Tensor:
        p = count(plain_logits(q[:, :, i, None], k)[:, :, 0], j, k_at <= m)
        p = p.clamp(max=len(table) - 1)
        low, part = p.floor().long(), (p - p.floor())[..., None]
        row = part * table[(low + 1).clamp(max=len(table) - 1)] + (1 - part) * table[low]
        return (q[:, :, i] * row).sum(-1) * (n <= m)

    return by_pair(at, k_at, entry)


def check_cope(implementation: Callable[..., Tensor], count: Any = counted) -> None:
    for n_positions in (9, 3):  # enough for every count, and too few for the largest
        table = normal(n_positions, DH, seed=3)
        for where in NEWEST.values():
            q, k = queries_and_keys(*map(len, where))
            got = implementation(q, k, table, Places(*where, causal=True))
            close(got * causal_attn_mask(*where), cope_by_pair(q, k, table, *where, count))
            assert torch.isfinite(got).all()


def module_logits(q: Tensor, k: Tensor, table: Tensor, places: Places) -> Tensor:
    shape = {"d_model": H * DH, "n_heads": H}
    module = configured(Cope(n_positions=len(table)), "decoder", **shape).double()
    module.table.data.copy_(table)
    return module.logit_term(q, k, places, None)


@pytest.mark.parametrize("n_positions", [4, 12])
def test_copes_logits_are_those_of_x_transformers(n_positions: int) -> None:
    q, k = queries_and_keys(9, 9)
    theirs = CoPE(dim=DH, heads=H, max_pos=n_positions).double()
    nn.init.normal_(theirs.pos_emb, generator=torch.Generator().manual_seed(0))
    allowed = causal_attn_mask(torch.arange(9), torch.arange(9))
    masked = plain_logits(q, k).masked_fill(~allowed, -torch.finfo(DOUBLE).max)
    close(cope_logits(q, plain_logits(q, k), theirs.pos_emb, allowed), theirs(q, masked))


def test_open_gates_count_tokens() -> None:
    n, n_positions = 6, 5
    allowed = causal_attn_mask(torch.arange(n), torch.arange(n))
    counts = cope_positions(torch.full((1, 1, n, n), 50.0).double(), allowed, n_positions)[0, 0]
    close(counts, (distances(n) + 1).clamp(0, n_positions - 1).double())


def test_gates_do_not_count_padding() -> None:
    where, n, table = torch.arange(6), 6, normal(4, DH, seed=3)
    q, k = queries_and_keys(n, n)
    moved = k.clone()
    moved[:, :, 2] += 3
    padding = torch.ones(B, 1, 1, n, dtype=torch.bool)
    padding[..., 2] = False
    padded = Places(where, where, causal=True, real_keys=padding)
    close(*(module_logits(q, key, table, padded) for key in (k, moved)))


def test_cope_counts_past_what_bfloat16_can_count() -> None:
    gates = torch.full((1, 1, 1, 300), 50.0, dtype=torch.bfloat16)
    positions = cope_positions(gates, torch.ones(1, 300).bool(), 400)
    assert positions.flatten().tolist() == list(range(300, 0, -1))


def function_logits(q: Tensor, k: Tensor, table: Tensor, places: Places) -> Tensor:
    allowed = causal_attn_mask(places.q_positions, places.k_positions)
    return cope_logits(q, plain_logits(q, k), table, allowed)


# ---------------------------------------------------------------------------------------------- FoX


def after_the_key(i: int, m: int, n: int) -> slice:
    """The tokens whose gates query i, at m, has to key n."""
    return slice(n + 1, m + 1)


def check_fox(between: Callable[[int, int, int], slice]) -> None:
    n_keys = 7
    log_gates = F.logsigmoid(normal(B, H, n_keys, seed=3))
    for n_queries in (7, 3, 1):
        got, at = fox_bias(log_gates, n_queries), torch.arange(n_keys - n_queries, n_keys)
        keys = torch.arange(n_keys)
        expected = by_pair(at, keys, lambda i, j, m, n: log_gates[:, :, between(i, m, n)].sum(-1))
        close(got * causal_attn_mask(at, keys), expected)
        assert torch.isfinite(got).all()


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


def test_a_head_that_forgets_nothing_has_no_positions() -> None:
    assert torch.equal(fox_bias(torch.zeros(B, H, 6), 4), torch.zeros(B, H, 4, 6))


def test_gates_begin_mild_and_are_logarithms_of_a_sigmoid() -> None:
    torch.manual_seed(0)
    module, x = ForgetGate(d_model=512, n_heads=8), torch.randn(4, 30, 512)
    kept = F.pad(module.token_state(x), (1, 0)).diff().exp().detach()
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
    # also where the mask forbids, whose sums would overflow in float16
    assert fox_bias(torch.full((1, 1, 2000), -100.0), 2000).max() == 0


def test_what_cannot_be_is_refused() -> None:
    q, where = normal(B, H, 4, 4), torch.arange(4)
    with pytest.raises(ValueError, match=r"5 queries .* 4"):
        fox_bias(torch.zeros(1, 1, 4), 5)
    with pytest.raises(ValueError, match="self-attention only"):
        ForgetGate(d_model=8, n_heads=2).logit_term(q, q, Places(where, where), None)


# --------------------------------------------------------------------------- equations and mistakes


@pytest.mark.parametrize(
    ("check", "of"),
    [(check_cope, module_logits), (check_cope, function_logits), (check_fox, after_the_key)],
)
def test_the_papers_equations_hold(check: Any, of: Any) -> None:
    check(of)


COPE = partial(check_cope, module_logits)
MISTAKES: dict[str, tuple[Callable[..., None], Any]] = {
    "cope: counts the future": (COPE, lambda qk, j, allowed: counted(qk, j, allowed | True)),
    "cope: counts from the start": (
        COPE,
        lambda qk, j, allowed: (qk.sigmoid() * allowed)[..., : j + 1].sum(-1),
    ),
    "cope: gates of bare logits": (COPE, lambda qk, *of: counted(qk * math.sqrt(DH), *of)),
    "cope: no interpolation": (COPE, lambda *of: counted(*of).round()),
    "fox: the key's own gate": (check_fox, lambda i, m, n: slice(n, m + 1)),
    "fox: not the query's own gate": (check_fox, lambda i, m, n: slice(n, m)),
    "fox: a step gets the first row": (check_fox, lambda i, m, n: slice(n + 1, i + 1)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(*MISTAKES[mistake])
