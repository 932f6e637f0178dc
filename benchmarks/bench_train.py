"""Training speed beside other libraries: `python benchmarks/bench_train.py`.

Every model trains on the same batches, each in a process of its own: ours and three others in turn,
round by round, then ours and the next three. "ours" is the update of training/engine.py on what
training/prepare.py builds. The peers share one plain loop: forward, cross_entropy over all
positions (padding ignored), backward, clipping, AdamW. All have fp32 weights, autocast for 16 bits,
embeddings tied with the output, dropout 0.1 (its places are listed below the table) and label
smoothing 0.1. Utilisation is the share of the machine's matrix rate, by the FLOPs of `model_flops`.
Written into --output_dir: bench_train.md and bench_train.json.
"""

import dataclasses
import itertools
import math
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

if not __package__:  # run as a file: imports begin at the root of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch
from ignite.engine import Events
from torch.utils.benchmark import Timer

from benchmarks import common
from benchmarks.common import BOS, DTYPES, EOS, PAD, SIZES, Report, Size, figure, ratio, spread
from benchmarks.train_models import LONGEST, MODELS, Model, Ours, Setup, n_parameters
from configs.position_names import POSITIONS
from configs.schema import ModelConfig
from data.batching import Batch, collate, form_batches, padded_tokens
from data.cache import TokenizedSplit
from experiments.common import chosen
from models.products import product
from utils.cli import Parser, positive, run_main
from utils.errors import UserError
from utils.machine import computes_bf16
from utils.tables import markdown_table

AT_ONCE = 4  # models in turn, with ours (or "none"): each holds gradients and moments
POOL = 20_000  # at least so many pairs: few would have far more padding than a corpus
FIGURES = {
    "parameters": "{parameters:,}",
    "target tokens/s": "{tokens_per_second}",
    "ms a step": "{ms_per_step}",
}


def made_up_split(n: int, vocab_size: int, seed: int) -> TokenizedSplit:
    """n pairs of random ids that end in EOS; targets of about 20 tokens, log-normal."""
    rng = np.random.default_rng(seed)
    tgt = np.clip(np.exp(rng.normal(math.log(20), 0.5, n)), 3, LONGEST)
    src = np.clip(tgt * np.exp(rng.normal(0.1, 0.2, n)), 3, LONGEST)

    def side(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        offsets = np.concatenate(([0], np.cumsum(lengths.astype(np.int64))))
        ids = rng.integers(EOS + 1, vocab_size, offsets[-1], dtype=np.int32)
        ids[offsets[1:] - 1] = EOS
        return ids, offsets

    return TokenizedSplit(*side(src), *side(tgt), kept=np.arange(n), n_skipped={})


def model_flops(size: Size, src_lengths: np.ndarray, tgt_lengths: np.ndarray) -> float:
    """FLOPs of an update (forward, and twice that backward) on sentences without padding.

    They are of all matrices that a token meets, and of both products of attention (a causal one
    counts whole, as is usual).
    """
    d, f = size.d_model, size.d_ff
    s, t = (np.asarray(lengths, dtype=np.float64) for lengths in (src_lengths, tgt_lengths))
    by_source = size.n_layers * (4 * d * d + 2 * d * f) + size.n_layers * 2 * d * d
    by_target = size.n_layers * (6 * d * d + 2 * d * f) + d * size.vocab_size
    attention = 2 * d * size.n_layers * (s * s + t * t + t * s)
    return float(6 * (s * by_source + t * by_target + attention).sum())


class Comparison:
    """One size and precision: the batches of each round, formed as in training and never repeated.

    The rounds -warmup to -1 are the warm-up. `rates` are the machine's GFLOP/s by matrix size.
    """

    def __init__(self, setup: Setup, rates: Mapping[int, float] | None = None) -> None:
        self.setup, self.rates = setup, rates or {}
        seed, budget = setup.seed, setup.size.batch_tokens
        n = (setup.warmup + setup.rounds) * setup.steps
        self.split = split = made_up_split(max(POOL, n * budget // 8), setup.size.vocab_size, seed)
        sides = split.src_lengths, split.tgt_lengths
        formed = form_batches(*sides, batch_by="tokens", batch_size=budget, seed=seed)
        self.rows = [formed[i] for i in np.random.default_rng(seed).permutation(len(formed))[:n]]
        real = sum(int(lengths[np.concatenate(self.rows)].sum()) for lengths in sides)
        self.padding = 1 - real / padded_tokens(self.rows, *sides)  # share of both sides
        self.batches: dict[int, list[Batch]] = {}  # by round
        self.tokens: list[int] = []  # target tokens of the rounds that count, without padding
        self.flops: list[float] = []
        for number, first in enumerate(range(0, n, setup.steps), start=-setup.warmup):
            rows = self.rows[first : first + setup.steps]
            self.batches[number] = [self.collate(each) for each in rows]
            if number >= 0:
                lengths = (side[np.concatenate(rows)] for side in sides)
                self.tokens.append(sum(batch.n_tokens for batch in self.batches[number]))
                self.flops.append(model_flops(setup.size, *lengths))

    def collate(self, rows: np.ndarray) -> Batch:
        return collate(self.split, rows.tolist(), pad_id=PAD, bos_id=BOS)

    def training(self, model: Model) -> Callable[[int], int]:
        """A function that trains on a round's batches and returns the number of parameters."""
        if isinstance(model, Ours) and model.graphs:  # two epochs: the second captures
            for batches in [*self.batches.values()] * 2:
                model.train(batches)

        size = n_parameters(model)

        def train(number: int) -> int:
            model.train(self.batches[number])
            common.synchronize(self.setup.device)
            return size

        return train

    def measure(self, runs: Mapping[str, Callable[[int], int]], key: str) -> list[dict[str, Any]]:
        """The figures of all runs (`training`), in turn; `key` holds their names."""
        setup, sizes = self.setup, dict[str, int]()

        def run(name: str, number: int) -> None:
            sizes[name] = runs[name](number)

        turns = {name: partial(run, name) for name in runs}
        taken = common.in_turn(turns, rounds=setup.rounds, warmup=setup.warmup, device=setup.device)
        rate = max(self.rates.values(), default=math.inf)
        at_best = [flops / rate / 1e9 for flops in self.flops]
        return [
            {
                key: name,
                "parameters": sizes[name],
                "tokens_per_second": ratio(self.tokens, seconds),
                "ms_per_step": spread([1e3 * s / setup.steps for s in seconds]),
                "utilisation": ratio(at_best, seconds),
                "seconds": seconds,
            }
            for name, seconds in taken.items()
        ]

    def conditions(self) -> dict[str, Any]:
        """The model and its data: for the JSON, and in `words` for the text above a table."""
        setup, size, tokens = self.setup, self.setup.size, sum(self.tokens)
        per_step, flops = tokens / (setup.rounds * setup.steps), sum(self.flops) / tokens
        rates = ", ".join(f"{n}: {figure(rate)}" for n, rate in self.rates.items())
        words = (
            f"d_model {size.d_model}, {size.n_layers}+{size.n_layers} layers, vocabulary "
            f"{size.vocab_size:,}; batches of {size.batch_tokens:,} tokens on the longer side, on "
            f"average {per_step:,.0f} target tokens, {self.padding:.1%} of both sides padding; "
            f"rounds x steps: {setup.rounds} x {setup.steps}"
            f"{', compiled' if setup.compile else ''}. Medians (quartiles). "
            f"{figure(flops / 1e6)} million model FLOPs a target token; matrix products of this "
            f"machine in {setup.precision}, GFLOP/s by size: {rates}."
        )
        figures = {"target_tokens_per_step": per_step, "model_flops_per_target_token": flops}
        figures["padding"] = self.padding
        return {"words": words, "setup": setup, **figures, "matrix_gflops": self.rates}


def matrix_rate(dtype: torch.dtype, device: torch.device, most_s: float = 1.0) -> dict[int, float]:
    """The best GFLOP/s of n x n products, by n, each measured for about most_s seconds.

    The sizes grow until one product would take longer, as on a CPU that emulates bfloat16.
    """
    rates: dict[int, float] = {}
    for n in (512, 1024, 2048, 4096, 8192):
        work = 2 * n**3 / 1e9
        if rates and work / max(rates.values()) > most_s:
            break
        names: dict[str, Any] = {"product": product}
        names |= {key: torch.randn(n, n, device=device).to(dtype) for key in "ab"}
        timer = Timer("product(a, b)", globals=names, num_threads=torch.get_num_threads())
        rates[n] = work / min(timer.blocked_autorange(min_run_time=most_s).times)
    return rates


def peak_memory_mb(name: str, setup: Setup) -> float:
    """The most memory that training one model takes above what its process held before, in MB.

    Call it in a process of its own, since a peak does not fall. A tiny model goes first, so that
    libraries are loaded; then a round, and the batch with the most target positions of all.
    """
    device, (make, _) = setup.device, MODELS[name]
    common.use_precision(setup.precision)
    tiny = Setup(dataclasses.replace(SIZES["tiny"], batch_tokens=64), device, setup.precision)
    make(tiny).train(Comparison(tiny).batches[0])
    batches = Comparison(setup).batches
    largest = max(itertools.chain(*batches.values()), key=lambda batch: batch.tgt_in.numel())
    on_gpu = device.type == "cuda"
    before = torch.cuda.memory_allocated(device) / 1e6 if on_gpu else common.status_mb("VmRSS")
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    make(setup).train([*batches[0], largest])
    peak = torch.cuda.max_memory_allocated(device) / 1e6 if on_gpu else common.status_mb("VmHWM")
    return peak - before


def in_fresh_process(name: str, setup: Setup) -> float:
    """peak_memory_mb in a process of its own."""
    common.say(f"memory: {name}")
    with ExitStack() as stack:
        return common.apart(stack, setup.device, partial, peak_memory_mb)(name, setup)


def training_of(name: str, setup: Setup) -> Callable[[int], int]:
    """Comparison.training for the named model. Raises ImportError or UserError without it."""
    common.use_precision(setup.precision)
    return Comparison(setup).training(MODELS[name][0](setup))


def parts_of(setup: Setup) -> dict[str, list[float]]:
    """split_step for our model."""
    common.use_precision(setup.precision)
    return split_step(Ours(setup), Comparison(setup))


def split_step(ours: Ours, comparison: Comparison) -> dict[str, list[float]]:
    """Seconds of the parts of each step of all rounds.

    The update calls its scaler at the end of the forward pass (with the loss) and of the backward
    pass; the rest is clipping, the optimizer and reading the figures.
    """
    parts: dict[str, list[float]] = {}
    since = 0.0

    def lap(part: str | None, then: Callable[..., Any] = lambda: None, *args: Any) -> Any:
        nonlocal since
        common.synchronize(comparison.setup.device)
        now = time.perf_counter()
        if part is not None:
            parts.setdefault(part, []).append(now - since)
        since = now
        return then(*args)

    add = ours.trainer.add_event_handler
    add(Events.GET_BATCH_STARTED, lambda: lap(None))
    add(Events.GET_BATCH_COMPLETED, lambda: lap("data"))
    add(Events.ITERATION_COMPLETED, lambda: lap("optimizer"))
    ends = {"forward": "scale", "backward": "unscale_"}
    scaler = ours.scaler
    laps: Any = {name: partial(lap, part, getattr(scaler, name)) for part, name in ends.items()}
    groups = ([comparison.collate(rows)] for rows in comparison.rows)
    with mock.patch.multiple(scaler, **laps):
        ours.trainer.run(groups, max_epochs=1, epoch_length=len(comparison.rows))
    return parts


def compare_models(
    report: Report, comparison: Comparison, names: Sequence[str], heading: str
) -> list[str]:
    """One section: ours and its peers. Returns the names in it."""
    setup, left_out = comparison.setup, dict[str, str]()
    ours, *peers = names
    rows: list[dict[str, Any]] = []
    while peers or not rows:
        with ExitStack() as stack:
            runs = {ours: common.apart(stack, setup.device, training_of, ours, setup)}
            while peers and len(runs) < AT_ONCE:
                name = peers.pop(0)
                try:
                    runs[name] = common.apart(stack, setup.device, training_of, name, setup)
                except (ImportError, UserError) as error:
                    left_out[name] = str(error)
            if rows and len(runs) == 1:
                continue  # ours is measured already
            measured = comparison.measure(runs, "model")
        for row in measured:
            row["our_seconds"] = measured[0]["seconds"]
            row["ours_over_it"] = ratio(row["seconds"], row["our_seconds"])
        rows += measured[1:] if rows else measured  # ours once
    with ExitStack() as stack:
        parts = common.apart(stack, setup.device, partial, parts_of)(setup)
    columns = {"model": "{model}", **FIGURES, "ours / it, tokens/s": "{ours_over_it}"}
    columns["utilisation"] = "{utilisation.median:.1%}"
    parts_ms = {part: 1e3 * spread(seconds).median for part, seconds in parts.items()}
    whole = sum(parts_ms.values())
    shares = [[part, figure(ms), f"{ms / whole:.1%}"] for part, ms in parts_ms.items()]
    conditions = comparison.conditions()
    body = "\n".join(
        [
            conditions["words"],
            "",
            common.table(rows, columns),
            *(f"- {row['model']}: {MODELS[row['model']][1]}" for row in rows),
            *(f"- left out: {name} ({reason})" for name, reason in left_out.items()),
            "",
            "The parts of our step (data: making the batch, in none of the figures above; forward: "
            "with the loss and its gradient; optimizer: with clipping):",
            "",
            markdown_table(("part", "ms", "share"), shares),
        ]
    )
    data = {**conditions, "models": rows, "parts_ms": parts_ms, "left_out": left_out}
    report.add(heading, body, data)
    return [row["model"] for row in rows]


def compare_memory(report: Report, setup: Setup, names: Sequence[str], heading: str) -> None:
    """One section, each model in a process of its own; after the speed, which is written by then.

    Without graphs, whose memory torch does not count as allocated.
    """
    plain = [name for name in names if name != "ours_graphs"]
    rows = [{"model": name, "peak_memory_mb": in_fresh_process(name, setup)} for name in plain]
    columns = {"model": "{model}", "peak memory, MB": "{peak_memory_mb:,.0f}"}
    report.add(heading, common.table(rows, columns), {"setup": setup, "memory": rows})


def compare_schemes(
    report: Report, comparison: Comparison, names: Sequence[str], heading: str
) -> None:
    """One section: our model with the named position schemes, each measured in turn with none."""
    others = [name for name in names if name != "none"]
    rows: list[dict[str, Any]] = []
    for first in range(0, len(others), AT_ONCE - 1) or [0]:
        group = ["none", *others[first : first + AT_ONCE - 1]]
        measured = comparison.measure(
            {
                name: comparison.training(Ours(comparison.setup, position=POSITIONS[name]))
                for name in group
            },
            "scheme",
        )
        for row in measured:
            row["time_over_none"] = ratio(row["seconds"], measured[0]["seconds"])
        rows += measured[1:] if rows else measured  # none once
    columns = {"scheme": "{scheme}", **FIGURES, "time / time of none": "{time_over_none}"}
    conditions = comparison.conditions()
    text = f"{conditions['words']}\n\n{common.table(rows, columns)}"
    report.add(heading, text, {**conditions, "schemes": rows})


def compare_precisions(report: Report, setup: Setup, widths: Sequence[int]) -> None:
    """One section: our model in bfloat16 and float32, in turn, which is the basis of "auto"."""
    rows: list[dict[str, Any]] = []
    precisions = ("float32", "bfloat16")
    common.use_precision("float32")
    for width, budget in itertools.product(widths, (1024, 2048, 4096)):
        shape = {"d_model": width, "d_ff": 4 * width, "batch_tokens": budget}
        wide = dataclasses.replace(setup, size=dataclasses.replace(setup.size, **shape))
        comparison = Comparison(wide)
        both = {
            precision: comparison.training(Ours(dataclasses.replace(wide, precision=precision)))
            for precision in precisions
        }
        exact, mixed = comparison.measure(both, "precision")
        speeds = {row["precision"]: row["tokens_per_second"] for row in (exact, mixed)}
        rows.append({**shape, **speeds, "ratio": ratio(exact["seconds"], mixed["seconds"])})
    size = setup.size
    words = f"{size.n_layers}+{size.n_layers} layers, {size.n_heads} heads, d_ff four times d_model"
    columns = {"d_model": "{d_model}", "tokens of a batch": "{batch_tokens:,}"}
    columns |= {f"{precision}, tokens/s": f"{{{precision}}}" for precision in precisions}
    columns["bfloat16 / float32"] = "{ratio}"
    text = f"{words}, vocabulary {size.vocab_size:,}.\n\n{common.table(rows, columns)}"
    report.add("bfloat16 beside float32", text, {"setup": setup, "widths": rows})


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    peers = [name for name in MODELS if name != "ours"]
    parser = Parser(prog="bench_train.py", description="Training speed beside other libraries.")
    add = parser.add_argument
    add("--size", nargs="+", choices=SIZES, default=["small"], help="default: small")
    what = "default: float32; tf32 differs from it only on a GPU"
    add("--precision", nargs="+", choices=DTYPES, default=["float32"], help=what)
    what = "default: all; with none named, only ours"
    add("--peers", nargs="*", choices=peers, default=peers, help=what)
    add("--schemes", metavar="all|NAME,...", help="also compare position schemes")
    what = "also compare our bfloat16 with float32, at these d_model"
    add("--widths", nargs="+", type=positive, metavar="N", help=what)
    add("--memory", action="store_true", help="also peak memory, each model in its own process")
    sizes = ", ".join(f"{size.batch_tokens} for {name}" for name, size in SIZES.items())
    what = f"default: {sizes}"
    add("--batch_tokens", type=positive, metavar="N", help=what)
    add("--steps", type=positive, default=4, metavar="N", help="updates in a round (default: 4)")
    what = "use torch.compile for all models; give --warmup 5, since the first steps compile"
    add("--compile", action="store_true", help=what)
    common.add_arguments(parser, "bench_train", rounds=7, draws=True)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    wanted = ",".join(POSITIONS) if args.schemes == "all" else args.schemes
    schemes = chosen(wanted, POSITIONS, "position scheme") if wanted else []
    device = common.use_machine(args)
    for width in args.widths or ():
        ModelConfig(**dataclasses.replace(SIZES[args.size[0]], d_model=width).shape())  # or refused
    if args.widths and not computes_bf16(device):
        raise UserError(f"--widths: this {device.type} does not compute in bfloat16")
    report = Report("bench_train", "Training speed", args, device)
    names = ["ours", *dict.fromkeys(args.peers)]
    same = {key: getattr(args, key) for key in ("rounds", "warmup", "steps", "seed", "compile")}
    same["threads"] = torch.get_num_threads()
    for precision in dict.fromkeys(args.precision):
        common.use_precision(precision)
        rates = matrix_rate(DTYPES[precision], device)
        for name in dict.fromkeys(args.size):
            size = SIZES[name]
            if args.batch_tokens:
                size = dataclasses.replace(size, batch_tokens=args.batch_tokens)
            comparison = Comparison(Setup(size, device, precision, **same), rates)
            heading = f"{name}, {precision}"
            measured = compare_models(report, comparison, names, heading)
            if args.memory:
                compare_memory(report, comparison.setup, measured, f"{heading}: memory")
            if schemes:
                compare_schemes(report, comparison, schemes, f"{heading}: position schemes")
    if args.widths:
        compare_precisions(report, Setup(SIZES[args.size[0]], device, **same), args.widths)


if __name__ == "__main__":
    run_main(main)
