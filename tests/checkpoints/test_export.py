"""Export: safetensors give the run's model back, and CTranslate2 decodes as this project does."""

import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import torch
from made_runs import Scripts, best_of, scripted
from safetensors.torch import load_file, save_file
from tiny_models import POSITIONS, tiny_config
from torch import Tensor
from toy_runs import same

import export as script
import inference
from checkpoints import ctranslate2 as export_ctranslate2
from checkpoints.content import read_checkpoint
from checkpoints.ctranslate2 import NEVER, convert
from checkpoints.resolve import resolve_checkpoint
from checkpoints.run import FORMAT, WEIGHTS, Run
from configs.schema import (
    Config,
    Interleaved,
    Learnable,
    ModelConfig,
    Randomized,
    Rope,
    Sinusoidal,
    Subword,
)
from configs.serialize import to_dict
from models.build import build_model
from models.decoding.hypothesis import Limits, never_generated
from models.decoding.stepwise import greedy_search
from models.positional_encodings.base import InputPosition
from models.transformer import TranslationTransformer
from tokenizer.base import BaseTokenizer
from tokenizer.build import load_tokenizer
from tokenizer.marian import FrEnTokenizer
from tokenizer.separate import SeparateTokenizer
from tokenizer.subword import SubwordTokenizer
from translation.loading import load_run
from translation.search import pad_sources
from translation.translator import Translator
from utils.errors import UserError

TEXTS = [
    "le chat noir dort sur la table",
    "un homme parle à la femme du roi",
    "the black cat sleeps on the table",
    "a man talks to the wife of the king",
]
MAX_LEN = 20
SHAPE: dict[str, Any] = {"position": Sinusoidal(), "d_model": 32, "n_heads": 4, "d_ff": 48}
LEARNABLE = Learnable(max_positions=64)

EXPORTABLE = (
    "none sinusoidal sinusoidal_half sinusoidal_t2t learnable shape rope rope_complex rope_half "
    "p_rope rope_clipped rope_linear rope_ntk rope_yarn alibi alibi_asymmetric t5 t5_unscaled "
    "kerple_log kerple_power sandwich shaw shaw_keys"
).split()
CASES: dict[str, dict[str, Any]] = {
    **{name: {"position": POSITIONS[name]} for name in EXPORTABLE},
    # Drawn positions that act on the embeddings.
    "drawn_sinusoidal": {"position": Randomized(scheme=Sinusoidal(), spread=64, max_positions=24)},
    "drawn_learnable": {"position": Randomized(scheme=LEARNABLE, spread=64, max_positions=24)},
    "post_norm": {"norm": "post"},
    "gelu": {"activation": "gelu"},
    "silu_and_output_bias": {"activation": "silu", "output_bias": True},
    "no_bias": {"bias": False},
    "gated_with_rms_norms": {"gated": True, "layer_norm": "rms", "n_decoder_layers": 3},
    "gated_silu": {"activation": "silu", "gated": True, "d_ff": 64},
    "post_rms_norm": {"norm": "post", "layer_norm": "rms"},
    "gated_no_bias": {"gated": True, "bias": False},
    "post_norm_no_bias": {"norm": "post", "bias": False},
    "all_tied": {"tie_embeddings": "all"},
    "target_tied": {"tie_embeddings": "target", "norm": "post"},
    "five_layers_and_one": {"n_encoder_layers": 5, "n_decoder_layers": 1},
    "three_heads": {"d_model": 36, "n_heads": 3},
}
INTERLEAVED = Interleaved(others=Rope(), nth=Rope(base=10.0), every=2)
REFUSED = {
    "rope_dynamic_ntk": "DynamicNtkRotary in the encoder",
    "rope_model": "rope_dim = 'model'",
    "rope_cross": "cross-attention",
    "rope_learned": "LearnedRotary in the encoder",
    "selective_rope": "SelectiveRotary in the encoder",
    "repo": "its layers differ",
    "pope": "Pope in the encoder",
    "fope": "Fourier in the encoder",
    "xpos": "XPos in the decoder",
    "fire": "Fire in the encoder",
    "transformer_xl": "TransformerXl in the encoder",
    "deberta": "Deberta in the encoder",
    "tupe": "Tupe in the encoder",
    "dape": "Dape in the encoder",
    "cope": "Cope in the decoder",
    "fox": "ForgetGate in the decoder",
    "interleaved": "its layers differ",
    "ssmax": "Ssmax in the encoder",
    "randomized_rope": "positions are 0, 1, 2, ... there",
    "sinusoidal_t5": "nothing is added to embeddings",
}
ALIKE = (
    "xlnet deberta_log deberta_c2p tupe_r dape_t5 cope_t5 fox_learnable randomized_t5 "
    "learnable_shaw shape_learnable repo_alone interleaved_fox interleaved_pope "
    "interleaved_shaw_t5 ssmax_alibi ssmax_learnable_shaw ssmax_fox"
).split()


def config_of(**changes: Any) -> ModelConfig:
    return tiny_config(**{**SHAPE, **changes})


@pytest.fixture(scope="module")
def tokenizer() -> SubwordTokenizer:
    return SubwordTokenizer.train(TEXTS, Subword(vocab_size=64))


def sharp_model(
    config: ModelConfig, tokenizer: BaseTokenizer, cross_gain: float = 6.0
) -> TranslationTransformer:
    """Random weights that make much of every source (cross_gain); no norm, bias or start value of a
    scheme is idle.
    """
    torch.manual_seed(0)
    model = build_model(config, tokenizer).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            elif "cross_attention" in name:
                parameter.mul_(cross_gain)
            elif name.startswith("scheme"):
                parameter.mul_(2)
        if config.tie_embeddings == "none":
            model.output.weight[tokenizer.eos_id] *= 1.5  # some sentences come to an end
    return model


def random_ids(tokenizer: BaseTokenizer, size: int, seed: int = 0) -> list[list[int]]:
    special = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id}
    ids = [i for i in range(size) if i not in special]
    draw = random.Random(seed)
    return [[*draw.choices(ids, k=draw.randint(1, 17)), tokenizer.eos_id] for _ in range(30)]


class Exported:
    """A model, and the same one in CTranslate2; what both say to the same ids."""

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: BaseTokenizer,
        folder: Path,
        quantization: str = "float32",
        **sharp: float,
    ) -> None:
        folder.mkdir()
        self.tokenizer = tokenizer
        self.model = sharp_model(config, tokenizer, **sharp)
        convert(self.model, config, tokenizer, folder, quantization=quantization)
        # Computed in float32 whatever is stored: products of int8 overflow on some processors.
        how = {"compute_type": "float32", "intra_threads": 1}
        self.translator = ctranslate2.Translator(str(folder), **how)
        pieces = tokenizer.tgt_pieces(range(tokenizer.tgt_vocab_size))
        self.ids = {piece: i for i, piece in enumerate(pieces)}
        self.sources = random_ids(tokenizer, tokenizer.src_vocab_size)
        self.src = pad_sources(self.sources, tokenizer.pad_id)
        bos_id, eos_id = tokenizer.bos_id, tokenizer.eos_id
        self.limits = Limits(bos_id=bos_id, eos_id=eos_id, max_len=MAX_LEN, max_len_ratio=1e6)
        self.never = list(never_generated(pad_id=tokenizer.pad_id, bos_id=bos_id, eos_id=eos_id))

    def log_probs(self, targets: list[list[int]]) -> list[list[float]]:
        """Of each token of the targets (each with EOS), with the ids that are never generated out
        of the sum.
        """
        bos_id = self.tokenizer.bos_id
        tgt_in = pad_sources([[bos_id, *target[:-1]] for target in targets], self.tokenizer.pad_id)
        with torch.no_grad():
            logits = self.model(self.src, tgt_in)
        logits[..., self.never] += NEVER
        every = logits.log_softmax(-1)
        return [
            [row[t, i].item() for t, i in enumerate(target)] for row, target in zip(every, targets)
        ]

    def their_log_probs(self, targets: list[list[int]]) -> list[list[float]]:
        pieces = [self.tokenizer.tgt_pieces(target[:-1]) for target in targets]
        sources = [self.tokenizer.src_pieces(source) for source in self.sources]
        found = self.translator.score_batch(sources, pieces, max_input_length=0)
        return [result.log_probs for result in found]

    def ours(self) -> list[tuple[int, ...]]:
        return [best.ids for [best] in greedy_search(self.model, self.src, self.limits)]

    def theirs(self) -> list[tuple[tuple[int, ...], float]]:
        results = self.translator.translate_batch(
            [self.tokenizer.src_pieces(source) for source in self.sources],
            beam_size=1,
            length_penalty=0,
            max_decoding_length=MAX_LEN,
            min_decoding_length=0,
            max_input_length=0,
            return_scores=True,
        )
        return [(tuple(self.ids[piece] for piece in r.hypotheses[0]), r.scores[0]) for r in results]


def greatest_difference(a: list[list[float]], b: list[list[float]]) -> float:
    pairs = (zip(*rows, strict=True) for rows in zip(a, b, strict=True))
    return max(abs(x - y) for row in pairs for x, y in row)


def check_equal(exported: Exported) -> None:
    """Equal log-probabilities of given targets, and an equal greedy search with its scores."""
    targets = random_ids(exported.tokenizer, exported.tokenizer.tgt_vocab_size, seed=1)
    ours, theirs = exported.log_probs(targets), exported.their_log_probs(targets)
    assert greatest_difference(ours, theirs) < 1e-4
    found, expected = exported.ours(), exported.theirs()
    assert found == [ids for ids, _ in expected]
    assert len(set(found)) > 15  # the sources decide, so equal outputs mean something
    whole = exported.log_probs([[*ids, exported.tokenizer.eos_id] for ids in found])
    for row, ids, (_, score) in zip(whole, found, expected):
        total = sum(row) if len(ids) < MAX_LEN else sum(row[:-1])
        assert score == pytest.approx(total, abs=1e-4 * MAX_LEN)


# -------------------------------------------------------------------------------------- CTranslate2


@pytest.mark.parametrize("case", CASES)
def test_ctranslate2_decodes_as_we_do(
    case: str, tokenizer: SubwordTokenizer, tmp_path: Path
) -> None:
    check_equal(Exported(config_of(**CASES[case]), tokenizer, tmp_path / "out"))


def test_distances_beyond_the_table_get_the_bias_of_its_end(
    tokenizer: SubwordTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # t5 of 6 distances: the rest are alike
    monkeypatch.setattr(export_ctranslate2, "MAX_POSITIONS", 7)
    check_equal(Exported(config_of(position=POSITIONS["t5"]), tokenizer, tmp_path / "out"))


def test_a_vocabulary_that_starts_from_padding(marian_folder: Path, tmp_path: Path) -> None:
    tokenizer = FrEnTokenizer(marian_folder)
    assert (tokenizer.eos_id, tokenizer.bos_id) == (0, tokenizer.pad_id)
    exported = Exported(config_of(position=Rope()), tokenizer, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["decoder_start_token"], written["eos_token"]) == ("<pad>", "</s>")
    assert written["layer_norm_epsilon"] == 1e-5
    check_equal(exported)


def test_each_side_has_a_vocabulary_of_its_own(tmp_path: Path) -> None:
    config = Subword(vocab_size=64, joint=False)
    sides = (SubwordTokenizer.train(side, config) for side in (TEXTS[:2], TEXTS[2:]))
    tokenizer = SeparateTokenizer(*sides, src_lang="fr", tgt_lang="en")
    exported = Exported(config_of(position=Rope()), tokenizer, tmp_path / "out")
    assert exported.model.src_embedding.weight.shape != exported.model.output.weight.shape
    check_equal(exported)


def test_int8_is_smaller_and_close(tokenizer: SubwordTokenizer, tmp_path: Path) -> None:
    exact, rounded = (
        Exported(config_of(position=Rope()), tokenizer, tmp_path / kind, kind, cross_gain=1)
        for kind in ("float32", "int8")
    )
    sizes = [(tmp_path / kind / "model.bin").stat().st_size for kind in ("int8", "float32")]
    assert sizes[0] < 0.4 * sizes[1]
    targets = random_ids(tokenizer, tokenizer.tgt_vocab_size, seed=1)
    apart = greatest_difference(exact.their_log_probs(targets), rounded.their_log_probs(targets))
    assert 1e-4 < apart < 0.1
    # The model itself is left alone.
    assert torch.equal(exact.model.output.weight, rounded.model.output.weight)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(({"position": POSITIONS[name]}, words) for name, words in REFUSED.items()),
        # drawn once for all as 0, 1 and then with gaps
        ({"position": Randomized(scheme=Rope(), spread=256, max_positions=128)}, "0, 1, 2, ..."),
        (
            {"position": Randomized(scheme=INTERLEAVED, spread=8, max_positions=8)},
            "its layers differ",
        ),
        ({"backend": "torch"}, 'model.backend = "torch"'),
        ({"norm": "deepnorm"}, 'model.norm = "deepnorm"'),
    ],
    ids=[*REFUSED, "drawn", "drawn_interleaved", "backend", "norm"],
)
def test_what_has_no_equal_is_refused_by_name(
    changes: dict[str, Any], words: str, tokenizer: SubwordTokenizer, tmp_path: Path
) -> None:
    config = config_of(**changes)
    model = build_model(config, tokenizer).eval()
    with pytest.raises(UserError) as refused:
        convert(model, config, tokenizer, tmp_path, quantization="float32")
    said = str(refused.value)
    assert words in said
    assert "cannot be exported to CTranslate2" in said
    if "position" in changes:
        assert f"model.position.kind = {config.position.kind!r}" in said
        assert "Supported are none, sinusoidal, learnable, rope" in said
    assert list(tmp_path.iterdir()) == []


def test_what_does_more_than_add_is_refused(tokenizer: SubwordTokenizer, tmp_path: Path) -> None:
    class Scaled(InputPosition):
        def forward(self, x: Tensor, positions: Tensor) -> Tensor:
            return x * (1 + 0.2 * positions.cos()[:, None])

    class Later(InputPosition):
        def forward(self, x: Tensor, positions: Tensor) -> Tensor:
            return x * (1 + 1e-3 * positions[:, None])

    config = config_of(position=Sinusoidal())
    model = build_model(config, tokenizer).eval()
    for model.scheme.target in (Scaled(), Later()):
        with pytest.raises(UserError, match="does more to embeddings than add to them"):
            convert(model, config, tokenizer, tmp_path, quantization="float32")


def test_the_lists_of_schemes_leave_none_out() -> None:
    assert {*EXPORTABLE, *REFUSED, *ALIKE} == set(POSITIONS)


# -------------------------------------------------------------------------------------- safetensors


call = scripted(script.main)


class Made:
    """A run as training leaves it, with random weights, and what export.py makes of it."""

    def __init__(self, folder: Path, tokenizer: SubwordTokenizer, call: Scripts) -> None:
        self.folder, self.tokenizer, self.call = folder, tokenizer, call

    def __call__(self, **changes: Any) -> Run:
        config = Config(name="made", model=config_of(**changes))
        run = Run(self.folder / "made_20200101_000000")
        run.checkpoints.mkdir(parents=True)
        self.tokenizer.save(run.tokenizer)
        payload = {
            "format": {"version": FORMAT},
            "config": to_dict(config),
            "model": sharp_model(config.model, self.tokenizer).state_dict(),
            "tokenizer": {"fingerprint": self.tokenizer.fingerprint()},
            "progress": {"epoch": 3, "step": 45},
        }
        torch.save(payload, run.checkpoints / "best_checkpoint_3_loss=-1.0000.pt")
        return run

    def exported(self, run: Run, form: str = "safetensors") -> tuple[Path, str]:
        """The new folder, and what export.py says."""
        out = self.folder / "exported" / "model"
        done = self.call("--model_path", run.path, "--format", form, "--output_dir", out)
        assert done.code == 0, done.err
        assert [path.name for path in out.parent.iterdir()] == ["model"]
        return out, done.out


@pytest.fixture
def made(tokenizer: SubwordTokenizer, tmp_path: Path, call: Scripts) -> Made:
    return Made(tmp_path, tokenizer, call)


@pytest.mark.parametrize(("tied", "n_names"), [("none", 1), ("target", 2), ("all", 3)])
def test_safetensors_give_back_what_the_checkpoint_holds_each_tensor_once(
    tied: str, n_names: int, made: Made
) -> None:
    run = made(position=Learnable(), tie_embeddings=tied)
    out, said = made.exported(run)
    assert sorted(path.name for path in out.iterdir()) == ["config.json", WEIGHTS, "tokenizer"]
    assert "best_checkpoint_3_loss=-1.0000.pt: epoch 3, update 45" in said
    saved, found = read_checkpoint(best_of(run.path)), read_checkpoint(out / WEIGHTS)
    assert same(found, saved)
    assert load_tokenizer(out / "tokenizer").fingerprint() == made.tokenizer.fingerprint()
    assert len(load_file(out / WEIGHTS)) == len(saved["model"]) - (n_names - 1)


def test_the_scripts_take_the_exported_folder_for_a_run_and_training_does_not_go_on(
    made: Made,
) -> None:
    run = made(position=Rope(), tie_embeddings="all")
    out, _ = made.exported(run)
    texts = [part for text in TEXTS for part in ("--src_text", text)]
    renamed = Path(shutil.copy(best_of(run.path), run.checkpoints / "model.ckpt"))
    made.call.main = inference.main
    by_run, *by_export = (
        made.call("--model_path", path, "--device", "cpu", *texts)
        for path in (run.path, out, out / WEIGHTS, renamed)
    )
    assert by_export == [by_run] * 3
    assert by_run.code == 0
    assert (out / WEIGHTS).stat().st_mode == (out / "config.json").stat().st_mode
    assert len(set(by_run.out.splitlines())) > len(TEXTS)
    with pytest.raises(UserError, match="no checkpoint"):
        resolve_checkpoint(out, prefer="newest")
    # What is kept for the export is not taken for it once its config is another.
    config, checksum = out / "config.json", load_run(out).checksum
    edited = {**json.loads(config.read_text("utf-8")), "name": "edited"}
    del edited["crc32"]
    config.write_text(json.dumps(edited), "utf-8")
    assert load_run(out).checksum != checksum


def test_a_link_stands_for_the_run_that_it_lies_in_or_for_the_one_behind_it(made: Made) -> None:
    run = made()
    out, _ = made.exported(run)
    link = made.folder / "link"
    for target, expected in (
        (best_of(run.path), run.path),
        (run.checkpoints, run.path),
        (out / WEIGHTS, out),
    ):
        link.symlink_to(target)
        found, its_run = resolve_checkpoint(link, prefer="best")
        assert its_run.path == expected
        assert read_checkpoint(found)["progress"]["step"] == 45
        link.unlink()
    run.checkpoints.rename(link)
    run.checkpoints.symlink_to(link)
    assert resolve_checkpoint(best_of(run.path), prefer="best")[1].path == run.path
    (loop := made.folder / "loop").symlink_to(loop)
    with pytest.raises(UserError, match="loop: no such checkpoint"):
        resolve_checkpoint(loop, prefer="best")


def test_a_damaged_a_foreign_and_a_newer_file_are_told_apart(made: Made) -> None:
    path = made.exported(made())[0] / WEIGHTS
    whole = path.read_bytes()
    save_file({"x": torch.zeros(2)}, path)
    changed = bytearray(whole)
    changed[-1] ^= 1
    for content, said in (
        (path.read_bytes(), "not a file that this project exported"),
        (whole[:-100], "not a whole safetensors file"),
        (whole.replace(b'\\"version\\": 1,', b'\\"version\\": 9,'), "format 9 is newer"),
        (bytes(changed), "wrong checksum"),
    ):
        assert content != whole
        path.write_bytes(content)
        with pytest.raises(UserError, match=said):
            read_checkpoint(path)


# -------------------------------------------------------------------------------------- the command


def test_the_ctranslate2_folder_translates_text(made: Made) -> None:
    run = made(position=Rope())
    out, _ = made.exported(run, "ctranslate2")
    files = {"model.bin", "config.json", "shared_vocabulary.json", "tokenizer"}
    assert {path.name for path in out.iterdir()} == files
    loaded = load_run(run.path)
    found = Translator.of(loaded, torch.device("cpu")).translate(TEXTS, search="greedy")
    ours = [translation.text for translation in found]
    read = load_tokenizer(out / "tokenizer")
    vocabulary = json.loads((out / "shared_vocabulary.json").read_text("utf-8"))
    translator = ctranslate2.Translator(str(out))
    theirs = []
    for ids in read.encode_src_batch(TEXTS):
        [found] = translator.translate_batch(
            [read.src_pieces(ids)],
            beam_size=1,
            max_decoding_length=2 * len(ids) + 10,
            min_decoding_length=0,
        )
        theirs.append(read.decode([vocabulary.index(piece) for piece in found.hypotheses[0]]))
    assert ours == theirs
    assert len(set(ours)) == len(TEXTS)


def test_a_missing_package_is_named_before_anything_is_read(
    tmp_path: Path, call: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    out = tmp_path / "out"
    ended = call("--model_path", tmp_path, "--format", "ctranslate2", "--output_dir", out)
    said = "the package ctranslate2 is not installed: pip install ctranslate2"
    assert ended.error() == said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--format safetensors", "--output_dir"),
        ("--format onnx --output_dir FOLDER/out", "'onnx'"),
        (
            "--format safetensors --quantization int8 --output_dir FOLDER/out",
            "--quantization int8 is for --format ctranslate2",
        ),
        (
            "--format ctranslate2 --zero_start --output_dir FOLDER/out",
            "--zero_start is for --format transformers",
        ),
        ("--format safetensors --output_dir FOLDER", "is not empty: give a new folder"),
        ("--format safetensors --output_dir FOLDER/a_file/b", "cannot write"),
        ("--format ctranslate2 --output_dir FOLDER/out", "cannot be exported to CTranslate2"),
        ("--format transformers --output_dir FOLDER/out", "cannot be exported to transformers"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(
    arguments: str, message: str, made: Made
) -> None:
    run = made(position=POSITIONS["fire"])
    (made.folder / "a_file").write_text("x")
    before = sorted(made.folder.rglob("*"))
    given = arguments.replace("FOLDER", str(made.folder)).split()
    assert message in made.call("--model_path", run.path, *given).error()
    assert sorted(made.folder.rglob("*")) == before


def test_a_link_to_an_empty_folder_is_followed_and_where_one_stands_is_refused(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty, link = made.folder / "empty", made.folder / "link"
    empty.mkdir()
    link.symlink_to(empty)
    monkeypatch.chdir(empty)
    arguments = "--model_path", made().path, "--format", "safetensors", "--output_dir"
    assert "cannot be replaced: give a folder in it" in made.call(*arguments, ".").error()
    monkeypatch.chdir(made.folder)
    assert made.call(*arguments, link).code == 0
    assert link.is_symlink()
    assert (empty / WEIGHTS).is_file()
