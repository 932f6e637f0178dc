"""Lines of several sentences, each of which is translated by itself."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from made_runs import Scripts, scripted

import inference
from translation.answers import Candidate
from translation.sentences import join_candidates, lower_capitals, split_sentences
from translation.translator import Translator
from utils.lines import as_line

infer = scripted(inference.main)


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("fr", ["M. Dupont est là.", "Il dit : « Oui. Ça va ? »", "Puis il part… enfin !", "Bon."]),
        ("fr", ["Il part…", "Enfin !", "Quoi ?…", "À 14 h.", "Ou à 2 m.", "II. Un.", "P. 5."]),
        ("fr", ["1. Un.", "2. Deux.", "L'art. 5 et l'al. 3 de J. R. Roy.", "Salut !", "Ça va ?"]),
        ("fr", ["M. J.-P. Roy est né en 4 av. J.-C. à Rome.", "En 5 Av J.-C.", "« Il dort. »"]),
        ("fr", ["J.-C. Roy aime les É.-U. depuis peu.", "Il vit aux É.-U.", "– Oui ?", "-Non."]),
        ("fra", ["Voir l'art. 5 du code.", "Le Dr. Roy aime St. Louis."]),
        ("en", ["Mr. Ho left for Washington D.C. yesterday.", "See Fig. 3.", "No. 5 is alive."]),
        ("pl", ["Wagon nr. 5 jest pusty.", "To nr.", "Tak."]),  # ends a sentence, but for a digit
        ("de", ["Am 3. Mai kam Dr. Roth.", "Er ging z. B. heim."]),
        ("fr", ["Le vol de J\u00a0. Il est 15\u202fh\u202f30.", "Bon. 😀"]),
        ("zh_CN", ["你好。", "今天天气很好！"]),
        ("nowhere", ["One.", "Two?"]),
        ("fr", ["Sans point"]),
        ("fr", [""]),
        ("fr", ["No Unicode: \ud800. It is told later."]),
    ],
)
def test_a_line_is_cut_between_sentences_alone(language: str, sentences: list[str]) -> None:
    between = "" if language == "zh_CN" else "  "
    assert split_sentences(between.join(sentences), language) == sentences


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text("aDM.?!12 \u00a0\u202f\u2028\x85\n\t«»“\"'’()[]。…-é\u3000😀\u0301*•"))
def test_no_text_is_lost(text: str) -> None:
    for language in ("fr", "zh"):
        found = split_sentences(text, language)
        assert "".join("".join(found).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "lowered"),
    [
        ("« L'ÉTÉ À PARIS, EN 2024 »", "« L'été à paris, en 2024 »"),
        ("100 M² AU Nº 5. (M. ROY ?) ÇA VA", "100 m² au nº 5. (M. Roy ?) Ça va"),
        ("L'ONU ET l'UE", None),  # l
        ("OTAN B-52", "Otan b-52"),
        ("OTAN 52", None),  # four letters
        ("我爱 USA", None),  # letters that have no case
        ("CʼHOAR HA ʻŌ", "Cʼhoar ha ʻō"),  # these two do not count
        ("", None),
    ],
)
def test_only_a_text_all_in_capitals_is_lowered(text: str, lowered: str | None) -> None:
    assert lower_capitals(text) == (text if lowered is None else lowered)


def test_a_sentence_in_capitals_is_translated_as_if_it_were_not(
    infer: Scripts, trained_run: Path, translator: Translator
) -> None:
    line = "LE CHAT DORT. Le chien mange."
    both = translator.translate(["Le chat dort.", "Le chien mange."])
    shouted, said = (as_line(each.text).strip() for each in both)
    text = ("--model_path", trained_run, "--search", "beam", "--src_text")
    found = json.loads(infer(*text, line, "--split_sentences", "--json").out)
    assert shouted != shouted.upper()
    assert found["beam"][0]["text"] == f"{shouted.upper()} {said}"
    told = "warning: lines in capitals: 1 (--src_text number 1); "
    told += "--split_sentences translates them as if they were not\n"
    ended = infer(*text, "LE CHAT", "--src_text", "Le CHAT", "--json")
    assert ended.err == told
    aligned = infer(*text, "LE CHAT", "--align").err
    assert aligned == told.replace("sentences ", "sentences (without --align) ")
    as_it_is = translator.translate("LE CHAT").text
    assert json.loads(ended.out.splitlines()[0])["beam"][0]["text"] == as_it_is


def test_the_translations_of_sentences_are_joined_by_rank() -> None:
    one, two, cut = (Candidate(text, -n, -2 * n, n < 3) for n, text in enumerate("abc", start=1))
    assert join_candidates([[one, two]], "en") == [one, two]
    assert join_candidates([[one, two], [cut]], "en") == [Candidate("a c", -4, -8, False)]
    joined = join_candidates([[one, two], [two, one]], "ja")
    assert joined == [Candidate("ab", -3, -6, True), Candidate("ba", -3, -6, True)]


def test_each_sentence_of_a_line_has_the_translation_that_it_has_alone(
    infer: Scripts, trained_run: Path, translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "CHUNK", 2)
    lines = ["Le chat dort. Le chien mange.", "", "\t– Le chat noir dort."]
    source = "".join(f"{line}\n" for line in lines).encode()
    parts = [
        translator.translate(text) for text in ("Le chat dort.", "Le chien mange.", lines[2][3:])
    ]
    first, second, third = (as_line(each.text) for each in parts)
    args = ("--model_path", trained_run, "--split_sentences")
    ended = infer(*args, stdin=source)
    assert (ended.out, ended.err) == (f"{first} {second}\n\n\t– {third}\n", "")
    found = [json.loads(line) for line in infer(*args, "--json", stdin=source).out.splitlines()]
    assert [each["src"] for each in found] == lines
    for rank, each in enumerate(found[0]["beam"]):
        ranked = [part.hypotheses[rank] for part in parts[:2]]
        texts = [hypothesis.text.strip() for hypothesis in ranked]
        assert each["text"] == " ".join(text for text in texts if text)
        assert each["score"] == pytest.approx(sum(hypothesis.score for hypothesis in ranked))
    assert infer(*args, "--align").error() == (
        "--align is of no use with --split_sentences: leave it out"
    )


def test_a_translation_of_fewer_sentences_is_told(
    infer: Scripts, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ("--model_path", trained_run, "--search", "greedy", "--src_text")
    many = {"Le chat dort. Le chien mange.": 2}  # and one in any translation
    count = "translation.sentences.split_sentences"
    monkeypatch.setattr(count, lambda line, language: [line] * many.get(line, 1))
    told = "warning: lines of several sentences with fewer in the translation: 1 (--src_text "
    told += "number 1); --split_sentences translates each sentence by itself"
    for lines, expected in ((["Le chat dort."], []), ([*many, "--src_text", "Oui."], [told])):
        said = infer(*text, *lines).err.splitlines()
        assert [line for line in said if "translations cut off" not in line] == expected
