"""The pretrained Marian tokenizer (opus-mt), from the Hugging Face hub or a local folder."""

from __future__ import annotations

import hashlib
import logging
import threading
import urllib.error
import urllib.request
import warnings
from collections.abc import Sequence
from pathlib import Path

from configs.schema import Marian
from tokenizer.base import BaseTokenizer
from tokenizer.common import begin_save, finish_save, require_unicode
from utils.errors import UserError
from utils.files import write_bytes

logger = logging.getLogger(__name__)

REQUIRED_FILES = ("source.spm", "target.spm", "vocab.json")
OPTIONAL_FILES = ("tokenizer_config.json", "special_tokens_map.json")

_REACH_SECONDS = 5.0


class FrEnTokenizer(BaseTokenizer):
    """Marian's two SentencePiece models, one for each language, over one shared vocabulary.

    Marian's vocabularies have eos 0, unk 1, pad last (or another order: ids are read, never
    assumed) and no start piece. Decoding starts from pad, as in Marian, so bos_id == pad_id. The
    first id of `[bos_id] + tgt[:-1]` is then pad_id: a padding mask over the decoder's input must
    never be made by comparing it with pad_id.

    Special pieces written in the text ("</s>") are plain text. Characters outside the vocabulary
    become unk_id, and SentencePiece's normalisation (NFKC and single spaces) is not undone by
    decoding.
    """

    kind = Marian.kind
    shared_vocab = True

    def __init__(self, folder: Path) -> None:
        """Read a folder with REQUIRED_FILES. Raises UserError where they are missing, damaged or do
        not fit.
        """
        if not folder.is_dir():
            raise UserError(f"no tokenizer folder {str(folder)!r}")
        missing = _missing(folder)
        if missing:
            raise UserError(f"the tokenizer folder {str(folder)!r} lacks {', '.join(missing)}")

        from transformers import MarianTokenizer  # here: it takes seconds to import

        names = REQUIRED_FILES + OPTIONAL_FILES
        try:
            # Kept in memory, so that the run's copy is what was loaded, even if the source changes
            # or goes away.
            self._files = {
                name: (folder / name).read_bytes() for name in names if (folder / name).is_file()
            }
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", message=".*sacremoses"
                )  # its normaliser is not part of encoding
                marian = MarianTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (
            Exception
        ) as error:  # json, sentencepiece and transformers each raise their own kinds
            reason = str(error).strip().split("\n")[0]
            raise UserError(
                f"cannot read the Marian tokenizer in {str(folder)!r}: {reason or type(error).__name__}"
            ) from None
        if marian.separate_vocabs:
            raise UserError(
                f"the tokenizer in {str(folder)!r} has two vocabularies; give one with a shared vocabulary"
            )
        for name in ("pad", "eos", "unk"):
            if getattr(marian, f"{name}_token") not in marian.encoder:
                raise UserError(f"vocab.json in {str(folder)!r} has no {name} piece")
        marian.model_max_length = 10**9  # lengths are the data's business: no warnings from here
        self._marian = marian
        self.src_lang: str | None = marian.source_lang
        self.tgt_lang: str | None = marian.target_lang
        self.pad_id = self.bos_id = int(marian.pad_token_id)
        self.eos_id = int(marian.eos_token_id)
        self.unk_id = int(marian.unk_token_id)
        self.src_vocab_size = self.tgt_vocab_size = len(marian)

    @classmethod
    def from_pretrained(
        cls, name_or_path: str, *, src_lang: str | None = None, tgt_lang: str | None = None
    ) -> FrEnTokenizer:
        """A local folder, or a name on the hub: from its cache if it is there, else downloaded.

        Raises UserError where it cannot be had (within seconds where there is no network), or where
        its files say that it is for another direction than src_lang -> tgt_lang.
        """
        is_folder = Path(name_or_path).is_dir()
        tokenizer = cls(Path(name_or_path) if is_folder else _from_hub(name_or_path))
        wanted, found = (src_lang, tgt_lang), (tokenizer.src_lang, tokenizer.tgt_lang)
        # Only two-letter codes are compared: some models say "fra", "eng" or a group of languages.
        comparable = all(code is not None and len(code) == 2 for code in wanted + found)
        if comparable and wanted != found:
            raise UserError(
                f"tokenizer.name_or_path = {name_or_path!r} is for {found[0]} -> {found[1]}, the data is "
                f"{src_lang} -> {tgt_lang}: give the tokenizer of this direction or change data.src_lang, data.tgt_lang"
            )
        return tokenizer

    @classmethod
    def load(cls, folder: Path) -> FrEnTokenizer:
        """Read what `save` wrote, without the hub."""
        return cls(folder)

    def encode_src_batch(self, texts: Sequence[str]) -> list[list[int]]:
        require_unicode(texts)
        return self._marian(list(texts), split_special_tokens=True)["input_ids"] if texts else []

    def encode_tgt_batch(self, texts: Sequence[str]) -> list[list[int]]:
        require_unicode(texts)
        return (
            self._marian(text_target=list(texts), split_special_tokens=True)["input_ids"]
            if texts
            else []
        )

    def decode_batch(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        texts = []
        for sequence in sequences:
            ids = list(sequence)
            ids = ids[: ids.index(self.eos_id)] if self.eos_id in ids else ids
            text = self._marian.decode(
                ids,
                skip_special_tokens=True,
                clean_up_tokenization_spaces=False,
                use_source_tokenizer=False,
            )
            texts.append(text.strip())
        return texts

    def src_pieces(self, ids: Sequence[int]) -> list[str]:
        return list(self._marian.convert_ids_to_tokens(list(ids)))

    def tgt_pieces(self, ids: Sequence[int]) -> list[str]:
        return self.src_pieces(ids)

    def save(self, folder: Path) -> None:
        """Copy the files, so that the run needs neither hub nor source folder."""
        begin_save(folder)
        for name, content in self._files.items():
            write_bytes(folder / name, content)
        finish_save(folder, self.kind, self.fingerprint())

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for name, content in sorted(self._files.items()):
            digest.update(f"{name}:{len(content)}:".encode() + content)
        return digest.hexdigest()


def _missing(folder: Path) -> list[str]:
    return [name for name in REQUIRED_FILES if not (folder / name).is_file()]


def _from_hub(name: str) -> Path:
    """The folder of the hub's cache that holds the model `name`; downloaded where it is not there
    yet.
    """
    remedy = "give a local folder with --set tokenizer.name_or_path=FOLDER, or copy a filled Hugging Face cache (HF_HOME)"
    if not (
        name.count("/") <= 1
        and all(c.isalnum() or c in "/_-." for c in name)
        and name[:1].isalnum()
    ):
        raise UserError(
            f"tokenizer.name_or_path = {name!r}: there is no such folder, and it is not a name on the hub"
        )

    from huggingface_hub import constants, snapshot_download

    patterns = [*REQUIRED_FILES, *OPTIONAL_FILES]
    try:
        cached = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
        if not _missing(cached):
            return cached
    except Exception:  # not in the cache, or only in part: the hub is asked next
        pass
    if constants.HF_HUB_OFFLINE:
        raise UserError(
            f"the tokenizer {name!r} is not in the local cache, and HF_HUB_OFFLINE is set: {remedy}"
        )
    # A warning, so that every script shows it: nothing is fetched by surprise.
    logger.warning(
        "fetching the tokenizer %s from the Hugging Face hub (%s), once", name, constants.ENDPOINT
    )
    if not _reachable(constants.ENDPOINT):
        raise UserError(
            f"the tokenizer {name!r} is not in the local cache, and no hub can be reached: {remedy}"
        )
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"cannot download the tokenizer {name!r} ({reason or type(error).__name__}): {remedy}"
        ) from None


def _reachable(url: str) -> bool:
    """Whether anything answers at `url` within seconds: the hub's own client retries for far
    longer.
    """
    answers: list[bool] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(
                urllib.request.Request(url, method="HEAD"), timeout=_REACH_SECONDS
            ).close()
            answers.append(True)
        except urllib.error.HTTPError:
            answers.append(True)  # an answer, if not the best one
        except (OSError, ValueError):
            answers.append(False)

    thread = threading.Thread(target=ask, daemon=True)  # a name look-up that hangs heeds no timeout
    thread.start()
    thread.join(_REACH_SECONDS)
    return answers == [True]
