"""Train on short sentences, test on longer ones: `python experiments/length_extrapolation.py
--corpus phrasebook`.

Every scheme is trained on sentences of at most --max_words words and scored by source length, below
that limit and beyond it. Two corpora:

    phrasebook    its own split by length: short sentences for training and validation, longer ones
    alone in the test
                  split; figures up to the limit are those of the validation split (which also chose
                  the checkpoint)
    files         real text (configs/multi30k_small_rope.py): training and validation pairs with
    more words on either
                  side are left out, in copies under --output_dir; the test files are scored whole

Runs are separate processes, resumed where they were cut short and not repeated where they are done.
Written into --output_dir: extrapolation.md, extrapolation.csv, extrapolation.png.

How to read it. A learned table has rows for the longest test sentence (512 by default), but those
beyond the trained length were never trained: they keep their random initial values, and that is
what is tested. The scalings of RoPE named by --scaled_at_test are not trained: they are methods to
stretch a model that was trained with plain RoPE, so the trained rope run is scored with its
rotation scaled, without a further update. Their trained length is put at two tokens a word: in both
corpora fewer than one sentence in a hundred of N words has more than 2N tokens. A scheme with a
scaling can be named under --positions too; it is then trained as it stands in configs/positions.py.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

if (
    not __package__
):  # run as a file: the root of the repository is where imports begin, not this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from configs.load import load_config, write_config_json
from configs.positions import POSITIONS, DynamicNtkScaling, NoScaling, Rope, YarnScaling
from configs.schema import Config, ParallelFiles, Phrasebook
from configs.serialize import to_dict
from data.corpora.base import ParallelText
from data.corpora.build import build_corpus
from experiments import runs
from experiments.common import mean_plus_minus
from experiments.runs import Runner, Trial
from utils.cli import Parser, positive, run_main
from utils.errors import UserError
from utils.files import write_text
from utils.tables import markdown_table, write_csv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMES = (
    "sinusoidal",
    "learnable",
    "rope",
    "alibi",
    "t5",
    "kerple_log",
    "none",
    "randomized_rope",
)
SCALED = ("rope_linear", "rope_ntk", "rope_yarn")
CONFIGS = {"phrasebook": "configs/demo.py", "files": "configs/multi30k_small_rope.py"}
MAX_WORDS = {"phrasebook": 10, "files": 12}
FEWEST = 25  # sentences beyond the last edge: BLEU of fewer says little
AT_TEST = "_at_test"


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = Parser(
        description="Train on sentences up to a length, score beyond it, for several position schemes."
    )
    parser.add_argument("--corpus", choices=tuple(CONFIGS), default="phrasebook")
    parser.add_argument(
        "--max_words",
        metavar="N",
        type=positive,
        help="training limit (default: 10 for phrasebook, 12 for files)",
    )
    parser.add_argument(
        "--scaled_at_test",
        metavar="NAME,...",
        default=",".join(SCALED),
        help="scalings of RoPE applied to the trained rope runs; '' for none",
    )
    runs.add_positions_argument(parser)
    runs.add_trial_arguments(parser, config=None, output_dir=None)
    args = parser.parse_args(argv)
    args.config = args.config or CONFIGS[args.corpus]
    args.max_words = args.max_words or MAX_WORDS[args.corpus]
    args.output_dir = args.output_dir or Path(f"runs/extrapolation_{args.corpus}")
    return args


# --------------------------------------------------------------------------------------------- text


def short_pairs(text: ParallelText, max_words: int) -> ParallelText:
    """The pairs with at most so many words (split at white space) on either side."""
    rows = [
        i
        for i, pair in enumerate(zip(text.src, text.tgt))
        if max(len(s.split()) for s in pair) <= max_words
    ]
    return ParallelText([text.src[i] for i in rows], [text.tgt[i] for i in rows])


def write_short_corpus(config: Config, max_words: int, folder: Path) -> ParallelFiles:
    """Line-parallel files under `folder`: short training and validation pairs, whole test splits;
    their config.

    The name of their own folder holds a hash of the text, so that other text never passes for it.
    Raises UserError where no short pair is left.
    """
    corpus = build_corpus(config.data)
    splits = {}
    for name in (corpus.train, corpus.validation):
        splits[name] = short_pairs(corpus.load(name), max_words)
        if not len(splits[name]):
            raise UserError(f"--max_words {max_words}: no pair of {name} is so short")
    names = {"train": corpus.train, "valid": corpus.validation}
    stems = {
        **names,
        **{f"test_{i}" if name in names else name: name for i, name in enumerate(corpus.test)},
    }
    texts = {
        stem: splits[name] if stem in names else corpus.load(name) for stem, name in stems.items()
    }
    digest = hashlib.sha256(
        "".join(f"{stem} {text.fingerprint()} " for stem, text in texts.items()).encode()
    )
    root = folder / f"text_max{max_words}_{digest.hexdigest()[:8]}"
    for stem, text in texts.items():
        for language, lines in ((config.data.src_lang, text.src), (config.data.tgt_lang, text.tgt)):
            write_text(root / f"{stem}.{language}", "".join(f"{line}\n" for line in lines))
    tests = tuple(stem for stem in stems if stem not in names)
    return ParallelFiles(root=str(root), train="train", validation="valid", test=tests)


def limited_overrides(args: Namespace) -> list[str]:
    """What `--set` must say for the corpus to be cut at the limit. Raises UserError where the
    config has another.
    """
    config = load_config(args.config, args.overrides)
    kinds = {"phrasebook": Phrasebook, "files": ParallelFiles}
    if not isinstance(config.data.corpus, kinds[args.corpus]):
        raise UserError(
            f"--corpus {args.corpus}, but {args.config} has the {config.data.corpus.kind} corpus: give --config, or "
            f"--set data.corpus={args.corpus}"
        )
    if args.corpus == "phrasebook":
        return [f"data.corpus.train_max_words={args.max_words}"]
    short = write_short_corpus(config, args.max_words, args.output_dir)
    return [
        f"data.corpus.root={short.root}",
        f"data.corpus.train={short.train}",
        f"data.corpus.validation={short.validation}",
        f"data.corpus.test={','.join(short.test)}",
    ]


def length_edges(sources: Sequence[str], max_words: int) -> tuple[int, ...]:
    """Upper ends of the buckets: equal steps on both sides of the limit, as far as there are enough
    sentences.
    """
    words = [len(source.split()) for source in sources]
    step = max(1, max_words // 4)
    edges = [edge for edge in (max_words - 2 * step, max_words - step, max_words) if edge >= 1]
    while sum(count > edges[-1] + step for count in words) >= FEWEST:
        edges.append(edges[-1] + step)
    return tuple(edges)


# ----------------------------------------------------------------------- RoPE scaled after training


def scaled_position(position: Rope, name: str, max_words: int) -> Rope:
    """The trained rotation with the scaling of the scheme `name`, told how long the training
    sentences were.
    """
    scheme = POSITIONS[name]
    assert isinstance(scheme, Rope)
    scaling = scheme.scaling
    if isinstance(scaling, (DynamicNtkScaling, YarnScaling)):
        scaling = dataclasses.replace(scaling, trained_length=2 * max_words)
    return dataclasses.replace(position, scaling=scaling)


def copy_scaled(source: Trial, trial: Trial) -> None:
    """Make the trial's run from the finished run of `source`: the same weights, the trial's config.

    Raises UserError where that run is not there or cannot be read.
    """
    run = source.finished_run()
    if run is None:
        raise UserError(f"{source.title} is not trained")
    old = trial.finished_run()
    if old is not None and old.name == run.name:
        return
    # This imports torch: only when all training is over.
    from checkpoints.content import read_checkpoint, write_checkpoint
    from checkpoints.run import Run

    trial.prepare()
    best = Run(run).best()
    if best is None:
        raise UserError(f"{run} has no best checkpoint: validation was off (evaluate.every_epochs)")
    payload = read_checkpoint(best)
    payload["config"]["model"]["position"] = to_dict(trial.config.model.position)
    copy = Run(trial.folder / run.name)
    shutil.rmtree(copy.path, ignore_errors=True)
    copy.checkpoints.mkdir(parents=True)
    shutil.copytree(run / "tokenizer", copy.tokenizer)
    copy.logs.mkdir()
    shutil.copy(run / "logs" / "metrics.jsonl", copy.logs)
    write_config_json(trial.config, copy.config_file)
    write_checkpoint(copy.checkpoints / best.name, payload)
    shutil.copy(source.folder / "train.log", trial.folder)
    write_text(
        trial.folder / "train.out", f"{copy.path}\n"
    )  # last: where it stands, the rest is whole


# ------------------------------------------------------------------------------------------- tables


@dataclass
class Extrapolation:
    """What was asked for, and what is there of it."""

    args: Namespace
    seeds: list[int]
    edges: tuple[int, ...]
    counts: list[int]  # sentences in each bucket
    trials: list[Trial]
    failures: dict[str, str]  # by the trial's or the scheme's name
    _scores: dict[Path, tuple[list[float | None], list[float | None]]] = field(default_factory=dict)

    def scores(self) -> dict[str, list[tuple[Trial, list[float | None], list[float | None]]]]:
        """By scheme, best beyond the limit first: each done trial with its BLEU by bucket, and
        below and beyond.
        """
        found: dict[str, list[tuple[Trial, list[float | None], list[float | None]]]] = {}
        for trial in self.trials:
            run = trial.finished_run()
            if run is None or not trial.is_scored():
                continue
            if run not in self._scores:
                self._scores[run] = (
                    runs.bleu_by_length(trial, trial.splits, self.edges),
                    runs.bleu_by_length(trial, trial.splits, [self.args.max_words]),
                )
            found.setdefault(trial.variant, []).append((trial, *self._scores[run]))
        return dict(
            sorted(found.items(), key=lambda item: -fmean(rest[1] or 0.0 for *_, rest in item[1]))
        )


def markdown(extrapolation: Extrapolation) -> str:
    """BLEU by source length for a reader: a row for each scheme, means over the seeds."""
    args, scores = extrapolation.args, extrapolation.scores()
    limit = args.max_words
    if not scores:
        failed = "".join(f"- {name}: {reason}\n" for name, reason in extrapolation.failures.items())
        return failed or "Nothing is done.\n"
    names = runs.bucket_names(extrapolation.edges)
    header = ["scheme", "seeds", f"up to {limit} words", f"beyond {limit}"]
    header += [f"{name} words (n={n})" for name, n in zip(names, extrapolation.counts)]

    def cells(rows: Sequence[Sequence[float | None]]) -> list[str]:
        return [
            mean_plus_minus([value for value in column if value is not None], 1)
            for column in zip(*rows)
        ]

    rows = [
        [
            name,
            len(found),
            *cells([sides for *_, sides in found]),
            *cells([buckets for _, buckets, _ in found]),
        ]
        for name, found in scores.items()
    ]
    rows += [
        [name, f"failed: {reason}", *["–"] * (len(header) - 2)]
        for name, reason in extrapolation.failures.items()
    ]
    changes = runs.stated_changes(args.overrides)
    [first, *_] = next(iter(scores.values()))
    result = first[0].result()
    assert result is not None
    made = result.provenance
    return (
        f"# Trained up to {limit} words, tested beyond\n\n"
        f"sacreBLEU by source length. Config {Path(args.config).name}"
        f"{' with ' + ', '.join(changes) if changes else ''}; {args.corpus} corpus; seeds "
        f"{', '.join(map(str, extrapolation.seeds))}; {args.search} search; splits {', '.join(first[0].splits)}; "
        f"commit {made['commit']}, torch {made['torch']}, {made['hardware']}. Schemes ending in `{AT_TEST}` are the "
        f"trained rope runs with their rotation scaled for the test alone.\n\n{markdown_table(header, rows)}"
    )


def csv_rows(extrapolation: Extrapolation) -> tuple[list[str], list[list[object]]]:
    """Header and rows: each scheme, seed and bucket; what is not done has one row that says so."""
    header = [
        "position",
        "seed",
        "status",
        "reason",
        "from_words",
        "to_words",
        "sentences",
        "beyond",
        "sacrebleu",
    ]
    scores = extrapolation.scores()
    done = {
        (trial.variant, trial.seed): buckets
        for found in scores.values()
        for trial, buckets, _ in found
    }
    spans = list(zip([1, *(edge + 1 for edge in extrapolation.edges)], [*extrapolation.edges, ""]))
    rows: list[list[object]] = []
    for trial in extrapolation.trials:
        buckets = done.get((trial.variant, trial.seed))
        if buckets is None:
            reason = extrapolation.failures.get(trial.title, "")
            rows.append(
                [trial.variant, trial.seed, "failed" if reason else "not run", reason, *[""] * 5]
            )
            continue
        for (low, high), n, bleu in zip(spans, extrapolation.counts, buckets):
            beyond = int(low > extrapolation.args.max_words)
            rows.append(
                [
                    trial.variant,
                    trial.seed,
                    "done",
                    "",
                    low,
                    high,
                    n,
                    beyond,
                    "" if bleu is None else bleu,
                ]
            )
    named = {trial.title for trial in extrapolation.trials}
    for name, reason in extrapolation.failures.items():
        if name not in named:
            rows.append([name, "", "failed", reason, *[""] * 5])
    return header, rows


def figure(extrapolation: Extrapolation) -> Figure:
    """A line for each scheme over the buckets, with the training limit marked."""
    limit, scores = extrapolation.args.max_words, extrapolation.scores()
    title = f"Trained up to {limit} words ({extrapolation.args.corpus}), tested beyond"
    drawn, [panel] = runs.empty_figure(1, width=7.0, height=4.6, title=title, room=1.8)
    panel.set_xlabel("source words (number of sentences)")
    panel.set_ylabel("sacreBLEU")
    lines = []
    for number, found in enumerate(scores.values()):
        ys = [
            fmean(known)
            if (known := [value for value in column if value is not None])
            else float("nan")
            for column in zip(*(buckets for _, buckets, _ in found))
        ]
        style = ("-", "--", ":")[number // 10 % 3]  # ten colours
        lines += panel.plot(
            range(len(ys)),
            ys,
            style,
            marker="o",
            markersize=4,
            linewidth=1.6,
            color=f"C{number % 10}",
        )
    border = extrapolation.edges.index(limit) + 0.5
    panel.axvline(border, color="black", linewidth=1.0, linestyle="--")
    panel.annotate(
        "longer than in training →",
        (border, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, -4),
        textcoords="offset points",
        va="top",
        fontsize=8,
    )
    labels = [
        f"{name}\n({n:,})"
        for name, n in zip(runs.bucket_names(extrapolation.edges), extrapolation.counts)
    ]
    panel.set_xticks(range(len(labels)), labels=labels, fontsize=8)
    panel.set_xlim(-0.5, len(labels) - 0.5)
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    drawn.legend(lines, list(scores), loc="outside right center", frameon=False, fontsize=8)
    return drawn


# ------------------------------------------------------------------------------------------- script


def write_tables(extrapolation: Extrapolation) -> None:
    folder = extrapolation.args.output_dir
    write_text(folder / "extrapolation.md", markdown(extrapolation))
    write_csv(folder / "extrapolation.csv", *csv_rows(extrapolation))


def scaled_names(text: str) -> list[str]:
    """The schemes in `text`. Raises UserError for one that is not RoPE with a scaling."""
    names = runs.chosen_positions(text, ()) if text.strip() else []
    for name in names:
        scheme = POSITIONS[name]
        if not isinstance(scheme, Rope) or isinstance(scheme.scaling, NoScaling):
            raise UserError(f"--scaled_at_test {name}: not a scaling of RoPE")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 where a run failed, 128 + a signal."""
    args = parse_args(argv)
    positions = runs.chosen_positions(args.positions, SCHEMES)
    scaled = scaled_names(args.scaled_at_test) if "rope" in positions else []
    seeds = runs.chosen_seeds(args.seeds)
    limits = limited_overrides(args)
    shared = Namespace(**{**vars(args), "overrides": [*args.overrides, *limits]})
    configs, refused = runs.resolve_configs(partial(runs.position_config, shared), positions, seeds)
    corpus = build_corpus(next(iter(configs.values())).data)
    more = (corpus.validation,) if args.corpus == "phrasebook" else ()
    sources = [line for split in (*corpus.test, *more) for line in corpus.load(split).src]
    edges = length_edges(sources, args.max_words)

    def trial(name: str, seed: int, config: Config) -> Trial:
        return Trial(name, seed, config, args.output_dir, corpus.test, more, args.search)

    trained = [trial(name, seed, config) for (name, seed), config in configs.items()]
    pairs = []
    for source in trained:
        if source.variant == "rope" and isinstance(source.config.model.position, Rope):
            for name in scaled:
                position = scaled_position(source.config.model.position, name, args.max_words)
                model = dataclasses.replace(source.config.model, position=position)
                config = dataclasses.replace(source.config, model=model)
                pairs.append((source, trial(f"{name}{AT_TEST}", source.seed, config)))
    copies = [copy for _, copy in pairs]
    counts = [len(rows) for rows in runs.rows_by_length(sources, edges)]
    extrapolation = Extrapolation(
        args, seeds, edges, counts, [*trained, *copies], failures=dict(refused)
    )
    for name, reason in refused.items():
        runs.say(f"{name}: failed: {reason}")
    stopped = None
    if args.report_only:
        if not extrapolation.scores():
            raise UserError(
                f"{args.output_dir}: nothing of this is done yet; leave --report_only out to run it"
            )
    else:
        runner = Runner(
            jobs=args.jobs,
            threads=args.threads,
            failures=extrapolation.failures,
            say=runs.say,
            done=lambda: write_tables(extrapolation),
        )
        stopped = runner.run(trained)
        if stopped is None:
            ready = []
            for source, copy in pairs:
                try:
                    copy_scaled(source, copy)
                    ready.append(copy)
                except UserError as error:
                    extrapolation.failures[copy.title] = " ".join(str(error).split())
            stopped = runner.run(ready)
    write_tables(extrapolation)
    if extrapolation.scores():
        from pictures.panels import save_figure

        save_figure(figure(extrapolation), args.output_dir / "extrapolation.png")
    print(markdown(extrapolation), end="")
    runs.say(f"written: {args.output_dir}/extrapolation.*")
    return runs.exit_code(stopped, bool(extrapolation.failures))


if __name__ == "__main__":
    run_main(lambda: sys.exit(main()))
