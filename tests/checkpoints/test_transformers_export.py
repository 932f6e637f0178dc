"""An exported folder runs in transformers as it is, and says there what the model says here."""

import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import ctranslate2
import pytest
import torch
from conftest import run_script
from huggingface_hub import constants
from made_runs import untrained_run
from marian_files import (
    ENGLISH,
    FRENCH,
    french_sentences,
    with_two_vocabularies,
    write_marian_model,
)
from tiny_models import VOCAB, tiny_config, tiny_model, vocabulary
from toy_runs import same
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig

import export as script
import test as test_script
from checkpoints.ctranslate2 import convert
from checkpoints.model_card import model_card
from checkpoints.transformers_export import write_transformers
from checkpoints.transformers_weights import to_ours, to_theirs
from configs import schema
from configs.schema import Config, DecodeConfig, Sinusoidal, Subword
from tokenizer.base import BaseTokenizer
from tokenizer.marian import FrEnTokenizer
from tokenizer.separate import SeparateTokenizer
from tokenizer.subword import SubwordTokenizer
from translation.loading import load_run
from translation.search import BatchSearch, pad_sources
from translation.translator import Translator
from utils.errors import UserError

CPU = torch.device("cpu")
MAX_LEN = 16
HALF = Sinusoidal(layout="half")
# Of each norm, layout, tying, vocabulary, activation and bias one.
CASES: dict[str, dict[str, Any]] = {
    "post_bpe": {"norm": "post", "tie_embeddings": "target", "output_bias": True},
    "post_unigram": {"norm": "post", "position": HALF, "activation": "silu"},
    "post_marian": {"norm": "post", "tie_embeddings": "all", "activation": "gelu"},
    "pre_bpe": {"tie_embeddings": "all", "bias": False},
    "pre_unigram": {"n_encoder_layers": 3, "position": HALF, "output_bias": True},
    "pre_marian": {"tie_embeddings": "target", "activation": "gelu"},
}
EACH = 170  # sentences: more than 1,000 of all models
# Beam search without length penalty, and as many tokens as there may be, are the same here and
# there.
DECODE = DecodeConfig(
    max_len=MAX_LEN,
    max_len_ratio=999,
    beam_size=4,
    n_best=1,
    length_penalty=0,
    no_repeat_ngram_size=3,
)


@pytest.fixture(scope="module")
def tokenizers(
    marian_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, BaseTokenizer]:
    marian = tmp_path_factory.mktemp("files")
    shutil.copytree(marian_folder, marian, dirs_exist_ok=True)
    (marian / "tokenizer_config.json").unlink()  # what is not required
    small = Subword(algorithm="unigram", vocab_size=300)  # it spells nothing in bytes
    return {
        "bpe": SubwordTokenizer.train(FRENCH + ENGLISH, Subword(vocab_size=700)),
        "unigram": SubwordTokenizer.train(FRENCH + ENGLISH, small),
        "marian": FrEnTokenizer(marian),
    }


def drawn_texts(n: int, seed: int = 0) -> list[str]:
    """Words of the training text in any order, and words of characters that it has not."""
    draw = random.Random(seed)
    words = [*sorted({word for text in FRENCH for word in text.split()}), "ß", "日本"]
    return [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(n)]


class Exported:
    """A random model that makes much of its sources, and the folder that is made of it."""

    def __init__(
        self, folder: Path, tokenizer: BaseTokenizer, dtype: torch.dtype, **changes: Any
    ) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        changes = {"position": Sinusoidal(), "d_model": 32, "n_heads": 4, **changes}
        self.config = Config(model=tiny_config(**changes), decode=DECODE)
        self.model = tiny_model(vocab=tokenizer, gain=1, **changes).to(dtype)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.mul_(8 if "cross" in name and parameter.dim() > 1 else 1)
            self.model.output.weight[tokenizer.eos_id] *= 2.5  # some sentences come to an end
        self.translator = Translator(BatchSearch(self.model, tokenizer, CPU), DECODE)
        self.write()

    def write(self, **how: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_transformers(self.model, self.config, self.tokenizer, self.folder, **how)

    def theirs(self) -> tuple[Any, Any]:
        """Their tokenizer and model; of the weights none is missing and none is left over."""
        dtype = self.model.output.weight.dtype
        how = {"output_loading_info": True, "dtype": dtype}
        model, told = AutoModelForSeq2SeqLM.from_pretrained(self.folder, **how)
        assert not any(told.values())
        return AutoTokenizer.from_pretrained(self.folder), model

    def generated(self, texts: list[str], **how: Any) -> list[tuple[int, ...]]:
        """What `generate` finds, without start, EOS and padding."""
        tokenizer, model = self.theirs()
        rows = model.generate(**tokenizer(texts, return_tensors="pt", padding=True), **how)
        return [self.cut(row[1:]) for row in rows.tolist()]

    def cut(self, ids: list[int]) -> tuple[int, ...]:
        eos_id = self.tokenizer.eos_id
        return tuple(ids[: [*ids, eos_id].index(eos_id)])

    def found(self, texts: list[str], *, greedy: bool) -> list[tuple[int, ...]]:
        """What the search here finds."""
        sources = self.translator.encode(texts)
        searched = self.translator.searcher.search_ids(sources, DECODE, greedy=greedy)
        return [best.ids for best, *_ in searched]


@pytest.fixture(scope="module")
def export_case(
    tokenizers: dict[str, BaseTokenizer], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Exported]:
    def made(case: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Exported:
        tokenizer = tokenizers[case.partition("_")[2]]
        folder = tmp_path_factory.mktemp(case) / "out"
        return Exported(folder, tokenizer, dtype, **{**CASES[case], **changes})

    return made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where models of transformers are kept as runs."""
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("case", CASES)
def test_logits_are_equal(case: str, export_case: Callable[..., Exported]) -> None:
    exported = export_case(case, torch.float64)
    tokenizer, model = exported.theirs()
    texts, vocabulary = drawn_texts(20), exported.tokenizer
    src = pad_sources(exported.translator.encode(texts), vocabulary.pad_id)
    generator = torch.Generator().manual_seed(0)
    tgt_in = torch.randint(vocabulary.tgt_vocab_size, (20, 12), generator=generator)
    tgt_in[:, 0] = vocabulary.bos_id
    assert tokenizer.pad_token_id == model.config.pad_token_id == vocabulary.bos_id
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        ours, theirs = exported.model(src, tgt_in), model(**batch, decoder_input_ids=tgt_in).logits
    assert (ours - theirs).abs().max() < 1e-10
    assert ours.std() > 0.3


@pytest.mark.parametrize("case", CASES)
def test_searches_find_the_same(case: str, export_case: Callable[..., Exported]) -> None:
    exported = export_case(case)
    texts = drawn_texts(EACH)
    found = exported.found(texts, greedy=True)
    assert exported.generated(texts, num_beams=1) == found
    assert len(set(found)) > EACH / 2  # the sources decide, so equal outputs mean something
    beams = exported.found(texts[:40], greedy=False)
    assert beams != found[:40]
    for ours, theirs in zip(beams, exported.generated(texts[:40])):  # by the folder's own settings
        # Here one that has ended is better than any that is cut off.
        assert ours == theirs or len(ours) < len(theirs) == MAX_LEN


@pytest.mark.parametrize("case", CASES)
def test_out_and_in_again_not_a_bit_is_another(
    case: str, export_case: Callable[..., Exported], home: Path
) -> None:
    exported = export_case(case)
    back = load_run(exported.folder)
    assert back.config == exported.config
    assert back.tokenizer.fingerprint() == exported.tokenizer.fingerprint()
    assert same(back.model.state_dict(), exported.model.state_dict())


def test_tied_weights_may_be_given_once_and_the_bias_not_at_all() -> None:
    changes: dict[str, Any] = {"norm": "post", "position": HALF, "tie_embeddings": "all"}
    config, ours = (make(**changes, output_bias=True) for make in (tiny_config, tiny_model))
    weights = to_theirs(ours.state_dict(), config)
    names = ("lm_head.weight", "final_logits_bias", "model.decoder.embed_tokens.weight")
    for name in (*names, "model.encoder.embed_tokens.weight"):
        del weights[name]
    back = to_ours(weights, config)
    assert torch.equal(back["output.weight"], ours.output.weight)
    assert torch.equal(back["output.bias"], torch.zeros(VOCAB, dtype=torch.float64))
    weights["lm_head.weight"] = weights.pop("model.shared.weight")
    assert torch.equal(to_ours(weights, config)["src_embedding.weight"], ours.output.weight)
    del weights["model.encoder.layers.1.fc2.bias"]
    with pytest.raises(KeyError, match=r"layers\.1\.fc2\.bias"):
        to_ours(weights, config)


@pytest.mark.parametrize("two_vocabularies", [False, True])
def test_a_marian_model_comes_out_as_it_went_in(
    two_vocabularies: bool, marian_folder: Path, tmp_path: Path, home: Path
) -> None:
    files, changes = marian_folder, {}
    if two_vocabularies:
        files = with_two_vocabularies(files, tmp_path / "files")
        changes = {"share_encoder_decoder_embeddings": False}
    rates = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
    given = write_marian_model(files, tmp_path / "given", **rates, **changes)
    loaded = load_run(given)
    (out := tmp_path / "out").mkdir()
    write_transformers(loaded.model, loaded.config, loaded.tokenizer, out)
    before, after = (AutoModelForSeq2SeqLM.from_pretrained(folder) for folder in (given, out))
    ours, theirs = after.config.to_dict(), before.config.to_dict()
    changed = {"_name_or_path", "bos_token_id", "init_std"}
    changed |= {"activation_function", "forced_eos_token_id"}  # silu is swish; for its search
    assert {key for key, value in theirs.items() if ours.get(key) != value} == changed
    weights, others = before.state_dict(), after.state_dict()
    for name in [name for name in weights if "embed_positions" in name]:  # computed there or here
        torch.testing.assert_close(weights.pop(name), others.pop(name), atol=1e-5, rtol=0)
    assert same(others, weights)
    tokenizer = AutoTokenizer.from_pretrained(out)
    batch = tokenizer(french_sentences(20), return_tensors="pt", padding=True)
    how = {"num_beams": 1, "forced_eos_token_id": None}
    assert torch.equal(before.generate(**batch, **how), after.generate(**batch, **how))
    for each in (after, tokenizer):
        each.save_pretrained(tmp_path / "again")
    assert same(load_run(tmp_path / "again").model.state_dict(), loaded.model.state_dict())
    tokenizer.add_tokens(["<ent>"])
    tokenizer.save_pretrained(tmp_path / "again")
    with pytest.raises(UserError, match="tokens were added to this tokenizer"):
        load_run(tmp_path / "again")


def test_positions_reach_as_far_as_sentences_may(export_case: Callable[..., Exported]) -> None:
    exported = export_case("post_bpe", torch.bfloat16)
    data = exported.config.data
    for read, written, expected in ((128, 16, 1024), (1500, 16, 1500), (128, 1300, 1300)):
        decode = replace(DECODE, max_len=written)
        exported.config = replace(exported.config, data=replace(data, max_len=read), decode=decode)
        exported.write()
        model = AutoModelForSeq2SeqLM.from_pretrained(exported.folder)
        tokenizer = AutoTokenizer.from_pretrained(exported.folder)
        found = model.config.max_position_embeddings, tokenizer.model_max_length, model.dtype
        assert found == (expected, expected, torch.bfloat16)


def test_what_transformers_saves_again_is_the_same_model(
    export_case: Callable[..., Exported], tmp_path: Path
) -> None:
    # Marian's class computes the table of positions anew.
    tokenizer, model = (exported := export_case("post_bpe")).theirs()
    tokenizer.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    before = exported.generated(texts := drawn_texts(20))
    exported.folder = tmp_path
    assert exported.generated(texts) == before


def test_a_search_that_samples_is_theirs_too(export_case: Callable[..., Exported]) -> None:
    exported = export_case("post_bpe")
    for search in (schema.Sampling(), schema.Sampling(temperature=0.7, top_k=3, top_p=0.5)):
        exported.config = replace(exported.config, decode=replace(DECODE, search=search))
        exported.write()
        how = GenerationConfig.from_pretrained(exported.folder)
        drawn = how.do_sample, how.max_length, how.temperature, how.top_k, how.top_p
        # Where nothing is said they draw from the 50 most probable.
        top = search.top_k or 0, search.top_p or 1
        assert drawn == (True, MAX_LEN + 1, search.temperature, *top)


@pytest.mark.parametrize("case", CASES)
def test_ctranslate2_makes_of_the_folder_what_we_export_to_it(
    case: str, export_case: Callable[..., Exported], tmp_path: Path, home: Path
) -> None:
    exported, texts = export_case(case), drawn_texts(60)
    tokenizer = exported.tokenizer
    exported.write(zero_start=True)
    assert exported.generated(texts, num_beams=1) == exported.found(texts, greedy=True)
    (tmp_path / "ours").mkdir()
    convert(exported.model, exported.config.model, tokenizer, tmp_path / "ours")
    converter = ctranslate2.converters.TransformersConverter(str(exported.folder))
    converter.convert(str(tmp_path / "theirs"))
    sources = [tokenizer.src_pieces(ids) for ids in exported.translator.encode(texts)]
    # What we rule out there is ruled out here.
    vocabulary = json.loads((tmp_path / "theirs" / "shared_vocabulary.json").read_text())
    never = [[piece] for piece in ("<unused>", "<pad>", "<s>") if piece in vocabulary]

    def translations(name: str, beam_size: int, **how: Any) -> list[Any]:
        engine = ctranslate2.Translator(str(tmp_path / name), intra_threads=1)
        how |= {"beam_size": beam_size, "max_decoding_length": MAX_LEN, "length_penalty": 0}
        return [found.hypotheses for found in engine.translate_batch(sources, **how)]

    for beam_size in (1, 4):
        ours = translations("ours", beam_size)
        assert translations("theirs", beam_size, suppress_sequences=never) == ours


@pytest.mark.parametrize("case", ["post_bpe", "post_unigram"])
def test_a_start_from_zeros_leaves_the_probabilities_and_is_no_run(
    case: str, export_case: Callable[..., Exported], home: Path
) -> None:
    exported = export_case(case, torch.float64)
    exported.write(zero_start=True)
    _, model = exported.theirs()
    src = torch.tensor(exported.translator.encode(drawn_texts(1)))
    tgt_in = torch.tensor([[exported.tokenizer.bos_id, 20, 30]])
    theirs_in = torch.tensor([[model.config.decoder_start_token_id, 20, 30]])
    with torch.no_grad():
        ours = exported.model(src, tgt_in).log_softmax(-1)
        theirs = model(src, decoder_input_ids=theirs_in).logits.log_softmax(-1)
    torch.testing.assert_close(theirs[..., :-1], ours, atol=1e-10, rtol=0)
    with pytest.raises(UserError, match="written with --zero_start, for other programs: name the"):
        load_run(exported.folder)


# ---------------------------------------------------------------------------------------- tokenizer


@pytest.mark.parametrize("case", ["post_bpe", "pre_unigram"])
def test_any_text_has_our_ids_and_any_ids_our_text(
    case: str, export_case: Callable[..., Exported]
) -> None:
    exported = export_case(case)
    ours, draw = exported.tokenizer, random.Random(0)
    theirs = AutoTokenizer.from_pretrained(exported.folder)
    assert (theirs.pad_token_id, theirs.eos_token_id) == (ours.bos_id, ours.eos_id)
    spaces = [char for code in range(0x10000) if (char := chr(code)).isspace()]
    odd = [
        *"\u200b\xad\u0e00aé'’½…ﬁ▁<|\"\ufeff\x00🙂日",
        "e\u0301",
        "<s>",
        "</s>",
        "<pad>",
        "<unk>",
    ]
    drawn = ["".join(draw.choices(spaces + odd, k=draw.randint(0, 30))) for _ in range(500)]
    texts = [*drawn, *FRENCH, *spaces, "a".join(spaces)]
    encoded = exported.translator.encode(texts)
    assert theirs(texts)["input_ids"] == encoded
    ids = [draw.choices(range(ours.tgt_vocab_size), k=draw.randint(0, 30)) for _ in range(500)]
    ids = [[*(i for i in row if i != ours.eos_id), ours.eos_id, ours.bos_id] for row in ids]
    for rows in (encoded, ids):
        assert theirs.batch_decode(rows, skip_special_tokens=True) == ours.decode_batch(rows)


# ---------------------------------------------------------------------------------------- a command


@pytest.fixture(scope="module")
def run(trained_run: Path, folder: Path) -> Path:
    return untrained_run(trained_run, folder, position=Sinusoidal(), tie_embeddings="all")


def test_the_script_writes_a_folder_whose_card_works(
    run: Path, tmp_path: Path, home: Path, in_process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = in_process(test_script.main)
    assert score("--model_path", run, "--limit", "8").code == 0
    [scored] = (run / "results").glob("*_scores.json")
    (run / "results" / "other_scores.json").write_text(
        scored.read_text().replace('"checkpoint_sha256": "', '"checkpoint_sha256": "0')
    )
    (run / "results" / "broken_scores.json").write_text("{")
    record = json.loads(scored.read_text())
    data = record["config"]["data"]
    elsewhere = {"corpus": {**data["corpus"], "n_test": 7}}
    changes = elsewhere, {"max_len": 7}, {"eval_long": "truncate"}
    others = [{**record, "config": {"data": {**data, **change}}} for change in changes]
    for n, other in enumerate([{**record, "partners": []}, {**record, "neighbours": {}}, *others]):
        (run / "results" / f"other{n}_first8_scores.json").write_text(json.dumps(other))
    out = tmp_path / "out"
    ended = run_script(
        "export.py", "--model_path", run, "--format", "transformers", "--output_dir", out
    )
    assert ended.returncode == 0, ended.stderr
    names = "README.md config.json generation_config.json model.safetensors tokenizer".split()
    names += ["tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in out.iterdir()) == names
    card = (out / "README.md").read_text("utf-8")
    scores = json.loads(scored.read_text())["scores"]
    assert f"| test_first8_beam | beam 5 | 8 | {scores['sacrebleu']:.2f} |" in card
    assert card.count("_first8_") == card.count("| beam 5 |") == 1
    assert 'language: ["fr", "en"]' in card
    [snippet] = re.findall("```python\n(.*?)```", card, re.DOTALL)
    monkeypatch.chdir(out)
    exec(snippet, {})
    translation = Translator.load(run, device="cpu").translate("Le chat dort.")
    assert score.capsys.readouterr().out == f"{translation.text}\n"
    again = ("--model_path", out, "--format", "transformers", "--output_dir", tmp_path / "again")
    assert in_process(script.main)(*again).code == 0
    without = (tmp_path / "again/README.md").read_text("utf-8")
    for words in ('`{"kind": ', "| trained for |"):
        assert (words in card, words in without) == (True, False)
    assert "no training is on record" in without


@pytest.mark.parametrize(
    ("src", "tgt", "line"),
    [
        ("zh_CN", "pt-BR", 'language: ["zh", "pt"]'),
        ("gsw", "deu", 'language: ["gsw", "de"]'),
        ("en", "English", 'language: ["en"]'),
        ("source", "target", "library_name: transformers"),
    ],
)
def test_a_card_names_languages_by_codes_that_the_hub_takes(
    src: str, tgt: str, line: str, tmp_path: Path
) -> None:
    corpus = schema.ParallelFiles(root="x")
    config = Config(data=schema.DataConfig(corpus=corpus, src_lang=src, tgt_lang=tgt))
    how: dict[str, Any] = {"n_parameters": 1, "results": tmp_path, "checksum": ""}
    tokenizer = SubwordTokenizer.train(["a b"], Subword())
    card = model_card(config, tokenizer, {"epoch": 0, "step": 1}, **how)
    assert card.splitlines()[1] == line
    assert "| 1 updates (0 whole epochs) |" in card
    assert f"Translates {src} to {tgt}, a sentence at a time." in card
    assert 'tokenizer(["..."]' in card
    (tmp_path / "test_beam.src.txt").write_text("Demat d'an holl.\nYa.\n", "utf-8")
    assert 'tokenizer(["Demat d\'an holl."]' in model_card(config, tokenizer, {"step": 0}, **how)


POSITION = "model.position.kind = '{}'".format
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"position": schema.NoPosition()}, POSITION("none")),
    ({"position": schema.Learnable()}, POSITION("learnable")),
    ({"position": schema.Rope()}, POSITION("rope")),
    ({"position": schema.Combined()}, POSITION("combined")),
    ({"position": schema.Randomized(scheme=Sinusoidal())}, POSITION("randomized")),
    ({"position": Sinusoidal(layout="t2t")}, "model.position.layout = 't2t'"),
    ({"position": Sinusoidal(base=500.0)}, "model.position.base = 500.0"),
    ({"norm": "deepnorm"}, "model.norm = 'deepnorm'"),
    ({"backend": "torch"}, "model.backend = 'torch'"),
    ({"gated": True}, "model.gated = True"),
    ({"layer_norm": "rms"}, "model.layer_norm = 'rms'"),
    ({"norm": "pre"}, "a pre-norm model with two vocabularies"),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED)
def test_what_has_no_equal_is_refused_by_name(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    changes = {"position": Sinusoidal(), **changes}
    two = vocabulary(shared_vocab=False)
    config = Config(model=tiny_config(**changes))
    with pytest.raises(UserError, match=f"^{said} cannot be exported to transformers: its "):
        write_transformers(tiny_model(vocab=two, **changes), config, two, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_two_vocabularies_of_subwords_are_refused(
    norm: str, tokenizers: dict[str, BaseTokenizer], tmp_path: Path
) -> None:
    bpe = cast(SubwordTokenizer, tokenizers["bpe"])
    two: Any = SeparateTokenizer(bpe, bpe, src_lang="fr", tgt_lang="en")
    words = (
        r"^separate vocabularies .tokenizer\.joint = False. cannot .* --format safetensors takes"
    )
    with pytest.raises(UserError, match=words):
        Exported(tmp_path / "out", two, torch.float32, norm=norm)
    assert list((tmp_path / "out").iterdir()) == []


def test_ctranslate2_has_no_equal_of_two_vocabularies(marian_folder: Path, tmp_path: Path) -> None:
    two = FrEnTokenizer(with_two_vocabularies(marian_folder, tmp_path / "two"))
    with pytest.raises(UserError, match="converter needs one vocabulary that ends in padding"):
        Exported(tmp_path / "out", two, torch.float32, norm="post").write(zero_start=True)
