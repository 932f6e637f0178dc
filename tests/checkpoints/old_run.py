"""A run as the first release wrote it, made by formula: `python tests/old_run.py FOLDER`.

`old_runs/format_1.json` has every key, value, shape and type of a checkpoint that commit 23baaa0
wrote, with its config, tokenizer and corpus. The tensors are made here by a closed formula, without
the project's writer; the outputs beside them (logits, translations, and the losses of a run that
goes on) were computed by that commit from the same tensors.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

DESCRIPTION = Path(__file__).parent / "old_runs" / "format_1.json"


def described() -> dict[str, Any]:
    return json.loads(DESCRIPTION.read_text("utf-8"))


def write_old_run(folder: Path) -> Path:
    """`folder/old_20250101_000000` with one checkpoint, and `folder/corpus`; the run's path."""
    old = described()
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
        case {"dict": items}:
            return {key: value(item) for key, item in items}
        case {"list": items}:
            return list(map(value, items))
        case {"tuple": items}:
            return tuple(map(value, items))
    return described


def by_formula(key: str, shape: list[int]) -> torch.Tensor:
    """0.5 sin(s + 1.7 i) for element i, with s from the name; small for Adam's moments, and no
    second one negative.
    """
    start = sum(map(ord, key)) % 97
    values = [0.5 * math.sin(start + 1.7 * i) for i in range(math.prod(shape))]
    tensor = torch.tensor(values, dtype=torch.float64).reshape(shape)
    if key.endswith("exp_avg_sq"):
        return tensor.square() * 1e-4
    return tensor * 1e-2 if key.endswith("exp_avg") else tensor


if __name__ == "__main__":
    print(write_old_run(Path(sys.argv[1])))
