"""The copy task over position schemes: `python experiments/copy_task.py`.

What stands before a mark is to be repeated after it: `7 2 4 <copy> _ _ _ _ _ _` -> `7 2 4 <copy> 7
2 4 _ _ _`. A small encoder reads a row of fixed length and names all its tokens at once. The number
n of symbols varies, and each blank must find the token n + 1 places before it: this cannot be done
without positions. Every scheme is trained with several seeds, and tested on fresh rows of the
trained length and on longer ones.

Schemes that serve causal attention alone (xpos, cope, fox) are left out: an encoder would have
their partner instead.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if (
    not __package__
):  # run as a file: the root of the repository is where imports begin, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.positions import (
    POSITIONS,
    Alibi,
    Combined,
    Cope,
    Deberta,
    DynamicNtkScaling,
    Fox,
    Learnable,
    NoPosition,
    Position,
    Randomized,
    Rope,
    Shaw,
    Sinusoidal,
    TransformerXl,
    XPos,
    YarnScaling,
)
from configs.schema import Cosine, ModelConfig
from configs.serialize import to_dict
from experiments.common import (
    ResultStore,
    mean_and_spread,
    mean_plus_minus,
    provenance_line,
    seed_bars,
)
from models.build import build_scheme
from models.masks import as_bias, causal_attn_mask
from models.positional_encodings.base import (
    AttentionPosition,
    AttentionScheme,
    Places,
    PositionScheme,
)
from models.transformer_backend import Encoder, LayerShape
from pictures.panels import panel_figure, save_figure
from training.schedules import lr_factor
from utils.cli import Parser, positive, run_main
from utils.errors import UserError
from utils.files import write_text
from utils.tables import markdown_table, write_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# raise it when the code below computes something else from the same settings: stored results are
# then stale
VERSION = 1


# ----------------------------------------------------------------------------------------- the task


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Sizes of the task, of the model and of its training."""

    length: int = 10  # tokens of a row, in training
    test_lengths: tuple[int, ...] = (10, 11, 12, 14, 16, 20)
    n_symbols: int = 10
    n_test: int = 2000  # rows of each test length
    d_model: int = 32
    n_layers: int = 2
    d_ff: int = 64
    steps: int = 2000
    batch_size: int = 64
    lr: float = 3e-3  # after a tenth of the steps; from there half a cosine down to 0

    @property
    def mark(self) -> int:
        """The id of <copy>, after the symbols 0 .. n_symbols-1."""
        return self.n_symbols

    @property
    def blank(self) -> int:
        return self.n_symbols + 1


def make_rows(n: int, length: int, task: Task, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """n rows of `length` tokens and what they should become, [n,length] each.

    A row has 1 to length-3 random symbols, the mark, and blanks (two or more) to the end. In its
    target the symbols are repeated after the mark, as far as there is room; what is left stays
    blank.
    """
    n_symbols = torch.randint(1, length - 2, (n, 1), generator=generator)
    place = torch.arange(length)
    rows = torch.randint(task.n_symbols, (n, length), generator=generator)
    rows = torch.where(place < n_symbols, rows, task.blank)
    rows = torch.where(place == n_symbols, task.mark, rows)
    origin = place - n_symbols - 1  # of the token that is repeated here
    copied = rows.gather(1, origin.clamp(min=0))
    return rows, torch.where((origin >= 0) & (origin < n_symbols), copied, rows)


def accuracies(predicted: Tensor, rows: Tensor, targets: Tensor, task: Task) -> tuple[float, float]:
    """(exact, token): the share of rows that are right in every place, and of repeated symbols that
    are right.

    What is there to be read off (the symbols, the mark) and what stays blank counts for the first
    alone.
    """
    right = predicted == targets
    repeated = (rows == task.blank) & (targets != task.blank)
    return right.all(dim=1).double().mean().item(), right[repeated].double().mean().item()


# -------------------------------------------------------------------------------------- the schemes


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A position scheme in a model of n_heads. causal: the encoder sees no later token.

    slopes takes the place of the scheme: a bias -slope |i - j| for each head, ALiBi's with slopes of one's own.
    """

    position: Position
    n_heads: int = 4
    slopes: tuple[float, ...] | None = None
    causal: bool = False

    def settings(self, task: Task) -> dict[str, Any]:
        """What decides the outcome, as JSON can hold it."""
        position = to_dict(fit_to_task(self.position, task))
        return {
            "position": position,
            "n_heads": self.n_heads,
            "slopes": self.slopes,
            "causal": self.causal,
        }


# xPos, CoPE and FoX have another scheme in the encoder, which stands here under its own name.
SCHEMES = {
    name: Variant(position=position)
    for name, position in POSITIONS.items()
    if not isinstance(position, (XPos, Cope, Fox))
}
# Is it the number of heads, their slopes, the symmetry, or the causal mask that makes ALiBi fail or
# succeed here?
ALIBI_VARIANTS = {
    "alibi_1_head": Variant(position=Alibi(), n_heads=1),
    "alibi_2_heads": Variant(position=Alibi(), n_heads=2),
    "alibi": SCHEMES["alibi"],
    "alibi_8_heads": Variant(position=Alibi(), n_heads=8),
    "alibi_1_head_slope_half": Variant(position=Alibi(), n_heads=1, slopes=(0.5,)),
    "alibi_asymmetric": SCHEMES["alibi_asymmetric"],
    "alibi_causal": Variant(position=Alibi(), causal=True),
    "none_causal": Variant(position=NoPosition(), causal=True),
    "rope_1_head": Variant(position=Rope(), n_heads=1),
}
VARIANTS = {**SCHEMES, **ALIBI_VARIANTS}
FAST_SCHEMES = ("none", "sinusoidal", "learnable", "rope", "alibi", "t5", "alibi_1_head")
FAST_TASK = Task(steps=500)


def fit_to_task(position: Position, task: Task) -> Position:
    """The scheme with its lengths set to those of the task, where it has any."""
    match position:
        case Learnable():
            return dataclasses.replace(position, max_positions=task.length)
        case Rope(scaling=DynamicNtkScaling() | YarnScaling() as scaling):
            return dataclasses.replace(
                position, scaling=dataclasses.replace(scaling, trained_length=task.length)
            )
        case Combined(input=Learnable() as rows):
            return dataclasses.replace(
                position, input=dataclasses.replace(rows, max_positions=task.length)
            )
        case Randomized():
            longest = max(task.test_lengths)
            return dataclasses.replace(position, spread=2 * longest, max_positions=longest)
    return position


def family(variant: Variant) -> str:
    """The heading under which a variant's curve is drawn."""
    if variant not in SCHEMES.values():
        return "ALiBi and its controls"
    match variant.position:
        case NoPosition() | Sinusoidal() | Learnable():
            return "none, added to the embeddings"
        case Rope():
            return "rotation"
        case Shaw() | TransformerXl() | Deberta():
            return "relative terms with content"
        case Combined() | Randomized():
            return "combined, randomized"
    return "bias by distance"


class FixedSlopes(AttentionPosition):
    """-slope |i - j|, a slope for each head."""

    def __init__(self, slopes: Sequence[float]) -> None:
        super().__init__()
        self.slopes = tuple(slopes)

    def bias(self, places: Places) -> Tensor:
        return -torch.tensor(self.slopes)[:, None, None] * places.distance.abs()


class Causal(AttentionPosition):
    """A causal mask over `inner`, a scheme that acts through its bias alone."""

    def __init__(self, inner: AttentionPosition) -> None:
        super().__init__()
        self.inner = inner

    def bias(self, places: Places) -> Tensor:
        mask = as_bias(causal_attn_mask(places.q_positions, places.k_positions), torch.float32)
        inner = self.inner.bias(places)
        return mask if inner is None else inner + mask


def variant_scheme(variant: Variant, task: Task) -> PositionScheme:
    """The scheme's modules for the task's model. Raises ConfigError where it does not fit the
    model's shape.
    """
    if variant.slopes is not None:
        scheme: PositionScheme = AttentionScheme(encoder=[FixedSlopes(variant.slopes)])
    else:
        scheme = build_scheme(
            ModelConfig(
                position=fit_to_task(variant.position, task),
                d_model=task.d_model,
                n_heads=variant.n_heads,
                n_encoder_layers=task.n_layers,
                n_decoder_layers=task.n_layers,
            )
        )
    if variant.causal:
        scheme = AttentionScheme(encoder=[Causal(scheme.attention("encoder", 0))])
    return scheme


class Copier(nn.Module):
    """Embedding, the project's encoder, and a projection to the vocabulary."""

    def __init__(self, variant: Variant, task: Task) -> None:
        super().__init__()
        self.embedding = nn.Embedding(task.n_symbols + 2, task.d_model)
        nn.init.normal_(self.embedding.weight, std=task.d_model**-0.5)
        shape = LayerShape(
            d_model=task.d_model,
            n_heads=variant.n_heads,
            d_ff=task.d_ff,
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            activation="relu",
            norm="pre",
            bias=True,
        )
        self.encoder = Encoder(shape, n_layers=task.n_layers)
        self.out = nn.Linear(task.d_model, task.n_symbols + 2)
        # Last, so that all schemes of a seed start from the same weights elsewhere.
        self.scheme = variant_scheme(variant, task)

    def forward(self, rows: Tensor) -> Tensor:
        """rows [B,T] -> logits [B,T,V]. A blank is a token like any other: there is something to
        say in its place.
        """
        positions = self.scheme.positions("source", 0, rows.shape[1], rows.device)
        x = self.embedding(rows) * math.sqrt(self.embedding.embedding_dim)
        x = self.scheme.input("source")(x, positions)
        no_padding = torch.zeros_like(rows, dtype=torch.bool)
        return self.out(
            self.encoder(x, scheme=self.scheme, positions=positions, padding=no_padding)
        )

    def n_position_parameters(self) -> int:
        """Trained numbers that the scheme adds to the encoder."""
        modules: list[nn.Module] = [self.scheme.input("source")]
        modules += [
            self.scheme.attention("encoder", layer) for layer in range(len(self.encoder.layers))
        ]
        return sum(p.numel() for p in {p for module in modules for p in module.parameters()})


# -------------------------------------------------------------------------------------------- a run


def train_and_test(variant: Variant, seed: int, task: Task) -> dict[str, Any]:
    """Accuracies by test length, the scheme's parameters and the seconds of CPU time taken.

    The seed decides the weights and the training rows; the test rows are the same for all. A test
    length that the scheme cannot place (beyond a table of positions) is absent.
    """
    start = time.process_time()
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Copier(variant, task)
    optimizer = torch.optim.Adam(model.parameters(), lr=task.lr, fused=True)
    schedule = Cosine(lr=task.lr, warmup_steps=math.ceil(task.steps / 10))
    factor = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lr_factor(schedule, total_steps=task.steps)
    )
    for _ in range(task.steps):
        rows, targets = make_rows(task.batch_size, task.length, task, generator)
        loss = F.cross_entropy(model(rows).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        factor.step()

    model.eval()
    limit = model.scheme.max_length("source")
    exact, token = {}, {}
    for length in task.test_lengths:
        if limit is None or length <= limit:
            rows, targets = make_rows(
                task.n_test, length, task, torch.Generator().manual_seed(length)
            )
            with torch.inference_mode():
                predicted = model(rows).argmax(dim=-1)
            exact[str(length)], token[str(length)] = accuracies(predicted, rows, targets, task)
    return {
        "seed": seed,
        "exact": exact,
        "token": token,
        "position_parameters": model.n_position_parameters(),
        "seconds": round(time.process_time() - start, 1),
    }


def run_all(
    names: Sequence[str], seeds: Sequence[int], task: Task, folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """The results of every scheme, one for each seed; runs that are done are read. Says what it
    does, line by line.
    """
    store = ResultStore(folder)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    n_runs = len(names) * len(seeds)
    for seed in seeds:  # seed by seed, so that an interrupted experiment has all schemes
        for name in names:
            variant = VARIANTS[name]
            settings = {
                "version": VERSION,
                "task": dataclasses.asdict(task),
                **variant.settings(task),
                "seed": seed,
            }
            label = f"{name}_seed{seed}"
            known = store.find(label, settings) is not None
            result = store.find_or_run(
                label, settings, partial(train_and_test, variant, seed, task)
            )
            results[name].append(result)
            done = sum(map(len, results.values()))
            length = str(task.length)
            how = "done before" if known else f"{result['seconds']} s of CPU time"
            print(
                f"[{done}/{n_runs}] {name}, seed {seed}: exact {result['exact'][length]:.3f}, "
                f"symbols {result['token'][length]:.3f}, {how}",
                flush=True,
            )
    return results


# ------------------------------------------------------------------------------------------- report


def values(results: Iterable[Mapping[str, Any]], measure: str, length: int) -> list[float]:
    """A measure at a length, one value a seed; none where the scheme cannot place that length."""
    return [result[measure][str(length)] for result in results if str(length) in result[measure]]


def table(results: Mapping[str, Sequence[Mapping[str, Any]]], task: Task) -> str:
    """Markdown: accuracy at the trained length and beyond, mean and standard deviation over the
    seeds.
    """
    header = ["scheme", "heads", "position parameters"]
    columns = [(measure, length) for measure in ("exact", "token") for length in task.test_lengths]
    columns = [column for column in columns if column[1] in shown_lengths(task)]
    header += [
        f"{'rows' if measure == 'exact' else 'symbols'}, {length}" for measure, length in columns
    ]
    rows = [
        [name, VARIANTS[name].n_heads, f"{runs[0]['position_parameters']:,}"]
        + [mean_plus_minus(values(runs, measure, length)) for measure, length in columns]
        for name, runs in results.items()
    ]
    return markdown_table(header, rows)


def shown_lengths(task: Task) -> tuple[int, ...]:
    """The trained length, the next one tested, a middle one and the longest."""
    beyond = [length for length in task.test_lengths if length > task.length]
    return tuple(dict.fromkeys([task.length, beyond[0], beyond[len(beyond) // 2], beyond[-1]]))


def markdown(results: Mapping[str, Sequence[Mapping[str, Any]]], task: Task) -> str:
    runs = [result for of_scheme in results.values() for result in of_scheme]
    seeds = ", ".join(str(result["seed"]) for result in next(iter(results.values())))
    parts = [
        "# Copy task\n",
        f"Encoder of {task.n_layers} layers, d_model {task.d_model}, d_ff {task.d_ff}; rows of {task.length} tokens in "
        f"training, {task.n_symbols} symbols; {task.steps} steps of {task.batch_size} rows; {task.n_test} test rows; "
        f"seeds {seeds}.\n",
        "Rows: the share that is right in every place. Symbols: the share of repeated symbols that is right; that of "
        "the scheme none can be had without any position. Each is followed by the length of the test rows. Mean ± "
        "standard deviation over the seeds; –: the scheme has no position that far.\n",
    ]
    schemes = {name: of_scheme for name, of_scheme in results.items() if name in SCHEMES}
    alibi = alibi_part(results)
    if schemes:
        parts += ["## Schemes\n", table(schemes, task)]
    if alibi:
        parts += ["## ALiBi: heads, slopes, symmetry, causal mask\n", table(alibi, task)]
    parts.append(
        f"{sum(result['seconds'] for result in runs):.0f} s of CPU time in all; {provenance_line(runs)}.\n"
    )
    return "\n".join(parts)


def alibi_part(results: Mapping[str, Any]) -> dict[str, Any]:
    """The results of ALiBi's panel, in its order; none where nothing of it but plain schemes was
    run.
    """
    chosen = {name: results[name] for name in ALIBI_VARIANTS if name in results}
    return chosen if set(chosen) - set(SCHEMES) else {}


def accuracy_figure(results: Mapping[str, Sequence[Mapping[str, Any]]], task: Task) -> Figure:
    """Bars of the exact accuracy at the trained length: the mean, the spread, and each seed as a
    dot.
    """
    panels = {
        "schemes": {name: of_scheme for name, of_scheme in results.items() if name in SCHEMES},
        "ALiBi: heads, slopes, symmetry, causal mask": alibi_part(results),
    }
    return seed_bars(
        {
            title: {
                f"{name} (H={VARIANTS[name].n_heads})": values(runs, "exact", task.length)
                for name, runs in panel.items()
            }
            for title, panel in panels.items()
            if panel
        },
        title=f"Copy task: rows of {task.length} tokens that are right in every place",
        x_label="accuracy (bar: mean; line: standard deviation; dot: one seed)",
        limits=(0.0, 1.0),
    )


def length_figure(results: Mapping[str, Sequence[Mapping[str, Any]]], task: Task) -> Figure:
    """Accuracy by length, a column for each family: whole rows above, repeated symbols below."""
    families: dict[str, dict[str, Sequence[Mapping[str, Any]]]] = {}
    for name, runs in results.items():
        families.setdefault(family(VARIANTS[name]), {})[name] = runs
    measures = {"exact": "whole rows", "token": "repeated symbols"}
    figure, axes = panel_figure(
        len(measures),
        len(families),
        size=(3.4, 3.0),
        title=f"Copy task beyond the trained length of {task.length} tokens",
        x_label="tokens of a row",
        y_label="accuracy (mean; shaded: standard deviation)",
        sharex=True,
        sharey=True,
    )
    for row, (measure, measure_name) in zip(axes, measures.items()):
        for place, (title, runs_of) in zip(row, families.items()):
            place.set_title(f"{title}: {measure_name}", fontsize=8)
            place.axvline(task.length, color="0.6", linestyle=":", linewidth=1)
            for name, runs in runs_of.items():
                lengths = [length for length in task.test_lengths if values(runs, measure, length)]
                means, spreads = zip(
                    *(mean_and_spread(values(runs, measure, length)) for length in lengths)
                )
                [line] = place.plot(
                    lengths, means, marker="o", markersize=3, linewidth=1.4, label=name
                )
                low = [max(0.0, m - s) for m, s in zip(means, spreads)]
                high = [min(1.0, m + s) for m, s in zip(means, spreads)]
                place.fill_between(
                    lengths, low, high, color=line.get_color(), alpha=0.15, linewidth=0
                )
            place.set_ylim(-0.03, 1.03)
            place.grid(alpha=0.3)
    for place in axes[0]:
        place.legend(fontsize=7, frameon=False)
    return figure


def write_report(
    results: Mapping[str, Sequence[Mapping[str, Any]]], task: Task, folder: Path
) -> list[Path]:
    """The table, every number as CSV, and the two pictures."""
    lines = [
        [name, VARIANTS[name].n_heads, result["seed"], length, exact, result["token"][length]]
        for name, of_scheme in results.items()
        for result in of_scheme
        for length, exact in result["exact"].items()
    ]
    return [
        write_text(folder / "copy_task.md", markdown(results, task)),
        write_csv(
            folder / "copy_task.csv", ["scheme", "heads", "seed", "length", "exact", "token"], lines
        ),
        save_figure(accuracy_figure(results, task), folder / "copy_task_accuracy.png"),
        save_figure(length_figure(results, task), folder / "copy_task_lengths.png"),
    ]


# ------------------------------------------------------------------------------------- command line


def scheme_names(text: str) -> list[str]:
    """ "rope,t5" -> the names, each once. Raises UserError for one that is not known or not for an
    encoder.
    """
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name in VARIANTS:
            continue
        if name in POSITIONS:
            raise UserError(
                f"--schemes {name}: serves causal attention alone, and this task has an encoder only"
            )
        raise UserError(f"--schemes {name!r}: unknown; allowed: {', '.join(VARIANTS)}")
    return names


def seed_numbers(text: str) -> list[int]:
    """ "0,1" -> [0, 1], each once. Raises UserError."""
    parts = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise UserError(f"--seeds {text!r}: integers >= 0, separated by commas")
    return [int(part) for part in parts]


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        description="The copy task over position schemes: accuracy, and accuracy beyond the trained length."
    )
    parser.add_argument(
        "--fast", action="store_true", help="a minute: fewer schemes, two seeds, fewer steps"
    )
    parser.add_argument(
        "--schemes", metavar="NAME,...", help=f"default: all of {', '.join(VARIANTS)}"
    )
    parser.add_argument("--seeds", metavar="N,...", help="default: 0,1,2,3,4; fast: 0,1")
    parser.add_argument(
        "--steps", type=positive, metavar="N", help="training steps (default: 2000; fast: 500)"
    )
    parser.add_argument(
        "--output_dir",
        type=Path,
        metavar="DIR",
        help="default: runs/copy_task; fast: runs/copy_task_fast",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    names = (
        scheme_names(args.schemes)
        if args.schemes
        else list(FAST_SCHEMES if args.fast else VARIANTS)
    )
    seeds = seed_numbers(args.seeds or ("0,1" if args.fast else "0,1,2,3,4"))
    task = FAST_TASK if args.fast else Task()
    if args.steps:
        task = dataclasses.replace(task, steps=args.steps)
    folder = args.output_dir or Path("runs/copy_task_fast" if args.fast else "runs/copy_task")
    torch.set_num_threads(
        1
    )  # a model this small has nothing to share out, and the last bits stay the same
    results = run_all(names, seeds, task, folder / "results")
    paths = write_report(results, task, folder)
    print(f"\n{paths[0].read_text('utf-8')}", *paths, sep="\n")


if __name__ == "__main__":
    run_main(main)
