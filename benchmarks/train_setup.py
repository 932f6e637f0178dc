"""What the models of a benchmark share: sizes, a vocabulary, made-up batches, FLOPs of an update.

Model FLOPs of one update (forward, and twice that backward), for real tokens without padding:
6 * (source tokens * [n_enc (4 D^2 + 2 D F) + n_dec 2 D^2] + target tokens * [n_dec (6 D^2 + 2 D F)
+ D V] + 2 D * sum over sentences of [n_enc S^2 + n_dec (T^2 + T S)]): the multiply-adds of all
matrices that a token meets, and of both products of attention (a causal one counted whole, as is
usual).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.common import DTYPES
from data.batching import Batch, collate, form_batches, padded_tokens
from data.cache import TokenizedSplit

UNK, PAD, BOS, EOS = range(4)
LONGEST = 120  # tokens of a sentence, either side
POOL = 20_000  # pairs at least: few would have far more padding than a corpus has


@dataclass(frozen=True, slots=True)
class Size:
    """Of a model; batch_tokens bounds the longer side of a batch, padding included."""

    d_model: int
    n_heads: int
    d_ff: int
    n_layers: int  # in the encoder, and as many in the decoder
    vocab_size: int
    batch_tokens: int

    def shape(self) -> dict[str, Any]:
        """Fields of a ModelConfig, the embeddings tied with the output."""
        layers = {"n_encoder_layers": self.n_layers, "n_decoder_layers": self.n_layers}
        width = {"d_model": self.d_model, "n_heads": self.n_heads, "d_ff": self.d_ff}
        return {**width, **layers, "tie_embeddings": "all"}


SIZES = {
    "tiny": Size(64, 2, 128, 2, 500, 256),  # for trying the script out
    "small": Size(256, 4, 1024, 3, 8_000, 4096),
    "base": Size(512, 8, 2048, 6, 32_000, 2048),
}


class Vocabulary:
    """A joint vocabulary whose pieces are numbers: what ours, joeynmt and fairseq ask of theirs."""

    shared_vocab = True
    unk_id, pad_id, bos_id, eos_id = UNK, PAD, BOS, EOS
    unk_index, pad_index, bos_index, eos_index, sep_index = UNK, PAD, BOS, EOS, None
    specials: tuple[str, ...] = ()
    lang_tags: tuple[str, ...] = ()

    def __init__(self, size: int) -> None:
        self.src_vocab_size = self.tgt_vocab_size = size

    def __len__(self) -> int:
        return self.src_vocab_size

    def pad(self) -> int:
        return PAD

    def src_pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(i) for i in ids]

    tgt_pieces = src_pieces


@dataclass(frozen=True, slots=True)
class Setup:
    """What all models of one comparison share."""

    size: Size
    device: torch.device
    precision: str = "float32"
    threads: int = 1
    rounds: int = 1
    warmup: int = 0
    steps: int = 1  # updates in a round
    seed: int = 0
    compile: bool = False  # ours

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.precision]


def model_flops(size: Size, src_lengths: np.ndarray, tgt_lengths: np.ndarray) -> float:
    """FLOPs of an update on sentences of these lengths: the formula at the head of this file."""
    d, f = size.d_model, size.d_ff
    s, t = (np.asarray(lengths, dtype=np.float64) for lengths in (src_lengths, tgt_lengths))
    by_source = size.n_layers * (4 * d * d + 2 * d * f) + size.n_layers * 2 * d * d
    by_target = size.n_layers * (6 * d * d + 2 * d * f) + d * size.vocab_size
    attention = 2 * d * size.n_layers * (s * s + t * t + t * s)
    return float(6 * (s * by_source + t * by_target + attention).sum())


# ------------------------------------------------------------------------------------------ batches


def made_up_split(n: int, vocab_size: int, seed: int) -> TokenizedSplit:
    """n pairs of random ids that end in EOS; targets of about 20 tokens, log-normal."""
    rng = np.random.default_rng(seed)
    tgt = np.clip(np.exp(rng.normal(math.log(20), 0.5, n)), 3, LONGEST)
    src = np.clip(tgt * np.exp(rng.normal(0.1, 0.2, n)), 3, LONGEST)

    def side(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        offsets = np.concatenate(([0], np.cumsum(lengths.astype(np.int64))))
        ids = rng.integers(EOS + 1, vocab_size, offsets[-1], dtype=np.int32)
        ids[offsets[1:] - 1] = EOS
        return ids, offsets

    return TokenizedSplit(*side(src), *side(tgt), kept=np.arange(n), n_skipped={})


class Batches:
    """The batches of all rounds, formed as in training: `steps` a round, different ones in each."""

    def __init__(self, setup: Setup) -> None:
        self.setup, seed, budget = setup, setup.seed, setup.size.batch_tokens
        n = (setup.warmup + setup.rounds) * setup.steps
        n_pairs = max(POOL, n * budget // 8)
        self.split = split = made_up_split(n_pairs, setup.size.vocab_size, seed)
        self.lengths = split.src_lengths, split.tgt_lengths
        formed = form_batches(*self.lengths, batch_by="tokens", batch_size=budget, seed=seed)
        chosen = np.random.default_rng(seed).permutation(len(formed))[:n]
        self.rows = [formed[i] for i in chosen]
        self.made = [collate(split, rows.tolist(), pad_id=PAD, bos_id=BOS) for rows in self.rows]

    def places(self, number: int) -> slice:
        """Where the batches of a round stand; the rounds -warmup to -1 are the warm-up."""
        first = (number + self.setup.warmup) * self.setup.steps
        return slice(first, first + self.setup.steps)

    def of_round(self, number: int) -> list[Batch]:
        return self.made[self.places(number)]

    def n_tokens(self, number: int) -> int:
        """Target tokens of a round, without padding."""
        return sum(batch.n_tokens for batch in self.of_round(number))

    def flops(self, number: int) -> float:
        rows = np.concatenate(self.rows[self.places(number)])
        return model_flops(self.setup.size, *(lengths[rows] for lengths in self.lengths))

    def padding(self) -> float:
        """The share of both sides that is padding."""
        sides = [ids for batch in self.made for ids in (batch.src, batch.tgt_out)]
        real = sum(int((ids != PAD).sum()) for ids in sides)
        return 1 - real / padded_tokens(self.rows, *self.lengths)
