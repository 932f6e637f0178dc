"""The embedded corpus: its text to the last byte, its splits, its errors."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from configs.schema import Phrasebook
from data.corpora.base import ParallelText
from data.corpora.phrasebook import FILE, PhrasebookCorpus
from utils.errors import ConfigError, UserError

SMALL = Phrasebook(n_train=1500, n_validation=100, n_test=100)
SPLITS = ("train", "validation", "test")


def test_the_file_is_the_one_that_the_grammar_made() -> None:
    """Figures in reports are bound to this text."""
    digest = hashlib.sha256(FILE.read_bytes()).hexdigest()
    assert digest == "bed3bbd37d21b6f6fd59ce8e543e5167d898e23a0bd39f6c84394e552471c6fc"


@pytest.mark.parametrize(
    ("settings", "golden"),
    [
        ({}, ["6599d9f4", "1d699726", "c3e4704b"]),
        ({"train_max_words": 10, "n_test": 1000}, ["39386a6d", "be6130c1", "ae6ad85e"]),
        ({"n_train": 400, "n_validation": 40, "n_test": 40}, ["8015d968", "a216f4fc", "3b39bc4b"]),
    ],
    ids=["default", "length extrapolation", "small"],
)
def test_the_splits_are_those_that_the_grammar_made(
    settings: dict[str, Any], golden: list[str]
) -> None:
    corpus = PhrasebookCorpus(Phrasebook(**settings))
    assert [corpus.load(split).fingerprint()[:8] for split in SPLITS] == golden


def test_the_file_is_read_once_for_all_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    PhrasebookCorpus(SMALL).load("test")
    monkeypatch.setattr("data.corpora.phrasebook.read_packed", None)
    PhrasebookCorpus(replace(SMALL, n_test=101)).load("test")


def test_splits_share_no_sentence_on_either_side() -> None:
    parts = [PhrasebookCorpus(SMALL).load(split) for split in SPLITS]
    assert [len(part) for part in parts] == [1500, 100, 100]
    for side in ("src", "tgt"):
        everything = [text.casefold() for part in parts for text in getattr(part, side)]
        assert len(everything) == len(set(everything))


def test_validation_and_test_do_not_change_with_the_size_of_train() -> None:
    larger = Phrasebook(n_train=1800, n_validation=100, n_test=100)
    back = PhrasebookCorpus(larger, src_lang="en", tgt_lang="fr")  # nor with the direction
    for split in ("validation", "test"):
        text = PhrasebookCorpus(SMALL).load(split)
        assert PhrasebookCorpus(larger).load(split) == text
        assert back.load(split) == ParallelText(text.tgt, text.src)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_train": 29_001}, "n_train = 29001: the phrasebook has 29,000 sentences for it; ask"),
        ({"n_validation": 29_000}, "n_train = 20000: the phrasebook has 500"),
        (
            {"n_test": 400, "train_max_words": 60},
            "n_test = 400.* 0 .* data.corpus.train_max_words = 60",
        ),
        ({"train_max_words": 5}, r"n_train = 20000: .* data.corpus.train_max_words = 5; ask for"),
    ],
)
def test_more_than_there_is_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PhrasebookCorpus(Phrasebook(**settings)).load("test")


def test_errors_name_the_value_and_the_choices() -> None:
    with pytest.raises(UserError, match="'dev': train, validation or test"):
        PhrasebookCorpus(SMALL).load("dev")
    with pytest.raises(ConfigError, match=r"data\.corpus\.seed = 3: allowed: 0"):
        Phrasebook(seed=3)
