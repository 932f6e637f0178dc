"""Sentences of running text, for models that translate one sentence at a time."""

import re
from collections.abc import Sequence
from functools import cache

from translation.answers import Candidate
from utils.languages import language_code


def split_sentences(text: str, language: str) -> list[str]:
    """The sentences of a line, without the white space between them; a blank line is one.

    sentencex cuts. What Moses's lists call no end (`M. Dupont`, `art. 5`) and a number alone
    (`1. Un`) are joined to what follows. Text that is not Unicode is not cut.
    """
    from sentencex import segment

    code, found = language_code(language) or "en", [""]
    for piece in [text] if re.search("[\ud800-\udfff]", text) else segment(code, text):
        if found[-1] and _goes_on(found[-1].rstrip(), piece, code):
            found[-1] += piece
        else:
            found.append(piece)
    return [piece.strip() for piece in found if piece.strip()] or [text]


def separator(language: str) -> str:
    """What stands between two sentences."""
    return "" if language_code(language) in ("ja", "zh") else " "


def join_candidates(sentences: Sequence[Sequence[Candidate]], language: str) -> list[Candidate]:
    """The n best of a line from those of its sentences: all best joined, all second best, ...

    Scores and log-probabilities are sums.
    """
    if len(sentences) == 1:
        return list(sentences[0])
    return [
        Candidate(
            separator(language).join(filter(None, (each.text.strip() for each in ranked))),
            sum(each.score for each in ranked),
            sum(each.log_prob for each in ranked),
            all(each.finished for each in ranked),
        )
        for ranked in zip(*sentences)
    ]


def _goes_on(before: str, after: str, code: str) -> bool:
    """Whether the sentence does not end between these pieces."""
    if not re.search(r"[^\W\d_]", before) or not re.search(r"\w", after):
        return True  # a number alone, or only marks
    word = re.search(r"([\w.-]+)\.$", before)
    if word is None or word[1] not in _abbreviations(code):
        return False
    return after[:1].isdigit() or not _abbreviations(code)[word[1]]


@cache
def _abbreviations(code: str) -> dict[str, bool]:
    """Moses's nonbreaking prefixes, English for a language without; True: before digits only."""
    from sacremoses.corpus import NonbreakingPrefixes

    entries = (entry.partition(" ") for entry in NonbreakingPrefixes().words(code))
    return {word: bool(mark) for word, _, mark in entries}
