"""Learning-rate schedules by hand-computed numbers, and through a real optimizer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from configs.schema import Constant, Cosine, EpochDecay, InverseSqrt, ModelConfig, Noam, OptimConfig, Schedule
from utils.schedules import base_lr, build_optimizer, build_scheduler, lr_factor

MODEL = ModelConfig()  # d_model 512


def rates(schedule: Schedule, n: int, *, total_steps: int = 100, **optim: Any) -> list[float]:
    """The rate of each of the first n updates (or epochs) of a real optimizer under LambdaLR."""
    config = OptimConfig(schedule=schedule, **optim)
    optimizer = build_optimizer([nn.Parameter(torch.ones(1))], config, MODEL)
    scheduler = build_scheduler(optimizer, config, total_steps=total_steps)
    seen = []
    for _ in range(n):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def test_epoch_decay_gives_the_originals_numbers() -> None:
    expected = [1 / 7, 2 / 7, 3 / 7, 4 / 7, 5 / 7, 6 / 7, 1.0, 1.0]
    expected += [math.exp(-0.35), math.exp(-0.70), math.exp(-1.05)]
    assert rates(EpochDecay(lr=3e-4), 11) == pytest.approx([3e-4 * e for e in expected], rel=1e-12)


def test_epoch_decay_holds_its_definition_for_20_epochs() -> None:
    factor = lr_factor(EpochDecay(), total_steps=1)
    for e in range(20):
        expected = (e + 1) / 7 if e < 6 else 1.0 if e == 6 else math.exp(-0.35 * (e - 7))
        assert factor(e) == pytest.approx(expected, rel=1e-12)


def test_epoch_decay_without_warm_up_starts_at_the_full_rate() -> None:
    assert rates(EpochDecay(lr=1.0, warmup_epochs=0, decay=1.0), 4) == pytest.approx([1, 1, math.exp(-1), math.exp(-2)])


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        # 0.075 / sqrt(512) * min(s^-0.5, s * 8000^-1.5)
        (1, 4.6322427e-9),
        (8000, 3.7057941e-5),
        (20000, 2.34375e-5),
    ],
)
def test_noam_gives_the_originals_numbers(step: int, rate: float) -> None:
    schedule = Noam(noam_factor=0.075, warmup_steps=8000)
    assert base_lr(schedule, MODEL) * lr_factor(schedule, total_steps=1)(step - 1) == pytest.approx(
        rate, rel=1e-7, abs=0
    )


def test_noam_follows_the_papers_equation_at_every_step() -> None:
    expected = [512**-0.5 * min(s**-0.5, s * 4**-1.5) for s in range(1, 11)]
    assert rates(Noam(warmup_steps=4), 10) == pytest.approx(expected, rel=1e-12)


def test_inverse_sqrt_rises_to_its_rate_and_falls_with_the_root() -> None:
    expected = [0.25, 0.5, 0.75, 1.0, (4 / 5) ** 0.5, (4 / 6) ** 0.5]
    assert rates(InverseSqrt(lr=2.0, warmup_steps=4), 6) == pytest.approx([2 * e for e in expected], rel=1e-12)
    assert lr_factor(InverseSqrt(warmup_steps=4), total_steps=1)(15) == pytest.approx(0.5)


def test_cosine_warms_up_and_ends_at_its_final_fraction() -> None:
    seen = rates(Cosine(lr=2.0, warmup_steps=2, final_fraction=0.1), 12, total_steps=10)
    assert seen[:2] == pytest.approx([1.0, 2.0])
    assert seen[5] == pytest.approx(2 * (0.1 + 0.9 / 2))  # half-way between steps 2 and 10
    assert seen[9:] == pytest.approx([0.2] * 3)  # the last step, and past it
    assert all(a > b for a, b in zip(seen[1:9], seen[2:10]))


def test_cosine_survives_fewer_steps_than_its_warm_up() -> None:
    assert rates(Cosine(lr=1.0, warmup_steps=4), 5, total_steps=3) == pytest.approx([0.25, 0.5, 0.75, 1.0, 0.0])


def test_a_constant_rate_is_constant() -> None:
    assert rates(Constant(lr=3e-4), 5) == [3e-4] * 5


@pytest.mark.parametrize(("name", "cls"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_the_optimizer_takes_its_settings_from_the_config(name: Any, cls: type) -> None:
    config = OptimConfig(optimizer=name, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.01, schedule=Constant(lr=0.5))
    optimizer = build_optimizer([nn.Parameter(torch.ones(1))], config, MODEL)
    group = optimizer.param_groups[0]
    assert type(optimizer) is cls
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.5, (0.8, 0.9), 1e-6, 0.01)
