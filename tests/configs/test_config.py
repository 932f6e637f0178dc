"""Configurations: schema errors, text overrides, JSON, and config files."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from dataclasses import dataclass
from typing import Literal

import pytest
from conftest import run_script

from configs.load import (
    add_config_arguments,
    config_files,
    load_config,
    read_config_json,
    write_config_json,
)
from configs.positions import POSITIONS
from configs.schema import (
    Config,
    Cosine,
    DataConfig,
    DecodeConfig,
    Learnable,
    Marian,
    ModelConfig,
    Noam,
    NoPosition,
    OptimConfig,
    ParallelFiles,
    Phrasebook,
    Position,
    Rope,
    Schedule,
    Section,
    Sinusoidal,
    Subword,
)
from configs.serialize import (
    apply_overrides,
    diff,
    from_dict,
    kinds,
    parse_override,
    set_field,
    to_dict,
    with_position,
)
from utils.errors import ConfigError, UserError

CONFIG = Config()


def rich_config() -> Config:
    """A config that differs from the defaults in every kind of field."""
    return Config(
        name="rich",
        model=ModelConfig(
            position=Rope(form="complex", cross=True, base=500.0), d_model=64, n_heads=4
        ),
        tokenizer=Marian(name_or_path="some/folder"),
        data=DataConfig(
            corpus=ParallelFiles(root="texts", test=("a", "b")), src_lang="en", tgt_lang="fr"
        ),
        optim=OptimConfig(schedule=Cosine(lr=0.5), betas=(0.8, 0.9), grad_clip=None),
    )


# ------------------------------------------------------------------------------------ dict and JSON


@pytest.mark.parametrize("config", [CONFIG, rich_config()], ids=["default", "rich"])
def test_config_survives_json(config, tmp_path):
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    write_config_json(config, tmp_path / "config.json")
    assert read_config_json(tmp_path / "config.json") == config
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("path", config_files(), ids=lambda path: path.stem)
def test_every_config_file_loads_and_survives_json(path):
    config = load_config(path)
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_union_members_carry_their_kind_and_plain_sections_do_not():
    data = to_dict(rich_config())
    assert data["model"]["position"]["kind"] == "rope"
    assert data["tokenizer"] == {"kind": "marian", "name_or_path": "some/folder"}
    assert data["data"]["corpus"]["kind"] == "files"
    assert data["optim"]["schedule"]["kind"] == "cosine"
    assert "kind" not in data["model"]


def test_missing_keys_take_their_defaults_so_that_older_runs_load():
    assert from_dict({"model": {"d_model": 256}}) == Config(model=ModelConfig(d_model=256))
    assert from_dict({"model": {"position": {"kind": "rope"}}}).model.position == Rope()


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        ({"modle": {}}, ["'modle'", "has: model, "]),
        ({"model": {"d_modell": 4}}, ["'model.d_modell'", "model has: d_model, "]),
        ({"model": {"kind": "rope"}}, ["'model.kind'"]),
        (
            {"model": {"position": {"kind": "ropes"}}},
            ["model.position.kind = 'ropes'", "sinusoidal", "rope"],
        ),
        ({"model": {"position": {}}}, ["model.position.kind = None", "rope"]),
        ({"model": {"position": {"kind": ["rope"]}}}, ["model.position.kind = ['rope']"]),
        (
            {"model": {"position": {"kind": "rope", "max_positions": 4}}},
            ["(rope)", "belongs to model.position=learnable"],
        ),
        ({"model": {"d_model": "512"}}, ["model.d_model = '512'", "an integer >= 2"]),
        ({"model": 3}, ["model = 3", "mapping"]),
        ([], ["the configuration = []", "mapping"]),
        ({"optim": {"betas": [0.9]}}, ["optim.betas = (0.9,)", "2 values"]),
        ({"data": {"corpus": {"kind": "files", "test": []}}}, ["data.corpus.test = ()"]),
    ],
)
def test_from_dict_names_what_is_wrong(data, parts):
    with pytest.raises(ConfigError) as caught:
        from_dict(data)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize(
    ("content", "part"),
    [(b"{", "not valid JSON"), (b"\xff", "not valid JSON"), (b'{"name": ""}', "name = ''")],
)
def test_a_damaged_json_file_is_named(content, part, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_config_json(path)
    assert str(path) in str(caught.value)
    assert part in str(caught.value)


def test_a_missing_json_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.json: cannot be read"):
        read_config_json(tmp_path / "absent.json")


# --------------------------------------------------------------------------------- schema, by field


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: ModelConfig(d_model=1), ["model.d_model = 1", ">= 2"]),
        (lambda: ModelConfig(d_model=True), ["model.d_model = True", "an integer"]),
        (lambda: ModelConfig(dropout=1.0), ["model.dropout = 1.0", "< 1"]),
        (lambda: ModelConfig(dropout=float("nan")), ["model.dropout = nan", "a number"]),
        (lambda: ModelConfig(norm="both"), ["model.norm = 'both'", "'pre', 'post'"]),
        (lambda: ModelConfig(bias=1), ["model.bias = 1", "True or False"]),
        (lambda: ModelConfig(position="rope"), ["model.position = 'rope'", "Rope"]),
        (lambda: ModelConfig(d_model=10, n_heads=4), ["model.d_model = 10", "model.n_heads = 4"]),
        (
            lambda: ModelConfig(d_model=6, n_heads=2, position=Rope()),
            ["model.n_heads = 2", "even head size"],
        ),
        (
            lambda: ModelConfig(backend="torch", position=Rope()),
            ["model.position", "none, sinusoidal, learnable"],
        ),
        (lambda: OptimConfig(betas=(0.9, 1.0)), ["optim.betas = (0.9, 1.0)", "< 1"]),
        (lambda: DataConfig(tgt_lang="fr"), ["data.tgt_lang = 'fr'", "data.src_lang"]),
        (lambda: DataConfig(batch_size=10), ["data.batch_size = 10", "data.max_len = 256"]),
        (lambda: DecodeConfig(n_best=9), ["decode.n_best = 9", "decode.beam_size = 5"]),
        (
            lambda: Config(model=ModelConfig(position=Learnable(max_positions=100))),
            ["model.position.max_positions = 100", "data.max_len = 256"],
        ),
        (lambda: Config(name="a/b"), ["name = 'a/b'", "letters"]),
    ],
)
def test_schema_errors_name_field_value_and_rule_in_one_line(make, parts):
    with pytest.raises(ConfigError) as caught:
        make()
    assert isinstance(caught.value, UserError)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------- overrides


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("model.d_model", "256", 256),
        ("optim.eps", "1e-3", 1e-3),
        ("model.dropout", "0", 0.0),
        ("model.bias", "no", False),
        ("model.bias", "True", True),
        ("train.compile", "1", True),
        ("model.norm", "post", "post"),
        ("name", "my-run_2", "my-run_2"),
        ("optim.betas", "0.8,0.95", (0.8, 0.95)),
        ("optim.betas", "(0.8, 0.95)", (0.8, 0.95)),
        ("evaluate.length_buckets", "5,9", (5, 9)),
        ("optim.grad_clip", "none", None),
        ("optim.grad_clip", "0.5", 0.5),
        ("train.max_steps", "NULL", None),
        ("train.max_steps", "7", 7),
        ("model.position", "rope", Rope()),
        ("data.corpus", "files", ParallelFiles()),
        ("data.corpus.train_max_words", "8", 8),
        ("data.corpus.n_train", "10", 10),
        ("optim.schedule", "noam", Noam()),
        ("optim.schedule.warmup_steps", "10", 10),
        ("data.cache_dir", "a=b c", "a=b c"),
    ],
)
def test_overrides_are_typed_by_their_field(key, text, expected):
    value = set_field(CONFIG, key, text)
    for part in key.split("."):
        value = getattr(value, part)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("key", "text", "parts"),
    [
        ("model.d_model", "1.5", ["model.d_model = '1.5'", "an integer >= 2"]),
        ("model.d_model", "", ["model.d_model = ''", "an integer"]),
        ("model.dropout", "much", ["model.dropout = 'much'", "a number >= 0"]),
        ("model.dropout", "nan", ["model.dropout = nan", "a number"]),
        ("model.dropout", "1.5", ["model.dropout = 1.5", "< 1"]),
        ("model.bias", "maybe", ["model.bias = 'maybe'", "True or False"]),
        ("model.norm", "Post", ["model.norm = 'Post'", "'pre', 'post'"]),
        (
            "model.position",
            "Rope",
            ["model.position = 'Rope'", "none, sinusoidal, learnable, rope"],
        ),
        ("optim.betas", "0.9,x", ["optim.betas = '0.9,x'", "2 values"]),
        ("optim.betas", "0.9", ["optim.betas = (0.9,)", "2 values"]),
        ("optim.grad_clip", "off", ["optim.grad_clip = 'off'", "None"]),
        ("data.corpus.test", "", ["data.corpus", "test"]),
        ("model", "big", ["model is a section", "d_model"]),
        ("model.d_model.x", "1", ["'model.d_model.x'", "single value"]),
        ("modell.d_model", "1", ["'modell'", "has: model, "]),
        ("model.heads", "1", ["'model.heads'", "model has: n_heads, "]),
        (
            "model.position.bass",
            "1",
            ["'model.position.bass'", "model.position (sinusoidal) has: base"],
        ),
        (
            "data.corpus.root",
            "x",
            ["'data.corpus.root'", "(phrasebook)", "root belongs to data.corpus=files"],
        ),
        ("optim.schedule.noam_factor", "1", ["(inverse_sqrt)", "belongs to optim.schedule=noam"]),
        ("d_model", "1", ["'d_model'", "there is model.d_model"]),
        ("model.max_len", "1", ["'model.max_len'", "there is data.max_len, decode.max_len"]),
        ("train.lr", "1", ["'train.lr'", "there is optim.schedule.lr"]),
    ],
)
def test_a_bad_override_names_key_value_and_the_allowed_ones(key, text, parts):
    with pytest.raises(ConfigError) as caught:
        set_field(CONFIG, key, text)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scheme_without_fields_says_so():
    config = Config(model=ModelConfig(position=NoPosition()))
    with pytest.raises(
        ConfigError,
        match=r"\(none\) has no fields; base belongs to model.position=sinusoidal or rope",
    ):
        set_field(config, "model.position.base", "10")


@dataclass(frozen=True, slots=True, kw_only=True)
class Optional(Section):
    choice: Literal["a", "b"] | None = (
        None  # Python 3.11 makes another kind of union of this than of two classes
    )


def test_a_choice_may_be_optional():
    assert [Optional(choice=choice).choice for choice in (None, "a")] == [None, "a"]
    with pytest.raises(ConfigError, match="choice = 'c': allowed: 'a', 'b', None"):
        Optional(choice="c")


def test_train_refuses_a_bad_config_before_torch_is_imported():
    probe = (
        "import sys, train\n"
        "sys.argv = ['train.py', '--set', 'model.d_modl=8']\n"
        "try: train.main()\n"
        "except Exception as error: print(type(error).__name__, 'torch' in sys.modules)"
    )
    assert run_script("-c", probe).stdout == "ConfigError False\n"


@pytest.mark.parametrize("text", ["model.d_model", "=3", "", " = "])
def test_an_override_without_key_or_equals_is_refused(text):
    with pytest.raises(ConfigError, match=r"SECTION\.FIELD=VALUE"):
        parse_override(text)


@pytest.mark.parametrize(
    "texts",
    [
        ["model.d_model=6", "model.n_heads=3"],  # 512 / 3 and 6 / 8 alone would be refused
        ["data.corpus.root=texts", "data.corpus=files", "data.corpus.test=a,b"],
        ["data.max_len=2000", "decode.max_len=2000", "model.position.max_positions=2000", "model.position=learnable",
         "data.batch_size=4096"],
        ["decode.n_best=9", "decode.beam_size=9"],
    ],
    ids=["shape", "corpus", "lengths", "beam"],
)  # fmt: skip
def test_overrides_work_in_any_order(texts):
    results = {apply_overrides(CONFIG, order) for order in itertools.permutations(texts)}
    assert len(results) == 1
    assert results.pop() != CONFIG


def test_the_last_of_two_overrides_of_one_key_wins():
    assert apply_overrides(CONFIG, ["train.seed=1", "train.seed=2"]).train.seed == 2


def test_overrides_leave_the_original_and_other_fields_alone():
    config = rich_config()
    changed = set_field(config, "model.position.base", "100")
    assert changed.model.position == Rope(form="complex", cross=True, base=100.0)
    assert diff(config, changed) == [("model.position.base", 500.0, 100.0)]
    assert config == rich_config()


# ----------------------------------------------------------------------------------------- position


def test_position_is_replaced_by_the_default_of_its_kind_or_kept_if_it_has_it():
    assert with_position(CONFIG, "rope").model.position == Rope()
    assert with_position(rich_config(), "rope") == rich_config()
    assert with_position(CONFIG, "none").model.position == NoPosition()


@pytest.mark.parametrize(
    ("data_len", "decode_len", "reach"), [(100, 100, 512), (900, 100, 900), (100, 1200, 1200)]
)
def test_a_learned_table_is_made_long_enough(data_len, decode_len, reach):
    config = Config(data=DataConfig(max_len=data_len), decode=DecodeConfig(max_len=decode_len))
    assert with_position(config, "learnable").model.position == Learnable(max_positions=reach)


def test_position_and_overrides_are_checked_together():
    changed = apply_overrides(CONFIG, ["data.max_len=900"], position="learnable")
    assert changed.model.position == Learnable(max_positions=900)
    changed = apply_overrides(CONFIG, ["model.position.base=7"], position="rope")
    assert changed.model.position == Rope(base=7.0)
    with pytest.raises(
        ConfigError,
        match=r"model.position.max_positions = 100: allows for 100 tokens on the source side; data.max_len = ",
    ):
        apply_overrides(CONFIG, ["model.position.max_positions=100"], position="learnable")


def test_an_unknown_position_lists_the_kinds():
    with pytest.raises(ConfigError, match=r"model\.position = 'roper': allowed: rope, "):
        with_position(CONFIG, "roper")


@pytest.mark.parametrize("name", sorted(POSITIONS.keys() - kinds(Position).keys()))
def test_a_named_scheme_that_is_no_kind_is_spelled_out(name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"allowed: none, sinusoidal, .*; {name} is model.position="
    ) as caught:
        apply_overrides(CONFIG, [f"model.position={name}"])
    settings = str(caught.value).rpartition(f"; {name} is ")[2].replace(" with ", ", ").split(", ")
    assert apply_overrides(CONFIG, settings).model.position == POSITIONS[name]


def test_a_named_scheme_is_not_offered_where_its_kind_cannot_stand() -> None:
    with pytest.raises(ConfigError, match=r"cosine, plateau$"):
        apply_overrides(CONFIG, ["optim.schedule=xlnet"])


def test_kinds_are_unique_in_every_union():
    assert kinds(Position)["rope"] is Rope
    assert list(kinds(Schedule)) == [
        "constant",
        "epoch_decay",
        "noam",
        "inverse_sqrt",
        "cosine",
        "plateau",
    ]


def test_diff_names_kinds_and_fields():
    other = dataclasses.replace(
        CONFIG, tokenizer=Marian(), data=DataConfig(corpus=Phrasebook(n_train=5))
    )
    assert diff(CONFIG, CONFIG) == []
    assert diff(CONFIG, other) == [
        ("tokenizer", "subword", "marian"),
        ("tokenizer.algorithm", "bpe", None),
        ("tokenizer.vocab_size", 8000, None),
        ("tokenizer.sampling", 0.0, None),
        ("data.corpus.n_train", 20000, 5),
        ("tokenizer.name_or_path", None, "Helsinki-NLP/opus-mt-fr-en"),
    ]


# ------------------------------------------------------------------------------------- config files


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


HEAD = "from dataclasses import replace\nfrom configs.schema import Config, ModelConfig, Subword\n"


def test_a_config_file_is_named_by_its_file_unless_it_names_itself(tmp_path):
    plain = write(
        tmp_path / "small one.py", HEAD + "config = Config(tokenizer=Subword(vocab_size=100))\n"
    )
    assert load_config(plain).name == "small_one"
    assert load_config(plain).tokenizer == Subword(vocab_size=100)
    named = write(tmp_path / "other.py", HEAD + "config = replace(Config(), name='mine')\n")
    assert load_config(named).name == "mine"
    assert load_config(named, ["name=yours"]).name == "yours"


def test_a_config_file_takes_overrides_and_position(tmp_path):
    path = write(tmp_path / "a.py", HEAD + "config = Config()\n")
    config = load_config(path, ["model.d_model=64", "model.position.base=50"], position="rope")
    assert (config.model.d_model, config.model.position) == (64, Rope(base=50.0))
    assert isinstance(load_config(path).model.position, Sinusoidal)


def test_an_edited_config_file_is_read_anew(tmp_path):
    path = write(tmp_path / "a.py", HEAD + "config = Config(name='one')\n")
    assert load_config(path).name == "one"
    write(path, HEAD + "config = Config(name='two')\n")  # the same size within the same second
    assert load_config(path).name == "two"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("config = (\n", ["bad.py:1: syntax error"]),
        ("x = 1\nconfig = 1 / 0\n", ["bad.py:2: ZeroDivisionError: division by zero"]),
        (
            "\nimport not_a_module_at_all\n",
            ["bad.py:2: ModuleNotFoundError", "not_a_module_at_all"],
        ),
        ("raise SystemExit(3)\n", ["bad.py:1: SystemExit: 3"]),
        ("raise ValueError('two\\nlines')\n", ["bad.py:1: ValueError: two lines"]),
        (
            HEAD + "config = Config(model=ModelConfig(d_model=3))\n",
            ["bad.py:3: model.d_model = 3: must be"],
        ),
        (HEAD + "config = Config(modle=1)\n", ["bad.py:3: TypeError", "modle"]),
        ("x = 1\n", ["bad.py: must end in `config = ...`"]),
        ("config = {}\n", ["bad.py: `config` must be a configs.schema.Config, not dict"]),
    ],
)
def test_a_config_file_that_fails_gives_one_line_with_file_line_and_reason(text, parts, tmp_path):
    path = write(tmp_path / "bad.py", text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(str(path))
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_that_is_no_config_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"demoo\.py: no such config file"):
        load_config("configs/demoo.py")
    with pytest.raises(ConfigError, match="is a folder"):
        load_config(tmp_path)
    with pytest.raises(ConfigError, match="a config is a Python file"):
        load_config(write(tmp_path / "a.json", "{}"))


@pytest.mark.skipif(not config_files(), reason="no config files")
def test_a_missing_config_file_lists_the_present_ones_closest_first():
    with pytest.raises(ConfigError) as caught:
        load_config(f"configs/{config_files()[0].stem}x.py")
    assert f"there are: configs/{config_files()[0].stem}.py" in str(caught.value)


def test_command_line_arguments_fit_load_config(tmp_path):
    parser = argparse.ArgumentParser()
    add_config_arguments(parser)
    args = parser.parse_args(["--set", "train.seed=3", "--position", "none", "--set", "name=x"])
    path = write(tmp_path / "a.py", HEAD + "config = Config()\n")
    config = load_config(path, args.overrides, args.position)
    assert (config.train.seed, config.name, config.model.position) == (3, "x", NoPosition())
    assert parser.parse_args([]).overrides == []
