"""Rotations by the state of tokens: sums and angles one by one, padding, steps, known mistakes."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import catches, close, loud, normal
from tiny_models import D_MODEL, N_HEADS, configured, tiny_config
from torch import Tensor

import configs.positions as config
from configs.position_names import POSITIONS
from models.attention.multi_head import SelfAttention
from models.positional_encodings.base import Places
from models.positional_encodings.repo import Repositioned
from models.positional_encodings.selective import SelectiveRotary

BASE, DH, T = 100.0, 8, 7
X, QKV = normal(2, T, D_MODEL, seed=1), normal(2, T, 3, N_HEADS, DH, seed=2)
AT = torch.arange(T)


def module(cls: Any = None) -> Any:
    torch.manual_seed(0)
    return loud(configured(config.SelectiveRope(base=BASE, rank=3), cls=cls))


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


def check_selective(made: Any) -> None:
    weight, bias = made.up.weight @ made.down.weight, made.up.bias
    steps = (weight @ X[..., None])[..., 0] + bias  # [B,T,d/2]

    def angle(b: int, h: int, t: int, c: int) -> float:
        turn = sum(steps[b, s, h * DH // 2 + c].item() for s in range(t + 1))
        return turn * BASE ** (-2 * c / DH)

    close(logits_of(made), logits_by_pair(QKV, angle))


def test_pairs_turn_by_sums_of_what_the_tokens_say() -> None:
    check_selective(module())
    fresh = configured(config.SelectiveRope())
    assert torch.equal(fresh.up.bias, torch.ones(D_MODEL // 2))


def repositioned(cls: Any = None) -> Any:
    torch.manual_seed(0)
    return loud(configured(config.Repo(base=BASE, width=5, rope_layers=0), cls=cls))


def check_repo(made: Any) -> None:
    def place(b: int, h: int, t: int) -> float:
        total = 0.0
        for w in range(5):
            gate, content = (
                (layer.weight[w] @ X[b, t]).item() for layer in (made.gate, made.content)
            )
            total += made.place.weight[h, w].item() * content * gate / (1 + math.exp(-gate))
        return total

    places = {(b, h, t): place(b, h, t) for b in range(2) for h in range(N_HEADS) for t in range(T)}
    angles = lambda b, h, t, c: places[b, h, t] * BASE ** (-2 * c / DH)  # noqa: E731
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


def with_state(change: Any) -> Any:
    class Mistaken(SelectiveRotary):
        def token_state(self, x: Tensor, last: Tensor | float = 0.0) -> Tensor:
            return change(super().token_state(x, last))

    return Mistaken


class _OneTurnForAllPairs(SelectiveRotary):
    def token_state(self, x: Tensor, last: Tensor | float = 0.0) -> Tensor:
        return super().token_state(x, last)[..., :1]


def exclusive(state: Tensor) -> Tensor:
    return torch.cat((torch.zeros_like(state[:, :, :1]), state[:, :, :-1]), dim=2)


MISTAKES = {
    "no sum": with_state(lambda s: s.diff(dim=2, prepend=torch.zeros_like(s[:, :, :1]))),
    "summed over heads": with_state(lambda s: s.cumsum(1)),
    "the step of the key instead of the query": with_state(exclusive),
    "summed from the end": with_state(lambda s: s[:, :, -1:] - s),
    "one turn for all pairs": _OneTurnForAllPairs,
}


class _GatedContent(Repositioned):
    def token_state(self, x: Tensor, last: Tensor | float = 0.0) -> Tensor:
        places = F.silu(self.content(x)) * self.gate(x)
        return self.place(places).transpose(1, 2)[..., None]


class _OneNetworkForAllHeads(Repositioned):
    def token_state(self, x: Tensor, last: Tensor | float = 0.0) -> Tensor:
        return super().token_state(x, last).mean(1, keepdim=True)


class _Summed(Repositioned):
    def token_state(self, x: Tensor, last: Tensor | float = 0.0) -> Tensor:
        return super().token_state(x, last).cumsum(2)


@pytest.mark.parametrize("cls", [_GatedContent, _OneNetworkForAllHeads, _Summed])
def test_a_known_mistake_of_the_network_is_caught(cls: Any) -> None:
    catches(check_repo, repositioned(cls))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    check_selective(module(with_state(lambda s: s)))
    catches(check_selective, module(MISTAKES[mistake]))
