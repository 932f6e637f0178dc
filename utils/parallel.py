"""How many processes train, and how they talk."""

from __future__ import annotations

import os
from typing import Any

import torch


def choose_backend(nproc_per_node: int) -> tuple[str | None, dict[str, Any]]:
    """Backend and arguments for ignite's `idist.Parallel`.

    Under torchrun the processes are there already; with nproc_per_node > 1 they are spawned; otherwise there is one,
    without a process group. nccl where every process has a GPU of its own, gloo elsewhere.
    """
    under_torchrun = "LOCAL_RANK" in os.environ and "WORLD_SIZE" in os.environ
    local = int(os.environ.get("LOCAL_WORLD_SIZE", nproc_per_node)) if under_torchrun else nproc_per_node
    if not under_torchrun and nproc_per_node == 1:
        return None, {}
    backend = "nccl" if torch.cuda.is_available() and torch.cuda.device_count() >= local else "gloo"
    if under_torchrun:
        return backend, {}
    return backend, {"nproc_per_node": nproc_per_node, "start_method": "spawn"}
