"""Learning-rate schedules as factors for torch's LambdaLR, and their optimizer."""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from torch import nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from configs import schema
from training.muon import HiddenMap, Muon

logger = logging.getLogger(__name__)


def base_lr(schedule: schema.Schedule, model: schema.ModelConfig) -> float:
    """The learning rate that the factor of `lr_factor` multiplies."""
    if isinstance(schedule, schema.Noam):
        return schedule.noam_factor * model.d_model**-0.5
    return schedule.lr


def warn_of_warm_up(schedule: schema.Schedule, total_steps: int, epoch_length: int) -> None:
    """Warn where the run ends before its warm-up, as with few pairs and a config for many."""
    epochs = -(-total_steps // epoch_length)
    # The last update of a warm-up has the full rate, and the epoch after it.
    lengths = {"warmup_steps": (total_steps, "updates", 0), "warmup_epochs": (epochs, "epochs", 1)}
    for name, (whole, unit, after) in lengths.items():
        if getattr(schedule, name, 0) + after > whole:
            logger.warning(
                f"optim.schedule.{name} = {getattr(schedule, name)}, and the whole run has {whole} "
                f"{unit}: the learning rate will not reach its peak; warm up less, or train longer"
            )


def lr_factor(schedule: schema.Schedule, *, total_steps: int) -> Callable[[int], float]:
    """Factor of the base rate after n updates (for EpochDecay: n epochs), from 0.

    The update after n updates is step s = n + 1 of the published formulas.
    """
    match schedule:
        case schema.Constant():
            return lambda n: 1.0
        case schema.EpochDecay(warmup_epochs=warmup, decay=decay):
            return lambda epoch: (
                (epoch + 1) / (warmup + 1)
                if epoch <= warmup
                else math.exp(-decay * (epoch - warmup - 1))
            )
        case schema.Noam(warmup_steps=warmup):
            return lambda n: min((n + 1) ** -0.5, (n + 1) * warmup**-1.5)
        case schema.InverseSqrt(warmup_steps=warmup):
            return lambda n: min((n + 1) / warmup, (warmup / (n + 1)) ** 0.5)
        case schema.Cosine() | schema.Linear():
            warmup, final = schedule.warmup_steps, schedule.final_fraction
            curved = isinstance(schedule, schema.Cosine)

            def falling(n: int) -> float:
                if n < warmup:
                    return (n + 1) / warmup
                done = min(1.0, (n + 1 - warmup) / max(1, total_steps - warmup))
                left = 0.5 * (1 + math.cos(math.pi * done)) if curved else 1 - done
                return final + (1 - final) * left

            return falling
        case schema.Plateau():
            return PlateauFactor(schedule)


class PlateauFactor:
    """The factor of a Plateau schedule. Its state is what it has seen, which LambdaLR saves."""

    def __init__(self, schedule: schema.Plateau) -> None:
        self.warmup = schedule.warmup_steps
        self.factor = schedule.factor
        self.patience = schedule.patience
        self.lowest = schedule.min_lr / schedule.lr
        self.best: float | None = None
        self.n_without = 0  # evaluations in a row without a new lowest loss
        self.scale = 1.0

    def __call__(self, n: int) -> float:
        return min(1.0, (n + 1) / self.warmup) * self.scale

    def observe(self, loss: float) -> None:
        if self.best is None or loss < self.best:
            self.best, self.n_without = loss, 0
            return
        self.n_without += 1
        if self.n_without == self.patience:
            self.scale, self.n_without = max(self.lowest, self.scale * self.factor), 0


class PlateauLR(LambdaLR):
    """LambdaLR with a PlateauFactor: stepped like the others, and given every validation loss."""

    def observe(self, loss: float) -> None:
        """Note a validation loss; the next update has the rate that follows from it."""
        factor = cast(PlateauFactor, self.lr_lambdas[0])  # one serves all groups
        factor.observe(loss)
        self._last_lr = [base * factor(self.last_epoch) for base in self.base_lrs]
        for group, lr in zip(self.optimizer.param_groups, self._last_lr):
            group["lr"] = lr


def build_optimizer(
    parameters: Iterable[nn.Parameter],
    config: schema.OptimConfig,
    model: schema.ModelConfig,
    maps: Sequence[HiddenMap] = (),
    *,
    bf16: bool = False,
) -> Optimizer:
    """Adam, AdamW, or Muon for `maps` and AdamW for the rest, at the schedule's base rate.

    All parameters decay. With decay="matrices" only those of two dimensions or more do: linear maps
    and tables (embeddings, positions), but not biases, norms and scalars. Muon's maps are a group
    of their own, the last; bf16: their products are in bfloat16.
    """
    shared: dict[str, Any] = {
        "lr": base_lr(config.schedule, model),
        "betas": config.betas,
        "eps": config.eps,
        "weight_decay": config.weight_decay,
    }
    muon = config.optimizer == "muon"
    of_muon = {id(weight) for weight, _ in maps} if muon else set()
    rest = [p for p in parameters if id(p) not in of_muon]
    groups: list[dict[str, Any]] = [{"params": rest}]
    if config.decay == "matrices":
        flat = {"params": [p for p in rest if p.dim() <= 1], "weight_decay": 0.0}
        groups = [{"params": [p for p in rest if p.dim() > 1]}, flat]
    if muon:
        return Muon(maps, groups, **shared, bf16=bf16)
    return (Adam if config.optimizer == "adam" else AdamW)(groups, **shared, fused=True)


def build_scheduler(
    optimizer: Optimizer, config: schema.OptimConfig, *, total_steps: int
) -> LambdaLR:
    """A LambdaLR to step after every update, or after every epoch for EpochDecay."""
    cls = PlateauLR if isinstance(config.schedule, schema.Plateau) else LambdaLR
    made = cls(optimizer, lr_factor(config.schedule, total_steps=total_steps))
    # A first update that is left out is no mistake, of which torch would warn.
    optimizer._opt_called = True  # type: ignore[attr-defined]
    return made
