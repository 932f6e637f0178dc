"""What a position scheme does to attention: `python experiments/attention_study.py`.

Measured for every trained model on a split:

    entropy, distance, diagonal   of each head, in bits, keys and as a share (explorer/heads.py):
                                  the mean over the pairs, with the reference as the target
    aer                           of links read off the mean of all heads of each decoder layer,
                                  against the gold links of --gold (translation/alignment_error.py)
    agreement                     of such links on the split with those of the model of the same
                                  scheme and seed that translates back (--reversed): 1 minus their
                                  error rate against these
    accuracy                      of the likeliest token given the reference so far, by its place
    sacrebleu, unchanged          with all positions of both sides later by N (0: as trained), and
                                  the share of translations that then stay the same

Written into --output_dir: attention.csv, a row for each figure of each model; attention.md, means
over the seeds; attention_layers.png, attention_accuracy.png, attention_shifts.png. --store keeps
the rows of all models elsewhere too: models in it are not measured again, and --report_only makes
tables and figures from it alone, even without the models. Queries, keys and places are tokens:
compare models of one tokenizer. Late places occur in long sentences only.
"""

import sys
import zlib
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

if not __package__:  # run as a file: imports begin at the root of the repository, not here
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from configs.position_names import position_name
from configs.schema import Config
from data.batching import make_eval_loader
from data.corpora.build import build_corpus
from experiments import common
from experiments.common import Rows, means, seeds_table
from experiments.trials import finished_run, say
from explorer.heads import head_statistics
from models.positional_encodings import base
from pictures.panels import dot_panels, save_figure
from translation.alignment import HeadChoice
from translation.alignment_error import Gold, GoldPairs, read_gold_pairs
from translation.evaluation import EvaluationSet, choose_splits
from translation.forcing import KINDS, attention_weights
from translation.loading import LoadedRun, load_run
from translation.metrics import sentence_statistics, summed_bleu
from translation.search import in_batches
from translation.settings import config_change
from translation.translator import Translator
from utils.cli import Parser, positive, run_main, threads
from utils.errors import UserError, one_line
from utils.files import sha256, write_errors, write_text
from utils.machine import provenance, resolve_device
from utils.tables import read_csv, write_csv

PLACES = (5, 10, 15, 20, 25)  # upper ends of buckets of target tokens, counted from 1


class Shifted(base.SchemeAround):
    """A scheme with every token `shift` places later, on both sides."""

    def __init__(self, inner: base.PositionScheme, shift: int) -> None:
        super().__init__(inner)
        self.shift = shift
        for side, bound in inner.bounds.items():
            self.bounds[side] = bound._replace(length=max(0, bound.length - shift))

    def positions(self, side: base.Side, start: int, end: int, device: torch.device) -> Tensor:
        return self.inner.positions(side, start + self.shift, end + self.shift, device)

    def span(self, start: int, end: int) -> base.Span | None:
        return self.inner.span(start + self.shift, end + self.shift)


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = Parser(description="Compare schemes: attention, alignment, accuracy by place, shifts.")
    add = parser.add_argument
    what = "trained models (default: all finished ones of --compared)"
    add("--model_path", metavar="RUN", type=Path, nargs="+", action="extend", help=what)
    what = "an --output_dir of compare_positions.py"
    add("--compared", metavar="DIR", type=Path, default=Path("runs/compare"), help=what)
    add("--split", metavar="NAME", help="default: the first test split of a model's corpus")
    what = "only the first N pairs, also of the gold links"
    add("--sentences", metavar="N", type=positive, help=what)
    what = "a folder with gold.talp and test.LANGUAGE: gold links between words (default: no aer)"
    add("--gold", metavar="DIR", type=Path, help=what)
    what = "trained models of the other direction (default: no agreement)"
    add("--reversed", metavar="RUN", type=Path, nargs="+", action="extend", default=[], help=what)
    add("--shifts", metavar="N,...", default="1,10,100", help="put positions so many places later")
    what = "the search with positions shifted, and as they are (default: greedy)"
    add("--search", choices=("greedy", "beam"), default="greedy", help=what)
    add("--threads", metavar="N", type=threads, help="CPU threads (give 1 beside other work)")
    what = "where everything is written (default: runs/attention_study)"
    add("--output_dir", metavar="DIR", type=Path, default=Path("runs/attention_study"), help=what)
    what = "take the rows of models measured before from this file, and add new ones"
    add("--store", metavar="FILE.csv", type=Path, help=what)
    what = "measure nothing: only write tables and plots of what is in --store"
    add("--report_only", action="store_true", help=what)
    args = parser.parse_args(argv)
    args.shifts = common.chosen_numbers(args.shifts, "--shifts", 1)
    if args.report_only and args.store is None:
        parser.error("--report_only: give the measured rows by --store")
    return args


def compared_runs(folder: Path) -> list[Path]:
    """The finished trainings of a comparison. Raises UserError where there is none."""
    runs = [run for trial in sorted((folder / "runs").glob("*")) if (run := finished_run(trial))]
    if not runs:
        why = "train some with experiments/compare_positions.py, or give --model_path or --compared"
        raise UserError(f"{folder}: no finished training in {folder / 'runs'}; {why}")
    return runs


def scheme_name(config: Config) -> str:
    """The scheme's name for --position, table sizes aside; else the name of the config."""
    return position_name(config.model.position) or config.name


def measured(measure: str, of: object, value: Any, n: int, **more: Any) -> dict[str, Any]:
    """A figure of a stack, a layer, a bucket of places or a shift, from n pairs or tokens."""
    row = {"measure": measure, "of": str(of), "layer": None, "head": None, "n": n, "reason": ""}
    return {**row, "value": None if value is None else float(value), **more}


def head_rows(pairs: EvaluationSet) -> Rows:
    """Entropy, distance and diagonal of every head."""
    ids, searcher = pairs.ids, pairs.translator.searcher

    def compute(rows: Sequence[int]) -> list[dict[base.Kind, dict[str, np.ndarray]]]:
        given = [ids.src(i).tolist() for i in rows], [ids.tgt(i).tolist() for i in rows]
        found = attention_weights(searcher, *given)
        return [{k: head_statistics(w.astype(np.float64)) for k, w in e.items()} for e in found]

    lengths = np.maximum(ids.src_lengths, ids.tgt_lengths).tolist()
    most = pairs.translator.decode.batch_on(searcher.device.type)
    found = in_batches(lengths, most, compute)
    return [
        measured(name, kind, value, len(ids), layer=layer + 1, head=head + 1)
        for kind in KINDS
        for name in found[0][kind]
        for (layer, head), value in np.ndenumerate(np.mean([e[kind][name] for e in found], axis=0))
    ]


def alignment_rows(pairs: EvaluationSet, folder: Path) -> Rows:
    """The alignment error rate by decoder layer, as `test.py --align` has it."""
    data, files = pairs.loaded.config.data, (folder / "gold.talp", folder / "test")
    src, tgt, gold = read_gold_pairs(*files, data.src_lang, data.tgt_lang)
    n = min(len(src), pairs.limit or len(src))
    linked = GoldPairs(pairs.translator.word_attention(src[:n], tgt[:n]), gold[:n])
    layers = range(1, len(linked.attention[0].produced) + 1)
    errors = [linked.scores(HeadChoice(layer)).aer for layer in layers]
    return [measured("aer", f"layer {i}", aer, n, layer=i) for i, aer in zip(layers, errors)]


def gold_checksum(folder: Path) -> str:
    """SHA-256 of the links. Raises UserError where there are none."""
    try:
        return sha256(folder / "gold.talp")
    except OSError as error:
        raise UserError(f"--gold {folder}: no gold.talp ({error.strerror})") from None


def agreement_rows(pairs: EvaluationSet, back: Translator) -> Rows:
    """By decoder layer, how far links agree with those of a model that translates back.

    The share of links that both models have, 2 |A and B| / (|A| + |B|).
    """
    src, tgt = pairs.sources, pairs.references
    links, other = pairs.translator.word_attention(src, tgt), back.word_attention(tgt, src)
    rows = Rows()
    for layer in range(1, min(len(links[0].produced), len(other[0].produced)) + 1):
        choice = HeadChoice(layer)
        turned = [frozenset((s, t) for t, s in each.aligned(choice).links) for each in other]
        apart = GoldPairs(links, [Gold(sure=each, possible=each) for each in turned]).scores(choice)
        rows.append(measured("agreement", f"layer {layer}", 1 - apart.aer, len(src), layer=layer))
    return rows


def turned_runs(paths: Sequence[Path]) -> dict[tuple[str, int], LoadedRun]:
    """The models of --reversed by scheme and seed. Raises UserError for two of the same."""
    found: dict[tuple[str, int], LoadedRun] = {}
    for each in map(load_run, paths):
        scheme, seed = key = scheme_name(each.config), each.config.train.seed
        if key in found:
            both = f"{found[key].run.path} and {each.run.path}"
            raise UserError(f"--reversed: {both} are both {scheme}, seed {seed}; give one")
        found[key] = each
    return found


@torch.inference_mode()
def accuracy_rows(pairs: EvaluationSet) -> Rows:
    """How often the likeliest token is the reference's, given those before it, by its place."""
    loaded, device = pairs.loaded, pairs.translator.searcher.device
    tokenizer, size = loaded.tokenizer, loaded.config.evaluate.batch_on(device.type)
    special = {"pad_id": tokenizer.pad_id, "bos_id": tokenizer.bos_id}
    right, places = list[bool](), list[int]()
    for padded in make_eval_loader(pairs.ids, batch_size=size, **special):
        batch = padded.to(device)
        logits = loaded.model(batch.src, batch.tgt_in, select=batch.flat)
        right += (logits.argmax(-1) == batch.targets).tolist()
        places += (batch.flat % batch.tgt_in.shape[1] + 1).tolist()
    of_place = common.buckets(PLACES, places).items()
    return [
        measured("accuracy", name, fmean(right[i] for i in rows) if rows else None, len(rows))
        for name, rows in of_place
    ]


def shift_rows(pairs: EvaluationSet, shifts: Sequence[int]) -> Rows:
    """sacreBLEU with shifted positions; or the reason why the scheme has no such positions."""
    model, n, rows = pairs.loaded.model, len(pairs.sources), Rows()
    scheme, plain = model.scheme, pairs.translate()[0]
    for shift in (0, *shifts):
        model.scheme = Shifted(scheme, shift)
        try:
            found = pairs.translate()[0] if shift else plain
        except UserError as error:
            reason = " ".join(str(error).split())
            rows.append(measured("sacrebleu", shift, None, n, reason=reason))
            continue
        finally:
            model.scheme = scheme
        language = pairs.loaded.config.data.tgt_lang
        bleu = summed_bleu(sentence_statistics(found, pairs.references, language).sum(0))
        rows.append(measured("sacrebleu", shift, bleu, n))
        if shift:
            same = fmean(a == b for a, b in zip(found, plain))
            rows.append(measured("unchanged", shift, same, n))
    return rows


def read_rows(path: Path) -> dict[str, Rows]:
    """The rows of a store, by checkpoint; none if there is no file. Raises UserError."""
    kinds = {"seed": int, "sentences": int, "layer": int, "head": int, "n": int, "value": float}
    found: dict[str, Rows] = {}
    try:
        there = read_csv(path) if path.exists() else []
        if not there and path.exists() and path.stat().st_size:
            raise ValueError("one line alone")
        for row in there:
            found.setdefault(row["checkpoint_sha256"], []).append(
                {k: (kinds[k](v) if v else None) if k in kinds else v for k, v in row.items()}
            )
        for run, rows in found.items():
            if "0" not in mean_by(rows, "of", measure="sacrebleu"):
                raise ValueError(f"the rows of {run} are incomplete")
    except (EOFError, OSError, ValueError, KeyError, TypeError, zlib.error) as error:
        why = f"no rows of this study ({one_line(error)})"
        raise UserError(f"{path}: {why}: name another file") from None
    return found


def wanted_split(args: Namespace, loaded: LoadedRun) -> str:
    """The split to measure on. Raises UserError where the corpus does not have it."""
    return choose_splits(build_corpus(loaded.config.data), args.split)[0]


def study(args: Namespace, loaded: LoadedRun, turned: dict[tuple[str, int], LoadedRun]) -> Rows:
    """All figures of a model, and how it was trained.

    Raises UserError as test.py does, and for a partner of the same direction.
    """
    config, translator = loaded.config, Translator.of(loaded, resolve_device("auto"))
    split = wanted_split(args, loaded)
    pairs = EvaluationSet(loaded, translator, split, args.search == "greedy", args.sentences)
    scheme, seed = scheme_name(config), config.train.seed
    back = turned.get((scheme, seed))
    if back is not None and back.config.data.src_lang != config.data.tgt_lang:
        why = f"{loaded.run.path} too translates from {config.data.src_lang}"
        raise UserError(f"--reversed {back.run.path}: {why}; give a model that translates back")
    # First, since DIR may be wrong.
    aligned = Rows()
    if args.gold is not None:
        against = {"against": gold_checksum(args.gold)}
        aligned = [row | against for row in alignment_rows(pairs, args.gold)]
    rows = head_rows(pairs) + aligned
    rows += [*accuracy_rows(pairs), *shift_rows(pairs, args.shifts)]
    if back is not None:
        turned_rows = agreement_rows(pairs, Translator.of(back, resolve_device("auto")))
        rows += [row | {"against": back.checksum} for row in turned_rows]
    first = training_of(loaded) | {"split": split, "checkpoint_sha256": loaded.checksum}
    first["sentences"] = args.sentences
    last = {**provenance(resolve_device("auto")), "precision": loaded.trained["precision"]}
    return [{**first, **row, "search": args.search, **last} for row in rows]


def training_of(loaded: LoadedRun) -> dict[str, Any]:
    """The columns that tell the trainings of a store apart."""
    config = loaded.config
    return {"scheme": scheme_name(config), "seed": config.train.seed, "run": loaded.run.name}


def mean_by(rows: Rows, key: str, **where: str) -> dict[Any, float]:
    """The mean value of the rows, by the column `key`; of those rows alone that `where` fits."""
    found: dict[Any, list[float]] = {}
    for row in rows:
        if row["value"] is not None and all(row[name] == value for name, value in where.items()):
            found.setdefault(row[key], []).append(row["value"])
    return {name: fmean(values) for name, values in found.items()}


def require_same_flags(
    args: Namespace, rows: Rows, loaded: LoadedRun, turned: Mapping[tuple[str, int], LoadedRun]
) -> None:
    """Raises UserError where rows of a store were measured with other flags than `loaded` now."""
    first = rows[0]

    def other(measure: str, checksum: str) -> bool:
        """Whether it is missing or was measured against something else; older rows do not say."""
        against = {row.get("against") or checksum for row in rows if row["measure"] == measure}
        return against != {checksum}

    gold, back = args.gold, turned.get((first["scheme"], first["seed"]))
    wrong = {
        "--search": first["search"] != args.search,
        "--sentences": first.get("sentences") != args.sentences,
        "--shifts": {row["of"] for row in rows if row["measure"] == "sacrebleu"}
        != {"0", *map(str, args.shifts)},
        "--split": first["split"] != wanted_split(args, loaded),
        "--gold": gold is not None and other("aer", gold_checksum(gold)),
        "--reversed": back is not None and other("agreement", back.checksum),
    }
    for flag in (flag for flag, is_wrong in wrong.items() if is_wrong):
        what = f"{first['run']} was measured with another {flag}"
        raise UserError(f"{args.store}: {what}; name another file by --store")


def require_one_size(of_runs: Iterable[Rows]) -> None:
    """Raises UserError where runs were measured on different numbers of sentences."""
    of_text = (next(row for row in rows if row["measure"] == "sacrebleu") for rows in of_runs)
    runs = {row["n"]: row["run"] for row in of_text}
    if len(runs) > 1:
        told = ", ".join(f"{run} on {n:,}" for n, run in runs.items())
        how = "name another file by --store, or runs of one corpus"
        raise UserError(f"measured on different sentences ({told}): {how}")


def require_one_of_each(of_runs: Sequence[Rows]) -> None:
    """Raises UserError for two runs of one scheme and seed: they would count as two seeds."""
    runs: dict[tuple[str, int], str] = {}
    for first, *_ in of_runs:
        other = runs.setdefault((first["scheme"], first["seed"]), first["run"])
        if other != first["run"]:
            what = f"{first['scheme']}, seed {first['seed']}"
            raise UserError(
                f"{what} is both {other} and {first['run']}: study each by itself (--model_path), "
                "with a --store of its own"
            )


def by_scheme(of_runs: Sequence[Rows]) -> dict[str, list[Rows]]:
    """The rows of every seed, the best sacreBLEU first."""
    named = ((rows[0]["scheme"], rows) for rows in of_runs)
    return common.ranked(named, lambda rows: mean_by(rows, "of", measure="sacrebleu")["0"])


def report(of_runs: Sequence[Rows]) -> str:
    """Markdown: means over the seeds; figures of heads also over layers and heads."""
    groups, every = by_scheme(of_runs), [row for rows in of_runs for row in rows]

    def table(form: str, *names: str) -> str:
        wanted = dict.fromkeys((r["measure"], r["of"]) for r in every if r["measure"] in names)
        known = {
            name: [{w: mean_by(rows, "of", measure=w[0]).get(w[1]) for w in wanted} for rows in of]
            for name, of in groups.items()
        }
        columns = {"seeds": len, **{" ".join(w): means(w, form) for w in wanted}}
        return seeds_table("scheme", known, columns, {})

    reasons = [
        f"- {row['scheme']}, seed {row['seed']}, shift {row['of']}: {row['reason']}\n"
        for row in every
        if row["reason"]
    ]
    splits, seeds, searches = (
        ", ".join(dict.fromkeys(str(row[key]) for row in every))
        for key in ("split", "seed", "search")
    )
    n, first = every[0]["n"], of_runs[0]
    tokens = [f"{row['of']}: {row['n']:,}" for row in first if row["measure"] == "accuracy"]
    heads = table(".3f", "entropy", "distance", "diagonal", "aer", "agreement")
    return (
        f"# What a scheme does to attention\n\n{splits}, {n:,} pairs; seeds {seeds}; {searches} "
        f"search; {common.provenance_line(every)}. {common.SPREAD}; the best sacreBLEU is first."
        "\n\n## Heads\n\nMeans over layers and heads: entropy in bits, distance in keys, diagonal "
        "as the share of attention. aer (the alignment error rate) and agreement, if measured, are "
        f"shares, by the mean of a decoder layer's heads.\n\n{heads}\n"
        "## Accuracy by place\n\nThe share of target tokens that the model ranks first after the "
        f"reference's, by their place. Tokens: {'; '.join(tokens)}.\n\n{table('.3f', 'accuracy')}\n"
        "## Shifted positions\n\nAll positions of both sides shifted by so many places (0: as "
        "trained): sacreBLEU, and the share of translations that do not change.\n\n"
        f"{table('.2f', 'sacrebleu')}\n{table('.3f', 'unchanged')}"
        + "".join(["\n", *reasons] if reasons else [])
    )


def draw(folder: Path, of_runs: Sequence[Rows]) -> None:
    """By layer, by place and by shift: a row for each scheme, the means over its seeds."""
    groups = {name: sum(seeds, Rows()) for name, seeds in by_scheme(of_runs).items()}

    def dots(key: str, form: str, **where: str) -> dict[str, dict[str, float]]:
        found = {name: mean_by(rows, key, **where) for name, rows in groups.items()}
        return {n: {form.format(k): v for k, v in each.items()} for n, each in found.items()}

    heads = {
        f"{measure}, {kind}": dots("layer", "layer {}", measure=measure, of=kind)
        for measure in ("entropy", "distance")
        for kind in KINDS
    }
    title, label = "Entropy (bits) and distance (keys) of attention", "mean over heads and seeds"
    figure = dot_panels(heads, columns=len(heads), width=2.0, title=title, x_label=label)
    for row in (figure.axes[: len(KINDS)], figure.axes[len(KINDS) :]):
        ends = [end for place in row for end in place.get_xlim()]
        room = 0.05 * (max(ends) - min(ends))  # for whole dots
        for place in row:
            place.set_xlim(min(ends) - room, max(ends) + room)
    save_figure(figure, folder / "attention_layers.png")
    title = "Accuracy after the reference's tokens, by place in the sentence"
    label = "share of the target tokens, mean over the seeds"
    places = dots("of", "tokens {}", measure="accuracy")
    figure = dot_panels({"": places}, title=title, x_label=label)
    save_figure(figure, folder / "attention_accuracy.png")
    title = "sacreBLEU with the positions of both sides shifted"
    label, shifts = "mean over the seeds", dots("of", "by {}", measure="sacrebleu")
    figure = dot_panels({"": shifts}, title=title, x_label=label)
    save_figure(figure, folder / "attention_shifts.png")


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    known = {} if args.store is None else read_rows(args.store)
    paths = [] if args.report_only else args.model_path or compared_runs(args.compared)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    turned = turned_runs(args.reversed)
    # Whatever the search in a run's own config.
    change = config_change(None, args.search, ["decode.mbr=none"], best_alone=True)
    wanted = list(known.values())
    for path in paths:  # check all of them before measuring the first
        loaded = load_run(path, change=change)
        for kept in known.values():
            require_same_flags(args, kept, loaded, turned)
        wanted.append([training_of(loaded)])
    require_one_of_each(wanted)
    if paths:
        with write_errors(args.output_dir):
            args.output_dir.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(paths, start=1):
        loaded = load_run(path, change=change)
        checkpoint = loaded.checksum
        how = ", measured before" if checkpoint in known else ""
        rows = known.pop(checkpoint, None) or study(args, loaded, turned)
        # Another checkpoint of a run is not another seed: the last one stays.
        own = training_of(loaded).items()
        known = {sha: of for sha, of in known.items() if not own <= of[0].items()}
        known[checkpoint] = rows
        require_one_size(known.values())
        scheme, seed = rows[0]["scheme"], rows[0]["seed"]
        turned.pop((scheme, seed), None)
        say(f"[{number}/{len(paths)}] {scheme}, seed {seed}{how}")
        if args.store is not None:
            write_csv(args.store, [row for of_run in known.values() for row in of_run])
    for scheme, seed in turned:
        say(f"warning: --reversed: no model of {scheme}, seed {seed}, to compare it with")
    if not known:
        raise UserError(f"{args.store}: no such file, or an empty one: nothing to report")
    of_runs, folder = list(known.values()), args.output_dir
    require_one_size(of_runs)
    text = report(of_runs)
    write_text(folder / "attention.md", text)
    write_csv(folder / "attention.csv", [row for rows in of_runs for row in rows])
    draw(folder, of_runs)
    print(text, end="")
    say(f"written: {folder}/attention*")


if __name__ == "__main__":
    run_main(main)
