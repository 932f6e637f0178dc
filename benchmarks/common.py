"""What the benchmarks share: the machine, timing in turn, its matrix rate, arguments, reports."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from utils.cli import positive
from utils.errors import UserError
from utils.files import write_text
from utils.machine import computes_bf16, cpu_name, provenance, resolve_device
from utils.tables import markdown_table

REST_S = 0.3  # before each run: threads of another library's runtime spin for a while
CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NOTHING = "–"


# -------------------------------------------------------------------------------------- the machine


def add_arguments(parser: ArgumentParser, name: str, *, rounds: int, draws: bool = False) -> None:
    """--rounds, --device, --threads, --output_dir (default: runs/NAME); draws: --warmup, --seed."""
    add = parser.add_argument
    if draws:
        what = "rounds that do not count (default: 1)"
        add("--warmup", type=positive, default=1, metavar="N", help=what)
        add("--seed", type=int, default=0, metavar="N")
    add("--rounds", type=positive, default=rounds, metavar="N", help=f"default: {rounds}")
    add("--device", default="auto", help="auto (default), cpu, cuda, cuda:N")
    what = "CPU threads (default: torch's choice)"
    add("--threads", type=positive, metavar="N", help=what)
    add("--output_dir", type=Path, default=Path("runs") / name, metavar="DIR")


def use_machine(device: str, threads: int | None) -> torch.device:
    """The device that --device names, with so many CPU threads. Raises UserError."""
    if threads is not None:
        torch.set_num_threads(threads)
    return resolve_device(device)


def environment(device: torch.device) -> dict[str, str]:
    """Date, commit, versions, hardware. To be called when the threads are set."""
    emulated = "emulated: expect it to be far slower than float32"
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **{key: provenance()[key] for key in ("commit", "python", "torch")},
        "device": device.type,
        **gpu,
        "cpu": cpu_name(),
        "threads": str(torch.get_num_threads()),
        "bfloat16": "in hardware" if computes_bf16(device) else emulated,
    }


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given; a CPU always has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def status_mb(field: str) -> float:
    """VmRSS (memory held now) or VmHWM (the most ever) of this process in MB.

    Unlike getrusage's ru_maxrss, VmHWM does not begin at what the parent process held. Raises
    UserError without /proc.
    """
    try:
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    except OSError as error:
        raise UserError("memory is read from /proc/self/status: it needs Linux") from error
    [kilobytes] = [int(line.split()[1]) for line in lines if line.startswith(f"{field}:")]
    return kilobytes * 1024 / 1e6


# ------------------------------------------------------------------------------------------- timing


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of several measurements."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle} ({figure(self.low)}–{figure(self.high)})"

    @property
    def middle(self) -> str:
        """The median alone."""
        return figure(self.median)


def spread(values: Sequence[float]) -> Spread:
    return Spread(*np.quantile(values, [0.5, 0.25, 0.75]).tolist())


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """over / under, round by round."""
    return spread([a / b for a, b in zip(over, under, strict=True)])


def figure(value: float) -> str:
    """Three significant digits, without an exponent: 12,345 and 0.0123."""
    if value == 0:
        return "0"
    digits = max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{digits}f}"


def timed(run: Callable[[], object], device: torch.device, *, rest: bool = True) -> float:
    """Seconds of one run, after a rest, until the device has done it."""
    synchronize(device)
    time.sleep(REST_S if rest else 0)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def in_turn(
    runs: Mapping[str, Callable[[int], object]],
    *,
    rounds: int,
    warmup: int = 1,
    device: torch.device = CPU,
    rest: bool = True,
) -> dict[str, list[float]]:
    """Seconds of every run in every round: all of them in round 0, then in round 1, and so on.

    A run is called with the number of the round. The rounds -warmup to -1 are not reported. What
    disturbs the machine for a while disturbs all alike; ratios are taken within a round (`ratio`).
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(-warmup, rounds):
        for name, run in runs.items():
            say(f"round {number + 1}/{rounds}: {name}")
            taken = timed(functools.partial(run, number), device, rest=rest)
            if number >= 0:
                seconds[name].append(taken)
    return seconds


def say(line: str) -> None:
    """A passing line for whoever waits at a terminal; nothing in a log."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def matrix_rate(dtype: torch.dtype, device: torch.device, most_s: float = 1.0) -> dict[int, float]:
    """The best GFLOP/s of n x n products, by n, each measured for about most_s seconds at most.

    The sizes grow from 512, until one product would take longer than most_s by the rate so far, as
    on a CPU that emulates bfloat16.
    """
    rates: dict[int, float] = {}
    for n in (512, 1024, 2048, 4096, *([8192] if device.type != "cpu" else [])):
        work = 2.0 * n**3
        if rates and work / (max(rates.values()) * 1e9) > most_s:
            break
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        product = functools.partial(torch.matmul, a, b)
        taken = [timed(product, device)]  # the first one warms up
        while len(taken) < 20 and sum(taken) <= most_s:
            taken.append(timed(product, device))
        rates[n] = work / min(taken[1:] or taken) / 1e9
    return rates


# ------------------------------------------------------------------------------------------ reports


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Markdown from rows of figures: each column's head -> the format of its cell by row's keys."""
    cells = [[form.format_map(row) for form in columns.values()] for row in rows]
    return markdown_table(list(columns), cells)


def _as_json(value: Any) -> Any:
    """Spreads and other records as dicts; a path without the places of this machine."""
    if isinstance(value, Path):
        return value.name if value.is_absolute() else str(value)
    return str(value) if isinstance(value, torch.device) else dataclasses.asdict(value)


class Report:
    """A title, the machine, and sections of Markdown; beside it the same figures as JSON.

    `add` prints a section as soon as it is there and rewrites `{name}.md` and `{name}.json` in
    --output_dir, so that a run that is cut short leaves what it had measured.
    """

    def __init__(self, name: str, title: str, args: Namespace, device: torch.device) -> None:
        self.path = args.output_dir / name
        settings = {key: value for key, value in vars(args).items() if key != "output_dir"}
        machine = environment(device)
        self.data = {"benchmark": name, "environment": machine, "settings": settings}
        self.sections: list[dict[str, Any]] = []
        self.text = f"# {title}\n\n" + markdown_table(("", ""), list(machine.items()))
        print(self.text, flush=True)

    def add(self, heading: str, body: str, data: Mapping[str, Any]) -> None:
        """One more section: Markdown for readers, values for programs."""
        say("")
        section = f"## {heading}\n\n{body.rstrip()}\n"
        print(section, flush=True)
        self.text += f"\n{section}"
        self.sections.append({"heading": heading, **data})
        whole = {**self.data, "sections": self.sections}
        write_text(self.path.with_suffix(".md"), self.text)
        text = json.dumps(whole, indent=1, default=_as_json)
        write_text(self.path.with_suffix(".json"), f"{text}\n")
