"""FoPE: its sum of waves pair by pair, how its coefficients are drawn, known mistakes."""

import cmath
import math
from functools import partial
from typing import Any

import pytest
import torch
from references import catches, normal, theta_of
from tiny_models import N_HEADS, close, configured, tiny_model
from torch import Tensor, nn

import configs.positions as config
from configs.load import load_config
from experiments.copier import Task, fit_to_task
from models.positional_encodings.base import Places
from models.positional_encodings.fope import Fourier

BASE, DH, N_WAVES = 10.0, 8, 3  # the slowest of four pairs turns once in 35 tokens
FOPE = config.Fope(base=BASE, trained_length=24, sigma=2.0)
AT = torch.tensor([0, 5, 2, 61])


def paper(module: Any, h: int, m: int, n: int, *, rest: complex = 1.0) -> complex:
    """The factor of pair m of head h at position n."""
    theta, (a, b) = theta_of(DH, BASE).tolist(), module.others[:, h].tolist()
    if m >= N_WAVES:
        return rest
    waves = range(N_WAVES)
    others = sum(a[w][m] * math.cos(theta[w] * n) for w in waves)
    others += 1j * sum(b[w][m] * math.sin(theta[w] * n) for w in waves)
    return cmath.exp(1j * theta[m] * n) + others


def check_factors(module: Any, factor: Any = paper) -> None:
    x = normal(2, N_HEADS, len(AT), DH)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    factors = torch.tensor(
        [
            [[factor(module, h, m, n) for m in range(DH // 2)] for n in AT.tolist()]
            for h in range(N_HEADS)
        ],
        dtype=torch.complex128,
    )
    close(module.rotate(x, AT, "query"), torch.view_as_real(pairs * factors).flatten(-2), 1e-12)


def test_pairs_are_multiplied_by_the_papers_sum_and_slow_ones_rest() -> None:
    module = configured(FOPE).double()
    assert module.others.shape == (2, N_HEADS, N_WAVES, N_WAVES)
    check_factors(module)


def test_heads_turned_together_are_those_turned_each_for_itself() -> None:
    module, qkv = configured(FOPE).double(), normal(2, len(AT), 3, N_HEADS, DH)
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    expected = module.rotate(q, AT, "query"), module.rotate(k, AT, "key"), v
    for got, each in zip(module.rotate_heads(qkv, Places(AT, AT)), expected, strict=True):
        close(got, each)
    assert module.rotate(q.bfloat16(), AT, "query").dtype == torch.bfloat16
    plain = module.float().rotate(q.float(), AT, "query")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module.rotate(q.float(), AT, "query"), plain)


def test_coefficients_are_drawn_by_xaviers_rule_for_each_layer_always_the_same() -> None:
    random = torch.random.get_rng_state()
    how: Any = {"n_heads": 8, "head_dim": 64, "base": 100.0, "trained_length": 500, "sigma": 0.3}
    others = Fourier(**how, generator=torch.Generator().manual_seed(1)).others
    theirs = nn.init.xavier_normal_(torch.empty_like(others[0]), gain=0.3)
    assert others.std().item() == pytest.approx(theirs.std().item(), rel=0.05)
    torch.random.set_rng_state(random)
    model, again = tiny_model(FOPE), tiny_model(FOPE, seed=1)
    layers = [model.scheme.attention(kind, i) for kind in ("encoder", "decoder") for i in (0, 1)]
    drawn: list[Tensor] = [layer.others for layer in layers]  # type: ignore[assignment]
    assert len({tuple(each.flatten().tolist()) for each in drawn}) == 4
    for one, other in zip(model.scheme.buffers(), again.scheme.buffers(), strict=True):
        assert torch.equal(one, other)
    assert not model.scheme.state_dict()


def test_the_trained_length_is_that_of_the_data() -> None:
    fitted = config.Fope(trained_length=50)
    ways: dict[str, Any] = {"fope": fitted, "ssmax:scheme=fope": config.Ssmax(scheme=fitted)}
    for text, wanted in ways.items():
        chosen = load_config("configs/demo.py", ["data.max_len=50"], text).model.position
        assert chosen == wanted
    assert fit_to_task(config.Ssmax(scheme=config.Fope()), Task(length=10)) == config.Ssmax(
        scheme=config.Fope(trained_length=10)
    )


# ----------------------------------------------------------------------------------------- mistakes


def in_its_place(module: Any, *, turned: Any) -> Any:
    module.others = turned(module.others)
    return module


MISTAKES: dict[str, Any] = {
    "the other way round": lambda others: others.mT,
    "a in the place of b": lambda others: others.flip(0),
    "no other waves": torch.zeros_like,
    "one head for all": lambda others: others[:, :1].expand_as(others),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    module = configured(FOPE).double()
    right = configured(FOPE).double()
    factor = lambda _, *place: paper(right, *place)  # noqa: E731
    check_factors(module, factor)
    catches(check_factors, in_its_place(module, turned=MISTAKES[mistake]), factor)


def test_slow_pairs_that_turn_by_45_degrees_as_in_the_authors_program_are_caught() -> None:
    catches(check_factors, configured(FOPE).double(), partial(paper, rest=1 + 1j))
