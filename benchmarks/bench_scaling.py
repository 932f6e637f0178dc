"""How the cost of training and of greedy decoding grows: `python benchmarks/bench_scaling.py`.

Each axis has a table and the growth: the exponent b of cost = a x^b, by least squares on the
logarithms, over all points and over the upper half of the range (on a logarithmic scale), where
constant costs matter least. "train" is one update of training/engine.py on random ids without
padding, source and target of equal length. "decode" is greedy search in float32 over such sources,
made to give as many tokens as the source has. Written into --output_dir: bench_scaling.md, .json
and .png.
"""

from __future__ import annotations

import itertools
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if not __package__:  # run as a file: imports begin at the root of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common
from benchmarks.common import BOS, DTYPES, EOS, SIZES, Report, figure, in_turn, spread, table
from benchmarks.train_models import Ours, Setup
from configs.position_names import POSITIONS
from data.batching import Batch
from models.decoding.hypothesis import Limits
from models.decoding.stepwise import greedy_search
from pictures.panels import Curve, curve_panels, save_figure
from utils.cli import Parser, cores, positive, run_main, threads
from utils.errors import UserError
from utils.machine import computing_with
from utils.tables import markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {"train": "training step", "decode": "greedy decoding"}
DOUBLED = [2**i for i in range(17)]
AXES = {  # by axis: its name in words, the flag for its values, and their defaults
    "length": ("tokens in a sentence", "lengths", DOUBLED[5:11]),
    "sentences": ("sentences", "sentences", DOUBLED[:8]),
    "threads": ("threads", "thread_counts", [n for n in DOUBLED if n < cores()] + [cores()]),
    "vocabulary": ("vocabulary", "vocabularies", [1000 * n for n in DOUBLED[1:7]]),
}
SENTENCES_BY_LENGTH = 8  # of a batch whose sentences may have 1,024 tokens
READING = "1 is growth in proportion; by threads, -1 is a speed in proportion to their number."
Costs = Mapping[str, Mapping[str, Any]]  # by kind: the result of `costs`


@dataclass(frozen=True, slots=True)
class Point:
    """The sizes at which a cost is measured."""

    length: int = 32
    sentences: int = 32
    threads: int = 1
    vocabulary: int = 8_000


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = Parser(description="Measure how the cost of training and decoding grows.")
    add = parser.add_argument
    add("--size", choices=SIZES, default="small", help="model size (default: small)")
    what = "default: %(default)s"
    add("--position", choices=POSITIONS, metavar="NAME", default="sinusoidal", help=what)
    what = "precision of training (default: float32)"
    add("--precision", choices=DTYPES, default="float32", help=what)
    for words, flag, default in AXES.values():
        what = f"{words} (default: {' '.join(map(str, default))})"
        read = threads if flag == "thread_counts" else positive
        add(f"--{flag}", type=read, nargs="+", default=default, metavar="N", help=what)
    common.add_arguments(parser, "bench_scaling", rounds=5)
    args = parser.parse_args(argv)
    if (fewest := min(args.vocabularies)) < EOS + 2:
        least = f"at least {EOS + 2}, for the special ids and a word"
        raise UserError(f"--vocabularies {fewest}: {least}")
    bound = POSITIONS[args.position].bound("source")
    if bound is not None and max(args.lengths) > bound.length:
        least = f"the {args.position} encoding has {bound.length} positions"
        raise UserError(f"{least}: give no larger --lengths")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    device = common.use_machine(args)
    common.use_precision(args.precision)
    report = Report("bench_scaling", "Growth of cost", args, device)
    setup = Setup(SIZES[args.size], device, args.precision, torch.get_num_threads(), args.rounds)
    measured = {}
    for axis, at in chosen_points(args, setup).items():
        measured[axis] = {
            kind: costs(runs(kind, at, setup, args.position), at, axis, setup) for kind in KINDS
        }
        body = axis_markdown(axis, at[0], measured[axis])
        report.add(AXES[axis][0].capitalize(), body, {"axis": axis, **measured[axis]})
    title = f"Growth of cost: {args.size}, {args.position}; exponents of all points (upper half)"
    picture = save_figure(draw(measured, title), args.output_dir / "bench_scaling.png")
    rows = [[AXES[axis][0], *map(exponents, kinds.values())] for axis, kinds in measured.items()]
    header = [f"{name} (upper half)" for name in KINDS.values()]
    growths = markdown_table(("exponent of cost by", *header), rows)
    body = f"{growths}\n{READING} Drawn in {picture.name}.\n"
    report.add("All growths", body, {"picture": picture.name})


def chosen_points(args: Namespace, setup: Setup) -> dict[str, list[Point]]:
    """The points of each axis. On a GPU, CPU threads do not matter, and this axis is left out."""
    base = Point(threads=setup.threads, vocabulary=setup.size.vocab_size)
    points = {}
    for axis, (_, flag, _) in AXES.items():
        fixed = {"sentences": SENTENCES_BY_LENGTH} if axis == "length" else {}
        values = sorted(set(getattr(args, flag)))
        points[axis] = [replace(base, **{**fixed, axis: value}) for value in values]
    if setup.device.type != "cpu":
        del points["threads"]
    return points


def runs(
    kind: str, at: Sequence[Point], setup: Setup, position: str
) -> dict[str, Callable[[int], None]]:
    """The functions to time at each point, by name. Points of one vocabulary share a model."""

    @cache
    def model(vocabulary: int) -> Ours:
        size = replace(setup.size, vocab_size=vocabulary)
        return Ours(replace(setup, size=size), position=POSITIONS[position])

    def run(work: Callable[[], None], threads: int, number: int) -> None:
        with computing_with(threads):
            work()

    prepare = training if kind == "train" else decoding
    return {str(p): partial(run, prepare(model(p.vocabulary), p), p.threads) for p in at}


def training(ours: Ours, point: Point) -> Callable[[], None]:
    return partial(ours.train, [random_batch(point)])


def decoding(ours: Ours, point: Point) -> Callable[[], None]:
    model = ours.model.eval()
    with torch.no_grad():
        # EOS then has the logit 0, which among thousands of others is never the highest.
        model.output.weight[EOS] = 0
    src = random_batch(point).src.to(model.output.weight.device)
    limits = Limits(bos_id=BOS, eos_id=EOS, max_len=point.length, max_len_ratio=1.0)

    def run() -> None:
        if any(len(best.ids) != point.length for [best] in greedy_search(model, src, limits)):
            raise RuntimeError(f"a translation ended before {point.length} tokens")

    return run


def random_batch(point: Point) -> Batch:
    """Pairs of random ids, all of the point's length with EOS: nothing is padded."""
    shape = (2, point.sentences, point.length)
    src, tgt = torch.from_numpy(np.random.default_rng(0).integers(EOS + 1, point.vocabulary, shape))
    src[:, -1] = tgt[:, -1] = EOS
    tgt_in = tgt.roll(1, dims=1)
    tgt_in[:, 0] = BOS
    return Batch(src, tgt_in, tgt, torch.arange(len(src)), torch.arange(tgt.numel()))


def costs(
    runs: Mapping[str, Callable[[int], None]], at: Sequence[Point], axis: str, setup: Setup
) -> dict[str, Any]:
    """Seconds at every point in every round, and how their median grows along the axis."""
    rows: list[dict[str, Any]] = []
    taken = in_turn(runs, rounds=setup.rounds, device=setup.device)
    for point, seconds in zip(at, taken.values()):
        ms = spread([1e3 * s for s in seconds])
        per_token = 1e3 * ms.median / (point.sentences * point.length)
        rows.append({"at": point, "seconds": seconds, "ms": ms, "us_per_token": per_token})
    xs = np.array([getattr(point, axis) for point in at])
    ys = np.array([row["ms"].median / 1e3 for row in rows])
    upper = upper_half(xs)
    return {"rows": rows, "growth": fit(xs, ys), "upper_half": fit(xs[upper], ys[upper])}


def fit(xs: np.ndarray, ys: np.ndarray) -> dict[str, float] | None:
    """y = factor * x ** exponent, by least squares on the logarithms; None for fewer than two x."""
    if len(set(xs)) < 2:
        return None
    exponent, offset = np.polyfit(np.log(xs), np.log(ys), 1)
    return {"factor": float(np.exp(offset)), "exponent": float(exponent)}


def upper_half(xs: np.ndarray) -> np.ndarray:
    """Which points are at or above the geometric middle of the range."""
    return xs >= (xs.min() * xs.max()) ** 0.5 * (1 - 1e-9)


def exponents(found: Mapping[str, Any]) -> str:
    """The exponent over all points, and in brackets over the upper half."""
    both = (found["growth"], found["upper_half"])
    return "{} ({})".format(*("–" if fit is None else f"{fit['exponent']:.2f}" for fit in both))


def axis_markdown(axis: str, base: Point, measured: Costs) -> str:
    """The table of one axis, with the fixed sizes above it."""
    columns = {AXES[axis][0]: f"{{train[at].{axis}:,}}"}
    for kind in measured:
        columns[f"{kind}, ms"] = f"{{{kind}[ms]}}"
        columns[f"{kind}, µs a target token"] = f"{{{kind}[us_per_token]:,.1f}}"
    rows = [dict(zip(measured, row)) for row in zip(*(m["rows"] for m in measured.values()))]
    others = ((AXES[name][0], getattr(base, name)) for name in AXES if name != axis)
    fixed = ", ".join(f"{words} {value:,}" for words, value in others)
    return f"Fixed: {fixed}. Medians, quartiles in brackets.\n\n{table(rows, columns)}"


def draw(measured: Mapping[str, Costs], title: str) -> Figure:
    """A panel for each kind and axis: medians with quartiles, and the fit over all points."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    panels, ticks = {}, []
    for (kind, name), (axis, kinds) in itertools.product(KINDS.items(), measured.items()):
        found = kinds[kind]
        xs = [getattr(row["at"], axis) for row in found["rows"]]
        median, low, high = zip(*(astuple(row["ms"]) for row in found["rows"]))
        lines = {"median": Curve(xs, median, low, high)}
        if (growth := found["growth"]) is not None:
            at = np.geomspace(min(xs), max(xs), 30)
            lines["fit"] = Curve(at, 1e3 * growth["factor"] * at ** growth["exponent"])
        panels[f"{name} by {AXES[axis][0]}: {exponents(found)}"] = lines
        ticks.append(xs)
    picture = curve_panels(
        panels,
        title=title,
        y_label="milliseconds (shaded: quartiles)",
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
