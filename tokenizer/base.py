"""The protocol of every tokenizer; nothing else in the project turns text into ids."""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from utils.errors import UserError
from utils.files import write_bytes, write_text
from utils.languages import language_code

KIND_FILE = "tokenizer_kind.json"

logger = logging.getLogger(__name__)


class BaseTokenizer(ABC):
    """Text to ids and back, for a source and a target language.

    Encoded sequences end in eos_id and have no start id: the decoder's input is `[bos_id] +
    tgt[:-1]`. No order of ids is assumed: Marian's pad_id is the last id, its eos_id often 0.
    """

    kind: str
    pad_id: int
    bos_id: int
    eos_id: int
    unk_id: int
    src_vocab_size: int
    tgt_vocab_size: int
    shared_vocab: bool  # an id means the same piece on both sides, so that embeddings can be tied
    src_lang: str | None = None  # the languages, where it serves one direction alone
    tgt_lang: str | None = None

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
    def files(self) -> Mapping[str, bytes]:
        """The files of a saved folder, by name: enough to encode any text."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of everything that decides the ids: same fingerprint, same ids for every text."""

    def tgt_pieces(self, ids: Sequence[int]) -> list[str]:
        """The pieces behind target ids; as for source ids where the vocabulary is shared."""
        return self.src_pieces(ids)

    def require_direction(self, src_lang: str | None, tgt_lang: str | None, *, name: str) -> None:
        """Raises UserError where it is for the other direction of translation.

        Warns of other languages: a related one may do.
        """
        wanted, found = (src_lang, tgt_lang), (self.src_lang, self.tgt_lang)
        # Codes of three letters may be of a group of languages, as some models name.
        here, there = ([language_code(n or "") or n for n in names] for names in (wanted, found))
        said = f"{name} is for {found[0]} -> {found[1]}, the data is {src_lang} -> {tgt_lang}"
        if there != here == there[::-1]:
            remedy = "give one of this direction or change data.src_lang, data.tgt_lang"
            raise UserError(f"{said}: {remedy}")
        if any(a != b and a and b and len(a) == len(b) == 2 for a, b in zip(here, there)):
            logger.warning("%s: right for a related language alone", said)

    def encode_src(self, text: str) -> list[int]:
        return self.encode_src_batch([text])[0]

    def encode_tgt(self, text: str) -> list[int]:
        return self.encode_tgt_batch([text])[0]

    def decode(self, ids: Sequence[int]) -> str:
        return self.decode_batch([ids])[0]

    def save(self, folder: Path) -> None:
        """Write everything that `tokenizer.build.load_tokenizer(folder)` needs into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        kind_file = folder / KIND_FILE
        kind_file.unlink(missing_ok=True)  # without it the folder counts as incomplete
        for name, content in self.files().items():
            write_bytes(folder / name, content)
        kind = {"kind": self.kind, "fingerprint": self.fingerprint()}
        write_text(kind_file, json.dumps(kind, indent=2) + "\n")

    def _up_to_eos(self, sequence: Sequence[int]) -> list[int]:
        ids = list(sequence)
        return ids[: ids.index(self.eos_id)] if self.eos_id in ids else ids


def require_unicode(texts: Sequence[str]) -> None:
    """Raises UserError for lone surrogates, which Python makes of input that is not UTF-8."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            shown = ascii(text[max(0, error.start - 20) : error.start + 20])
            told = f"text that is not valid Unicode: {shown}; give the input as UTF-8"
            raise UserError(told) from None
