"""What a reported figure names beside config and seed: versions, hardware, commit."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from pathlib import Path

import torch


@cache
def provenance() -> dict[str, str]:
    """Commit, versions and hardware of this process, as strings."""
    root = Path(__file__).resolve().parents[1]
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = "unknown"
    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else cpu_name()
    return {
        "commit": commit,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "hardware": f"{hardware}, {torch.get_num_threads()} threads",
    }


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
