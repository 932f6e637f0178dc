"""Running text for models of single sentences: lines are cut, and capitals lowered."""

import re
from collections.abc import Sequence
from functools import cache
from unicodedata import category

from translation.answers import Candidate
from utils.languages import language_code

LONGEST = 64  # characters of an abbreviation, at most


def split_sentences(text: str, language: str) -> list[str]:
    """The sentences of a line, without the white space between them; a blank line is one.

    sentencex cuts. What Moses's lists call no end (`M. Dupont`, `art. 5`) and a number alone
    (`1. Un`, `II. Un`) are joined to what follows. Text that is not Unicode is not cut.
    """
    from sentencex import segment

    if re.search("[\ud800-\udfff]", text):
        return [text]
    code = language_code(language) or "en"
    plain = re.sub(r"[^\S\n]", " ", text)  # it panics at other white space between "M" and "."
    # To it no sentence ends in the one character.
    plain = re.sub(r"…(?= \W*(\w))", lambda m: "." if m[1].isupper() else m[0], plain)
    found, start, end, spoken = list[str](), 0, 0, False
    for piece in segment(code, plain):
        cut, end = end, end + len(piece)
        last = text[max(start, cut - LONGEST) : cut].rstrip()
        inside = re.match(r"\S-\w", text[max(0, cut - 1) : cut + 2])  # É.-J. Marey
        if cut > start and spoken and not inside and _ends(last, text[cut:end], code):
            found.append(text[start:cut])
            start, spoken = cut, False
        words = re.sub(r"^\s*[IVXLC]+\.", "", text[cut:end])
        spoken = spoken or re.search(r"[^\W\d_]", words) is not None  # has a letter
    found.append(text[start:])
    return [piece.strip() for piece in found if piece.strip()] or [text]


def margin(line: str) -> str:
    """How a line begins that is not translated: white space, and the sign of an item in a list."""
    found = re.match(r"\s*(?:(?:[-–—*•·▪]|\d{1,3}[.)]|[a-z]\))\s+)?", line)
    return found[0] if found and found.end() < len(line) else ""


def lower_capitals(text: str, least: int = 5) -> str:
    """A text all in capitals as it is written elsewhere; others as they are.

    One of fewer letters than `least` stays too: it may be an abbreviation.
    """
    letters = [char for char in text if char.isalpha() and category(char) not in ("Lm", "Lo")]
    if len(letters) < least or not all(map(str.isupper, letters)):
        return text

    def beginning(found: re.Match[str]) -> str:
        begins = not found.start() or re.search(r"""[.!?…][)»”"]*\s""", found[0])
        return found[0][:-1] + found[0][-1].upper() if begins else found[0]

    # Each run of marks is read once; a long one would be read again from each of its marks.
    return re.sub(r"(?:^\W*|(?<=\w)\W+)\w", beginning, text.lower())


def separator(language: str) -> str:
    """What stands between two sentences."""
    return "" if language_code(language) in ("ja", "yue", "zh") else " "


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


def _ends(before: str, after: str, code: str) -> bool:
    """Whether a sentence ends between these pieces."""
    if not re.search(r"\w", after):
        return False  # only marks
    if re.search(r"(?<!\w)[^\W\d_]\.-[^\W\d_]\.$", before):  # of a name (J.-P. Roy), but for:
        date = r"\b(?i:(?:av|apr?)\.?\s*|(?:avant|après|depuis)\s)J\.-C"
        known = re.search(rf"({date}|[EÉR]\.-U|[CN]\.-B)\.$", before)
        return known is not None and re.sub(r"[\W_]+", "", after)[:1].isupper()
    if re.search(r"\d\s?[a-z]{1,2}\.$", before) and re.sub(r"[\W_]+", "", after)[:1].isupper():
        return True  # a unit: 14 h. Il
    word = re.search(r"(?<![\w.-])([\w.-]+)\.$", before)
    if word is None or word[1] not in _abbreviations(code):
        return True
    return _abbreviations(code)[word[1]] and not after[:1].isdigit()


@cache
def _abbreviations(code: str) -> dict[str, bool]:
    """Moses's nonbreaking prefixes, English for a language without; True: before digits only."""
    from sacremoses.corpus import NonbreakingPrefixes

    lists = ("en", "fr") if code == "fr" else (code,)  # the French one has no titles (Dr., St.)
    entries = (
        entry.partition(" ") for each in lists for entry in NonbreakingPrefixes().words(each)
    )
    return {word: bool(mark) for word, _, mark in entries}
