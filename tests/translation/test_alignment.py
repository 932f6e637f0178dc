"""Links between words: from attention, and against gold ones; the scripts that show both."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT
from made_runs import untrained_run

import inference
import test as test_script
from configs.schema import Learnable, Phrasebook, Subword
from data.corpora.phrasebook import PhrasebookCorpus
from data.corpora.text import plain_text
from fr2en import Translator
from tokenizer.base import BaseTokenizer
from tokenizer.marian import FrEnTokenizer
from tokenizer.subword import SubwordTokenizer
from translation.alignment import HeadChoice, Pieces, WordAttention
from translation.alignment_error import Gold, GoldPairs, alignment_scores, read_gold
from utils.errors import UserError

HANSARDS = ROOT.parent / "shared/data/hansards447"
MARIAN = ROOT.parent / "shared/data/marian-fr-en"
TEXTS = [
    "Le chat noir n'est pas là, n'est-ce pas ?",
    "«\u00a0Où est l'œuvre\u00a0?\u00a0» dit-il…",
    "½ 😀 日本語 e\u0301te\u0301 ￡ ﬁn a\u200bb \u200b ¨ ok",
    "",
]


@pytest.fixture(scope="module")
def tokenizers(marian_folder: Path) -> dict[str, BaseTokenizer]:
    texts = PhrasebookCorpus(Phrasebook()).load("test")
    trained = {
        f"{algorithm} {size}": SubwordTokenizer.train(
            [*texts.src, *texts.tgt], Subword(algorithm=algorithm, vocab_size=size)
        )
        for algorithm, size in (("bpe", 900), ("unigram", 900), ("bpe", 300))
    }
    return {**trained, "marian": FrEnTokenizer(marian_folder)}


# ------------------------------------------------------------------------------------ words, pieces


@pytest.mark.parametrize("name", ["bpe 900", "unigram 900", "bpe 300", "marian"])
def test_the_ids_of_the_words_are_those_of_the_text(
    name: str, tokenizers: dict[str, BaseTokenizer]
) -> None:
    tokenizer = tokenizers[name]
    for encode in (tokenizer.encode_src_batch, tokenizer.encode_tgt_batch):
        for text in TEXTS:
            levelled = plain_text(text)  # as translation and scoring read it
            found = Pieces.of(text, encode)
            assert [found.ids] == encode([levelled])
            assert len(found.word_of) == len(found.ids) - 1
            assert (np.diff(found.word_of) >= 0).all()
    plain = Pieces.of(TEXTS[0], tokenizer.encode_src_batch)
    cut = Pieces.of(TEXTS[0], tokenizer.encode_src_batch, 4)
    assert (cut.words, cut.ids) == (plain.words, [*plain.ids[:3], plain.ids[-1]])
    assert cut.word_of.tolist() == plain.word_of[:3].tolist()
    for number, word in enumerate(plain.words):
        ids = [i for i, of_word in zip(plain.ids, plain.word_of) if of_word == number]
        if tokenizer.unk_id not in ids:
            assert "".join(tokenizer.src_pieces(ids)) == f"▁{word}"


@pytest.mark.skipif(not MARIAN.is_dir() or not HANSARDS.is_dir(), reason="no data beside the code")
def test_the_same_with_the_pretrained_tokenizer_on_parliament() -> None:
    tokenizer = FrEnTokenizer(MARIAN)
    for side, encode in (("fr", tokenizer.encode_src_batch), ("en", tokenizer.encode_tgt_batch)):
        lines = (HANSARDS / f"test.{side}").read_text("utf-8").splitlines()[::4]
        levelled = [" ".join(line.split()) for line in lines]
        assert [Pieces.of(line, encode).ids for line in lines] == encode(levelled)


def test_word_attention_sums_over_source_pieces_and_averages_over_target_pieces() -> None:
    src = Pieces(["le", "chat"], [5, 6, 7, 0], np.array([0, 1, 1]))
    tgt = Pieces(["the", "cats"], [3, 4, 5, 0], np.array([0, 1, 1]))
    cross = np.array(
        [  # le, ch, at, </s>
            [0.5, 0.2, 0.1, 0.2],  # produces "the"
            [0.4, 0.3, 0.2, 0.1],  # reads "the", produces "cat"
            [0.0, 0.1, 0.5, 0.4],  # reads "cat", produces "s"
            [0.1, 0.1, 0.1, 0.7],  # reads "s", produces EOS
        ]
    )
    found = WordAttention.of(cross[None, None], src, tgt)
    np.testing.assert_allclose(found.produced[0, 0], [[0.5, 0.3], [0.2, 0.55]])
    np.testing.assert_allclose(found.read[0, 0], [[0.4, 0.5], [0.05, 0.4]])
    assert found.aligned(HeadChoice()).pharaoh() == "0-0 1-1"
    # "the" looks at "chat" most, but takes more of what looks at "le": 0.4 / 0.55 to 0.5 / 1.
    shifted = found.aligned(HeadChoice(-1, (1,), shift=True))
    assert shifted.pairs == [("le", "the"), ("chat", "cats")]
    gaps = np.array([1, 3, 3])  # words without a piece, at both ends and between
    src, tgt = (Pieces(list("abcde"), each.ids, gaps) for each in (src, tgt))
    found = WordAttention.of(cross[None, None], src, tgt)
    for looks, first in ((found.produced, 0), (found.read, 1)):
        expected = np.zeros((5, 5))
        for row, where in ((1, slice(first, first + 1)), (3, slice(first + 1, first + 3))):
            mean = cross[where].mean(axis=0)
            expected[row, [1, 3]] = mean[0], mean[1:3].sum()
        np.testing.assert_allclose(looks[0, 0], expected)


def test_the_layer_without_a_choice_is_the_last_but_one_and_of_two_the_last() -> None:
    """Layer n points at source word n alone."""
    for n_layers, expected in ((1, 0), (2, 1), (3, 1), (6, 4)):
        weights = np.eye(6)[:n_layers, None, None]  # [L,1,1,6]
        found = WordAttention(list("abcdef"), ["x"], weights, weights)
        assert found.aligned(HeadChoice()).links == [(expected, 0)]
        assert found.aligned(HeadChoice(-1)).links == [(n_layers - 1, 0)]
    heads = np.array([[[[0.9, 0.5]], [[0.0, 0.5]]]])  # of one layer: what the mean looks at most
    assert WordAttention(["a", "b"], ["x"], heads, heads).aligned(HeadChoice()).links == [(1, 0)]


def test_a_translator_aligns_alone_as_beside_others(translator: Translator) -> None:
    texts = ["Le chat dort.", "Oui.", "", "Il y a un livre sur la table."]
    together = translator.align(texts)
    assert [each.src for each in together] == [text.split() for text in texts]
    assert together[2].links == []
    for text, found in zip(texts, together):
        assert translator.align(text) == found
        assert [t for _, t in found.links] == list(range(len(found.tgt)))
    targets = [" ".join(found.tgt) for found in together]
    beside_others = translator.word_attention(texts, targets)
    for text, target, found in zip(texts, targets, beside_others):
        [alone] = translator.word_attention([text], [target])
        np.testing.assert_allclose(found.read, alone.read, atol=1e-6)
    given = translator.align("Le chat dort.", "The cat sleeps .", HeadChoice(1, (2,)))
    cross = translator.attention("Le chat dort.", "The cat sleeps .").cross[0, 1]
    src, tgt = (
        Pieces.of(text, translator.tokenizer.encode_src_batch)
        for text in ("Le chat dort.", "The cat sleeps .")
    )
    looks = np.zeros((4, 3))
    for t, s in np.ndindex(4, 3):
        rows = [row for row, of_word in zip(cross, tgt.word_of) if of_word == t]
        looks[t, s] = np.mean([row[:-1][src.word_of == s].sum() for row in rows])
    share = looks / (0.1 + looks.sum(axis=0))
    assert given.links == [(int(s), t) for t, s in enumerate(share.argmax(axis=1))]


def test_words_past_the_last_position_look_at_nothing(trained_run: Path, tmp_path: Path) -> None:
    run = untrained_run(trained_run, tmp_path, position=Learnable(max_positions=96))
    found = Translator.load(run, device="cpu").align("Oui.", "The cat sleeps. " * 60)
    assert len(found.tgt) == 180
    assert 0 < len(found.links) < 96


def test_what_was_aligned_leaves_no_attention_behind(translator: Translator) -> None:
    """Of long lines it is megabytes a pair, and a server may be sent many at once."""
    many, n_words = 4 * translator.decode.batch_on("cpu"), 50
    lines = [" ".join(["mot"] * n_words)] * many
    tracemalloc.start()
    assert len(translator.align(lines, lines)) == many
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    n_layers, n_heads = translator.attention("mot").cross.shape[:2]
    assert peak < many * n_layers * n_heads * n_words**2 * 8


# --------------------------------------------------------------------------------------------- gold


def test_the_error_rate_is_that_of_och_and_ney() -> None:
    one = Gold(frozenset({(0, 0)}), frozenset({(0, 0), (1, 1), (1, 2)}))
    two = Gold(frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 1)}))
    found = alignment_scores([([(0, 0), (1, 1), (2, 2)], one), ([(1, 1)], two)])
    # |A| = 4, |S| = 3, |A and S| = 2, |A and P| = 3
    assert found.precision == pytest.approx(3 / 4)
    assert found.recall == pytest.approx(2 / 3)
    assert found.aer == pytest.approx(1 - (2 + 3) / (4 + 3))
    assert str(found) == "precision 75.0, recall 66.7, AER 28.6"
    assert alignment_scores([([(0, 0), (1, 2)], one)]).aer == 0.0  # all sure, none impossible


def test_gold_links_tell_themselves_which_number_is_the_sources(tmp_path: Path) -> None:
    path = tmp_path / "gold.talp"
    path.write_text("1-2 2p3\n1-1\n")
    src, tgt = ["a b c", "a"], ["x y", "x"]
    expected = Gold(frozenset({(1, 0)}), frozenset({(1, 0), (2, 1)}))
    assert read_gold(path, src, tgt)[0] == expected
    path.write_text("2-1 3p2\n1-1\n")
    assert read_gold(path, src, tgt)[0] == expected
    for content, words in (
        ("1-2\n1:1\n", "line 2: '1:1' is no link: 1-2"),
        ("0-1\n1-1\n", "line 1: '0-1' is no link"),
        (f"{'9' * 5000}-1\n1-1\n", "is no link"),
        ("1-2\n1-4\n", "line 2: a link to a word that its sentence lacks"),
        ("1-2\n1-1\n", "both orders of the numbers fit the words; give more pairs"),
        ("1-2\n", "1 lines of links for 2 sentence pairs"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=words):
            read_gold(path, src, tgt)


@pytest.mark.skipif(not HANSARDS.is_dir(), reason="no data beside the code")
def test_the_hansards_have_as_many_links_as_published() -> None:
    fr, en = ((HANSARDS / f"test.{side}").read_text("utf-8").splitlines() for side in ("fr", "en"))
    gold = read_gold(HANSARDS / "gold.talp", fr, en)
    assert sum(len(each.sure) for each in gold) == 4038
    assert sum(len(each.possible - each.sure) for each in gold) == 13400


def test_the_best_heads_are_those_of_the_lowest_error() -> None:
    """Of layer 2 the heads 2 and 3 are each wrong about one word, and together about none."""
    right, wrong = np.eye(3), np.roll(np.eye(3), 1, axis=0)
    produced = np.stack([np.stack([wrong] * 3), np.stack([wrong, right, right])])
    produced[1, 1, 0], produced[1, 2, 1] = 0.6 * wrong[0], 0.6 * wrong[1]
    links, rolled = frozenset((i, i) for i in range(3)), np.roll(produced, 1, axis=2)
    for of_words, read, best in (
        (produced[:, 1:], rolled[:, 1:], "2:1,2"),  # all of a layer
        (rolled, produced, "shift:2:2,3"),  # of the word that is read
        (produced, rolled, "2:2,3"),
    ):
        attention = WordAttention(list("abc"), list("xyz"), of_words, read)
        pairs = GoldPairs([attention], [Gold(links, links)])
        assert str(pairs.best()) == best
    assert pairs.scores(pairs.best()).aer == 0
    assert pairs.scores(HeadChoice(2, (2,))).aer == pytest.approx(1 / 3)
    assert HeadChoice.parse("shift:2:1,3") == HeadChoice(2, (1, 3), shift=True)
    assert pairs.by_layer().splitlines()[2].startswith("| 1 | 0.0 | 0.0 | 100.0 |")


# ------------------------------------------------------------------------------------------ scripts


def test_inference_writes_links_behind_a_tab_in_json_and_under_the_blocks(
    trained_run: Path, translator: Translator, in_process: Any
) -> None:
    infer = in_process(inference.main)
    plain = ("--model_path", trained_run, "--device", "cpu", "--search", "greedy")
    args = (*plain, "--align", "--align_with", "1:2")
    text, source = "Le chat dort.", b"Le chat dort.\n\nIl y a un livre.\n"
    lines = infer(*args, stdin=source).out.splitlines()
    assert [line.split("\t")[0] for line in lines] == infer(*plain, stdin=source).out.splitlines()
    best = lines[0].split("\t")[0]
    expected = translator.align(text, best, HeadChoice(1, (2,)))
    assert lines[0] == f"{best}\t{expected.pharaoh()}"
    assert lines[1] == "\t"
    [item] = map(json.loads, infer(*args, "--json", "--src_text", text).out.splitlines())
    assert item["alignment"] == expected.pharaoh()
    shown = infer(*args, "--src_text", text).out.splitlines()
    words = " ".join(f"{s}-{t}" for s, t in expected.pairs)
    assert shown[-3:] == ["=== word alignment of the best ===", expected.pharaoh(), words]


def test_test_reports_the_error_by_layer_and_chooses_heads_on_the_first_pairs(
    trained_run: Path, tmp_path: Path, in_process: Any
) -> None:
    french = ["Le chat dort.", "Oui.", "Il y a un livre.", "Le chien dort."] * 2
    english = ["The cat sleeps now.", "Yes.", "There is a book.", "The dog sleeps."] * 2
    links = ["1-1 2-2 3-3 4p3", "1-1", "1-2 2-3 3-4 4-5", "1-1 2-2 3-3"] * 2  # English first
    for suffix, lines in (("fr", french), ("en", english), ("talp", links)):
        (tmp_path / f"test.{suffix}").write_text("".join(f"{line}\n" for line in lines))
    args = ["--align", tmp_path / "test.talp", "--model_path", trained_run, "--device", "cpu"]
    score = in_process(test_script.main)
    done = score(*args, "--align_dev", "4")
    assert (done.code, done.err) == (0, "")
    *_, given, chosen, rest = done.out.splitlines()
    assert "test.talp, 8 pairs, mean of all heads:\n| layer |" in done.out
    assert given.startswith("--align_with (default): precision ")
    # The last four pairs are the first four.
    assert chosen.partition(": precision")[2] == rest.partition(": precision")[2]
    choice = chosen.split("--align_with ")[1].partition(": p")[0]
    again = score(*args, "--align_with", choice)
    assert again.out.splitlines()[-1] == chosen.partition("pairs: ")[2]


def test_a_word_that_little_attention_reaches_has_no_link_of_its_own() -> None:
    weights = np.array([[0.5, 0.01], [0.45, 0.0]])[None, None]
    found = WordAttention(["a", "b"], ["x", "y"], weights, weights)
    assert found.aligned(HeadChoice()).pharaoh() == "0-0 0-1"


def test_heads_are_counted_from_the_end_by_negative_numbers() -> None:
    weights = np.stack([np.eye(2), np.eye(2)[::-1]])[None]
    found = WordAttention(["a", "b"], ["x", "y"], weights, weights)
    first, second, last = (found.aligned(HeadChoice(1, (head,))) for head in (1, 2, -1))
    assert last == second != first
