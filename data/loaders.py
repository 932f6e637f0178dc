"""A split of a corpus as text and as ids, in one call."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from configs.schema import DataConfig
from data.cache import TokenizedSplit, tokenize_split
from data.corpora.base import CorpusReader, ParallelText
from tokenizer.base import BaseTokenizer

logger = logging.getLogger(__name__)


def load_split(
    config: DataConfig,
    corpus: CorpusReader,
    split: str,
    tokenizer: BaseTokenizer,
    *,
    training: bool,
) -> tuple[ParallelText, TokenizedSplit]:
    """The text of a split and its ids; `ids.kept[i]` is the row of pair i in the text.

    Training takes the pairs in the directions that the config says, evaluation forward alone. Pairs
    longer than config.max_len are dropped in training; in evaluation config.eval_long decides. What
    was left out is counted in one log line. UserError: as the corpus and the cache say.
    """
    text = corpus.load(split)
    if training and config.directions == "both":
        text = text.both_ways()
    ids = tokenize_split(
        text,
        tokenizer,
        max_len=config.max_len,
        too_long="drop" if training else config.eval_long,
        cache_dir=Path(os.path.expanduser(config.cache_dir)),
    )
    counts = {**text.skipped, **ids.n_skipped}
    logger.info(
        "%s: %s pairs, %s source and %s target tokens (skipped or long: %s)",
        split,
        f"{len(ids):,}",
        f"{len(ids.src_ids):,}",
        f"{len(ids.tgt_ids):,}",
        ", ".join(f"{reason} {count:,}" for reason, count in counts.items()) or "none",
    )
    return text, ids
