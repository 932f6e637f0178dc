"""The training engine: one ignite iteration is one update of the model."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import ignite.distributed as idist
import torch
from ignite.engine import Engine
from torch import nn

from configs.schema import EpochDecay, OptimConfig
from data.batching import Batch
from models.loss import TokenSums
from training.faults import BadUpdate, refuse
from training.graphs import GraphedPasses
from training.objectives import build_objective
from training.prepare import Learner
from utils.machine import autocast, seed_all

REHEARSAL = "rehearsal"  # an event: the largest batches are tried
LEAST_SCALE = 1e-4  # of a loss in float16: from there down overflowing gradients are bad numbers


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of an update's dropout.

    It depends on nothing that ran before, so any update can be repeated exactly.
    """
    own = int.from_bytes(torch.tensor([seed, step]).numpy().tobytes(), "little")
    return (own + rank * 0x9E3779B9) % (2**63 - 25)  # far apart: seeds of steps differ by 50


def create_trainer(
    learner: Learner,
    config: OptimConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
    on_bad_numbers: BadUpdate = refuse,
    largest: Sequence[Batch] = (),
    graphs: bool = False,
) -> Engine:
    """An engine whose iteration is one optimizer update over a group of micro-batches.

    The summed loss of the group is divided once by its number of target tokens, over all
    micro-batches and processes. The output of an iteration is a dict: nll, n_correct, n_tokens
    (sums over the group), grad_norm (before clipping), lr (of this update), skipped, rescaled
    (skipped because of the scaler's scale).

    Args:
        learner: What is updated. Its schedule is stepped with each update, unless it is by epoch.
        config: Clipping, objective and label smoothing.
        device: Where the batches go.
        dtype: The type of computation, under autocast.
        seed: Of the dropout; see `step_seed`.
        on_bad_numbers: Called as (engine, group, loss, norm) where loss or gradient is no number,
            in all processes alike. The update is left out, unless this raises.
        largest: Batches to try forward and backward at the event REHEARSAL, so that too little
            memory shows at once. The trial leaves no trace: an update seeds what it draws.
        graphs: Whether passes are captured as CUDA graphs; in one process alone.
    """
    rank, world_size = idist.get_rank(), idist.get_world_size()
    model, optimizer, scaler = learner.shared, learner.optimizer, learner.scaler
    parameters = [p for p in model.parameters() if p.requires_grad]
    max_norm = config.grad_clip if config.grad_clip is not None else math.inf
    objective = build_objective(config.objective, learner.softmax)
    by_epoch = isinstance(config.schedule, EpochDecay)

    def backward(model: nn.Module, batch: Batch, factor: float | torch.Tensor) -> TokenSums:
        batch = batch.to(device)
        with autocast(device, dtype):
            weight = learner.model.output_weight()
            sums = objective(model, batch, weight, config.label_smoothing)
        scaler.scale(sums.objective * factor).backward()
        return sums

    passes = GraphedPasses(partial(backward, model), device) if graphs else partial(backward, model)

    def rehearse(engine: Engine) -> None:
        # Room for what updates will hold: the optimizer's two moments, and the sum of gradients.
        n_copies = (0 if optimizer.state else 2) + (1 if config.accumulate > 1 or graphs else 0)
        room = [torch.empty_like(p) for p in parameters for _ in range(n_copies)]
        learner.model.train()
        for batch in largest:
            backward(learner.model, batch, 1.0)
            optimizer.zero_grad(set_to_none=True)
        del room

    def update(engine: Engine, group: list[Batch]) -> dict[str, float]:
        if not learner.model.training:  # model.train() goes through all modules
            model.train()
        seed_all(step_seed(seed, engine.state.iteration, rank), device)
        n_tokens = group[0].n_group
        if n_tokens is None:
            n_tokens = int(idist.all_reduce(sum(batch.n_tokens for batch in group)))
        nll = torch.zeros((), dtype=torch.float64, device=device)
        n_correct = torch.zeros((), dtype=torch.float64, device=device)
        for i, batch in enumerate(group):
            here = world_size == 1 or i == len(group) - 1
            # Gradients travel between processes once, with the last micro-batch.
            with nullcontext() if here else model.no_sync():  # type: ignore[operator]
                # DistributedDataParallel averages over processes: the factor makes it a sum.
                found = passes(batch, world_size / n_tokens)
            nll += found.nll
            n_correct += found.n_correct
        scaler.unscale_(optimizer)
        grad_norm = nn.utils.clip_grad_norm_(parameters, max_norm)
        sums = idist.all_reduce(torch.stack((nll, n_correct)))
        # The one wait for the device. It comes before the optimizer: a bad update must not touch
        # the weights, and a checkpoint or a log line must not lack the last update's figures.
        total, correct, norm = torch.cat((sums, grad_norm.double()[None])).tolist()
        lr = optimizer.param_groups[0]["lr"]
        whole = math.isfinite(total) and math.isfinite(norm)
        # A scaler that searches for its scale meets infinite gradients, and then halves it.
        overflow = scaler.is_enabled() and math.isfinite(total) and not whole
        rescaled = overflow and scaler.get_scale() > LEAST_SCALE
        if whole:
            scaler.step(optimizer)
        elif not rescaled:
            on_bad_numbers(engine, group, total / max(n_tokens, 1), norm)
        scaler.update()
        optimizer.zero_grad(set_to_none=not graphs)
        if not by_epoch:
            learner.scheduler.step()
        return {
            "nll": total,
            "n_correct": correct,
            "n_tokens": n_tokens,
            "grad_norm": norm,
            "lr": lr,
            "skipped": not whole,
            "rescaled": rescaled,
        }

    trainer = Engine(update)
    trainer.register_events(REHEARSAL)
    trainer.add_event_handler(REHEARSAL, rehearse)
    return trainer
