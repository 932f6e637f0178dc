"""Config to corpus."""

from __future__ import annotations

import typing
from functools import partial

from configs.schema import (
    Cleaning,
    DataConfig,
    Iwslt2017,
    Mixture,
    ParallelFiles,
    Phrasebook,
    SingleCorpus,
)
from data.cleaning import CleanedCorpus, clean_text
from data.corpora.base import CorpusReader


def build_corpus(config: DataConfig) -> CorpusReader:
    """The corpus that the config names, in its direction, cleaned as it says. Nothing is read
    before a split is loaded.

    Raises UserError as the corpus does.
    """
    if isinstance(config.corpus, Mixture):
        from data.corpora.mixture import MixtureCorpus

        return MixtureCorpus(
            config.corpus, [_cleaned(part.corpus, config) for part in config.corpus.parts]
        )
    return _cleaned(config.corpus, config)


def _cleaned(corpus: SingleCorpus, config: DataConfig) -> CorpusReader:
    reader = _reader(corpus, src_lang=config.src_lang, tgt_lang=config.tgt_lang)
    if not isinstance(config.clean, Cleaning):
        return reader
    clean = partial(
        clean_text, config=config.clean, src_lang=config.src_lang, tgt_lang=config.tgt_lang
    )
    return CleanedCorpus(reader, clean)


def _reader(corpus: SingleCorpus, *, src_lang: str, tgt_lang: str) -> CorpusReader:
    match corpus:
        case Phrasebook():
            from data.corpora.phrasebook import PhrasebookCorpus

            return PhrasebookCorpus(corpus, src_lang=src_lang, tgt_lang=tgt_lang)
        case ParallelFiles():
            from data.corpora.parallel_files import ParallelFilesCorpus

            return ParallelFilesCorpus(corpus, src_lang=src_lang, tgt_lang=tgt_lang)
        case Iwslt2017():
            from data.corpora.iwslt2017 import Iwslt2017Corpus

            return Iwslt2017Corpus(corpus, src_lang=src_lang, tgt_lang=tgt_lang)
    typing.assert_never(corpus)
