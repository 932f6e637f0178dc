"""Updates of a small model in float64, without a run around them."""

from typing import Any

import numpy as np
import torch
from tiny_models import tiny_config, vocabulary
from torch import nn

from configs.schema import Constant, CrossEntropy, OptimConfig, Sinusoidal
from data.batching import Batch, collate
from data.cache import TokenizedSplit
from models.build import build_model
from models.loss import TokenSums
from training.engine import create_trainer
from training.faults import BadUpdate
from training.objectives import build_objective
from training.prepare import Learner
from training.schedules import build_scheduler
from utils.machine import autocast

CPU = torch.device("cpu")
PAD, BOS, EOS, VOCAB = 0, 1, 2, 23
IDS = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}
VOCABULARY = vocabulary(src_vocab_size=VOCAB, tgt_vocab_size=VOCAB, **IDS)


def sentences(n: int, seed: int) -> TokenizedSplit:
    """n pairs of random ids, 2 to 9 long, each ending in EOS."""
    draw = np.random.default_rng(seed)
    sides = []
    for _ in range(2):
        rows = [[*draw.integers(3, VOCAB, draw.integers(1, 9)), EOS] for _ in range(n)]
        sides += [np.concatenate(rows).astype(np.int32), np.cumsum([0, *map(len, rows)])]
    return TokenizedSplit(*sides, kept=np.arange(n), n_skipped={})


def batch_of(split: TokenizedSplit, rows: range) -> Batch:
    return collate(split, list(rows), pad_id=PAD, bos_id=BOS)


def plain_update(
    model: Any, optimizer: torch.optim.Optimizer, batch: Batch, dtype: torch.dtype
) -> TokenSums:
    """Forward under autocast in dtype, backward, clipping and the optimizer, without an engine."""
    objective = build_objective(CrossEntropy())
    with autocast(batch.src.device, dtype):
        sums = objective(model, batch, model.output_weight(), 0.1)
    (sums.objective / batch.n_tokens).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return sums


def small_model() -> Any:
    torch.manual_seed(0)
    sizes = {"d_model": 8, "n_encoder_layers": 1, "n_decoder_layers": 1, "d_ff": 16}
    return build_model(tiny_config(Sinusoidal(), **sizes), VOCABULARY).double()


def updated(
    groups: list[list[Batch]],
    *,
    model: Any = None,
    dtype: torch.dtype = torch.float64,
    scaled: bool = False,
    on_bad: BadUpdate | None = None,
    **changes: Any,
) -> tuple[nn.Module, dict[str, float]]:
    """A small model after plain gradient steps (rate 1) on the groups; the last one's output."""
    model = model or small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    config = OptimConfig(**{"schedule": Constant(lr=1.0), "grad_clip": None, **changes})
    learner = Learner(
        model=model,
        shared=model,
        optimizer=optimizer,
        scheduler=build_scheduler(optimizer, config, total_steps=1),
        scaler=torch.amp.GradScaler("cpu", enabled=scaled),
        average=None,
    )
    how: Any = {"device": CPU, "dtype": dtype, "seed": 0}
    if on_bad is not None:
        how["on_bad_numbers"] = on_bad
    trainer = create_trainer(learner, config, **how)
    return model, trainer.run(groups, max_epochs=1).output


def difference(a: nn.Module, b: nn.Module) -> float:
    return max((p - q).abs().max().item() for p, q in zip(a.parameters(), b.parameters()))
