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
import multiprocessing
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

if not __package__:  # run as a file: imports begin at the root of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from benchmarks import common
from benchmarks.common import DTYPES, Report, figure
from benchmarks.train_models import MODELS, Model, Ours, build_models, n_parameters
from benchmarks.train_setup import SIZES, Batches, Setup, make_batches
from configs.positions import POSITIONS
from experiments.common import chosen_positions
from utils.cli import Parser, positive, run_main
from utils.errors import UserError
from utils.tables import markdown_table

AT_ONCE = 4  # schemes in turn with "none"; each holds a model with its gradients and moments

# ------------------------------------------------------------------------------------------- memory


def peak_memory_mb(name: str, setup: Setup) -> float:
    """The most memory that training one model takes above what its process held before, in MB.

    To be called in a process of its own, since a peak does not fall. A tiny model goes first, so
    that libraries are loaded; then a round, and the batch with the most target positions of all.
    """
    device = torch.device(setup.device)
    torch.set_num_threads(setup.threads)
    make = MODELS[name][0]
    trial = dataclasses.replace(
        setup, size=SIZES["tiny"], batch_tokens=64, rounds=1, warmup=0, steps=1, compile=False
    )
    make(trial).train(make_batches(trial).made)
    batches = make_batches(setup)
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


@dataclass(frozen=True, slots=True)
class Comparison:
    """One size and precision: its batches, and the machine's GFLOP/s there by matrix size."""

    setup: Setup
    batches: Batches
    rates: dict[int, float]

    @property
    def emulated(self) -> bool:
        device = torch.device(self.setup.device)
        return self.setup.precision == "bfloat16" and not common.computes_bf16(device)

    def seconds(self, models: Mapping[str, Model]) -> dict[str, list[float]]:
        """Of every model in every round."""
        setup, device = self.setup, torch.device(self.setup.device)
        runs = {
            name: lambda number, model=model: model.train(self.batches.of_round(number))
            for name, model in models.items()
        }
        return common.in_turn(runs, rounds=setup.rounds, warmup=setup.warmup, device=device)

    def row(self, model: Model, taken: Sequence[float]) -> dict[str, Any]:
        """The figures of one model from its seconds in every round."""
        setup, batches, rate = self.setup, self.batches, max(self.rates.values()) * 1e9
        rounds = list(enumerate(taken))
        return {
            "parameters": n_parameters(model),
            "tokens_per_second": common.spread([batches.n_tokens(i) / s for i, s in rounds]),
            "ms_per_step": common.spread([1e3 * s / setup.steps for s in taken]),
            "utilisation": common.spread(
                [batches.flops(setup.size, i) / s / rate for i, s in rounds]
            ),
            "seconds": list(taken),
        }

    def conditions(self) -> dict[str, Any]:
        """What was trained on what, for the JSON."""
        numbers = range(self.setup.rounds)
        tokens = sum(map(self.batches.n_tokens, numbers))
        flops = sum(self.batches.flops(self.setup.size, number) for number in numbers)
        return {
            "setup": self.setup,
            "target_tokens_per_step": tokens / (self.setup.rounds * self.setup.steps),
            "padding": self.batches.padding(),
            "model_flops_per_target_token": flops / tokens,
            "matrix_gflops": self.rates,
        }

    def conditions_markdown(self) -> str:
        """The same in words, to stand above a table."""
        setup, size, figures = self.setup, self.setup.size, self.conditions()
        rates = ", ".join(f"{n}: {figure(rate)}" for n, rate in self.rates.items())
        emulated = " This CPU emulates bfloat16: these figures tell nothing about one that has it."
        return (
            f"d_model {size.d_model}, {size.n_heads} heads, d_ff {size.d_ff}, "
            f"{size.n_layers}+{size.n_layers} layers, vocabulary {size.vocab_size:,}; batches of "
            f"{setup.batch_tokens:,} tokens of the longer side, on average "
            f"{figures['target_tokens_per_step']:,.0f} target tokens, {figures['padding']:.1%} of "
            f"both sides padding; rounds x steps: {setup.rounds} x {setup.steps}"
            f"{', ours compiled' if setup.compile else ''}. Medians (quartiles). "
            f"{figure(figures['model_flops_per_target_token'] / 1e6)} million model FLOPs a target "
            f"token; matrix products of this machine in {setup.precision}, GFLOP/s by size: "
            f"{rates}.{emulated if self.emulated else ''}"
        )


def compare_models(
    report: Report, comparison: Comparison, names: Sequence[str], heading: str, *, memory: bool
) -> None:
    """One section: ours and its peers."""
    models, left_out = build_models(names, comparison.setup)
    seconds = comparison.seconds(models)
    parts = cast(Ours, models["ours"]).split_step(comparison.batches)
    rows = [
        {"model": name, **comparison.row(models[name], taken)} for name, taken in seconds.items()
    ]
    models.clear()  # before the memory of others is measured
    for row in rows:
        row["ours_over_it"] = common.ratio(row["seconds"], seconds["ours"])
        if memory:
            row["peak_memory_mb"] = in_fresh_process(row["model"], comparison.setup)
    data = {**comparison.conditions(), "models": rows, "parts_ms": parts, "left_out": left_out}
    report.add(heading, models_markdown(comparison, data), data)


def models_markdown(comparison: Comparison, data: Mapping[str, Any]) -> str:
    header = ["model", "parameters", "target tokens/s", "ms a step", "ours / it, tokens/s"]
    header += [
        "utilisation",
        *(["peak memory, MB"] if "peak_memory_mb" in data["models"][0] else []),
    ]
    table = []
    for row in data["models"]:
        utilisation = f"{row['utilisation'].median:.1%}"
        cells = [row["model"], f"{row['parameters']:,}", row["tokens_per_second"]]
        cells += [row["ms_per_step"], row["ours_over_it"]]
        cells += [common.NOTHING if comparison.emulated else utilisation]
        table.append([*cells, *([figure(row[k]) for k in ("peak_memory_mb",) if k in row])])
    parts, whole = data["parts_ms"], sum(data["parts_ms"].values())
    shares = [[part, figure(ms), f"{ms / whole:.1%}"] for part, ms in parts.items()]
    return "\n".join(
        [
            comparison.conditions_markdown(),
            "",
            markdown_table(header, table),
            *(f"- {row['model']}: {MODELS[row['model']][1]}" for row in data["models"]),
            *(f"- left out: {name} ({reason})" for name, reason in data["left_out"].items()),
            "",
            "The parts of our step (data: making the batch, which the table above leaves out for "
            "all; forward: with the loss, which makes its gradient on the way; optimizer: with "
            "clipping):",
            "",
            markdown_table(("part", "ms", "share"), shares),
        ]
    )


def compare_schemes(
    report: Report, comparison: Comparison, names: Sequence[str], heading: str
) -> None:
    """One section: our model under the named position schemes, each measured in turn with none."""
    others = [name for name in names if name != "none"]
    rows: list[dict[str, Any]] = []
    for first in range(0, len(others), AT_ONCE) or [0]:
        group = scheme_rows(comparison, ["none", *others[first : first + AT_ONCE]])
        rows += group[1:] if rows else group  # none once
    keys = ("tokens_per_second", "ms_per_step", "time_over_none")
    table = [[row["scheme"], f"{row['parameters']:,}", *(row[key] for key in keys)] for row in rows]
    header = ["scheme", "parameters", "target tokens/s", "ms a step", "time / time of none"]
    text = f"{comparison.conditions_markdown()}\n\n{markdown_table(header, table)}"
    report.add(heading, text, {**comparison.conditions(), "schemes": rows})


def scheme_rows(comparison: Comparison, names: Sequence[str]) -> list[dict[str, Any]]:
    """The figures of a few schemes, "none" among them. Their models are gone afterwards."""
    models = {name: Ours(comparison.setup, position=POSITIONS[name]) for name in names}
    seconds = comparison.seconds(models)
    return [
        {
            "scheme": name,
            **comparison.row(models[name], taken),
            "time_over_none": common.ratio(taken, seconds["none"]),
        }
        for name, taken in seconds.items()
    ]


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
    what = "rounds that do not count (default: 1)"
    add("--warmup", type=positive, default=1, metavar="N", help=what)
    what = "torch.compile for ours; compiles in the first steps: --warmup 5"
    add("--compile", action="store_true", help=what)
    add("--seed", type=int, default=0, metavar="N")
    common.add_arguments(parser, "bench_train", rounds=7)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    wanted = ",".join(POSITIONS) if args.schemes == "all" else args.schemes
    schemes = chosen_positions(wanted) if wanted else []
    device = common.use_machine(args.device, args.threads)
    report = Report("bench_train", "Training speed", args, device)
    rates = {
        name: common.matrix_rate(DTYPES[name], device) for name in dict.fromkeys(args.precision)
    }
    for size in dict.fromkeys(args.size):
        for precision in rates:
            setup = Setup(
                size=SIZES[size],
                precision=precision,
                device=str(device),
                threads=torch.get_num_threads(),
                batch_tokens=args.batch_tokens or SIZES[size].batch_tokens,
                **{
                    key: getattr(args, key)
                    for key in ("rounds", "warmup", "steps", "seed", "compile")
                },
            )
            comparison = Comparison(setup, make_batches(setup), rates[precision])
            names, heading = ["ours", *dict.fromkeys(args.peers)], f"{size}, {precision}"
            compare_models(report, comparison, names, heading, memory=args.memory)
            if schemes:
                compare_schemes(report, comparison, schemes, f"{heading}: position schemes")


if __name__ == "__main__":
    run_main(main)
