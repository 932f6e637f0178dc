"""What the explorer shows is what the model did: attention, statistics, search, positions."""

import base64
import json
import math
import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import ROOT
from made_runs import Scripts, scripted, untrained_run
from tiny_models import BOS, EOS, LIMITS, forced_log_prob, tiny_model
from torch import Tensor

import visualize
from configs.position_names import POSITIONS
from configs.positions import (
    Alibi,
    DynamicNtkScaling,
    Fox,
    Interleaved,
    Learnable,
    NoPosition,
    Randomized,
    Rope,
    Shaw,
    Ssmax,
    Tupe,
)
from configs.schema import ModelConfig
from explorer.heads import head_statistics
from explorer.packed import pack
from explorer.page import page
from explorer.trace import positions, trace, words
from explorer.tree import searched
from models.decoding.beam import beam_search
from models.decoding.hypothesis import Hypothesis
from models.positional_encodings.base import AttentionPosition
from models.positional_encodings.randomized import draw_positions
from pictures.schemes import fresh_scheme
from translation.loading import load_run
from translation.translator import Translator

SENTENCE = "Julie est fatiguée, donc elle ne va pas travailler."


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    """What the page reads."""
    codes = np.frombuffer(base64.b64decode(packed["codes"]), "<u2").reshape(packed["shape"])
    return np.where(codes == 65535, np.nan, packed["lo"] + packed["step"] * codes)


def traced(run: Path, src_text: str = SENTENCE, tgt_text: str | None = None) -> dict[str, Any]:
    loaded = load_run(run)
    return trace(loaded, Translator.of(loaded, torch.device("cpu")), src_text, tgt_text)


def test_statistics_are_those_reckoned_by_hand() -> None:
    weights = np.array([[[[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]]]])
    found = {name: values.item() for name, values in head_statistics(weights).items()}
    assert found["entropy"] == pytest.approx((1 + 0 + 1.5) / 3)
    assert found["distance"] == pytest.approx((0.5 + 0 + 0.75) / 3)
    assert found["diagonal"] == pytest.approx((0.5 + 1 + 0.5) / 3)
    # A translation in step with its source: two queries over three keys stand at keys 0 and 2.
    across = head_statistics(np.array([[[[1.0, 0, 0], [0, 0.5, 0.5]]]]))
    assert across["distance"].item() == pytest.approx(0.25)
    assert across["diagonal"].item() == pytest.approx(0.75)


def test_packed_numbers_are_half_a_step_off_at_most() -> None:
    values = np.random.default_rng(0).normal(size=(3, 40)) * 7
    values[0, 0], values[2, 3] = np.nan, -np.inf
    found, step = unpacked(pack(values)), np.ptp(values[np.isfinite(values)]) / 65534
    finite = np.isfinite(values)
    assert np.array_equal(np.isfinite(found), finite)
    assert abs(found - values)[finite].max() <= step / 2 * (1 + 1e-9)
    assert np.array_equal(unpacked(pack(np.full((2, 2), 3.25))), np.full((2, 2), 3.25))


def test_words_are_those_of_the_text() -> None:
    found = words("Oh 😀 l'été", ["▁Oh", "▁", "<0xF0>", "<0x9F>", "▁l'", "été", "</s>"])
    assert found["words"] == ["Oh", "😀", "l'été", "</s>"]
    assert found["word_of"] == [0, 1, 1, 1, 2, 2, 3]
    # Pieces that tell words apart in another way keep their own.
    assert words("a b", ["▁ab", "</s>"])["words"] == ["ab", "</s>"]


@pytest.mark.parametrize("n_best", [1, 3])
def test_the_tree_follows_the_search_where_candidates_are_equal(n_best: int) -> None:
    model = tiny_model(Rope(), seed=1)
    model.output.weight.data.zero_()
    source, names = torch.tensor([[3, 4, 5, EOS]]), lambda ids: list(map(str, ids))
    tree, results = searched(model, source, LIMITS, beam_size=3, n_best=n_best, pieces=names)
    assert {len(step["live"]) for step in tree.steps[1:]} == {3}
    assert len(results) == n_best


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("max_len", [9, 2])
def test_the_tree_is_the_beam_search(beam_size: int, max_len: int) -> None:
    model = tiny_model(Rope(), seed=5)
    source = torch.tensor([[3, 4, 5, 2, EOS]])
    limits = type(LIMITS)(bos_id=BOS, eos_id=EOS, max_len=max_len, max_len_ratio=1.0, alpha=0.6)
    how: dict[str, Any] = {"beam_size": beam_size, "n_best": beam_size}
    names = lambda ids: [str(i) for i in ids]  # noqa: E731
    tree, results = searched(model, source, limits, **how, pieces=names)
    [expected] = beam_search(model, source, limits, **how)
    assert [(r["ids"], r["score"], r["finished"]) for r in results] == [
        (h.ids, h.score, h.finished) for h in expected
    ]
    assert tree.longest == min(max_len, source.shape[1] + 10)
    for result in results:
        node = tree.nodes[result["node"]]
        assert node["fate"] == ("ended" if result["finished"] else "cut_off")
        assert (node["sum"], node["score"]) == (
            pytest.approx(result["log_prob"], abs=1e-12),
            pytest.approx(result["score"], abs=1e-12),
        )
    # Each sum is the model's own log-probability of the prefix, read from the start.
    for ids, node in zip(tree.ids[1:], tree.nodes[1:]):
        own = forced_log_prob(model, source[0], Hypothesis(tuple(ids), 0.0, 0.0, finished=False))
        # The ids that are never generated are ruled out without a new normalisation.
        assert node["sum"] == pytest.approx(own, abs=1e-9)
    scores: list[float] = []  # of those that have ended
    for before, step in zip([None, *tree.steps], tree.steps):
        made = [tree.nodes[node] for node in step["made"]]
        likeliest = dict(zip(step["live"], map(dict, step["likeliest"])))
        for node in made:
            own = likeliest[node["parent"]][node["piece"]]
            assert node["log_prob"] == pytest.approx(own, abs=1e-5)
        scores += [node["score"] for node in made if node["fate"] == "ended"]
        last = sorted(scores)[-beam_size] if len(scores) >= beam_size else None
        assert step["last"] == last
        sums = [node["sum"] for node in made]
        assert sums == sorted(sums, reverse=True)
        assert len(made) == 2 * beam_size
        on = [node["fate"] in ("lives", "cut_off", "overtaken") for node in made]
        assert sum(on) == beam_size
        worst = min(node["sum"] for node, goes in zip(made, on) if goes)
        pruned = [node["sum"] for node in made if node["fate"] == "outranked"]
        assert all(total <= worst for total in pruned)
        at_eos = {node["fate"] for node in made if node["piece"] == str(EOS)}
        assert at_eos <= {"ended", "late"}
        best = max(node["sum"] for node, goes in zip(made, on) if goes)
        assert step["bound"] == pytest.approx(best / ((5 + tree.longest) / 6) ** 0.6)
        ranks = {node["fate"]: node["rank"] for node in made if node["piece"] == str(EOS)}
        assert ranks.get("ended", 0) <= beam_size < ranks.get("late", math.inf)
        if before:
            living = [n for n in before["made"] if tree.nodes[n]["fate"] == "lives"]
            assert sorted(step["live"]) == living
    end = "cut_off" if len(tree.steps) == tree.longest else "overtaken"
    assert end in {tree.nodes[node]["fate"] for node in tree.steps[-1]["made"]}
    assert scores or max_len < 9
    assert all(step["last"] is None or step["last"] < step["bound"] for step in tree.steps[:-1])


def test_attention_and_probabilities_are_the_models(trained_run: Path) -> None:
    found = traced(trained_run)
    n, t = len(found["source"]["pieces"]), len(found["target"]["pieces"])
    shapes = {"encoder": (2, 2, n, n), "decoder": (2, 2, t, t), "cross": (2, 2, t, n)}
    for kind, shape in shapes.items():
        weights = np.nan_to_num(np.exp(unpacked(found["attention"][kind]["log_weights"])))
        assert weights.shape == shape
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-3)
    later = unpacked(found["attention"]["decoder"]["log_weights"])[..., *np.triu_indices(t, 1)]
    assert np.isnan(later).all()
    best = found["search"]["results"][0]
    assert found["target"]["text"] == best["text"]
    assert sum(found["target"]["log_probs"]) == pytest.approx(best["log_prob"], abs=1e-3)
    given = traced(trained_run, tgt_text="She works.")
    assert (given["target"]["text"], given["target"]["given"]) == ("She works.", True)
    assert (given["source"]["lang"], given["target"]["lang"]) == ("fr", "en")
    assert given["search"] == found["search"]
    for likeliest in given["target"]["likeliest"]:
        values = [value for _, value in likeliest]
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1 + 1e-5


@pytest.mark.parametrize(
    ("position", "forms"),
    [
        (Alibi(), ["bias", "bias"]),
        (Rope(), ["rotation", "rotation"]),
        (Randomized(), ["rotation", "rotation"]),
        (Interleaved(others=Alibi()), ["bias", "bias"]),
        (Learnable(max_positions=100), ["table", "table"]),
        (NoPosition(), []),
        (Shaw(), []),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_positions_are_those_of_the_sentence(
    trained_run: Path, tmp_path: Path, position: Any, forms: list[str]
) -> None:
    run = untrained_run(trained_run, tmp_path, position=position)
    found = traced(run)
    n, t = len(found["source"]["pieces"]), len(found["target"]["pieces"])
    parts = found["position"]["parts"]
    draw_of_256 = draw_positions(256, 1024, torch.Generator().manual_seed(0)).numpy()
    assert [part["form"] for part in parts] == forms
    assert ("depends on the words" in found["position"]["note"]) == (position == Shaw())
    for part, length in zip(parts, (n, t)):
        values = unpacked(part["values"])
        assert values.shape[-2] == length
        if part["form"] == "rotation":
            at = draw_of_256[:length] if position == Randomized() else np.arange(length)
            turned = np.exp(1j * values[0, 0, :, 0])
            np.testing.assert_allclose(turned, np.exp(1j * at), atol=1e-3)
        if part["form"] == "bias":
            assert len(values) == (2 if isinstance(position, Interleaved) else 1)
            assert not np.nan_to_num(values[1:]).any()
            slopes = values[0, :, 1, 0]
            np.testing.assert_allclose(values[0, :, 2, 0], 2 * slopes, atol=1e-3)


def test_the_note_is_true_of_every_scheme() -> None:
    both = "the encoder and the decoder"
    by_words = dict.fromkeys(("shaw", "transformer_xl", "xlnet", "deberta", "deberta_log"), both)
    by_words |= dict.fromkeys(("dape", "pope", "selective_rope"), both)
    by_words |= {"cope": "the decoder", "fox": "the decoder"}
    by_words["repo"] = "the encoder (layers 2, 3) and the decoder (layer 2)"
    layers = {"n_encoder_layers": 3, "n_decoder_layers": 2}
    dynamic = Rope(scaling=DynamicNtkScaling(trained_length=5))
    others = {
        "dynamic": dynamic,
        "cross": Rope(cross=True),
        "cross_in_layer_2": Interleaved(others=NoPosition(), nth=Rope(cross=True)),
        "none_ssmax": Ssmax(scheme=NoPosition()),
    }
    for name, position in (POSITIONS | others).items():
        model = ModelConfig(position=position, d_model=16, n_heads=2, **layers)
        note = positions(fresh_scheme(name, model), 6, 5)["note"]
        assert ("depends on the words" in note) == (name in by_words), name
        assert f"What it does in {by_words[name]} also dep" in note if name in by_words else True, (
            note
        )
        assert ("Nothing is added or turned" in note) == (name == "none"), name
        other = "In the encoder a sentence of this length turns by other angles"
        assert (other in note) == (name == "dynamic"), name
        assert ("grow by s ln n" in note) == ("ssmax" in name), name
        assert ("acts in the cross-attention too" in note) == name.startswith("cross"), name

    def scaled(self: Any, x: Tensor, positions: Tensor, role: str) -> Tensor:
        return x * (1 + positions[:, None] / 8) if role == "key" else x

    with mock.patch.object(AttentionPosition, "rotate", scaled):
        model = ModelConfig(position=NoPosition(), d_model=16, n_heads=2, **layers)
        found = positions(fresh_scheme("scaled", model), 6, 5)
    assert not found["parts"]
    assert "Queries and keys change with position, not by turning" in found["note"]
    assert "Nothing is" not in found["note"]


@pytest.mark.parametrize("encoder", [Learnable(max_positions=8), Tupe(max_positions=8)])
def test_a_decoder_that_counts_may_have_more_tokens_than_the_encoder_has_positions(
    encoder: Any,
) -> None:
    model = ModelConfig(position=Fox(encoder=encoder), d_model=16, n_heads=2)
    found = positions(fresh_scheme("fox", model), 6, 12)["parts"]
    assert {part["stack"] for part in found} == {"encoder"}


@pytest.mark.parametrize("position", [Alibi(), Randomized(scheme=Alibi())], ids=lambda p: p.kind)
def test_logits_less_the_bias_are_those_of_a_model_without_it(
    trained_run: Path, tmp_path: Path, position: Any
) -> None:
    run = untrained_run(trained_run, tmp_path, position=position)
    plain = untrained_run(trained_run, tmp_path, position=NoPosition())  # the same weights
    found, without = (traced(path, tgt_text="She works.") for path in (run, plain))
    for stack, part in zip(("encoder", "decoder"), found["position"]["parts"]):
        # The first layer: behind it the two models see other things.
        logits, expected = (
            unpacked(each["attention"][stack]["log_weights"])[0] for each in (found, without)
        )
        less = logits - unpacked(part["values"])[0]
        difference = less - expected  # one constant for each row
        assert np.nanmax(np.nanmax(difference, -1) - np.nanmin(difference, -1)) < 2e-3
        assert np.nanmax(abs(logits - expected)) > 0.1


def test_a_page_of_40_tokens_6_layers_and_8_heads_is_below_2_megabytes(
    trained_run: Path, tmp_path: Path
) -> None:
    layers = {"n_encoder_layers": 6, "n_decoder_layers": 6, "n_heads": 8}
    run = untrained_run(trained_run, tmp_path, position=Alibi(), **layers)
    found = traced(run, "chat " * 20, "cat " * 20)
    assert min(len(found[side]["pieces"]) for side in ("source", "target")) >= 40
    assert len(page([found])) < 2_000_000


def test_no_text_can_leave_its_place_in_the_page(trained_run: Path) -> None:
    text = "</script><script>alert(1)</script> <!-- & \u2028 \"'` ${x} $data 😀"
    html = page([traced(trained_run, text)])
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert json.loads(data)[0]["source"]["text"] == re.sub(r"\s+", " ", text)
    assert not set("<>&\u2028") & set(data)
    assert html.count("<script") == 2
    for script in (ROOT / "explorer/parts").glob("*.js"):
        text = script.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        unsafe = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|https?:"
        assert not re.findall(unsafe, text), script.name


draw = scripted(visualize.main)


def test_the_command_writes_where_it_says(draw: Scripts, trained_run: Path, tmp_path: Path) -> None:
    run = untrained_run(trained_run, tmp_path, position=Alibi())
    ended = draw("explore", "--src_text", SENTENCE, "--runs_dir", tmp_path)
    file = run / "results/explorer.html"
    assert ended.out.splitlines()[1:] == [str(file)]
    file.unlink()
    file = tmp_path / "new/both.html"
    both = ("--model_path", trained_run, run, "--tgt_text", "She works.", "--output", file)
    ended = draw("explore", "--src_text", SENTENCE, *both)
    assert (ended.code, ended.out, ended.err) == (0, f"She works.\nShe works.\n{file}\n", "")
    assert trained_run.name in file.read_text("utf-8")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("--src_text \N{NO-BREAK SPACE}", "there is nothing to look at"),
        ("--src_text caf\udce9", "not valid Unicode"),
        ("--model_path a b c", "two stand side by side at most"),
        ("--model_path nowhere", "nowhere: no such checkpoint or run folder"),
        ("--output LICENSE/x.html", "LICENSE/x.html: File exists"),
    ],
)
def test_a_mistake_gets_one_line(draw: Scripts, trained_run: Path, args: str, said: str) -> None:
    given = ("explore", "--src_text", "Oui.", "--model_path", trained_run)
    assert said in draw(*given, *args.split(" ")).error()
