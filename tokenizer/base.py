"""The protocol that every tokenizer follows; nothing else in the project knows how text becomes
ids.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path


class BaseTokenizer(ABC):
    """Text to ids and back, for a source and a target language.

    Encoded sequences end in eos_id and have no start id: the model's input is `[bos_id] +
    tgt[:-1]`. Ids are never assumed to stand in any order: pad_id may be the last id and eos_id may
    be 0, as in Marian's vocabularies.
    """

    pad_id: int
    bos_id: int
    eos_id: int
    unk_id: int
    src_vocab_size: int
    tgt_vocab_size: int
    shared_vocab: (
        bool  # the same id means the same piece on both sides, so that embeddings can be tied
    )

    @abstractmethod
    def encode_src_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Source sentences to ids, each ending in eos_id; never truncated."""

    @abstractmethod
    def encode_tgt_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Target sentences to ids, each ending in eos_id, without a start id; never truncated."""

    @abstractmethod
    def decode_batch(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Target ids to plain text: up to the first eos_id, special ids left out."""

    @abstractmethod
    def src_pieces(self, ids: Sequence[int]) -> list[str]:
        """The pieces behind source ids, one string each, as labels for pictures."""

    @abstractmethod
    def tgt_pieces(self, ids: Sequence[int]) -> list[str]:
        """The pieces behind target ids, one string each, as labels for pictures."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write everything that `tokenizer.build.load_tokenizer(folder)` needs into `folder`."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of everything that decides the ids: same fingerprint, same ids for every text."""

    def encode_src(self, text: str) -> list[int]:
        return self.encode_src_batch([text])[0]

    def encode_tgt(self, text: str) -> list[int]:
        return self.encode_tgt_batch([text])[0]

    def decode(self, ids: Sequence[int]) -> str:
        return self.decode_batch([ids])[0]
