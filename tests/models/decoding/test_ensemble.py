"""Several models as one: against the formula, against one model twice, and through the scripts."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from made_runs import Scripts, best_of, copy_run, scripted, untrained_run
from test_decoding import assert_alike, naive_search
from tiny_models import BOS, LIMITS, lively, sources, targets, tiny_model, vocabulary
from torch import Tensor

import inference
import test as test_script
from configs.schema import Learnable, Subword
from models.decoding.beam import beam_search
from models.decoding.ensemble import Ensemble
from models.decoding.stepwise import greedy_search
from models.loss import token_sums
from models.transformer import TranslationTransformer
from tokenizer.subword import SubwordTokenizer

Models = list[TranslationTransformer]


@pytest.fixture(scope="module")
def three() -> Models:
    """Of three schemes and two widths, one without a cache and one with an output bias."""
    small = lively("t5", seed=2, d_model=24, n_decoder_layers=1, output_bias=True)
    return [lively("rope"), lively("torch", seed=1), small]


def mean_log_probs(models: Models, src: Tensor, tgt_in: Tensor) -> Tensor:
    """The formula, token by token: the geometric mean of the probabilities, normalised."""
    mean = torch.stack([model(src, tgt_in).log_softmax(-1) for model in models]).mean(0)
    return mean - mean.exp().sum(-1, keepdim=True).log()


def test_the_search_sees_the_normalised_geometric_mean(three: Models) -> None:
    src, mean = sources(5, 3, 7), partial(mean_log_probs, three)
    for sentence, found in zip(src, greedy_search(Ensemble(three), src, LIMITS)):
        assert_alike(found, naive_search(mean, sentence, size=1, limit=9))


def test_a_step_after_reordering_is_the_whole_prefix_of_every_model(three: Models) -> None:
    src, ensemble = sources(5, 3), Ensemble(three)
    with torch.inference_mode():
        state = ensemble.init_state(ensemble.encode(src), beam_size=2, max_len=4)
        first = torch.tensor([[3, 4], [5, 6]])
        ensemble.decode_step(torch.full((2, 2), BOS), state)
        ensemble.decode_step(first, state)
        state.reorder(torch.tensor([[1, 0], [1, 1]]))
        state.select(torch.tensor([1]))
        step = ensemble.decode_step(torch.tensor([[7, 8]]), state).log_softmax(-1)
        prefixes = torch.tensor([[BOS, 6, 7], [BOS, 6, 8]])
        expected = mean_log_probs(three, src[1:].expand(2, -1)[:, :3], prefixes)[:, -1]
    torch.testing.assert_close(step[0], expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["rope", "shaw", "torch"])
def test_one_model_twice_is_the_model_to_the_last_bit(name: str) -> None:
    model, src = lively(name), sources(5, 3, 7)
    twice = Ensemble([model, model])
    assert greedy_search(twice, src, LIMITS) == greedy_search(model, src, LIMITS)
    four = {"beam_size": 4, "n_best": 4}
    assert beam_search(twice, src, LIMITS, **four) == beam_search(model, src, LIMITS, **four)


def test_the_loss_is_that_of_the_mean(three: Models) -> None:
    src, tgt_in = sources(5, 3), targets(2, 6)
    tgt_out = targets(2, 6, seed=1)
    chosen = tgt_out > 3
    ensemble = Ensemble(three)
    with torch.inference_mode():
        flat = chosen.flatten().nonzero()[:, 0]
        hidden = ensemble(src, tgt_in, select=flat, project=False)
        sums = token_sums(hidden, ensemble.output_weight(), tgt_out[chosen], label_smoothing=0.0)
        mean = mean_log_probs(three, src, tgt_in)
        expected = mean[chosen].gather(-1, tgt_out[chosen][:, None])
        ours = ensemble(src, tgt_in).log_softmax(-1)
        torch.testing.assert_close(ours, mean, atol=1e-10, rtol=0)
    assert sums.nll.item() == pytest.approx(-expected.sum().item(), abs=1e-9)


def test_models_of_different_vocabularies_are_refused() -> None:
    other = tiny_model(vocab=vocabulary(src_vocab_size=12, tgt_vocab_size=12, pad_id=11))
    with pytest.raises(ValueError, match="one vocabulary"):
        Ensemble([tiny_model(), other])


# -------------------------------------------------------------------------------------- the scripts


infer = scripted(inference.main)


def test_inference_takes_several_models_in_both_ways_of_writing(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    def said(*models: str | Path) -> dict:
        text = ("--src_text", "Le chat dort dans le jardin.", "--json")
        return json.loads(infer("--model_path", *models, *text).out)

    learnable = Learnable(max_positions=256)
    other = untrained_run(trained_run, tmp_path, position=learnable, n_encoder_layers=1)
    alone, mixed = said(trained_run), said(trained_run, other)
    assert said(trained_run, "--model_path", best_of(trained_run)) == alone
    assert said(trained_run, "--model_path", other) == mixed
    # The second model knows nothing.
    assert mixed["greedy"]["log_prob"] < alone["greedy"]["log_prob"]


def test_a_partner_of_another_tokenizer_or_without_room_is_refused(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    short = untrained_run(trained_run, tmp_path, position=Learnable(max_positions=256))
    text = ("--src_text", "Oui.")
    said = infer("--model_path", trained_run, short, *text, "--max_len", "300").error()
    words = "model.position.max_positions = 256: allows for 256 tokens on the target side"
    assert said.startswith(f"{best_of(short)}: {words}")
    foreign = copy_run(trained_run, tmp_path)
    shutil.rmtree(foreign / "tokenizer")
    tokenizer = SubwordTokenizer.train(["Un autre texte, d'autres mots."], Subword(vocab_size=600))
    tokenizer.save(foreign / "tokenizer")
    best = best_of(foreign)
    payload = torch.load(best, weights_only=True)
    payload["tokenizer"]["fingerprint"] = tokenizer.fingerprint()
    for name in ("src_embedding.weight", "tgt_embedding.weight", "output.weight"):
        payload["model"][name] = payload["model"][name][: tokenizer.src_vocab_size]
    torch.save(payload, best)
    said = infer("--model_path", trained_run, best, *text).error()
    assert said == (
        f"{best} has another tokenizer than {best_of(trained_run)}: an ensemble needs one "
        "vocabulary; give runs that were trained with the same tokenizer (a new run takes "
        "another run's with tokenizer.kind=saved)"
    )


@pytest.mark.slow
def test_the_scores_of_an_ensemble_have_a_name_of_their_own_and_name_every_model(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy_run(trained_run, tmp_path)
    other = untrained_run(trained_run, tmp_path, d_ff=32)
    args = ["--limit", "3", "--search", "greedy", "--set", "evaluate.bootstrap_samples=2"]
    test_script.main(["--model_path", str(run), *args])
    test_script.main(["--model_path", str(run), str(run), *args])
    test_script.main(["--model_path", str(run), str(run), str(other), *args])
    printed = capsys.readouterr().out
    alone, twice, three = (
        json.loads((run / "results" / f"test_first3_greedy{suffix}_scores.json").read_text("utf-8"))
        for suffix in ("", "_ensemble2", "_ensemble3")
    )
    assert twice["scores"] == alone["scores"]
    assert twice["loss"] == pytest.approx(alone["loss"], abs=1e-5)
    assert abs(three["loss"] - alone["loss"]) > 1e-3
    assert [len(record.get("partners", [])) for record in (alone, twice, three)] == [0, 1, 2]
    assert three["partners"][1]["checkpoint"] == best_of(other).name
    assert printed.count(f"{best_of(run)}: epoch 2") == 5
    assert f"{best_of(other)}: epoch 2" in printed


def test_log_probabilities_are_added_in_float32() -> None:
    model, src = lively().bfloat16(), sources(5, 3)
    both = Ensemble([model, model])
    with torch.inference_mode():
        state = both.init_state(both.encode(src), beam_size=1, max_len=4)
        assert both.decode_step(torch.full((2, 1), BOS), state).dtype == torch.float32
