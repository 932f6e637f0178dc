"""What test files share: running the scripts as a user does, and one small trained run."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from marian_files import write_marian_files

# One thread for every process: workers of pytest share the cores, and the number of threads decides
# the last bits.
os.environ["OMP_NUM_THREADS"] = "1"

# Tests send Ctrl-C; in the background of a shell it is ignored.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]

# A model of a few thousand parameters on a few hundred pairs: trained in seconds, good for nothing
# but being real.
TINY = """
    train.max_epochs=2 train.device=cpu train.log_attention=false
    model.d_model=32 model.n_heads=2 model.d_ff=64 tokenizer.vocab_size=600
    data.corpus.n_train=400 data.corpus.n_validation=40 data.corpus.n_test=40 data.batch_size=1024
    evaluate.bleu_sentences=8 decode.max_len=24
""".split()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-examples",
        type=int,
        metavar="N",
        help="of each test in test_fuzzing.py, drawn anew (default: a few, always the same)",
    )
    parser.addoption(
        "--bf16",
        choices=("yes", "no"),
        help="run as on a processor that computes in bfloat16, or as on one that does not "
        "(default: as this one)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--bf16"):
        os.environ["COMPUTES_BF16"] = config.getoption("--bf16")
    examples = config.getoption("--fuzz-examples")
    settings.register_profile(
        "fuzz",
        max_examples=examples or 20,
        derandomize=examples is None,
        database=None,
        deadline=timedelta(seconds=30),  # an example that hangs
        suppress_health_check=list(HealthCheck),
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What modules and cases make stays: nobody looks for garbage among it, now or in the tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    import torch

    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture(scope="session", autouse=True)
def cheap_seeds() -> Iterator[None]:
    """Without a GPU, `torch.manual_seed` notes the stack three times for devices yet to come."""
    import torch

    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setattr(torch, "manual_seed", torch.default_generator.manual_seed)
        yield


def run_script(
    *args: str | Path, cwd: Path = ROOT, timeout: float = 120, environment: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGS` from the repository root, as a user does."""
    command = [sys.executable, *map(str, args)]
    env = {**os.environ, "PYTHONPATH": "", **environment}
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout
    )


def tiny_args(folder: Path, *overrides: str) -> list[str]:
    """`--set` arguments of a tiny run under `folder`; `overrides` come last and win."""
    places = f"train.runs_dir={folder / 'runs'}", f"data.cache_dir={folder / 'cache'}"
    return [part for setting in (*TINY, *places, *overrides) for part in ("--set", setting)]


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished tiny RoPE run on the embedded corpus. Tests must not change it.

    It translates badly, but ends its sentences.
    """
    from configs.load import load_config
    from training.run import train

    fast = "optim.schedule=constant", "optim.schedule.lr=0.006"
    settings = tiny_args(tmp_path_factory.mktemp("trained"), *fast)[1::2]
    return train(load_config("configs/demo.py", settings)).run.path


@pytest.fixture(scope="session")
def translator(trained_run: Path) -> Any:
    from translation.translator import Translator

    return Translator.load(trained_run, device="cpu")


@pytest.fixture(scope="session")
def marian_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_marian_files(tmp_path_factory.mktemp("marian"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all tests of a module."""
    return tmp_path_factory.mktemp("module")


@pytest.fixture
def in_process(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes Scripts of a main."""
    from made_runs import Scripts

    return lambda main: Scripts(main, capsys, monkeypatch)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which a few checkpoints fill; "mount" needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = [*"mount -t tmpfs -o size=4m tmpfs".split(), folder]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """For the tests of experiments, in whose folder the class lies."""
    from stand_in import StandIn

    return StandIn(tmp_path, monkeypatch)
