"""The claims of docs/positional_encodings.md that no scheme's own tests hold, by section."""

import itertools
import math
from collections.abc import Callable
from itertools import takewhile

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT
from references import DOUBLE, distances as distance, normal as random, shift_matrix, theta_of
from test_contract import ABSOLUTE
from tiny_models import tiny_config
from torch import Tensor

from configs.position_names import POSITIONS
from models.positional_encodings.alibi import alibi_bias, alibi_slopes
from models.positional_encodings.fire import fire_ratio
from models.positional_encodings.kerple import kerple_log_bias, kerple_power_bias
from models.positional_encodings.rope import rotate_by
from models.positional_encodings.rope_scaling import yarn_attention_factor, yarn_frequencies
from models.positional_encodings.sandwich import sandwich_bias
from models.positional_encodings.shaw import shaw_values
from models.positional_encodings.sinusoidal import sinusoid_table
from models.positional_encodings.t5 import t5_buckets
from models.positional_encodings.xpos import xpos_scale
from models.schemes import build_scheme
from pictures.distance import first_ideas


def close(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() < tolerance)


def causal(t: int) -> Tensor:
    return torch.zeros(t, t, dtype=DOUBLE).masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)


class Stack:
    """Layers of one-head attention, with what a scheme adds, and a feed-forward on x [T,8]."""

    def __init__(self, n_layers: int) -> None:
        self.weights = [random(5, 8, 8, seed=seed) / 8**0.5 for seed in range(n_layers)]

    def __call__(
        self,
        x: Tensor,
        bias: Tensor | float = 0.0,
        *,
        rotate: Callable[[Tensor], Tensor] = lambda x: x,
        values: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        for w_q, w_k, w_v, w_1, w_2 in self.weights:
            q, k = rotate(x @ w_q), rotate(x @ w_k)
            weights = (q @ k.T / x.shape[1] ** 0.5 + bias).softmax(-1)
            x = x + weights @ x @ w_v + (0 if values is None else values(weights))
            x = x + torch.relu(x @ w_1) @ w_2
        return x


def cross_attention(queries: Tensor, memory: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(queries[None], memory[None], memory[None])[0]


# ----------------------------------------------------------------------------------- 1. the problem


def test_without_positions_an_encoder_is_equivariant_and_a_translator_sees_a_bag_of_words() -> None:
    x, order = random(6, 8), torch.tensor([3, 0, 5, 1, 4, 2])
    encoder = Stack(2)
    assert close(encoder(x[order]), encoder(x)[order])
    assert not close(encoder(x[order]), encoder(x), 1e-2)  # equivariant is not invariant
    target = random(4, 8, seed=9)
    assert close(cross_attention(target, encoder(x[order])), cross_attention(target, encoder(x)))


def test_a_causal_mask_counts_positions_with_equal_logits() -> None:
    first = F.one_hot(torch.tensor(0), 7).to(DOUBLE)
    assert close(causal(7).softmax(-1) @ first, 1 / torch.arange(1, 8, dtype=DOUBLE))


def test_order_reaches_the_last_token_through_two_causal_layers_but_not_through_one() -> None:
    x, order = random(6, 8), torch.tensor([3, 0, 4, 1, 2, 5])  # the last stays last
    assert close(Stack(1)(x[order], causal(6))[-1], Stack(1)(x, causal(6))[-1])
    assert not close(Stack(2)(x[order], causal(6))[-1], Stack(2)(x, causal(6))[-1], 1e-3)


# ----------------------------------------------------------------------- 2. where positions can act


@pytest.mark.parametrize("mask", [0.0, causal(6)], ids=["both sides", "causal"])
def test_a_repeated_token_looks_the_same_everywhere_unless_positions_reach_the_values(
    mask: Tensor | float,
) -> None:
    x = random(1, 8).expand(6, 8)
    same = lambda y: close(y, y[:1].expand_as(y))  # noqa: E731
    at, table = torch.arange(6), random(5, 8)
    assert same(Stack(2)(x, mask - distance(6).abs() / 2))
    assert same(Stack(2)(x, mask, rotate=lambda y: turn(y, at)))
    assert not same(Stack(2)(x + sinusoid_table(at, 8, dtype=DOUBLE), mask))

    def shaw(weights: Tensor) -> Tensor:
        return shaw_values(weights[None, None], table, at, at, 2)[0, 0]

    assert not same(Stack(2)(x, mask, values=shaw))


# -------------------------------------------------------------------------------------- 3. absolute


def test_shifts_of_sinusoids_compose() -> None:
    assert close(shift_matrix(3, 16) @ shift_matrix(4, 16), shift_matrix(7, 16))
    assert close(shift_matrix(5, 16).T, shift_matrix(-5, 16))
    # Section 11: with a plus in cos(a+b) it fails for the first pair already.
    assert abs(math.cos(1) * math.cos(2) + math.sin(1) * math.sin(2) - math.cos(3)) > 0.1


def test_a_head_can_learn_to_look_any_number_of_tokens_back() -> None:
    """Any number, and with the rank of a head: M(s) on every fourth of 32 pairs is what a head of
    size 16 can hold.
    """
    pe = sinusoid_table(torch.arange(40), 64, dtype=DOUBLE)
    kept = (torch.arange(64) // 2 % 4 == 0).double()
    for s in (1, 4, 9):
        a = kept[:, None] * shift_matrix(s, 64)
        assert torch.linalg.matrix_rank(a) == 16
        scores = pe @ a @ pe.T
        assert torch.equal(scores[s:].argmax(-1), torch.arange(40 - s))


@pytest.mark.parametrize(("d", "first_rise"), [(64, 6), (192, 24), (512, 44)])
def test_dot_products_of_sinusoids_are_not_monotone(d: int, first_rise: int) -> None:
    pe = sinusoid_table(torch.arange(60), d, dtype=DOUBLE)
    rises = ((pe @ pe[0]).diff() > 0).nonzero()[:, 0] + 1
    assert rises[0] == first_rise


def test_projections_keep_the_pattern_only_if_they_commute_with_shifts() -> None:
    pe = sinusoid_table(torch.arange(40), 16, dtype=DOUBLE)
    along = lambda a: (pe @ a @ pe.T).diagonal(3)  # noqa: E731
    by_pair = torch.block_diag(
        *(r * shift_matrix(2, 16)[i : i + 2, i : i + 2] for r, i in zip(random(8), range(0, 16, 2)))
    )
    assert along(by_pair).std() < 1e-10
    spoiled = random(16, 16)
    across = (pe @ spoiled @ pe.T)[20]  # t = 20, every k
    assert along(spoiled).std() > 0.5 * across.std()


def test_wavelengths_of_sinusoids() -> None:
    w = theta_of(512)
    assert round(2 * math.pi / w[0].item(), 2) == 6.28
    assert int(2 * math.pi / w[-1].item()) == 60_611
    assert bool((w.diff() < 0).all())
    t2t = sinusoid_table(torch.arange(9), 16, layout="t2t", dtype=DOUBLE)
    assert abs(t2t[1, 7].asin().item() - 1e-4) < 1e-12  # the last wavelength is 2 pi base


# ---------------------------------------------------------------------------------------- 4. rotary


def turn(x: Tensor, position: int | Tensor) -> Tensor:
    return rotate_by(x, torch.as_tensor(position)[..., None] * theta_of(x.shape[-1]))


def score(q: Tensor, k: Tensor, m: int, n: int) -> float:
    return (turn(q, m) @ turn(k, n)).item()


def test_ropes_score_is_a_real_part_with_an_even_and_an_odd_side() -> None:
    q, k = random(8), random(8, seed=1)
    theta = theta_of(8)
    q_c, k_c = (torch.view_as_complex(x.view(-1, 2)) for x in (q, k))
    for m, n in itertools.product((0, 3, 11, 40), repeat=2):
        phi = (m - n) * theta
        proof = (q_c * k_c.conj() * torch.polar(torch.ones_like(theta), phi)).real.sum().item()
        assert abs(score(q, k, m, n) - proof) < 1e-12
        even = (q[0::2] * k[0::2] + q[1::2] * k[1::2]) * phi.cos()
        odd = (q[0::2] * k[1::2] - q[1::2] * k[0::2]) * phi.sin()
        assert abs(score(q, k, m, n) - (even + odd).sum().item()) < 1e-12


def test_rope_does_not_force_distance_to_fade() -> None:
    u = torch.ones(64, dtype=DOUBLE)
    falls = torch.tensor([score(u, u, m, 0) for m in range(10)])
    assert (falls.diff() > 0).nonzero()[0, 0] + 1 == 6
    for s in (0, 4, 20):
        assert max(range(40), key=lambda m: score(u, turn(u, s), m, 0)) == s


def test_rotation_before_the_head_split_gives_each_head_a_band_of_wavelengths() -> None:
    after = 2 * math.pi / theta_of(64)
    assert (round(after[0].item(), 1), round(after[-1].item())) == (6.3, 47_117)
    before = (2 * math.pi / theta_of(512)).view(8, 32)
    assert (round(before[0, 0].item(), 1), round(before[0, -1].item())) == (6.3, 19)
    assert (round(before[7, 0].item()), int(before[7, -1].item())) == (19_869, 60_611)
    assert round(before[4, 0].item()) == 628  # the first of heads 5-8


def test_bfloat16_cannot_count() -> None:
    positions = torch.arange(2049).bfloat16()
    assert positions[257] == 256
    assert positions[2047] == 2048
    assert positions[:2048].unique().numel() == 641


def test_yarns_two_ramps_differ_by_two_thirds() -> None:
    theta = theta_of(64)
    keep = ((256 * theta / (2 * math.pi) - 1) / (32 - 1)).clamp(0, 1)  # equation 18
    paper = keep * theta + (1 - keep) * theta / 4
    ratio = yarn_frequencies(theta, base=10000.0, factor=4.0, trained_length=256) / paper
    assert round(100 * (ratio.max().item() - 1)) == 67
    assert ratio.min() > 0.97  # the code rounds the ends of its ramp to whole indices


def test_numbers_of_yarn_and_xpos() -> None:
    assert round(yarn_attention_factor(4.0) ** 2, 2) == 1.30
    past, future = xpos_scale(torch.tensor([512, -512]), 64, dtype=DOUBLE)
    assert past[0].item() == pytest.approx(0.286, abs=5e-4)
    assert future[0].item() == pytest.approx(3.5)
    assert bool((past < 1).all())
    assert bool((past.diff() > 0).all())  # the fast pairs fade most
    largest = lambda n: xpos_scale(torch.tensor([-n]), 64, dtype=DOUBLE).max()  # noqa: E731
    assert largest(4500) < torch.finfo(torch.float16).max < largest(4600)


# ---------------------------------------------------------------------------------------- 5. biases


def slopes(n_heads: int) -> list[float]:
    return alibi_slopes(n_heads, dtype=DOUBLE).tolist()


def test_alibis_slopes_and_how_little_one_head_says() -> None:
    assert slopes(8) == [2.0**-h for h in range(1, 9)]
    assert slopes(12) == [*slopes(8), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    wanted = {1: (1 / 256, 0.035, 1.036), 2: (1 / 16, 0.56, 1.76), 4: (1 / 4, 2.25, 9.5)}
    for n_heads, row in (wanted | {8: (1 / 2, 4.5, 90)}).items():
        bias = alibi_bias(distance(10), alibi_slopes(n_heads, dtype=DOUBLE), causal=False)
        largest = -bias.min().item()
        assert (max(slopes(n_heads)), largest, math.exp(largest)) == pytest.approx(row, rel=6e-3)


def test_causal_alibi_is_a_bonus_for_later_keys() -> None:
    logits, j = random(6, 6), torch.arange(6)
    alibi, bonus = logits - distance(6) / 4, logits + j / 4
    assert close((alibi + causal(6)).softmax(-1), (bonus + causal(6)).softmax(-1))


def number(x: float) -> Tensor:
    return torch.tensor([x], dtype=DOUBLE)


def fire(n: Tensor, threshold: float = 512.0) -> Tensor:
    """Any function of the ratio, for positions 0 .. T-1."""
    return torch.sin(3 * fire_ratio(n[:, 0], n[:, 0], number(0.1), number(threshold)))


SYMMETRIC: dict[str, Callable[[Tensor], Tensor]] = {
    "alibi": lambda n: alibi_bias(n, number(0.25), causal=False)[0],
    "kerple log": lambda n: kerple_log_bias(n, number(0.7), number(0.3))[0],
    "kerple power": lambda n: kerple_power_bias(n, number(0.7), number(1.3))[0],
    "sandwich": lambda n: sandwich_bias(n, 2, width=16, dtype=DOUBLE)[0],
    "fire": fire,
}


@pytest.mark.parametrize("name", SYMMETRIC)
def test_symmetric_biases_do_not_see_direction(name: str) -> None:
    x, target, bias, encoder = random(6, 8), random(4, 8), SYMMETRIC[name](distance(6)), Stack(2)
    # The end mark stays last when the words are reversed: that is another sentence.
    marked = torch.cat((x[:5].flip(0), x[5:]))
    encoded, backwards, reversed_words = (encoder(each, bias) for each in (x, x.flip(0), marked))
    assert close(backwards, encoded.flip(0))
    read = cross_attention(target, encoded)
    assert close(cross_attention(target, backwards), read)
    assert not close(cross_attention(target, reversed_words), read, 1e-3)


def test_fire_beyond_its_threshold_sees_direction() -> None:
    x, encoder, bias = random(6, 8), Stack(2), fire(distance(6), threshold=2.0)
    assert not close(encoder(x.flip(0), bias), encoder(x, bias).flip(0), 1e-5)


def test_t5s_buckets() -> None:
    def starts(bidirectional: bool) -> list[int]:
        buckets = t5_buckets(-torch.arange(300), bidirectional=bidirectional)
        return [int((buckets == b).nonzero()[0]) for b in buckets.unique()]

    assert starts(False)[:21] == [*range(17), 19, 21, 24, 27]
    assert starts(False)[31] == 113
    assert starts(True)[15] == 91
    assert t5_buckets(torch.tensor(-64), max_distance=256, bidirectional=False) == 24
    rounded = 16 + int(16 * (math.log(64) - math.log(16)) / (math.log(256) - math.log(16)))
    assert rounded == 23


@pytest.mark.parametrize("name", ["alibi", "kerple log", "kerple power"])
def test_kerples_kernels_are_conditionally_positive_definite(name: str) -> None:
    kernel = SYMMETRIC[name](distance(12))
    assert torch.linalg.eigvalsh(kernel).min() < -1e-3  # not by itself
    assert torch.linalg.eigvalsh(kernel + 100).min() > -1e-10  # a constant does it
    logits = random(12, 12)
    assert close((logits + kernel).softmax(-1), (logits + kernel + 100).softmax(-1))


def test_sandwich_falls_like_a_logarithm_but_not_steadily() -> None:
    bias = sandwich_bias(torch.arange(2000), 8, dtype=DOUBLE)[0]  # head 1 of 8 divides by 1
    assert bias[0] == 0
    assert bias[1:].max() < 0
    assert bool((bias.diff() > 0).any())
    per_doubling = bias[[4, 16, 64, 256, 1024]].diff() / 2
    wanted = -64 * math.log(2) / math.log(10000)  # with log-spaced waves
    assert per_doubling.tolist() == pytest.approx([wanted] * 4, rel=0.25)


# -------------------------------------------------------------------------------------- 9. decoding


def test_a_bias_cut_from_the_front_favours_the_oldest_key() -> None:
    bias = -distance(9).abs() / 4
    assert bias[0, :5].argmax() == 0  # what the slice [:1, :5] hands to the newest token
    assert bias[4, :5].argmax() == 4  # its own row


def test_is_causal_aligns_its_triangle_at_the_top_left() -> None:
    q, k, v = random(1, 1, 8), random(1, 5, 8, seed=1), random(1, 5, 8, seed=2)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert close(out[0, 0], v[0, 0])


# ------------------------------------------------------------------- docs/designing_an_encoding.md


def rows_of(heading: str) -> dict[str, list[str]]:
    """The first table below a heading of the page, by its first column."""
    text = (ROOT / "docs/designing_an_encoding.md").read_text("utf-8").split(heading)[1]
    table = [line.strip("| ").split(" | ") for line in text.split("\n\n| ")[1].splitlines()[2:]]
    return {first: rest for first, *rest in takewhile(lambda row: len(row) > 1, table)}


def test_what_the_first_ideas_come_to() -> None:
    ideas = [torch.from_numpy(idea) for idea in first_ideas(64, 64).values()]
    ideas.append(sinusoid_table(torch.arange(64), 64, dtype=DOUBLE))
    for p, said in zip(ideas, rows_of("## First ideas").values(), strict=True):
        apart = torch.cdist(p, p)
        steps = {f"{step:.2f}" for step in apart.diagonal(1).aminmax()}
        nearest = apart.fill_diagonal_(math.inf).min()
        assert said[:2] == [f"{p.abs().max():.0f}", str(int(torch.linalg.matrix_rank(p)))]
        assert float(said[2]) == pytest.approx(nearest.item(), abs=0.5 * 10 ** -len(said[2][2:]))
        assert set(said[3].split(" to ")) == steps


def test_the_table_of_what_schemes_promise_is_that_of_their_modules() -> None:
    for name, (_, relation, longer, *_, trained) in rows_of("## What a good").items():
        scheme = build_scheme(tiny_config(POSITIONS[name]))
        assert (trained == "yes") == any(p.numel() for p in scheme.parameters()), name
        assert (longer == "error") == (scheme.max_length("source") is not None), name
        assert (relation in ("no", "linear", "up to its threshold")) == (name in ABSOLUTE), name
