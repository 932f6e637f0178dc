"""One bit of a file turned over, as by a failing disk: it is named, or it changes nothing."""

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_runs import best_of
from toy_runs import run_here, same, toy_config

from checkpoints.content import read_checkpoint, write_safetensors
from checkpoints.run import Run
from configs.load import read_config_json
from configs.serialize import to_dict
from data.cache import tokenize_split
from data.corpora.base import ParallelText
from tokenizer.build import load_tokenizer
from translation.engines import CHECKSUMS, export_once
from translation.loading import load_run
from utils.errors import UserError

TEXT = ParallelText(["le chat voit", "le chien voit le roi"], ["the cat sees", "the dog sees"])
SPREAD, ENDS = 14, 6  # bits over the whole of a file, and of its first and last bytes


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that a run, its export, its cache and its engine leave, in folders by these names."""
    home = tmp_path_factory.mktemp("turned_bits")
    short = "train.max_steps=2 decode.max_len=5 model.d_model=4 model.d_ff=4"
    run_here(toy_config(home, short)).run.path.rename(home / "run")
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


def config(home: Path) -> Any:
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
        (config, "run/config.json", 10),
        (exported, "exported/model.safetensors", 10),
        (exported, "exported/config.json", 10),
        (cached, "tokens/*/tgt_offsets.npy", 0),
        (cached, "tokens/*/manifest.json", 0),
        (engine, "engine/ctranslate2/*/model.bin", 0),
        (engine, "engine/ctranslate2/*/config.json", 0),
        (engine, f"engine/ctranslate2/*/{CHECKSUMS}", 0),
    ],
)
def test_it_is_named_or_changes_nothing(
    home: Path, tmp_path: Path, read: Callable[[Path], Any], name: str, least: int
) -> None:
    """`least`: of a file that is not made anew so many are refused, at least, by its name."""
    if read is engine:
        pytest.importorskip("ctranslate2")
    expected = read(home)
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
