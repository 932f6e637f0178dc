"""Position schemes on the copy task: `python experiments/copy_task.py`.

Every scheme is trained with several seeds and tested on newly drawn rows, of the trained length
(rows with few symbols may have been seen) and longer. --steps and --layers take several values;
--attention draws the models' attention. The task and its models: experiments/copier.py.
"""

from __future__ import annotations

import itertools
import json
import sys
from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, get_args

if not __package__:  # run as a file: imports begin at the root of the repository, not here
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from torch import Tensor

from configs import positions as config
from configs.schema import Config
from configs.serialize import apply_overrides, diff, position_from_dict, to_dict
from experiments.common import (
    SSMAX,
    between_commas,
    chosen,
    chosen_numbers,
    chosen_seeds,
    mean_plus_minus,
    provenance_line,
    score_figure,
    with_ssmax,
)
from experiments.copier import (
    ALIBI_VARIANTS,
    PLAIN,
    SCHEMES,
    VARIANTS,
    Copier,
    Task,
    Variant,
    fit_to_task,
    make_rows,
    train,
    train_and_test,
)
from experiments.store import append_line, json_lines
from models.attention.tap import AttentionTap
from pictures.attention import AttentionMaps, attention_grid
from pictures.panels import LINES, Curve, curve_panels, dot_panels, panel_figure, save_figure
from utils.cli import Parser, run_main
from utils.errors import ConfigError, UserError
from utils.files import write_text
from utils.machine import provenance
from utils.tables import markdown_table, write_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Raise it when copier.py computes other results from the same settings: stored ones are then stale.
VERSION = 1

Result = Mapping[str, Any]  # for one scheme and seed, see train_and_test
Results = Mapping[str, Sequence[Result]]  # for each scheme, one for each seed

BIASES = (config.Alibi, config.T5, config.Kerple, config.Fire, config.Sandwich, config.Tupe)
FAMILIES = {
    "none, added to the embeddings": (config.NoPosition, *get_args(config.InputScheme)),
    "rotation": (config.Rope, config.SelectiveRope, config.Repo, config.Pope, config.Fope),
    "bias by positions": BIASES,
    "relative terms with content": (config.Shaw, config.TransformerXl, config.Deberta, config.Dape),
    "made of other schemes": (config.Combined, config.Interleaved, config.Ssmax, config.Randomized),
}
FAST_SCHEMES = ("none", "sinusoidal", "learnable", "rope", "alibi", "t5", "alibi_1_head")
FAST_TASK = Task(steps=500)
EXAMPLE = (7, 1, 8, 2)  # the symbols of the row whose attention is drawn
KNOWN = ("rows whose blanks are split", "symbols of the row")
LOOKS = ("on <copy>", "on the token to repeat")


def family(variant: Variant) -> str:
    """The heading under which a variant's curve is drawn."""
    if variant in ALIBI_VARIANTS.values() and variant not in SCHEMES.values():
        return "ALiBi and its controls"
    titles = (title for title, kinds in FAMILIES.items() if isinstance(variant.position, kinds))
    return next(titles, "of your own")


def layers_of(task: Task) -> str:
    return f"{task.n_layers} layer{'s' * (task.n_layers > 1)}"


def size(task: Task) -> str:
    return f"{layers_of(task)}, {task.steps:,} updates"


def settings_of(name: str, seed: int, task: Task) -> dict[str, Any]:
    """All that decides a run, as JSON."""
    variant = VARIANTS[name]
    settings = {"version": VERSION, "task": asdict(task), "seed": seed}
    settings |= {"n_heads": variant.n_heads, "slopes": variant.slopes, "causal": variant.causal}
    if variant.concatenated:
        settings["concatenated"] = True
    return settings | {"position": to_dict(fit_to_task(variant.position, task))}


def read_results(store: Path) -> dict[str, Result]:
    """The results of finished runs, by their settings. Raises UserError naming a broken line.

    A stored scheme without a field that is new counts as one with the field's default.
    """

    def result(record: dict[str, Any]) -> tuple[str, Result]:
        settings = record["settings"]
        with suppress(ConfigError):  # a scheme that no longer exists: nobody asks for it
            settings["position"] = to_dict(position_from_dict(settings["position"]))
        return json.dumps(settings, sort_keys=True), record["result"]

    return dict(json_lines(store, result, "no result of a run"))


def fitting(names: Sequence[str], tasks: Sequence[Task], wanted: Collection[str]) -> list[str]:
    """The schemes that models of every size may have; says which are left out.

    Raises ConfigError for one that is `wanted`, and where none is left.
    """
    found, error = [], ConfigError("no scheme")
    for name in names:
        try:
            for task in tasks:
                Copier(VARIANTS[name], task)
            found.append(name)
        except ConfigError as unfit:
            error = ConfigError(f"{name}: {unfit}")
            if {name, name.removesuffix(SSMAX)} & set(wanted):
                raise error from None
            print(f"left out: {error}", flush=True)
    if not found:
        raise error
    return found


def run_all(
    names: Sequence[str],
    seeds: Sequence[int],
    tasks: Sequence[Task],
    store: Path,
    report_only: bool = False,
) -> dict[Task, Results]:
    """The results of every scheme, from the store or from new runs. Prints its progress.

    report_only: from the store alone.
    """
    known = read_results(store)
    found: dict[Task, dict[str, list[Result]]] = {task: {n: [] for n in names} for task in tasks}
    # Seed by seed, so that an interrupted experiment covers all schemes.
    runs = list(itertools.product(seeds, tasks, names))
    for number, (seed, task, name) in enumerate(runs, start=1):
        settings, how = settings_of(name, seed, task), "done before"
        result = known.get(json.dumps(settings, sort_keys=True))
        if result is None:
            if report_only:
                continue
            result = {**train_and_test(VARIANTS[name], seed, task), "provenance": provenance()}
            append_line(store, {"scheme": name, "settings": settings, "result": result})
            how = f"{result['seconds']} s of CPU time"
        found[task][name].append(result)
        exact, token = (result[measure][str(task.length)] for measure in ("exact", "token"))
        place = f"[{number}/{len(runs)}] {name}, seed {seed}"
        if len(tasks) > 1:
            place += f", {size(task)}"
        print(f"{place}: exact {exact:.3f}, symbols {token:.3f}, {how}", flush=True)
    return dict(found)


def values(runs: Sequence[Result], measure: str, length: int) -> list[float]:
    """A measure at a length, a value for each seed; none if the scheme cannot place that length."""
    return [run[measure][str(length)] for run in runs if str(length) in run[measure]]


def mean_and_range(seeds: Sequence[float]) -> tuple[float, float, float]:
    """The mean, and the mean minus and plus the standard deviation, kept within 0 and 1."""
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
        [name, VARIANTS[name].n_heads, f"{Copier(VARIANTS[name], task).n_position_parameters:,}"]
        + [mean_plus_minus(values(results[name], *column)) for column in columns]
        for name in names
    ]
    return markdown_table(header, rows)


def ssmax_gains(results: Results, task: Task) -> dict[str, list[list[float]]]:
    """The gain by SSMax in the share of rows that are right: by scheme, test length and seed.

    For the seeds that both have; none at a length that the scheme cannot place.
    """
    gains = {}
    for name in results:
        of_seeds = {run["seed"]: run["exact"] for run in results.get(name + SSMAX, ())}
        runs = [run for run in results[name] if run["seed"] in of_seeds]
        if runs:
            gains[name] = [
                [of_seeds[run["seed"]][n] - run["exact"][n] for run in runs if n in run["exact"]]
                for n in map(str, task.test_lengths)
            ]
    return gains


def gains_table(gains: Mapping[str, Sequence[Sequence[float]]], task: Task) -> str:
    """Markdown: mean and standard deviation over the seeds; in the last row, over the schemes."""
    means = [[fmean(seeds) for seeds in column if seeds] for column in zip(*gains.values())]
    lines = {**gains, "all, the mean": means}
    rows = [[name, *map(mean_plus_minus, columns)] for name, columns in lines.items()]
    return markdown_table(["SSMax added to", *(f"rows, {n}" for n in task.test_lengths)], rows)


def gains_figure(gains: Mapping[str, Sequence[Sequence[float]]], task: Task) -> Figure:
    """The means over the seeds, a dot for each test length."""
    names = [f"{n} tokens" for n in task.test_lengths]
    dots = {
        scheme: {name: fmean(seeds) for name, seeds in zip(names, columns) if seeds}
        for scheme, columns in gains.items()
    }
    title = f"Copy task: what SSMax adds to the rows that are right in every place, {size(task)}"
    return dot_panels({"": dots}, title=title, x_label="share of rows, with SSMax minus without")


def groups(names: Sequence[str]) -> dict[str, list[str]]:
    """The named schemes under the headings of tables and panels, as far as there are any."""
    of_alibi = [name for name in ALIBI_VARIANTS if name in names]
    found = {"Schemes": [name for name in names if name not in ALIBI_VARIANTS or name in SCHEMES]}
    if set(of_alibi) - set(SCHEMES):
        found["ALiBi: heads, slopes, symmetry, causal mask"] = of_alibi
    return {title: members for title, members in found.items() if members}


def budget_table(found: Mapping[Task, Results]) -> str:
    """Markdown: rows of the trained length that are right, by layers and updates."""
    [task, *_] = found
    sizes = zip(*((each.n_layers, each.steps) for each in found))
    depths, budgets = map(dict.fromkeys, sizes)
    rows = []
    for depth, name in itertools.product(depths, found[task]):
        runs = [found[replace(task, n_layers=depth, steps=steps)][name] for steps in budgets]
        cells = [mean_plus_minus(values(seeds, "exact", task.length)) for seeds in runs]
        rows.append([name, VARIANTS[name].n_heads, depth, *cells])
    return markdown_table(["scheme", "heads", "layers", *(f"{n:,} updates" for n in budgets)], rows)


def markdown(
    found: Mapping[Task, Results], task: Task, looks: Mapping[str, Sequence[float]]
) -> str:
    """The report; tables by scheme are of the given task."""
    results = found[task]
    runs = [run for each in found.values() for seeds in each.values() for run in seeds]
    seeds = {name: ", ".join(str(run["seed"]) for run in of) for name, of in results.items()}
    most = max(seeds.values(), key=len)
    fewer = [f"{name}: {found}" for name, found in seeds.items() if found != most]
    said = f"{most} ({'; '.join(fewer)})" if fewer else most
    parts = [
        f"# Copy task\n\nEncoder of {size(task)} of {task.batch_size} rows; d_model "
        f"{task.d_model}, d_ff {task.d_ff}; rows of {task.length} tokens in training, "
        f"{task.n_symbols} symbols; {task.n_test:,} test rows of each length; seeds {said}.\n",
        "Rows: the share that is right in every place. Symbols: the share of repeated symbols that "
        "is right; the scheme none reaches its share without any position. After each stands the "
        "length of the test rows. Mean ± standard deviation over the seeds; –: not run, or the "
        "scheme has no position that far.\n",
    ]
    tables = groups(list(results)).items()
    parts += [f"## {title}\n\n{table(names, results, task)}" for title, names in tables]
    if gains := ssmax_gains(results, task):
        said = "In the last row ± is over the schemes that have positions that far."
        parts.append(f"## What SSMax adds\n\n{gains_table(gains, task)}\n{said}\n")
    if len(found) > 1:
        parts.append(f"## Rows, {task.length}, by layers and updates\n\n{budget_table(found)}")
    if looks:
        layers = range(1, task.n_layers + 1)
        header = [*KNOWN, *(f"layer {n}, {what}" for n, what in itertools.product(layers, LOOKS))]
        rows = [[name, *(f"{weight:.2f}" for weight in weights)] for name, weights in looks.items()]
        parts.append(
            f"## What blanks know, and where they look\n\nSeed {runs[0]['seed']}: the share of "
            "rows in which exactly the right blanks are filled. Then, of the blanks to be filled, "
            "the share that gets a symbol of the row, and by layer the attention weight in the "
            f"head where it is largest.\n\n{markdown_table(['scheme', *header], rows)}"
        )
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
    title = f"Copy task: rows of {task.length} tokens that are right in every place, {size(task)}"
    label = "dot: mean; line: standard deviation; mark: one seed"
    figure = score_figure({label: scores}, title=title)
    figure.axes[0].set_xlim(-0.02, 1.02)
    return figure


def accuracy_by_length_figure(results: Results, task: Task) -> Figure:
    """Accuracy by length, a row for each family: whole rows, and repeated symbols beside them."""
    families: dict[str, list[str]] = {}
    for name in results:
        families.setdefault(family(VARIANTS[name]), []).append(name)
    figure, axes = panel_figure(
        len(families),
        2,
        size=(4.2, 2.6),
        title=f"Copy task beyond the trained length of {task.length} tokens, {size(task)}",
        x_label="tokens of a row",
        y_label="accuracy (mean; shaded: standard deviation)",
        sharex=True,
        sharey=True,
    )
    for row, measure, words in zip(axes.T, ("exact", "token"), ("whole rows", "repeated symbols")):
        for place, (title, names) in zip(row, families.items()):
            for name, kind in zip(names, itertools.cycle(LINES)):
                found = {n: values(results[name], measure, n) for n in task.test_lengths}
                lengths = [n for n in found if found[n]]
                means, low, high = zip(*(mean_and_range(found[n]) for n in lengths))
                how: Any = {"markersize": 3, "linewidth": 1.4, "label": name}
                [line] = place.plot(lengths, means, f"o{kind}", **how)
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


def budget_figure(found: Mapping[Task, Results]) -> Figure:
    """Rows that are right over the updates, with the most layers."""
    done = [task for task, results in found.items() if any(results.values())]
    deepest, budgets = max(done, key=lambda task: task.n_layers), sorted({t.steps for t in found})
    curves: dict[str, dict[str, Curve]] = {}
    for title, names in groups(list(next(iter(found.values())))).items():
        curves[title] = {}
        for name in names:
            points = {
                task.steps: mean_and_range(values(results[name], "exact", task.length))
                for task, results in sorted(found.items(), key=lambda item: item[0].steps)
                if task.n_layers == deepest.n_layers and results[name]
            }
            if points:
                curves[title][name] = Curve(list(points), *zip(*points.values()))
    figure = curve_panels(
        curves,
        size=(6.5, 3.4),
        title=f"Copy task: rows of {deepest.length} tokens that are right, {layers_of(deepest)}",
        x_label="updates",
        y_label="share (mean; shaded: standard deviation)",
    )
    for axes in figure.axes:
        axes.set_xscale("log")
        axes.set_xticks(budgets, labels=[f"{steps:,}" for steps in budgets], fontsize=8)
        axes.minorticks_off()
    return figure


@torch.inference_mode()
def attention_weights(model: Copier, rows: Tensor) -> Tensor:
    """rows [B,T] -> [L,B,H,T,T]."""
    tap = AttentionTap()
    model(rows, tap=tap)
    return tap.maps("encoder")


def attention_figure(name: str, model: Copier, task: Task) -> Figure:
    """The attention of every layer and head on one row."""
    blanks = task.length - len(EXAMPLE) - 1
    row = torch.tensor([[*EXAMPLE, task.n_symbols, *[task.n_symbols + 1] * blanks]])
    maps = attention_weights(model, row)[:, 0].numpy()
    labels = [*map(str, EXAMPLE), "<copy>", *"_" * blanks]
    layers, heads = (range(1, n + 1) for n in maps.shape[:2])
    names = {"query_name": "token (query)", "key_name": "token (key)"}
    title = f"Copy task, {name}, {size(task)}"
    return attention_grid(AttentionMaps(maps, labels, labels, title, layers, heads, **names))


@torch.inference_mode()
def what_blanks_know(model: Copier, task: Task) -> list[float]:
    """What the blanks are predicted to be (KNOWN), and where they look (LOOKS).

    KNOWN: the share of all rows in which the right blanks are filled, and the share of all blanks
    to be filled that get some symbol of the row. LOOKS, layer by layer: the attention weight from
    the blanks to be filled, the mean over test rows in the head where it is largest.
    """
    generator = torch.Generator().manual_seed(task.length)
    rows, targets = make_rows(task.n_test, task.length, task, generator)
    filled = (rows == task.n_symbols + 1) & (targets != task.n_symbols + 1)
    mark = (rows == task.n_symbols).int().argmax(dim=1, keepdim=True)
    origin = (torch.arange(task.length) - mark - 1).clamp(min=0)
    named = model(rows).argmax(dim=-1)
    split = ((named == task.n_symbols + 1) == (targets == task.n_symbols + 1)).all(dim=1)
    symbols = rows.masked_fill(rows >= task.n_symbols, -1)
    of_row = (named[:, :, None] == symbols[:, None, :]).any(dim=-1)[filled]
    weights = attention_weights(model, rows).transpose(1, 2)  # [L,H,B,T,T]
    found = [
        weights.gather(-1, keys.expand_as(rows)[..., None].expand(*weights.shape[:-1], 1))[..., 0]
        for keys in (mark, origin)
    ]
    best = [each[:, :, filled].mean(dim=-1).amax(dim=1) for each in found]  # [L] each
    known = [share.double().mean().item() for share in (split, of_row)]
    return [*known, *torch.stack(best, dim=1).flatten().tolist()]


def chosen_schemes(text: str) -> list[str]:
    """The schemes in `text`, between commas; one with fields (rope:base=500) becomes a variant.

    Raises UserError for an unknown name, and for a field that does not fit.
    """
    for name in between_commas(text):
        if name not in VARIANTS and name.partition(":")[0] in SCHEMES:
            position = apply_overrides(Config(), [], position=name).model.position
            given = {field.partition("=")[0] for field in name.split(":")[1:]}
            for key, *_ in diff(position, fit_to_task(position, Task())):
                if key in given:
                    raise UserError(f"{name}: the task sets {key} itself: leave it out")
            VARIANTS[name] = Variant(position=position)
            with suppress(ConfigError):
                VARIANTS[name + SSMAX] = Variant(position=with_ssmax(position))
    return chosen(text, VARIANTS, "scheme")


def parse_args(argv: list[str] | None = None) -> Namespace:
    parser = Parser(description="Position schemes on the copy task, also beyond its length.")
    add = parser.add_argument
    add("--fast", action="store_true", help="a minute: fewer schemes, two seeds, fewer steps")
    every = f"default: all of {', '.join(PLAIN)}; with --ssmax: those that take it"
    add("--schemes", metavar="NAME[:FIELD=VALUE],...", type=chosen_schemes, help=every)
    add("--seeds", metavar="N,...", type=chosen_seeds, help="default: 0,1,2,3,4; fast: 0,1")
    steps = "training steps (default: 2000; fast: 500)"
    several = partial(chosen_numbers, least=1)
    add("--steps", type=partial(several, flag="--steps"), metavar="N,...", help=steps)
    layers = "layers of the encoder (default: 2)"
    add("--layers", type=partial(several, flag="--layers"), metavar="N,...", help=layers)
    add("--ssmax", action="store_true", help="run every scheme a second time, with SSMax")
    looks = "also train each scheme with the first seed once more and draw its attention"
    nothing = "run nothing: only write tables and plots of what is done"
    add("--report_only", action="store_true", help=nothing)
    add("--attention", action="store_true", help=looks)
    add("--store", type=Path, metavar="FILE", help="default: results.jsonl in --output_dir")
    folders = "default: runs/copy_task; fast: runs/copy_task_fast"
    add("--output_dir", type=Path, metavar="DIR", help=folders)
    args = parser.parse_args(argv)
    if args.attention and args.report_only:
        raise UserError("--attention trains models: leave out --report_only or --attention")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    names = args.schemes or (FAST_SCHEMES if args.fast else list(PLAIN))
    if args.ssmax:
        able = [name for name in names if name + SSMAX in VARIANTS]
        if unable := set(args.schemes or ()) - set(able):
            raise UserError(f"--ssmax: not for {', '.join(sorted(unable))}; leave it out")
        names = [name + end for name in able for end in ("", SSMAX)]
    seeds = args.seeds or range(2 if args.fast else 5)
    task = FAST_TASK if args.fast else Task()
    sizes = itertools.product(args.layers or [task.n_layers], args.steps or [task.steps])
    tasks = [replace(task, n_layers=layers, steps=steps) for layers, steps in sizes]
    folder = args.output_dir or Path("runs/copy_task_fast" if args.fast else "runs/copy_task")
    names = fitting(names, tasks, wanted=args.schemes or ())
    # A model this small gains nothing from threads, and with one the last bits stay the same.
    torch.set_num_threads(1)
    store = args.store or folder / "results.jsonl"
    found = run_all(names, seeds, tasks, store, args.report_only)
    done = {task: [name for name in names if found[task][name]] for task in tasks}
    task = max(reversed(tasks), key=lambda each: len(done[each]))  # the last of equals
    if not done[task]:
        raise UserError(f"{store}: nothing of this is done yet; leave --report_only out")
    if missing := [name for name in names if name not in done[task]]:
        print(f"left out: nothing is stored for {', '.join(missing)}, {size(task)}", flush=True)
        found = {each: {name: of[name] for name in done[task]} for each, of in found.items()}
    results = found[task]
    rows = [
        {"scheme": name, "heads": VARIANTS[name].n_heads, "layers": each.n_layers}
        | {"updates": each.steps, "seed": run["seed"], "length": length}
        | {measure: run[measure][length] for measure in ("exact", "token")}
        for each, of_schemes in found.items()
        for name, runs in of_schemes.items()
        for run in runs
        for length in run["exact"]
    ]
    models = {name: train(VARIANTS[name], seeds[0], task) for name in names if args.attention}
    text = markdown(
        found, task, {name: what_blanks_know(each, task) for name, each in models.items()}
    )
    gains = ssmax_gains(results, task)
    plain = {
        name: runs
        for name, runs in results.items()
        if name.removesuffix(SSMAX) not in gains or name in gains
    }
    paths = [
        write_text(folder / "copy_task.md", text),
        write_csv(folder / "copy_task.csv", rows),
        save_figure(accuracy_figure(plain, task), folder / "copy_task_accuracy.png"),
        save_figure(accuracy_by_length_figure(plain, task), folder / "copy_task_lengths.png"),
    ]
    if gains:
        paths.append(save_figure(gains_figure(gains, task), folder / "copy_task_ssmax.png"))
    if len({each.steps for each in tasks}) > 1:
        paths.append(save_figure(budget_figure(found), folder / "copy_task_updates.png"))
    paths += [
        save_figure(attention_figure(name, model, task), folder / f"attention_{name}.png")
        for name, model in models.items()
    ]
    print(f"\n{text}", *paths, sep="\n")


if __name__ == "__main__":
    run_main(main)
