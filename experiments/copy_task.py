"""The copy task over position schemes: `python experiments/copy_task.py`.

What stands before a mark is to be repeated after it: `7 2 4 <copy> _ _ _ _ _ _` -> `7 2 4 <copy> 7
2 4 _ _ _`. A small encoder reads a row of fixed length and names all its tokens at once. The number
n of symbols varies, and each blank must find the token n + 1 places before it, which takes
positions. A decoder would not do: a causal model must name each symbol before the mark from those
before it, and they are drawn at random. Every scheme is trained with several seeds, and tested on
fresh rows of the trained length and on longer ones.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: imports begin at the root of the repository, not here
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs import positions as config
from configs.positions import POSITIONS
from configs.schema import Cosine, ModelConfig
from configs.serialize import to_dict
from experiments.common import chosen, chosen_seeds, mean_plus_minus, provenance_line, score_figure
from models.build import build_scheme
from models.masks import as_bias, causal_attn_mask
from models.positional_encodings.alibi import alibi_bias
from models.positional_encodings.base import AttentionPosition, AttentionScheme, Places
from models.transformer_backend import Encoder
from pictures.panels import panel_figure, save_figure
from training.schedules import lr_factor
from utils.cli import Parser, positive, run_main
from utils.errors import UserError
from utils.files import write_text
from utils.machine import provenance
from utils.tables import markdown_table, write_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Raise it when the code below computes something else from the same settings: stored results are
# then stale.
VERSION = 1

Result = Mapping[str, Any]  # of one scheme and seed, see train_and_test
Results = Mapping[str, Sequence[Result]]  # of each scheme, one for each seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Sizes of the task, of the model and of its training."""

    length: int = 10  # tokens of a row, in training
    test_lengths: tuple[int, ...] = (10, 11, 12, 14, 16, 20)
    n_symbols: int = 10  # their ids come first, then that of the mark, then that of the blank
    n_test: int = 2000  # rows of each test length
    d_model: int = 32
    n_layers: int = 2
    d_ff: int = 64
    steps: int = 2000
    batch_size: int = 64
    lr: float = 3e-3  # after a tenth of the steps; from there half a cosine down to 0


def make_rows(n: int, length: int, task: Task, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """n rows of `length` tokens and what they should become, [n,length] each.

    1 to length-3 random symbols, the mark, and blanks (two or more) to the end. In the target the
    symbols are repeated after the mark, as far as there is room.
    """
    n_symbols = torch.randint(1, length - 2, (n, 1), generator=generator)
    place, mark, blank = torch.arange(length), task.n_symbols, task.n_symbols + 1
    rows = torch.randint(task.n_symbols, (n, length), generator=generator)
    rows = torch.where(place < n_symbols, rows, blank)
    rows = torch.where(place == n_symbols, mark, rows)
    origin = place - n_symbols - 1  # of the token that is repeated here
    copied = rows.gather(1, origin.clamp(min=0))
    return rows, torch.where((origin >= 0) & (origin < n_symbols), copied, rows)


def accuracies(predicted: Tensor, rows: Tensor, targets: Tensor, task: Task) -> tuple[float, float]:
    """(exact, token): the share of rows that are right in every place, and of repeated symbols.

    What is there to be read off (symbols, mark) and what stays blank counts for the first alone.
    """
    right, blank = predicted == targets, task.n_symbols + 1
    repeated = (rows == blank) & (targets != blank)
    return right.all(dim=1).double().mean().item(), right[repeated].double().mean().item()


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A position scheme in a model of n_heads. causal: the encoder sees no later token.

    slopes: a bias -slope |i - j| for each head instead of the scheme, ALiBi's with other slopes.
    """

    position: config.Position
    n_heads: int = 4
    slopes: tuple[float, ...] | None = None
    causal: bool = False


# xPos, CoPE and FoX serve causal attention alone: an encoder has their partner instead.
SCHEMES = {
    name: Variant(position=position)
    for name, position in POSITIONS.items()
    if not isinstance(position, (config.XPos, config.Cope, config.Fox))
}
# Do heads, slopes, symmetry or the causal mask make ALiBi fail or succeed here?
ALIBI_VARIANTS = {
    "alibi_1_head": Variant(position=config.Alibi(), n_heads=1),
    "alibi_2_heads": Variant(position=config.Alibi(), n_heads=2),
    "alibi": SCHEMES["alibi"],
    "alibi_8_heads": Variant(position=config.Alibi(), n_heads=8),
    "alibi_1_head_slope_half": Variant(position=config.Alibi(), n_heads=1, slopes=(0.5,)),
    "alibi_asymmetric": SCHEMES["alibi_asymmetric"],
    "alibi_causal": Variant(position=config.Alibi(), causal=True),
    "none_causal": Variant(position=config.NoPosition(), causal=True),
    "rope_1_head": Variant(position=config.Rope(), n_heads=1),
}
VARIANTS = {**SCHEMES, **ALIBI_VARIANTS}
FAMILIES = {
    "none, added to the embeddings": (config.NoPosition, config.Sinusoidal, config.Learnable),
    "rotation": (config.Rope,),
    "relative terms with content": (config.Shaw, config.TransformerXl, config.Deberta),
    "combined, randomized": (config.Combined, config.Randomized),
}
FAST_SCHEMES = ("none", "sinusoidal", "learnable", "rope", "alibi", "t5", "alibi_1_head")
FAST_TASK = Task(steps=500)


def fit_to_task(position: config.Position, task: Task) -> config.Position:
    """The scheme with its lengths set to those of the task, where it has any."""
    match position:
        case config.Learnable():
            return replace(position, max_positions=task.length)
        case config.Rope(scaling=config.DynamicNtkScaling() | config.YarnScaling() as scaling):
            return replace(position, scaling=replace(scaling, trained_length=task.length))
        case config.Combined(input=config.Learnable() as rows):
            return replace(position, input=replace(rows, max_positions=task.length))
        case config.Randomized():
            longest = max(task.test_lengths)
            return replace(position, spread=2 * longest, max_positions=longest)
    return position


def family(variant: Variant) -> str:
    """The heading under which a variant's curve is drawn."""
    if variant not in SCHEMES.values():
        return "ALiBi and its controls"
    titles = (title for title, kinds in FAMILIES.items() if isinstance(variant.position, kinds))
    return next(titles, "bias by distance")


class Control(AttentionPosition):
    """A variant's slopes or causal mask in place of, or over, a scheme that is a bias alone."""

    def __init__(self, variant: Variant, inner: AttentionPosition) -> None:
        super().__init__()
        self.variant, self.inner = variant, inner

    def bias(self, places: Places) -> Tensor | None:
        bias = self.inner.bias(places)
        if self.variant.slopes is not None:
            slopes = torch.tensor(self.variant.slopes)
            bias = alibi_bias(places.distance, slopes, causal=False)
        if self.variant.causal:
            mask = as_bias(causal_attn_mask(places.q_positions, places.k_positions), torch.float32)
            bias = mask if bias is None else bias + mask
        return bias


class Copier(nn.Module):
    """Embedding, the project's encoder, and a projection to the vocabulary."""

    def __init__(self, variant: Variant, task: Task) -> None:
        super().__init__()
        self.embedding = nn.Embedding(task.n_symbols + 2, task.d_model)
        nn.init.normal_(self.embedding.weight, std=task.d_model**-0.5)
        sizes = ModelConfig(
            position=fit_to_task(variant.position, task),
            d_model=task.d_model,
            n_heads=variant.n_heads,
            n_encoder_layers=task.n_layers,
            n_decoder_layers=task.n_layers,
            d_ff=task.d_ff,
            dropout=0.0,
        )
        self.encoder = Encoder(sizes)
        self.out = nn.Linear(task.d_model, task.n_symbols + 2)
        # Last, so that all schemes of a seed start from the same weights elsewhere.
        self.scheme = build_scheme(sizes)
        if variant.slopes is not None or variant.causal:
            control = Control(variant, self.scheme.attention("encoder", 0))
            self.scheme = AttentionScheme(encoder=[control])

    def forward(self, rows: Tensor) -> Tensor:
        """rows [B,T] -> logits [B,T,V]. A blank is a token like any other, not padding."""
        positions = self.scheme.positions("source", 0, rows.shape[1], rows.device)
        x = self.embedding(rows) * math.sqrt(self.embedding.embedding_dim)
        x = self.scheme.input("source")(x, positions)
        padding = torch.zeros_like(rows, dtype=torch.bool)
        return self.out(self.encoder(x, scheme=self.scheme, positions=positions, padding=padding))


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
    factor = lr_factor(schedule, total_steps=task.steps)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for _ in range(task.steps):
        rows, targets = make_rows(task.batch_size, task.length, task, generator)
        loss = F.cross_entropy(model(rows).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()

    model.eval()
    limit = model.scheme.max_length("source")
    exact, token = {}, {}
    for length in task.test_lengths:
        if limit is None or length <= limit:
            generator = torch.Generator().manual_seed(length)
            rows, targets = make_rows(task.n_test, length, task, generator)
            with torch.inference_mode():
                predicted = model(rows).argmax(dim=-1)
            exact[str(length)], token[str(length)] = accuracies(predicted, rows, targets, task)
    parts = nn.ModuleList(model.scheme.attention("encoder", i) for i in range(task.n_layers))
    parts.append(model.scheme.input("source"))
    return {
        "seed": seed,
        "exact": exact,
        "token": token,
        "position_parameters": sum(tensor.numel() for tensor in parts.parameters()),
        "seconds": round(time.process_time() - start, 1),
    }


def stored_result(name: str, seed: int, task: Task, folder: Path) -> tuple[Result, str]:
    """The result of a run, stored by all that decides it, as a hash; and how it was come by.

    A run that was cut short leaves no file. Raises UserError for a broken file.
    """
    variant, label = VARIANTS[name], f"{name}_seed{seed}"
    settings = {"version": VERSION, "task": asdict(task), "seed": seed}
    settings |= {"n_heads": variant.n_heads, "slopes": variant.slopes, "causal": variant.causal}
    settings["position"] = to_dict(fit_to_task(variant.position, task))
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    path = folder / f"{label}_{digest}.json"
    if not path.exists():
        result = {**train_and_test(variant, seed, task), "provenance": provenance()}
        record = {"label": label, "settings": settings, "result": result}
        write_text(path, json.dumps(record, indent=1) + "\n")
        return result, f"{result['seconds']} s of CPU time"
    try:
        return json.loads(path.read_text("utf-8"))["result"], "done before"
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a result ({error!r}); delete it to run it again") from error


def run_all(names: Sequence[str], seeds: Sequence[int], task: Task, folder: Path) -> Results:
    """The results of every scheme; runs that are done are read. Says what it does."""
    results: dict[str, list[Result]] = {name: [] for name in names}
    length = str(task.length)
    # Seed by seed, so that an interrupted experiment has all schemes.
    for number, (seed, name) in enumerate(itertools.product(seeds, names), start=1):
        result, how = stored_result(name, seed, task, folder)
        results[name].append(result)
        exact, token = result["exact"][length], result["token"][length]
        place = f"[{number}/{len(names) * len(seeds)}] {name}, seed {seed}"
        print(f"{place}: exact {exact:.3f}, symbols {token:.3f}, {how}", flush=True)
    return results


def values(runs: Sequence[Result], measure: str, length: int) -> list[float]:
    """A measure at a length, one value a seed; none where the scheme cannot place that length."""
    return [run[measure][str(length)] for run in runs if str(length) in run[measure]]


def mean_and_range(seeds: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and the mean - and + the standard deviation, as far as those are shares."""
    mean, spread = fmean(seeds), stdev(seeds) if len(seeds) > 1 else 0.0
    return mean, max(0.0, mean - spread), min(1.0, mean + spread)


def table(names: Sequence[str], results: Results, task: Task) -> str:
    """Markdown: accuracy at the trained length and beyond, mean and standard deviation."""
    beyond = [length for length in task.test_lengths if length > task.length]
    lengths = dict.fromkeys([task.length, beyond[0], beyond[len(beyond) // 2], beyond[-1]])
    words = {"exact": "rows", "token": "symbols"}
    columns = list(itertools.product(words, lengths))
    header = ["scheme", "heads", "position parameters"]
    header += [f"{words[measure]}, {length}" for measure, length in columns]
    rows = [
        [name, VARIANTS[name].n_heads, f"{results[name][0]['position_parameters']:,}"]
        + [mean_plus_minus(values(results[name], *column)) for column in columns]
        for name in names
    ]
    return markdown_table(header, rows)


def markdown(results: Results, task: Task) -> str:
    runs = list(itertools.chain(*results.values()))
    seeds = ", ".join(str(result["seed"]) for result in next(iter(results.values())))
    parts = [
        f"# Copy task\n\nEncoder of {task.n_layers} layers, d_model {task.d_model}, d_ff "
        f"{task.d_ff}; rows of {task.length} tokens in training, {task.n_symbols} symbols; "
        f"{task.steps} steps of {task.batch_size} rows; {task.n_test} test rows; seeds {seeds}.\n",
        "Rows: the share that is right in every place. Symbols: the share of repeated symbols that "
        "is right; that of the scheme none can be had without any position. Each is followed by "
        "the length of the test rows. Mean ± standard deviation over the seeds; –: the scheme has "
        "no position that far.\n",
    ]
    alibi = [name for name in ALIBI_VARIANTS if name in results]
    tables = {
        "Schemes": [name for name in results if name in SCHEMES],
        "ALiBi: heads, slopes, symmetry, causal mask": alibi if set(alibi) - set(SCHEMES) else [],
    }
    parts += [f"## {title}\n\n{table(n, results, task)}" for title, n in tables.items() if n]
    seconds = sum(result["seconds"] for result in runs)
    made = provenance_line([result["provenance"] for result in runs])
    parts.append(f"{seconds:.0f} s of CPU time in all; {made}.\n")
    return "\n".join(parts)


def accuracy_figure(results: Results, task: Task) -> Figure:
    """The share of right rows at the trained length: mean, standard deviation and each seed."""
    scores = {}
    for name, runs in results.items():
        seeds = values(runs, "exact", task.length)
        _, low, high = mean_and_range(seeds)
        scores[f"{name} (H={VARIANTS[name].n_heads})"] = (seeds, [low], [high])
    title = f"Copy task: rows of {task.length} tokens that are right in every place"
    label = "dot: mean; line: standard deviation; mark: one seed"
    figure = score_figure({label: scores}, title=title)
    figure.axes[0].set_xlim(-0.02, 1.02)
    return figure


def length_figure(results: Results, task: Task) -> Figure:
    """Accuracy by length, a column for each family: whole rows above, repeated symbols below."""
    families: dict[str, list[str]] = {}
    for name in results:
        families.setdefault(family(VARIANTS[name]), []).append(name)
    figure, axes = panel_figure(
        2,
        len(families),
        size=(3.4, 3.0),
        title=f"Copy task beyond the trained length of {task.length} tokens",
        x_label="tokens of a row",
        y_label="accuracy (mean; shaded: standard deviation)",
        sharex=True,
        sharey=True,
    )
    for row, measure, words in zip(axes, ("exact", "token"), ("whole rows", "repeated symbols")):
        for place, (title, names) in zip(row, families.items()):
            for name in names:
                found = {n: values(results[name], measure, n) for n in task.test_lengths}
                lengths = [n for n in found if found[n]]
                means, low, high = zip(*(mean_and_range(found[n]) for n in lengths))
                [line] = place.plot(lengths, means, "o-", markersize=3, linewidth=1.4, label=name)
                place.fill_between(
                    lengths, low, high, color=line.get_color(), alpha=0.15, linewidth=0
                )
            place.axvline(task.length, color="0.6", linestyle=":", linewidth=1)
            place.set_title(f"{title}: {words}", fontsize=8)
            place.set_ylim(-0.03, 1.03)
            place.grid(alpha=0.3)
            if measure == "exact":
                place.legend(fontsize=7, frameon=False)
    return figure


def main(argv: list[str] | None = None) -> None:
    parser = Parser(description="Position schemes on the copy task, also beyond its length.")
    add = parser.add_argument
    add("--fast", action="store_true", help="a minute: fewer schemes, two seeds, fewer steps")
    every = f"default: all of {', '.join(VARIANTS)}"
    known = partial(chosen, known=VARIANTS, what="scheme")
    add("--schemes", metavar="NAME,...", type=known, help=every)
    add("--seeds", metavar="N,...", type=chosen_seeds, help="default: 0,1,2,3,4; fast: 0,1")
    add("--steps", type=positive, metavar="N", help="training steps (default: 2000; fast: 500)")
    folders = "default: runs/copy_task; fast: runs/copy_task_fast"
    add("--output_dir", type=Path, metavar="DIR", help=folders)
    args = parser.parse_args(argv)
    names = args.schemes or (FAST_SCHEMES if args.fast else list(VARIANTS))
    seeds = args.seeds or range(2 if args.fast else 5)
    task = FAST_TASK if args.fast else Task()
    task = replace(task, steps=args.steps or task.steps)
    folder = args.output_dir or Path("runs/copy_task_fast" if args.fast else "runs/copy_task")
    # A model this small has nothing to share out, and the last bits stay the same.
    torch.set_num_threads(1)
    results = run_all(names, seeds, task, folder / "results")
    rows = [
        {"scheme": name, "heads": VARIANTS[name].n_heads, "seed": run["seed"], "length": length}
        | {measure: run[measure][length] for measure in ("exact", "token")}
        for name, runs in results.items()
        for run in runs
        for length in run["exact"]
    ]
    text = markdown(results, task)
    paths = [
        write_text(folder / "copy_task.md", text),
        write_csv(folder / "copy_task.csv", rows),
        save_figure(accuracy_figure(results, task), folder / "copy_task_accuracy.png"),
        save_figure(length_figure(results, task), folder / "copy_task_lengths.png"),
    ]
    print(f"\n{text}", *paths, sep="\n")


if __name__ == "__main__":
    run_main(main)
