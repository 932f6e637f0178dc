"""How the cost of training and of greedy decoding grows: `python benchmarks/bench_scaling.py`.

Along four axes: tokens in a sentence, sentences in a batch, CPU threads, entries of the vocabulary.
For each a table and the growth: the exponent b of cost = a x^b, by least squares on the logarithms,
over all points and over the upper half of the range (on a logarithmic scale), where what does not
grow matters least. --fast takes half a minute.

"train" is one update of training/engine.py on a batch of random ids without padding, source and
target of equal length; "decode" is greedy search in float32 over a batch of such sources, made to
give as many tokens as the source has. Written into --output_dir: bench_scaling.md,
bench_scaling.json, bench_scaling.png.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if not __package__:  # run as a file: imports begin at the root of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common
from benchmarks.common import DTYPES, NOTHING, Report, figure, in_turn, spread, table
from benchmarks.train_models import Ours
from benchmarks.train_setup import BOS, EOS, PAD, SIZES, Setup
from configs.positions import POSITIONS, Position
from data.batching import Batch, collate
from data.cache import TokenizedSplit
from models.decoding.hypothesis import Limits
from models.decoding.stepwise import greedy_search
from pictures.panels import Curve, curve_panels, save_figure
from utils.cli import Parser, positive, run_main
from utils.errors import UserError
from utils.tables import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {"train": "training step", "decode": "greedy decoding"}


@dataclass(frozen=True, slots=True)
class Axis:
    """What is varied, the flag that sets its values, and those without it: all and with --fast."""

    words: str
    flag: str
    values: tuple[int, ...]
    fast: tuple[int, ...]


def cores() -> int:
    """That this process may use; not every system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_counts(cores: int) -> tuple[int, ...]:
    """1, 2, 4 and so on, and the cores."""
    return tuple(sorted({*(2**i for i in range(cores.bit_length())), cores}))


THREADS = thread_counts(cores())
AXES = {
    "length": Axis("tokens in a sentence", "lengths", (32, 64, 128, 256, 512, 1024), (32, 64, 128)),
    "sentences": Axis("sentences", "sentences", (1, 2, 4, 8, 16, 32, 64, 128), (1, 4, 16)),
    "threads": Axis("threads", "thread_counts", THREADS, THREADS),
    "vocabulary": Axis(
        "vocabulary",
        "vocabularies",
        (2_000, 4_000, 8_000, 16_000, 32_000, 64_000),
        (2_000, 8_000, 32_000),
    ),
}
SENTENCES_BY_LENGTH = 8  # of a batch whose sentences may have 1,024 tokens
READING = "1 is growth in proportion; by threads, -1 is as fast as so many threads can be."


@dataclass(frozen=True, slots=True)
class Point:
    """What a cost is measured at."""

    length: int = 32
    sentences: int = 32
    threads: int = 1
    vocabulary: int = 8_000


def several(text: str) -> tuple[int, ...]:
    """ "32,64" -> (32, 64), increasing."""
    return tuple(sorted({positive(part) for part in text.split(",")}))


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = Parser(description="Measure how the cost of training and decoding grows.")
    add = parser.add_argument
    add("--fast", action="store_true", help="fewer values and rounds: half a minute")
    add("--size", choices=SIZES, default="small", help="of the model (default: small)")
    what = "default: %(default)s"
    add("--position", choices=POSITIONS, metavar="NAME", default="sinusoidal", help=what)
    what = "of training (default: float32)"
    add("--precision", choices=DTYPES, default="float32", help=what)
    for axis in AXES.values():
        add(f"--{axis.flag}", type=several, metavar="N,...", help=axis.words)
    common.add_arguments(parser, "bench_scaling", rounds=5)
    args = parser.parse_args(argv)
    if args.vocabularies and args.vocabularies[0] < EOS + 2:
        least = f"at least {EOS + 2}, for the special ids and a word"
        raise UserError(f"--vocabularies {args.vocabularies[0]}: {least}")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    device = common.use_machine(args.device, args.threads)
    report = Report("bench_scaling", "Growth of cost", args, device)
    setup = Setup(SIZES[args.size], device, args.precision, torch.get_num_threads())
    bench = Bench(setup, POSITIONS[args.position])
    rounds = 2 if args.fast else args.rounds
    measured = {}
    for axis, at in chosen_points(args, setup).items():
        measured[axis] = {kind: costs(bench, kind, axis, at, rounds) for kind in KINDS}
        body = axis_markdown(axis, at[0], measured[axis])
        report.add(AXES[axis].words.capitalize(), body, {"axis": axis, **measured[axis]})
    drawn = draw(measured, title=f"Growth of cost: {args.size}, {args.position}")
    picture = save_figure(drawn, args.output_dir / "bench_scaling.png")
    body = f"{growth_table(measured)}\n{READING} Drawn in {picture.name}.\n"
    report.add("All growths", body, {"picture": picture.name})


def chosen_points(args: Namespace, setup: Setup) -> dict[str, list[Point]]:
    """The points of each axis. A GPU does not care for CPU threads: there this axis is left out."""
    base = Point(threads=setup.threads, vocabulary=setup.size.vocab_size)
    points = {}
    for name, axis in AXES.items():
        if name == "threads" and setup.device.type != "cpu":
            continue
        fixed = {"sentences": SENTENCES_BY_LENGTH} if name == "length" else {}
        chosen = getattr(args, axis.flag) or (axis.fast if args.fast else axis.values)
        points[name] = [dataclasses.replace(base, **{**fixed, name: value}) for value in chosen]
    return points


# ---------------------------------------------------------------------------------------- measuring


@dataclass(slots=True)
class Bench:
    """Our model, one for each vocabulary, and what is done with it at a point."""

    setup: Setup
    position: Position

    def model(self, vocabulary: int) -> Ours:
        size = dataclasses.replace(self.setup.size, vocab_size=vocabulary)
        return Ours(dataclasses.replace(self.setup, size=size), position=self.position)

    def runs(self, kind: str, at: Sequence[Point]) -> dict[str, Callable[[int], object]]:
        """What to time at each point, by a name. Points of one vocabulary share a model."""
        make = cache(self.model)
        prepare = self.train if kind == "train" else self.decode
        return {
            str(point): partial(self._run, point.threads, prepare(make(point.vocabulary), point))
            for point in at
        }

    def _run(self, threads: int, run: Callable[[], object], number: int) -> None:
        torch.set_num_threads(threads)
        try:
            run()
        finally:
            torch.set_num_threads(self.setup.threads)

    def train(self, ours: Ours, point: Point) -> Callable[[], object]:
        return partial(ours.train, [random_batch(point)])

    def decode(self, ours: Ours, point: Point) -> Callable[[], object]:
        model = ours.learner.model.eval()
        with torch.no_grad():
            # The end then has the logit 0, and among thousands of others it never is the highest.
            model.output.weight[EOS] = 0
        src = random_batch(point).src.to(self.setup.device)
        limits = Limits(bos_id=BOS, eos_id=EOS, max_len=point.length, max_len_ratio=1.0)

        def run() -> None:
            if any(len(best.ids) != point.length for [best] in greedy_search(model, src, limits)):
                raise RuntimeError(f"a translation ended before {point.length} tokens")

        return run


def random_batch(point: Point) -> Batch:
    """Pairs of random ids, all of the point's length with the end: nothing is padded."""
    shape = (2, point.sentences, point.length)
    ids = np.random.default_rng(0).integers(EOS + 1, point.vocabulary, shape, np.int32)
    ids[:, :, -1] = EOS
    offsets = np.arange(point.sentences + 1) * point.length
    src, tgt = ids.reshape(2, -1)
    rows = np.arange(point.sentences)
    split = TokenizedSplit(src, offsets, tgt, offsets, kept=rows, n_skipped={})
    return collate(split, rows.tolist(), pad_id=PAD, bos_id=BOS)


def costs(bench: Bench, kind: str, axis: str, at: Sequence[Point], rounds: int) -> dict[str, Any]:
    """Seconds at every point in every round, and how their median grows along the axis."""
    seconds = in_turn(bench.runs(kind, at), rounds=rounds, device=bench.setup.device)
    rows: list[dict[str, Any]] = []
    for point, taken in zip(at, seconds.values()):
        ms = spread([1e3 * s for s in taken])
        per_token = 1e3 * ms.median / (point.sentences * point.length)
        rows.append({"at": point, "seconds": taken, "ms": ms, "us_per_token": per_token})
    xs = [getattr(point, axis) for point in at]
    ys = [row["ms"].median / 1e3 for row in rows]
    return {"rows": rows, "growth": fit(xs, ys), "upper_half": fit(*upper_half(xs, ys))}


# --------------------------------------------------------------------------------------- the growth


@dataclass(frozen=True, slots=True)
class Growth:
    """cost = factor * x ** exponent."""

    factor: float
    exponent: float

    def __call__(self, x: float) -> float:
        return self.factor * x**self.exponent


def fit(xs: Sequence[float], ys: Sequence[float]) -> Growth | None:
    """The line through (log x, log y) by least squares; None for less than two different x."""
    if len(set(xs)) < 2:
        return None
    exponent, offset = np.polyfit(np.log(xs), np.log(ys), 1)
    return Growth(factor=float(np.exp(offset)), exponent=float(exponent))


def upper_half(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    """The points at and above the geometric middle of the range of x."""
    middle = (min(xs) * max(xs)) ** 0.5
    kept = [(x, y) for x, y in zip(xs, ys, strict=True) if x >= middle * (1 - 1e-9)]
    return [x for x, _ in kept], [y for _, y in kept]


# ------------------------------------------------------------------------------- tables and picture

FITS = {"growth": "all points", "upper_half": "upper half"}
Measured = Mapping[str, Mapping[str, Mapping[str, Any]]]  # by axis, by kind: what `costs` gives


def exponent(growth: Growth | None) -> str:
    return NOTHING if growth is None else f"{growth.exponent:.2f}"


def axis_markdown(axis: str, base: Point, measured: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of one axis, with what was held fixed above it and the growth below."""
    columns = {AXES[axis].words: f"{{train[at].{axis}:,}}"}
    for kind in measured:
        columns[f"{kind}, ms"] = f"{{{kind}[ms]}}"
        columns[f"{kind}, µs a target token"] = f"{{{kind}[us_per_token]:,.1f}}"
    rows = [dict(zip(measured, row)) for row in zip(*(m["rows"] for m in measured.values()))]
    others = [(AXES[name].words, getattr(base, name)) for name in AXES if name != axis]
    fixed = ", ".join(f"{words} {value:,}" for words, value in others)
    growths = "; ".join(
        f"{KINDS[kind]} {exponent(found['growth'])} (upper half {exponent(found['upper_half'])})"
        for kind, found in measured.items()
    )
    return (
        f"Fixed: {fixed}. Medians, quartiles in brackets.\n\n{table(rows, columns)}\n"
        f"Exponents: {growths}.\n"
    )


def growth_table(measured: Measured) -> str:
    rows = [
        [AXES[axis].words, *(exponent(m[part]) for m in kinds.values() for part in FITS)]
        for axis, kinds in measured.items()
    ]
    header = [part for name in KINDS.values() for part in (name, "upper half")]
    return markdown_table(("exponent of cost by", *header), rows)


def draw(measured: Measured, *, title: str) -> Figure:
    """A panel for each kind and axis: medians with quartiles, and the two fits."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    panels, ticks = {}, []
    for (kind, name), (axis, kinds) in itertools.product(KINDS.items(), measured.items()):
        found = kinds[kind]
        xs = [getattr(row["at"], axis) for row in found["rows"]]
        median, low, high = zip(*(dataclasses.astuple(row["ms"]) for row in found["rows"]))
        lines = {"median": Curve(xs, median, low, high)}
        for (part, words), among in zip(FITS.items(), (xs, upper_half(xs, xs)[0])):
            if found[part] is not None:
                lines[f"fit, {words}"] = Curve(among, [1e3 * found[part](x) for x in among])
        exponents = ", ".join(exponent(found[part]) for part in FITS)
        panels[f"{name} by {AXES[axis].words}: {exponents}"] = lines
        ticks.append(xs)
    picture = curve_panels(
        panels,
        title=f"{title}; exponents of all points, of the upper half",
        x_label="",
        y_label="milliseconds",
        columns=len(measured),
        size=(3.4, 2.6),
    )
    for place, xs in zip(picture.axes, ticks):
        place.set(xscale="log", yscale="log")
        place.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        place.yaxis.set_major_formatter(FuncFormatter(lambda y, _: figure(y)))
        place.set_xticks(xs, [f"{x:,}" for x in xs], rotation=45, fontsize=8)
        place.minorticks_off()
    return picture


if __name__ == "__main__":
    run_main(main)
