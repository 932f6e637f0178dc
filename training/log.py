"""The log of a run: TensorBoard's events, and metrics.jsonl for other programs."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import ignite.distributed as idist
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from checkpoints.run import Run
from utils.errors import UserError
from utils.files import write_bytes, write_errors
from utils.lines import as_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

FILE, STARTS = "metrics.jsonl", "starts.jsonl"
SHOWN = 8  # translations in TensorBoard
BOTH = "loss", "accuracy"  # of training and of validation, in one chart
MARKDOWN = re.compile(r"[\\`*\[\]<>&|\n\r]|(?<![^\W_])_|_(?![^\W_])")


class RunLog:
    """`logs/` of a run: TensorBoard's events, and metrics.jsonl with one JSON object a line.

    A line has kind ("train", "validation" or "skipped"), step, epoch, and the figures that
    TensorBoard shows. `validation_STEP.hyp` has the translations of a validation, one a line, of
    the lines of validation.src; starts.jsonl says when, where and how each start was made. A run
    resumed from an earlier checkpoint drops the lines of what came after it. The first process
    writes; in the others nothing happens.
    """

    @idist.one_rank_only()
    def __init__(self, run: Run, *, first_step: int) -> None:
        self.run, self.first_step = run, first_step
        self._excepthook, threading.excepthook = threading.excepthook, self._in_a_thread
        path = run.logs / FILE
        with write_errors(run.logs):
            run.logs.mkdir(exist_ok=True)
            forgotten_from = first_step + 1 if first_step else None
            self.writer = SummaryWriter(str(run.logs), purge_step=forgotten_from)
            both = {of: ["Multiline", [f"train/{of}$", f"validation/{of}$"]] for of in BOTH}
            self.writer.add_custom_scalars({"training and validation": both})
            write_bytes(path, b"".join(_lines_until(path, first_step)))
            for later in run.logs.glob("validation_*.hyp"):
                step = later.stem.removeprefix("validation_")
                if step.isdecimal() and int(step) > first_step:
                    later.unlink()
            self.file = path.open("a", encoding="utf-8", buffering=1)  # a line at a time

    @idist.one_rank_only()
    def scalars(self, kind: str, values: Mapping[str, float], *, step: int, epoch: int) -> None:
        line = json.dumps({"kind": kind, "step": step, "epoch": epoch, **values})
        with write_errors(self.run.logs):
            for name, value in values.items():
                self.writer.add_scalar(f"{kind}/{name}", value, step)
            if kind == "validation":  # `is_validated` believes the line
                self.writer.flush()
            self.file.write(f"{line}\n")

    @idist.one_rank_only()
    def flush(self) -> None:
        """Write to disk what has been logged; TensorBoard holds events back for minutes."""
        with write_errors(self.run.logs):
            self.writer.flush()
            os.fsync(self.file.fileno())

    @idist.one_rank_only()
    def hyper_parameters(self, values: Mapping[str, Any]) -> None:
        """Log the flattened configuration, as a table under TEXT, and a new run's under HPARAMS.

        TensorBoard shows only the first of a run there.
        """
        plain = {k: v if isinstance(v, (int, float)) else str(v) for k, v in values.items()}
        with write_errors(self.run.logs):
            figures = {"validation/loss": 0.0, "validation/bleu": 0.0}
            for summary in hparams(plain, figures) if self.first_step == 0 else ():
                self.writer._get_file_writer().add_summary(summary)
        self.table("config", ("field", "value"), values.items(), self.first_step)

    @idist.one_rank_only()
    def start(self, made: Mapping[str, Any]) -> None:
        """Add a line to starts.jsonl: when, where and how the run was begun, or goes on."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        who = {"time": now, "step": self.first_step, "host": socket.gethostname()}
        line = json.dumps({**who, "processes": idist.get_world_size(), "command": sys.argv, **made})
        with (
            write_errors(self.run.logs),
            (self.run.logs / STARTS).open("a", encoding="utf-8") as to,
        ):
            to.write(f"{line}\n")

    @idist.one_rank_only()
    def table(
        self, tag: str, header: Sequence[str], rows: Iterable[Sequence[Any]], step: int
    ) -> None:
        """Log a table under TEXT, whose cells are not read as Markdown."""
        cells = [[MARKDOWN.sub(lambda c: f"&#{ord(c[0])};", str(x)) for x in row] for row in rows]
        lines = [header, ["---"] * len(header), *cells]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        with write_errors(self.run.logs):
            self.writer.add_text(tag, text, step)

    @idist.one_rank_only()
    def translations(self, rows: Sequence[tuple[str, str, str]], step: int) -> None:
        """Show the first (source, reference, translation); write all, one a line, three files."""
        header = ("source", "reference", "hypothesis")
        self.table("validation/translations", header, rows[:SHOWN], step)
        names = "validation.src", "validation.ref", f"validation_{step}.hyp"
        with write_errors(self.run.logs):
            for name, lines in zip(names, zip(*rows)):
                text = "".join(f"{as_line(line)}\n" for line in lines)
                write_bytes(self.run.logs / name, text.encode())

    @idist.one_rank_only()
    def figure(self, tag: str, figure: Figure, step: int) -> None:
        with write_errors(self.run.logs):
            self.writer.add_figure(tag, figure, step, close=False)

    def __enter__(self) -> Self:
        return self

    @idist.one_rank_only()
    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        threading.excepthook = self._excepthook
        try:
            with write_errors(self.run.logs), closing(self.file), closing(self.writer):
                pass
        except UserError:
            if error is None:  # the first error is reported
                raise

    def _in_a_thread(self, args: threading.ExceptHookArgs) -> None:
        """Errors of TensorBoard's own thread are raised here with the next event."""
        if not type(args.thread).__module__.startswith("tensorboard"):
            self._excepthook(args)


def is_validated(run: Run, step: int) -> bool:
    """Whether the log has a validation after this update."""
    path, begin = run.logs / FILE, b'{"kind": "validation", "step": %d,' % step
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return any(line.startswith(begin) and line.endswith(b"\n") for line in lines)


def _lines_until(path: Path, last_step: int) -> list[bytes]:
    """The lines of a metrics.jsonl up to a step; damaged ones are left out, with a warning."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    kept, damaged = [], []
    for number, line in enumerate(lines, start=1):
        try:
            if line.endswith(b"\n") and json.loads(line)["step"] <= last_step:
                kept.append(line)
        except (KeyError, RecursionError, TypeError, ValueError):
            damaged.append(str(number))
    if damaged:
        logger.warning("%s: left out damaged lines: %s", path, ", ".join(damaged))
    return kept
