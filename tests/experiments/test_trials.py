"""Which trainings and scorings are run, in which order, and what becomes of the others."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from stand_in import StandIn, both

from checkpoints.run import DamagedError, Run
from configs.schema import Config
from configs.serialize import apply_overrides, from_dict, leaves
from experiments import comparison, trials
from experiments.store import Record
from experiments.trials import Failed, Trial, as_before, reason, training_digest
from utils.errors import UserError
from utils.tables import read_csv, write_csv


@pytest.fixture
def stand_in(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr(comparison.Comparison, "draw", lambda *_: None)  # slow, and no matter here
    return stand_in


def test_what_is_done_is_not_run_again(stand_in: StandIn) -> None:
    assert stand_in.compare("rope", "--seeds", "0,1") == 0
    # All schemes with one seed before the next; the baseline first.
    assert stand_in.calls() == both("sinusoidal", "rope", "sinusoidal", "rope")
    table = stand_in.table()
    assert stand_in.compare("rope", "--seeds", "0,1,01,1") == 0  # a seed named twice is one
    assert "| rope, seed 0 | 1.000 |" in stand_in.text()
    assert "## Ranking" in stand_in.text()
    assert stand_in.table() == table
    assert stand_in.compare("rope", "--seeds", "0,1,2", "--report_only") == 0
    assert [row["status"] for row in stand_in.table()] == ["done"] * 4 + ["not run"] * 2
    assert "Not run yet: sinusoidal, seed 2; rope, seed 2" in stand_in.text()
    assert "## Ranking" not in stand_in.text()  # of what has all seeds
    for change, has in (("model.d_model=24", "model.d_model=16"), ("train.log_every=7", "another")):
        with pytest.raises(UserError, match=rf"yet \(the nearest training in it has {has}[^,]*\);"):
            stand_in.compare("rope", "--set", change, "--search", "greedy", "--report_only")
    assert stand_in.calls() == []


def test_what_changes_the_training_is_another_run_and_what_changes_the_search_another_score(
    stand_in: StandIn,
) -> None:
    train, test = both("sinusoidal")
    for more, calls in (
        ([], [train, test]),
        (["--set", "data.cache_dir=elsewhere", "--set", "train.log_every=7"], []),
        (["--set", "decode.length_penalty=0.9", "--set", "evaluate.batch_size=3"], [test]),
        (["--set", "decode.mbr=chrf"], [test]),
        (["--set", "decode.neighbours.datastore=file"], [test]),
        (["--search", "greedy"], [test]),
        (["--set", "optim.schedule.lr=0.1"], [train, test]),
    ):
        assert stand_in.compare("sinusoidal", *more) == 0
        assert stand_in.calls() == calls
    assert len(list((stand_in.output / "runs").iterdir())) == 2


def test_a_run_is_found_again_whatever_signs_its_variant_has(tmp_path: Path) -> None:
    trial = Trial("length_buckets=[5]", 0, Config(), tmp_path, ("test",), ("test",))
    trial.write_config()
    other = trial.folder.rename(trial.folder.with_name("length_buckets=[5]_seed0_0123456789"))
    assert replace(trial).folder == other


@pytest.mark.parametrize(
    ("by", "sign", "values"),
    [
        ("loss", -1, {3: 1.50001, 4: 1.50004, 5: 1.6}),
        ("loss", -1, {3: 1.6, 4: 1.50004, 6: 1.50002}),  # the last is no better than the worst kept
        ("chrf", 1, {3: 9.00004, 4: 9.00001, 5: 8.0}),
    ],
)
def test_what_is_told_of_a_training_is_that_of_its_best_checkpoint(
    tmp_path: Path, by: str, sign: int, values: dict[int, float]
) -> None:
    """Of two files whose values are equal in their names it is the newer; one may not be saved."""
    config = apply_overrides(Config(), [f"evaluate.choose_by={by}"])
    trial = Trial("rope", 0, config, tmp_path, ("test",), ("test",))
    run = Run(trial.folder / "rope_20260101_000000")
    run.checkpoints.mkdir(parents=True)
    run.logs.mkdir()
    for epoch, value in values.items():
        if epoch == 6:
            continue
        (run.checkpoints / f"best_checkpoint_{epoch}_{by}={sign * value:.4f}.pt").touch()
    same = {"kind": "validation", "step": 1}
    lines = [{**same, "epoch": epoch, "loss": epoch, by: value} for epoch, value in values.items()]
    (run.logs / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (trial.folder / "train.out").write_text(f"{run.path}\n")
    best = run.best()
    assert best is not None
    assert best.name.startswith("best_checkpoint_4_")
    assert trial.training()["validation_loss"] == lines[1]["loss"]
    assert trial.finished_run() == run.path
    for path in run.checkpoints.iterdir():
        path.unlink()
    assert trial.finished_run() is None
    (run.checkpoints / "averaged_checkpoint_last2_9.pt").touch()  # alone is kept once it is scored
    (trial.folder / "train.log").write_text(f"finished: best validation {by} 1.5: {best}\n")
    assert trial.training()["validation_loss"] == lines[1]["loss"]


@pytest.mark.parametrize(("every", "expected"), [("every_epochs=1", 5.5), ("every_steps=4", 6.5)])
def test_the_training_loss_beside_a_best_is_of_its_epoch_or_of_its_updates(
    tmp_path: Path, every: str, expected: float
) -> None:
    config = apply_overrides(Config(), [f"evaluate.{every}"])
    trial = Trial("rope", 0, config, tmp_path, ("test",), ("test",))
    logs = trial.folder / "rope_20260101_000000" / "logs"
    logs.mkdir(parents=True)
    same = {"epoch": 1, "accuracy": 0.5, "tokens_per_second": 1.0}
    lines = [{"kind": "train", "step": n, "loss": n, **same} for n in range(2, 10)]
    lines += [{"kind": "validation", "step": n, "loss": 9 - n, **same} for n in (4, 8)]
    (logs / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (logs.parent / "checkpoints").mkdir()
    name = "best_step_checkpoint_8" if "steps" in every else "best_checkpoint_1"
    (logs.parent / "checkpoints" / f"{name}_loss=-1.0000.pt").touch()
    (trial.folder / "train.out").write_text(f"{logs.parent}\n")
    assert trial.training()["training_loss"] == expected


def test_a_run_is_found_again_when_the_schema_has_grown(stand_in: StandIn) -> None:
    assert stand_in.compare("sinusoidal") == 0
    folder, stored = stand_in.trial_folder("sinusoidal"), stand_in.config("sinusoidal")
    del stored["model"]["bias"]  # as it was before there was such a field
    (folder / "config.json").write_text(json.dumps(stored), "utf-8")
    folder.rename(folder.with_name("sinusoidal_seed0_0123456789"))  # and the digest was another
    stand_in.forget()
    stand_in.calls()
    assert stand_in.compare("sinusoidal") == 0
    assert stand_in.calls() == []


DAMAGED = "data.clean.damaged=true"


def test_bleu_that_chooses_is_of_the_training_and_the_loss_hashes_as_before() -> None:
    def digests(*more: str) -> list[str]:
        changes = [], ["evaluate.bleu_sentences=9"], ["decode.max_len=9"]
        changes += (["decode.no_repeat_ngram_size=9"],)
        return [training_digest(apply_overrides(Config(), [*more, *each])) for each in changes]

    assert len(set(digests())) == 1
    assert len({*digests(), *digests("evaluate.choose_by=bleu")}) == 5
    known = dict(leaves(as_before(Config()), ""))
    newer = "evaluate.choose_by evaluate.every_steps model.gated model.layer_norm"
    newer += " tokenizer.quotes tokenizer.joint tokenizer.max_pairs train.freeze evaluate.also"
    newer += " tokenizer.symbols decode.neighbours.k decode.no_repeat_ngram_size"
    assert not known.keys() & set(newer.split())
    cleaned = [apply_overrides(Config(), ["data.clean=rules", *more]) for more in ([], [DAMAGED])]
    assert [as_before(each)["data"]["clean"].get("damaged") for each in cleaned] == [None, True]
    assert from_dict(as_before(Config())) == Config()


def test_a_failing_scheme_does_not_stop_the_others(stand_in: StandIn) -> None:
    stand_in.fates(alibi="error")
    assert stand_in.compare("alibi,rope") == 1
    assert stand_in.calls() == [*both("sinusoidal"), "train alibi", *both("rope")]
    status = [(row["scheme"], row["status"], row["reason"]) for row in stand_in.table()]
    failed = ("alibi", "failed", "no such luck")
    assert status == [("sinusoidal", "done", ""), failed, ("rope", "done", "")]
    assert "| alibi, seed 0 | failed: no such luck |" in stand_in.text()
    stand_in.fates()
    assert stand_in.compare("alibi,rope") == 0
    assert stand_in.calls() == both("alibi")


def test_a_run_that_was_cut_short_goes_on(stand_in: StandIn) -> None:
    stand_in.fates(rope="killed")
    assert stand_in.compare("rope") == 1
    assert [row["reason"] for row in stand_in.table()] == ["", "ended by SIGKILL (out of memory?)"]
    begun = stand_in.config("rope")["name"]
    assert stand_in.compare("rope", "--set", "name=renamed") == 0
    assert stand_in.calls()[-2:] == ["resume rope", "test rope"]
    assert stand_in.config("rope")["name"] == begun
    folder = stand_in.trial_folder("rope")
    assert len(list(folder.glob("toy_*"))) == 1
    path = folder / "attempts.json"
    attempts = json.loads(path.read_text("utf-8"))
    assert len(attempts) == 2
    assert all(attempt["peak_mb"] > 1 for attempt in attempts)
    minutes = float(stand_in.table()[1]["train_minutes"])
    assert minutes == pytest.approx(sum(attempt["seconds"] for attempt in attempts) / 60)
    # where nobody saw the end of one, or the file is damaged, they are not known
    first = {**attempts[0], "seconds": None, "peak_mb": None, "jobs": 3}
    unseen, peak = json.dumps([first, attempts[1]]), str(attempts[1]["peak_mb"])
    for text, known in ((unseen, (peak, "3")), (unseen[:-9], ("", "1")), ("", ("", "1"))):
        path.write_text(text, "utf-8")
        stand_in.forget()
        assert stand_in.compare("rope") == 0
        rope = stand_in.table()[1]
        assert rope["train_minutes"] == ""
        assert (rope["peak_memory_mb"], rope["jobs"]) == known


def test_a_damaged_file_of_a_trial_is_made_again_or_named(stand_in: StandIn) -> None:
    assert stand_in.compare("sinusoidal") == 0
    folder = stand_in.trial_folder("sinusoidal")
    [results] = folder.glob("toy_*/results")
    [log] = folder.glob("toy_*/logs/*.jsonl")
    stand_in.forget()
    stand_in.calls()
    [scores] = results.glob("*_scores.json")
    files = {path: path.read_bytes() for path in (*results.iterdir(), log)}
    broken = [(path, whole[: len(whole) // 2] + b"\xff") for path, whole in files.items()]
    for path, content in (*broken, (scores, b'{"scores": {}}')):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"is damaged .*: delete .*scored\.json to score it"):
            stand_in.compare("sinusoidal")
        path.write_bytes(files[path])
    for remove in (lambda: (folder / "scored.json").write_text("{", "utf-8"), scores.unlink):
        remove()
        assert stand_in.compare("sinusoidal") == 0
        assert stand_in.calls() == ["test sinusoidal"]
        stand_in.forget()


def test_a_failure_is_told_by_the_last_error_or_else_the_last_word() -> None:
    assert reason(2, "loading\nerror: one\n error: another\nmore\n") == "another"
    assert reason(1, "Traceback:\nKeyError: 'x'\n\n") == "KeyError: 'x'"
    assert reason(3, " \n") == "exit code 3"


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "jobs", "heard"),
    [(signal.SIGINT, 1, "SIGINT"), (signal.SIGTERM, 2, "SIGTERM"), (signal.SIGHUP, 1, "SIGTERM")],
)
def test_a_signal_reaches_the_trainings_and_the_next_call_goes_on(
    stand_in: StandIn, number: signal.Signals, jobs: int, heard: str, request: pytest.FixtureRequest
) -> None:
    ignored = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # by nohup
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, ignored))
    *running, last = ["sinusoidal", "rope", "alibi"][: jobs + 1]
    others = ",".join([*running[1:], last])
    stand_in.fates(**dict.fromkeys(running, "slow"))
    handler = signal.getsignal(number)

    def send() -> None:
        for name in running:
            wait_for(stand_in.folder / f"waiting_{name}")
        os.kill(os.getpid(), number)

    def interrupted(*more: str) -> None:
        thread = threading.Thread(target=send)
        thread.start()
        assert stand_in.compare(others, "--jobs", str(jobs), *more) == 128 + number
        thread.join()

    interrupted()
    assert signal.getsignal(number) is handler
    for name in running:
        assert (stand_in.folder / f"ended_{name}").read_text() == heard
    assert sorted(stand_in.calls()) == sorted(f"train {name}" for name in running)
    assert {row["status"] for row in stand_in.table()} == {"not run"}
    assert stand_in.compare(others) == 0
    first = [call for name in running for call in (f"resume {name}", f"test {name}")]
    assert stand_in.calls() == [*first, *both(last)]
    before = stand_in.text(), stand_in.table()
    stand_in.fates(**dict.fromkeys(running, "slow"))
    for name in running:
        (stand_in.folder / f"waiting_{name}").unlink()
    interrupted("--set", "model.d_model=24")  # nothing of this is done
    assert (stand_in.text(), stand_in.table()) == before


EXPERIMENT = """
import fcntl, sys
from pathlib import Path

from configs.schema import Config
from experiments import trials

trials.ROOT = Path(sys.argv[1])
trial = trials.Trial("rope", 0, Config(), trials.ROOT / "out", (), ())
trial.write_config()
with (trial.folder / "lock").open("a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    source = "--config", str(trial.folder / "config.py")
    trials.Runner(1, 1, {}, print)._run(trial, lock.fileno(), "train", *source, measured={})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has such a signal")
def test_a_training_ends_with_the_experiment_that_was_killed(stand_in: StandIn) -> None:
    stand_in.fates(rope="slow")
    experiment = subprocess.Popen([sys.executable, "-c", EXPERIMENT, stand_in.folder])
    try:
        wait_for(stand_in.folder / "waiting_rope")
    finally:
        experiment.kill()
    with (stand_in.trial_folder("rope") / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until both have gone
    assert experiment.wait() == -signal.SIGKILL
    assert (stand_in.folder / "ended_rope").read_text() == "SIGTERM"


def test_an_error_of_the_program_ends_the_trainings(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.fates(sinusoidal="slow")
    write_config = trials.Trial.write_config

    def fail_beside(trial: trials.Trial) -> None:
        if trial.variant == "rope":
            wait_for(stand_in.folder / "waiting_sinusoidal")
            raise OSError("the disk is full")
        write_config(trial)

    monkeypatch.setattr(trials.Trial, "write_config", fail_beside)
    with pytest.raises(OSError, match="the disk is full"):
        stand_in.compare("rope,alibi", "--jobs", "2")
    assert (stand_in.folder / "ended_sinusoidal").read_text() == "SIGTERM"
    assert stand_in.calls() == ["train sinusoidal"]


def test_the_others_go_on_where_a_record_cannot_be_made(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_of = Record.of

    def damaged(trial: trials.Trial) -> Record:
        if trial.variant == "sinusoidal":
            raise Failed("sinusoidal is damaged")
        return record_of(trial)

    monkeypatch.setattr(Record, "of", damaged)
    with pytest.raises(Failed, match="sinusoidal is damaged"):
        stand_in.compare("rope,alibi")
    assert stand_in.calls() == both("sinusoidal", "rope", "alibi")


def test_a_run_that_another_process_is_at_is_left_alone(stand_in: StandIn) -> None:
    assert stand_in.compare("rope") == 0
    stand_in.calls()
    folder = stand_in.trial_folder("rope")
    (folder / "scored.json").unlink()
    stand_in.forget()
    with (folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert stand_in.compare("rope") == 1
    assert stand_in.calls() == []
    assert "another process is at work" in stand_in.table()[1]["reason"]


def test_a_page_is_not_replaced_where_another_process_is_at_all(stand_in: StandIn) -> None:
    assert stand_in.compare("sinusoidal") == 0
    text = stand_in.text()
    folder = stand_in.trial_folder("sinusoidal")
    (folder / "scored.json").unlink()
    stand_in.forget()
    with (folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert stand_in.compare("sinusoidal") == 1
    assert stand_in.text() == text


@pytest.mark.parametrize(
    ("device", "jobs", "found"),
    [("auto", "2", {"3", "5"}), ("auto", "1", {"3,5"}), ("cuda:1", "2", {"3,5"})],
)
def test_trials_at_once_share_the_gpus(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, device: str, jobs: str, found: set[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    names = "sinusoidal", "rope"
    stand_in.fates(**dict.fromkeys(names, "device"))
    more = "--set", f"train.device={device}", "--jobs", jobs
    assert stand_in.compare("rope", *more) == 0
    assert {(stand_in.folder / f"gpu_of_{name}").read_text() for name in names} == found


def test_checkpoints_that_cannot_be_averaged_or_scored_fail_one_trial(
    stand_in: StandIn, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(run: Run, last: int) -> Path:
        if "sinusoidal" in run.path.parent.name:
            raise DamagedError(f"{run.path}: damaged")
        return run.path

    monkeypatch.setattr(trials, "averaged", damaged)
    (stand_in.folder / "test.py").write_text("raise SystemExit('error: no such luck')")
    assert stand_in.compare("rope") == 1
    found = re.findall(r"(\w+), seed 0: (.*); delete \S+ to train it again$", stand_in.text(), re.M)
    assert [(name, said.split(": ")[-1]) for name, said in found] == [
        ("sinusoidal", "damaged"),
        ("rope", "no such luck"),
    ]
    assert not trials.is_damaged(trained_run)  # a whole one is not to be deleted


def test_a_variant_of_any_name_has_one_folder(tmp_path: Path) -> None:
    trial = Trial("model.dropout=0.1/" * 20, 0, Config(), tmp_path, (), ())
    assert trial.folder.parent == tmp_path / "runs"
    trial.folder.mkdir(parents=True)


def test_a_table_has_the_columns_of_its_longest_row(tmp_path: Path) -> None:
    rows = [{"name": "failed"}, {"name": "done", "bleu": 1.5}]
    for name in ("a.csv", "a.csv.gz"):
        found = read_csv(write_csv(tmp_path / name, rows))
        assert found == [{"name": "failed", "bleu": ""}, {"name": "done", "bleu": "1.5"}]
    assert (tmp_path / name).read_bytes()[4:8] == bytes(4)  # no time of day
