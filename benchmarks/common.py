"""Shared by the benchmarks: arguments, sizes of models, timing in turn, reports."""

import dataclasses
import datetime
import json
import multiprocessing
import os
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from utils.cli import integer, positive, threads
from utils.errors import UserError, one_line
from utils.files import write_text
from utils.machine import CPU, computes_bf16, cpu_name, provenance, resolve_device
from utils.tables import markdown_table

REST_S = 0.3  # before each run: threads of another library's runtime spin for a while
LEAST_S = {"cuda": 1.0}  # of a run: on a GPU it would be over in some milliseconds
DTYPES = {"float32": torch.float32, "tf32": torch.float32}
DTYPES |= {"bfloat16": torch.bfloat16, "float16": torch.float16}


def add_arguments(
    parser: ArgumentParser, name: str, *, rounds: int | None = None, draws: bool = False
) -> None:
    """--device, --threads, --output_dir (default: runs/NAME).

    rounds: --rounds, with that default; draws: --warmup and --seed.
    """
    add = parser.add_argument
    if draws:
        what = "uncounted rounds at the start (default: 1)"
        add("--warmup", type=positive, default=1, metavar="N", help=what)
        add("--seed", type=integer(0, 2**63 - 1), default=0, metavar="N", help="default: 0")
    if rounds is not None:
        add("--rounds", type=positive, default=rounds, metavar="N", help=f"default: {rounds}")
    add("--device", default="auto", help="auto (default), cpu, cuda, cuda:N")
    what = "CPU threads (default: torch's choice)"
    add("--threads", type=threads, metavar="N", help=what)
    what = f"where everything is written (default: runs/{name})"
    add("--output_dir", type=Path, default=Path("runs") / name, metavar="DIR", help=what)


def status_mb(field: str, process: int | str = "self") -> float:
    """VmRSS (memory held now) or VmHWM (the most ever) of a process in MB; Linux has them.

    Unlike getrusage's ru_maxrss, VmHWM does not start at what the parent process held.
    """
    lines = Path(f"/proc/{process}/status").read_text("utf-8").splitlines()
    [kilobytes] = [int(line.split()[1]) for line in lines if line.startswith(f"{field}:")]
    return kilobytes * 1024 / 1e6


def use_machine(args: Namespace) -> torch.device:
    """The device of --device, with the CPU threads of --threads. Raises UserError."""
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    return resolve_device(args.device)


def use_precision(name: str) -> None:
    """From now on a GPU makes float32 products in TensorFloat-32 only if `name` is tf32."""
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")


UNK, PAD, BOS, EOS = range(4)


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a model; batch_tokens bounds the longer side of a batch, padding included."""

    d_model: int
    n_heads: int
    d_ff: int
    n_layers: int  # in the encoder, and as many in the decoder
    vocab_size: int
    batch_tokens: int

    def shape(self) -> dict[str, Any]:
        """Fields of a ModelConfig, the embeddings tied with the output."""
        shape = {name: getattr(self, name) for name in ("d_model", "n_heads", "d_ff")}
        layers = dict.fromkeys(("n_encoder_layers", "n_decoder_layers"), self.n_layers)
        return {**shape, **layers, "tie_embeddings": "all"}


SIZES = {
    "tiny": Size(64, 2, 128, 2, 500, 256),  # to try out the script
    "small": Size(256, 4, 1024, 3, 8_000, 4096),
    "base": Size(512, 8, 2048, 6, 32_000, 2048),
    "iwslt": Size(512, 8, 2048, 6, 59_514, 25_000),  # the Marian tokenizer's pieces
    "iwslt64": Size(512, 8, 2048, 6, 59_520, 25_000),
}


class Vocabulary:
    """A joint vocabulary of numbers, with the interface that ours, joeynmt and fairseq need."""

    shared_vocab = True
    unk_id, pad_id, bos_id, eos_id = UNK, PAD, BOS, EOS
    unk_index, pad_index, bos_index, eos_index, sep_index = UNK, PAD, BOS, EOS, None
    specials: tuple[str, ...] = ()
    lang_tags: tuple[str, ...] = ()

    def __init__(self, size: int) -> None:
        self.src_vocab_size = self.tgt_vocab_size = size

    def __len__(self) -> int:
        return self.src_vocab_size

    def pad(self) -> int:
        return PAD

    def src_pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(i) for i in ids]

    tgt_pieces = src_pieces


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of several measurements."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{figure(self.median)} ({figure(self.low)}–{figure(self.high)})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(*np.quantile(values, [0.5, 0.25, 0.75]).tolist())


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """over / under, round by round."""
    return spread([a / b for a, b in zip(over, under, strict=True)])


def figure(value: float) -> str:
    """Three significant digits, without an exponent: 12,345 and 0.0123."""
    digits = max(0, 2 - int(np.floor(np.log10(abs(value))))) if value else 0
    return f"{value:,.{digits}f}"


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work; a CPU always has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


_made: Callable[..., Any]  # in a process of `apart`


def apart(
    stack: ExitStack, device: torch.device, make: Callable[..., Callable[..., Any]], *args: Any
) -> Any:
    """The function from make(*args), made and called in a process that ends with `stack`.

    In one process, a library's effect on memory and threads would slow the others. Raises what
    `make` and the function raise, and UserError when the process is killed.
    """
    context = multiprocessing.get_context("spawn")
    pool = stack.enter_context(ProcessPoolExecutor(1, context))

    def there(function: Callable[..., Any], *given: Any) -> Any:
        try:
            return pool.submit(function, *given).result()
        except BrokenProcessPool as error:
            what = "a system's process was killed: has this size enough memory here?"
            raise UserError(what) from error
        except RuntimeError as error:
            if "shared memory(shm)" not in str(error):  # not the GPU's: it carries tensors
                raise
            raise UserError(f"{one_line(error)}; allow more (docker run --shm-size)") from error

    there(_keep, torch.get_num_threads(), str(device), make, args)
    return partial(there, _call)


def _keep(
    n_threads: int, device: str, make: Callable[..., Callable[..., Any]], args: Sequence[Any]
) -> None:
    global _made
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(n_threads)
    resolve_device(device)  # also sets it up
    _made = make(*args)


def _end_with_parent() -> None:
    """End this process with its parent: if that is killed, `stack` never ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _call(*args: Any) -> Any:
    return _made(*args)


def in_turn(
    runs: Mapping[str, Callable[[int], object]],
    *,
    rounds: int,
    warmup: int = 1,
    device: torch.device = CPU,
    rest: bool = True,
) -> dict[str, list[float]]:
    """Seconds of every run in every round: all of them in round 0, then in round 1, and so on.

    A run is called with the number of the round, after a rest; on a GPU repeatedly until a second
    has passed, and the mean counts. The rounds -warmup to -1 are not reported. A temporary
    disturbance of the machine affects all alike; ratios are taken within a round (`ratio`).
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(-warmup, rounds):
        for name, run in runs.items():
            say(f"round {number + 1}/{rounds}: {name}")
            synchronize(device)
            time.sleep(REST_S if rest else 0)
            start, taken, times = time.perf_counter(), 0.0, 0
            while not times or taken < LEAST_S.get(device.type, 0):
                run(number)
                synchronize(device)
                taken, times = time.perf_counter() - start, times + 1
            if number >= 0:
                seconds[name].append(taken / times)
    return seconds


def say(line: str) -> None:
    """Show a transient line at a terminal; nothing in a log."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Markdown from rows of figures; columns: head -> the format of a cell from the row's keys."""
    cells = [[form.format_map(row) for form in columns.values()] for row in rows]
    return markdown_table(list(columns), cells)


def _as_json(value: Any) -> Any:
    """Spreads and other records as dicts; paths without this machine's folders."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value.name if isinstance(value, Path) else str(value)


def gpu_facts(device: torch.device) -> dict[str, str]:
    """The GPU, its product libraries, and the kernels available for attention."""
    kernels = ("flash", "mem_efficient", "cudnn", "math")
    may = [name for name in kernels if getattr(torch.backends.cuda, f"{name}_sdp_enabled")()]
    return {
        "gpu": torch.cuda.get_device_name(device),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
        "attention": ", ".join(may),
    }


class Report:
    """A title, the machine, and sections of Markdown; and the same figures as JSON.

    `add` prints a section at once and rewrites `{name}.md` and `{name}.json` in --output_dir, so
    that a run that is cut short leaves its measurements. Make it once the threads are set.
    """

    def __init__(self, name: str, title: str, args: Namespace, device: torch.device) -> None:
        self.path = args.output_dir / name
        settings = {key: value for key, value in vars(args).items() if key != "output_dir"}
        gpu = gpu_facts(device) if device.type == "cuda" else {}
        emulated = "emulated: expect it to be far slower than float32"
        machine = {
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            **{key: provenance()[key] for key in ("commit", "python", "torch")},
            "device": device.type,
            **gpu,
            "cpu": cpu_name(),
            "threads": str(torch.get_num_threads()),
            "bfloat16": "in hardware" if computes_bf16(device) else emulated,
        }
        self.sections: list[dict[str, Any]] = []
        same = {"benchmark": name, "environment": machine, "settings": settings}
        self.data = {**same, "sections": self.sections}
        self.text = f"# {title}\n\n" + markdown_table(("", ""), list(machine.items()))
        print(self.text, flush=True)

    def add(self, heading: str, body: str, data: Mapping[str, Any]) -> None:
        """One more section: Markdown for readers, values for programs."""
        say("")
        section = f"## {heading}\n\n{body.rstrip()}\n"
        print(section, flush=True)
        self.text += f"\n{section}"
        self.sections.append({"heading": heading, **data})
        write_text(self.path.with_suffix(".md"), self.text)
        text = json.dumps(self.data, indent=1, default=_as_json)
        write_text(self.path.with_suffix(".json"), f"{text}\n")
