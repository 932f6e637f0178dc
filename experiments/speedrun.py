"""The time from an empty folder to 50 sacreBLEU on Multi30k: `python experiments/speedrun.py`.

One config is trained by train.py with several seeds, one after the other, each in an empty folder
without tokenizer and token cache, and scored on the validation split by greedy search. The clock
runs from the start of train.py to its end. What counts as a record: docs/speedrun.md.

Written into --output_dir: speedrun.md, .csv and .jsonl (see experiments/store.py), and `runs/` as
in experiments/trials.py. A seed that is done is not run again. One that was interrupted is started
anew, since a clock cannot be resumed. Another measurement of the same config needs another
--output_dir.
"""

import json
import shutil
import sys
import textwrap
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

if not __package__:  # run as a file: imports begin at the root of the repository, not here
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from configs.load import add_set_argument, load_config
from configs.multi30k_small_rope import MULTI30K
from configs.schema import Config, ParallelFiles, Subword
from experiments.common import (
    SPREAD,
    Experiment,
    Rows,
    chosen_seeds,
    mean_plus_minus,
    refuse_overrides,
)
from experiments.store import json_lines
from experiments.trials import ROOT, Trial, say, training_digest
from utils.cli import Parser, run_main, threads
from utils.errors import UserError
from utils.files import write_text
from utils.tables import markdown_table

MARK = 50.0  # sacreBLEU
N_SEEDS, N_CORES, P_VALUE = 5, 2, 0.01  # at least, at most, below
ONE_KIND = ("commit", "torch", "device", "hardware", "precision")  # the same for all seeds
RECORDS = Path("docs/results/speedrun.jsonl")


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = Parser(
        description=f"Time a training to {MARK:g} sacreBLEU on Multi30k's validation split."
    )
    add = parser.add_argument
    config = "configs/multi30k_small_rope.py"
    what = f"what is trained (default: {config})"
    add("--config", metavar="FILE", default=str(ROOT / config), help=what)
    seeds = "one training for each, one after the other (default: 0,1,2,3,4)"
    add("--seeds", metavar="N,...", type=chosen_seeds, default="0,1,2,3,4", help=seeds)
    add_set_argument(parser, "SECTION.FIELD=VALUE", "field of the config")
    what = "where everything is written (default: runs/speedrun)"
    add("--output_dir", metavar="DIR", type=Path, default=Path("runs/speedrun"), help=what)
    add("--threads", metavar="N", type=threads, help="CPU threads (default: cores)")
    nothing = "run nothing: only write table and entry of what is done"
    add("--report_only", action="store_true", help=nothing)
    what = "add a record to this file, and write the table beside it anew (default: "
    what += f"{RECORDS})"
    add("--records", metavar="FILE", type=Path, default=RECORDS, help=what)
    parser.set_defaults(jobs=1, store=None)
    return parser.parse_args(argv)


def require_rules(config: Config) -> None:
    """Raises UserError for a config that reads another text, or starts from trained weights."""
    corpus = config.data.corpus
    if isinstance(corpus, ParallelFiles):
        corpus = replace(corpus, root=MULTI30K.root)
    broken = {
        "data.corpus": corpus != MULTI30K,
        "data.src_lang": (config.data.src_lang, config.data.tgt_lang) != ("fr", "en"),
        "tokenizer": not isinstance(config.tokenizer, Subword),
        "train.init_from": config.train.init_from is not None,
        "evaluate.also": bool(config.evaluate.also),
    }
    for field in (name for name, is_broken in broken.items() if is_broken):
        raise UserError(
            f"{field}: the speedrun begins with Multi30k's own pairs, French to English, and with "
            "nothing else; see docs/speedrun.md"
        )


class TimedTrial(Trial):
    """A training from an empty folder, without a break."""

    def write_config(self) -> None:
        if self.finished_run() is None:
            for path in self.folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
        data = replace(self.config.data, cache_dir=str(self.folder / "cache"))
        Trial.write_config(replace(self, config=replace(self.config, data=data)))

    def finished_run(self) -> Path | None:
        """Also None where nobody saw the end, so that its time is not known."""
        timed = [attempt["seconds"] for attempt in self.attempts()]
        return None if None in timed else super().finished_run()

    def unfinished_run(self) -> None:
        return None


@dataclass
class Speedrun(Experiment):
    stem = "speedrun"

    def rows(self, trial: Trial) -> Rows:
        """One row for each seed."""
        record, done = self.record(trial), {"status": "done", "reason": ""}
        [scored] = record.scores.values()
        row = {"seconds": 60 * record.training["train_minutes"]}
        row["sacrebleu"] = scored["scores"]["sacrebleu"]
        return [
            done | row | {key: record.training[key] for key in ("validation_loss", "parameters")}
        ]

    def entry(self) -> dict[str, Any]:
        """All that a table of records shows; at least one trial is done."""
        rows = [row for trial in self.done for row in self.rows(trial)]
        bleu, seconds = ([row[key] for row in rows] for key in ("sacrebleu", "seconds"))
        made = [self.record(trial).provenance for trial in self.done]
        kinds = {key: dict.fromkeys(each[key] for each in made) for key in ONE_KIND}
        return {
            "config": self.about()[0].removeprefix("Config "),
            "digest": race_of(self.done[0].config),
            **{key: "; ".join(values) for key, values in kinds.items()},
            "cores": max(self.record(trial).training.get("cores", 0) for trial in self.done),
            "seeds": [trial.seed for trial in self.done],
            "seconds": [round(each, 1) for each in seconds],
            "sacrebleu": [round(each, 4) for each in bleu],
            "p_value": p_value(bleu),
            "log": [self.validations(trial) for trial in self.done],
        }

    def uncounted(self) -> list[int]:
        """Seeds of the race, asked for now or run before, that are not in the entry."""
        race, seeds = race_of(self.done[0].config), {trial.seed for trial in self.trials}
        known = [record.config for record in self.records.values()]
        seeds |= {config.train.seed for config in known if race_of(config) == race}
        return sorted(seeds - {trial.seed for trial in self.done})

    def report(self, rows: Rows) -> str:
        entry = self.entry()
        header = ["seed", "seconds", "sacreBLEU", "validation loss"]
        done = [row for row in rows if row["status"] == "done"]
        cells = {"seconds": ".1f", "sacrebleu": ".2f", "validation_loss": ".3f"}
        table = [
            [name, *(mean_plus_minus([row[key] for row in some], cells[key]) for key in cells)]
            for name, some in [*((row["seed"], [row]) for row in done), ("all", done)]
        ]
        failed = "".join(f"- {name}: {reason}\n" for name, reason in self.failures.items())
        lacking = lacks(entry, self.uncounted())
        verdict = f"No record: {'; '.join(lacking)}." if lacking else "A record by the rules."
        config, _, provenance = self.about()
        return (
            f"# To {MARK:g} sacreBLEU\n\n{config}; greedy search, {self.done[0].splits[0]}; "
            f"{provenance}.\n\n{markdown_table(header, table)}\n{failed}{verdict}\n"
        )

    def validations(self, trial: Trial) -> list[tuple[int, float]]:
        """Update and loss of each validation in training; none for a lost run."""
        log = self.args.output_dir / self.record(trial).run / "logs" / "metrics.jsonl"
        lines = json_lines(log, dict, "no line of a log")
        found = [line for line in lines if line["kind"] == "validation"]
        return [(line["step"], round(line["loss"], 4)) for line in found]

    def main(self) -> int:
        """As Experiment.main; a record is added to the file of records."""
        code = super().main()
        if self.done and not lacks(entry := self.entry(), self.uncounted()):
            add_record(self.args.records, entry)
        return code


def race_of(config: Config) -> str:
    """The digest of a training, whatever its seed."""
    return training_digest(replace(config, train=replace(config.train, seed=0)))


def p_value(bleu: Sequence[float]) -> float | None:
    """The p-value of a one-sided t-test for a mean above the mark; None for one score."""
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(bleu, MARK, alternative="greater").pvalue) if bleu[1:] else None


def lacks(entry: Mapping[str, Any], uncounted: Sequence[int]) -> list[str]:
    """What an entry lacks to be a record, also the seeds that count and are not in it."""
    seeds, p = entry["seeds"], entry["p_value"]
    chance = "of one seed" if p is None else f"p = {p:.2g} and not below {P_VALUE}"
    lacking = {
        f"all seeds from 0 to {max(N_SEEDS, len(seeds)) - 1} are needed": len(seeds) < N_SEEDS
        or sorted(seeds) != list(range(len(seeds))),
        f"{entry['cores']} cores (try `taskset -c 0,1`)": not 0 < entry["cores"] <= N_CORES,
        f"trained on {entry['device']}": entry["device"] != "cpu",
        f"uncommitted changes ({entry['commit']})": "dirty" in entry["commit"],
        f"seeds that count too: {', '.join(map(str, uncounted))}": bool(uncounted),
        "no commit is known": "unknown" in entry["commit"],
        f"mean {fmean(entry['sacrebleu']):.2f}, {chance}": p is None or not p < P_VALUE,
    }
    lacking |= {f"several kinds of {key}: {entry[key]}": "; " in entry[key] for key in ONE_KIND}
    return [text for text, is_lacking in lacking.items() if is_lacking]


def add_record(path: Path, entry: Mapping[str, Any]) -> None:
    """Add a line of JSON, unless it is there, and rewrite the table of all records beside it.

    Raises UserError naming a broken line.
    """
    header = ["record", "minutes", "sacreBLEU", "p", "seeds", "config", "digest", "commit"]
    header += ["precision", "hardware"]
    needed = ("seconds", "sacrebleu", "p_value", "seeds", *header[5:])

    def record(line: dict[str, Any]) -> dict[str, Any]:
        return line | {key: line[key] for key in needed}

    records = json_lines(path, record, "no record")
    same = ("digest", "commit", "seconds")  # of one race, even if its logs are gone
    if not any(all(each.get(key) == entry[key] for key in same) for each in records):
        records.append(dict(entry))
    write_text(path, "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in records))
    table = [
        [n, mean_plus_minus([s / 60 for s in each["seconds"]], ".1f")]
        + [mean_plus_minus(each["sacrebleu"], ".2f"), f"{each['p_value']:.1g}", len(each["seeds"])]
        + [each[key] for key in header[5:]]
        for n, each in enumerate(records, 1)
    ]
    about = f"Wall time to {MARK:g} sacreBLEU by greedy search on Multi30k's validation split, by "
    about += f"the [rules](../speedrun.md). Row n is line n of {path.name}, which has each seed's "
    about += f"seconds, score and validation losses. {SPREAD}."
    text = f"# Records of the speedrun\n\n{textwrap.fill(about, 100)}\n\n"
    write_text(path.with_suffix(".md"), text + markdown_table(header, table))
    say(f"a record: {path}")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, see Experiment.main."""
    args = parse_args(argv)
    refuse_overrides(args.overrides, {"train.seed": "--seeds"})
    trials: list[Trial] = []
    for seed in args.seeds:
        config = load_config(args.config, [*args.overrides, f"train.seed={seed}"])
        require_rules(config)
        splits = (MULTI30K.validation,)
        trials.append(TimedTrial(config.name, seed, config, args.output_dir, (), splits, "greedy"))
    return Speedrun(args, trials, "config").main()


if __name__ == "__main__":
    run_main(lambda: sys.exit(main()))
