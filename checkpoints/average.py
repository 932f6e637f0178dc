"""Checkpoint averaging: the mean of the weights of several checkpoints of one model."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from checkpoints.content import (
    checkpoint_config,
    fixed_differences,
    read_checkpoint,
    tied_names,
    write_checkpoint,
)
from checkpoints.resolve import run_of
from checkpoints.run import BEST, Run
from configs.schema import Config, Marian, shapes_model
from configs.serialize import diff
from utils.errors import UserError
from utils.languages import may_be_one


def choose_checkpoints(
    run: Run, *, best: int | None = None, last: int | None = None, last_steps: int | None = None
) -> list[Path]:
    """The `best` checkpoints by validation, or the `last` of `Run.ends`, or those by steps too.

    Raises UserError where there are not as many.
    """
    if not run.checkpoints.is_dir():
        rule = "an exported or a Marian model has only weights, and no checkpoints to average"
        raise UserError(f"{run.path}: {rule}; name a run that was trained here")
    found, field = run.best_first(), "keep_best"
    if last:
        found, field = run.ends()[::-1], "keep_regular"
    elif last_steps:
        found, field = run.by_age()[::-1], "keep_steps"
        found[1:] = [path for path in found[1:] if not BEST.fullmatch(path.name)]
    wanted = best or last or last_steps or 0
    if len(found) < wanted:
        remedy = "ask for fewer" if len(found) > 1 else "an average needs two; train longer"
        raise UserError(
            f"{run.checkpoints}: only {len(found)} of the {wanted} checkpoints asked for exist: "
            f"{remedy} (train.{field} says how many a training keeps at most)"
        )
    return found[:wanted]


def average_checkpoints(paths: Sequence[Path]) -> dict[str, Any]:
    """The content of a checkpoint whose weights are the mean of those of `paths`.

    The mean is computed in float64 and rounded once, to the weights' own type; shared weights stay
    shared. All else is taken from the newest; a run is newer than its parent. `averaged` names the
    sources. There is no optimizer: training cannot go on from it. Raises UserError for fewer than
    two checkpoints or one given twice. It also raises it unless they are of one model and tokenizer
    and of a run and its parent, of runs with the same parent, or of trainings that began alike:
    one run, or its copies.
    """
    if len({path.resolve() for path in paths}) < max(2, len(paths)):
        given = ", ".join(map(str, paths))
        raise UserError(f"{given}: an average needs two checkpoints or more, each of them once")
    sums: dict[str, Tensor] = {}
    newest: dict[str, Any] = {}
    met: list[tuple[dict[str, Any], Path]] = []
    sources, texts = [], []
    for path in paths:  # one at a time: any number fits into memory
        payload = read_checkpoint(path)
        newer = [_is_newer(*each, payload, path) for each in met]
        about = {name: payload[name] for name in ("config", "tokenizer", "progress")}
        met.append(({**about, "data": payload.get("data", {})}, path))
        once = tied_names(payload["model"])
        for name, tensor in payload["model"].items():
            if once[name] == name and tensor.is_floating_point():
                sums[name] = sums[name].add_(tensor) if name in sums else tensor.double()
        progress = {name: payload["progress"][name] for name in ("epoch", "step")}
        if all(newer):
            newest = {**payload, "progress": progress}
        sources.append({"file": path.name, **progress})
        texts.append(payload.get("data"))
    model = {
        name: (sums[name] / len(paths)).to(tensor.dtype) if name in sums else tensor
        for name, tensor in newest["model"].items()
    }
    text = {"data": texts[0]} if texts[0] and texts.count(texts[0]) == len(texts) else {}
    return {
        "format": newest["format"],
        "config": newest["config"],
        "tokenizer": newest["tokenizer"],
        "model": {name: model[first] for name, first in tied_names(newest["model"]).items()},
        "progress": newest["progress"],
        "averaged": sources,
        **text,
    }


def write_average(run: Run, payload: dict[str, Any], *, how: str) -> Path:
    """Write `averaged_checkpoint_<how>_step<newest>.pt` into the run; returns its path.

    Raises UserError where the run has no folder of checkpoints, or it cannot be written.
    """
    path = run.checkpoints / f"averaged_checkpoint_{how}_step{payload['progress']['step']}.pt"
    if not run.checkpoints.is_dir():
        raise UserError(f"{run.path}: no checkpoints folder to write into; name a run's first")
    write_checkpoint(path, payload)
    return path


def _is_newer(first: dict[str, Any], first_path: Path, other: dict[str, Any], path: Path) -> bool:
    """Whether `other` came after `first`. Raises UserError where they cannot be averaged."""
    configs = checkpoint_config(first), checkpoint_config(other)
    different = [
        f"{key} is {a!r} and {b!r}"
        for key, a, b in diff(*configs)
        if (key.startswith("model.") and shapes_model(key, a, b))
        or (key in ("data.src_lang", "data.tgt_lang") and not may_be_one(a, b))
    ]
    if different:
        raise UserError(f"{first_path} and {path} are not of one model: {'; '.join(different[:3])}")
    if first["tokenizer"]["fingerprint"] != other["tokenizer"]["fingerprint"]:
        raise UserError(
            f"{first_path} and {path} have different tokenizers: average checkpoints of one run"
        )
    steps = first["progress"]["step"], other["progress"]["step"]
    runs = [_home(*each) for each in zip((first_path, path), configs, steps)]
    named = [config.train.init_from for config in configs]
    parents = [
        None if name is None else _run(name, of) for name, of in zip(named, (first_path, path))
    ]
    if runs[0] == parents[1] or runs[1] == parents[0]:
        return runs[0] == parents[1]
    if parents[0] is None or parents[0] != parents[1]:
        found = fixed_differences(*configs)
        others = [each for each in found if not each[0].startswith("evaluate.every")]
        texts = [each.get("data", {}).get("fingerprint") for each in (first, other)]
        if runs[0] != runs[1] and None not in texts and texts[0] != texts[1]:
            others.append(("its text", texts[0], texts[1]))
        for key, a, b in others:
            raise UserError(
                f"{first_path} and {path} are of different runs ({key} is {a!r} and {b!r}), whose "
                "mean is not a model: translate with both as an ensemble, --model_path FIRST SECOND"
            )
    return steps[1] > steps[0]


def _home(path: Path, config: Config, step: int) -> Path:
    """What identifies a checkpoint's run: its folder, or the name of its Marian model."""
    if step == 0 and isinstance(config.tokenizer, Marian):
        return _run(config.tokenizer.name_or_path)
    return _run(path)


def _run(name: str | Path, child: Path | None = None) -> Path:
    """A run's folder. One named in a child's config is looked for beside and above it first."""
    path = Path(os.path.expanduser(name))
    runs = [] if child is None else [run_of(child).path.resolve().parent]
    above = [up for parent in runs for up in (parent, *parent.parents)]
    return run_of(next((up / path for up in above if (up / path).exists()), path)).path.resolve()
