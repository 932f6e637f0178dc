"""Simple rules that leave out training pairs, with a count of what each of them dropped."""

import logging
import math
import re
from collections import Counter
from collections.abc import Iterator

from configs.schema import Cleaning
from data.corpora.base import CorpusReader, ParallelText
from utils.errors import UserError

logger = logging.getLogger(__name__)

# Frequent words of one language that are not words of the other, unlike "on", "a", "me", "son".
_FRENCH = """
    le la les une des du de et est dans pour que qui ce cette ces ses il elle nous vous ils elles je
    avec sur pas sont au aux mais où leur leurs était être avoir ont été même très aussi
    comme quand"""
_ENGLISH = """
    the of and is in that it was with his her he she they we you are be this have had were which
    their there not what would been has who from my your when how did does do these those"""
STOP_WORDS = {"fr": frozenset(_FRENCH.split()), "en": frozenset(_ENGLISH.split())}
_WORD = re.compile(r"[^\W\d_]+")
# Not up to Latin Extended-B, nor in Latin Extended Additional, nor a ligature like "ﬁ".
_NOT_LATIN = re.compile(r"[^\u0000-\u024f\u1e00-\u1eff\ufb00-\ufb06]")
# The replacement character, or UTF-8 that was read as Latin-1 or Windows-1252, as in "mouillÃ©".
# White space is in one form by now: "à" has become "Ã ".
_DAMAGED = re.compile(
    r"\ufffd|[ÃÂ][\x80-\xbf]|Ã[€‰ˆŠ‡Ž”œš]|â[€\x80\x82]|Å[“’\x92\x93]|(?<![A-ZÀ-Þ])Ã(?!\w)"
)
MIN_FOREIGN = 2  # stop words of the other language needed, which must also outnumber its own


def clean_text(text: ParallelText, config: Cleaning, src_lang: str, tgt_lang: str) -> ParallelText:
    """The pairs that no rule drops, in order; `skipped` counts the rest by their first rule, and
    the log has an example of each.
    """
    seen: set[tuple[str, str]] = set()
    counts: Counter[str] = Counter(text.skipped)
    kept: list[int] = []
    most_words, most_ratio = config.max_words or math.inf, config.max_ratio or math.inf

    def broken(src: str, tgt: str) -> Iterator[tuple[str, bool]]:
        """Each rule, and whether it applies; the costliest comes last but one."""
        n_words = len(src.split()), len(tgt.split())
        lengths = n_words if config.ratio_of == "words" else (len(src), len(tgt))
        yield "damaged", config.damaged and bool(_DAMAGED.search(src) or _DAMAGED.search(tgt))
        yield "identical", config.identical and src.casefold() == tgt.casefold()
        yield "too_few_words", min(n_words) < config.min_words
        yield "too_many_words", max(n_words) > most_words
        yield "length_ratio", max(lengths) > most_ratio * min(lengths)
        speak = not config.language or (speaks(src, src_lang) and speaks(tgt, tgt_lang))
        yield "language", not speak
        yield "duplicate", (src, tgt) in seen

    for row, (src, tgt) in enumerate(zip(text.src, text.tgt)):
        reason = next((rule for rule, applies in broken(src, tgt) if applies), None)
        if reason is None:
            if config.duplicates:
                seen.add((src, tgt))
            kept.append(row)
        else:
            if reason not in counts:
                pair = (side if len(side) <= 80 else f"{side[:76]} ..." for side in (src, tgt))
                logger.info(f"left out by data.clean, {reason}: {' | '.join(pair)}")
            counts[reason] += 1
    src_kept, tgt_kept = (tuple(side[row] for row in kept) for side in (text.src, text.tgt))
    return ParallelText(src_kept, tgt_kept, dict(counts))


class CleanedCorpus(CorpusReader):
    """A corpus whose training split is cleaned."""

    def __init__(
        self, corpus: CorpusReader, config: Cleaning, src_lang: str, tgt_lang: str
    ) -> None:
        self.corpus = corpus
        self.config = config
        self.langs = src_lang, tgt_lang
        self.train, self.validation, self.test = corpus.train, corpus.validation, corpus.test

    def load(self, split: str) -> ParallelText:
        """A split as the corpus has it, or the cleaned training split.

        Raises UserError as the corpus does, and where no training pair is left.
        """
        text = self.corpus.load(split)
        if split != self.train:
            return text
        cleaned = clean_text(text, self.config, *self.langs)
        if not len(cleaned):
            why = ", ".join(f"{reason} {n:,}" for reason, n in cleaned.skipped.items())
            raise UserError(f"no training pair is left ({why or 'none there'}); loosen data.clean")
        return cleaned


def speaks(text: str, lang: str) -> bool:
    """Whether `text` may be in `lang`, "fr" or "en"; a name or a number may be in any language.

    It is not if most of its letters are not Latin, or if it has at least MIN_FOREIGN stop words of
    the other language, and more than of its own.
    """
    if not text.isascii():
        other_letters = sum(map(str.isalpha, _NOT_LATIN.findall(text)))
        if other_letters and 2 * other_letters > sum(map(str.isalpha, text)):
            return False
    text = text.casefold()
    words = _WORD.findall(text)
    if not all(map(str.isalpha, words)):  # "the²": the mark is no letter
        words = "".join(char if char.isalpha() else " " for char in text).split()
    (other,) = STOP_WORDS.keys() - {lang}
    own, foreign = (sum(map(STOP_WORDS[code].__contains__, words)) for code in (lang, other))
    return foreign < MIN_FOREIGN or foreign <= own
