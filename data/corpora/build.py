"""Config to corpus."""

from collections.abc import Callable

from configs.schema import (
    Cleaning,
    DataConfig,
    Iwslt2017,
    Mixture,
    ParallelFiles,
    Phrasebook,
    SingleCorpus,
)
from data.cleaning import CleanedCorpus
from data.corpora.base import CorpusReader
from data.corpora.files import ParallelFilesCorpus
from data.corpora.iwslt2017 import Iwslt2017Corpus
from data.corpora.mixture import MixtureCorpus
from data.corpora.phrasebook import PhrasebookCorpus

READERS: dict[type[SingleCorpus], Callable[..., CorpusReader]] = {
    Phrasebook: PhrasebookCorpus,
    ParallelFiles: ParallelFilesCorpus,
    Iwslt2017: Iwslt2017Corpus,
}


def build_corpus(config: DataConfig) -> CorpusReader:
    """The corpus that the config names, in its direction, cleaned as it says.

    Nothing is read before a split is loaded. Raises UserError as the corpus does.
    """
    langs = config.src_lang, config.tgt_lang

    def single(corpus: SingleCorpus) -> CorpusReader:
        reader = READERS[type(corpus)](corpus, *langs)
        return CleanedCorpus(reader, clean, *langs) if isinstance(clean, Cleaning) else reader

    corpus, clean = config.corpus, config.clean
    if isinstance(corpus, Mixture):
        return MixtureCorpus(corpus, [single(part.corpus) for part in corpus.parts])
    return single(corpus)
