"""Learning-rate schedules as factors for torch's LambdaLR."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from torch import nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from configs.schema import Constant, Cosine, EpochDecay, InverseSqrt, ModelConfig, Noam, OptimConfig, Schedule


def base_lr(schedule: Schedule, model: ModelConfig) -> float:
    """The learning rate that the factor of `lr_factor` multiplies."""
    if isinstance(schedule, Noam):
        return schedule.noam_factor * model.d_model**-0.5
    return schedule.lr


def lr_factor(schedule: Schedule, *, total_steps: int) -> Callable[[int], float]:
    """Factor of the base rate as a function of n updates done (n epochs done, for EpochDecay), from 0.

    The update that follows n updates is step s = n + 1 of the published formulas.
    """
    match schedule:
        case Constant():
            return lambda n: 1.0
        case EpochDecay(warmup_epochs=warmup, decay=decay):

            def by_epoch(epoch: int) -> float:
                if epoch <= warmup:
                    return (epoch + 1) / (warmup + 1)
                return math.exp(-decay * (epoch - warmup - 1))

            return by_epoch
        case Noam(warmup_steps=warmup):
            return lambda n: min((n + 1) ** -0.5, (n + 1) * warmup**-1.5)
        case InverseSqrt(warmup_steps=warmup):
            return lambda n: min((n + 1) / warmup, (warmup / (n + 1)) ** 0.5)
        case Cosine(warmup_steps=warmup, final_fraction=final):

            def cosine(n: int) -> float:
                if n < warmup:
                    return (n + 1) / warmup
                done = min(1.0, (n + 1 - warmup) / max(1, total_steps - warmup))
                return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done))

            return cosine


def build_optimizer(parameters: Iterable[nn.Parameter], config: OptimConfig, model: ModelConfig) -> Optimizer:
    """Adam or AdamW at the schedule's base rate."""
    cls = Adam if config.optimizer == "adam" else AdamW
    return cls(
        parameters,
        lr=base_lr(config.schedule, model),
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def build_scheduler(optimizer: Optimizer, config: OptimConfig, *, total_steps: int) -> LambdaLR:
    """LambdaLR to be stepped after every update, or after every epoch for EpochDecay."""
    return LambdaLR(optimizer, lr_factor(config.schedule, total_steps=total_steps))
