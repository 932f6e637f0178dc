"""Checkpoint averaging: the mean of the weights of several checkpoints of one model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from checkpoints.content import checkpoint_config, read_checkpoint, write_checkpoint
from checkpoints.run import FORMAT, REGULAR, Run
from configs.serialize import diff
from utils.errors import UserError
from utils.machine import provenance


def choose_checkpoints(run: Run, *, best: int | None, last: int | None) -> list[Path]:
    """The `best` checkpoints by validation loss, or the `last` regular ones, or a UserError."""
    if best is not None:
        found, wanted, field = run.best_first(), best, "keep_best"
    else:
        assert last is not None
        found, wanted, field = run.files(REGULAR)[::-1], last, "keep_regular"
    if len(found) < wanted:
        raise UserError(
            f"{run.checkpoints} has {len(found)} such checkpoints, not {wanted}: ask for fewer, or "
            f"train with --set train.{field}={wanted}"
        )
    return found[:wanted]


def average_checkpoints(paths: Sequence[Path]) -> dict[str, Any]:
    """The content of a checkpoint whose weights are the mean of those of `paths`.

    It is computed in float64 and rounded once, to the weights' own type. Weights that are shared
    stay shared, and what is no floating-point number is that of the newest. Config, tokenizer and
    progress are the newest's too; `averaged` names the sources. There is no optimizer: training
    cannot go on from it. Raises UserError for fewer than two checkpoints, and where they are not of
    one model and tokenizer.
    """
    if len(set(paths)) < 2:
        given = ", ".join(map(str, paths))
        raise UserError(f"{given}: an average needs two different checkpoints or more")
    sums: dict[str, Tensor] = {}
    newest: dict[str, Any] = {}
    newest_path, sources = paths[0], []
    for path in paths:  # one at a time: any number fits into memory
        payload = read_checkpoint(path)
        if newest:
            _require_same(newest, newest_path, payload, path)
        for name, tensor in payload["model"].items():
            if tensor.is_floating_point():
                sums[name] = sums[name] + tensor.double() if name in sums else tensor.double()
        saved = payload.get("progress", {})
        payload["progress"] = {name: saved.get(name, 0) for name in ("epoch", "step")}
        if not newest or payload["progress"]["step"] > newest["progress"]["step"]:
            newest, newest_path = payload, path
        sources.append({"file": path.name, **payload["progress"]})
    return {
        "format": {"version": FORMAT, **provenance()},
        "config": newest["config"],
        "tokenizer": newest["tokenizer"],
        "model": _means(sums, len(paths), newest["model"]),
        "progress": newest["progress"],
        "averaged": sources,
    }


def write_average(run: Run, payload: dict[str, Any], *, how: str) -> Path:
    """`averaged_checkpoint_<how>_step<newest>.pt` among the checkpoints of the run; the path."""
    path = run.checkpoints / f"averaged_checkpoint_{how}_step{payload['progress']['step']}.pt"
    if not run.checkpoints.is_dir():
        raise UserError(f"{run.path}: no checkpoints folder to write into")
    write_checkpoint(path, payload)
    return path


def _means(sums: dict[str, Tensor], n: int, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """sums / n in the types of `like`, else `like` itself; names that share a tensor still do."""
    at_place: dict[tuple[int, torch.Size], Tensor] = {}
    means = {}
    for name, tensor in like.items():
        place = (tensor.data_ptr(), tensor.shape)
        if place not in at_place:
            at_place[place] = (sums[name] / n).to(tensor.dtype) if name in sums else tensor
        means[name] = at_place[place]
    return means


def _require_same(
    first: dict[str, Any], first_path: Path, other: dict[str, Any], path: Path
) -> None:
    different = [
        f"{key} is {a!r} and {b!r}"
        for key, a, b in diff(checkpoint_config(first), checkpoint_config(other))
        if key.startswith("model.")
    ]
    if different:
        raise UserError(f"{first_path} and {path} are not of one model: {'; '.join(different[:3])}")
    if first["tokenizer"]["fingerprint"] != other["tokenizer"]["fingerprint"]:
        raise UserError(
            f"{first_path} and {path} have different tokenizers: average checkpoints of one run"
        )
