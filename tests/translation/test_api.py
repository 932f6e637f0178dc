"""`from fr2en import Translator`: what Python users get, and that it is what the scripts get."""

import dataclasses
import importlib.util
import json
import math
import pickle
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import ROOT, run_script

import fr2en
from configs.schema import Beam, DiverseBeam, Sampling
from fr2en import HeadChoice, Translator, UserError
from models.decoding.hypothesis import length_penalty
from tokenizer.marian import FrEnTokenizer

TEXTS = ["Le chat dort.", "Il y a un livre sur la table.", "", "Oui.", "Le chien voit le chat."]


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> Translator:
    return Translator.load(trained_run, device="cpu", dtype="float64")


# -------------------------------------------------------------------------------------- translating


def test_a_translation_is_its_best_hypothesis_with_all_that_were_found(
    translator: Translator,
) -> None:
    found = translator.translate("Le chat dort.", beam_size=4, n_best=3, length_penalty=0.8)
    best, *others = found.hypotheses
    assert len(others) == 2
    assert found.src == "Le chat dort."
    shared = ("text", "score", "log_prob", "finished", "tokens", "token_log_probs")
    assert [getattr(found, name) for name in shared] == [getattr(best, name) for name in shared]
    sent = found
    for _ in range(2):  # one that came from another process goes on to a third
        sent = pickle.loads(pickle.dumps(sent))
    assert sent == found
    plain = json.loads(json.dumps(dataclasses.asdict(sent)))
    assert [each["text"] for each in plain["hypotheses"]] == [h.text for h in found.hypotheses]
    assert sent.hypotheses[2].token_log_probs == others[1].token_log_probs
    for each in found.hypotheses:
        assert (each.tokens[-1] == "</s>") == each.finished
        assert math.fsum(each.token_log_probs) == pytest.approx(each.log_prob, abs=1e-9)
        penalty = length_penalty(torch.tensor(len(each.tokens)), 0.8).item()
        assert each.score == pytest.approx(each.log_prob / penalty, abs=1e-6)
        spelled = "".join(each.tokens).removesuffix("</s>").replace("▁", " ").strip()
        assert each.text == spelled


def test_a_list_has_its_order_and_the_settings_are_those_of_the_configuration_unless_told(
    translator: Translator,
) -> None:
    together = translator.translate(TEXTS, batch_size=2)
    assert [found.src for found in together] == TEXTS
    assert [len(found.hypotheses) for found in together] == [5, 5, 1, 5, 5]
    blank = together[2]
    assert (blank.text, blank.log_prob, blank.tokens, blank.finished) == ("", 0.0, [], True)
    assert blank.token_log_probs == []
    assert [found.text for found in together] == [translator.translate(t).text for t in TEXTS]
    greedy = [found.text for found in translator.translate(TEXTS, search="greedy")]
    beam_of_one = translator.translate(TEXTS, beam_size=1)
    assert greedy == [found.text for found in beam_of_one]
    assert len(translator.translate("Oui.", beam_size=7).hypotheses) == translator.decode.n_best
    samples = partial(translator.translate, "Oui.", n_best=9)
    drawn = [[h.text for h in samples(search=how).hypotheses] for how in ("sample", Sampling())]
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 9
    one_each = DiverseBeam(groups=translator.decode.beam_size)
    diverse = [translator.translate("Oui.", search=how) for how in ("diverse", one_each)]
    assert diverse[0] == diverse[1]
    sampling = replace(translator.decode, search=Sampling(seed=4), n_best=9)
    sampler = replace(translator, decode=sampling)
    assert len(sampler.translate("Oui.").hypotheses) == 9
    assert sampler.translate("Oui.", search="sample") == sampler.translate("Oui.")
    assert len(sampler.translate("Oui.", search="beam").hypotheses) == sampling.beam_size
    assert translator.translate([]) == []


def test_the_least_risk_is_found_among_all_however_many_are_asked_for(trained_run: Path) -> None:
    ranking = Translator.load(trained_run, device="cpu", overrides=["decode.mbr=chrf"])
    asked = [ranking.translate("Oui.", n_best=n).hypotheses for n in (None, 1, 3)]
    assert [len(each) for each in asked] == [5, 1, 3]
    assert [[h.score for h in each] for each in asked[1:]] == [
        [h.score for h in asked[0][:n]] for n in (1, 3)
    ]


@pytest.mark.parametrize("search", ["greedy", "beam", "diverse", "sample"])
def test_what_is_no_number_is_told(trained_run: Path, search: str) -> None:
    overflows = Translator.load(trained_run, device="cpu", dtype="float16")
    overflows.searcher.model.output.weight.data.fill_(65504)
    with pytest.raises(UserError, match="in float16 is not a number: try another precision"):
        overflows.translate("Oui.", search=search)
    with pytest.raises(UserError, match="in float16 is not a number: try another precision"):
        overflows.score("Oui.", "Yes.")


@pytest.mark.parametrize("search", [Beam(), DiverseBeam(), Sampling()])
@pytest.mark.parametrize("prefix", [None, ["We two", "", "We", " Yes,", ""]])
def test_the_scripts_stream_finds_the_same(
    translator: Translator, search: Any, prefix: list[str] | None
) -> None:
    translator = replace(translator, decode=replace(translator.decode, search=search))
    stream = translator.translate_stream(TEXTS, prefix, chunk=2, greedy=True)
    items = [item for chunk in stream for item in chunk]
    beam = translator.translate(TEXTS, prefix=prefix)
    lines: Any = iter(TEXTS)
    greedy = translator.translate(lines, search="greedy", prefix=prefix)
    for item, by_beam, by_greedy in zip(items, beam, greedy, strict=True):
        assert [h.text for h in item.beam] == [h.text for h in by_beam.hypotheses]
        assert item.greedy is not None
        assert item.greedy.text == by_greedy.text
    for found, begun in zip([*beam, *greedy], 2 * (prefix or [""] * 5), strict=True):
        assert found.text.startswith(begun.strip() if found.src else "")
        given = len(translator.tokenizer.encode_tgt(begun)) - 1
        follows = math.fsum(found.token_log_probs[given:])
        assert follows == pytest.approx(found.log_prob, abs=1e-9)


def test_mistakes_in_loading_in_settings_and_in_pairs_are_named(translator: Translator) -> None:
    with pytest.raises(UserError, match="search 'wide': one of greedy, beam, diverse, sample"):
        translator.translate("Oui.", search="wide")
    with pytest.raises(UserError, match=r"decode\.beam_size = '2': allowed"):
        translator.translate("Oui.", beam_size="2")  # type: ignore[arg-type]
    for search in ("greedy", "sample"):
        with pytest.raises(UserError, match="beam_size = 3: only a beam search has one"):
            translator.translate("Oui.", search=search, beam_size=3)
    ranking = replace(translator, decode=replace(translator.decode, mbr="chrf"))
    with pytest.raises(UserError, match="chooses among several: raise beam_size and n_best"):
        ranking.translate("Oui.", beam_size=1)
    with pytest.raises(UserError, match=r"decode\.length_penalty = 'high'"):
        translator.translate("Oui.", length_penalty="high")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="nowhere: no such"):
        Translator.load("nowhere")
    with pytest.raises(UserError, match=r"\['a', 'b'\]: give a path; for an ensemble several, not"):
        Translator.load(["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(UserError, match="dtype 'float8': one of float32, float64, bf"):
        Translator.load("nowhere", dtype="float8")
    with pytest.raises(UserError, match=r"--set model\.dropout=0: .*was fixed by training"):
        Translator.load("nowhere", overrides="model.dropout=0")
    with pytest.raises(UserError, match="sources: 2, translations: 1; give as many"):
        translator.score(["Oui.", "Non."], ["Yes."])
    for n, m in ((1, 4), (4, 1)):  # all are counted
        with pytest.raises(UserError, match=f"^sources: {n}, translations: {m}; give as many"):
            list(translator.score_stream(["Oui."] * n, ["Yes."] * m, chunk=2))
    with pytest.raises(UserError, match=r"sources: 1, translations: 1; .* as texts or as lists"):
        translator.align("Oui.", ["Yes."])
    with pytest.raises(UserError, match=r"sources: 1, prefixes: 1; .* as texts or as lists"):
        translator.translate(["Oui."], prefix="Yes.")
    short = replace(translator, decode=replace(translator.decode, max_len=9))
    ids = translator.tokenizer.encode_tgt("a" * 9)
    assert len(ids) == 9 + 1
    short.translate("Non.", prefix="a" * 8)
    with pytest.raises(UserError, match=r"prefix 2, 'a{9}': 9 tokens, .* have 9: .*ode.max_len$"):
        short.translate(["Oui.", "Non."], prefix=["", "a" * 9])
    for greedy in (True, False):  # in a later chunk too
        streamed = short.translate_stream(
            ["Oui."] * 3, ["", "", "a" * 9], chunk=2, greedy=greedy, beam=not greedy
        )
        with pytest.raises(UserError, match=r"^prefix 3, "):
            list(streamed)
    with pytest.raises(
        UserError, match=r"': \d+ tokens, .*: give a shorter .*decode.max_len_ratio$"
    ):
        translator.translate("Non.", prefix="a" * 60)
    with pytest.raises(UserError, match="None: give a text, or a list of texts"):
        translator.translate(["Oui.", None])
    for ids in ([5, translator.tokenizer.src_vocab_size], [-1], [True], []):
        with pytest.raises(UserError, match=r"\]: give one text, or its token ids, each below \d"):
            translator.attention(ids)
    with pytest.raises(UserError, match="heads = '2:1': give"):
        translator.align("Oui.", "Yes.", heads="2:1")  # type: ignore[call-overload]
    for wrong in ((1.5,), (True,), (1, 3), (1, ("1",))):
        with pytest.raises(UserError, match="give an integer, and a tuple of integers"):
            HeadChoice(*wrong)  # type: ignore[arg-type]
    assert translator.align("Oui.", "Yes.", HeadChoice(np.int64(1))).src == ["Oui."]
    with pytest.raises(UserError, match="give one text, or its token ids"):
        translator.attention(["Oui."])


# ---------------------------------------------------------------------------- given translations


def test_a_score_is_what_the_model_says_of_each_token_alone_or_beside_others(
    translator: Translator,
) -> None:
    pairs = [("Le chat dort.", "The cat sleeps."), ("Oui.", "Yes."), ("Le  chat", "A\u00a0cat")]
    found = translator.score([src for src, _ in pairs], [tgt for _, tgt in pairs])
    tokenizer = translator.tokenizer
    for (src, tgt), each in zip(pairs, found, strict=True):
        source = tokenizer.encode_src(" ".join(src.split()))
        target = tokenizer.encode_tgt(" ".join(tgt.split()))
        assert each.tokens == tokenizer.tgt_pieces(target)
        read = torch.tensor([[tokenizer.bos_id, *target[:-1]]])
        with torch.no_grad():
            logits = translator.searcher.model(torch.tensor([source]), read)[0]
        expected = logits.log_softmax(-1)[range(len(target)), target].tolist()
        assert each.log_probs == pytest.approx(expected, abs=1e-10)
        assert each.log_prob == pytest.approx(sum(expected), abs=1e-9)
        assert translator.score(src, tgt).log_probs == pytest.approx(each.log_probs, abs=1e-10)


def test_the_pairs_of_a_stream_are_numbered_and_scored_beside_others_of_their_length(
    translator: Translator,
) -> None:
    watch = mock.Mock()
    sources, targets = ["Oui.", "Le chat noir dort.", "Oui."], ["Yes."] * 2 + ["The black cat."]
    list(translator.score_stream(sources, targets, chunk=2, watch=watch))
    pairs = [*zip(translator.encode(sources), map(translator._target, targets))]
    tokens = [max(len(source), len(target)) for source, target in pairs]
    assert any(len(source) < len(target) for source, target in pairs)
    assert [call.args for call in watch.call_args_list] == [*enumerate(tokens, start=1)]
    scorer, scores = "translation.translator.token_log_probs", [[[0.0]], [[0.0]] * 2]
    with mock.patch(scorer, side_effect=scores) as asked:
        few = replace(translator, decode=replace(translator.decode, batch_size=3))
        few._log_probs([[5]] * 3, [[5] * 600, [5], [5]])
    assert [len(call.args[1]) for call in asked.call_args_list] == [1, 2]


def test_attention_has_tokens_and_arrays_by_layer_and_head(
    translator: Translator, trained_run: Path
) -> None:
    found = translator.attention("Le chat dort.")
    n_source, n_target = len(found.source), len(found.target)
    assert found.text == translator.translate("Le chat dort.", search="greedy").text
    assert found.read == ["<s>", *found.target[:-1]]
    shapes = {"encoder": (n_source,) * 2, "decoder": (n_target,) * 2, "cross": (n_target, n_source)}
    for kind, shape in shapes.items():
        weights = getattr(found, kind)
        assert (weights.shape, weights.dtype) == ((2, 2, *shape), np.float32)
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-6)
    assert not np.triu(found.decoder, 1).any()
    with pytest.raises(UserError, match="an ensemble has no one attention: give one model"):
        Translator.load(trained_run, trained_run, device="cpu").attention("Oui.")


# ------------------------------------------------------------------------------- threads, packages


def test_what_the_caller_set_in_torch_changes_nothing(trained_run: Path) -> None:
    def found(model: Translator) -> list[Any]:
        best = model.translate(TEXTS[0], prefix="We", beam_size=2)
        attention = model.attention(TEXTS[0], best.text).cross.tolist()
        return [best.text, best.score, best.token_log_probs, attention, model.searcher.precision]

    plain = found(Translator.load(trained_run, device="cpu"))
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
            assert found(Translator.load(trained_run, device="cpu")) == plain
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_given_translations_are_scored_in_float32_and_without_dropout(trained_run: Path) -> None:
    model = Translator.load(trained_run, device="cpu", dtype="bfloat16")

    def found() -> list[Any]:
        model.searcher.model.train()  # as inside a training
        scores = model.score(TEXTS[0], "The cat sleeps.").log_probs
        model.searcher.model.train()
        return [scores, model.attention(TEXTS[0], "The cat sleeps.").cross.tolist()]

    first = found()
    assert first == found()
    scores = torch.tensor(first[0])
    assert not torch.equal(scores.bfloat16().float(), scores)


def test_threads_share_one_translator(translator: Translator) -> None:
    """Different settings at once: each gets what it gets alone."""

    def answer(i: int) -> Any:
        text, beam_size = TEXTS[i % 2], 1 + i % 3
        if i % 4 == 3:
            return translator.attention(text, "The cat sleeps.").cross.tobytes()
        if i % 4 == 2:
            return translator.score(text, "The cat sleeps.")
        return translator.translate([text, *TEXTS], beam_size=beam_size, batch_size=2 + i % 2)

    switches = sys.getswitchinterval()
    expected = [answer(i) for i in range(12)]
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            order = random.Random(0).sample(range(12), 12)
            assert list(pool.map(answer, order)) == [expected[i] for i in order]
    finally:
        sys.setswitchinterval(switches)


def test_threads_share_a_marian_tokenizer(
    marian_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It switches between its two models, and another thread may come between."""
    tokenizer = FrEnTokenizer(marian_folder)
    cut = tokenizer._marian._tokenize

    def slowly(text: str) -> Any:
        time.sleep(0.002)
        return cut(text)

    monkeypatch.setattr(tokenizer._marian, "_tokenize", slowly)
    text, sides = "Le garçon regarde la maison.", (tokenizer.encode_src, tokenizer.encode_tgt)
    expected = [encode(text) for encode in sides]
    assert expected[0] != expected[1]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda i: sides[i % 2](text), range(40)))
    assert found == expected * 20


def test_an_installed_checkout_is_importable_from_anywhere(
    trained_run: Path, tmp_path: Path
) -> None:
    code = f"""
from fr2en import Translator
translator = Translator.load({str(trained_run)!r}, device="cpu")
print(translator.translate("Le chat dort.", search="greedy").text)
"""
    site = tmp_path / "site"
    install = ("-m", "pip", "install", "--no-deps", "--no-build-isolation", "--quiet")
    install += ("--disable-pip-version-check", "--target", str(site), "--editable", str(ROOT))
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("no setuptools")
    done = run_script(*install, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # A folder of --target is no site folder: its .pth files are read where it is added as one.
    added = f"import site; site.addsitedir({str(site)!r})\n"
    done = run_script("-c", added + code, cwd=tmp_path)
    expected = Translator.load(trained_run, device="cpu").translate(
        "Le chat dort.", search="greedy"
    )
    assert done.stdout == f"{expected.text}\n", done.stderr
    shown = {getattr(fr2en, name).__module__.partition(".")[0] for name in fr2en.__all__}
    for package in {"fr2en", "configs", *shown}:  # else a type checker takes its types for Any
        assert (ROOT / package / "py.typed").is_file(), package
