"""Config to corpus."""

from __future__ import annotations

import typing

from configs.schema import DataConfig, Iwslt2017, ParallelFiles, Phrasebook
from data.corpora.base import CorpusReader


def build_corpus(config: DataConfig) -> CorpusReader:
    """The corpus that the config names, in its direction. Nothing is read before a split is loaded."""
    match config.corpus:
        case Phrasebook() as corpus:
            from data.corpora.phrasebook import PhrasebookCorpus

            return PhrasebookCorpus(corpus, src_lang=config.src_lang, tgt_lang=config.tgt_lang)
        case ParallelFiles() as corpus:
            from data.corpora.parallel_files import ParallelFilesCorpus

            return ParallelFilesCorpus(corpus, src_lang=config.src_lang, tgt_lang=config.tgt_lang)
        case Iwslt2017() as corpus:
            from data.corpora.iwslt2017 import Iwslt2017Corpus

            return Iwslt2017Corpus(corpus, src_lang=config.src_lang, tgt_lang=config.tgt_lang)
    typing.assert_never(config.corpus)
