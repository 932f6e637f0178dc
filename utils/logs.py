"""What a run writes down while it trains: TensorBoard events, and metrics.jsonl for other programs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from utils.runs import Run


class RunLog:
    """`logs/` of a run: events for `tensorboard --logdir runs`, and metrics.jsonl with one JSON object a line.

    A line has kind ("train" or "validation"), step, epoch, and the figures that TensorBoard shows. A run that goes on
    from an earlier checkpoint drops what came after it from both. One process writes.
    """

    def __init__(self, run: Run, *, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # purge_step is the first step to be forgotten.
        self.writer = SummaryWriter(str(run.logs), purge_step=first_step + 1 if first_step else None)
        path = run.logs / "metrics.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        # A process that was killed may have left half a line at the end.
        kept = [line for line in lines if line.endswith(b"\n") and json.loads(line)["step"] <= first_step]
        aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        aside.write_bytes(b"".join(kept))
        os.replace(aside, path)
        self.file = path.open("a", encoding="utf-8", buffering=1)  # a line at a time

    def scalars(self, kind: str, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(f"{kind}/{name}", value, step)
        self.file.write(json.dumps({"kind": kind, "step": step, "epoch": epoch, **values}) + "\n")

    def hyper_parameters(self, values: Mapping[str, Any]) -> None:
        """The flattened configuration, under HPARAMS and as a table under TEXT."""
        from torch.utils.tensorboard.summary import hparams

        plain = {k: v if isinstance(v, (bool, int, float, str)) else str(v) for k, v in values.items()}
        for summary in hparams(plain, {"validation/loss": 0.0}):
            self.writer._get_file_writer().add_summary(summary)
        rows = "\n".join(f"| {name} | {value} |" for name, value in values.items())
        self.writer.add_text("config", f"| field | value |\n| --- | --- |\n{rows}", 0)

    def samples(self, rows: list[tuple[str, str, str]], step: int) -> None:
        """(source, reference, hypothesis) of a few sentences."""

        def cell(text: str) -> str:
            return text.replace("|", "&#124;")

        lines = "\n".join(f"| {cell(s)} | {cell(r)} | {cell(h)} |" for s, r, h in rows)
        table = f"| source | reference | hypothesis |\n| --- | --- | --- |\n{lines}"
        self.writer.add_text("validation/translations", table, step)

    def figure(self, tag: str, figure: Any, step: int) -> None:
        """A matplotlib figure as an image."""
        self.writer.add_figure(tag, figure, step, close=False)

    def close(self) -> None:
        self.writer.close()
        self.file.close()


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dict -> {"a.b.c": value}."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
