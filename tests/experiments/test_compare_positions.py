"""The comparison of position schemes and the extrapolation in length: what they run, what they do
not, what they write.

One comparison is real. The others run stand-ins for train.py and test.py, which make the same files
in no time.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import os
import re
import signal
import threading
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, run_script, tiny_args
from toy_runs import toy_config, toy_settings

from configs.positions import YarnScaling
from configs.schema import Config, InverseSqrt, RDrop, Subword
from configs.serialize import diff, from_dict
from data.corpora.base import ParallelText
from data.corpora.build import build_corpus
from experiments import (
    common,
    compare_methods,
    compare_positions,
    comparison,
    length_extrapolation,
    trials,
)
from translation.metrics import paired_bootstrap
from translation.loading import load_run
from utils.errors import UserError

DRAW = comparison.Comparison.draw

# Writes what train.py writes. What it does is in the name of the seed: see `fates`.
TRAIN = """
import json, os, runpy, signal, sys, time
from pathlib import Path

arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
resume = arguments.get("--resume")
folder = Path(resume).parent if resume else Path(arguments["--config"]).parent
config = json.loads((folder / "config.json").read_text())
calls = Path(__file__).with_name("calls")
with calls.open("a") as file:
    print("resume" if resume else "train", folder.name.split("_seed")[0], file=file)
fates = json.loads(Path(__file__).with_name("fates.json").read_text())
fate = fates.get(folder.name.split("_seed")[0], "well")
if fate == "refused" and resume:
    sys.exit("error: the weights do not fit")
if fate == "error":
    print("Traceback: much text")
    sys.exit("error: no such luck")
run = Path(resume) if resume else folder / f"{config['name']}_20260101_000000_{time.monotonic_ns()}"
(run / "checkpoints").mkdir(parents=True, exist_ok=True)
(run / "logs").mkdir(exist_ok=True)
(run / "checkpoints" / "regular_checkpoint_1.pt").write_text("regular")
print(f"{run}: 12,345 parameters, 8 pairs in 2 updates an epoch", file=sys.stderr, flush=True)
if fate == "killed" and not resume:
    os.kill(os.getpid(), signal.SIGKILL)
if fate == "slow" and not resume:
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    Path(__file__).with_name("waiting").touch()
    time.sleep(60)
(run / "checkpoints" / "best_checkpoint_1_loss=-1.5000.pt").write_text("best")
speeds = [9.0, 100.0, 300.0]
lines = [{"kind": "train", "step": step, "tokens_per_second": speed} for step, speed in enumerate(speeds, start=1)]
lines += [{"kind": "validation", "step": 3, "loss": loss} for loss in (2.0, 1.5)]
(run / "logs" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
print(run)
"""

# Writes what test.py writes: the references as translations, but for the first few, more of them
# for some schemes.
TEST = """
import json, runpy, sys
from pathlib import Path

arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
config = runpy.run_path(arguments["--config"])["config"]
from data.corpora.build import build_corpus

run = Path(arguments["--model_path"])
with Path(__file__).with_name("calls").open("a") as file:
    print("test", run.parent.name.split("_seed")[0], file=file)
corpus = build_corpus(config.data)
spoilt = 3 if config.model.position.kind == "sinusoidal" else 1
(run / "results").mkdir(exist_ok=True)
for split in [arguments["--split"]] if "--split" in arguments else corpus.test:
    text = corpus.load(split)
    found = ["nothing of the kind"] * spoilt + list(text.tgt[spoilt:])
    name = f"{split}_{arguments['--search']}"
    for suffix, lines in (("src", text.src), ("ref", text.tgt), ("hyp", found)):
        (run / "results" / f"{name}.{suffix}.txt").write_text("".join(f"{line}\\n" for line in lines))
    bleu = 90.0 - spoilt
    edges = config.evaluate.length_buckets
    buckets = [{"low": 0, "high": edge, "n": 2, "bleu": bleu} for edge in [*edges, None]]
    scores = {"bleu4": bleu / 100, "sacrebleu": bleu, "interval": [bleu - 2, bleu + 1], "chrf": 80.0, "n": len(found)}
    record = {
        "scores": {**scores, "signature": "made", "buckets": buckets},
        "loss": 1.5,
        "accuracy": 0.5,
        "checkpoint": "best_checkpoint_1_loss=-1.5000.pt",
        "provenance": {"commit": "abc", "python": "3", "torch": "2", "hardware": "none"},
    }
    (run / "results" / f"{name}_scores.json").write_text(json.dumps(record))
"""


class StandIn:
    """The scripts that are run in place of train.py and test.py, and what became of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "out"
        (folder / "train.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{TRAIN}")
        (folder / "test.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{TEST}")
        self.fates()

    def fates(self, **fates: str) -> None:
        """What becomes of the training of a scheme: error, killed (once), slow, refused (if it goes
        on); or it ends.
        """
        (self.folder / "fates.json").write_text(json.dumps(fates))

    def calls(self) -> list[str]:
        """The scripts that were run since the last time, in order."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def arguments(self, *more: str) -> list[str]:
        file = self.folder / "toy.py"
        file.write_text(
            "from configs.schema import Config\n\nconfig = Config(name='toy')\n", "utf-8"
        )
        settings = [part for text in toy_settings(self.folder) for part in ("--set", text)]
        return [
            "--config",
            str(file),
            *settings,
            "--output_dir",
            str(self.output),
            "--threads",
            "1",
            *more,
        ]

    def compare(self, positions: str, *more: str) -> int:
        return compare_positions.main(self.arguments("--positions", positions, *more))

    def table(self) -> list[dict[str, str]]:
        return read_csv(self.output / "comparison.csv")

    def trial_folder(self, name: str) -> Path:
        [folder] = (self.output / "runs").glob(f"{name}_seed0_*")
        return folder


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn(tmp_path)
    monkeypatch.setattr(trials, "ROOT", tmp_path)
    monkeypatch.setattr(trials, "POLL_S", 0.02)
    monkeypatch.setattr(
        comparison.Comparison, "draw", lambda *_: None
    )  # slow, and no matter but in one
    return made


# -------------------------------------------------------------------------------- a real comparison


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of one tiny comparison whose train.py and test.py are real, its own
    baseline.
    """
    folder = tmp_path_factory.mktemp("compared")
    small = [
        "train.max_epochs=1",
        "data.corpus.n_train=300",
        "data.corpus.n_test=12",
        "decode.max_len=8",
    ]
    small += ["train.log_every=1", "evaluate.bleu_every_epochs=0"]
    arguments = [*tiny_args(folder, *small), "--threads", "1"]
    arguments += [
        "--config",
        "configs/demo.py",
        "--search",
        "greedy",
        "--output_dir",
        str(folder / "out"),
    ]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = compare_positions.main(["--positions", "rope", "--baseline", "rope", *arguments])
    assert code == 0, err.getvalue()
    assert "[1/1]" in err.getvalue()
    assert "min | rope, seed 0: done in" in err.getvalue()
    assert out.getvalue() == (folder / "out" / "comparison.md").read_text("utf-8")
    return folder / "out"


def test_the_table_holds_what_was_measured(compared: Path) -> None:
    [row] = read_csv(compared / "comparison.csv")
    assert [row[key] for key in ("scheme", "seed", "split", "status")] == [
        "rope",
        "0",
        "test",
        "done",
    ]
    run = compared / row["run"]
    record = json.loads((run / "results" / "test_greedy_scores.json").read_text("utf-8"))
    scores = record["scores"]
    measured = [
        record["loss"],
        record["accuracy"],
        scores["bleu4"],
        scores["sacrebleu"],
        *scores["interval"],
    ]
    columns = ("test_loss", "token_accuracy", "bleu4", "sacrebleu", "interval_low", "interval_high")
    assert [float(row[column]) for column in columns] == measured
    assert (
        int(row["sentences"])
        == scores["n"]
        == sum(int(row[name]) for name in row if name.startswith("n "))
    )
    loaded = load_run(run, runs_dir=compared)
    assert int(row["parameters"]) == sum(p.numel() for p in loaded.model.parameters())
    log = [
        json.loads(line)
        for line in (run / "logs" / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    assert float(row["validation_loss"]) == min(
        line["loss"] for line in log if line["kind"] == "validation"
    )
    assert 100 < float(row["tokens_per_second"]) < 1e7
    assert 100 < float(row["peak_memory_mb"]) < 10_000  # torch alone takes more than 100 MB
    assert 0.01 < float(row["train_minutes"]) < 2
    assert [path.name for path in (run / "checkpoints").iterdir()] == [record["checkpoint"]]


def test_a_scaled_copy_has_the_trained_weights_and_another_rotation(compared: Path) -> None:
    [folder] = (compared / "runs").glob("rope_seed0_*")
    config = load_run(_only_run(folder), runs_dir=compared).config
    source = trials.Trial("rope", 0, config, compared, ("test",), search="greedy")
    assert source.folder == folder
    trial = length_extrapolation.scaled_trial(source, "rope_yarn", max_words=10)
    scaled = trial.config.model.position
    assert scaled == replace(config.model.position, scaling=YarnScaling(trained_length=20))
    length_extrapolation.copy_run(source, trial)
    old, new = (load_run(_only_run(trial.folder), runs_dir=compared) for trial in (source, trial))
    assert new.config.model.position == scaled
    assert all(
        torch.equal(a, b)
        for a, b in zip(old.model.state_dict().values(), new.model.state_dict().values())
    )
    src, tgt = torch.arange(5, 35)[None], torch.arange(5, 11)[None]
    with torch.inference_mode():
        assert not torch.allclose(old.model(src, tgt), new.model(src, tgt), atol=1e-4)
    assert not trial.is_scored()  # it is trained, so that scoring is what is left to do
    assert trial.finished_run() is not None


def _only_run(folder: Path) -> Path:
    [run] = (path.parent for path in folder.glob("*/checkpoints"))
    return run


# --------------------------------------------------------------------- what is run, and what is not


def test_what_is_done_is_not_run_again(stand_in: StandIn) -> None:
    assert stand_in.compare("rope", "--seeds", "0,1") == 0
    # All schemes with one seed before the next; the baseline first.
    order = ["sinusoidal", "rope"] * 2
    assert stand_in.calls() == [
        f"{script} {name}" for name in order for script in ("train", "test")
    ]
    table = stand_in.table()
    assert stand_in.compare("rope", "--seeds", "0,1") == 0
    assert stand_in.calls() == []
    assert stand_in.table() == table
    assert stand_in.compare("rope", "--seeds", "0,1,2", "--report_only") == 0
    assert stand_in.calls() == []
    assert [row["status"] for row in stand_in.table()] == ["done"] * 4 + ["not run"] * 2
    assert "Not run yet: sinusoidal, seed 2; rope, seed 2" in (
        stand_in.output / "comparison.md"
    ).read_text("utf-8")


def test_a_changed_setting_is_another_run_and_a_changed_search_another_score(
    stand_in: StandIn,
) -> None:
    assert stand_in.compare("sinusoidal") == 0
    assert stand_in.calls() == ["train sinusoidal", "test sinusoidal"]
    assert (
        stand_in.compare(
            "sinusoidal", "--set", "data.cache_dir=elsewhere", "--set", "train.log_every=7"
        )
        == 0
    )
    assert stand_in.calls() == []
    assert stand_in.compare("sinusoidal", "--set", "decode.length_penalty=0.9") == 0
    assert stand_in.calls() == ["test sinusoidal"]
    assert stand_in.compare("sinusoidal", "--search", "greedy") == 0
    assert stand_in.calls() == ["test sinusoidal"]
    assert stand_in.compare("sinusoidal", "--set", "optim.schedule.lr=0.1") == 0
    assert stand_in.calls() == ["train sinusoidal", "test sinusoidal"]
    assert len(list((stand_in.output / "runs").iterdir())) == 2


def test_a_run_is_found_again_when_the_schema_has_grown(stand_in: StandIn) -> None:
    assert stand_in.compare("sinusoidal") == 0
    folder = stand_in.trial_folder("sinusoidal")
    stored = json.loads((folder / "config.json").read_text("utf-8"))
    del stored["model"]["bias"]  # as it was before there was such a field
    (folder / "config.json").write_text(json.dumps(stored), "utf-8")
    folder.rename(folder.with_name("sinusoidal_seed0_0123456789"))  # and the digest was another
    stand_in.calls()
    assert stand_in.compare("sinusoidal") == 0
    assert stand_in.calls() == []


def test_a_failing_scheme_does_not_stop_the_others(stand_in: StandIn) -> None:
    stand_in.fates(alibi="error")
    assert stand_in.compare("alibi,rope") == 1
    assert stand_in.calls() == [
        *("train sinusoidal", "test sinusoidal"),
        "train alibi",
        "train rope",
        "test rope",
    ]
    status = {row["scheme"]: (row["status"], row["reason"]) for row in stand_in.table()}
    assert status == {
        "sinusoidal": ("done", ""),
        "alibi": ("failed", "no such luck"),
        "rope": ("done", ""),
    }
    assert "| alibi, seed 0 | failed: no such luck |" in (
        stand_in.output / "comparison.md"
    ).read_text("utf-8")
    stand_in.fates()
    assert stand_in.compare("alibi,rope") == 0
    assert stand_in.calls() == ["train alibi", "test alibi"]


def test_a_scheme_that_the_config_refuses_is_named_and_the_others_go_on(stand_in: StandIn) -> None:
    odd_heads = ("--set", "model.d_model=18")  # of 2 heads
    assert stand_in.compare("rope,alibi", *odd_heads) == 1
    assert stand_in.calls() == ["train sinusoidal", "test sinusoidal", "train alibi", "test alibi"]
    [refused] = [row for row in stand_in.table() if row["status"] == "failed"]
    assert refused["scheme"] == "rope"
    assert "even head size" in refused["reason"]


def test_a_run_that_was_cut_short_goes_on(stand_in: StandIn) -> None:
    stand_in.fates(rope="killed")
    assert stand_in.compare("rope") == 1
    assert [row["reason"] for row in stand_in.table()] == ["", "ended by SIGKILL (out of memory?)"]
    assert stand_in.compare("rope") == 0
    assert stand_in.calls()[-2:] == ["resume rope", "test rope"]
    folder = stand_in.trial_folder("rope")
    assert len(list(folder.glob("toy_*"))) == 1
    attempts = json.loads((folder / "attempts.json").read_text("utf-8"))
    minutes = float(stand_in.table()[1]["train_minutes"])
    assert len(attempts) == 2
    assert minutes == pytest.approx(sum(attempt["seconds"] for attempt in attempts) / 60)


def test_a_run_that_cannot_go_on_starts_again(stand_in: StandIn) -> None:
    stand_in.fates(rope="killed")
    assert stand_in.compare("rope") == 1
    stand_in.fates(rope="refused")
    stand_in.calls()
    assert stand_in.compare("rope") == 0
    assert stand_in.calls() == ["resume rope", "train rope", "test rope"]
    folder = stand_in.trial_folder("rope")
    assert len(list(folder.glob("toy_*"))) == len(list(folder.glob("left_toy_*"))) == 1


def test_a_signal_reaches_the_training_and_the_next_call_goes_on(stand_in: StandIn) -> None:
    stand_in.fates(sinusoidal="slow")

    def interrupt() -> None:
        while not (stand_in.folder / "waiting").exists():
            threading.Event().wait(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert stand_in.compare("rope") == 130
    thread.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert stand_in.calls() == ["train sinusoidal"]
    assert {row["status"] for row in stand_in.table()} == {"not run"}
    assert stand_in.compare("rope") == 0
    assert stand_in.calls() == ["resume sinusoidal", "test sinusoidal", "train rope", "test rope"]


def test_a_run_that_another_process_is_at_is_left_alone(stand_in: StandIn) -> None:
    assert stand_in.compare("rope") == 0
    stand_in.calls()
    folder = stand_in.trial_folder("rope")
    (folder / "scored.json").unlink()
    with (folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert stand_in.compare("rope") == 1
    assert stand_in.calls() == []
    assert "another process is at work" in stand_in.table()[1]["reason"]


def test_several_runs_at_once_are_said_to_disturb_each_other(stand_in: StandIn) -> None:
    assert stand_in.compare("rope", "--jobs", "2") == 0
    assert sorted(stand_in.calls()) == sorted(
        f"{script} {name}" for name in ("sinusoidal", "rope") for script in ("train", "test")
    )
    assert "up to 2 runs at once" in (stand_in.output / "comparison.md").read_text("utf-8")
    assert {row["jobs"] for row in stand_in.table()} == {"2"}


def test_two_schemes_make_a_table_a_csv_file_and_two_pictures(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison.Comparison, "draw", DRAW)
    assert stand_in.compare("rope") == 0
    sinusoidal, rope = stand_in.table()  # the baseline first, although it was not named
    assert [row["scheme"] for row in (sinusoidal, rope)] == ["sinusoidal", "rope"]
    assert rope["tokens_per_second"] == "200.0"  # the median without the first update
    assert rope["validation_loss"] == "1.5"
    assert rope["parameters"] == "12345"
    assert (sinusoidal["baseline"], sinusoidal["p_value"]) == ("", "")
    assert rope["baseline"] == "sinusoidal"
    hypotheses = {}
    for name in ("sinusoidal", "rope"):
        results = _only_run(stand_in.trial_folder(name)) / "results"
        hypotheses[name] = (results / "test_beam.hyp.txt").read_text("utf-8").splitlines()
        references = (results / "test_beam.ref.txt").read_text("utf-8").splitlines()
    paired = paired_bootstrap(
        hypotheses["sinusoidal"], hypotheses["rope"], references, samples=1000, seed=0
    )
    assert paired.difference > 0
    measured = [
        float(rope[key]) for key in ("difference", "difference_low", "difference_high", "p_value")
    ]
    assert measured == [paired.difference, *paired.interval, paired.p_value]
    kept = [path.name for path in _only_run(stand_in.trial_folder("rope")).glob("checkpoints/*")]
    assert kept == ["best_checkpoint_1_loss=-1.5000.pt"]

    text = (stand_in.output / "comparison.md").read_text("utf-8")
    lines = text.splitlines()
    names = [line.split(" | ")[0] for line in lines if line.startswith("| ")]
    assert names == ["| scheme", "| ---", "| rope", "| sinusoidal"] * 2  # the best first
    header = "| scheme | loss | token accuracy | BLEU-4 | sacreBLEU | 95% interval | difference | p | 1–10 words (n=2) |"
    assert header in text
    assert (
        "| scheme | seeds | parameters | validation loss | tokens/s | peak memory (MB) | minutes |"
        in lines
    )
    row = f"| rope | 1.500 | 0.5000 | 0.8900 | 89.00 | 87.00 to 90.00 | {paired.difference:+.2f} | {paired.p_value:.3f} |"
    assert row in text
    assert str(stand_in.folder) not in text  # no place of this machine
    for name in ("comparison_bleu.png", "comparison_lengths.png"):
        assert (stand_in.output / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--positions", "rope,rpoe"], "no position scheme 'rpoe': there are none, sinusoidal,"),
        (["--baseline", "best"], "no position scheme 'best'"),
        (["--curves", "wavy"], "no position scheme 'wavy'"),
        (["--positions", ","], "name at least one position scheme"),
        (["--seeds", "0,x"], "--seeds '0,x'"),
        (["--seeds", "-1"], "--seeds '-1'"),
        (["--set", "model.d_modell=4"], "unknown key 'model.d_modell'"),
        (["--report_only"], "nothing of this is done yet"),
        (["--jobs", "0"], "an integer >= 1"),
    ],
)
def test_a_mistake_gets_one_line_that_names_it(
    stand_in: StandIn, arguments: list[str], words: str
) -> None:
    with pytest.raises(UserError) as caught:
        stand_in.compare("rope", *arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert stand_in.calls() == []


def test_methods_are_changes_of_the_config_alone_and_together(stand_in: StandIn) -> None:
    methods = "plain_twice,r_drop+bpe_dropout,moving_average"
    assert (
        compare_methods.main(
            stand_in.arguments("--methods", methods, "--set", "train.max_epochs=2")
        )
        == 0
    )
    assert [row["method"] for row in stand_in.table()] == [
        "plain",
        *methods.split(","),
    ]  # and in their order
    assert {row["baseline"] for row in stand_in.table()} == {"", "plain"}

    def trained(name: str) -> Config:
        return from_dict(
            json.loads((stand_in.trial_folder(name) / "config.json").read_text("utf-8"))
        )

    plain = trained("plain")

    def changes(name: str) -> dict[str, object]:
        return {key: new for key, _, new in diff(plain, trained(name)) if key != "train.runs_dir"}

    assert plain.train.max_epochs == 2
    assert changes("plain_twice") == {"train.max_epochs": 4}
    assert changes("moving_average") == {"train.ema_decay": 0.999}
    both = trained("r_drop+bpe_dropout")
    assert isinstance(both.tokenizer, Subword)
    assert (both.optim.objective, both.tokenizer.sampling) == (RDrop(alpha=5.0), 0.1)
    assert replace(both.optim, objective=plain.optim.objective) == plain.optim


def test_the_inverse_square_root_keeps_the_peak_and_the_warm_up_of_the_config() -> None:
    args = compare_methods.parse_args(["--set", "optim.schedule.lr=0.002"])
    schedule = compare_methods.method_config(args, "inverse_sqrt", []).optim.schedule
    assert schedule == InverseSqrt(lr=0.002, warmup_steps=200)


def test_every_method_fits_the_default_config() -> None:
    args = compare_methods.parse_args([])
    configs = {
        name: compare_methods.method_config(args, name, []) for name in compare_methods.METHODS
    }
    same = [name for name, config in configs.items() if config == configs["plain"]]
    assert same == ["plain"]


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ("plain,r_drop+luck", "no method 'luck': there are plain,"),
        (" ,", "name at least one method"),
    ],
)
def test_a_method_that_there_is_not(stand_in: StandIn, methods: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        compare_methods.main(stand_in.arguments("--methods", methods))
    assert stand_in.calls() == []


def test_a_mistake_ends_with_exit_code_2() -> None:
    done = run_script("experiments/compare_positions.py", "--positions", "rpoe")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: no position scheme 'rpoe'")
    assert done.stderr.count("\n") == 1


# -------------------------------------------------------------------------- extrapolation in length


def words(lines: Any) -> list[int]:
    return [len(line.split()) for line in lines]


def test_training_files_hold_no_longer_sentences_and_test_files_all(tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    before = {split: build_corpus(config.data).load(split) for split in ("train", "valid", "test")}
    short = length_extrapolation.write_short_corpus(config, 6, tmp_path / "out")
    data = replace(config.data, corpus=short)
    corpus = build_corpus(data)
    for split in ("train", "valid"):
        text = corpus.load(split)
        wanted = [
            pair for pair in zip(before[split].src, before[split].tgt) if max(words(pair)) <= 6
        ]
        assert list(zip(text.src, text.tgt)) == wanted
        assert 0 < len(wanted) < len(before[split])
    assert corpus.test == ("test",)
    assert corpus.load("test") == before["test"]
    other = length_extrapolation.write_short_corpus(config, 8, tmp_path / "out")
    assert other.root != short.root
    with pytest.raises(UserError, match="no pair of train is so short"):
        length_extrapolation.write_short_corpus(config, 1, tmp_path / "out")


def test_a_pair_with_one_long_side_is_left_out() -> None:
    text = ParallelText(["a b", "a b c", "a b"], ["a b", "a", "a b c"])
    short = length_extrapolation.short_pairs(text, 2)
    assert (short.src, short.tgt) == (["a b"], ["a b"])


def test_buckets_meet_at_the_limit_and_end_where_sentences_are_few() -> None:
    few = length_extrapolation.FEWEST
    lines = ["w " * 5] * 100 + ["w " * 17] * few + ["w " * 40] * (few - 1)
    assert (
        length_extrapolation.length_edges(lines, 12) == (6, 9, 12, 15, 18)[:4]
    )  # beyond 15: 17 and 40; beyond 18: 40
    assert common.bucket_names((6, 9, 12)) == ["1–6", "7–9", "10–12", "≥13"]
    assert common.rows_by_length(["a", "a b", "a b c", "a b c d"], (1, 3)) == [[0], [1, 2], [3]]


def test_extrapolation_writes_table_curves_and_counts(stand_in: StandIn) -> None:
    arguments = stand_in.arguments(
        "--corpus", "files", "--max_words", "6", "--positions", "sinusoidal,learnable"
    )
    assert length_extrapolation.main(arguments) == 0
    assert stand_in.calls() == [
        "train sinusoidal",
        "test sinusoidal",
        "train learnable",
        "test learnable",
    ]
    rows = read_csv(stand_in.output / "extrapolation.csv")
    assert {row["position"] for row in rows} == {"sinusoidal", "learnable"}
    for name in ("sinusoidal", "learnable"):
        spans = [
            (row["from_words"], row["to_words"], row["beyond"])
            for row in rows
            if row["position"] == name
        ]
        assert spans == [("1", "4", "0"), ("5", "5", "0"), ("6", "6", "0"), ("7", "", "1")]
        assert (
            sum(int(row["sentences"]) for row in rows if row["position"] == name) == 12
        )  # the whole test split
    text = (stand_in.output / "extrapolation.md").read_text("utf-8")
    assert "| scheme | seeds | up to 6 words | beyond 6 | 1–4 words (n=" in text
    assert (stand_in.output / "extrapolation.png").read_bytes().startswith(b"\x89PNG")
    trained = json.loads((stand_in.trial_folder("learnable") / "config.json").read_text("utf-8"))
    [root] = stand_in.output.glob("text_max6_*")
    assert trained["data"]["corpus"]["root"] == str(root)
    assert length_extrapolation.main(arguments) == 0
    assert stand_in.calls() == []


def test_a_rotation_that_cannot_be_scaled_is_named_and_the_rest_is_written(
    stand_in: StandIn,
) -> None:
    stand_in.fates(rope="error")
    arguments = (
        "--corpus",
        "files",
        "--max_words",
        "6",
        "--positions",
        "rope,none",
        "--scaled_at_test",
        "rope_ntk",
    )
    assert length_extrapolation.main(stand_in.arguments(*arguments)) == 1
    reasons = {
        row["position"]: row["reason"] for row in read_csv(stand_in.output / "extrapolation.csv")
    }
    assert reasons == {
        "none": "",
        "rope": "no such luck",
        "rope_ntk_at_test": "rope, seed 0 is not trained",
    }
    assert stand_in.calls() == ["train rope", "train none", "test none"]


def test_the_phrasebook_is_scored_on_both_sides_of_the_limit(stand_in: StandIn) -> None:
    sizes = ("n_train=60", "n_validation=30", "n_test=40")
    settings = [part for size in sizes for part in ("--set", f"data.corpus.{size}")]
    arguments = [
        "--config",
        str(ROOT / "configs/demo.py"),
        "--max_words",
        "8",
        "--threads",
        "1",
        *settings,
    ]
    arguments += ["--positions", "none", "--output_dir", str(stand_in.output)]
    assert length_extrapolation.main(arguments) == 0
    assert stand_in.calls() == [
        "train none",
        "test none",
        "test none",
    ]  # the test split and the validation split
    rows = read_csv(stand_in.output / "extrapolation.csv")
    by_side = [
        sum(int(row["sentences"]) for row in rows if row["beyond"] == side) for side in ("0", "1")
    ]
    assert by_side == [30, 40]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--corpus", "phrasebook"], "has the files corpus"),
        (["--corpus", "files", "--positions", "rope,x"], "no position scheme 'x'"),
        (
            ["--corpus", "files", "--positions", "rope", "--scaled_at_test", "alibi"],
            "alibi: not a scaling of RoPE",
        ),
    ],
)
def test_a_mistake_of_extrapolation_gets_one_line(
    stand_in: StandIn, arguments: list[str], words: str
) -> None:
    with pytest.raises(UserError) as caught:
        length_extrapolation.main(stand_in.arguments(*arguments))
    assert words in str(caught.value)
    assert stand_in.calls() == []


def test_defaults_follow_the_corpus() -> None:
    args: Namespace = length_extrapolation.parse_args(["--corpus", "files"])
    assert (args.config, args.max_words) == ("configs/multi30k_small_rope.py", 12)
    assert args.output_dir == Path("runs/extrapolation_files")
