"""Config to corpus."""

from collections.abc import Callable

from configs import schema
from data.cleaning import CleanedCorpus
from data.corpora.base import CorpusReader
from data.corpora.files import ParallelFilesCorpus
from data.corpora.iwslt2017 import Iwslt2017Corpus
from data.corpora.mixture import MixtureCorpus
from data.corpora.phrasebook import PhrasebookCorpus

READERS: dict[type[schema.SingleCorpus], Callable[..., CorpusReader]] = {
    schema.Phrasebook: PhrasebookCorpus,
    schema.ParallelFiles: ParallelFilesCorpus,
    schema.Iwslt2017: Iwslt2017Corpus,
}


def build_corpus(config: schema.DataConfig) -> CorpusReader:
    """The corpus that the config names, in its direction, cleaned as it says.

    Nothing is read before a split is loaded. Raises UserError as the corpus does.
    """
    langs = config.src_lang, config.tgt_lang

    def single(corpus: schema.SingleCorpus) -> CorpusReader:
        reader = READERS[type(corpus)](corpus, *langs)
        if isinstance(clean, schema.Cleaning):
            return CleanedCorpus(reader, clean, *langs)
        return reader

    corpus, clean = config.corpus, config.clean
    if isinstance(corpus, schema.Mixture):
        return MixtureCorpus(corpus, [single(part.corpus) for part in corpus.parts])
    return single(corpus)
