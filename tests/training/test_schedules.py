"""Learning-rate schedules by hand-computed numbers, and through a real optimizer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from toy_runs import assert_same_state, content, log_of, run_here, same, toy_config

from checkpoints.run import BEST, REGULAR, Run
from configs.schema import (
    Config,
    Constant,
    Cosine,
    EpochDecay,
    InverseSqrt,
    Linear,
    ModelConfig,
    Noam,
    OptimConfig,
    Plateau,
    Schedule,
)
from configs.serialize import apply_overrides
from training.schedules import (
    PlateauLR,
    base_lr,
    build_optimizer,
    build_scheduler,
    lr_factor,
    warn_of_warm_up,
)

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


WARM_UP_TO_6 = [1 / 7, 2 / 7, 3 / 7, 4 / 7, 5 / 7, 6 / 7, 1.0]
BY_HAND = {
    "the original's epochs": (
        EpochDecay(lr=3e-4),
        [3e-4 * f for f in (*WARM_UP_TO_6, *(math.exp(-0.35 * n) for n in range(13)))],
    ),
    "epochs without a warm-up": (
        EpochDecay(lr=1.0, warmup_epochs=0, decay=1.0),
        [1, 1, math.exp(-1), math.exp(-2)],
    ),
    "the paper's equation": (
        Noam(warmup_steps=4),
        [512**-0.5 * min(s**-0.5, s * 4**-1.5) for s in range(1, 11)],
    ),
    "up to its rate, down with the root": (
        InverseSqrt(lr=2.0, warmup_steps=4),
        [0.5, 1.0, 1.5, *(2 * (4 / n) ** 0.5 for n in range(4, 17))],
    ),
    "a cosine shorter than its warm-up": (
        Cosine(lr=1.0, warmup_steps=4),
        [0.25, 0.5, 0.75, 1.0, 0.0],
    ),
    "a cosine of its warm-up alone": (Cosine(lr=3.0, warmup_steps=3), [1.0, 2.0, 3.0, 0.0]),
    "a plateau's warm-up": (Plateau(lr=2.0, warmup_steps=4), [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]),
    "constant": (Constant(lr=3e-4), [3e-4] * 5),
}


@pytest.mark.parametrize(("schedule", "expected"), BY_HAND.values(), ids=BY_HAND)
def test_a_schedules_rates_are_those_computed_by_hand(schedule: Any, expected: list) -> None:
    seen = rates(schedule, len(expected), total_steps=3)
    assert seen == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_noam_gives_the_originals_numbers() -> None:
    """0.075 / sqrt(512) * min(s^-0.5, s * 8000^-1.5)."""
    schedule = Noam(noam_factor=0.075, warmup_steps=8000)
    factor = lr_factor(schedule, total_steps=1)
    seen = [base_lr(schedule, MODEL) * factor(step - 1) for step in (1, 8000, 20000)]
    assert seen == pytest.approx([4.6322427e-9, 3.7057941e-5, 2.34375e-5], rel=1e-7, abs=0)


def test_cosine_warms_up_and_ends_at_its_final_fraction() -> None:
    seen = rates(Cosine(lr=2.0, warmup_steps=2, final_fraction=0.1), 12, total_steps=10)
    assert seen[:2] == pytest.approx([1.0, 2.0])
    assert seen[5] == pytest.approx(2 * (0.1 + 0.9 / 2))  # half-way between steps 2 and 10
    assert seen[9:] == pytest.approx([0.2] * 3)  # the last step, and past it
    assert all(a > b for a, b in zip(seen[1:9], seen[2:10]))


def test_linear_warms_up_and_falls_by_the_same_at_each_step() -> None:
    seen = rates(Linear(lr=2.0, warmup_steps=2, final_fraction=0.2), 12, total_steps=10)
    assert seen == pytest.approx([1, 2, 1.8, 1.6, 1.4, 1.2, 1, 0.8, 0.6, 0.4, 0.4, 0.4])


@pytest.mark.parametrize(
    ("name", "cls"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_the_optimizer_takes_its_settings_from_the_config(name: Any, cls: type) -> None:
    asked: Any = {"betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.01}
    config = OptimConfig(optimizer=name, schedule=Constant(lr=0.5), **asked)
    optimizer = build_optimizer([nn.Parameter(torch.ones(1))], config, MODEL)
    assert type(optimizer) is cls
    assert {**asked, "lr": 0.5}.items() <= optimizer.param_groups[0].items()


# ------------------------------------------------------------------------------------------ plateau


@pytest.fixture(scope="module")
def plateau_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Run]:
    """Four epochs of four updates; the loss never falls: the rate is cut after epochs 2 and 3."""
    settings = """
        optim.schedule=plateau optim.schedule.lr=1e-25 optim.schedule.warmup_steps=2
        optim.schedule.patience=1 optim.schedule.min_lr=0 optim.decay=matrices
        optim.optimizer=adamw optim.weight_decay=0.01 optim.accumulate=5 train.max_epochs=4
        train.keep_regular=4
    """
    config = toy_config(tmp_path_factory.mktemp("plateau"), settings)
    return config, run_here(config).run


def plateau(schedule: Plateau) -> tuple[torch.optim.Optimizer, PlateauLR]:
    config = OptimConfig(schedule=schedule, decay="matrices", weight_decay=0.1)  # two groups
    parameters = [nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1, 1))]
    optimizer = build_optimizer(parameters, config, MODEL)
    scheduler = build_scheduler(optimizer, config, total_steps=1)
    assert isinstance(scheduler, PlateauLR)
    return optimizer, scheduler


def test_plateau_falls_at_every_so_many_evaluations_without_a_new_lowest_loss() -> None:
    halving = Plateau(lr=8.0, warmup_steps=1, factor=0.5, patience=2, min_lr=1.5)
    optimizer, scheduler = plateau(halving)
    losses = [3.0, 2.0, 2.0, 2.5, 1.9, 1.95, 1.91, 1.92, 1.93, 1.94, 1.95, 1.0]
    expected = [8.0, 8.0, 8.0, 4.0, 4.0, 4.0, 2.0, 2.0, 1.5, 1.5, 1.5, 1.5]
    seen = []
    for loss in losses:
        scheduler.observe(loss)
        seen.append({group["lr"] for group in optimizer.param_groups})
        optimizer.step()
        scheduler.step()  # an update changes nothing
        assert {group["lr"] for group in optimizer.param_groups} == seen[-1]
    assert seen == [{rate} for rate in expected]


def test_plateau_can_fall_while_it_warms_up() -> None:
    optimizer, scheduler = plateau(Plateau(lr=2.0, warmup_steps=4, factor=0.5, patience=1))
    scheduler.observe(1.0)
    optimizer.step()
    scheduler.step()
    scheduler.observe(1.0)
    assert optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0] == pytest.approx(0.5)


def test_plateau_goes_on_where_it_was(plateau_run: tuple[Config, Run]) -> None:
    config, whole = plateau_run
    log = log_of(whole)
    seen = [log[n]["learning_rate"] * 1e25 for n in (1, 2, 8, 9, 12, 13)]
    assert seen == pytest.approx([0.5, 1, 1, 0.5, 0.5, 0.25])
    stopped = run_here(apply_overrides(config, ["train.max_steps=8"])).run
    run_here(config, resume=stopped.path)
    assert log_of(stopped) == log
    last = [content(run.checkpoints / "regular_checkpoint_4.pt") for run in (whole, stopped)]
    for part in ("model", "optimizer", "scheduler", "progress"):
        assert same(last[0][part], last[1][part]), part


def test_a_best_checkpoint_has_seen_its_validation(plateau_run: tuple[Config, Run]) -> None:
    _, run = plateau_run
    for best, regular in zip(run.files(BEST), run.files(REGULAR)[:2], strict=True):
        assert_same_state(best, regular)


# ------------------------------------------------------------------------------------- weight decay


def test_decay_reaches_matrices_alone_where_it_is_asked_to() -> None:
    """A step with a gradient of zero moves what decays alone: AdamW takes lr * weight_decay."""
    for decay, moved in (("all", {"weight", "bias", "norm"}), ("matrices", {"weight"})):
        schedule = Constant(lr=0.5)
        decays: Any = {"weight_decay": 0.1, "decay": decay}
        config = OptimConfig(optimizer="adamw", schedule=schedule, **decays)
        shapes = {"weight": (2, 3), "bias": (2,), "norm": (3,)}
        parameters = {name: nn.Parameter(torch.full(shapes[name], 2.0)) for name in shapes}
        optimizer = build_optimizer(parameters.values(), config, MODEL)
        assert sum(len(group["params"]) for group in optimizer.param_groups) == 3
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        for name, parameter in parameters.items():
            expected = 2.0 * (1 - 0.5 * 0.1) if name in moved else 2.0
            assert (parameter - expected).abs().max() < 1e-6, (decay, name)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            "optim.schedule=cosine optim.schedule.warmup_steps=401",
            "optim.schedule.warmup_steps = 401, and the whole run has 400 up",
        ),
        ("optim.schedule=cosine", ""),
        (
            "optim.schedule=epoch_decay optim.schedule.warmup_epochs=8",
            "warmup_epochs = 8, and the whole run has 8 epochs",
        ),
        ("optim.schedule=epoch_decay optim.schedule.warmup_epochs=7", ""),
        ("optim.schedule=constant", ""),
    ],
)
def test_a_warm_up_longer_than_the_run_is_told(
    settings: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = apply_overrides(Config(), settings.split())
    schedule, rates = config.optim.schedule, lr_factor(config.optim.schedule, total_steps=400)
    warn_of_warm_up(schedule, total_steps=400, epoch_length=51)
    n = 8 if config.optim.schedule.kind == "epoch_decay" else 400
    assert (max(map(rates, range(n))) < 1) == bool(said)
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)
