"""Bad input of every kind: an answer or a clear error, no traceback, no file where none belongs.

Of files that a run leaves one bit turned over, as by a failing disk, is named or changes nothing.

The suite draws a few examples of each kind, always the same. A campaign:
`python -m pytest tests/test_fuzzing.py --fuzz-examples 2000`.
"""

import contextlib
import functools
import gzip
import importlib.util
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from conftest import ROOT
from fuzz_inputs import altered, damaged, odd_text, odd_values, packed, short_text
from hypothesis import given, settings, strategies as st
from ignite.engine import Engine, State
from made_runs import best_of
from toy_runs import run_here, same, toy_config

from checkpoints.content import checkpoint_config, read_checkpoint, write_safetensors
from checkpoints.run import Run
from configs.load import read_config_json
from configs.schema import Config, DataConfig, Iwslt2017, Mixture, ParallelFiles, Subword, Weighted
from configs.serialize import apply_overrides, from_dict, leaves, to_dict
from data.cache import tokenize_split
from data.corpora.base import ParallelText
from data.corpora.build import build_corpus
from tokenizer.build import load_tokenizer
from tokenizer.subword import SubwordTokenizer
from training.log import RunLog
from training.run import train
from translation.engines import CHECKSUMS, export_once
from translation.loading import load_run
from translation.settings import config_change
from translation.translator import Translator
from utils.errors import UserError
from utils.lines import read_lines


def fuzzed(share: float = 1.0) -> Callable[[Any], Any]:
    """As many examples as the command line asks for, or a share of them where one takes long."""
    profile = settings.get_profile("fuzz")
    set_up = settings(profile, max_examples=max(2, round(profile.max_examples * share)))
    return lambda test: pytest.mark.slow(set_up(test))


@contextlib.contextmanager
def an_answer_or_a_clear_error() -> Iterator[None]:
    with contextlib.suppress(UserError):
        yield


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    """A trained toy run. Tests must not change it."""
    short = ("train.max_epochs=1", "train.max_steps=6", "decode.max_len=5", "train.patience=3")
    return run_here(toy_config(folder, *short)).run


def fresh(folder: Path) -> Path:
    """The folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def perhaps_damaged(data: st.DataObject, raw: bytes) -> bytes:
    return data.draw(damaged(raw)) if data.draw(st.booleans()) else raw


# --------------------------------------------------------------------------------------------- text


def as_file(lines: list[str], *, packed: bool) -> bytes:
    raw = "\n".join(lines).encode("utf-8", "surrogatepass")
    return gzip.compress(raw, 1) if packed else raw


@fuzzed()
@given(data=st.data())
def test_parallel_files(folder: Path, data: st.DataObject) -> None:
    root = fresh(folder / "parallel")
    for lang in ("fr", "en"):
        packed = data.draw(st.booleans())
        raw = as_file(["Le chat.", *data.draw(st.lists(odd_text(), max_size=4))], packed=packed)
        name = f"train.{lang}{'.gz' if packed else ''}"
        (root / name).write_bytes(perhaps_damaged(data, raw))
    choice = st.sampled_from(["skip", "error"])
    corpus = ParallelFiles(
        root=str(root), on_empty=data.draw(choice), on_bad_utf8=data.draw(choice)
    )
    with an_answer_or_a_clear_error():
        text = build_corpus(DataConfig(corpus=corpus)).load("train")
        assert len(text.src) == len(text.tgt) > 0
        for line in (*text.src, *text.tgt):
            assert line == " ".join(line.split())
            assert line.encode()


MARKUP = f"""<doc docid="7">
</doc>
<seg id="1">
</seg>
<seg id="{"9" * 5000}">
&#{"9" * 5000};
&#x{"f" * 5000};
&#xd800;&#0;&#xffff;
<!ENTITY a SYSTEM "file:///etc/passwd">&a;
<!DOCTYPE x [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]>&b;
<?xml-stylesheet href="http://127.0.0.1:9/x"?>
<seg
<doc docid=
]]>"""
PIECES = st.one_of(st.sampled_from(MARKUP.split("\n")), short_text)
MARKED = '<doc docid="1">\n<seg id="1">un</seg>\n<seg id="2">deux</seg>\n</doc>\n'


@st.composite
def official_text(draw: st.DrawFn) -> bytes:
    parts = [MARKED, *draw(st.lists(PIECES, max_size=3))]
    raw = "".join(draw(st.permutations(parts))).encode("utf-8", "surrogatepass")
    return draw(damaged(raw)) if draw(st.booleans()) else raw


STEMS = {"train": "train.tags.fr-en.{}", "validation": "IWSLT17.TED.dev2010.fr-en.{}.xml"}
ODD_NAMES = ("fr-en.zip", "en-fr.tgz", "../../climbed", "/tmp/climbed")


@fuzzed(2)
@given(
    data=st.data(), split=st.sampled_from([*STEMS]), suffix=st.sampled_from(["", ".zip", ".tgz"])
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_official_files(folder: Path, data: st.DataObject, split: str, suffix: str) -> None:
    path = fresh(folder / "official" / "inner") / f"corpus{suffix}"
    names = [STEMS[split].format(lang) for lang in ("fr", "en")]
    members = [(name, data.draw(official_text())) for name in names]
    if suffix:
        more = st.tuples(st.sampled_from([*names, *ODD_NAMES]), official_text())
        members += data.draw(st.lists(more, max_size=3))
        path.write_bytes(perhaps_damaged(data, packed(suffix, members, links=True)))
    else:
        path.mkdir()
        for name, content in members:
            (path / name).write_bytes(content)
    with an_answer_or_a_clear_error():
        corpus = Iwslt2017(path=str(path), check_sizes=False)
        text = build_corpus(DataConfig(corpus=corpus)).load(split)
        assert len(text.src) == len(text.tgt) > 0
        assert all(line.encode() and "root:" not in line for line in (*text.src, *text.tgt))
    assert [*folder.joinpath("official").glob("*"), *path.parent.glob("*")] == [path.parent, path]
    assert not Path("/tmp/climbed").exists()


@fuzzed()
@given(data=st.data())
def test_lines_to_translate(data: st.DataObject) -> None:
    lines = data.draw(st.lists(odd_text(), max_size=4))
    raw = perhaps_damaged(data, as_file(lines, packed=False))
    with an_answer_or_a_clear_error():
        lines = list(read_lines(io.BytesIO(raw), "x"))
        assert len(lines) == raw.count(b"\n") + (not raw.endswith(b"\n") and raw != b"")
        assert not any("\n" in line for line in lines)


# --------------------------------------------------------------------------------------- tokenizers


@fuzzed(0.5)
@given(
    texts=st.lists(odd_text(), min_size=1, max_size=4),
    text=odd_text(),
    algorithm=st.sampled_from(["bpe", "unigram"]),
)
def test_subwords_learned_from_anything_segment_anything(
    texts: list[str], text: str, algorithm: Any
) -> None:
    with an_answer_or_a_clear_error():
        tokenizer = SubwordTokenizer.train(texts, Subword(algorithm=algorithm, vocab_size=80))
        ids = tokenizer.encode_src(text)
        assert ids[-1] == tokenizer.eos_id
        assert all(0 <= i < tokenizer.src_vocab_size for i in ids)
        assert set(ids[:-1]) <= set(range(4, 80)) | {tokenizer.unk_id}
        assert "\n" not in tokenizer.decode(ids) or "\n" in text


# ------------------------------------------------------------------------------------------ configs

MIXTURE = Mixture(parts=(Weighted(corpus=ParallelFiles(), name="a"), Weighted()))
YARN = ("tokenizer=marian", "model.position=rope", "model.position.scaling=yarn")
KINDS = ("decode.search=sample", "data.clean=rules", "optim.objective=r_drop")
CONFIGS = [Config(), Config(data=DataConfig(corpus=MIXTURE))]
CONFIGS += [apply_overrides(Config(), changes) for changes in (YARN, KINDS)]
KEYS = sorted({key for config in CONFIGS for key, _ in leaves(to_dict(config), "")})
VALUES = st.one_of(
    short_text,
    st.sampled_from(["", *"none true 0 -1 1e400 nan () 1,2,x ~nobody/x".split(" ")]),
    st.sampled_from(["9" * 5000, "1" + "0" * 400]),
    st.sampled_from(["rope", "files", "mixture", "sample", "yarn", "subword", "rules"]),
    st.integers().map(str),
    st.floats().map(str),
)


@fuzzed(2)
@given(config=st.sampled_from(CONFIGS), data=st.data())
def test_configs_from_data(config: Config, data: st.DataObject) -> None:
    values = st.one_of(odd_values, *[altered(to_dict(config))] * 3)
    with an_answer_or_a_clear_error():
        found = from_dict(data.draw(values))
        assert from_dict(json.loads(json.dumps(to_dict(found)))) == found


@fuzzed(2)
@given(
    config=st.sampled_from(CONFIGS),
    changes=st.lists(
        st.one_of(
            st.sampled_from(KINDS),
            st.builds("{}={}".format, st.one_of(st.sampled_from(KEYS), short_text), VALUES),
        ),
        min_size=1,
        max_size=3,
    ),
    position=st.one_of(
        st.none(), st.sampled_from(["rope", "learnable", "alibi", "rope_yarn"]), short_text
    ),
)
def test_overrides(config: Config, changes: list[str], position: str | None) -> None:
    with an_answer_or_a_clear_error():
        found = apply_overrides(config, changes, position=position)
        assert from_dict(to_dict(found)) == found


# ------------------------------------------------------------------------------------ command lines


def options_of(script: Any, arguments: list[str]) -> list[str]:
    """The long options in a script's --help."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        script.parse_args([*arguments, "--help"])
    return sorted(set(re.findall(r"--\w+", said.getvalue())))


ARGUMENTS = st.one_of(
    short_text, VALUES, st.sampled_from(["model.d_model=64", "configs/demo.py", "--"])
)


@pytest.mark.parametrize("name", sorted(path.stem for path in ROOT.glob("*.py")))
@fuzzed()
@given(data=st.data())
def test_command_lines(name: str, data: st.DataObject) -> None:
    script = importlib.import_module(name)
    commands = st.sampled_from(["attention", "bias", "decay"])
    command = [data.draw(commands)] if name == "visualize" else []
    options = st.sampled_from(options_of(script, command))
    given_arguments = data.draw(st.lists(st.one_of(options, options, ARGUMENTS), max_size=6))
    with contextlib.redirect_stdout(io.StringIO()):  # of --help
        try:
            with an_answer_or_a_clear_error():
                words = [*command, *(text.replace("\0", "") for text in given_arguments)]
                args = script.parse_args(words)
                if name in ("inference", "test", "tune", "back_translate"):
                    search, file = getattr(args, "search", None), getattr(args, "config", None)
                    config_change(file, search, args.overrides)(Config())
        except SystemExit as ended:
            if ended.code != 0:  # --help
                raise


# -------------------------------------------------------------------------------- what a run leaves

TEXT = ParallelText(["le chat voit", "le chien voit le roi"], ["the cat sees", "the dog sees"])
SPREAD, ENDS = 14, 6  # bits over the whole of a file, and of its first and last bytes


@pytest.fixture(scope="module")
def home(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that a run, its export, its cache and its engine leave, in folders by these names."""
    home = tmp_path_factory.mktemp("home")
    shutil.copytree(run.path, home / "run")
    loaded = load_run(home / "run")
    (home / "exported").mkdir()
    write_safetensors(loaded.model, loaded.config, loaded.tokenizer, {}, home / "exported")
    cached(home)
    if importlib.util.find_spec("ctranslate2"):
        (home / "engine").mkdir()
        engine(home)
    return home


def checkpoint(home: Path) -> Any:
    return read_checkpoint(best_of(home / "run"))


def tokenizer(home: Path) -> Any:
    loaded = load_tokenizer(Run(home / "run").tokenizer)
    return loaded.fingerprint(), loaded.kind


def config_file(home: Path) -> Any:
    return to_dict(read_config_json(Run(home / "run").config_file))


def exported(home: Path) -> Any:
    loaded = load_run(home / "exported")
    return loaded.model.state_dict(), to_dict(loaded.config)


def cached(home: Path) -> Any:
    words = load_tokenizer(Run(home / "run").tokenizer)
    split = tokenize_split(TEXT, words, max_len=9, too_long="drop", cache_dir=home / "tokens")
    return [side(i).tolist() for side in (split.src, split.tgt) for i in range(len(split))]


def engine(home: Path) -> Any:
    loaded = load_run(home / "exported")
    made = loaded.model, loaded.config.model, loaded.tokenizer
    folder = export_once(
        *made, run=Run(home / "engine"), checkpoint=Path("best.pt"), checksum="of the checkpoint"
    )
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != CHECKSUMS}


@functools.cache
def undamaged(read: Callable[[Path], Any], home: Path) -> Any:
    return read(home)


def turned(whole: bytes) -> Iterator[bytes]:
    n = 8 * len(whole)
    places = {n * i // SPREAD + 5 * i % 8 for i in range(SPREAD)}
    places |= {31 * i % min(n, 1600) for i in range(ENDS)}
    places |= {n - 1 - 37 * i % min(n, 1600) for i in range(ENDS)}
    for place in sorted(place % n for place in places):
        changed = bytearray(whole)
        changed[place // 8] ^= 1 << place % 8
        yield bytes(changed)


@pytest.mark.parametrize(
    ("read", "name", "least"),
    [
        (checkpoint, "run/checkpoints/best_*.pt", 10),
        (tokenizer, "run/tokenizer/tokenizer.json", 10),
        (tokenizer, "run/tokenizer/tokenizer_kind.json", 10),
        (config_file, "run/config.json", 10),
        (exported, "exported/model.safetensors", 10),
        (exported, "exported/config.json", 10),
        (cached, "tokens/*/tgt_offsets.npy", 0),
        (cached, "tokens/*/manifest.json", 0),
        (engine, "engine/ctranslate2/*/model.bin", 0),
        (engine, "engine/ctranslate2/*/config.json", 0),
        (engine, f"engine/ctranslate2/*/{CHECKSUMS}", 0),
    ],
)
def test_a_turned_bit_is_named_or_changes_nothing(
    home: Path, tmp_path: Path, read: Callable[[Path], Any], name: str, least: int
) -> None:
    """`least`: of a file that is not made anew so many are refused, at least, by its name."""
    if read is engine:
        pytest.importorskip("ctranslate2")
    expected = undamaged(read, home)
    copy = Path(shutil.copytree(home, tmp_path / "home"))
    [file] = copy.glob(name)
    whole, refused = file.read_bytes(), 0
    for content in turned(whole):
        file.write_bytes(content)
        try:
            assert same(read(copy), expected)
        except UserError as error:
            refused += str(copy) in str(error)
        assert least or file.read_bytes() == whole
    assert refused >= least, refused


@pytest.mark.parametrize(
    ("read", "names", "allowed"),
    [
        (checkpoint, "run/checkpoints/best_*", [UserError]),
        (tokenizer, "run/tokenizer/*", [UserError]),
        (exported, "exported/*.*", [UserError]),
        (cached, "tokens/*/*", []),  # it is made anew
    ],
)
@fuzzed(1.5)
@given(data=st.data())
def test_a_damaged_file_is_never_taken_for_another(
    home: Path, folder: Path, read: Any, names: str, allowed: Any, data: st.DataObject
) -> None:
    if not (copy := folder / "damaged").exists():
        shutil.copytree(home, copy)
    file = data.draw(st.sampled_from(sorted(copy.glob(names))))
    whole = file.read_bytes()
    file.write_bytes(data.draw(damaged(whole)))
    try:
        with contextlib.suppress(*allowed):
            assert same(read(copy), undamaged(read, home))
    finally:
        file.write_bytes(whole)


def nothing(engine: Engine, *_: Any, **__: Any) -> State:
    engine.state.metrics = dict.fromkeys(("loss", "accuracy", "perplexity"), 1.0)
    return engine.state


@fuzzed(0.5)
@given(data=st.data())
def test_a_checkpoint_of_odd_parts(run: Run, folder: Path, data: st.DataObject) -> None:
    payload = read_checkpoint(run.newest())
    copy = Run(folder / "odd")
    copy.checkpoints.mkdir(parents=True, exist_ok=True)
    shutil.copytree(run.tokenizer, copy.tokenizer, dirs_exist_ok=True)
    path = copy.checkpoints / "best_checkpoint_1_loss=-1.0.pt"
    part = data.draw(st.sampled_from(sorted(payload)))
    values = st.one_of(odd_values, altered(payload[part]))
    parts = values.map(lambda value: {**payload, part: value})
    torch.save(data.draw(st.one_of(parts, altered(payload))), path)
    with an_answer_or_a_clear_error():
        loaded = load_run(copy.path)
        Translator.of(loaded, torch.device("cpu")).translate("le chat voit le chien")
    with an_answer_or_a_clear_error():
        config, whole = (checkpoint_config(each) for each in (read_checkpoint(path), payload))
        if (config.model, config.data) == (whole.model, whole.data):
            # All but the updates, and what a validation computes.
            with mock.patch("training.run.Engine.run", autospec=True, side_effect=nothing):
                train(config, resume=path)


@fuzzed()
@given(data=st.data())
def test_a_damaged_log_keeps_the_lines_that_are_whole(
    run: Run, folder: Path, data: st.DataObject
) -> None:
    copy = Run(folder / "log")
    copy.logs.mkdir(parents=True, exist_ok=True)
    log = copy.logs / "metrics.jsonl"
    whole = (run.logs / "metrics.jsonl").read_bytes()
    log.write_bytes(found := data.draw(damaged(whole)))
    with RunLog(copy, first_step=3):
        pass
    kept = set(log.read_bytes().splitlines())
    assert all(json.loads(line)["step"] <= 3 for line in kept)
    intact = set(whole.splitlines()).intersection(found.split(b"\n")[:-1])
    assert kept >= {line for line in intact if json.loads(line)["step"] <= 3}


@fuzzed(0.5)
@given(texts=st.lists(short_text, min_size=1, max_size=5))
def test_anything_is_translated_to_as_many_lines(run: Run, texts: list[str]) -> None:
    translator = Translator.load(run.path, device="cpu")
    with an_answer_or_a_clear_error():
        assert len(translator.translate(texts, search="greedy")) == len(texts)
