"""The memory that a process keeps, also for shapes of products, and how its threads wait."""

import gc
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import torch

from utils.cli import OFTEN, SELDOM, imported, run_main
from utils.machine import in_float32

HELD_MB = """
import torch
from benchmarks.common import status_mb
from utils.machine import IN_A_SEARCH, keep_freed_memory
for largest in (None, IN_A_SEARCH, 1 << 30):
    if largest:
        keep_freed_memory(largest)
    before = status_mb("VmRSS")
    tensor = torch.ones(50_000_000)
    del tensor
    print(status_mb("VmRSS") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's and /proc's")
def test_freed_memory_stays_where_it_is_to_be_kept() -> None:
    told = subprocess.check_output([sys.executable, "-c", HELD_MB]).split()
    by_default, too_large, kept = map(float, told)
    assert max(by_default, too_large) < 50
    assert kept > 190


def test_the_default_type_comes_back_with_the_last_of_scopes_in_several_threads() -> None:
    scope, first = in_float32(), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with ThreadPoolExecutor(1) as other:
            other.submit(scope.__enter__).result()
            with in_float32():
                other.submit(scope.__exit__, None, None, None).result()
                assert torch.get_default_dtype() == torch.float32
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(first)


MET_MB = """
import sys
from utils.cli import keep_shapes
if len(sys.argv) > 1:
    keep_shapes(int(sys.argv[1]))
import torch
from benchmarks.common import status_mb
from models.products import onednn
weight, before = torch.ones(256, 256), status_mb("VmRSS")
for n_rows in range(100, 300):
    onednn(torch.ones(n_rows, 256), weight)
print(status_mb("VmRSS") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc's")
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_what_is_prepared_for_shapes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        monkeypatch.delenv(cache, raising=False)  # train.main sets it for its process
    few, all_of_them = (
        float(subprocess.check_output([sys.executable, "-c", MET_MB, *most]))
        for most in (["8"], [])
    )
    assert few < all_of_them / 2


def test_garbage_is_collected_seldom_until_all_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    run_main(lambda: seen.append(gc.get_threshold()[0]))  # torch is there
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        run_main(lambda: seen.append(gc.get_threshold()[0]))
    gc.unfreeze()
    imported()
    assert (seen, gc.get_threshold()) == ([OFTEN[0], SELDOM], OFTEN)
    assert gc.get_freeze_count() > 0  # what was imported is not looked through again


@pytest.mark.parametrize(
    ("given", "turns"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_spin_as_long_as_they_are_told_to(
    given: Mapping[str, str], turns: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    run_main(lambda: None)
    assert os.environ.get("GOMP_SPINCOUNT") == turns


def test_a_file_is_named_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise FileNotFoundError(2, "No such file", b"/logs/\xc3\xa9")  # as TensorBoard does

    with pytest.raises(SystemExit, match="2"):
        run_main(fail)
    assert capsys.readouterr().err == "error: /logs/é: No such file\n"


def test_a_lack_of_memory_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_main(lambda: print(torch.empty(1 << 55)))
    said = capsys.readouterr().err
    assert re.fullmatch(r"error: not enough memory \(.*\): take a smaller model, .*\n", said)
    with pytest.raises(RuntimeError, match="another"):
        run_main(mock.Mock(side_effect=RuntimeError("another")))
