"""The two ignite engines: one update of the model, and the evaluation of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.metrics import Metric
from ignite.metrics.metric import reinit__is_reduced
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from configs.errors import UserError
from configs.schema import OptimConfig
from data.batching import Batch
from models.transformer import TranslationTransformer
from utils.bad_numbers import BadUpdate, refuse
from utils.loss import TokenSums, token_sums
from utils.memory import is_out_of_memory, release_memory
from utils.objectives import build_objective

logger = logging.getLogger(__name__)


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Mixed precision in dtype; nothing for float32 and float64."""
    if dtype in (torch.bfloat16, torch.float16):
        return torch.autocast(device.type, dtype=dtype)
    return nullcontext()


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of an update's dropout. It depends on nothing that ran before, so any update can be repeated exactly."""
    return int.from_bytes(torch.tensor([seed, step, rank]).numpy().tobytes(), "little") % (2**63 - 25)


def create_trainer(
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: LambdaLR,
    *,
    config: OptimConfig,
    step_scheduler_each_update: bool,
    scaler: torch.amp.GradScaler,
    pad_id: int,
    device: torch.device,
    dtype: torch.dtype,
    seed: int,
    on_bad_numbers: BadUpdate = refuse,
    largest: Sequence[Batch] = (),
) -> Engine:
    """An engine whose iteration is one optimizer update over a group of micro-batches.

    The summed loss of the group is divided once by its number of target tokens, over all micro-batches and processes.
    `model` is a TranslationTransformer or its DistributedDataParallel wrapper. The output of an iteration is a dict:
    nll, n_correct, n_tokens (sums over the group), grad_norm (before clipping), lr (of this update), skipped.
    Where the loss or the gradient is no number, `on_bad_numbers(engine, group, loss, norm)` is asked, in all processes
    alike: the update is left out, unless it raises.
    The `largest` batches are tried before the first update, forward and backward: what does not fit into the memory
    shows at once. It leaves no trace.
    """
    rank, world_size = idist.get_rank(), idist.get_world_size()
    parameters = [p for p in model.parameters() if p.requires_grad]
    plain = model.module if isinstance(model, DistributedDataParallel) else model
    weight = cast(TranslationTransformer, plain).output.weight
    max_norm = config.grad_clip if config.grad_clip is not None else math.inf
    objective = build_objective(config.objective)

    def backward(model: nn.Module, batch: Batch, factor: float) -> TokenSums:
        targets = batch.tgt_out != pad_id
        with autocast(device, dtype):
            sums = objective(model, batch, targets, weight, config.label_smoothing)
        scaler.scale(sums.objective * factor).backward()
        return sums

    def rehearse(engine: Engine) -> None:
        # Room for what the updates will hold: the optimizer's two moments, and the sum of gradients.
        n_copies = (0 if optimizer.state else 2) + (1 if config.accumulate > 1 else 0)
        room = [torch.empty_like(p) for p in parameters for _ in range(n_copies)]
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            for batch in largest:
                plain.train()
                backward(plain, batch.to(device), 1.0)
                optimizer.zero_grad(set_to_none=True)
        del room

    def update(engine: Engine, group: list[Batch]) -> dict[str, float]:
        model.train()
        torch.manual_seed(step_seed(seed, engine.state.iteration, rank))
        n_tokens = sum(batch.n_tokens for batch in group)
        if world_size > 1:
            n_tokens = int(idist.all_reduce(n_tokens))
        nll = torch.zeros((), dtype=torch.float64, device=device)
        n_correct = torch.zeros((), dtype=torch.float64, device=device)
        for i, batch in enumerate(group):
            last = i == len(group) - 1
            # Gradients travel between processes once, with the last micro-batch.
            wait = nullcontext() if last or world_size == 1 else model.no_sync()  # type: ignore[operator]
            with wait:
                # DistributedDataParallel takes the mean over processes: the factor turns it back into the sum.
                sums = backward(model, batch.to(device), world_size / n_tokens)
            nll += sums.nll
            n_correct += sums.n_correct
        scaler.unscale_(optimizer)
        grad_norm = nn.utils.clip_grad_norm_(parameters, max_norm)
        if world_size > 1:
            nll, n_correct = idist.all_reduce(nll), idist.all_reduce(n_correct)
        total, correct, norm = torch.stack((nll, n_correct, grad_norm.double())).tolist()
        # A scaler meets infinite gradients while it looks for its scale, and skips those updates itself.
        skipped = not math.isfinite(total) or not (math.isfinite(norm) or scaler.is_enabled())
        lr = optimizer.param_groups[0]["lr"]
        if not skipped:
            scaler.step(optimizer)
        else:
            on_bad_numbers(engine, group, total / max(n_tokens, 1), norm)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if step_scheduler_each_update:
            scheduler.step()
        return {
            "nll": total,
            "n_correct": correct,
            "n_tokens": n_tokens,
            "grad_norm": norm,
            "lr": lr,
            "skipped": skipped,
        }

    trainer = Engine(update)
    if largest:
        trainer.add_event_handler(Events.STARTED, rehearse)
    return trainer


class TokenMetrics(Metric):
    """loss (nats a target token, without smoothing) and accuracy over real target tokens, over all processes."""

    @reinit__is_reduced
    def reset(self) -> None:
        self._nll = self._n_correct = self._n_tokens = 0.0

    @reinit__is_reduced
    def update(self, output: tuple[Tensor, Tensor, int]) -> None:
        nll, n_correct, n_tokens = output
        self._nll += nll.item()
        self._n_correct += n_correct.item()
        self._n_tokens += n_tokens

    def compute(self) -> Mapping[str, float]:
        sums = torch.tensor([self._nll, self._n_correct, self._n_tokens], dtype=torch.float64)
        if idist.get_world_size() > 1:
            sums = idist.all_reduce(sums.to(idist.device()))
        nll, n_correct, n_tokens = sums.tolist()
        loss = nll / n_tokens
        return {"loss": loss, "accuracy": n_correct / n_tokens, "perplexity": math.exp(min(loss, 700.0))}


def create_evaluator(model: TranslationTransformer, *, pad_id: int, device: torch.device, dtype: torch.dtype) -> Engine:
    """An engine over batches whose metrics are loss, accuracy and perplexity (see TokenMetrics).

    A batch that does not fit into the memory is cut in two. Raises UserError where a single pair does not fit.
    """

    warned = False

    def sums_of(batch: Batch) -> tuple[Tensor, Tensor]:
        targets = batch.tgt_out != pad_id
        with torch.inference_mode(), autocast(device, dtype):
            hidden = model(batch.src, batch.tgt_in, select=targets, project=False)
            sums = token_sums(hidden, model.output.weight, batch.tgt_out[targets], label_smoothing=0.0)
        return sums.nll, sums.n_correct

    def evaluate(engine: Engine, batch: Batch) -> tuple[Tensor, Tensor, int]:
        nonlocal warned
        model.eval()
        parts, results = [batch], []
        while parts:
            part = parts.pop()
            try:
                results.append(sums_of(part.to(device)))
                continue
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if len(part.indices) == 1:
                    raise UserError(
                        f"not enough memory to evaluate one pair of {part.src.shape[1]:,} and {part.tgt_in.shape[1]:,} "
                        "tokens: use --set data.eval_long=truncate, or a device with more"
                    ) from error
            release_memory(device)  # not before the error, which holds what was computed, has gone
            if not warned:
                logger.warning("not enough memory to evaluate %d pairs at once: cut in two", len(part.indices))
            warned = True
            parts += part.halves(pad_id)
        nll, n_correct = (torch.stack(column).sum() for column in zip(*results))
        return nll, n_correct, batch.n_tokens

    evaluator = Engine(evaluate)
    TokenMetrics().attach(evaluator, "tokens")
    return evaluator
