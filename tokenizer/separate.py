"""A subword vocabulary for each language, trained on its own side alone."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tokenizer.base import BaseTokenizer
from tokenizer.subword import FILE, SubwordTokenizer
from utils.errors import UserError

PREFIXES = ("source_", "target_")  # of the names of files
LANGUAGES = "languages.json"


class SeparateTokenizer(BaseTokenizer):
    """Two SubwordTokenizers, `source` and `target`, whose special ids are the same."""

    kind = "separate"
    shared_vocab = False

    def __init__(
        self, source: SubwordTokenizer, target: SubwordTokenizer, *, src_lang: str, tgt_lang: str
    ) -> None:
        ids, others = ((t.pad_id, t.bos_id, t.eos_id, t.unk_id) for t in (source, target))
        if ids != others:
            told = f"pad, bos, eos and unk have the ids {ids} in the source and {others} in the"
            raise UserError(f"{told} target vocabulary: this project did not make them")
        self.source, self.target = source, target
        self.src_lang, self.tgt_lang = src_lang, tgt_lang
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = ids
        self.src_vocab_size, self.tgt_vocab_size = source.src_vocab_size, target.tgt_vocab_size

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote. Raises UserError where it is missing or damaged."""
        source, target = (SubwordTokenizer.load(folder, prefix) for prefix in PREFIXES)
        try:
            src_lang, tgt_lang = json.loads((folder / LANGUAGES).read_text("utf-8"))
        except (OSError, RecursionError, TypeError, ValueError):
            told = f"{LANGUAGES} in {str(folder)!r} is missing or damaged; save it again"
            raise UserError(told) from None
        return cls(source, target, src_lang=str(src_lang), tgt_lang=str(tgt_lang))

    def encode_src_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self.source.encode_src_batch(texts)

    def encode_tgt_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self.target.encode_tgt_batch(texts)

    def decode_batch(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return self.target.decode_batch(sequences)

    def src_pieces(self, ids: Sequence[int]) -> list[str]:
        return self.source.src_pieces(ids)

    def tgt_pieces(self, ids: Sequence[int]) -> list[str]:
        return self.target.tgt_pieces(ids)

    def files(self) -> Mapping[str, bytes]:
        """A file of each, its name beginning with the side, and the languages."""
        sides = zip(PREFIXES, (self.source, self.target))
        files = {f"{prefix}{FILE}": each.files()[FILE] for prefix, each in sides}
        return {**files, LANGUAGES: json.dumps([self.src_lang, self.tgt_lang]).encode()}

    def fingerprint(self) -> str:
        parts = self.src_lang, self.tgt_lang, self.source.fingerprint(), self.target.fingerprint()
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
