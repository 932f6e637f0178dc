"""Configurations: schema errors, text overrides, JSON, and config files."""

import argparse
import itertools
import json
import math
import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configs import position_names, positions, schema, section as sections
from configs.load import (
    add_config_arguments,
    config_files,
    config_of,
    load_config,
    read_config_json,
    write_config_json,
)
from configs.position_names import POSITIONS
from configs.schema import Config, DataConfig, ModelConfig, Position, Rope
from configs.serialize import (
    PEERS,
    _places,
    apply_overrides,
    diff,
    from_dict,
    kinds,
    parse_override,
    to_dict,
)
from models.build import build_scheme
from training.schedules import lr_factor
from utils.errors import ConfigError

CONFIG = Config()


RICH = Config(  # it differs from the defaults in every kind of field
    name="rich",
    model=ModelConfig(position=Rope(form="complex", cross=True, base=500.0), d_model=64, n_heads=4),
    tokenizer=schema.Marian(name_or_path="some/folder"),
    data=DataConfig(
        corpus=schema.ParallelFiles(root="texts", test=("a", "b")), src_lang="en", tgt_lang="fr"
    ),
    optim=schema.OptimConfig(schedule=schema.Cosine(lr=0.5), betas=(0.8, 0.9), grad_clip=None),
)


def refused(make: Callable[[], Any], said: str) -> str:
    """The one line of the ConfigError that `make` raises; it has the parts of `said` in order."""
    with pytest.raises(ConfigError) as caught:
        make()
    message = rest = str(caught.value)
    assert "\n" not in message
    for part in said.split(" .. "):
        assert part in rest, message
        rest = rest.partition(part)[2]
    return message


# ------------------------------------------------------------------------------------ dict and JSON


@pytest.mark.parametrize("config", [CONFIG, RICH], ids=["default", "rich"])
def test_config_survives_json(config: Config, tmp_path: Path) -> None:
    write_config_json(config, tmp_path / "config.json")
    assert read_config_json(tmp_path / "config.json") == config
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_union_members_carry_their_kind_and_plain_sections_do_not() -> None:
    data = to_dict(RICH)
    assert data["model"]["position"]["kind"] == "rope"
    assert data["tokenizer"] == {"kind": "marian", "name_or_path": "some/folder"}
    assert "kind" not in data["model"]


def test_missing_keys_take_their_defaults_so_that_older_runs_load() -> None:
    assert from_dict({"model": {"d_model": 256}}) == Config(model=ModelConfig(d_model=256))
    assert from_dict({"model": {"position": {"kind": "rope"}}}).model.position == Rope()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "config.json: not valid JSON"),
        (b"\xff", "config.json: not valid JSON"),
        (b"[" * 10**5, "config.json: not valid JSON"),
        (b"9" * 5000, "config.json: not valid JSON"),
        (b'{"name": ""}', "config.json: name = ''"),
        (None, "config.json: cannot be read: No such file"),
    ],
)
def test_a_bad_json_file_is_named(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    refused(lambda: read_config_json(path), f"{tmp_path} .. {said}")


# ------------------------------------------------------------------------------------ what is wrong

ENCODER = {"model": {"position": {"kind": "cope", "encoder": {"kind": "rope", "base": -1}}}}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"modle": {}}, "'modle' .. has: model, "),
        ({"model": {"d_modell": 4}}, "'model.d_modell': model has: d_model, "),
        ({"model": {"kind": "rope"}}, "'model.kind'"),
        ({"model": {"position": {"kind": "ropes"}}}, "model.position = 'ropes' .. rope"),
        ({"model": {"position": {}}}, "model.position = None .. rope"),
        ({"model": {"position": {"kind": ["rope"]}}}, "model.position = ['rope']"),
        (
            {"model": {"position": {"kind": "rope", "max_positions": 4}}},
            "(rope) .. belongs to model.position=sinusoidal or learnable",
        ),
        ({"model": {"d_model": "512"}}, "model.d_model = '512': allowed: an integer >= 2"),
        ({"model": {"d_model": True}}, "model.d_model = True: allowed: an integer"),
        ({"model": {"dropout": np.float64(0.1)}}, "model.dropout = np.float64(0.1): allowed: a nu"),
        ({"name": np.str_("a")}, "name = .. a string"),
        ({"model": {"bias": 1}}, "model.bias = 1: allowed: True or False"),
        ({"model": 3}, "model = 3: model is a section; set its fields: position, "),
        ([], "the configuration = []: .. fields: name, model, "),
        ({"optim": {"betas": [0.9]}}, "optim.betas = (0.9,): allowed: a tuple of 2 values"),
        ({"data": {"corpus": {"kind": "files", "test": []}}}, "data.corpus.test = ()"),
        ({"data": {"cache_dir": "a\0"}}, "data.cache_dir = .. a string of Unicode text"),
        (ENCODER, "model.position.encoder.base = -1: allowed: a number > 1"),
        # Texts of `--set`:
        ("model.d_model=1", "model.d_model = 1: allowed: an integer >= 2"),
        ("model.d_model=1.5", "model.d_model = '1.5': allowed: an integer >= 2"),
        ("model.d_model=", "model.d_model = '': allowed: an integer"),
        ("model.d_model=10, model.n_heads=4", "model.d_model = 10 .. model.n_heads = 4"),
        ("model.dropout=much", "model.dropout = 'much': allowed: a number >= 0 and < 1"),
        ("model.dropout=nan", "model.dropout = 'nan': allowed: a number"),
        ("model.dropout=1.0", "model.dropout = 1.0 .. < 1"),
        ("model.bias=maybe", "model.bias = 'maybe': allowed: True or False"),
        ("model.norm=Post", "model.norm = 'Post': allowed: 'pre', 'post'"),
        ("model.position=Rope", "model.position = 'Rope': allowed: none, sinusoidal, learnable, "),
        ("model.n_heads=512, model.position=rope", "model.n_heads = 512 .. even head size"),
        ("model.backend=torch, model.position=rope", "model.position .. none, sinusoidal, learn"),
        ("model.backend=torch, model.dropout=0, model.gated=true", "model.gated = True"),
        ("model.backend=torch, model.dropout=0, model.layer_norm=rms", "model.layer_norm"),
        ("optim.betas=0.9,x", "optim.betas = '0.9,x': allowed: a tuple of 2 values"),
        ("optim.betas=0.9", "optim.betas = '0.9': allowed: a tuple of 2 values"),
        ("optim.betas=0.9,1.0", "optim.betas = (0.9, 1.0) .. < 1"),
        ("optim.grad_clip=off", "optim.grad_clip = 'off' .. None"),
        ("optim.schedule.noam_factor=1", "(inverse_sqrt) .. belongs to optim.schedule=noam"),
        ("optim.schedule=plateau, optim.schedule.min_lr=2", "optim.schedule.min_lr = 2.0 .. lr ="),
        ("optim.objective=r_drop, optim.objective.alpha=-1", "optim.objective.alpha = -1.0: "),
        ("optim.objective=sim_cut, optim.objective.cut=1", "optim.objective.cut = 1.0: "),
        ("optim.schedule=xlnet", "optim.schedule = 'xlnet' .. cosine, linear, plateau"),
        ("data.corpus.test=", "'data.corpus.test' .. belongs to data.corpus=files"),
        ("tokenizer.path=x", "(subword) .. path belongs to tokenizer=saved"),
        (
            "tokenizer.joint=false, data.directions=both",
            "data.directions = 'both': .. set tokenizer.joint=true",
        ),
        (
            "model.tie_embeddings=all, tokenizer.joint=false",
            "model.tie_embeddings = 'all': tokenizer.joint = False .. tie_embeddings=target",
        ),
        ("tokenizer=saved, tokenizer.sampling=-1", "tokenizer.sampling = -1.0: .. >= 0"),
        ("tokenizer.symbols=<a b>", "tokenizer.symbols = ('<a b>',): each in composed form"),
        ("tokenizer.symbols=</s>", "tokenizer.symbols = ('</s>',): .. such as </s>"),
        ("tokenizer.symbols=<0x41>", "tokenizer.symbols = ('<0x41>',): each in composed form"),
        ("tokenizer.symbols=<unused>", "tokenizer.symbols = ('<unused>',): each in composed form"),
        ("tokenizer.symbols=l'", "tokenizer.symbols = (\"l'\",): each in composed form"),
        ("tokenizer.symbols=\u0301", "tokenizer.symbols = ('\u0301',): each in composed form"),
        ("tokenizer.symbols=a|b", "tokenizer.symbols = ('a|b',): each in composed form"),
        ("tokenizer.symbols=\\d", "tokenizer.symbols = ('\\\\d',): each in composed form"),
        ("tokenizer.symbols=a,a", "tokenizer.symbols = ('a', 'a'): each once"),
        ("tokenizer.symbols=e\u0301", "tokenizer.symbols = ('e\u0301',): each in composed form"),
        ("data.corpus.root=x", "(phrasebook) .. root belongs to data.corpus=files"),
        ("data.tgt_lang=fr", "data.tgt_lang = 'fr' .. data.src_lang"),
        ("data.batch_size=10", "data.batch_size = 10 .. data.max_len = 256"),
        (
            "evaluate.choose_by=bleu, evaluate.bleu_every_epochs=2",
            "evaluate.bleu_every_epochs = 2: .. (evaluate.every_epochs = 1): set evaluate.bleu_ev",
        ),
        (
            "evaluate.choose_by=bleu, evaluate.bleu_every_epochs=0",
            "evaluate.bleu_every_epochs = 0: .. set evaluate.bleu_every_epochs=1",
        ),
        (
            "evaluate.choose_by=chrf, evaluate.every_steps=9, evaluate.bleu_every_epochs=0",
            "evaluate.bleu_every_epochs = 0: .. every_steps = 9): set evaluate.bleu_every_epochs=1",
        ),
        ("decode.n_best=9", "decode.n_best = 9 .. decode.beam_size = 5"),
        ("decode.search=sample, decode.n_best=65536", "decode.n_best = 65536: .. 65535"),
        ("decode.batch_size=13108", "decode.batch_size = 13108 .. 13,107 with decode.beam_size"),
        (
            "model.position=learnable, model.position.max_positions=100",
            "model.position.max_positions = 100: .. data.max_len = 256",
        ),
        (
            "data.max_len=90, model.position=combined, model.position.attention=xpos, "
            "model.position.input=learnable, model.position.input.max_positions=100",
            "model.position.input.max_positions = 100: .. decode.max_len = 256",
        ),
        (
            "decode.search=sample, decode.search.temperature=1e-320",
            "decode.search.temperature = 1e-320: .. >= 0.001",
        ),
        ("decode.length_penalty=400", "decode.length_penalty = 400.0: .. <= 5"),
        ("model.n_encoder_layers=100000000", "model.n_encoder_layers = 100000000: .. <= 1000"),
        ("data.corpus.n_train=1000000000000", "data.corpus.n_train = 1000000000000: .. <= 30000"),
        ("train.seed=99999999999999999999", "train.seed = '99999999999999999999': .. <= 9223372"),
        ("train.runs_dir=", "train.runs_dir = '': name a folder"),
        ("data.cache_dir=", "data.cache_dir = '': name a folder"),
        ("data.corpus.root=, data.corpus=files", "data.corpus.root = '': name a folder"),
        ("tokenizer.name_or_path=, tokenizer=marian", "tokenizer.name_or_path = '': name a folder"),
        ("train.init_from=", "train.init_from = '': name a folder"),
        ("decode.neighbours.datastore=", "decode.neighbours.datastore = '': name a file"),
        ("data.corpus.path=, data.corpus=iwslt2017", "data.corpus.path = '': name a folder"),
        ("train.init_model=true", "train.init_model = True: takes the model of train.init_from"),
        ("name=..", "name = '..': letters"),
        ("decode.mbr=c", "decode.mbr = 'c': allowed: 'chrf', 'bleu', None"),
        ("name=a/b", "name = 'a/b': allowed: letters"),
        ("model=big", "model = 'big': model is a section; set its fields: position, .. d_model"),
        ("model.d_model.x=1", "'model.d_model.x': model.d_model is a single value"),
        ("optim.scheduler=x, optim.scheduler.lr=3", "'optim.scheduler': optim has: schedule, "),
        ("modell.d_model=1", "'modell' .. has: model, "),
        ("model.heads=1", "'model.heads': model has: n_heads, "),
        ("model.position.bass=1", "'model.position.bass': model.position (sinusoidal) has: base"),
        ("model.position=none, model.position.base=1", "(none) has no fields; base belongs to"),
        ("training.num_layers=1", "'training' .. there is model.n_encoder_layers"),
        ("d_model=1", "'d_model' .. there is model.d_model"),
        ("model.max_len=1", "'model.max_len' .. there is data.max_len, decode.max_len"),
        ("train.lr=1", "'train.lr' .. there is optim.schedule.lr"),
        ("data.max_tokens=1", "'data.max_tokens' .. there is data.batch_size, train.max_tokens"),
        ("model.d_model", "SECTION.FIELD=VALUE"),
        (" = ", "SECTION.FIELD=VALUE"),
    ],
)  # fmt: skip
def test_an_error_names_field_value_and_the_allowed_ones(data: Any, said: str) -> None:
    is_text = isinstance(data, str)
    message = refused(
        lambda: apply_overrides(CONFIG, data.split(", ")) if is_text else from_dict(data), said
    )
    start = said.partition(" .. ")[0]
    assert message.startswith((start, "unknown key", "--set")), message
    assert message.endswith("plateau") == (data == "optim.schedule=xlnet")  # it is no schedule


@pytest.mark.parametrize("theirs", PEERS)
def test_other_programs_names_are_answered_with_ours(theirs: str) -> None:
    ours = PEERS[theirs]
    refused(lambda: apply_overrides(CONFIG, [f"decode.{theirs}=1"]), f"; there is {ours}")
    assert ours in _places(ours.rpartition(".")[2], Config, "")


EXTREMES = (0, -1, 1e-320, 1e308, 10**20, math.nan, math.inf, "", None)


def sections_below(hint: Any) -> set[Any]:
    """Every section class that a value of an annotation may be or hold."""
    found = {*kinds(hint).values(), *kinds(sections.item_hint(hint)).values()}
    inner = [each for cls in found for each in sections.type_hints(cls).values()]
    return found.union(*map(sections_below, inner))


FIELDED = sorted(filter(sections.type_hints, sections_below(Config)), key=str)


@pytest.mark.parametrize("cls", FIELDED, ids=lambda c: c.__name__)
def test_every_field_takes_an_extreme_value_or_names_it(cls: Any) -> None:
    rest = {"parts": (schema.Weighted(),)} if cls is schema.Mixture else {}
    for name, hint in sections.type_hints(cls).items():
        bounds = cls.__dataclass_fields__[name].metadata
        a_number = {int, float} & set(sections.members(sections.item_hint(hint) or hint))
        assert not a_number or {"le", "lt"} & bounds.keys(), f"{name} has no upper bound"
        for value in {*EXTREMES, *bounds.values()}:
            try:
                made = cls(**{**rest, name: value})
                if isinstance(made, Position):
                    made = ModelConfig(d_model=16, n_heads=2, position=made)
            except ConfigError as error:
                assert re.search(rf"\b{name}\b", str(error)), value  # noqa: PT017
                continue
            if isinstance(made, ModelConfig):
                with torch.device("meta"):
                    build_scheme(made)
            if isinstance(made, schema.Schedule):
                factor = lr_factor(made, total_steps=9)
                assert all(math.isfinite(factor(n)) for n in (0, 1, 10**6))


def test_kinds_are_those_of_a_union_in_its_order() -> None:
    assert kinds(Position)["rope"] is Rope
    schedules = "constant epoch_decay noam inverse_sqrt cosine linear plateau"
    assert " ".join(kinds(schema.Schedule)) == schedules

    class Nameless(positions.PositionSection):
        """A scheme whose kind was forgotten."""

    refused(lambda: kinds(Position | Nameless), "class Nameless: give it a kind")


@pytest.mark.parametrize(
    ("values", "expected"),
    [(("auto", "complex"), False), (("log", "power"), True), (("linear", "square"), True)],
)
def test_a_form_matters_unless_it_says_how_a_scheme_is_computed(
    values: tuple[str, str], expected: bool
) -> None:
    assert schema.shapes_model("model.position.form", *values) == expected


@pytest.mark.parametrize(("name", "owner"), [("alibi", "Alibi"), ("rope_half", "Rope")])
def test_a_scheme_of_ones_own_takes_no_name_from_another(
    name: str, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(positions.PositionSection, kind=name):
        """A scheme with the kind, or the name, of another."""

    monkeypatch.setattr(positions, "Position", Position | Own)
    said = f"class Own: kind={name!r} is taken by {owner}: choose another name"
    refused(lambda: runpy.run_path(position_names.__file__), said)


# ---------------------------------------------------------------------------------------- overrides


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.d_model=256", 256),
        ("optim.eps=1e-3", 1e-3),
        ("model.dropout=0", 0.0),
        ("model.bias=no", False),
        ("model.bias=True", True),
        ("model.bias=False", False),
        ("train.compile=1", True),
        ("train.compile=0", False),
        ("train.compile=yes", True),
        ("model.norm=post", "post"),
        ("name=my-run_2", "my-run_2"),
        ("name=17", "17"),
        ("optim.betas=0.8,0.95", (0.8, 0.95)),
        ("optim.betas=(0.8, 0.95)", (0.8, 0.95)),
        ("evaluate.length_buckets=5,9", (5, 9)),
        ("tokenizer.symbols=[URL],(x)", ("[URL]", "(x)")),
        ("tokenizer.symbols=[a, 'b']", ("a", "b")),
        ("""tokenizer.symbols=['[1]', "(2)"]""", ("[1]", "(2)")),
        ("tokenizer.symbols=", ()),
        ("optim.grad_clip=none", None),
        ("optim.grad_clip=0.5", 0.5),
        ("train.max_steps=NULL", None),
        ("train.max_steps=7", 7),
        ("train.init_from=none", None),
        ("model.position=rope", Rope()),
        ("data.corpus=files", schema.ParallelFiles()),
        ("data.corpus.train_max_words=8", 8),
        ("optim.schedule=noam", schema.Noam()),
        ("optim.schedule.warmup_steps=10", 10),
        ("decode.mbr=bleu", "bleu"),
        ("decode.mbr=none", None),
        ("data.cache_dir=a=b c", "a=b c"),
    ],
)
def test_overrides_are_typed_by_their_field(override: str, expected: Any) -> None:
    value: Any = apply_overrides(CONFIG, [override])
    for part in override.partition("=")[0].split("."):
        value = getattr(value, part)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    "texts",
    [
        ["model.d_model=6", "model.n_heads=3"],  # 512 / 3 and 6 / 8 alone would be refused
        ["data.corpus.root=texts", "data.corpus=files", "data.corpus.test=['a', \"b\"]"],
        ["data.max_len=2000", "decode.max_len=2000", "model.position.max_positions=2000",
         "model.position=learnable", "data.batch_size=4096"],
        ["decode.n_best=9", "decode.beam_size=9"],
    ],
    ids=["shape", "corpus", "lengths", "beam"],
)  # fmt: skip
def test_overrides_work_in_any_order(texts: list[str]) -> None:
    results = {apply_overrides(CONFIG, order) for order in itertools.permutations(texts)}
    assert len(results) == 1
    assert results.pop() != CONFIG


def test_the_last_of_two_overrides_of_one_key_wins() -> None:
    assert parse_override(" model.d_model = 3 ") == ("model.d_model", "3")
    assert parse_override("model.position.kind=alibi") == ("model.position", "alibi")
    assert apply_overrides(CONFIG, ["train.seed=1", "train.seed=2"]).train.seed == 2


def test_overrides_leave_the_original_and_other_fields_alone() -> None:
    before = to_dict(RICH)
    changed = apply_overrides(RICH, ["model.position.base=100"])
    assert changed.model.position == Rope(form="complex", cross=True, base=100.0)
    assert diff(RICH, changed) == [("model.position.base", 500.0, 100.0)]
    assert to_dict(RICH) == before


def test_workers_and_batches_suit_the_device_unless_they_are_set() -> None:
    def suited(device: str, *texts: str) -> list[int]:
        config = apply_overrides(CONFIG, texts)
        batches = config.evaluate.batch_on(device), config.decode.batch_on(device)
        return [config.data.workers_on(device), *batches]

    assert suited("cpu") == [0, 64, 32]
    assert suited("cuda") == [2, 256, 256]
    assert suited("cuda", "decode.beam_size=1000")[2] == 65  # at most 65,535 rows
    given = ["data.num_workers=0", "evaluate.batch_size=7", "decode.batch_size=8"]
    assert suited("cpu", *given) == suited("cuda", *given) == [0, 7, 8]


# ----------------------------------------------------------------------------------------- position

ORIGINAL = "transformer_512dh8_e6d6_epochbased"


@pytest.mark.parametrize(
    ("file", "name", "called", "position"),
    [
        ("multi30k_small_rope", "rope", "multi30k_small_rope", Rope()),
        ("multi30k_small_rope", "rope_yarn", "multi30k_small_rope_yarn",
         Rope(scaling=schema.YarnScaling(trained_length=128))),
        ("multi30k_small_learnable", "sinusoidal_t5", "multi30k_small_sinusoidal_t5",
         schema.Combined()),
        ("multi30k_small_sinusoidal", "cope", "multi30k_small_cope", schema.Cope()),
        ("multi30k_best", "shaw", "multi30k_best_shaw", schema.Shaw()),
        ("multi30k_best", "transformer_xl", "multi30k_best_transformer_xl", schema.TransformerXl()),
        ("multi30k_best", "xlnet", "multi30k_best", schema.TransformerXl(reading="xlnet")),
        ("demo", "kerple", "demo_kerple", schema.Kerple()),
        ("multi30k_small_rope", "rope:base=500:scaling=yarn:scaling.factor=8",
         "multi30k_small_rope_base_500_scaling_yarn_scaling.factor_8",
         Rope(base=500.0, scaling=schema.YarnScaling(factor=8.0))),
        ("demo", "rope:scaling=yarn", "demo_rope_scaling_yarn",
         Rope(scaling=schema.YarnScaling(trained_length=96))),
        ("demo", "rope:scaling=yarn:scaling.trained_length=7",
         "demo_rope_scaling_yarn_scaling.trained_length_7",
         Rope(scaling=schema.YarnScaling(trained_length=7))),
        ("demo", f"rope:base=500.{'0' * 260}", f"demo_rope_base_500.{'0' * 96}_255f5209",
         Rope(base=500.0)),
        ("demo", "ssmax:scheme.scaling=yarn", "demo_ssmax_scheme.scaling_yarn",
         schema.Ssmax(scheme=Rope(scaling=schema.YarnScaling(trained_length=96)))),
        (f"{ORIGINAL}_rope", "xlnet", f"{ORIGINAL}_xlnet", schema.TransformerXl(reading="xlnet")),
        (f"{ORIGINAL}_rope", "rope_dynamic_ntk", f"{ORIGINAL}_rope_dynamic_ntk",
         Rope(scaling=schema.DynamicNtkScaling(trained_length=256))),
        ("demo", "learnable", "demo_learnable", schema.Learnable()),
    ],
)  # fmt: skip
def test_position_changes_the_scheme_its_lengths_and_the_name(
    file: str, name: str, called: str, position: Position
) -> None:
    plain, config = (load_config(f"configs/{file}.py", position=each) for each in (None, name))
    assert (config.name, config.model.position) == (called, position)
    assert replace(config, name=plain.name, model=plain.model) == plain
    assert replace(config.model, position=plain.model.position) == plain.model
    assert load_config(f"configs/{file}.py", ["name=mine"], name).name == "mine"


def test_a_scaling_that_is_set_alone_takes_the_length_of_the_training_too() -> None:
    scaled = load_config("configs/demo.py", ["model.position=rope", "model.position.scaling=yarn"])
    assert scaled.model.position == Rope(scaling=schema.YarnScaling(trained_length=96))
    with pytest.raises(ConfigError, match=r"unknown key 'model\.position\.scaling'"):
        apply_overrides(CONFIG, ["model.position=alibi", "model.position.scaling=yarn"])
    both = load_config(
        "configs/demo.py",
        ["model.position.nth.scaling=yarn", "data.max_len=33"],
        "interleaved:nth=rope:others=rope",
    )
    both = apply_overrides(both, ["model.position.others.scaling=yarn", "data.max_len=44"])
    lengths = [both.model.position.nth.scaling, both.model.position.others.scaling]
    assert [scaling.trained_length for scaling in lengths] == [33, 44]


def test_the_longest_name_of_a_scheme_gives_way_to_that_of_another() -> None:
    mine = apply_overrides(CONFIG, ["name=my_p_rope"], position="p_rope")
    assert apply_overrides(mine, [], position="alibi").name == "my_alibi"


@pytest.mark.parametrize(
    ("data_len", "decode_len", "reach"), [(100, 100, 512), (900, 100, 900), (100, 1200, 1200)]
)
def test_a_learned_table_is_made_long_enough(data_len: int, decode_len: int, reach: int) -> None:
    lengths = [f"data.max_len={data_len}", f"decode.max_len={decode_len}"]
    changed = apply_overrides(CONFIG, lengths, position="learnable")
    assert changed.model.position == schema.Learnable(max_positions=reach)


def test_position_and_overrides_are_checked_together() -> None:
    said = "model.position = 'roper': allowed: rope, "  # the names closest first
    refused(lambda: apply_overrides(CONFIG, [], position="roper"), said)
    for text in ("rope:", "rope:base", "rope:base=7:"):
        said = f"--position '{text}': write NAME:FIELD=VALUE"
        refused(partial(apply_overrides, CONFIG, [], position=text), said)
    said = "--position rope .. --set model.position=alibi: give one of the two"
    refused(lambda: apply_overrides(CONFIG, ["model.position=alibi"], position="rope"), said)
    said = "--position rope:base=5 .. --set model.position.base=7: give one of the two"
    refused(
        lambda: apply_overrides(CONFIG, ["model.position.base=7"], position="rope:base=5"), said
    )
    changed = apply_overrides(CONFIG, ["model.position.base=7"], position="rope")
    assert changed.model.position == Rope(base=7.0)
    said = "model.position.max_positions = 100: allows for 100 .. source side; data.max_len = "
    refused(lambda: apply_overrides(CONFIG, ["model=x"], position="rope"), "model = 'x': model is")
    short = ["model.position.max_positions=100"]
    refused(lambda: apply_overrides(CONFIG, short, position="learnable"), said)


@pytest.mark.parametrize("name", sorted(POSITIONS.keys() - kinds(Position).keys()))
def test_a_named_scheme_that_is_no_kind_is_spelled_out(name: str) -> None:
    said = f"allowed: none, sinusoidal, .. ; {name} is model.position="
    message = refused(lambda: apply_overrides(CONFIG, [f"model.position={name}"]), said)
    settings = message.rpartition(f"; {name} is ")[2].split(", ")
    assert apply_overrides(CONFIG, settings).model.position == POSITIONS[name]


# ------------------------------------------------------------------------------------- config files

HEAD = "from dataclasses import replace\nfrom configs.schema import Config, ModelConfig, Subword\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", config_files(), ids=lambda path: path.stem)
def test_every_config_file_loads_and_survives_json(path: Path) -> None:
    config = load_config(path)
    assert config.name == path.stem
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_a_config_file_is_named_by_its_file_unless_it_names_itself(tmp_path: Path) -> None:
    text = HEAD + "config = Config(tokenizer=Subword(vocab_size=100))\n"
    plain = load_config(write(tmp_path / "small one.py", text))
    assert (plain.name, plain.tokenizer) == ("small_one", schema.Subword(vocab_size=100))
    named = write(tmp_path / "other.py", HEAD + "config = replace(Config(), name='mine')\n")
    assert load_config(named).name == "mine"
    assert load_config(named, ["name=yours"]).name == "yours"


def test_the_command_line_changes_a_config_file(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_config_arguments(parser)
    args = parser.parse_args(["--set", "train.seed=3", "--position", "none", "--set", "name=x"])
    path = write(tmp_path / "a.py", HEAD + "config = Config()\n")
    config = load_config(path, args.overrides, args.position)
    assert (config.train.seed, config.name, config.model.position) == (3, "x", schema.NoPosition())
    assert parser.parse_args([]).overrides == []
    assert isinstance(load_config(path).model.position, schema.Sinusoidal)


def test_a_config_file_may_import_one_beside_it(tmp_path: Path) -> None:
    """The one beside it, though a config in another folder has imported one of that name."""
    before = [*sys.path]
    for folder in (tmp_path / "there", tmp_path / "here"):
        folder.mkdir()
        write(folder / "the_one_beside.py", HEAD + f"config = Config(name='{folder.name}')\n")
        path = write(folder / "a.py", "from the_one_beside import config as config\n")
        assert load_config(path).name == folder.name
    assert sys.path == before


def test_an_edited_config_file_is_read_anew(tmp_path: Path) -> None:
    for name in ("one", "two"):  # of the same size, within the same second
        path = write(tmp_path / "a.py", HEAD + f"config = Config(name='{name}')\n")
        assert load_config(path).name == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("config = (\n", ":1: syntax error"),
        ("def f():\n    return 1 / 0\nconfig = f()\n", ":2: ZeroDivisionError: division by zero"),
        ("\nimport not_a_module_at_all\n", ":2: ModuleNotFoundError .. not_a_module_at_all"),
        ("raise SystemExit(3)\n", ":1: SystemExit: 3"),
        ("raise ValueError('two\\nlines')\n", ":1: ValueError: two lines"),
        (HEAD + "config = Config(model=ModelConfig(d_model=3))\n", ":3: model.d_model = 3: "),
        (HEAD + "config = ModelConfig(position='rope')\n", ":3: model.position = 'rope' .. Rope"),
        (HEAD + "config = Config(modle=1)\n", ":3: TypeError .. modle .. Config has: model, "),
        (HEAD + "replace(Subword(), size=9)\n", ":3: TypeError .. size .. has: vocab_size, "),
        ("class A: ...\nconfig = A(b=1)\n", ":2: TypeError: A() takes no arguments"),
        ("x = 1\n", ": must end in `config = ...`"),
        ("config = {}\n", ": must end in `config = ...`, a configs.schema.Config, not dict"),
    ],
)
def test_a_config_file_that_fails_gives_file_line_and_reason(
    text: str, said: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "bad.py", text)
    assert refused(lambda: load_config(path), f"{path}{said}").startswith(str(path))


def test_a_path_that_is_no_config_file_is_named_with_the_closest_ones(tmp_path: Path) -> None:
    said = "configs/demoo.py: no such config file; the closest .. there are: configs/demo.py, "
    refused(lambda: load_config("configs/demoo.py"), said)
    assert config_of("README.md") is None
    refused(lambda: load_config(tmp_path), "a config is a Python file")
    refused(lambda: load_config(write(tmp_path / "a.json", "{}")), "a config is a Python file")


def test_the_machinery_of_configs_is_no_experiment() -> None:
    stems = {path.stem for path in config_files()}
    assert {"base", "demo", "multi30k_small_rope", f"{ORIGINAL}_learnable"} <= stems
    assert not {"load", "schema", "section", "serialize", "positions", "__init__"} & stems
