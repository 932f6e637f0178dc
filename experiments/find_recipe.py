"""The best of many recipes for a config by successive halving: `python experiments/find_recipe.py`.

A recipe is one alternative of each choice (CHOICES, or --choice). A sample of all recipes, drawn
with a fixed seed, is trained on a small budget of target tokens. The best third by the validation
split goes on to the next budget, until the last one has a winner (Jamieson and Talwalkar 2016, with
thirds for halves). Only then are the tests read, for the winner alone, trained with each of
--seeds; the rounds use the first of these. --variants draws more of the same sample.

Each round trains from scratch. The effect of a learning rate depends on the budget of its schedule:
a short schedule reaches another result than the first tokens of a long one, and a prolonged short
run another than a long one. For the same reason, settings in updates are given for the last round
and shrink with the budget: the warm-up, the memory of a moving average of the weights, and the
number of checkpoints that are averaged, one an epoch and the end. A schedule in epochs stays as it
is.

Recipes may differ in their tokenizers, so the loss is not compared by token: it is the negative
log-likelihood of the validation references in nats a character. It counts one segmentation of each
reference, which is hard on a model trained on many (unigram sampling, BPE-dropout);
--choose_by bleu compares translations instead.

Written into --output_dir:

    recipe.md        a table for each round, best first; the winner on the tests
    recipe.csv       a row for each training
    recipe.jsonl     every scored training, unless --store names another file
"""

import itertools
import random
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

if not __package__:  # run as a file: imports begin at the root of the repository, not here
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from configs.load import load_config
from configs.position_names import POSITIONS, is_position
from configs.schema import Config
from configs.serialize import apply_overrides, parse_override
from data.corpora.build import build_corpus
from experiments.common import (
    NOTHING,
    PATHS,
    SPREAD,
    Experiment,
    Rows,
    add_trial_arguments,
    between_commas,
    chosen,
    mean_plus_minus,
    means,
    not_run,
    refuse_overrides,
    seeds_table,
)
from experiments.compare_methods import BASELINE, INVERSE_SQRT, METHODS, TWICE, parts_of, together
from experiments.trials import BUSY, Runner, Trial
from utils.cli import Parser, positive, run_main
from utils.errors import ConfigError, UserError
from utils.tables import markdown_table

INSTEAD = {"train.seed": "--seeds"}
INSTEAD |= dict.fromkeys(("train.max_tokens", "train.max_steps", "train.max_epochs"), "--rounds")
INSTEAD |= dict.fromkeys(("train.keep_regular", "train.checkpoint_every_epochs"), "--average")
ALTERNATIVES = {name: METHODS[name] for name in METHODS if name not in (TWICE, INVERSE_SQRT)}
ALTERNATIVES |= {
    f"width_{n}": (f"model.d_model={n}", f"model.d_ff={2 * n}") for n in (128, 192, 256)
}
ALTERNATIVES["dropout_04"] = ("model.dropout=0.4",)
CHOICES = (
    "width_128,width_192,width_256",
    "dropout_02,dropout_03,dropout_04",
    "plain,r_drop,unigram_sampling,r_drop+unigram_sampling",
    "rope,xlnet",
    "plain,moving_average",
    "plain,muon",
)
EPOCHS = 1_000_000  # more than any budget has


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = Parser(description="Find the best of many recipes for a config by successive halving.")
    config, folder = "configs/multi30k_recipe.py", Path("runs/find_recipe")
    seeds = "the rounds use the first; the winner is trained with each"
    add_trial_arguments(parser, config=config, output_dir=folder, seeds=seeds)
    add = parser.add_argument
    what = "alternatives, of which each recipe has one, in place of the choices below; repeatable. "
    what += "A+B: both. Each is a position scheme, SECTION.FIELD=VALUE or one of "
    what += f"{', '.join(ALTERNATIVES)}. Default: {'; '.join(CHOICES)}"
    add("--choice", metavar="A,...", action="append", type=chosen_alternatives, help=what)
    what = "recipes of the first round (default: 27)"
    add("--variants", metavar="N", type=positive, default=27, help=what)
    what = "budget of each round in millions of target tokens (default: 10,30,65)"
    add("--rounds", metavar="M,...", type=chosen_rounds, default="10,30,65", help=what)
    what = "average the last N checkpoints in the last round, unless a recipe has a moving "
    what += "average (default: 10; 1: score the best checkpoint)"
    add("--average", metavar="N", type=positive, default=10, help=what)
    what = "what to choose by on the validation split (default: loss)"
    add("--choose_by", choices=("loss", "bleu"), default="loss", help=what)
    what = "go on without the recipes that failed in a round, instead of ending the search"
    add("--skip_failed", action="store_true", help=what)
    args = parser.parse_args(argv)
    args.choice = args.choice or [chosen_alternatives(text) for text in CHOICES]
    refuse_overrides(args.overrides, INSTEAD)
    for choice in args.choice:
        texts = [
            [text for part in name.split("+") for text in part_changes(part)] for name in choice
        ]
        refuse_overrides(itertools.chain(*texts), INSTEAD, "--choice")
        keys = [{key for key, _ in map(parse_override, each)} for each in texts]
        # An override has no effect if all alternatives set its field; for the scheme, if one does.
        decided = set.intersection(*keys) | set.union(*keys) & {"model.position"}
        refuse_overrides(args.overrides, dict.fromkeys(decided, "--choice"))
    return args


def chosen_alternatives(text: str) -> list[str]:
    """The alternatives in `text`, between commas. Raises UserError for an unknown part."""
    alternatives = between_commas(text.replace(" ", ""))
    parts = parts_of(alternatives)
    names = [part for part in parts if "=" not in part and not is_position(part)]
    if names or not parts:
        chosen(",".join(names), ALTERNATIVES | POSITIONS, "alternative")
    return alternatives


def chosen_rounds(text: str) -> list[float]:
    """Budgets in millions of tokens, between commas. Raises UserError unless they increase."""
    try:
        budgets = [float(part) for part in between_commas(text)]
    except ValueError:
        budgets = []
    in_bounds = all(1e-6 <= each <= 1e12 for each in budgets)  # NaN is not
    if not budgets or not in_bounds or budgets != sorted(set(budgets)):
        raise UserError(f"--rounds {text!r}: give increasing millions of tokens, such as 10,30,65")
    return budgets


def sample(choices: Sequence[Sequence[str]]) -> list[str]:
    """Every recipe, in an order drawn with a fixed seed."""
    names: dict[str, None] = {}
    for alternatives in itertools.product(*choices):
        parts = [part for each in alternatives for part in each.split("+") if part != BASELINE]
        names["+".join(dict.fromkeys(parts)) or BASELINE] = None
    draw = random.Random(0)
    return sorted(names, key=lambda _: draw.random())


def part_changes(part: str) -> tuple[str, ...]:
    """The `--set` texts of one part of an alternative."""
    return (f"model.position={part}",) if is_position(part) else ALTERNATIVES.get(part, (part,))


def recipe_changes(args: Namespace, recipe: str) -> tuple[list[str], str | None]:
    """`--set` texts and the name of the position scheme.

    Raises ConfigError where two alternatives set a field differently, or both are schemes.
    """
    changes = {part: part_changes(part) for part in recipe.split("+")}
    together(changes)
    scheme = next(filter(is_position, changes), None)
    changes.pop(scheme or "", None)
    return [*args.overrides, *together(changes)], scheme


def recipe_config(args: Namespace, recipe: str, millions: float, seed: int) -> Config:
    """The config for a round of `millions` tokens. Raises ConfigError naming the recipe."""
    fixed = [f"train.max_tokens={round(1e6 * millions)}", f"train.max_epochs={EPOCHS}"]
    fixed += ["train.max_steps=none"]
    fixed += [f"train.keep_regular={max(2, args.average)}", f"train.seed={seed}"]
    fixed += ["train.checkpoint_every_epochs=1"]  # it decides what is averaged
    share, shrunk = millions / args.rounds[-1], []
    try:
        changes, position = recipe_changes(args, recipe)
        changes = [*changes, *fixed]
        config = load_config(args.config, changes, position)
        if config.evaluate.choose_by == "loss":  # BLEU in training would choose nothing
            changes = ["evaluate.bleu_every_epochs=0", *changes]
            config = load_config(args.config, changes, position)
        if config.data.eval_long == "truncate":
            why = "the tables have the loss of whole references; allowed: 'keep'"
            raise ConfigError(f"data.eval_long = 'truncate': {why}")
    except ConfigError as error:
        raise ConfigError(f"{recipe}: {error}") from None
    if (warmup := getattr(config.optim.schedule, "warmup_steps", None)) is not None:
        shrunk.append(f"optim.schedule.warmup_steps={max(1, round(share * warmup))}")
    if config.train.ema_decay is not None and share < 1:
        decay = round(max(0.5, 1 - (1 - config.train.ema_decay) / share), 6)
        shrunk.append(f"train.ema_decay={decay}")
    return apply_overrides(config, shrunk)


@dataclass
class Halving(Experiment):
    """Rounds of trials, then the winner's. A stage is known once the one before is done."""

    stem = "recipe"
    stages: list[list[Trial]] = field(init=False)

    def __post_init__(self) -> None:
        self.recipes = sample(self.args.choice)[: self.args.variants]
        self._reach()

    def _reach(self) -> None:
        self.stages = list(self._stages())
        self.trials = [trial for stage in self.stages for trial in stage]

    def _stages(self) -> Iterator[list[Trial]]:
        names = self.recipes
        for millions in self.args.rounds:
            trials = [self._trial(name, millions, self.args.seeds[0]) for name in names]
            yield trials
            best = sorted(filter(self.is_done, trials), key=self._figure)
            if not best or not all(self.is_done(each) or self._skipped(each) for each in trials):
                return
            names = [trial.variant for trial in best[: -(-len(trials) // 3)]]
        yield [self._trial(names[0], millions, seed, tests=True) for seed in self.args.seeds]

    def _skipped(self, trial: Trial) -> bool:
        """Whether to stop waiting for a trial that is not done."""
        failed = trial.title in self.failures or self.args.report_only
        busy = self.failures.get(trial.title, "").startswith(BUSY)
        return self.args.skip_failed and failed and not busy

    def _trial(self, name: str, millions: float, seed: int, *, tests: bool = False) -> Trial:
        config = recipe_config(self.args, name, millions, seed)
        corpus, average = build_corpus(config.data), 0
        if self.args.average > 1 and config.train.ema_decay is None:
            average = max(2, round(self.args.average * millions / self.args.rounds[-1]))
        read = corpus.test if tests else ()
        splits = (*read, corpus.validation)
        folder, search = self.args.output_dir, self.args.search
        return Trial(name, seed, config, folder, read, splits, search, average)

    def _figure(self, trial: Trial) -> float:
        """The figure of a trial; lower is better."""
        found = self.record(trial).scores[trial.splits[-1]]
        by_loss = self.args.choose_by == "loss"
        return found["character_loss"] if by_loss else -found["scores"]["sacrebleu"]

    def run(self, runner: Runner) -> None:
        known = 0
        while len(self.stages) > known and not runner.signals:
            known = len(self.stages)
            runner.run([trial for trial in self.stages[-1] if not self.is_done(trial)])
            self._reach()

    def rows(self, trial: Trial) -> Rows:
        """One row; the winner's has the tests' scores too."""
        done = self.record(trial)
        validation = done.scores[trial.splits[-1]]
        learned = {key: done.training[key] for key in ("parameters", "training_loss")}
        taken = {key: done.training[key] for key in ("tokens_per_second", "train_minutes", "jobs")}
        row = {"status": "done", "reason": "", **learned}
        row |= {"character_loss": validation["character_loss"], "token_loss": validation["loss"]}
        row |= {"validation_sacrebleu": validation["scores"]["sacrebleu"], **taken}
        row |= {"checkpoint": validation["checkpoint"], "run": done.run}
        row["commit"] = validation["provenance"]["commit"]
        for split in trial.tests:
            scores = done.scores[split]["scores"]
            row |= {f"sacrebleu {split}": scores["sacrebleu"], f"chrf {split}": scores["chrf"]}
        return [row]

    def all_rows(self) -> Rows:
        budgets = [*enumerate(self.args.rounds, 1), ("winner", self.args.rounds[-1])]
        firsts = [
            {"round": number, "million_tokens": millions}
            for (number, millions), stage in zip(budgets, self.stages)
            for _ in stage
        ]
        return [first | row for first, row in zip(firsts, super().all_rows(), strict=True)]

    def report(self, rows: Rows) -> str:
        """Each round, best recipe first; the winner's seeds; how to read the figures."""
        config, _, provenance = self.about()
        by = "loss a character" if self.args.choose_by == "loss" else "sacreBLEU"
        of_all = f"{len(self.recipes)} of {len(sample(self.args.choice))}"
        text = f"{config}; recipes: {of_all}, of each round the best third goes on, by the "
        text += f"validation split's {by}; {self.args.search} search; "
        parts = [f"# The best recipe by successive halving\n\n{text}{provenance}.\n"]
        going = [{trial.variant for trial in stage} for stage in self.stages[1:]]
        for number, _ in enumerate(self.stages[: len(self.args.rounds)], 1):
            of_round = [row for row in rows if row["round"] == number]
            on = going[number - 1] if number <= len(going) else set()
            parts.append(self._round(number, of_round, on))
        finals = [row for row in rows if row["round"] == "winner"]
        if finals:
            parts.append(self._winner(finals))
        parts.append(
            "Losses are in nats a character and nats a token of the validation references, without "
            "smoothing, by the checkpoint that was scored. Losses a token compare within one "
            "tokenizer only. sacreBLEU is of the validation split unless a test is named. The "
            "tests decided nothing.\n"
        )
        return "\n".join(parts)

    def _round(self, number: int, rows: Rows, going: set[str]) -> str:
        first = rows[0]
        head = f"## Round {number}: {first['million_tokens']:g} million target tokens, seed "
        order = [trial for trial in self.stages[number - 1] if trial in self.done]
        names = [trial.variant for trial in sorted(order, key=self._figure)]
        of_name = {row["recipe"]: row for row in rows}
        table = seeds_table(
            "recipe",
            {name: [of_name[name]] for name in names},
            {
                "loss a character": means("character_loss", ".4f"),
                "loss a token": means("token_loss", ".3f"),
                "sacreBLEU": means("validation_sacrebleu", ".2f"),
                "training loss": means("training_loss", ".3f"),
                "parameters": means("parameters", ",.0f"),
                "tokens/s": means("tokens_per_second", ",.0f"),
                "minutes": means("train_minutes", ".1f"),
                f"goes on{self._so_far([self.stages[number - 1]])}": lambda rows: (
                    "yes" if rows[0]["recipe"] in going else NOTHING
                ),
            },
            {name: row["reason"] for name, row in of_name.items() if row["status"] == "failed"},
        )
        return f"{head}{first['seed']}\n\n{table}{not_run(rows, self.noun)}"

    def _so_far(self, stages: Sequence[Sequence[Trial]]) -> str:
        """What is said of a choice while trials of `stages` are waited for."""
        waits = self.args.report_only
        missing = (each for each in itertools.chain(*stages) if each not in self.done)
        return " so far" * any(waits or not self._skipped(each) for each in missing)

    def _winner(self, rows: Rows) -> str:
        """A line for each seed, and their mean."""
        changes, position = recipe_changes(self.args, rows[0]["recipe"])
        winner = self.stages[-1][0]
        stated = dict(map(parse_override, changes))
        fixed = ("max_steps", "max_tokens", "max_epochs", "keep_regular", "checkpoint_every_epochs")
        stated |= {f"train.{key}": str(getattr(winner.config.train, key)) for key in fixed}
        settings = ["--position", str(position)] if position else []
        for key, value in stated.items():
            settings += [] if key.endswith(PATHS) else ["--set", f"{key}={value}"]
        last = winner.average
        few = "all if there are fewer"
        scored = f"the last {last} checkpoints averaged, {few}" if last else "the best checkpoint"
        columns = {"character_loss": "loss a character", "validation_sacrebleu": "validation"}
        columns |= {f"sacrebleu {test}": test for test in winner.tests}
        forms = [".4f", *[".2f"] * (len(columns) - 1)]
        groups = [(row["seed"], [row]) for row in rows] + [("mean", rows)] * (len(rows) > 1)
        lines = []
        for name, some in groups:
            known = [[row.get(key) for row in some] for key in columns]
            lines.append([name, *map(mean_plus_minus, known, forms)])
        table = markdown_table(["seed", *columns.values()], lines)
        failed = [
            f"Seed {row['seed']} {row['status']}. " for row in rows if row["status"] != "done"
        ]
        return (
            f"## The winner{self._so_far(self.stages[:-1])}: {rows[0]['recipe']}\n\n{table}\n"
            f"{''.join(failed)}sacreBLEU; {SPREAD}. Seed {rows[0]['seed']} is that of the rounds. "
            f"The recipe, {scored}: `{shlex.join(settings)}`\n"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, see Experiment.main."""
    return Halving(parse_args(argv), [], "recipe").main()


if __name__ == "__main__":
    run_main(lambda: sys.exit(main()))
