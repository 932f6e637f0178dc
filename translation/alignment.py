"""Word alignment: links between source and target words, read off cross-attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from data.corpora.text import plain_text
from utils.errors import UserError

Link = tuple[int, int]  # numbers of a source and a target word, from 0

# Keeps a source word that gets hardly any attention from winning by a large share of it.
SMOOTHING = 0.1


@dataclass(frozen=True, slots=True)
class HeadChoice:
    """The attention that links are read off: the mean of some heads of one decoder layer.

    A target piece has the row of attention that produces it, or with shift the next row, which has
    read it (Chen et al. 2020, "shift-att").
    """

    layer: int | None = None  # from 1, or from -1 for the last; None: see `WordAttention.aligned`
    heads: tuple[int, ...] | None = None  # from 1; None: all
    shift: bool = False

    def __post_init__(self) -> None:
        heads: Any = () if self.heads is None else self.heads
        numbers = () if self.layer is None else (self.layer,)
        if (
            not isinstance(heads, tuple)
            or self.heads == ()
            or not all(
                isinstance(n, Integral) and not isinstance(n, bool) for n in (*numbers, *heads)
            )
        ):
            given = f"layer {self.layer!r}, heads {self.heads!r}"
            raise UserError(f"{given}: give an integer, and a tuple of integers")

    @classmethod
    def parse(cls, text: str) -> HeadChoice:
        """From "[shift:]LAYER[:HEAD,HEAD,...]". Raises UserError."""
        shift, rest = text.startswith("shift:"), text.removeprefix("shift:")
        layer, colon, heads = rest.partition(":")
        try:
            return cls(int(layer), tuple(map(int, heads.split(","))) if colon else None, shift)
        except ValueError:
            form = "[shift:]LAYER[:HEAD,HEAD,...], counted from 1, such as 2 or 5:1,3"
            raise UserError(f"--align_with {text!r}: write {form}") from None

    def __str__(self) -> str:
        heads = "" if self.heads is None else ":" + ",".join(map(str, self.heads))
        return f"{'shift:' if self.shift else ''}{self.layer}{heads}"


ALL_HEADS = HeadChoice()


@dataclass(frozen=True, slots=True)
class Alignment:
    """The words of a sentence pair, and the links between them."""

    src: list[str]
    tgt: list[str]
    links: list[Link]  # source and target word, from 0, in the order of target words

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The linked words."""
        return [(self.src[s], self.tgt[t]) for s, t in self.links]

    def pharaoh(self) -> str:
        """ "0-0 1-2": the links as fast_align and Pharaoh write them, source before target."""
        return " ".join(f"{s}-{t}" for s, t in self.links)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Words and their tokens: P ids and EOS, and the word of each id."""

    words: list[str]
    ids: list[int]  # [P+1]
    word_of: np.ndarray  # [P]

    @classmethod
    def of(
        cls, text: str, encode: Callable[[Sequence[str]], list[list[int]]], most: int | None = None
    ) -> Pieces:
        """The words of a text, split at white space; those past `most` ids have no ids.

        Each word's `plain_text` is encoded by itself. No tokenizer here makes a piece of two words,
        so the ids are those of the text. Every id has its word, even a byte or an unknown.
        """
        words = text.split()
        *encoded, [eos_id] = encode([*map(plain_text, words), ""])
        word_of = np.repeat(np.arange(len(words)), [len(ids) - 1 for ids in encoded])
        ids = [i for of_word in encoded for i in of_word[:-1]][: most and most - 1]
        return cls(words, [*ids, eos_id], word_of[: len(ids)])

    def by_word(self, of_pieces: np.ndarray) -> np.ndarray:
        """[...,P] -> the sum over each word's pieces, [...,W]; 0 where it has none."""
        there, starts = np.unique(self.word_of, return_index=True)
        sums = np.zeros((*of_pieces.shape[:-1], len(self.words)))
        sums[..., there] = np.add.reduceat(of_pieces, starts, axis=-1, dtype=np.float64)
        return sums


@dataclass(frozen=True, slots=True)
class WordAttention:
    """How much each target word looks at each source word, in every head: [L,H,Wt,Ws]."""

    src: list[str]
    tgt: list[str]
    produced: np.ndarray  # where the target word is produced
    read: np.ndarray  # where it is read, one step later

    @classmethod
    def of(cls, cross: np.ndarray, src: Pieces, tgt: Pieces) -> WordAttention:
        """From cross-attention [L,H,T,S]: the sum over a source word's pieces, without EOS, and the
        mean over a target word's."""
        n, of_src = len(tgt.word_of), src.by_word(cross[..., :-1]).swapaxes(2, 3)
        counts = np.maximum(tgt.by_word(np.ones(n)), 1)
        rows = (of_src[..., start : start + n] for start in (0, 1))
        produced, read = ((tgt.by_word(each) / counts).swapaxes(2, 3) for each in rows)
        return cls(src.words, tgt.words, produced, read)

    def aligned(self, choice: HeadChoice) -> Alignment:
        """Link each target word to one source word, unless it looks at none.

        It is linked to the source word of whose total attention it takes the largest share: some
        words, such as commas, get attention from everywhere, which links nothing. The default layer
        is the last but one (Garg et al. 2019), or of two the last. Raises UserError for a layer or
        head that does not exist.
        """
        weights = self.read if choice.shift else self.produced
        n_layers, n_heads = weights.shape[:2]
        layer = choice.layer
        if layer is None:
            layer = n_layers - 1 if n_layers > 2 else n_layers
        heads = range(1, n_heads + 1) if choice.heads is None else choice.heads
        for what, numbers, n in (("layer", (layer,), n_layers), ("head", heads, n_heads)):
            for number in numbers:
                if not 1 <= abs(number) <= n:
                    raise UserError(f"there is no {what} {number}: the decoder has 1 to {n}")
        of_layer = weights[layer - (layer > 0)]
        mean = of_layer[[head - (head > 0) for head in heads]].mean(axis=0)
        share = mean / (mean.sum(axis=0) + SMOOTHING)
        links = [(int(row.argmax()), t) for t, row in enumerate(share) if row.any()]
        return Alignment(self.src, self.tgt, links)
