"""Cleaning: what each rule drops and counts, and that it meets the training split alone."""

import logging
from pathlib import Path

import pytest

from configs.schema import Cleaning, Config, DataConfig, ParallelFiles
from configs.serialize import apply_overrides, from_dict, to_dict
from data.cleaning import STOP_WORDS, clean_text, speaks
from data.corpora.base import ParallelText
from data.corpora.build import build_corpus
from data.corpora.text import normalize_whitespace
from utils.errors import ConfigError

PAIRS = [
    ("Le chat dort.", "The cat sleeps."),
    ("Le chat dort.", "The cat sleeps."),
    ("Le chat dort.", "The cat is asleep."),
    ("Paris, France", "paris, france"),
    ("Oui.", "Yes, of course, you may have all of it."),
    ("Кошка спит.", "The cat sleeps."),
    ("The dog is in the house.", "The dog is in the garden."),
    ("Un chien.", "Il est dans le jardin."),
    ("Je vois le chat dans le jardin et la maison.", "I see the cat in the garden and the house."),
    ("Un été mouillÃ©.", "A wet summer."),
    ("Un été.", "A summer\ufffds day."),
]
OFF = {"max_ratio": None, "duplicates": False, "identical": False, "language": False}
OFF |= {"damaged": False}


def cleaned(pairs: list[tuple[str, str]], **rules) -> tuple[list[tuple[str, str]], dict[str, int]]:
    src, tgt = zip(*pairs)
    text = clean_text(ParallelText(src, tgt, {"empty": 2}), Cleaning(**rules), "fr", "en")
    return list(zip(text.src, text.tgt)), dict(text.skipped)


def test_each_rule_counts_what_it_dropped_beside_the_corpus_own_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    kept, skipped = cleaned(PAIRS, max_words=9, damaged=True)
    assert kept == [PAIRS[0], PAIRS[2]]
    others = {"duplicate": 1, "identical": 1, "length_ratio": 1, "language": 3, "damaged": 2}
    assert skipped == {"empty": 2, "too_many_words": 1, **others}
    first = f"{PAIRS[8][0]} | {PAIRS[8][1]}"
    assert f"left out by data.clean, too_many_words: {first}" in caplog.messages
    assert len(caplog.messages) == 6  # one of each
    cleaned([("mot " * 200, "word")])
    assert caplog.messages[-1] == f"left out by data.clean, length_ratio: {'mot ' * 19} ... | word"


def test_text_of_another_encoding_is_damaged_and_foreign_letters_are_not() -> None:
    whole = "Où est l’œuvre ? « Là-bas, à São Tomé » – 25 °C, ΑÂ, MAÇÃ, ÅNGSTRÖM, Âne"
    words = ["é", "œuvre", "l’œuvre", "« mots »", "É", "25 °C", "cœur – là", "voilà", "à la carte"]
    read = [word.encode().decode(wrong, "replace") for word in words for wrong in ("cp1252", "l1")]
    damaged = list(map(normalize_whitespace, read))
    pairs = [(whole, "x" * 40), *((text, "x" * len(text)) for text in damaged)]
    assert cleaned(pairs, **(OFF | {"damaged": True}))[0] == pairs[:1]


@pytest.mark.parametrize(
    ("rule", "reason", "dropped"),
    [
        ({}, "none", []),
        ({"duplicates": True}, "duplicate", [1]),
        ({"identical": True}, "identical", [3]),
        ({"language": True}, "language", [5, 6, 7]),
        ({"damaged": True}, "damaged", [9, 10]),
        ({"max_words": 9}, "too_many_words", [8]),
        ({"min_words": 3}, "too_few_words", [3, 4, 5, 7, 10]),
        ({"max_ratio": 2.0, "ratio_of": "words"}, "length_ratio", [4, 7]),
        ({"max_ratio": 3.0, "ratio_of": "chars"}, "length_ratio", [4]),
    ],
)
def test_a_rule_alone(rule: dict, reason: str, dropped: list[int]) -> None:
    # 1 to 7 words, 4 to 32 characters
    pairs = [*PAIRS[:4], ("Oui.", "Yes, of course, you may have it."), *PAIRS[5:]]
    kept, skipped = cleaned(pairs, **(OFF | rule))
    assert kept == [pair for i, pair in enumerate(pairs) if i not in dropped]
    assert skipped == {"empty": 2} | ({reason: len(dropped)} if dropped else {})


def test_a_ratio_at_the_limit_is_kept() -> None:
    _, skipped = cleaned([("abcd", "abcdefgh"), ("abcd", "abcdefghi")], max_ratio=2)
    assert skipped == {"empty": 2, "length_ratio": 1}


@pytest.mark.parametrize(
    ("text", "french", "english"),
    [
        ("Le chat est dans la maison", True, False),
        ("The cat is in the house", False, True),
        ("New York, 1999", True, True),
        ("12:30 !!", True, True),
        ("the", True, True),  # one word decides nothing
        ("« The Wall » est le titre de la chanson", True, False),
        ("L'ÉTÉ ET LA MER", True, False),
        ("The cat is black", False, True),
        ("See the¹ rules of² it", False, True),
        ("The chat is est le", True, True),  # no fewer words of the other language
        ("猫は眠っている", False, False),
        ("Γάτα, cat", False, False),
        ("rayons α, atome", True, True),
        *((latin, True, True) for latin in ("œ", "ź", "ế", "ﬁ", "ﬆ")),
    ],
)
def test_languages_by_script_and_stop_words(text: str, french: bool, english: bool) -> None:
    assert (speaks(text, "fr"), speaks(text, "en")) == (french, english)


def test_no_stop_word_is_of_both_languages() -> None:
    assert not STOP_WORDS["fr"] & STOP_WORDS["en"]
    assert all(len(words) > 40 for words in STOP_WORDS.values())


# ------------------------------------------------------------------------------------------- in use


def test_the_training_split_alone_is_cleaned(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        for side, lang in enumerate(("fr", "en")):
            lines = (f"{pair[side]}\n" for pair in PAIRS)
            (tmp_path / f"{split}.{lang}").write_text("".join(lines), "utf-8")
    files = ParallelFiles(root=str(tmp_path))
    corpus = build_corpus(DataConfig(corpus=files, clean=Cleaning(damaged=True)))
    text = corpus.load(corpus.train)
    assert len(text) == 3
    others = {"duplicate": 1, "identical": 1, "length_ratio": 1, "language": 3}
    assert text.skipped == others | {"damaged": 2}
    assert len(corpus.load(corpus.validation)) == len(PAIRS)
    assert len(build_corpus(DataConfig(corpus=files)).load("train")) == len(PAIRS)


def test_the_language_check_is_refused_for_languages_that_it_does_not_know(tmp_path: Path) -> None:
    files = ParallelFiles(root=str(tmp_path))
    with pytest.raises(ConfigError, match=r"data\.clean\.language = True: checks only French"):
        DataConfig(corpus=files, src_lang="de", clean=Cleaning())
    assert DataConfig(corpus=files, src_lang="de", clean=Cleaning(language=False)).src_lang == "de"


def test_rules_are_set_by_text_and_come_back_from_a_dict() -> None:
    rules = ["data.clean.max_ratio=2.5", "data.clean=rules", "data.clean.max_words=none"]
    config = apply_overrides(Config(), rules)
    assert config.data.clean == Cleaning(max_ratio=2.5)
    assert from_dict(to_dict(config)) == config
    words = r"data\.clean\.max_words = 2: allowed: .* >= min_words = 3"
    with pytest.raises(ConfigError, match=words):
        Cleaning(min_words=3, max_words=2)
