"""The embedded corpus: sentence pairs from a French-English grammar written for it."""

from data.corpora.phrasebook.corpus import PhrasebookCorpus
from data.corpora.phrasebook.lexicon import lexicon_size

__all__ = ["PhrasebookCorpus", "lexicon_size"]
