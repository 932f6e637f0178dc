"""Training speed against other libraries, side by side in one run: `python
benchmarks/bench_train.py`.

Every model trains on the same batches, in turn, round by round: target tokens a second,
milliseconds a step, the share of the machine's matrix rate, with --memory the peak memory; the
parts of our step. With --schemes also our model under position schemes, against none. Written into
--output_dir: bench_train.md and bench_train.json.

"ours" is the update of training/engine.py on what training/prepare.py builds. The peers share one
plain loop: forward, cross_entropy over all positions (padding ignored), backward, clipping, AdamW.
All have fp32 weights, autocast for bfloat16, embeddings tied with the output, dropout 0.1 (where,
is said below the table) and label smoothing 0.1.

Utilisation counts the model FLOPs of an update that benchmarks/train_setup.py defines.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

if (
    not __package__
):  # run as a file: the root of the repository is where imports begin, not this folder
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

AT_ONCE = (
    4  # schemes measured in turn with "none"; each holds a model with its gradients and moments
)


# ------------------------------------------------------------------------------------------- memory


def peak_memory_mb(name: str, setup: Setup) -> float:
    """The most memory that the training of one model takes above what its process held before, in
    MB.

    To be called in a process of its own, since a peak does not fall. A tiny model goes first, so
    that libraries are loaded and warm; then comes a round, and the batch with the most target
    positions of all.
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
            raise UserError(
                f"{name}: its process was ended while its memory was measured; too little of it?"
            ) from error


# -------------------------------------------------------------------------------------- comparisons


@dataclass(frozen=True, slots=True)
class Comparison:
    """One size and precision: what is trained on, and the machine's matrix rate there (GFLOP/s by
    matrix size).
    """

    setup: Setup
    batches: Batches
    rates: dict[int, float]

    @property
    def numbers(self) -> range:
        """The rounds that count."""
        return range(self.setup.rounds)

    @property
    def emulated(self) -> bool:
        return self.setup.precision == "bfloat16" and not common.computes_bf16(
            torch.device(self.setup.device)
        )

    def seconds(self, models: Mapping[str, Model]) -> dict[str, list[float]]:
        """Of every model in every round."""

        def runner(model: Model) -> Callable[[int], None]:
            return lambda number: model.train(self.batches.of_round(number))

        setup = self.setup
        runs = {name: runner(model) for name, model in models.items()}
        return common.in_turn(
            runs, rounds=setup.rounds, warmup=setup.warmup, device=torch.device(setup.device)
        )

    def row(self, model: Model, taken: Sequence[float]) -> dict[str, Any]:
        """The figures of one model from its seconds in every round."""
        setup, batches = self.setup, self.batches
        rate = max(self.rates.values()) * 1e9
        measures = {
            "tokens_per_second": [
                batches.n_tokens(number) / taken[number] for number in self.numbers
            ],
            "ms_per_step": [1e3 * taken[number] / setup.steps for number in self.numbers],
            "utilisation": [
                batches.flops(setup.size, number) / taken[number] / rate for number in self.numbers
            ],
        }
        spreads = {
            key: dataclasses.asdict(common.spread(values)) for key, values in measures.items()
        }
        return {"parameters": n_parameters(model), **spreads, "seconds": list(taken)}

    def conditions(self) -> dict[str, Any]:
        """What was trained on what, for the JSON."""
        tokens = sum(map(self.batches.n_tokens, self.numbers))
        flops = sum(self.batches.flops(self.setup.size, number) for number in self.numbers)
        return {
            "setup": dataclasses.asdict(self.setup),
            "target_tokens_per_step": tokens / (self.setup.rounds * self.setup.steps),
            "padding": self.batches.padding(),
            "model_flops_per_target_token": flops / tokens,
            "matrix_gflops": {str(n): rate for n, rate in self.rates.items()},
        }

    def conditions_markdown(self) -> str:
        """The same in words, to stand above a table."""
        setup, size, figures = self.setup, self.setup.size, self.conditions()
        rates = ", ".join(f"{n}: {figure(rate)}" for n, rate in self.rates.items())
        return (
            f"d_model {size.d_model}, {size.n_heads} heads, d_ff {size.d_ff}, {size.n_layers}+{size.n_layers} layers, "
            f"vocabulary {size.vocab_size:,}; batches of {setup.batch_tokens:,} tokens of the longer side, on average "
            f"{figures['target_tokens_per_step']:,.0f} target tokens, {figures['padding']:.1%} of both sides padding; "
            f"rounds x steps: {setup.rounds} x {setup.steps}{', ours compiled' if setup.compile else ''}. "
            f"Medians (quartiles). {figure(figures['model_flops_per_target_token'] / 1e6)} million model FLOPs a "
            f"target token; matrix products of this machine in {setup.precision}, GFLOP/s by size: {rates}."
            + (
                " This CPU emulates bfloat16: these figures tell nothing about one that has it."
                if self.emulated
                else ""
            )
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
        row["ours_over_it"] = dataclasses.asdict(common.ratio(row["seconds"], seconds["ours"]))
        if memory:
            row["peak_memory_mb"] = in_fresh_process(row["model"], comparison.setup)
    data = {**comparison.conditions(), "models": rows, "parts_ms": parts, "left_out": left_out}
    report.add(heading, models_markdown(comparison, data), data)


def models_markdown(comparison: Comparison, data: Mapping[str, Any]) -> str:
    header = [
        "model",
        "parameters",
        "target tokens/s",
        "ms a step",
        "ours / it, tokens/s",
        "utilisation",
    ]
    table: list[list[str]] = []
    for row in data["models"]:
        speeds = [shown(row[key]) for key in ("tokens_per_second", "ms_per_step", "ours_over_it")]
        utilisation = "–" if comparison.emulated else f"{row['utilisation']['median']:.1%}"
        table.append([row["model"], f"{row['parameters']:,}", *speeds, utilisation])
        if "peak_memory_mb" in row:
            table[-1].append(figure(row["peak_memory_mb"]))
            header[6:] = ["peak memory, MB"]
    parts, whole = data["parts_ms"], sum(data["parts_ms"].values())
    return "\n".join(
        [
            comparison.conditions_markdown(),
            "",
            markdown_table(header, table),
            *(f"- {row['model']}: {MODELS[row['model']][1]}" for row in data["models"]),
            *(f"- left out: {name} ({reason})" for name, reason in data["left_out"].items()),
            "",
            "The parts of our step (data: making the batch, which the table above leaves out for all; forward: with "
            "the loss, which makes its gradient on the way; optimizer: with clipping):",
            "",
            markdown_table(
                ("part", "ms", "share"),
                [[k, figure(ms), f"{ms / whole:.1%}"] for k, ms in parts.items()],
            ),
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
    table = []
    for row in rows:
        speeds = [shown(row[key]) for key in ("tokens_per_second", "ms_per_step", "time_over_none")]
        table.append([row["scheme"], f"{row['parameters']:,}", *speeds])
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
            "time_over_none": dataclasses.asdict(common.ratio(taken, seconds["none"])),
        }
        for name, taken in seconds.items()
    ]


def shown(spread: Mapping[str, float]) -> str:
    return str(common.Spread(**spread))


# ------------------------------------------------------------------------------------- command line


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    peers = [name for name in MODELS if name != "ours"]
    parser = Parser(
        prog="bench_train.py",
        description="Training speed of our model and of other libraries' models.",
    )
    parser.add_argument(
        "--size", nargs="+", choices=SIZES, default=["small"], help="default: small"
    )
    parser.add_argument(
        "--precision", nargs="+", choices=DTYPES, default=["float32"], help="default: float32"
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=peers,
        default=peers,
        help="default: all; none named: ours alone",
    )
    parser.add_argument("--schemes", metavar="all|NAME,...", help="also compare position schemes")
    parser.add_argument(
        "--memory",
        action="store_true",
        help="also measure peak memory, in a process for each model",
    )
    parser.add_argument(
        "--batch_tokens", type=positive, metavar="N", help="default: 4096 for small, 2048 for base"
    )
    parser.add_argument("--rounds", type=positive, default=7, metavar="N", help="default: 7")
    parser.add_argument(
        "--steps", type=positive, default=4, metavar="N", help="updates in a round (default: 4)"
    )
    parser.add_argument(
        "--warmup",
        type=positive,
        default=1,
        metavar="N",
        help="rounds that do not count (default: 1)",
    )
    parser.add_argument(
        "--threads", type=positive, metavar="N", help="CPU threads (default: torch's choice)"
    )
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda, cuda:N")
    parser.add_argument(
        "--compile",
        action="store_true",
        help="torch.compile for ours; compiles in the first steps: --warmup 5",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/bench_train"), metavar="DIR")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    wanted = ",".join(POSITIONS) if args.schemes == "all" else args.schemes
    schemes = chosen_positions(wanted) if wanted else []
    device = common.use_machine(args.device, args.threads)
    settings = {
        key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()
    }
    report = Report(
        args.output_dir, "bench_train", title="Training speed", device=device, settings=settings
    )
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
                rounds=args.rounds,
                warmup=args.warmup,
                steps=args.steps,
                seed=args.seed,
                compile=args.compile,
            )
            comparison = Comparison(setup, make_batches(setup), rates[precision])
            names = ["ours", *dict.fromkeys(args.peers)]
            compare_models(report, comparison, names, f"{size}, {precision}", memory=args.memory)
            if schemes:
                compare_schemes(
                    report, comparison, schemes, f"{size}, {precision}: position schemes"
                )


if __name__ == "__main__":
    run_main(main)
