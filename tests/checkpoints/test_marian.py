"""Marian models against transformers: the same logits, gradients, searches; and what is refused."""

import io
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import local_hub
import numpy as np
import pytest
import torch
from conftest import ROOT
from huggingface_hub import constants
from ignite.engine import Engine, Events
from made_runs import Scripts, scripted
from marian_files import french_sentences, with_two_vocabularies, write_marian_model
from safetensors.torch import load as load_safetensors, save_file
from torch import Tensor
from toy_runs import assert_same, content, log_of, run_here, same, toy_settings
from transformers import MarianMTModel, MarianTokenizer

import average
import inference
from checkpoints.average import average_checkpoints, write_average
from checkpoints.marian import _checksum
from checkpoints.resolve import resolve_checkpoint
from checkpoints.transformers_weights import to_theirs
from configs.load import load_config
from configs.schema import DecodeConfig, Marian, Sinusoidal
from configs.serialize import apply_overrides, to_dict
from models.build import build_model
from models.decoding.beam import beam_search
from models.decoding.hypothesis import Limits
from models.decoding.repetition import Unrepeated
from models.decoding.stepwise import greedy_search
from models.loss import token_sums
from training.prepare import Learner
from translation.loading import LoadedRun, load_run
from translation.search import pad_sources
from translation.translator import Translator
from utils.errors import UserError

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
CONFIG, GENERATION = "config.json", "generation_config.json"


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
    loaded = load_run(folders[name])
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


def rewritten(folder: Path, name: str, **changes: Any) -> None:
    saved = json.loads((folder / name).read_text("utf-8"))
    (folder / name).write_text(json.dumps(saved | changes), "utf-8")


@pytest.fixture(scope="module")
def renormalized(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose padding would have most of the probability, as on the hub."""
    folder = tmp_path_factory.mktemp("renormalized")
    shutil.copytree(folders["swish_tied"], folder, dirs_exist_ok=True)
    weights = load_safetensors((folder / "model.safetensors").read_bytes())
    weights["final_logits_bias"] -= 8.0
    weights["final_logits_bias"][0, load_run(folder).tokenizer.pad_id] = 8.0
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    rewritten(folder, GENERATION, renormalize_logits=True)
    return folder


@pytest.mark.parametrize("name", ["swish_tied", "relu_two_vocabularies", "renormalized"])
def test_searches_find_what_generate_finds(
    folders: dict[str, Path], renormalized: Path, name: str
) -> None:
    folder = (folders | {"renormalized": renormalized})[name]
    loaded = load_run(folder)
    ours, theirs = loaded.model.double(), theirs_in(folder, torch.float64)
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
    searches = [(0, ours), (2, Unrepeated(ours, 2))]
    # With renormalize_logits they share out what is ruled out, too.
    for ngram, searched in searches[:1] if name == "renormalized" else searches:
        found = theirs.generate(
            src,
            attention_mask=src != pad_id,
            num_beams=5,
            num_return_sequences=5,
            length_penalty=0,
            early_stopping=False,
            no_repeat_ngram_size=ngram,
            output_scores=True,
            return_dict_in_generate=True,
            **rules,
        )
        beams = beam_search(searched, src, limits, beam_size=5, n_best=5)
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


# ------------------------------------------------------------------------------ where it comes from


def runs_in(home: Path) -> list[Path]:
    return sorted(path for path in home.glob("*") if path.name != ".lock")


def test_a_model_is_mapped_once_by_whatever_name_and_process(
    folders: dict[str, Path], home: Path
) -> None:
    folder, before = shutil.copytree(folders["swish_tied"], home.parent / "mine"), runs_in(home)
    places = [folder, folder / "model.safetensors", folder / ".." / "mine"]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda p: resolve_checkpoint(p, prefer="best"), places))
    [run] = {run.path for _, run in found}
    assert [run] == [path for path in runs_in(home) if path not in before]
    assert {"config.json", "model.safetensors", "tokenizer"} == {p.name for p in run.iterdir()}
    changed = (run / "model.safetensors").stat().st_mtime_ns
    loaded = load_run(folder)
    assert (run / "model.safetensors").stat().st_mtime_ns == changed
    decode, data = loaded.config.decode, loaded.config.data
    start = Translator.of(loaded, torch.device("cpu")).attention("Oui.").read[0]
    assert start == "<start>"  # and not "<pad>"
    assert (decode.beam_size, decode.n_best, decode.max_len) == (4, 4, 39)
    assert (loaded.config.name, data.src_lang, data.tgt_lang) == ("mine", "fr", "en")
    assert loaded.config.model.position.tightest().length == 64
    others = {"length_penalty": 0.5, "max_new_tokens": 7, "no_repeat_ngram_size": 3}
    rewritten(folder, GENERATION, num_beams=6, **others)
    decode = load_run(folder).config.decode
    assert (decode.beam_size, decode.n_best) == (6, DecodeConfig().n_best)
    assert (decode.length_penalty, decode.max_len, decode.no_repeat_ngram_size) == (0.5, 7, 3)
    rewritten(folder, "tokenizer_config.json", source_lang="en")  # as its target
    data = load_run(folder).config.data
    assert (data.src_lang, data.tgt_lang) == ("source", "target")
    rewritten(folder, "tokenizer_config.json", source_lang="cat+oci", target_lang=["en"])
    rewritten(folder, GENERATION, max_new_tokens=99)  # more than there are positions
    rewritten(folder, CONFIG, dropout=0.1, attention_dropout=0.2, activation_dropout=0.3)
    weights = load_safetensors((folder / "model.safetensors").read_bytes())
    save_file({name: each.half() for name, each in weights.items()}, folder / "model.safetensors")
    loaded = load_run(folder.rename(folder.with_name("日" * 80)))
    shared, config = weights["model.shared.weight"].half().float(), loaded.config
    assert torch.equal(loaded.model.output.weight, shared)
    assert (config.data.src_lang, config.data.tgt_lang) == ("cat_oci", "target")
    assert config.decode.max_len == 64
    shape = config.model
    assert (shape.dropout, shape.attention_dropout, shape.activation_dropout) == (0.1, 0.2, 0.3)


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_a_name_on_the_hub_is_fetched_once(
    folders: dict[str, Path], weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {path.name: path.read_bytes() for path in folders["swish_tied"].iterdir()}
    pickled = io.BytesIO()
    # Older files have the table of positions too.
    theirs: Any = MarianMTModel.from_pretrained(folders["swish_tied"])
    table = {"model.encoder.embed_positions.weight": theirs.model.encoder.embed_positions.weight}
    torch.save(load_safetensors(files["model.safetensors"]) | table, pickled)
    files["pytorch_model.bin"] = pickled.getvalue()
    if weights == "pytorch_model.bin":
        del files["model.safetensors"]
    expected = load_run(folders["swish_tied"]).model.state_dict()
    with local_hub.serve("models/some/model", files) as (endpoint, asked):
        local_hub.ask(monkeypatch, endpoint, tmp_path)
        loaded = load_run("some/model")
        fetched = {path.rpartition("/")[2] for path in asked}
        assert {"model.safetensors", "pytorch_model.bin"} & fetched == {weights}
    assert loaded.run.path.name.startswith("model-")
    assert loaded.config.tokenizer == Marian(name_or_path="some/model")
    for name, tensor in load_run("some/model").model.state_dict().items():
        assert torch.equal(tensor, expected[name])
    # What is optional may be missing, where the hub cannot be asked for it.
    [optional] = tmp_path.rglob("generation_config.json")
    optional.unlink()
    assert load_run("some/model").config.decode.beam_size == 1
    words = "other/model: no such checkpoint or run folder; the model other/model is not in the hub"
    with pytest.raises(UserError, match=f"^{words}.*give a local folder with its files") as caught:
        load_run("other/model")
    assert "\n" not in str(caught.value)


def test_an_export_of_this_project_is_fetched_with_its_own_tokenizer(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `fr2en` in config.json."""
    loaded = load_run(trained_run)
    model = replace(loaded.config.model, norm="pre", position=Sinusoidal(), bias=False)
    config = replace(loaded.config, model=model)
    network = build_model(model, loaded.tokenizer)
    save_file(to_theirs(network.state_dict(), model), tmp_path / "model.safetensors")
    about = {"model_type": "pegasus", "architectures": [], "fr2en": to_dict(config)}
    (tmp_path / "config.json").write_text(json.dumps(about), "utf-8")
    loaded.tokenizer.save(tmp_path / "tokenizer")
    paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    files = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in paths}
    with local_hub.serve("models/some/export", files | {"vocab.json": b"{}"}) as (endpoint, _):
        local_hub.ask(monkeypatch, endpoint, tmp_path / "hub")
        back = load_run("some/export")
    assert back.config == config
    assert back.tokenizer.fingerprint() == loaded.tokenizer.fingerprint()
    rewritten(tmp_path, "config.json", fr2en=to_dict(config) | {"seed": 1})
    with pytest.raises(UserError, match=r"config\.json: fr2en: unknown key 'seed'"):
        load_run(tmp_path)


infer = scripted(inference.main)


def test_inference_translates_as_transformers_does(
    infer: Scripts, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder, sentences = folders["swish_tied"], french_sentences(20)
    (tmp_path / "in.fr").write_text("\n".join(sentences) + "\n", "utf-8")
    args = ("--model_path", folder, "--src_file", tmp_path / "in.fr", "--search", "greedy")
    ours = infer(*args, "--set", "decode.max_len_ratio=99")
    assert ours.code == 0, ours.err
    tokenizer: Any = MarianTokenizer.from_pretrained(folder)
    inputs = tokenizer(sentences, return_tensors="pt", padding=True)
    theirs = MarianMTModel.from_pretrained(folder)
    rules = {"num_beams": 1, "max_new_tokens": 39, "max_length": None, "forced_eos_token_id": None}
    found = theirs.eval().generate(**inputs, **rules)
    texts = tokenizer.batch_decode(found, skip_special_tokens=True, use_source_tokenizer=False)
    assert ours.out.splitlines() == [text.strip() for text in texts]


REAL = ROOT.parent / "shared/data/marian-fr-en"


@pytest.mark.skipif(not REAL.is_dir(), reason="the real tokenizer's files are not there")
def test_a_model_of_the_real_tokenizer(tmp_path: Path) -> None:
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
    folder = write_marian_model(REAL, tmp_path, **sizes)
    loaded = load_run(folder)
    src, tgt_in, _ = batch(loaded, 4)
    theirs = theirs_in(folder, torch.float32)
    mask = src != loaded.tokenizer.pad_id
    found = theirs(src, attention_mask=mask, decoder_input_ids=tgt_in).logits
    torch.testing.assert_close(loaded.model(src, tgt_in), found, atol=1e-4, rtol=0)
    assert found.shape[-1] == loaded.tokenizer.tgt_vocab_size > 50_000


# --------------------------------------------------------------------------------- what is refused

# Of each file the keys that change, and words of the line that names what is wrong.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CONFIG, {"model_type": "t5"}, "model_type = 't5': only 'marian' is known here"),
    (CONFIG, {"model_type": None}, "model_type = None"),
    (CONFIG, {"scale_embedding": False}, "scale_embedding = False: only True is known here"),
    (CONFIG, {"static_position_embeddings": False}, "static_position_embeddings = False"),
    (CONFIG, {"normalize_before": True}, "normalize_before = True"),
    (CONFIG, {"normalize_embedding": True}, "normalize_embedding = True"),
    (CONFIG, {"add_final_layer_norm": True}, "add_final_layer_norm = True"),
    (CONFIG, {"activation_function": "tanh"}, "activation_function = 'tanh': known are relu, gelu"),
    (CONFIG, {"decoder_ffn_dim": 32}, "decoder_ffn_dim = 32: must be encoder_ffn_dim = 48"),
    (CONFIG, {"decoder_attention_heads": 2}, "decoder_attention_heads = 2: must be encoder_att"),
    (CONFIG, {"encoder_attention_heads": 5, "decoder_attention_heads": 5}, "model.n_heads"),
    (CONFIG, {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32}, r"fc1\..* is \[48.*, by config"),
    (CONFIG, {"encoder_layers": 3}, r"model\.encoder\.layers\.2\..* is missing"),
    (CONFIG, {"encoder_layers": 1}, r"model\.encoder\.layers\.1\..* has no place"),
    (CONFIG, {"encoder_layers": "two"}, "config.json: Strict"),
    (CONFIG, {"d_model": 2**20}, r"the shape of .* is \[32.*, by config"),
    (CONFIG, {"min_length": 3}, r"/config\.json: min_length = 3"),
    (GENERATION, {"no_repeat_ngram_size": -1}, r"decode\.no_repeat_ngram_size = -1"),
    (CONFIG, {"vocab_size": 50}, r"vocab_size = 50: the tokenizer has \d+ pieces"),
    (CONFIG, {"eos_token_id": 2}, "eos_token_id = 2: with this tokenizer"),
    (CONFIG, {"decoder_start_token_id": 0}, "decoder_start_token_id = 0"),
    (CONFIG, {"pad_token_id": 0}, "pad_token_id = 0"),
    ("tokenizer_config.json", {"additional_special_tokens": ["é"]}, r"were added .* \(é\): give"),
    (GENERATION, {"bad_words_ids": [[3]]}, r"bad_words_ids = \[\[3\]\]"),
    (GENERATION, {"suppress_tokens": [3]}, r"suppress_tokens = \[3\]"),
    (GENERATION, {"forced_eos_token_id": 3}, "forced_eos_token_id = 3: with this tokenizer"),
    (GENERATION, {"num_beams": True}, r"num_beams = True: must be an integer"),
    (GENERATION, {"max_new_tokens": 7.5}, r"max_new_tokens = 7\.5: must be an integer"),
    (GENERATION, {"length_penalty": -1.0}, r"decode\.length_penalty = -1\.0"),
    (GENERATION, {"max_length": "long"}, r"generation_config\.json: max_length = 'long': must be"),
]
# Settings of the search, each with a value that has no effect and one that has.
SETTINGS: dict[str, tuple[Any, Any]] = {
    "do_sample": (False, True),
    "num_beam_groups": (1, 2),
    "guidance_scale": (1.0, 1.5),
    "sequence_bias": ([], [[[5], -1.0]]),
    "forced_decoder_ids": ([], [[1, 5]]),
    "exponential_decay_length_penalty": (None, [5, 1.1]),
    "forced_bos_token_id": (None, 7),
    "begin_suppress_tokens": ([], [5]),
    "min_length": (0, 3),
    "min_new_tokens": (0, 3),
    "encoder_no_repeat_ngram_size": (0, 3),
    "repetition_penalty": (1.0, 1.2),
    "encoder_repetition_penalty": (1.0, 1.2),
    "watermarking_config": (None, {"bias": 2.0}),
    "stop_strings": ([], ["."]),
    "early_stopping": ("never", True),
}


def refusal(folder: Path, home: Path, words: str) -> None:
    """One line with these words, and nothing written."""
    before = runs_in(home)
    with pytest.raises(UserError, match=words) as caught:
        load_run(folder)
    assert "\n" not in str(caught.value)
    assert runs_in(home) == before


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED, ids=str)
def test_what_cannot_be_represented_is_named(
    folders: dict[str, Path],
    home: Path,
    tmp_path: Path,
    name: str,
    changes: dict[str, Any],
    words: str,
) -> None:
    folder = shutil.copytree(folders["swish_tied"], tmp_path / "model")
    generation = {"max_length": 40, "num_beams": 4}
    (folder / GENERATION).write_text(json.dumps(generation), "utf-8")
    rewritten(folder, name, **changes)
    refusal(folder, home, words)


def test_settings_without_an_equal_are_refused_unless_they_have_no_effect(
    folders: dict[str, Path], home: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["swish_tied"], tmp_path / "model")
    neutral = {key: values[0] for key, values in SETTINGS.items()}
    for key, (_, effective) in SETTINGS.items():
        (folder / GENERATION).write_text(json.dumps({**neutral, key: effective}), "utf-8")
        refusal(folder, home, f"{key} = .*: this project's search takes no such setting from")
    saved = json.loads((folder / CONFIG).read_text("utf-8"))
    pad, eos = saved["pad_token_id"], saved["eos_token_id"]
    same = {"eos_token_id": [eos], "forced_eos_token_id": [eos], "suppress_tokens": [pad]}
    (folder / GENERATION).write_text(json.dumps({**neutral, **same, "bad_words_ids": []}), "utf-8")
    for key in ("static_position_embeddings", "normalize_before", "add_final_layer_norm"):
        saved.pop(key, None)  # as the default is
    (folder / CONFIG).write_text(json.dumps(saved), "utf-8")
    decode = load_run(folder).config.decode
    assert (decode.beam_size, decode.n_best, decode.max_len) == (1, 1, 64)
    del saved["scale_embedding"]
    (folder / CONFIG).write_text(json.dumps(saved), "utf-8")
    refusal(folder, home, "scale_embedding = False: only True is known here")


def test_a_file_that_changes_makes_another_run(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["relu_two_vocabularies"], tmp_path / "model")
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_text("{}", "utf-8")  # as in our exports
    found = {_checksum(folder)}
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in paths:
        path.write_bytes(path.read_bytes() + b" ")
        found.add(_checksum(folder))
    assert len(paths) == 9
    assert len(found) == 10


class Mischief:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("executed"),)


def test_weights_and_files_that_are_not_a_models_are_named(
    folders: dict[str, Path], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(folders["swish_tied"], tmp_path / "model")
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    weights = load_safetensors(whole)
    shared = weights["model.shared.weight"]
    for name, tensor, words in (
        ("model.shared.weight", shared * torch.nan, "model.shared.weight holds NaN or infinity"),
        ("lm_head.weight", shared + 1, "shared.weight is not what config.json says: see tie_word_"),
        (
            "model.decoder.layer_norm.weight",
            shared[0].clone(),
            "decoder.layer_norm.weight has no place in",
        ),
        ("model.encoder.embed_positions.weight", shared[:9].clone(), "positions other than the"),
        ("model.decoder.embed_positions.weight", shared[:9, :7].clone(), "positions other than"),
        ("model.decoder.embed_positions.weight", torch.tensor(1.0), "positions other than"),
    ):
        save_file({**weights, name: tensor}, path)
        refusal(folder, home, words)
    path.write_bytes(whole[:1000])
    refusal(folder, home, "model.safetensors: not a whole safetensors file")
    path.unlink()
    refusal(folder, home, "without model.safetensors or pytorch_model.bin")
    torch.save({"model.shared.weight": Mischief()}, folder / "pytorch_model.bin")
    refusal(folder, home, "weights file .it is another kind of file, or holds more than tensors")
    torch.save({"model.shared.weight": shared.to_sparse()}, folder / "pytorch_model.bin")
    refusal(folder, home, "pytorch_model.bin: not a whole weights file")
    assert not Path("executed").exists()
    rewritten(folder, CONFIG, tie_word_embeddings=False)
    save_file({**weights, "lm_head.weight": shared + 1}, path)  # as transformers 4 wrote such ones
    of_its_own = load_run(folder).model
    assert torch.equal(of_its_own.src_embedding.weight, of_its_own.tgt_embedding.weight)
    assert torch.equal(of_its_own.output.weight, of_its_own.src_embedding.weight + 1)
    rewritten(folder, CONFIG, tie_word_embeddings=True)
    path.write_bytes(whole)
    (folder / GENERATION).write_text("[" * 100_000)
    refusal(folder, home, "generation_config.json: RecursionError")
    rewritten(folder, "vocab.json", **{"▁": 999})
    refusal(folder, home, r"vocab.json in '.*': its \d+ pieces must have the ids from 0 to")
    (folder / "source.spm").unlink()
    refusal(folder, home, "lacks source.spm")
    (folder / CONFIG).write_text('{"model_type": "marian')
    refusal(folder, home, "config.json: JSONDecodeError: Unterminated string")


def test_two_vocabularies_need_two_tables_and_the_same_special_ids(
    folders: dict[str, Path], home: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["relu_two_vocabularies"], tmp_path / "model")
    target = json.loads((folder / "target_vocab.json").read_text("utf-8"))
    rewritten(folder, CONFIG, share_encoder_decoder_embeddings=True)
    refusal(folder, home, "share_encoder_decoder_embeddings = True: the tokenizer has two vocab")
    rewritten(folder, CONFIG, share_encoder_decoder_embeddings=False)
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    weights = load_safetensors(whole)
    table = weights.pop("model.encoder.embed_tokens.weight")
    save_file({**weights, "model.shared.weight": table}, path)
    refusal(folder, home, "model.encoder.embed_tokens.weight is missing")
    path.write_bytes(whole)
    rewritten(folder, CONFIG, tie_word_embeddings=False)
    refusal(folder, home, "lm_head.weight is missing")
    rewritten(folder, CONFIG, tie_word_embeddings=True)
    rewritten(folder, "target_vocab.json", **{"</s>": 5, list(target)[5]: 0})
    refusal(folder, home, "target_vocab.json in '.*': the id of </s> is 5, in vocab.json it is 0")
    (folder / "target_vocab.json").unlink()
    refusal(folder, home, "lacks target_vocab.json")


# -------------------------------------------------------------------------------------- fine-tuning


def test_the_finetuning_config_goes_on_from_a_model(
    folders: dict[str, Path], tmp_path: Path, in_process: Any
) -> None:
    settings = toy_settings(
        tmp_path,
        f"train.init_from={folders['swish_tied']} train.max_epochs=2 decode.beam_size=2",
        f"decode.n_best=1 data.max_len=60 data.clean.max_words=none train.runs_dir={tmp_path}",
    )
    own = "model.", "tokenizer.", "optim."
    settings = [each for each in settings if not each.startswith(own)]
    config = load_config(ROOT / "configs/iwslt2017_finetune.py", settings)
    backwards = apply_overrides(config, ["data.src_lang=en", "data.tgt_lang=fr"])
    with pytest.raises(UserError, match=r"^train.init_from = .* is for fr -> en, the data is en "):
        run_here(backwards)
    first = load_run(folders["swish_tied"])

    def look(trainer: Engine, learner: Learner) -> None:
        @trainer.on(Events.STARTED)
        def compare() -> None:
            assert same(dict(learner.model.state_dict()), dict(first.model.state_dict()))

    whole = run_here(config, hook=look).run
    losses = [line["loss"] for line in log_of(whole).values()]
    assert fmean(losses[-10:]) < fmean(losses[:10]) - 0.3  # one batch differs as much from another
    saved = load_run(whole.path)
    assert saved.config.model == replace(first.config.model, dropout=0.1)
    assert saved.config.tokenizer == first.config.tokenizer
    stopped = run_here(apply_overrides(config, ["train.max_steps=7"])).run
    run_here(config, resume=stopped.path)  # as `--resume RUN --config FILE`
    assert_same(whole, stopped, "regular_checkpoint_2.pt")
    paths = [whole.checkpoints / f"regular_checkpoint_{epoch}.pt" for epoch in (2, 1)]
    averaged, newest = average_checkpoints(paths), content(paths[0])
    assert averaged["progress"]["step"] == newest["progress"]["step"]
    path = write_average(whole, averaged, how="last2")
    assert load_run(path).model.output.bias.shape == first.model.output.bias.shape
    assert in_process(average.main)(folders["swish_tied"], paths[0]).code == 0
    [with_parent] = whole.checkpoints.glob("averaged_checkpoint_files2_*")
    assert content(with_parent)["config"] == newest["config"]
