"""Rotations by the state of tokens: sums and angles one by one, padding, steps, known mistakes."""

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from references import catches, loud, normal
from tiny_models import D_MODEL, N_HEADS, close, configured, tiny_config
from torch import Tensor

import configs.positions as config
from configs.position_names import POSITIONS
from models.attention.multi_head import SelfAttention
from models.positional_encodings.base import Places

BASE, DH, T = 100.0, 8, 7
X, QKV = normal(2, T, D_MODEL, seed=1), normal(2, T, 3, N_HEADS, DH, seed=2)
AT = torch.arange(T)


def module() -> Any:
    torch.manual_seed(0)
    return loud(configured(config.SelectiveRope(base=BASE, rank=3)))


def logits_by_pair(qkv: Tensor, angle: Any) -> Tensor:
    """Planes of q and k by the angles angle(b, h, t, c), before the scale."""
    batch, length = qkv.shape[:2]
    logits = torch.zeros(batch, N_HEADS, length, length, dtype=qkv.dtype)
    for b in range(batch):
        for h in range(N_HEADS):
            for i in range(length):
                for j in range(length):
                    q, k = (qkv[b, t, n, h].view(-1, 2).tolist() for n, t in ((0, i), (1, j)))
                    for c, ((qa, qb), (ka, kb)) in enumerate(zip(q, k)):
                        by = angle(b, h, i, c) - angle(b, h, j, c)
                        even, odd = qa * ka + qb * kb, qa * kb - qb * ka
                        logits[b, h, i, j] += even * math.cos(by) + odd * math.sin(by)
    return logits


def logits_of(made: Any, x: Tensor = X, qkv: Tensor = QKV) -> Tensor:
    at = torch.arange(x.shape[1])
    q, k, v = made.rotate_heads(qkv, Places(at, at), made.token_state(x))
    assert torch.equal(v, qkv[:, :, 2].transpose(1, 2))
    return q @ k.mT


def sums(steps: Tensor, h: int, t: int, c: int) -> Any:
    """Of steps [T,H,Dh/2], those up to a token's own."""
    return sum(steps[s, h, c].item() for s in range(t + 1))


def check_selective(made: Any, turn: Any = sums) -> None:
    weight, bias = made.up.weight @ made.down.weight, made.up.bias
    steps = ((weight @ X[..., None])[..., 0] + bias).unflatten(-1, (N_HEADS, -1))

    def angle(b: int, h: int, t: int, c: int) -> float:
        return turn(steps[b], h, t, c) * BASE ** (-2 * c / DH)

    close(logits_of(made), logits_by_pair(QKV, angle))


def test_pairs_turn_by_sums_of_what_the_tokens_say() -> None:
    check_selective(module())
    fresh = configured(config.SelectiveRope())
    assert torch.equal(fresh.up.bias, torch.ones(D_MODEL // 2))


def repositioned() -> Any:
    torch.manual_seed(0)
    return loud(configured(config.Repo(base=BASE, width=5, rope_layers=0)))


def gated(gate: float, content: float) -> float:
    return content * gate / (1 + math.exp(-gate))


def check_repo(made: Any, unit: Any = gated, own: Any = lambda places, *at: places[at]) -> None:
    def place(b: int, h: int, t: int) -> float:
        total = 0.0
        for w in range(5):
            gate, content = (
                (layer.weight[w] @ X[b, t]).item() for layer in (made.gate, made.content)
            )
            total += made.place.weight[h, w].item() * unit(gate, content)
        return total

    places = {(b, h, t): place(b, h, t) for b in range(2) for h in range(N_HEADS) for t in range(T)}
    angles = lambda b, h, t, c: own(places, b, h, t) * BASE ** (-2 * c / DH)  # noqa: E731
    close(logits_of(made), logits_by_pair(QKV, angles))


def test_pairs_turn_by_the_place_that_the_network_gives() -> None:
    check_repo(repositioned())


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
@pytest.mark.parametrize("module", [module, repositioned])
@pytest.mark.parametrize(("before", "after"), [(0, 3), (3, 0), (2, 4)])
def test_padding_on_either_side_turns_nothing(
    kind: Any, module: Any, before: int, after: int
) -> None:
    torch.manual_seed(0)
    attention = SelfAttention(tiny_config(), kind=kind, layer=0).double()
    made, causal = module(), kind == "decoder"
    whole = attention(X, position=made, places=Places(AT, AT, causal=causal))
    left, right = normal(2, before, D_MODEL, seed=4), normal(2, after, D_MODEL, seed=5)
    padded, at = torch.cat((left, X, right), dim=1), torch.arange(before + T + after)
    real = (at >= before) & (at < before + T)
    padding = (real | ~real[:, None])[None, None]  # padding sees all, so that no row is empty
    places = Places(at, at, causal=causal, real_keys=padding)
    out = attention(padded, position=made, places=places)
    close(out[:, before : before + T], whole)


def test_sums_and_angles_keep_their_precision_under_autocast() -> None:
    torch.manual_seed(0)
    for position in (config.SelectiveRope(), config.Repo(rope_layers=0)):
        made, x = configured(position), torch.randn(1, 200, D_MODEL)
        exact = copy.deepcopy(made).double().token_state(x.double())
        with torch.autocast("cpu", torch.bfloat16):
            state = made.token_state(x)
        assert state.dtype == torch.float32
        close(state.double(), exact, 1e-5)
        state = made.token_state(x.bfloat16())
        assert state.dtype == torch.float32
        assert made.bfloat16().token_state(x.bfloat16()).equal(state)  # of weights not rounded


def test_learned_frequencies_keep_theirs_in_a_model_of_less() -> None:
    made, x = configured(POSITIONS["rope_learned"]), torch.randn(1, N_HEADS, 2, D_MODEL // N_HEADS)
    exact = made.theta(x)
    assert made.half().theta(x.half()).equal(exact)
    assert made.double().log_theta.dtype == torch.float64


def test_without_a_state_it_refuses() -> None:
    with pytest.raises(ValueError, match="need the state of the tokens"):
        module().rotate_heads(QKV, Places(AT, AT))


# ----------------------------------------------------------------------------------------- mistakes


MISTAKES: dict[str, Any] = {
    "no sum": lambda steps, h, t, c: steps[t, h, c].item(),
    "summed over heads": lambda steps, h, t, c: sum(sums(steps, i, t, c) for i in range(h + 1)),
    "the step of the key instead of the query": lambda steps, h, t, c: sums(steps, h, t - 1, c),
    "summed from the end": lambda steps, h, t, c: sums(steps.flip(0), h, T - 2 - t, c),
    "one turn for all pairs": lambda steps, h, t, c: sums(steps, h, t, 0),
}
MISTAKES_OF_THE_NETWORK: dict[str, dict[str, Any]] = {
    "the content gates": {"unit": lambda gate, content: gated(content, gate)},
    "one for all heads": {
        "own": lambda places, b, h, t: sum(places[b, i, t] for i in range(N_HEADS)) / N_HEADS
    },
    "summed": {"own": lambda places, b, h, t: sum(places[b, h, s] for s in range(t + 1))},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(check_selective, module(), MISTAKES[mistake])


@pytest.mark.parametrize("mistake", MISTAKES_OF_THE_NETWORK)
def test_a_known_mistake_of_the_network_is_caught(mistake: str) -> None:
    catches(partial(check_repo, **MISTAKES_OF_THE_NETWORK[mistake]), repositioned())
