"""What happens to the validation split: loss on all pairs, BLEU of greedy translations, attention
maps of one pair.
"""

from __future__ import annotations

import math

import ignite.distributed as idist
import torch
from ignite.engine import Engine
from torch.utils.data import DataLoader

from configs.schema import Config
from data.batching import Batch, make_eval_loader
from data.cache import TokenizedSplit
from data.corpora.base import ParallelText
from tokenizer.base import BaseTokenizer
from training.faults import NON_FINITE_REMEDY, NonFiniteError
from training.log import RunLog
from translation.metrics import sacrebleu_score
from translation.translator import Translator
from utils.errors import UserError

SHOWN = 8  # translations in TensorBoard


def validation_loader(
    ids: TokenizedSplit, tokenizer: BaseTokenizer, *, batch_size: int
) -> DataLoader[Batch]:
    """This process's share of the pairs. Raises UserError where there are fewer pairs than
    processes.
    """
    rank, world_size = idist.get_rank(), idist.get_world_size()
    if len(ids) < world_size:
        raise UserError(
            f"{len(ids)} validation pairs for {world_size} processes: each needs one; use fewer processes"
        )
    return make_eval_loader(
        ids,
        batch_size=min(batch_size, len(ids) // world_size),  # no process without a batch
        pad_id=tokenizer.pad_id,
        bos_id=tokenizer.bos_id,
        rank=rank,
        world_size=world_size,
    )


def validate(
    evaluator: Engine,
    loader: DataLoader[Batch],
    translator: Translator,
    text: ParallelText,
    ids: TokenizedSplit,
    config: Config,
    log: RunLog | None,
    *,
    epoch: int,
    step: int,
    last: bool,
) -> str:
    """Run the evaluator, translate where it is due, write both to the log if there is one; the
    result in one line.

    After the `last` update a translation is always due, unless the config wants none.
    """
    metrics = evaluator.run(loader).metrics
    figures = {name: metrics[name] for name in ("loss", "accuracy", "perplexity")}
    line = (
        f"epoch {epoch}: validation loss {figures['loss']:.4f}, accuracy {figures['accuracy']:.4f}"
    )
    every = config.evaluate.bleu_every_epochs
    if every and (epoch % every == 0 or last):
        rows = list(range(len(ids)))[: config.evaluate.bleu_sentences]
        texts = translate_rows(translator, ids, rows)
        sources, references = (
            [side[int(ids.kept[i])] for i in rows] for side in (text.src, text.tgt)
        )
        figures["bleu"] = sacrebleu_score(texts, references)
        line += f", BLEU {figures['bleu']:.2f} (greedy, {len(rows)} sentences)"
        if log is not None:
            log.samples(list(zip(sources, references, texts))[:SHOWN], step)
    if log is not None:
        log.scalars("validation", figures, step=step, epoch=epoch)
        if config.train.log_attention and config.model.backend == "scratch":
            from pictures.attention import attention_figures, target_tokens

            source = ids.src(0).tolist()
            target = target_tokens(translator, source, None)
            pictures = attention_figures(translator, source, target, layers=[-1])
            for kind, figure in pictures.items():
                log.figure(f"attention/{kind}", figure, step)
    return line


def require_finite(evaluator: Engine) -> None:
    """Raises NonFiniteError where the evaluator's loss is no number; to be called before anything
    is saved.
    """
    loss = evaluator.state.metrics["loss"]
    if not math.isfinite(loss):
        raise NonFiniteError(
            f"validation loss {loss}: the weights have broken down; the checkpoints of earlier epochs are kept. "
            f"{NON_FINITE_REMEDY}"
        )


def translate_rows(translator: Translator, ids: TokenizedSplit, rows: list[int]) -> list[str]:
    """Greedy translations of the given rows, shared out over the processes; every process gets all
    of them.
    """
    rank, world_size = idist.get_rank(), idist.get_world_size()
    found = translator.search_ids(
        [ids.src(i).tolist() for i in rows[rank::world_size]], greedy=True
    )
    texts = [translator.tokenizer.decode(hypotheses[0].ids) for hypotheses in found]
    if world_size == 1:
        return texts
    shares: list[list[str]] = [[] for _ in range(world_size)]
    torch.distributed.all_gather_object(shares, texts)
    return [shares[i % world_size][i // world_size] for i in range(len(rows))]
