"""Clipped RoPE: which frequencies fade and by how much, with every rule for them; mistakes."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from references import DOUBLE, catches, causal_logits, normal, rotated, theta_of
from tiny_models import close, configured
from torch import Tensor

import configs.positions as config
from configs.position_names import POSITIONS
from configs.positions import Rope
from models.positional_encodings.rope import fastest, softly_clipped
from models.positional_encodings.rope_scaling import (
    dynamic_ntk_frequencies,
    yarn_attention_factor,
    yarn_frequencies,
)

AT, DIM = torch.tensor([0, 7, 2, 63]), 16


def half_a_period(j: int, fading: int) -> float:
    return 0.5 + 0.5 * math.cos(math.pi * j / max(fading - 1, 1))


def weights(n: int, fading: int, fade: Callable[[int, int], float] = half_a_period) -> Tensor:
    """Of n frequencies, fast to slow."""
    faded = [fade(j, fading) for j in range(fading)]
    return torch.tensor([1.0] * (n - fading) + faded, dtype=DOUBLE)


def check_clip(weigh: Callable[[Tensor, int], Tensor]) -> None:
    """By weigh(frequencies [...,8], how many of them fade)."""
    for share, fading in ((0.0, 0), (0.1, 0), (0.2, 1), (0.25, 2), (0.7, 5), (1.0, 8)):
        for theta in (theta_of(DIM, 300.0), normal(2, 3, 8).exp()):
            close(softly_clipped(theta, share), theta * weigh(theta, fading), 1e-15)


def test_the_slowest_fade_as_in_the_program_of_the_paper() -> None:
    check_clip(lambda theta, fading: weights(8, fading))


def test_by_default_as_many_fade_as_in_the_runs_of_the_paper() -> None:
    """64 pairs, of which the last 20 fade, from the one with number 44 on, which does not yet."""
    position: Any = configured(POSITIONS["rope_clipped"], d_model=256)
    theta, before = position.theta(normal(1, 2, 1, 128)), theta_of(128)
    changed = (theta != before).nonzero().flatten().tolist()
    assert changed == list(range(45, 64))
    assert theta[-1] == 0
    assert (theta.diff() < 0).all()


def test_a_share_of_the_pairs_that_is_a_whole_number_is_that_number() -> None:
    theta = torch.arange(50, 0, -1.0)
    assert fastest(theta, 0.58).count_nonzero() == 29  # 0.58 * 50 is a little less
    assert softly_clipped(theta, 0.58).eq(theta).sum() == 50 - 29 + 1


@pytest.mark.parametrize("form", ["real", "complex"])
@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_queries_and_keys_turn_by_them(form: Any, layout: Any) -> None:
    x = normal(2, 2, 4, DIM)
    for share, fading in ((0.25, 2), (0.7, 5), (1.0, 8)):
        scheme = Rope(clipped=share, base=300.0, form=form, layout=layout)
        position, theta = configured(scheme, d_model=2 * DIM), theta_of(DIM, 300.0)
        for role in ("query", "key"):
            expected = rotated(x, AT, theta * weights(8, fading), layout)
            close(position.rotate(x, AT, role), expected, 1e-12)


def test_frequencies_of_d_model_fade_where_they_are_slowest() -> None:
    x, theta = normal(1, 2, 4, DIM), theta_of(2 * DIM) * weights(16, 12)
    position = configured(Rope(clipped=0.75, rope_dim="model"), d_model=2 * DIM)
    for head, own in enumerate(theta.split(8)):
        got = position.rotate(x, AT, "query")[:, head : head + 1]
        close(got, rotated(x[:, head : head + 1], AT, own), 1e-12)


def test_scaled_frequencies_rest_and_fade_alike() -> None:
    length, n, kept = 4, 9, weights(8, 5) * (torch.arange(8) < 6)
    settings = {"share": 0.75, "clipped": 0.7, "base": 300.0}
    q, k = normal(1, 2, n, DIM), normal(1, 2, n, DIM, seed=1)
    yarn = config.YarnScaling(trained_length=length)
    plain, stretched = theta_of(DIM, 300.0), {"factor": 4.0, "trained_length": length}
    theta = yarn_frequencies(plain, base=300.0, **stretched) * kept
    position = configured(Rope(**settings, scaling=yarn), d_model=2 * DIM)
    expected = yarn_attention_factor(4.0) * rotated(q, torch.arange(n), theta)
    close(position.rotate(q, torch.arange(n), "query"), expected, 1e-12)

    dynamic = config.DynamicNtkScaling(trained_length=length)
    scheme = Rope(**settings, scaling=dynamic)
    logits = causal_logits(configured(scheme, "decoder", d_model=2 * DIM), q, k)
    for i in range(n):
        theta = dynamic_ntk_frequencies(plain, length=i + 1, **stretched) * kept
        row = rotated(q, torch.arange(n), theta)[:, :, i : i + 1]
        keys = rotated(k, torch.arange(n), theta)[:, :, : i + 1]
        close(logits[:, :, i : i + 1, : i + 1], row @ keys.mT / math.sqrt(DIM))


# ----------------------------------------------------------------------------------------- mistakes


def otherwise(fade: Callable[[int, int], float]) -> Callable[[Tensor, int], Tensor]:
    return lambda theta, fading: weights(8, fading, fade)


def by_frequency(theta: Tensor, fading: int) -> Tensor:
    """Even steps of the frequency, not of its number."""
    slow = theta[..., 8 - fading :]
    share = (slow[..., :1] - slow) / (slow[..., :1] - slow[..., -1:]).clamp(min=1e-9)
    return torch.cat((theta[..., : 8 - fading] ** 0, 0.5 + 0.5 * (math.pi * share).cos()), -1)


MISTAKES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "at rest at once": otherwise(lambda j, fading: 0.0),
    "the fastest": lambda theta, fading: weights(8, fading).flip(0),
    "not quite to rest": otherwise(lambda j, fading: half_a_period(j, fading + 1)),
    "a line": otherwise(lambda j, fading: 1 - j / max(fading - 1, 1)),
    "a quarter of a period": otherwise(lambda j, f: math.cos(j * math.pi / max(2 * f - 2, 1))),
    "by frequency": by_frequency,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_is_caught(mistake: str) -> None:
    catches(check_clip, MISTAKES[mistake])
