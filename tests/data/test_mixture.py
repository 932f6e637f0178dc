"""Corpora mixed, and pairs in both directions: what an epoch holds, how a config says it."""

import json
import logging
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_runs import content, log_of, run_here, toy_config

from configs.schema import (
    Cleaning,
    Config,
    DataConfig,
    Marian,
    Mixture,
    ParallelFiles,
    Phrasebook,
    Subword,
    Weighted,
)
from configs.serialize import apply_overrides, diff, from_dict, to_dict
from data.cache import load_split
from data.corpora.base import CorpusReader
from data.corpora.build import build_corpus
from data.corpora.mixture import epoch_counts
from tokenizer.subword import SubwordTokenizer
from training.start import check_resume
from utils.errors import ConfigError, UserError


def write_corpus(folder: Path, name: str, n: int) -> ParallelFiles:
    root = folder / name
    root.mkdir(exist_ok=True)
    for split, size in (("train", n), ("valid", 2), ("test", 3)):
        for lang in ("fr", "en"):
            lines = (f"{name} {split} {lang} {i}\n" for i in range(size))
            (root / f"{split}.{lang}").write_text("".join(lines), "utf-8")
    return ParallelFiles(root=str(root))


def mixture(folder: Path, **changes) -> Mixture:
    parts = (
        Weighted(corpus=write_corpus(folder, "small", 10), weight=2.5, name="small"),
        Weighted(corpus=write_corpus(folder, "large", 40), weight=0.5, name="large"),
    )
    return Mixture(**{"parts": parts, **changes})


def load(folder: Path, split: str = "train", **changes) -> list[str]:
    return list(build_corpus(DataConfig(corpus=mixture(folder, **changes))).load(split).src)


# ------------------------------------------------------------------------------------ what is mixed


def test_a_weight_is_how_often_an_epoch_has_a_pair(tmp_path: Path) -> None:
    counts = Counter(load(tmp_path))
    small = [counts[f"small train fr {i}"] for i in range(10)]
    large = [counts[f"large train fr {i}"] for i in range(40)]
    assert sorted(small) == [2] * 5 + [3] * 5
    assert sorted(large) == [0] * 20 + [1] * 20
    assert load(tmp_path) == load(tmp_path)
    assert load(tmp_path) != load(tmp_path, seed=1)
    text = build_corpus(DataConfig(corpus=mixture(tmp_path))).load("train")
    assert [s.replace(" fr ", " en ") for s in text.src] == list(text.tgt)


def test_each_part_has_an_order_of_its_own(tmp_path: Path) -> None:
    parts = tuple(
        Weighted(corpus=write_corpus(tmp_path, n, 40), weight=0.5, name=n) for n in ("one", "two")
    )
    drawn = [line.split() for line in load(tmp_path, parts=parts)]
    one, two = ({words[-1] for words in drawn if words[0] == n} for n in ("one", "two"))
    assert len(one) == len(two) == 20
    assert one != two


def test_temperature_gives_the_shares_of_the_paper() -> None:
    sizes = [100, 900, 9000]
    even = tuple(Weighted(name=n) for n in "abc")
    assert epoch_counts(Mixture(parts=even, temperature=1.0), sizes) == sizes
    uneven = (*even[:2], Weighted(weight=0.5, name="c"))
    for temperature in (1.0, 2.0, 5.0):
        counts = epoch_counts(Mixture(parts=uneven, temperature=temperature), sizes)
        weights = [w * n ** (1 / temperature) for w, n in zip((1, 1, 0.5), sizes)]
        assert counts == [round(10_000 * weight / sum(weights)) for weight in weights]


def test_evaluation_is_of_one_part_and_the_others_have_their_names(tmp_path: Path) -> None:
    corpus = build_corpus(DataConfig(corpus=mixture(tmp_path)))
    assert (corpus.train, corpus.validation) == ("train", "valid")
    assert corpus.test == ("test", "large.test")
    assert corpus.splits == (*corpus.test, "valid", "train", "large.valid")
    first = [corpus.load(split).src[0] for split in ("valid", "test", "large.test")]
    assert first == ["small valid fr 0", "small test fr 0", "large test fr 0"]
    other = build_corpus(DataConfig(corpus=mixture(tmp_path, evaluate="large")))
    assert other.test == ("test", "small.test")
    assert other.load("valid").src[0] == "large valid fr 0"
    [small, large] = mixture(tmp_path).parts
    alone = replace(large, corpus=replace(large.corpus, test=()))
    untested = build_corpus(DataConfig(corpus=Mixture(parts=(small, alone))))
    assert untested.test == ("test",)
    for absent in ("large", "news.2020"):  # are no splits of other parts
        with pytest.raises(UserError, match=rf"part small .*small/{absent}\.fr nor"):
            corpus.load(absent)

    def called(**names: Any) -> CorpusReader:
        """With other names of the evaluated part's splits."""
        part = replace(small, corpus=replace(small.corpus, **names))
        return build_corpus(DataConfig(corpus=Mixture(parts=(part, large))))

    for named in (called(test=("train",)), called(validation="train")):
        assert (len(named.load(named.train)), len(named.load("train"))) == (45, 10)
    for lang in ("fr", "en"):  # a file of the evaluated part's own is called as another part's
        (tmp_path / "small" / f"large.test.{lang}").write_text("own\n", "utf-8")
    for doubly in (called(test=("large.test",)), called(validation="large.test")):
        assert list(doubly.load("large.test").src) == ["own"]


def test_each_part_is_cleaned_by_itself_and_counted_by_name(tmp_path: Path) -> None:
    config = mixture(tmp_path)
    (tmp_path / "small" / "train.fr").write_text("un\n" * 4, "utf-8")
    (tmp_path / "small" / "train.en").write_text("one\n" * 4, "utf-8")
    text = build_corpus(DataConfig(corpus=config, clean=Cleaning(language=False))).load("train")
    assert text.src[:2] == ("un", "un")  # one is left, and 2.5 of it are 2
    assert text.skipped == {"small.duplicate": 3}


def test_an_error_names_the_part_and_its_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts = (
        Weighted(corpus=write_corpus(tmp_path, "a", 3)),
        Weighted(corpus=ParallelFiles(root="nowhere"), name="b"),
    )
    corpus = build_corpus(DataConfig(corpus=Mixture(parts=parts)))
    words = "part b of the mixture: nowhere: no such folder; --set "
    with pytest.raises(UserError, match=rf"{words}data\.corpus\.parts\.1\.corpus\.root=FOLDER"):
        corpus.load("train")
    few = Mixture(parts=(Weighted(corpus=write_corpus(tmp_path, "a", 3), weight=0.01),))
    with pytest.raises(UserError, match="the weights leave no pair"):
        build_corpus(DataConfig(corpus=few)).load("train")
    caplog.set_level(logging.INFO)
    assert set(load(tmp_path, temperature=0.1)) == {f"large train fr {i}" for i in range(40)}
    kept = "part large: 50 pairs in the mixture, of 40"
    assert caplog.messages == ["part small: its weight leaves none of its 10 pairs", kept]


def test_a_corpus_or_part_of_which_cleaning_leaves_nothing_says_so(tmp_path: Path) -> None:
    whole, clean = mixture(tmp_path), Cleaning(max_words=1, language=False)
    words = r"no training pair is left \(too_many_words [14]0\); loosen data.clean"
    for corpus, part in ((whole, "part small of the mixture: "), (whole.parts[1].corpus, "")):
        with pytest.raises(UserError, match=f"^{part}{words}"):
            build_corpus(DataConfig(corpus=corpus, clean=clean)).load("train")


# --------------------------------------------------------------------------------------- the config


def test_fields_of_a_part_are_set_by_its_number(tmp_path: Path) -> None:
    config = Config(data=DataConfig(corpus=mixture(tmp_path)))
    settings = {"parts.0.weight": "4", "parts.1.corpus.root": "x", "temperature": "2"}
    changed = apply_overrides(config, [f"data.corpus.{key}={v}" for key, v in settings.items()])
    first, second = changed.data.corpus.parts
    assert (first.weight, second.corpus.root, changed.data.corpus.temperature) == (4.0, "x", 2.0)
    assert [key for key, _, _ in diff(config, changed)] == [f"data.corpus.{k}" for k in settings]
    part = "data.corpus.parts.1.corpus"
    book = apply_overrides(config, [f"{part}=phrasebook", f"{part}.n_train=5"])
    assert book.data.corpus.parts[1].corpus == Phrasebook(n_train=5)
    assert from_dict(json.loads(json.dumps(to_dict(book)))) == book


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("parts.2.weight=1", "parts.2.weight': data.corpus.parts has the numbers 0 to 1"),
        ("parts.one.weight=1", "parts.one.weight': data.corpus.parts has the numbers 0 to 1"),
        ("parts.0=3", "data.corpus.parts.0 is a section; set its fields: corpus, weight, name"),
        ("parts=3", "parts.0 is a section; set its fields: corpus, weight, name"),
        ("parts.0.weight=0", "data.corpus.parts.0.weight = 0.0: allowed: a number >= 1e-30"),
        ("parts.0.wait=1", ".corpus.parts.0.wait': data.corpus.parts.0 has: weight"),
        ("evaluate=medium", "data.corpus.evaluate = 'medium': allowed: small, large"),
        ("wieght=1", "unknown key 'data.corpus.wieght'"),
    ],
)
def test_a_wrong_key_of_a_part_is_told(tmp_path: Path, override: str, words: str) -> None:
    config = Config(data=DataConfig(corpus=mixture(tmp_path)))
    with pytest.raises(ConfigError, match=re.escape(words)):
        apply_overrides(config, [f"data.corpus.{override}"])


def test_what_does_not_fit_together_is_refused() -> None:
    words = r"data\.corpus\.parts = \(\): name the corpora in a config file"
    with pytest.raises(ConfigError, match=words):
        apply_overrides(Config(), ["data.corpus=mixture"])
    with pytest.raises(ConfigError, match="each part needs a name of its own"):
        Mixture(parts=(Weighted(name="1"), Weighted()))
    untested = ParallelFiles(test=())
    with pytest.raises(ConfigError, match=r"data\.corpus\.evaluate = None: 0 has no test split"):
        Mixture(parts=(Weighted(corpus=untested), Weighted()))
    with pytest.raises(ConfigError, match=r"data\.corpus\.test = \(\): name at least one split"):
        DataConfig(corpus=untested)
    with pytest.raises(ConfigError, match=r"data\.corpus\.parts\.name = 'a/b'"):
        Weighted(name="a/b")
    words = r"data\.directions = 'both': one vocabulary must segment both languages"
    with pytest.raises(ConfigError, match=words):
        Config(tokenizer=Marian(), data=DataConfig(directions="both"))
    with pytest.raises(ConfigError, match="the phrasebook corpus has only French"):
        DataConfig(corpus=Mixture(parts=(Weighted(corpus=Phrasebook()),)), src_lang="de")


def test_a_run_may_find_the_parts_elsewhere_but_not_weigh_them_anew(tmp_path: Path) -> None:
    config = Config(data=DataConfig(corpus=mixture(tmp_path)))
    payload = {"config": to_dict(config), "progress": {"step": 1, "epoch_length": 10}}
    moved = apply_overrides(config, ["data.corpus.parts.1.corpus.root=elsewhere"])
    check_resume(moved, payload, tmp_path)
    weighed = apply_overrides(config, ["data.corpus.parts.1.weight=2"])
    with pytest.raises(UserError, match=r"data\.corpus\.parts\.1\.weight = 2\.0"):
        check_resume(weighed, payload, tmp_path)


# ---------------------------------------------------------------------------------- both directions


def test_both_directions_double_the_training_pairs_alone(tmp_path: Path) -> None:
    files = write_corpus(tmp_path, "a", 5)
    config = DataConfig(corpus=files, directions="both", cache_dir=str(tmp_path / "cache"))
    corpus = build_corpus(config)
    plain = corpus.load("train")
    tokenizer = SubwordTokenizer.train([*plain.src, *plain.tgt], Subword(vocab_size=100))
    text, ids = load_split(config, corpus, "train", tokenizer, training=True)
    assert list(text.src) == [*plain.src, *plain.tgt]
    assert list(text.tgt) == [*plain.tgt, *plain.src]
    both = tokenizer.decode_batch([ids.src(0), ids.tgt(0), ids.src(5), ids.tgt(5)])
    assert both == ["a train fr 0", "a train en 0", "a train en 0", "a train fr 0"]
    assert len(load_split(config, corpus, "valid", tokenizer, training=False)[1]) == 2
    assert replace(plain, skipped={"empty": 2}).both_ways().skipped == {"empty": 2}


@pytest.mark.slow
def test_a_run_on_both_directions_has_the_vocabulary_of_one(tmp_path: Path) -> None:
    forward = toy_config(tmp_path, "train.max_epochs=1", "optim.accumulate=6")
    parts = tuple(
        Weighted(corpus=forward.data.corpus, weight=w, name=n) for w, n in ((1.0, "a"), (0.5, "b"))
    )
    one_way = replace(forward, data=replace(forward.data, corpus=Mixture(parts=parts)))
    runs = [
        run_here(apply_overrides(one_way, [f"data.directions={directions}"])).run
        for directions in ("forward", "both")
    ]
    assert max(log_of(runs[1])) > 1.6 * max(log_of(runs[0]))
    saved = [content(run.checkpoints / "regular_checkpoint_1.pt")["tokenizer"] for run in runs]
    assert saved[0]["fingerprint"] == saved[1]["fingerprint"]
