"""The configured tokenizer: trained, fetched or copied for a new run, or loaded from a run."""

import json
import os
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

from configs.schema import Config, Marian, Saved, Subword, TokenizerConfig
from tokenizer.base import KIND_FILE, BaseTokenizer
from tokenizer.marian import FrEnTokenizer
from tokenizer.sampling import Sampler
from tokenizer.separate import SeparateTokenizer
from tokenizer.subword import SubwordTokenizer
from utils.errors import ConfigError, UserError

LOADERS: dict[str, Callable[[Path], BaseTokenizer]] = {
    SubwordTokenizer.kind: SubwordTokenizer.load,
    SeparateTokenizer.kind: SeparateTokenizer.load,
    FrEnTokenizer.kind: FrEnTokenizer,
}


def build_tokenizer(
    config: TokenizerConfig,
    texts: Callable[[], tuple[Sequence[str], Sequence[str]]],
    *,
    src_lang: str,
    tgt_lang: str,
) -> BaseTokenizer:
    """The tokenizer of a new run. Raises UserError where it cannot be trained or found.

    `texts` gives the training texts, source and target; it is called only for training.
    """
    if isinstance(config, Subword):
        if config.joint:
            return SubwordTokenizer.train(chain(*texts()), config)
        source, target = (SubwordTokenizer.train(side, config) for side in texts())
        return SeparateTokenizer(source, target, src_lang=src_lang, tgt_lang=tgt_lang)
    if isinstance(config, Saved):
        return load_saved(config.path)
    return FrEnTokenizer.from_pretrained(config.name_or_path, src_lang=src_lang, tgt_lang=tgt_lang)


def build_samplers(
    config: TokenizerConfig, tokenizer: BaseTokenizer
) -> tuple[Sampler, Sampler] | None:
    """The random segmentations of training, source and target, if the config asks for them.

    Raises ConfigError where the tokenizer has none of this strength.
    """
    if isinstance(config, Marian) or not config.sampling:
        return None
    if isinstance(tokenizer, SeparateTokenizer):
        source, target = tokenizer.source, tokenizer.target
        return source.sampler(config.sampling), target.sampler(config.sampling)
    if not isinstance(tokenizer, SubwordTokenizer):
        rule = "a Marian tokenizer draws no segmentations: set tokenizer.sampling=0"
        raise ConfigError(f"tokenizer.sampling = {config.sampling}: {rule}")
    sampler = tokenizer.sampler(config.sampling)  # one, for what it remembers
    return sampler, sampler


def require_fit(tokenizer: BaseTokenizer, config: Config, *, name: str) -> None:
    """Raises UserError where the tokenizer of another run, `name`, does not fit this one."""
    data = config.data
    tokenizer.require_direction(data.src_lang, data.tgt_lang, name=name)
    if data.directions == "both" and not isinstance(tokenizer, SubwordTokenizer):
        why = f"the tokenizer of {name} segments each language by itself"
        raise ConfigError(f"data.directions = 'both': {why}: set data.directions=forward")
    if config.model.tie_embeddings == "all" and not tokenizer.shared_vocab:
        why = f"the tokenizer of {name} has separate vocabularies"
        raise ConfigError(f"model.tie_embeddings = 'all': {why}: set model.tie_embeddings=target")
    build_samplers(config.tokenizer, tokenizer)


def load_tokenizer(folder: Path) -> BaseTokenizer:
    """Load what `save(folder)` wrote. Raises UserError if it is missing, incomplete or changed."""
    where = f"the tokenizer in {str(folder)!r}"
    if not folder.is_dir():
        raise UserError(f"no tokenizer folder {str(folder)!r}: give that of the training run")
    try:
        saved = json.loads((folder / KIND_FILE).read_text("utf-8"))
        kind, fingerprint = str(saved["kind"]), str(saved["fingerprint"])
    except (OSError, RecursionError, ValueError, KeyError, TypeError):
        why = f"{KIND_FILE} is missing or damaged; save it again"
        raise UserError(f"{where} is incomplete: {why}") from None
    if kind not in LOADERS:
        raise UserError(f"{where} is of kind {kind!r}: known kinds are {', '.join(LOADERS)}")
    tokenizer = LOADERS[kind](folder)
    if tokenizer.fingerprint() != fingerprint:
        raise UserError(f"the files of {where} were changed after it was saved")
    return tokenizer


def load_saved(path: str) -> BaseTokenizer:
    """Load it from a run's folder or its tokenizer/. Raises UserError naming tokenizer.path."""
    given = Path(os.path.expanduser(path))
    there = [each for each in (given / "tokenizer", given) if (each / KIND_FILE).is_file()]
    if not there:
        why = "no tokenizer is saved there; give the folder of a run, or the tokenizer/ in it"
        if given.suffix in (".model", ".spm"):
            why = "a SentencePiece model is used by tokenizer.kind=marian: see docs/usage.md"
        raise UserError(f"tokenizer.path = {path!r}: {why}")
    try:
        return load_tokenizer(there[0])
    except UserError as error:
        raise UserError(f"tokenizer.path = {path!r}: {error}; give another run's") from None
