"""The configured tokenizer: trained or fetched for a new run, loaded from a finished one."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from configs.schema import Subword, TokenizerConfig
from tokenizer.base import KIND_FILE, BaseTokenizer
from tokenizer.marian import FrEnTokenizer
from tokenizer.sampling import Sampler
from tokenizer.subword import SubwordTokenizer
from utils.errors import UserError

LOADERS: dict[str, Callable[[Path], BaseTokenizer]] = {
    SubwordTokenizer.kind: SubwordTokenizer.load,
    FrEnTokenizer.kind: FrEnTokenizer,
}


def build_tokenizer(
    config: TokenizerConfig, texts: Callable[[], Iterable[str]], *, src_lang: str, tgt_lang: str
) -> BaseTokenizer:
    """The tokenizer of a new run. Raises UserError where it cannot be trained or had.

    `texts` gives the training texts of both languages; called only where it is trained.
    """
    if isinstance(config, Subword):
        return SubwordTokenizer.train(texts(), config)
    return FrEnTokenizer.from_pretrained(config.name_or_path, src_lang=src_lang, tgt_lang=tgt_lang)


def build_sampler(config: TokenizerConfig, tokenizer: BaseTokenizer) -> Sampler | None:
    """The random segmentations of training, where the config asks for them."""
    if isinstance(config, Subword) and isinstance(tokenizer, SubwordTokenizer) and config.sampling:
        return tokenizer.sampler(config.sampling)
    return None


def load_tokenizer(folder: Path) -> BaseTokenizer:
    """What `save(folder)` wrote. Raises UserError where it is missing, incomplete or changed."""
    where = f"the tokenizer in {str(folder)!r}"
    if not folder.is_dir():
        raise UserError(f"no tokenizer folder {str(folder)!r}: give that of the training run")
    try:
        saved = json.loads((folder / KIND_FILE).read_text("utf-8"))
        kind, fingerprint = str(saved["kind"]), str(saved["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError):
        why = f"{KIND_FILE} is missing or damaged; save it again"
        raise UserError(f"{where} is incomplete: {why}") from None
    if kind not in LOADERS:
        raise UserError(f"{where} is of kind {kind!r}: known kinds are {', '.join(LOADERS)}")
    tokenizer = LOADERS[kind](folder)
    if tokenizer.fingerprint() != fingerprint:
        raise UserError(f"the files of {where} were changed after it was saved")
    return tokenizer
