"""The memory that a process keeps."""

import subprocess
import sys

import pytest

HELD_MB = """
import torch
from benchmarks.common import status_mb
from utils.machine import keep_freed_memory
{keep}
before = status_mb("VmRSS")
tensor = torch.ones(50_000_000)
del tensor
print(status_mb("VmRSS") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's and /proc's")
@pytest.mark.parametrize("keep", [True, False])
def test_freed_memory_stays_where_it_is_to_be_kept(keep: bool) -> None:
    code = HELD_MB.format(keep="keep_freed_memory()" if keep else "")
    held = float(subprocess.check_output([sys.executable, "-c", code]))
    assert held > 190 if keep else held < 50
