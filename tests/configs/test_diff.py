"""`python train.py --diff`: the fields in which two configs differ, wherever they come from."""

from pathlib import Path

import pytest
import torch
from conftest import run_script
from huggingface_hub import constants
from made_runs import Ended, Scripts, scripted
from marian_files import write_marian_model

import train
from configs.load import write_config_json
from configs.schema import Config
from configs.serialize import apply_overrides, to_dict

compared = scripted(train.main)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text("from configs.schema import Config\n\nconfig = Config(name='x')\n", "utf-8")
    return file


CHANGED = apply_overrides(
    Config(name="x"), ["model.d_ff=96", "model.position=alibi", "data.batch_size=5000"]
)
LINES = (
    "model.position: 'sinusoidal' -> 'alibi'\n"
    "model.position.base: 10000.0 -> None\n"
    "model.position.layout: 'interleaved' -> None\n"
    "model.d_ff: 2048 -> 96\n"
    "data.batch_size: 4096 -> 5000\n"
    "model.position.asymmetry: None -> 0.0\n"
)


def run_of(folder: Path) -> Path:
    (folder / "run" / "checkpoints").mkdir(parents=True)
    write_config_json(CHANGED, folder / "run" / "config.json")
    return folder / "run"


def checkpoint_of(folder: Path) -> Path:
    about = {"format": {"version": 1}, "model": {}, "tokenizer": {"fingerprint": ""}}
    torch.save({**about, "config": to_dict(CHANGED)}, folder / "regular_checkpoint_1.pt")
    return folder / "regular_checkpoint_1.pt"


def file_of(folder: Path) -> Path:
    file = folder / "other.py"
    text = f"from configs.serialize import from_dict\nconfig = from_dict({to_dict(CHANGED)!r})\n"
    file.write_text(text, "utf-8")
    return file


@pytest.mark.parametrize("make", [run_of, checkpoint_of, file_of])
def test_a_line_for_each_field(compared: Scripts, mine: Path, tmp_path: Path, make) -> None:
    other = make(tmp_path)
    assert compared("--config", mine, "--diff", other) == Ended(0, LINES, "")
    changes = ["--set", "model.d_ff=96", "--set", "data.batch_size=5000", "--set", "name=x"]
    changes += ["--position", "alibi"]
    assert compared("--config", mine, *changes, "--diff", other) == Ended(0, "", "no difference\n")
    there = compared("--resume", other, "--diff", mine) if make is checkpoint_of else None
    assert there is None or "model.d_ff: 96 -> 2048\n" in there.out


def test_what_is_no_config_gets_one_line(compared: Scripts, mine: Path, tmp_path: Path) -> None:
    nowhere = compared("--config", mine, "--diff", "nowhere").error()
    assert nowhere.startswith("nowhere: no such config file")
    mistyped = compared("--config", mine, "--diff", "config/demo.py").error()
    assert mistyped.startswith("config/demo.py: no such config file")  # no name on the hub
    assert "no checkpoint in" in compared("--config", mine, "--diff", tmp_path).error()
    (tmp_path / "model.npz").touch()
    for theirs in (tmp_path, tmp_path / "model.npz"):
        said = compared("--config", mine, "--diff", theirs).error()
        assert said.startswith(f"{theirs}: a model of Marian's own program: convert it")
    said = compared("--config", mine, "--diff", "runs/nowhere").error()
    assert said == "runs/nowhere: no such checkpoint or run folder"
    for name in ("nowhere.json", "rnus/config.json"):
        said = compared("--config", mine, "--diff", name).error()
        assert said == f"{name}: cannot be read: No such file or directory"


def test_a_marian_model_is_compared_too(
    compared: Scripts,
    mine: Path,
    marian_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    model = write_marian_model(marian_folder, tmp_path / "model")
    ended = compared("--config", mine, "--diff", model)
    assert ended.code == 0
    assert "model.d_model: 512 -> 32\n" in ended.out


def test_configs_are_compared_and_refused_before_torch_is_imported(
    mine: Path, tmp_path: Path
) -> None:
    probe = (
        "import sys, train\n"
        "try: train.main(['--set', 'model.d_modl=8'])\n"
        "except Exception as error: print(type(error).__name__)\n"
        f"train.main(['--config', {str(mine)!r}, '--diff', {str(run_of(tmp_path))!r}])\n"
        "print('torch' in sys.modules)"
    )
    assert run_script("-c", probe).stdout == f"ConfigError\n{LINES}False\n"
