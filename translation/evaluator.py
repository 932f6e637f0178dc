"""The evaluation engine: loss and accuracy over batches, given the reference."""

import logging
import math
from collections.abc import Mapping

import torch
from ignite.engine import Engine
from ignite.metrics import Metric
from ignite.metrics.metric import reinit__is_reduced, sync_all_reduce
from torch import Tensor

from data.batching import Batch
from models.loss import token_sums
from models.transformer import TranslationTransformer
from utils.errors import UserError
from utils.machine import autocast, if_it_fits

logger = logging.getLogger(__name__)


class TokenMetrics(Metric):
    """Loss (nats a target token, not smoothed) and accuracy, over the tokens of all processes."""

    @reinit__is_reduced
    def reset(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64)

    @reinit__is_reduced
    def update(self, output: tuple[Tensor, Tensor, int]) -> None:
        nll, n_correct, n_tokens = output
        self._sums += torch.tensor([nll.item(), n_correct.item(), n_tokens], dtype=torch.float64)

    @sync_all_reduce("_sums")
    def compute(self) -> Mapping[str, float]:
        nll, n_correct, n_tokens = self._sums.tolist()
        loss, accuracy = nll / n_tokens, n_correct / n_tokens
        return {"loss": loss, "accuracy": accuracy, "perplexity": math.exp(min(loss, 700.0))}


def create_evaluator(
    model: TranslationTransformer, *, pad_id: int, device: torch.device, dtype: torch.dtype
) -> Engine:
    """An engine over batches whose metrics are loss, accuracy and perplexity (see TokenMetrics).

    A batch that does not fit into memory is cut in two. UserError: not even one pair fits.
    """
    warned = False

    def computed(batch: Batch) -> tuple[Tensor, Tensor]:
        batch = batch.to(device)
        with torch.inference_mode(), autocast(device, dtype):
            hidden = model(batch.src, batch.tgt_in, select=batch.flat, project=False)
            sums = token_sums(hidden, model.output_weight(), batch.targets, label_smoothing=0.0)
        return sums.nll, sums.n_correct

    def sums_of(batch: Batch) -> tuple[Tensor, Tensor]:
        nonlocal warned
        if (sums := if_it_fits(computed, batch)) is not None:
            return sums
        if len(batch.indices) == 1:
            raise UserError(
                f"not enough memory to evaluate one pair of {batch.src.shape[1]:,} and "
                f"{batch.tgt_in.shape[1]:,} tokens: give it more memory, or --set "
                "data.eval_long=truncate (in training: of a new run)"
            )
        if not warned:
            message = "not enough memory to evaluate %d pairs at once: halving the batch"
            logger.warning(message, len(batch.indices))
        warned = True
        halves = zip(*(sums_of(half) for half in batch.halves(pad_id)))
        nll, n_correct = (torch.stack(column).sum() for column in halves)
        return nll, n_correct

    def evaluate(engine: Engine, batch: Batch) -> tuple[Tensor, Tensor, int]:
        model.eval()
        return *sums_of(batch), batch.n_tokens

    evaluator = Engine(evaluate)
    TokenMetrics().attach(evaluator, "tokens")
    return evaluator
