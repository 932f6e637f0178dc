"""Marian models against transformers: the same logits, gradients, searches; and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from marian_files import french_sentences, with_two_vocabularies, write_marian_model
from torch import Tensor

from checkpoints.transformers_weights import to_theirs
from models.decoding.beam import beam_search
from models.decoding.hypothesis import Limits
from models.decoding.stepwise import greedy_search
from models.loss import token_sums
from translation.loading import LoadedRun, load_run
from translation.search import pad_sources

APART: dict[str, Any] = {"share_encoder_decoder_embeddings": False}
# Changes to a small model, and whether its vocabularies are two.
MODELS: dict[str, tuple[dict[str, Any], bool]] = {
    "swish_tied": ({}, False),
    "relu_two_vocabularies": ({**APART, "activation_function": "relu", "encoder_layers": 3}, True),
    "swish_untied_deep": (
        {**APART, "tie_word_embeddings": False, "encoder_layers": 6, "decoder_layers": 6},
        False,
    ),
    "gelu_untied_two": (
        {**APART, "tie_word_embeddings": False, "activation_function": "gelu"},
        True,
    ),
}
MAX_LEN = 24


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the runs are kept."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        patch.setattr(constants, "HF_HOME", str(home))
        yield home / "fr2en"


@pytest.fixture(scope="module")
def folders(marian_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    two = with_two_vocabularies(marian_folder, folder / "two")
    return {
        name: write_marian_model(two if apart else marian_folder, folder / name, **changes)
        for name, (changes, apart) in MODELS.items()
    }


def theirs_in(folder: Path, dtype: torch.dtype) -> Any:
    """The model by transformers, with sinusoids that are exact in float64."""
    from transformers import MarianMTModel

    model: Any = MarianMTModel.from_pretrained(folder).to(dtype).eval()
    n, d = model.config.max_position_embeddings, model.config.d_model
    angles = np.arange(n)[:, None] / 10000 ** (np.arange(0, d, 2) / d)
    table = torch.from_numpy(np.concatenate((np.sin(angles), np.cos(angles)), axis=1)).to(dtype)
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.weight.data = table
    return model


def batch(loaded: LoadedRun, n: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """Padded sources, target inputs, target outputs."""
    tokenizer = loaded.tokenizer
    src = pad_sources(tokenizer.encode_src_batch(french_sentences(n)), tokenizer.pad_id)
    tgt = pad_sources(tokenizer.encode_tgt_batch(french_sentences(n)), tokenizer.pad_id)
    start = torch.full((n, 1), tokenizer.bos_id)
    return src, torch.cat((start, tgt[:, :-1]), dim=1), tgt


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients_are_those_of_transformers(
    folders: dict[str, Path], name: str
) -> None:
    loaded = load_run(folders[name], runs_dir="runs")
    src, tgt_in, tgt = batch(loaded)
    pad_id, config = loaded.tokenizer.pad_id, loaded.config.model
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-10)):
        ours, theirs = loaded.model.to(dtype), theirs_in(folders[name], dtype)
        theirs.final_logits_bias.requires_grad_()
        found = theirs(src, attention_mask=src != pad_id, decoder_input_ids=tgt_in).logits
        torch.testing.assert_close(ours(src, tgt_in), found, atol=tolerance, rtol=0)
    kept = tgt != pad_id
    flat = kept.flatten().nonzero()[:, 0]
    hidden = ours(src, tgt_in, select=flat, project=False)
    token_sums(hidden, ours.output_weight(), tgt[kept], label_smoothing=0.0).objective.backward()
    torch.nn.functional.cross_entropy(found[kept], tgt[kept], reduction="sum").backward()
    named = ours.named_parameters(remove_duplicate=False)
    gradients = to_theirs({key: p.grad for key, p in named if p.grad is not None}, config)
    others = dict(theirs.named_parameters(remove_duplicate=False))
    others["final_logits_bias"] = theirs.final_logits_bias
    compared = {key for key, p in others.items() if p.grad is not None}
    assert gradients.keys() == compared
    for key in compared:
        if "embed_tokens" in key or "shared" in key or others[key] is others["lm_head.weight"]:
            # transformers leaves the embedding of padding, the start token, as it is
            gradients[key][pad_id] = others[key].grad[pad_id] = 0
        torch.testing.assert_close(gradients[key], others[key].grad, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("name", ["swish_tied", "relu_two_vocabularies"])
def test_searches_find_what_generate_finds(folders: dict[str, Path], name: str) -> None:
    loaded = load_run(folders[name], runs_dir="runs")
    ours, theirs = loaded.model.double(), theirs_in(folders[name], torch.float64)
    tokenizer = loaded.tokenizer
    pad_id, eos_id = tokenizer.pad_id, tokenizer.eos_id
    limits = Limits(
        bos_id=tokenizer.bos_id, eos_id=eos_id, max_len=MAX_LEN, max_len_ratio=100, alpha=0
    )
    sources = sorted(tokenizer.encode_src_batch(french_sentences(1000)), key=len)
    rules = {"max_new_tokens": MAX_LEN, "forced_eos_token_id": None, "max_length": None}
    n_finished = 0
    for start in range(0, 1000, 250):
        src = pad_sources(sources[start : start + 250], pad_id)
        found = theirs.generate(src, attention_mask=src != pad_id, num_beams=1, **rules)
        for [hypothesis], ids in zip(greedy_search(ours, src, limits), found.tolist()):
            n_finished += hypothesis.finished
            assert hypothesis.ids == tuple(i for i in ids[1:] if i not in (eos_id, pad_id))
            assert hypothesis.finished == (eos_id in ids)
    assert n_finished > 300
    src = pad_sources(sources[::25], pad_id)
    found = theirs.generate(
        src,
        attention_mask=src != pad_id,
        num_beams=5,
        num_return_sequences=5,
        length_penalty=0,
        early_stopping=False,
        output_scores=True,
        return_dict_in_generate=True,
        **rules,
    )
    beams = beam_search(ours, src, limits, beam_size=5, n_best=5)
    pairs = zip(found.sequences.view(40, 5, -1).tolist(), found.sequences_scores.view(40, 5))
    n_compared = 0
    for hypotheses, (sequences, scores) in zip(beams, pairs):
        for hypothesis, ids, score in zip(hypotheses, sequences, scores.tolist()):
            if not hypothesis.finished or eos_id not in ids:
                break  # transformers ranks what was cut off among the finished
            n_compared += 1
            assert hypothesis.ids == tuple(i for i in ids[1:] if i not in (eos_id, pad_id))
            assert hypothesis.score == pytest.approx(score, abs=2e-5)  # theirs are float32
    assert n_compared > 100
