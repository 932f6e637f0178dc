"""Train on short sentences, test on longer ones: `python experiments/length_extrapolation.py`.

Every scheme is trained on sentences of at most --max_words source words and scored by source
length, below that limit and beyond it. Two corpora:

    phrasebook    its own split by length: the test split has longer sentences alone; figures up to
                  the limit are those of the validation split (which also chose the checkpoint)
    files         real text (configs/multi30k_small_rope.py, or a mixture): training and validation
                  pairs with more words on either side are left out, in copies under --output_dir;
                  the test files are scored whole. data.clean=rules cleans these copies as one
                  text, so that a pair repeated by the weights of a mixture occurs once

Written into --output_dir: extrapolation.md, .csv, .png, and .jsonl with every training (see
experiments/store.py). How to read it: a learned table has rows for the longest test sentence, but
those beyond the trained length keep their random initial values. --ssmax trains NAME_ssmax beside
every scheme NAME. The scalings of RoPE named by --scaled_at_test stretch the trained rope run for
the test alone. Their trained length is taken as two tokens a word: in both corpora fewer than one
sentence in a hundred of N words has more. A scaling named under --positions is trained, for
data.max_len tokens.
"""

import hashlib
import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

import numpy as np

if not __package__:  # run as a file: imports begin at the root of the repository, not here
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from configs.load import load_config, write_config_json
from configs.position_names import POSITIONS
from configs.positions import DynamicNtkScaling, NoScaling, Rope, YarnScaling
from configs.schema import Config, ParallelFiles, Phrasebook
from configs.serialize import to_dict
from data.corpora.base import ParallelText
from data.corpora.build import build_corpus
from experiments.common import (
    SPREAD,
    SSMAX,
    Experiment,
    Rows,
    add_trial_arguments,
    bleu_by_length,
    buckets,
    chosen,
    length_figure,
    make_trials,
    means,
    not_run,
    ranked,
    seeds_table,
    with_ssmax,
)
from experiments.ranking import standings
from experiments.trials import ROOT, Runner, Trial, training_digest
from utils.cli import Parser, positive, run_main
from utils.errors import UserError
from utils.files import write_text
from utils.tables import markdown_table

SCHEMES = "sinusoidal,learnable,rope,alibi,t5,kerple_log,none,randomized_rope"
INSTEAD = {"model.position": "--positions", "data.corpus.train_max_words": "--max_words"}
DEFAULTS = {  # config and training limit, by corpus
    "phrasebook": ("configs/demo.py", 10),
    "files": ("configs/multi30k_small_rope.py", 12),
}
SCALINGS = [
    name
    for name, scheme in POSITIONS.items()
    if isinstance(scheme, Rope) and not isinstance(scheme.scaling, NoScaling)
]
FEWEST = 25  # sentences beyond the last edge: BLEU of fewer says little
MOST_LINES = 10  # in a figure: colours of more look alike
AT_TEST = "_at_test"


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = Parser(description="Train on sentences up to a length, score position schemes beyond.")
    add = parser.add_argument
    what = "the demo's phrasebook (default) or data.corpus=files"
    add("--corpus", choices=tuple(DEFAULTS), default="phrasebook", help=what)
    limit = (
        "most words of a training sentence (default: 10 for phrasebook, 12 for files); the "
        "phrasebook has 30,000 pairs: for fewer than 9 words lower data.corpus.n_train too"
    )
    add("--max_words", metavar="N", type=positive, help=limit)
    add(
        "--scaled_at_test",
        metavar="NAME,...",
        type=lambda text: chosen(text, SCALINGS, "scaling of RoPE") if text.strip() else [],
        help="scalings of RoPE applied to the trained rope runs (default: linear, NTK-aware and "
        "YaRN, where rope is trained); '' for none",
    )
    add("--ssmax", action="store_true", help="run every scheme a second time, with SSMax")
    add_trial_arguments(parser, config=None, output_dir=None, positions=SCHEMES)
    args = parser.parse_args(argv)
    if args.scaled_at_test and "rope" not in args.positions:
        parser.error("--scaled_at_test: it stretches trained rope runs; add rope to --positions")
    if args.scaled_at_test is None:
        args.scaled_at_test = ["rope_linear", "rope_ntk", "rope_yarn"]
    config, max_words = DEFAULTS[args.corpus]
    args.config = args.config or str(ROOT / config)
    args.max_words = args.max_words or max_words
    if args.corpus == "phrasebook" and args.max_words < 4:
        parser.error(f"--max_words {args.max_words}: the phrasebook needs 4 or more")
    args.output_dir = args.output_dir or Path(f"runs/extrapolation_{args.corpus}")
    return args


def short_pairs(text: ParallelText, max_words: int) -> ParallelText:
    """The pairs with at most max_words words (split at white space) on either side."""
    pairs = zip(text.src, text.tgt)
    short = [pair for pair in pairs if max(len(side.split()) for side in pair) <= max_words]
    return ParallelText([src for src, _ in short], [tgt for _, tgt in short])


def write_short_corpus(config: Config, max_words: int, folder: Path) -> ParallelFiles:
    """Line-parallel files under `folder`: short training and validation pairs, whole test splits.

    The name of their folder has a hash of the text, so that other text never passes for it. A test
    split that lies elsewhere, or has the name of another file, is `test_` and its number. Raises
    UserError where no short pair is left.
    """
    corpus = build_corpus(config.data)
    texts = {}
    for stem, name in (("train", corpus.train), ("valid", corpus.validation)):
        texts[stem] = short_pairs(corpus.load(name), max_words)
        if not len(texts[stem]):
            raise UserError(f"--max_words {max_words}: no pair of {name} is so short")
    elsewhere = [Path(name).is_absolute() or ".." in Path(name).parts for name in corpus.test]
    tests = [
        f"test_{i}" if name in texts or away else name
        for i, (name, away) in enumerate(zip(corpus.test, elsewhere))
    ]
    if len({*tests}) < len(tests):
        tests = [f"test_{i}" for i in range(len(tests))]
    texts.update(zip(tests, map(corpus.load, corpus.test)))
    prints = "".join(f"{stem} {text.fingerprint()} " for stem, text in texts.items())
    digest = hashlib.sha256(prints.encode()).hexdigest()[:8]
    root = folder / f"text_max{max_words}_{digest}"
    for stem, text in texts.items():
        for language, lines in ((config.data.src_lang, text.src), (config.data.tgt_lang, text.tgt)):
            write_text(root / f"{stem}.{language}", "".join(f"{line}\n" for line in lines))
    return ParallelFiles(root=str(root), train="train", validation="valid", test=tuple(tests))


def limited_corpus(args: Namespace) -> Phrasebook | ParallelFiles:
    """The corpus of the command line, cut at the limit. Raises UserError where it is another."""
    config = load_config(args.config, args.overrides)
    corpus = config.data.corpus
    if isinstance(corpus, Phrasebook) != (args.corpus == "phrasebook"):
        other = "phrasebook" if args.corpus == "files" else "files"
        raise UserError(
            f"--corpus {args.corpus}, but {args.config} has the {corpus.kind} corpus: give "
            f"--corpus {other}, or another --config"
        )
    if isinstance(corpus, Phrasebook):
        if config.data.src_lang != "fr":  # the phrasebook's limit counts French words
            raise UserError(
                "--corpus phrasebook: its limit counts French words; leave data.src_lang=fr"
            )
        return replace(corpus, train_max_words=args.max_words)
    return write_short_corpus(config, args.max_words, args.output_dir)


def length_edges(words: Sequence[int], max_words: int) -> tuple[int, ...]:
    """Upper ends of the buckets: equal steps around the limit, as long as sentences are many."""
    step = max(1, max_words // 4)
    edges = [edge for edge in (max_words - 2 * step, max_words - step, max_words) if edge >= 1]
    while sum(count > edges[-1] + step for count in words) >= FEWEST:
        edges.append(edges[-1] + step)
    return tuple(edges)


def scaled_trial(source: Trial, name: str, max_words: int) -> Trial:
    """The trial of `source` with its rotation scaled as in the scheme `name`, for sentences of
    max_words in training.
    """
    scheme, trained = POSITIONS[name], source.config.model.position
    assert isinstance(scheme, Rope)
    assert isinstance(trained, Rope)
    scaling = scheme.scaling
    if isinstance(scaling, (DynamicNtkScaling, YarnScaling)):
        scaling = replace(scaling, trained_length=2 * max_words)
    model = replace(source.config.model, position=replace(trained, scaling=scaling))
    config = replace(source.config, model=model)
    weights_of = training_digest(source.config)
    variant = f"{name}{AT_TEST}"
    return replace(source, variant=variant, config=config, weights_of=weights_of)


def copy_run(source: Trial, trial: Trial) -> None:
    """Make the trial's run from the finished run of `source`: the same weights, the trial's config.

    Raises UserError where that run does not exist or cannot be read.
    """
    run, old = source.run, trial.finished_run()
    if old is not None and old.name == run.name:
        return
    # This imports torch: only when all training is over.
    from checkpoints.content import read_checkpoint, write_checkpoint
    from checkpoints.run import Run

    best = Run(run).best()
    if best is None:
        raise UserError(f"{run} has no best checkpoint any more: delete it to train it again")
    payload = read_checkpoint(best)
    payload["config"]["model"]["position"] = to_dict(trial.config.model.position)
    trial.write_config()
    copy = Run(trial.folder / run.name)
    shutil.rmtree(copy.path, ignore_errors=True)
    shutil.copytree(run, copy.path, ignore=shutil.ignore_patterns("*.pt", "results"))
    write_config_json(trial.config, copy.config_file)
    write_checkpoint(copy.checkpoints / best.name, payload)
    shutil.copy(source.folder / "train.log", trial.folder)
    # Last: where this file exists, the rest is whole.
    write_text(trial.folder / "train.out", f"{copy.path}\n")


@dataclass
class Extrapolation(Experiment):
    """words: of the scored sources. pairs: each of a trial and its scaled copy."""

    stem = "extrapolation"
    words: list[int]
    edges: tuple[int, ...]  # of buckets of them
    pairs: list[tuple[Trial, Trial]]

    @cached_property
    def bleu(self) -> dict[str, list[float | None]]:
        """sacreBLEU of finished trials, by title: up to the limit, beyond it, then by bucket."""
        scored = {trial.title: self.record(trial).sentences.values() for trial in self.done}
        limit = [self.args.max_words]
        return {
            title: [*bleu_by_length(splits, limit), *bleu_by_length(splits, self.edges)]
            for title, splits in scored.items()
        }

    def ranked(self) -> dict[str, list[list[float | None]]]:
        """The same with `lengths` at the end, by scheme, best beyond the limit first."""
        of_seeds = ((t.variant, [*self.bleu[t.title], *self.lengths(t)]) for t in self.done)
        return ranked(of_seeds, lambda bleu: bleu[1] or 0.0)

    def gains(self) -> dict[str, list[tuple[float, float, float]]]:
        """SSMax's gain in sacreBLEU by scheme, up to the limit and beyond it, with 95% intervals.

        For the seeds that both have, by the bootstrap and Student's t of `ranking.py`.
        """
        scored = {(trial.variant, trial.seed): self.sides(trial) for trial in self.done}
        samples = self.trials[0].config.evaluate.bootstrap_samples
        found = {}
        for name in dict.fromkeys(variant for variant, _ in scored):
            both = (name, name + SSMAX)
            seeds = [seed for seed in self.args.seeds if all((v, seed) in scored for v in both)]
            if seeds:
                sides = [{v: [[scored[v, n][i]] for n in seeds] for v in both} for i in range(2)]
                found[name] = [
                    standings(side, name, samples)[name + SSMAX].difference for side in sides
                ]
        return dict(sorted(found.items(), key=lambda gain: -gain[1][1][0]))

    def sides(self, trial: Trial) -> list[np.ndarray]:
        """The BLEU statistics of sentences up to the limit, and of those beyond, [n,10] each."""
        splits = self.record(trial).sentences.values()
        beyond = np.concatenate([each.words for each in splits]) > self.args.max_words
        statistics = np.concatenate([each.statistics for each in splits])
        return [statistics[~beyond], statistics[beyond]]

    def lengths(self, trial: Trial) -> list[float | None]:
        """Tokens of the translations over those of the references, for both sides."""
        sums = [side[:, :2].sum(axis=0) for side in self.sides(trial)]
        return [ours / theirs if theirs else None for ours, theirs in sums]

    def run(self, runner: Runner) -> None:
        missing = [trial for trial in self.trials if not self.is_done(trial)]
        runner.run([trial for trial in missing if not trial.weights_of])
        pairs = [(source, scaled) for source, scaled in self.pairs if scaled in missing]
        ready = []
        for source, scaled in pairs if not runner.signals else []:
            try:
                if source.finished_run() is None and self.is_done(source):
                    gone = f"the run of {source.title} is gone: delete its line of {self.store}"
                    raise UserError(f"{gone} to train it again")
                copy_run(source, scaled)
                ready.append(scaled)
            except UserError as error:
                self.failures[scaled.title] = " ".join(str(error).split())
        runner.run(ready)

    def rows(self, trial: Trial) -> Rows:
        """One for each bucket."""
        lows = [1, *(edge + 1 for edge in self.edges)]
        counts = map(len, buckets(self.edges, self.words).values())
        names = ("from_words", "to_words", "sentences", "beyond", "sacrebleu")
        beyond = [int(low > self.args.max_words) for low in lows]
        columns = zip(lows, [*self.edges, None], counts, beyond, self.bleu[trial.title][2:])
        return [{"status": "done", "reason": "", **dict(zip(names, row))} for row in columns]

    def report(self, rows: Rows) -> str:
        """BLEU by source length: a row for each scheme, means over the seeds."""
        limit = self.args.max_words
        config, seeds, provenance = self.about()
        copies = f" Schemes ending in `{AT_TEST}` are the trained rope runs with their rotation "
        copies += "scaled for the test alone."
        by_length = buckets(self.edges, self.words)
        names = [f"up to {limit} words", f"beyond {limit}"]
        names += [f"{name} words (n={len(rows)})" for name, rows in by_length.items()]
        columns = {"seeds": len, **{name: means(i, ".1f") for i, name in enumerate(names)}}
        produced = [f"length, up to {limit}", f"length, beyond {limit}"]
        columns |= {name: means(i, ".2f") for i, name in enumerate(produced, start=len(names))}
        table = seeds_table("scheme", self.ranked(), columns, self.failures)
        return (
            f"# Trained up to {limit} words, tested beyond\n\n"
            f"sacreBLEU by source length, the best beyond {limit} words first; n: sentences; "
            "length: of the translations over that of the references; "
            f"{SPREAD}. {config}; {self.args.corpus} corpus; {seeds}; "
            f"{self.args.search} search; splits {', '.join(self.trials[0].splits)}; {provenance}."
            f"{copies * bool(self.pairs)}\n{not_run(rows, self.noun)}\n{table}"
            f"{self.gains_table(*names[:2])}"
        )

    def gains_table(self, *sides: str) -> str:
        """Markdown: SSMax's gain for each scheme and their mean; "" where none has it."""
        if not (gains := self.gains()):
            return ""
        lines = [
            [name, *(f"{by:+.2f} ({low:+.2f} to {high:+.2f})" for by, low, high in both)]
            for name, both in gains.items()
        ]
        mean = [f"{fmean(both[i][0] for both in gains.values()):+.2f}" for i in range(2)]
        table = markdown_table(["SSMax added to", *sides], [*lines, ["all, the mean", *mean]])
        return f"\nWhat SSMax adds to sacreBLEU, with 95% intervals:\n\n{table}"

    def draw(self, rows: Rows) -> None:
        """A line for each scheme over the buckets, with the limit marked; dots for many schemes."""
        from pictures.panels import dot_panels, save_figure

        limit = self.args.max_words
        bleu = {name: [each[2:-2] for each in seeds] for name, seeds in self.ranked().items()}
        title = f"Trained up to {limit} words ({self.args.corpus}), tested beyond"
        if len(bleu) > MOST_LINES:
            named = buckets(self.edges, self.words).items()
            spans = [f"{name} words ({len(places):,})" for name, places in named]
            dots = {
                name: dict(zip(spans, np.array(seeds, dtype=float).mean(axis=0)))
                for name, seeds in bleu.items()
            }
            label = "sacreBLEU, mean over the seeds (in brackets: sentences)"
            figure = dot_panels({"": dots}, title=title, x_label=label)
        else:
            figure = length_figure(bleu, self.words, self.edges, title)
            [axes] = figure.axes
            border = self.edges.index(limit) + 0.5
            axes.axvline(border, color="black", linewidth=1.0, linestyle="--")
            words, place = " longer than in training →", axes.get_xaxis_transform()
            axes.text(border, 0.98, words, transform=place, va="top", fontsize=8)
            axes.set_ylim(bottom=0)
        save_figure(figure, self.args.output_dir / "extrapolation.png")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, see Experiment.main."""
    args = parse_args(argv)
    limited = limited_corpus(args)

    def load(name: str, more: list[str]) -> Config:
        config = load_config(args.config, [*args.overrides, *more], name.removesuffix(SSMAX))
        config = replace(config, data=replace(config.data, corpus=limited))
        if name.endswith(SSMAX):
            model = replace(config.model, position=with_ssmax(config.model.position))
            config = replace(config, name=f"{config.name}{SSMAX}", model=model)
        return config

    names = [name + end for name in args.positions for end in ("", SSMAX)[: 1 + args.ssmax]]
    both_sides = args.corpus == "phrasebook"
    trials = make_trials(args, load, names, validation=both_sides, instead=INSTEAD)
    corpus = build_corpus(trials[0].config.data)
    sources = (line for split in trials[0].splits for line in corpus.load(split).src)
    words = [len(line.split()) for line in sources]
    if args.ssmax and not 0 < sum(count > args.max_words for count in words) < len(words):
        what = "--ssmax compares on both sides of it, and no test sentence is on one of them"
        raise UserError(f"--max_words {args.max_words}: {what}")
    edges = length_edges(words, args.max_words)
    pairs = [
        (trial, scaled_trial(trial, name, args.max_words))
        for trial in trials
        if trial.variant == "rope"
        for name in args.scaled_at_test
    ]
    trials += [scaled for _, scaled in pairs]
    return Extrapolation(args, trials, "position", words, edges, pairs).main()


if __name__ == "__main__":
    run_main(lambda: sys.exit(main()))
