"""What the benchmarks share: the machine they ran on, timing in turn, the machine's matrix rate,
and reports.
"""

from __future__ import annotations

import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from utils.errors import UserError
from utils.files import write_text
from utils.machine import computes_bf16, cpu_name, provenance, resolve_device
from utils.tables import markdown_table

REST_S = (
    0.3  # before each run: threads of another library's runtime wait for work in a loop for a while
)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


# -------------------------------------------------------------------------------------- the machine


def use_machine(device: str, threads: int | None) -> torch.device:
    """The device that an option --device names, with so many CPU threads (None: torch's choice).
    Raises UserError.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        return resolve_device(device)
    except UserError as error:
        raise UserError(
            f"--device {device}: not on this machine; allowed: auto, cpu, cuda, cuda:N"
        ) from error


def environment(device: torch.device) -> dict[str, str]:
    """What every table of figures stands under: date, commit, versions, hardware. Call it when the
    threads are set.
    """
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    made = provenance()
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": made["commit"],
        "python": made["python"],
        "torch": made["torch"],
        "device": device.type,
        **gpu,
        "cpu": cpu_name(),
        "threads": str(torch.get_num_threads()),
        "bfloat16": "in hardware"
        if computes_bf16(device)
        else "emulated: expect it to be far slower than float32",
    }


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given; a CPU always has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def status_mb(field: str) -> float:
    """VmRSS (memory held now) or VmHWM (the most it ever was) of this process in MB. Raises
    UserError without /proc.

    Unlike getrusage's ru_maxrss, VmHWM does not begin at what the parent process held.
    """
    try:
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    except OSError as error:
        raise UserError(
            "memory is read from /proc/self/status, and this system has none: --memory needs Linux"
        ) from error
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
        return f"{figure(self.median)} ({figure(self.low)}–{figure(self.high)})"


def spread(values: Sequence[float]) -> Spread:
    low, high = np.quantile(values, [0.25, 0.75]).tolist()
    return Spread(statistics.median(values), low, high)


def figure(value: float) -> str:
    """Three significant digits, without an exponent: 12,345 and 0.0123."""
    if value == 0:
        return "0"
    digits = max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{digits}f}"


def in_turn(
    runs: Mapping[str, Callable[[int], object]], *, rounds: int, warmup: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of every run in every round: all of them in round 0, then all of them in round 1, and
    so on.

    A run is called with the number of the round. The rounds -warmup to -1 are run and not reported.
    What disturbs the machine for a while so disturbs all alike, and ratios are taken within a
    round: see `ratio`.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(-warmup, rounds):
        for name, run in runs.items():
            say(f"round {number + 1}/{rounds}: {name}")
            synchronize(device)
            time.sleep(REST_S)
            start = time.perf_counter()
            run(number)
            synchronize(device)
            if number >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """over / under, round by round."""
    return spread([a / b for a, b in zip(over, under, strict=True)])


def say(line: str) -> None:
    """A passing line for whoever waits at a terminal; nothing in a log."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


# -------------------------------------------------------------------------------------- matrix rate


def matrix_rate(
    dtype: torch.dtype, device: torch.device, *, most_s: float = 1.0
) -> dict[int, float]:
    """The best GFLOP/s of n x n products, by n, each measured for about most_s seconds at most.

    The sizes grow from 512; the growth ends where one product would take longer than most_s by the
    rate so far, as a CPU that emulates bfloat16 does soon.
    """
    rates: dict[int, float] = {}
    sizes = (512, 1024, 2048, 4096, *([8192] if device.type != "cpu" else []))
    for n in sizes:
        work = 2.0 * n**3
        if rates and work / (max(rates.values()) * 1e9) > most_s:
            break
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        best, spent = float("inf"), 0.0
        for repeat in range(20):  # the first one warms up
            synchronize(device)
            time.sleep(REST_S)
            start = time.perf_counter()
            torch.matmul(a, b)
            synchronize(device)
            taken = time.perf_counter() - start
            spent += taken
            best = min(best, taken) if repeat else taken
            if spent > most_s:
                break
        rates[n] = work / best / 1e9
    return rates


# ------------------------------------------------------------------------------------------ reports


def _portable(value: Any) -> Any:
    """A setting without the places of this machine."""
    return (
        Path(value).name if isinstance(value, (str, Path)) and Path(value).is_absolute() else value
    )


class Report:
    """A title, the machine, and sections of Markdown; beside it the same figures as JSON.

    `add` prints a section as soon as it is there and rewrites `{name}.md` and `{name}.json` in the
    folder, so that a run that is cut short leaves what it had measured.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        title: str,
        device: torch.device,
        settings: Mapping[str, Any],
    ) -> None:
        self.folder = folder
        self.name = name
        self.data: dict[str, Any] = {
            "benchmark": name,
            "environment": environment(device),
            "settings": {
                key: _portable(value) for key, value in settings.items() if key != "output_dir"
            },
            "sections": [],
        }
        rows = [(key, value) for key, value in self.data["environment"].items()]
        self.text = f"# {title}\n\n" + markdown_table(("", ""), rows)
        print(self.text, flush=True)

    def add(self, heading: str, body: str, data: Mapping[str, Any]) -> None:
        """One more section: Markdown for readers, values that JSON can hold for programs."""
        say("")
        section = f"## {heading}\n\n{body.rstrip()}\n"
        print(section, flush=True)
        self.text += f"\n{section}"
        self.data["sections"].append({"heading": heading, **data})
        write_text(self.folder / f"{self.name}.md", self.text)
        write_text(self.folder / f"{self.name}.json", json.dumps(self.data, indent=1) + "\n")
