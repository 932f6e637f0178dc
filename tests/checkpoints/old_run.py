"""Runs as earlier releases wrote them, made by formula: `python tests/checkpoints/old_run.py DIR`.

`old_runs/format_1.json` has every key, value, shape and type of a checkpoint that commit 23baaa0
wrote, with its config, tokenizer and corpus; `old_runs/schemes.json.gz` those of a run of each
family of position schemes, which commit 16d24d5 wrote. (The script that described them is in commit
409cafb, `tests/checkpoints/describe_runs.py`.) The tensors are made here by a closed formula,
without the project's writer; the outputs beside them (logits, translations, and the losses of a run
that goes on) were computed by those commits from the same tensors.
"""

import gzip
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

DESCRIPTIONS = Path(__file__).parent / "old_runs"


def described() -> dict[str, Any]:
    return json.loads((DESCRIPTIONS / "format_1.json").read_text("utf-8"))


def described_schemes() -> dict[str, dict[str, Any]]:
    """By the name of the scheme; one tokenizer and one corpus are all runs' own."""
    packed = (DESCRIPTIONS / "schemes.json.gz").read_bytes()
    shared = json.loads(gzip.decompress(packed))
    return {name: {**shared, **run} for name, run in shared.pop("runs").items()}


def write_old_run(folder: Path, old: dict[str, Any] | None = None) -> Path:
    """`folder/old_20250101_000000` with one checkpoint, and `folder/corpus`; the run's path."""
    old = old or described()
    run = folder / "old_20250101_000000"
    for name in ("checkpoints", "tokenizer", "logs"):
        (run / name).mkdir(parents=True)
    for name, content in old["tokenizer"].items():
        (run / "tokenizer" / name).write_text(json.dumps(content), "utf-8")
    (folder / "corpus").mkdir()
    for name, lines in old["corpus"].items():
        (folder / "corpus" / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    torch.save(value(old["checkpoint"]), run / "checkpoints" / "regular_checkpoint_1.pt")
    return run


def value(described: Any) -> Any:
    """What a description in JSON stands for."""
    match described:
        case {"tensor": "number", "value": number, "dtype": dtype}:
            return torch.tensor(number, dtype=getattr(torch, dtype))
        case {"tensor": shape, "key": key, "dtype": dtype}:
            return by_formula(key, shape).to(getattr(torch, dtype))
        case {"scattered": shape, "key": key, "dtype": dtype}:
            return by_formula(key, shape, scattered=True).to(getattr(torch, dtype))
        case {"dict": items}:
            return {key: value(item) for key, item in items}
        case {"list": items}:
            return list(map(value, items))
        case {"tuple": items}:
            return tuple(map(value, items))
    return described


def by_formula(key: str, shape: list[int], *, scattered: bool = False) -> torch.Tensor:
    """0.5 sin(s + 1.7 i) for element i, with s from the name; small for Adam's moments, and no
    second one negative. Scattered: sin(s + 1.7 i^2), a matrix of full rank, which positions move.
    """
    start = sum(map(ord, key)) % 97
    if scattered:
        values = [math.sin(start + 1.7 * i * i) for i in range(math.prod(shape))]
    else:
        values = [0.5 * math.sin(start + 1.7 * i) for i in range(math.prod(shape))]
    tensor = torch.tensor(values, dtype=torch.float64).reshape(shape)
    if key.endswith("exp_avg_sq"):
        return tensor.square() * 1e-4
    return tensor * 1e-2 if key.endswith("exp_avg") else tensor


if __name__ == "__main__":
    print(write_old_run(Path(sys.argv[1])))
