"""Training speed beside other libraries: `python benchmarks/bench_train.py`.

Every model trains on the same batches, in turn, round by round: target tokens a second,
milliseconds a step, the share of the machine's matrix rate, with --memory the peak memory; the
parts of our step. With --schemes also our model under position schemes, against none. Written into
--output_dir: bench_train.md and bench_train.json.

"ours" is the update of training/engine.py on what training/prepare.py builds. The peers share one
plain loop: forward, cross_entropy over all positions (padding ignored), backward, clipping, AdamW.
All have fp32 weights, autocast for bfloat16, embeddings tied with the output, dropout 0.1 (where,
is said below the table) and label smoothing 0.1. Utilisation counts the model FLOPs of an update
that benchmarks/train_setup.py defines.
"""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, cast

if not __package__:  # run as a file: imports begin at the root of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from benchmarks import common
from benchmarks.common import DTYPES, NOTHING, Report, figure, ratio, spread, table
from benchmarks.train_models import MODELS, Model, Ours, build_models, n_parameters
from benchmarks.train_setup import SIZES, Batches, Setup
from configs.positions import POSITIONS
from experiments.common import chosen_positions
from utils.cli import Parser, positive, run_main
from utils.errors import UserError
from utils.machine import computes_bf16
from utils.tables import markdown_table

AT_ONCE = 4  # schemes in turn with "none"; each holds a model with its gradients and moments

# ------------------------------------------------------------------------------------------- memory


def peak_memory_mb(name: str, setup: Setup) -> float:
    """The most memory that training one model takes above what its process held before, in MB.

    To be called in a process of its own, since a peak does not fall. A tiny model goes first, so
    that libraries are loaded; then a round, and the batch with the most target positions of all.
    """
    device, (make, _) = setup.device, MODELS[name]
    torch.set_num_threads(setup.threads)
    tiny = dataclasses.replace(SIZES["tiny"], batch_tokens=64)
    make(Setup(tiny, device, setup.precision)).train(Batches(Setup(tiny, device)).made)
    batches = Batches(setup)
    largest = max(batches.made, key=lambda batch: batch.tgt_in.numel())
    on_gpu = device.type == "cuda"
    before = torch.cuda.memory_allocated(device) / 1e6 if on_gpu else common.status_mb("VmRSS")
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    make(setup).train([*batches.of_round(0), largest])
    peak = torch.cuda.max_memory_allocated(device) / 1e6 if on_gpu else common.status_mb("VmHWM")
    return peak - before


def in_fresh_process(name: str, setup: Setup) -> float:
    """peak_memory_mb in a process of its own."""
    common.say(f"memory: {name}")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(peak_memory_mb, name, setup).result()
        except BrokenProcessPool as error:
            what = "its process was ended while its memory was measured; too little of it?"
            raise UserError(f"{name}: {what}") from error


# -------------------------------------------------------------------------------------- comparisons


class Comparison:
    """One size and precision: its batches, and the machine's GFLOP/s there by matrix size."""

    def __init__(self, setup: Setup, rates: Mapping[int, float]) -> None:
        self.setup, self.batches, self.rates = setup, Batches(setup), rates
        rounds = range(setup.rounds)
        self.tokens = [self.batches.n_tokens(number) for number in rounds]
        self.flops = [self.batches.flops(number) for number in rounds]

    def rows(self, models: Mapping[str, Model], key: str) -> list[dict[str, Any]]:
        """The figures of all models, measured in turn; `key` holds their names."""
        setup, best = self.setup, max(self.rates.values()) * 1e9
        runs = {
            name: lambda number, model=model: model.train(self.batches.of_round(number))
            for name, model in models.items()
        }
        taken = common.in_turn(runs, rounds=setup.rounds, warmup=setup.warmup, device=setup.device)
        return [
            {
                key: name,
                "parameters": n_parameters(models[name]),
                "tokens_per_second": ratio(self.tokens, seconds),
                "ms_per_step": spread([1e3 * s / setup.steps for s in seconds]),
                "utilisation": ratio([n / best for n in self.flops], seconds),
                "seconds": seconds,
            }
            for name, seconds in taken.items()
        ]

    def conditions(self) -> dict[str, Any]:
        """What was trained on what: for the JSON, and in `words` to stand above a table."""
        setup, size, tokens = self.setup, self.setup.size, sum(self.tokens)
        figures = {
            "target_tokens_per_step": tokens / (setup.rounds * setup.steps),
            "padding": self.batches.padding(),
            "model_flops_per_target_token": sum(self.flops) / tokens,
        }
        rates = ", ".join(f"{n}: {figure(rate)}" for n, rate in self.rates.items())
        emulated = " This CPU emulates bfloat16: these figures tell nothing about one that has it."
        words = (
            f"d_model {size.d_model}, {size.n_heads} heads, d_ff {size.d_ff}, "
            f"{size.n_layers}+{size.n_layers} layers, vocabulary {size.vocab_size:,}; batches of "
            f"{size.batch_tokens:,} tokens of the longer side, on average "
            f"{figures['target_tokens_per_step']:,.0f} target tokens, {figures['padding']:.1%} of "
            f"both sides padding; rounds x steps: {setup.rounds} x {setup.steps}"
            f"{', ours compiled' if setup.compile else ''}. Medians (quartiles). "
            f"{figure(figures['model_flops_per_target_token'] / 1e6)} million model FLOPs a target "
            f"token; matrix products of this machine in {setup.precision}, GFLOP/s by size: "
            f"{rates}.{emulated if emulates(setup) else ''}"
        )
        return {"words": words, "setup": setup, **figures, "matrix_gflops": self.rates}


def emulates(setup: Setup) -> bool:
    return setup.precision == "bfloat16" and not computes_bf16(setup.device)


FIGURES = {
    "parameters": "{parameters:,}",
    "target tokens/s": "{tokens_per_second}",
    "ms a step": "{ms_per_step}",
}


def compare_models(
    report: Report, comparison: Comparison, names: Sequence[str], heading: str, *, memory: bool
) -> None:
    """One section: ours and its peers."""
    setup = comparison.setup
    models, left_out = build_models(names, setup)
    rows = comparison.rows(models, "model")
    parts = cast(Ours, models["ours"]).split_step(comparison.batches)
    models.clear()  # before the memory of others is measured
    for row in rows:
        row["ours_over_it"] = ratio(row["seconds"], rows[0]["seconds"])
        if memory:
            row["peak_memory_mb"] = in_fresh_process(row["model"], setup)
    columns = {"model": "{model}", **FIGURES, "ours / it, tokens/s": "{ours_over_it}"}
    columns["utilisation"] = NOTHING if emulates(setup) else "{utilisation.median:.1%}"
    if memory:
        columns["peak memory, MB"] = "{peak_memory_mb:,.0f}"
    parts_ms = {part: 1e3 * spread(seconds).median for part, seconds in parts.items()}
    whole = sum(parts_ms.values())
    shares = [[part, figure(ms), f"{ms / whole:.1%}"] for part, ms in parts_ms.items()]
    conditions = comparison.conditions()
    body = "\n".join(
        [
            conditions["words"],
            "",
            table(rows, columns),
            *(f"- {row['model']}: {MODELS[row['model']][1]}" for row in rows),
            *(f"- left out: {name} ({reason})" for name, reason in left_out.items()),
            "",
            "The parts of our step (data: making the batch, which the table above leaves out for "
            "all; forward: with the loss, which makes its gradient on the way; optimizer: with "
            "clipping):",
            "",
            markdown_table(("part", "ms", "share"), shares),
        ]
    )
    data = {**conditions, "models": rows, "parts_ms": parts_ms, "left_out": left_out}
    report.add(heading, body, data)


def compare_schemes(
    report: Report, comparison: Comparison, names: Sequence[str], heading: str
) -> None:
    """One section: our model under the named position schemes, each measured in turn with none."""
    others = [name for name in names if name != "none"]
    rows: list[dict[str, Any]] = []
    for first in range(0, len(others), AT_ONCE) or [0]:
        group = scheme_rows(comparison, ["none", *others[first : first + AT_ONCE]])
        rows += group[1:] if rows else group  # none once
    columns = {"scheme": "{scheme}", **FIGURES, "time / time of none": "{time_over_none}"}
    conditions = comparison.conditions()
    text = f"{conditions['words']}\n\n{table(rows, columns)}"
    report.add(heading, text, {**conditions, "schemes": rows})


def scheme_rows(comparison: Comparison, names: Sequence[str]) -> list[dict[str, Any]]:
    """The figures of a few schemes, "none" first. Their models are gone afterwards."""
    models = {name: Ours(comparison.setup, position=POSITIONS[name]) for name in names}
    rows = comparison.rows(models, "scheme")
    for row in rows:
        row["time_over_none"] = ratio(row["seconds"], rows[0]["seconds"])
    return rows


# ------------------------------------------------------------------------------------- command line


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    peers = [name for name in MODELS if name != "ours"]
    parser = Parser(prog="bench_train.py", description="Training speed beside other libraries.")
    add = parser.add_argument
    add("--size", nargs="+", choices=SIZES, default=["small"], help="default: small")
    add("--precision", nargs="+", choices=DTYPES, default=["float32"], help="default: float32")
    what = "default: all; none named: ours alone"
    add("--peers", nargs="*", choices=peers, default=peers, help=what)
    add("--schemes", metavar="all|NAME,...", help="also compare position schemes")
    add("--memory", action="store_true", help="also peak memory, in a process for each model")
    what = "default: 4096 for small, 2048 for base"
    add("--batch_tokens", type=positive, metavar="N", help=what)
    add("--steps", type=positive, default=4, metavar="N", help="updates in a round (default: 4)")
    what = "torch.compile for ours; compiles in the first steps: --warmup 5"
    add("--compile", action="store_true", help=what)
    common.add_arguments(parser, "bench_train", rounds=7, draws=True)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    wanted = ",".join(POSITIONS) if args.schemes == "all" else args.schemes
    schemes = chosen_positions(wanted) if wanted else []
    device = common.use_machine(args.device, args.threads)
    report = Report("bench_train", "Training speed", args, device)
    names = ["ours", *dict.fromkeys(args.peers)]
    precisions = dict.fromkeys(args.precision)
    rates = {precision: common.matrix_rate(DTYPES[precision], device) for precision in precisions}
    same = {key: getattr(args, key) for key in ("rounds", "warmup", "steps", "seed", "compile")}
    same["threads"] = torch.get_num_threads()
    for name, precision in itertools.product(dict.fromkeys(args.size), precisions):
        size = SIZES[name]
        if args.batch_tokens:
            size = dataclasses.replace(size, batch_tokens=args.batch_tokens)
        comparison = Comparison(Setup(size, device, precision, **same), rates[precision])
        heading = f"{name}, {precision}"
        compare_models(report, comparison, names, heading, memory=args.memory)
        if schemes:
            compare_schemes(report, comparison, schemes, f"{heading}: position schemes")


if __name__ == "__main__":
    run_main(main)
