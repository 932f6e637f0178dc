"""The pretrained Marian tokenizer (opus-mt), from the Hugging Face hub or a local folder."""

import hashlib
import json
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from configs.schema import Marian
from tokenizer.base import BaseTokenizer, require_unicode
from utils.errors import UserError, one_line
from utils.hub import fetch, is_hub_name

REQUIRED_FILES = ("source.spm", "target.spm", "vocab.json")
TARGET_VOCAB = "target_vocab.json"  # where there are two vocabularies
OPTIONAL_FILES = ("tokenizer_config.json", "special_tokens_map.json", TARGET_VOCAB)
REMEDY = (
    "give a local folder with --set tokenizer.name_or_path=FOLDER, or copy a filled Hugging Face "
    "cache (HF_HOME)"
)
# A MarianTokenizer switches to its target model and back while it encodes a target.
_ENCODING = threading.Lock()


class FrEnTokenizer(BaseTokenizer):
    """Marian's two SentencePiece models, one for each language, over one vocabulary or two.

    Two vocabularies must have the same ids of pad, eos and unk.
    Marian's vocabularies have no start piece: decoding starts from pad, so bos_id == pad_id. Never
    make a padding mask over `[bos_id] + tgt[:-1]` by comparing it with pad_id.

    Special pieces written in the text ("</s>") are plain text. Characters outside the vocabulary
    become unk_id; SentencePiece's normalisation (NFKC, single spaces) is not undone by decoding.
    """

    kind = Marian.kind

    def __init__(self, folder: Path) -> None:
        """Read a folder with REQUIRED_FILES. Raises UserError where one is missing or damaged."""
        # Kept in memory: the run's copy is what was loaded, even if the source disappears.
        there = (name for name in REQUIRED_FILES + OPTIONAL_FILES if (folder / name).is_file())
        self._files = {name: (folder / name).read_bytes() for name in there}
        missing = [name for name in REQUIRED_FILES if name not in self._files]
        if not missing and _has_two(self._files) and TARGET_VOCAB not in self._files:
            missing = [TARGET_VOCAB]
        if missing:
            raise UserError(f"the tokenizer folder {str(folder)!r} lacks {', '.join(missing)}")

        from transformers import MarianTokenizer  # here: it takes seconds to import

        try:
            with warnings.catch_warnings():
                # sacremoses is its normaliser, which is not part of encoding.
                warnings.filterwarnings("ignore", message=".*sacremoses")
                marian = MarianTokenizer.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:  # json, sentencepiece and transformers raise their own kinds
            raise UserError(
                f"cannot read the Marian tokenizer in {str(folder)!r}: {one_line(error)}"
            ) from None
        source, target = marian.encoder, {piece: i for i, piece in marian.decoder.items()}
        for name, vocab in (("vocab.json", source), (TARGET_VOCAB, target)):
            if set(vocab.values()) != set(range(len(vocab))):
                many = f"its {len(vocab):,} pieces must have the ids from 0 to {len(vocab) - 1:,}"
                raise UserError(f"{name} in {str(folder)!r}: {many}, each once")
        for name in ("pad", "eos", "unk"):
            piece = getattr(marian, f"{name}_token")
            if piece not in source:
                raise UserError(f"vocab.json in {str(folder)!r} has no {name} piece")
            if target.get(piece) != source[piece]:
                raise UserError(
                    f"{TARGET_VOCAB} in {str(folder)!r}: the id of {piece} is {target.get(piece)}, "
                    f"in vocab.json it is {source[piece]}; vocabularies that differ there cannot "
                    "be used"
                )
        marian.model_max_length = 10**9  # no warnings: the data limits lengths
        self._marian = marian
        said = marian.source_lang, marian.target_lang
        self.src_lang, self.tgt_lang = (each if isinstance(each, str) else None for each in said)
        self.pad_id = self.bos_id = int(marian.pad_token_id)
        self.eos_id = int(marian.eos_token_id)
        self.unk_id = int(marian.unk_token_id)
        self.shared_vocab = not marian.separate_vocabs
        self.src_vocab_size = self.tgt_vocab_size = len(marian)
        known = {*map(str, marian.special_tokens_map.values()), *marian.supported_language_codes}
        self._added = sorted(marian.get_added_vocab().keys() - known)
        self._source_pieces = {i: piece for piece, i in source.items()}
        if not self.shared_vocab:
            self.src_vocab_size, self.tgt_vocab_size = len(source), len(target)

    @classmethod
    def from_pretrained(
        cls, name_or_path: str, *, src_lang: str | None = None, tgt_lang: str | None = None
    ) -> Self:
        """Load a local folder, or a name on the hub from its cache or, failing that, by download.

        Raises UserError where it is not available (within seconds without network), where its files
        are for another direction than src_lang -> tgt_lang, or where tokens were added.
        """
        folder = Path(os.path.expanduser(name_or_path))
        if not folder.is_dir():
            if folder.exists() or not is_hub_name(name_or_path):
                why = "there is no such folder, and it is not a name on the hub"
                if folder.is_file():
                    why = "name a folder; docs/usage.md makes one of a SentencePiece model"
                raise UserError(f"tokenizer.name_or_path = {name_or_path!r}: {why}")
            what = f"the tokenizer {name_or_path}"
            folder = fetch(name_or_path, REQUIRED_FILES, OPTIONAL_FILES, what=what, remedy=REMEDY)
        tokenizer, name = cls(folder), f"tokenizer.name_or_path = {name_or_path!r}"
        tokenizer.require_none_added(name)
        tokenizer.require_direction(src_lang, tgt_lang, name=name)
        return tokenizer

    @classmethod
    def plain(cls, folder: Path) -> "FrEnTokenizer":
        """That of a folder. Raises as `require_none_added` does."""
        tokenizer = cls(folder)
        tokenizer.require_none_added(str(folder))
        return tokenizer

    def require_none_added(self, name: str) -> None:
        """Raises UserError for tokens beside SentencePiece's, which would be text here."""
        if self._added:
            told = "tokens were added to this tokenizer, and would be split into pieces here"
            raise UserError(f"{name}: {told} ({', '.join(self._added[:5])}): give it without them")

    def encode_src_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encode(texts, "text")

    def encode_tgt_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encode(texts, "text_target")

    def _encode(self, texts: Sequence[str], side: str) -> list[list[int]]:
        require_unicode(texts)
        if not texts:
            return []
        with _ENCODING:
            plain = [self._without_code(text) for text in texts]
            return self._marian(**{side: plain}, split_special_tokens=True)["input_ids"]

    def _without_code(self, text: str) -> str:
        """A space before ">>...<<", which transformers takes for a language, known or not."""
        code = text[: text.find("<<") + 2]
        return f" {text}" if text.startswith(">>") and code not in self._marian.encoder else text

    def decode_batch(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        how = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        cut = [self._up_to_eos(sequence) for sequence in sequences]
        texts = (self._marian.decode(ids, use_source_tokenizer=False, **how) for ids in cut)
        return [text.strip() for text in texts]

    def src_pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._source_pieces.get(i, self._marian.unk_token) for i in ids]

    def tgt_pieces(self, ids: Sequence[int]) -> list[str]:
        return list(self._marian.convert_ids_to_tokens(list(ids)))

    def files(self) -> Mapping[str, bytes]:
        """The files it was read from, so that the run needs neither hub nor source folder."""
        return self._files

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, content in sorted(self._files.items()):
            digest.update(f"{name}:{len(content)}:".encode() + content)
        return digest.hexdigest()


def _has_two(files: Mapping[str, bytes]) -> bool:
    """Whether the tokenizer's configuration says that there are two vocabularies."""
    try:
        said = json.loads(files.get("tokenizer_config.json", b"{}"))
    except (ValueError, RecursionError):  # reported by the reader of the folder
        return False
    return isinstance(said, dict) and bool(said.get("separate_vocabs"))
