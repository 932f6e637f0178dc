"""Tokenizers: round trips, special ids, saving, and the trained ones' vocabularies."""

import copy
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
import unicodedata
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import local_hub
import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given, settings, strategies as st
from marian_files import ENGLISH, FRENCH
from tokenizers import Tokenizer

from configs.schema import Marian, Subword
from tokenizer.base import KIND_FILE, BaseTokenizer
from tokenizer.build import build_tokenizer, load_tokenizer
from tokenizer.marian import FrEnTokenizer
from tokenizer.subword import MIN_VOCAB_FOR_BYTES, SPECIALS, SubwordTokenizer
from utils.errors import UserError

REAL_MARIAN = ROOT.parent / "shared" / "data" / "marian-fr-en"
ALGORITHMS = ("bpe", "unigram")
TEXTS = FRENCH + ENGLISH
ORDINARY = [
    "L'homme âgé n'aime pas « Noël », ma sœur non plus.",
    "Où est l'œuvre d'AUJOURD'HUI ? ÇA, C'EST ÉTÉ À LA FENÊTRE !",
    "It's 10:45 (don't ask) – 3 1/2 ½ € 50 & co…",
    "deux  espaces, une\u00a0insécable\u202f! une\ttabulation",
]
UNSEEN = ["Привет, мир", "我喜欢苹果", "👩‍👩‍👧 😀😀 ok"]
UNSEEN += ["a\u0000b \u200b\ufeff", "x₂ ≤ ∞ 𝔘𝔫𝔦"]


@cache
def trained(algorithm: Any = "bpe", vocab_size: int = 800) -> SubwordTokenizer:
    return SubwordTokenizer.train(TEXTS, Subword(algorithm=algorithm, vocab_size=vocab_size))


@pytest.fixture(scope="module")
def marian(marian_folder: Path) -> FrEnTokenizer:
    return FrEnTokenizer.from_pretrained(str(marian_folder), src_lang="fr", tgt_lang="en")


@pytest.fixture(scope="module", params=ALGORITHMS)
def subword(request) -> SubwordTokenizer:
    return trained(request.param)


@pytest.fixture(scope="module", params=[*ALGORITHMS, "marian"])
def any_tokenizer(request, marian) -> BaseTokenizer:
    return marian if request.param == "marian" else trained(request.param)


# ------------------------------------------------------------------------ what every tokenizer does


def test_sentences_end_in_eos_once_and_have_no_start_id(any_tokenizer):
    t, texts = any_tokenizer, ["", *TEXTS[:20], "</s>"]
    for batch, single in ((t.encode_src_batch, t.encode_src), (t.encode_tgt_batch, t.encode_tgt)):
        encoded = batch(texts)
        assert encoded == [single(text) for text in texts]
        assert encoded[0] == [t.eos_id]
        for ids in encoded:
            assert ids[-1] == t.eos_id
            assert not {t.pad_id, t.bos_id, t.eos_id} & set(ids[:-1])
            assert all(0 <= i < t.src_vocab_size for i in ids)
    assert t.encode_src_batch([]) == t.encode_tgt_batch([]) == t.decode_batch([]) == []
    assert t.decode([]) == t.decode([t.eos_id]) == ""


def test_special_pieces_written_in_the_text_are_plain_text(any_tokenizer):
    t = any_tokenizer
    texts = "<s>|</s>|a </s> b|<pad><pad>|x<unk>y|</s><s><pad>|<0x41>|▁</s>".split("|")
    for ids in (*t.encode_src_batch(texts), *t.encode_tgt_batch(texts)):
        assert len(ids) > 2
        assert not {t.pad_id, t.bos_id, t.eos_id} & set(ids[:-1])
    assert copy.deepcopy(t).encode_src_batch(texts) == t.encode_src_batch(texts)


def test_decoding_stops_at_the_first_eos_and_leaves_special_ids_out(any_tokenizer):
    t = any_tokenizer
    ids = t.encode_tgt("The boy watches the house.")
    padded = [t.bos_id, *ids, *t.encode_tgt("It has found that."), t.pad_id, t.pad_id]
    assert t.decode_batch([padded, ids[:-1]]) == ["The boy watches the house."] * 2


def test_pieces_are_one_readable_string_for_each_id(any_tokenizer):
    for side, text in (("src", "Ma sœur préfère la maison."), ("tgt", "The boy has found it.")):
        ids = getattr(any_tokenizer, f"encode_{side}")(text)
        pieces = getattr(any_tokenizer, f"{side}_pieces")(ids)
        assert len(pieces) == len(ids)
        assert "".join(pieces) == "▁" + text.replace(" ", "▁") + "</s>"


def test_text_that_is_not_unicode_is_refused(any_tokenizer):
    words = r"not valid Unicode: 'caf\\udce9'; give the input as UTF-8"
    for encode in (any_tokenizer.encode_src, any_tokenizer.encode_tgt):
        with pytest.raises(UserError, match=words):
            encode(b"caf\xe9".decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("text", ["a", "l'homme ", "😀", "."])
def test_very_long_text_is_quick_and_not_cut(any_tokenizer, text):
    text *= 10**5 // len(text)
    start = time.perf_counter()
    ids = any_tokenizer.encode_src(text)
    decoded = any_tokenizer.decode(ids)
    assert time.perf_counter() - start < 5
    if any_tokenizer.unk_id not in ids:
        assert decoded == text.strip()


def test_saved_and_loaded_gives_the_same_ids(any_tokenizer, tmp_path):
    any_tokenizer.save(tmp_path / "t")
    any_tokenizer.save(tmp_path / "t")  # again, over the first
    loaded = load_tokenizer(tmp_path / "t")
    assert type(loaded) is type(any_tokenizer)
    assert loaded.fingerprint() == any_tokenizer.fingerprint()
    texts = [*TEXTS[::50], *ORDINARY, *UNSEEN, "</s> <pad>"]
    assert loaded.encode_src_batch(texts) == any_tokenizer.encode_src_batch(texts)
    assert loaded.encode_tgt_batch(texts) == any_tokenizer.encode_tgt_batch(texts)
    assert not list((tmp_path / "t").glob("*.tmp"))


# --------------------------------------------------------------------------------- trained subwords


@pytest.mark.parametrize("text", ORDINARY + UNSEEN)
def test_subwords_round_trip(subword, text):
    ids = subword.encode_src(text)
    assert subword.decode(ids) == text
    assert subword.unk_id not in ids


FRENCH_LETTERS = "abcdefghilmnopqrstuvxyzéèêëàâçîïôùûüœæÉÀÇŒ"
FRENCH_LETTERS += "'’-.,;:!?«»()0123456789%€ "
ANY_LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="▁")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(text=st.text(st.one_of(st.sampled_from(FRENCH_LETTERS), ANY_LETTERS)))
def test_subwords_round_trip_any_unicode_in_nfc(subword, text):
    text = unicodedata.normalize("NFC", text).strip()
    if unicodedata.normalize("NFC", text) == text:
        ids = subword.encode_src(text)
        assert subword.decode(ids) == text
        assert subword.encode_src(unicodedata.normalize("NFD", text)) == ids


def test_punctuation_digits_and_elisions_are_cut_off(subword):
    def pieces(text):
        return subword.src_pieces(subword.encode_src(text))[:-1]

    assert pieces("la maison.") == [*pieces("la maison"), "."]
    assert pieces("la maison !") == [*pieces("la maison"), "▁!"]
    assert "".join(pieces("l'arbre")).startswith("▁l'")
    assert not any("'" in piece[:-1] for text in TEXTS for piece in pieces(text))
    digits = pieces("1999")
    assert sum(any(c.isdigit() for c in piece) or piece.startswith("<0x3") for piece in digits) == 4


def test_special_ids_are_those_of_their_pieces(subword):
    ids = [subword.pad_id, subword.bos_id, subword.eos_id, subword.unk_id]
    assert tuple(subword.src_pieces(ids)) == SPECIALS
    assert subword.shared_vocab
    assert subword.src_vocab_size == subword.tgt_vocab_size


def test_no_order_of_ids_is_assumed():
    """A vocabulary with the special pieces last, eos before pad: as it may come from elsewhere."""
    usual = trained("bpe", 200)
    data = json.loads(usual.files()["tokenizer.json"])
    pieces = [piece for piece in data["model"]["vocab"] if piece not in SPECIALS]
    order = [*pieces, "</s>", "<unk>", "<s>", "<pad>"]
    data["model"]["vocab"] = {piece: i for i, piece in enumerate(order)}
    for token in data["added_tokens"]:
        token["id"] = order.index(token["content"])
    data["post_processor"]["special_tokens"]["</s>"]["ids"] = [order.index("</s>")]
    moved = SubwordTokenizer(Tokenizer.from_str(json.dumps(data)))
    assert (moved.eos_id, moved.pad_id) == (len(order) - 4, len(order) - 1)
    text = "Le garçon n'aime pas la maison."
    assert moved.src_pieces(moved.encode_src(text)) == usual.src_pieces(usual.encode_src(text))
    assert moved.decode([moved.bos_id, *moved.encode_src(text), 0, moved.pad_id]) == text
    assert moved.decode([0]) == order[0].replace("▁", " ").strip()  # a piece like others


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "vocab_size", [64, 120, MIN_VOCAB_FOR_BYTES - 1, MIN_VOCAB_FOR_BYTES, 32_000]
)
def test_the_vocabulary_never_exceeds_its_size_and_says_where_it_stays_below(
    algorithm, vocab_size, caplog
):
    caplog.set_level("INFO", logger="tokenizer.subword")
    t = trained.__wrapped__(algorithm, vocab_size)
    found = t.src_vocab_size
    assert found <= vocab_size
    assert found == vocab_size or vocab_size > 120 or algorithm == "unigram"
    assert found < 1000
    used = {i for ids in t.encode_src_batch(TEXTS) for i in ids}
    assert max(used) < found == len(set(t.src_pieces(range(found))))
    said = f"vocab_size = {vocab_size:,}, but the text gives no more than {found} pieces"
    assert (said in caplog.text) == (found < vocab_size)
    if vocab_size == 32_000:
        nfc = [unicodedata.normalize("NFC", text) for text in TEXTS]
        assert t.decode_batch(t.encode_src_batch(TEXTS)) == nfc


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_small_vocabulary_has_unk_in_place_of_bytes(algorithm):
    t = trained(algorithm, MIN_VOCAB_FOR_BYTES - 1)
    assert t.unk_id in t.encode_src("The 😀 boy")
    assert t.decode(t.encode_src("The 😀 boy")).split() == ["The", "boy"]
    assert t.decode(t.encode_src(TEXTS[0])) == TEXTS[0]
    assert not any(piece.startswith("<0x") for piece in t.src_pieces(range(t.src_vocab_size)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_characters_take_half_of_a_small_vocabulary_at_most(algorithm):
    texts = ["the cat sees the dog"] * 20 + [" ".join(map(chr, range(0x400, 0x450)))] * 15
    t = SubwordTokenizer.train(texts, Subword(algorithm=algorithm, vocab_size=64))
    pieces = t.src_pieces(range(4, t.src_vocab_size))
    assert sum(len(piece) == 1 for piece in pieces) <= 30
    assert "▁the" in pieces


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_curly_quotes_are_straight_ones_where_it_is_asked_for(algorithm, tmp_path):
    curly = ["L’eau “bleue”, l‘été „d’or“.", "The ʼcat‚ isn’t « there »."]
    straight = ['L\'eau "bleue", l\'été "d\'or".', "The 'cat' isn't « there »."]
    config = Subword(algorithm=algorithm, vocab_size=MIN_VOCAB_FOR_BYTES, quotes="straight")
    t, same = (SubwordTokenizer.train([*TEXTS, *more], config) for more in (curly, straight))
    assert t.fingerprint() == same.fingerprint()
    t.save(tmp_path)
    for each in (t, load_tokenizer(tmp_path)):
        assert each.encode_src_batch(curly) == each.encode_src_batch(straight)
        assert each.decode_batch(each.encode_src_batch(curly)) == straight
    sampled = t.sampler(0.2)(curly[0], np.random.default_rng(0))
    assert t.decode(sampled) == straight[0]
    kept = SubwordTokenizer.train([*TEXTS, *curly], replace(config, quotes="keep"))
    assert kept.decode_batch(kept.encode_src_batch(curly)) == curly


def test_symbols_take_a_quarter_of_the_vocabulary_at_most() -> None:
    few, many = (tuple(f"<{n}>" for n in range(most)) for most in (16, 17))
    Subword(vocab_size=64, symbols=few)
    with pytest.raises(UserError, match="each once, and no more than a quarter of"):
        Subword(vocab_size=64, symbols=many)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_symbol_is_one_piece_wherever_it_stands(algorithm, tmp_path):
    symbols = "<2n", "<2en>", "⟦1", "⟦1⟧", "%s", "+*", "chat"
    config = Subword(algorithm=algorithm, vocab_size=800, symbols=symbols)
    learned = SubwordTokenizer.train([*TEXTS, *["⟦1⟧ homme%s chatons"] * 100], config)
    learned.save(tmp_path)
    text = "<2en> Le chat, ⟦1⟧homme⟦1 %s l'%s+*<2n⟦12<2"
    pieces = ["<2en>", "chat", "⟦1⟧", "⟦1", "%s", "%s", "+*", "<2n", "⟦1"]
    [ids] = learned.encode_src_batch([text])
    drawn = [learned.sampler(0.3)(text, np.random.default_rng(n)) for n in range(9)]
    assert any(each != ids for each in drawn)
    for each in (ids, *drawn):
        assert [piece for piece in learned.src_pieces(each) if piece in symbols] == pieces
        assert learned.decode(each) == text
    vocabulary = learned.src_pieces(range(learned.src_vocab_size))
    assert len(set(vocabulary)) == learned.src_vocab_size
    assert [piece for piece in vocabulary if any(s in piece for s in symbols)] == [*symbols]
    again = load_tokenizer(tmp_path)
    assert again.encode_src_batch([text]) == [ids]
    assert again.sampler(0.3)(text, np.random.default_rng(0)) == drawn[0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_rare_character_earns_no_piece(algorithm, monkeypatch):
    def with_piece(t):
        return any("ù" in piece for piece in t.src_pieces(range(t.src_vocab_size)))

    assert with_piece(trained(algorithm))
    monkeypatch.setattr("tokenizer.subword.RARE_CHARACTER", 100)
    t = trained.__wrapped__(algorithm, 800)
    assert not with_piece(t)
    assert t.decode(t.encode_src("où")) == "où"


def test_broken_bytes_from_a_model_decode_to_something(subword):
    assert "�" in subword.decode(subword.encode_src("😀")[:2])


def test_another_process_trains_and_loads_the_same_without_heavy_packages(tmp_path):
    trained().save(tmp_path)
    script = f"""
import sys
from pathlib import Path
from configs.schema import Subword
from tests.marian_files import ENGLISH, FRENCH
from tokenizer.build import load_tokenizer
from tokenizer.subword import SubwordTokenizer
for algorithm in {ALGORITHMS}:
    config = Subword(algorithm=algorithm, vocab_size=800)
    print(SubwordTokenizer.train(iter(FRENCH + ENGLISH), config).fingerprint())
t = load_tokenizer(Path({str(tmp_path)!r}))
print(t.fingerprint(), t.decode(t.encode_src("ça")))
print(*{{"transformers", "huggingface_hub", "sentencepiece", "torch"}} & set(sys.modules))
"""
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    bpe, unigram = (trained(algorithm).fingerprint() for algorithm in ALGORITHMS)
    assert run.stdout == f"{bpe}\n{unigram}\n{bpe} ça\n\n"


def test_the_fingerprint_tells_vocabularies_apart():
    others = SubwordTokenizer.train(FRENCH, Subword(vocab_size=100))
    tokenizers = [trained("bpe", 100), trained("bpe", 120), trained("unigram", 120), others]
    assert len({t.fingerprint() for t in tokenizers}) == len(tokenizers)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_letter_is_enough_to_train_and_nothing_is_not(algorithm):
    for text in ("a", "a " * 5_000):
        t = SubwordTokenizer.train([text], Subword(algorithm=algorithm))
        assert t.decode(t.encode_src("a b é")) == "a b é"
    words = "no text to train the tokenizer on: .* no line of 1 to 10,000 characters"
    for texts in ([], [""], ["", " "], ["a" * 10_001]):
        with pytest.raises(UserError, match=words):
            SubwordTokenizer.train(texts, Subword(algorithm=algorithm))


def test_transformers_loads_the_saved_folder_with_the_same_ids(subword, tmp_path):
    from transformers import AutoTokenizer

    subword.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    texts = [*TEXTS[::40], *ORDINARY, *UNSEEN, "a </s> <pad> b"]
    texts += map("".join, itertools.product("a ▁\u0301'", repeat=5))  # words begin anywhere
    assert theirs(texts)["input_ids"] == subword.encode_src_batch(texts)
    for name in ("pad", "bos", "eos", "unk"):
        assert getattr(theirs, f"{name}_token_id") == getattr(subword, f"{name}_id")
    assert theirs.decode(subword.encode_src(ORDINARY[0]), skip_special_tokens=True) == ORDINARY[0]


# ------------------------------------------------------------------------------------------- Marian


@pytest.mark.parametrize("which", ["small", "real"])
@pytest.mark.filterwarnings("ignore:.*sacremoses")
def test_marian_gives_ids_and_text_as_sentencepiece_and_transformers_do(which, marian_folder):
    import sentencepiece
    import transformers

    folder = REAL_MARIAN if which == "real" else marian_folder
    if not folder.is_dir():
        pytest.skip("no real opus-mt files at hand; the small ones are tested")
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    eos, unk, size = (43311, 50387, 53017) if which == "real" else (0, 1, len(vocab))
    t = FrEnTokenizer.from_pretrained(str(folder), src_lang="fr", tgt_lang="en")
    theirs = transformers.MarianTokenizer.from_pretrained(str(folder))
    assert (t.eos_id, t.unk_id, t.src_vocab_size, t.shared_vocab) == (eos, unk, size, True)
    assert t.pad_id == theirs.pad_token_id == t.bos_id == size - 1  # decoding starts from padding
    assert t.src_pieces([eos, unk, size - 1]) == ["</s>", "<unk>", "<pad>"]
    texts = ["L'homme mange une pomme.", "The man eats an apple's core .", "Je 日"]
    sides = ("source", "text", t.encode_src), ("target", "text_target", t.encode_tgt)
    for name, keyword, encode in sides:
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        for text in texts:
            ids = encode(text)
            pieces = [*model.encode(text, out_type=str), "</s>"]
            assert ids == [vocab.get(piece, unk) for piece in pieces]
            assert ids == theirs(**{keyword: text})["input_ids"]
            assert t.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
            quoted = f">>{text}<< {text}"  # no language: transformers leaves the first text out
            pieces = [*model.encode(quoted, out_type=str), "</s>"]
            assert encode(quoted) == [vocab.get(piece, unk) for piece in pieces]
    assert t.decode(t.encode_tgt(texts[1])) == texts[1]  # nothing tidied
    assert eos not in t.encode_src("a </s> b")[:-1]
    with mock.patch.dict(t._marian.encoder, {">>fr<<": 9}):  # of a model that knows languages
        assert t.encode_src(f">>fr<< {texts[0]}") == [9, *t.encode_src(texts[0])]


def test_a_sentencepiece_model_alone_is_no_tokenizer_and_the_way_is_told(marian_folder):
    config = Marian(name_or_path=str(marian_folder / "source.spm"))
    with pytest.raises(UserError, match=r"spm': name a folder; docs/usage\.md makes one"):
        build_tokenizer(config, list, src_lang="fr", tgt_lang="en")


def test_marian_of_another_direction_is_refused(marian_folder):
    config = Marian(name_or_path=str(marian_folder))
    with pytest.raises(UserError, match="is for fr -> en, the data is en -> fr"):
        build_tokenizer(config, list, src_lang="en", tgt_lang="fr")
    t = FrEnTokenizer(marian_folder)
    t.src_lang, t.tgt_lang = "roa", "gmw"  # groups are not compared with languages
    for groups in (("en", "fr"), ("ast", "nds")):
        t.require_direction(*groups, name="it")
    with pytest.raises(UserError, match=r"^it is for roa -> gmw, the data is gmw -> roa"):
        t.require_direction("gmw", "roa", name="it")
    for same in ("fr", None):  # paraphrases; no language is named
        t.src_lang = t.tgt_lang = same
        t.require_direction(same, same, name="it")


@pytest.mark.parametrize(
    ("name", "edit", "words"),
    [
        ("source.spm", None, r"lacks source\.spm$"),
        ("target.spm", lambda raw: b"not a model", "cannot read the Marian tokenizer"),
        ("vocab.json", lambda raw: raw.replace(b"<pad>", b"<p>"), "has no pad piece"),
        ("vocab.json", lambda raw: raw.replace(b": 9,", b": 99,"), "must have the ids from 0"),
        (
            "tokenizer_config.json",
            lambda raw: b'{"added_tokens_decoder": {"999": {"content": "<x>"}}}',
            r"^tokenizer\.name_or_path = .*tokens were added .* \(<x>\): give it without",
        ),
    ],
)
def test_a_file_of_marian_that_is_missing_or_damaged_is_named(
    marian_folder, tmp_path, name, edit, words
):
    path = shutil.copytree(marian_folder, tmp_path / "copy") / name
    content = path.read_bytes()
    path.unlink()
    if edit:
        path.write_bytes(edit(content))
    with pytest.raises(UserError, match=words) as caught:
        FrEnTokenizer.from_pretrained(str(tmp_path / "copy"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "../no/such/folder",
        "/no/such/folder",
        "a/b/c",
        "",
        ".",
        "a/",
        "é/b",
        "a/b--c",
        "a/b.",
        "a..b",
    ],
)
def test_a_path_that_is_no_folder_is_not_looked_for_on_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tokenizer.marian.fetch", None)
    with pytest.raises(UserError):
        FrEnTokenizer.from_pretrained(name)


def test_without_network_and_cache_one_line_names_the_remedy(tmp_path, monkeypatch, caplog):
    closed = "http://127.0.0.1:9"  # refuses at once, whatever network the machine has
    local_hub.ask(monkeypatch, closed, tmp_path)
    words = (
        "the tokenizer some/model is not in the hub's cache .*--set tokenizer.name_or_path=FOLDER"
    )
    with pytest.raises(UserError, match=words) as caught:
        FrEnTokenizer.from_pretrained("some/model")
    assert "\n" not in str(caught.value)
    told = f"fetching the tokenizer some/model from the Hugging Face hub ({closed}), once"
    assert ("WARNING", told) in [(each.levelname, each.message) for each in caplog.records]


def test_a_tokenizer_of_the_hub_is_fetched_once(marian_folder, tmp_path, monkeypatch):
    files = {path.name: path.read_bytes() for path in marian_folder.iterdir()} | {"model.bin": b""}
    with local_hub.serve("models/some/model", files) as (endpoint, asked):
        local_hub.ask(monkeypatch, endpoint, tmp_path)
        assert FrEnTokenizer.from_pretrained("some/model").eos_id == 0
        assert not any("model.bin" in path for path in asked)
    assert FrEnTokenizer.from_pretrained("some/model").eos_id == 0  # the server is gone


def test_a_saved_marian_needs_its_source_folder_no_more(marian, marian_folder, tmp_path):
    source = shutil.copytree(marian_folder, tmp_path / "source")
    tokenizer = FrEnTokenizer.from_pretrained(str(source))
    shutil.rmtree(source)
    tokenizer.save(tmp_path / "saved")
    loaded = load_tokenizer(tmp_path / "saved")
    assert loaded.encode_src("Le garçon") == marian.encode_src("Le garçon")


# ----------------------------------------------------------------------------------- build and load


def test_a_pretrained_tokenizer_is_built_without_texts(marian_folder):
    def never():
        raise AssertionError

    config = Marian(name_or_path=str(marian_folder))
    built = build_tokenizer(config, never, src_lang="fr", tgt_lang="en")
    assert isinstance(built, FrEnTokenizer)


KIND, MODEL = KIND_FILE, "tokenizer.json"


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"z\xff")
    trained("bpe", 100).save(folder)
    assert load_tokenizer(folder).fingerprint() == trained("bpe", 100).fingerprint()


@pytest.mark.parametrize(
    ("name", "edit", "words"),
    [
        (KIND, None, f"incomplete: {KIND_FILE}"),
        (KIND, lambda text: "[]", f"incomplete: {KIND_FILE}"),
        (KIND, lambda text: text.replace("subword", "words"), "of kind 'words': known"),
        (MODEL, None, "cannot read the tokenizer"),
        (MODEL, lambda text: text[:1000], "cannot read the tokenizer"),
        (MODEL, lambda text: text.replace('"</s>"', '"</t>"'), "no </s> piece"),
        (MODEL, lambda text: text.replace("NFC", "NFD"), "were changed after it was saved"),
    ],
)
def test_a_missing_damaged_or_changed_tokenizer_is_named(tmp_path, name, edit, words):
    with pytest.raises(UserError, match="no tokenizer folder"):
        load_tokenizer(tmp_path / "saved")
    trained("bpe", 100).save(tmp_path / "saved")
    path = tmp_path / "saved" / name
    content = path.read_text("utf-8")
    path.unlink()
    if edit:
        path.write_text(edit(content), "utf-8")
    with pytest.raises(UserError, match=words):
        load_tokenizer(tmp_path / "saved")


def test_a_save_that_stops_half_way_counts_as_incomplete(marian, tmp_path):
    marian.save(tmp_path)
    (tmp_path / "target.spm").unlink()
    (tmp_path / "target.spm").mkdir()  # cannot be written over
    with pytest.raises(UserError, match=r"target\.spm"):
        marian.save(tmp_path)
    with pytest.raises(UserError, match="incomplete"):
        load_tokenizer(tmp_path)
