"""Training killed again and again, against the run that was never stopped.

    python tests/training/kill_harness.py --kills 50
    python tests/training/kill_harness.py --kills 40 --auto
    python tests/training/kill_harness.py --kills 20 --processes 2 --with sampling muon bf16 all

Real processes run train.py's main (see nursery.py). They are ended at random moments by SIGKILL,
SIGTERM or Ctrl-C, or end themselves by SIGKILL at the n-th call of what writes: inside torch.save
with half of the file written, before or after a sync, a rename or a removal. Of several processes
that is the first, or at a random moment the launcher, one of them, or (by SIGKILL) all at once. A
run that is dead goes on with --resume, or begins anew where it had no checkpoint. When it is done
its losses, rates, weights and files must be those of the run that was never stopped, to the last
bit. More than two processes add gradients up in an order that a start may change: there losses may
differ by 1e-6, and in bfloat16, which rounds what lies that close apart, by 0.01. With --auto each
life is the same command, which ends with --resume auto, and one run is killed as often as it takes.
--with: the runs have these settings in turn.
"""

import argparse
import contextlib
import json
import operator
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run as a file: where the imports of the project and its tests begin
    sys.path[1:1] = [str(Path(__file__).resolve().parents[n]) for n in (2, 1)]

from conftest import ROOT
from toy_runs import assert_same_logs, assert_same_state, log_of

from checkpoints.content import read_checkpoint
from checkpoints.run import BEST, REGULAR, Run
from utils.machine import CPU, computes_bf16

EPOCHS = 4
SETTINGS = f"""
    train.max_epochs={EPOCHS} train.checkpoint_every_steps=5 train.device=cpu train.precision=fp32
    train.log_every=1 train.log_attention=false train.patience=9 train.ema_decay=0.9
    model.d_model=16 model.n_heads=2 model.n_encoder_layers=1 model.n_decoder_layers=1
    model.d_ff=32 model.dropout=0.2 tokenizer.vocab_size=300 data.corpus.n_train=150
    data.corpus.n_validation=20 data.corpus.n_test=10 data.max_len=64 data.batch_size=288
    optim.accumulate=2 optim.schedule.warmup_steps=10 evaluate.bleu_every_epochs=0 decode.max_len=24
""".split()
# Where the processor computes in it: to emulate it takes as long as all the rest. The scheme has
# maps of its own, which only autocast casts.
BF16 = ["train.precision=bf16", "model.position=transformer_xl"] * computes_bf16(CPU)
# Each of them beside a moving average and accumulation, which all have.
VARIANTS = {
    "plain": [],
    "within": ["train.max_steps=25"],  # the end, which has a validation of its own
    "often": ["evaluate.every_steps=5", "train.keep_best=4"],  # at each step checkpoint too
    "sampling": ["tokenizer.sampling=0.1"],  # BPE-dropout
    "muon": ["optim.optimizer=muon"],
    "bf16": BF16,
    "all": ["tokenizer.sampling=0.1", "optim.optimizer=muon", *BF16],
}
# With the highest number that is drawn: a life that goes on from a late checkpoint makes few calls.
CALLS = {"torch.save": 6, "os.fsync": 24, "os.replace": 12, "os.rename": 2, "os.unlink": 12}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
FATAL = (-signal.SIGKILL, -signal.SIGTERM)
KILLS_OF_A_RUN = 5  # then it may come to its end


@dataclass
class Report:
    """What was done to the runs and what became of them."""

    ended: Counter[str] = field(default_factory=Counter)  # by what
    fell: Counter[str] = field(default_factory=Counter)  # where
    runs: int = 0
    alike: int = 0  # of them, to the last bit
    apart: dict[str, float] = field(default_factory=dict)  # most of two losses, by the settings
    processes: int = 1
    updates: list[int] = field(default_factory=list)  # last logged before each kill

    @property
    def kills(self) -> int:
        return self.ended.total()

    def lines(self) -> list[str]:
        steps = sorted(self.updates)
        return [
            f"{self.kills} kills of {self.runs} runs (processes: {self.processes}): each ended as "
            f"one never stopped, {self.alike} of them bit for bit",
            "most that a loss differed: "
            + ", ".join(f"{k} {v:.1e}" for k, v in self.apart.items()),
            "by " + ", ".join(f"{what} {n}" for what, n in sorted(self.ended.items())),
            "fell " + ", ".join(f"{where} {n}" for where, n in sorted(self.fell.items())),
            f"last logged update before the kill: {steps[0]} to {steps[-1]}, "
            f"median {steps[len(steps) // 2]}",
        ]


@cache
def nursery() -> subprocess.Popen[str]:
    """The process that forks lives, one for all campaigns; it ends with this one."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, "-c", "import nursery; nursery.serve()"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, text=True)


class Campaign:
    """Lives of runs under `folder`, each lived in processes of its own."""

    def __init__(
        self, folder: Path, seed: int, auto: bool, processes: int, variants: Sequence[str]
    ) -> None:
        self.folder, self.auto, self.processes = folder, auto, processes
        self.variants = variants
        self.draw = random.Random(seed)
        self.report = Report(processes=processes)
        self.nursery = nursery()
        self.seconds: dict[str, float] = {}  # of a life that is not cut short
        for variant in dict.fromkeys(variants):
            whole = folder / "whole" / variant
            whole.mkdir(parents=True)
            assert self.life(whole) == 0, self.said(whole)

    def said(self, subject: Path) -> str:
        return subject.with_suffix(".txt").read_text("utf-8")

    def run_of(self, subject: Path) -> Run | None:
        """The run that goes on: the one of the subject's runs that has a checkpoint."""
        runs = [run for run in map(Run, sorted((subject / "runs").glob("*"))) if run.by_age()]
        assert len(runs) <= 1, runs
        return runs[0] if runs else None

    def life(self, subject: Path, number: Any = None, call: str | None = None) -> int:
        """Train the subject on from where it is until its end or the kill; the exit code."""
        run, variant = self.run_of(subject), subject.name
        if run is not None and not self.auto:
            arguments = ["--resume", str(run.path)]
        else:
            places = [f"data.cache_dir={subject}/cache", f"train.runs_dir={subject}/runs"]
            settings = [*SETTINGS, *VARIANTS[variant], *places]
            arguments = [part for text in settings for part in ("--set", text)]
            arguments += ["--resume", "auto"] * self.auto
        life: dict[str, Any] = {
            "arguments": arguments,
            "processes": self.processes,
            "said": str(subject.with_suffix(".txt")),
            "call": call,
            "number": 0 if call is None else self.draw.randint(1, CALLS[call]),
            "after": self.draw.random() < 0.5,
        }
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        print(json.dumps(life), file=self.nursery.stdin, flush=True)
        pid = int(self.nursery.stdout.readline())
        began = time.monotonic()
        if number is not None:
            time.sleep(self.draw.uniform(0, self.seconds[variant]))
            self._kill(pid, number)
        print(file=self.nursery.stdin, flush=True)
        code = self.nursery.stdout.readline().strip()
        assert code != "hung", self.said(subject)
        self.seconds.setdefault(variant, time.monotonic() - began)
        return int(code)

    def _kill(self, pid: int, number: int) -> None:
        """A run of one process, or of several their launcher, one of them, or all."""
        ranks = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        whom = self.draw.choice([pid, *map(int, ranks), 0]) if self.processes > 1 else pid
        with contextlib.suppress(ProcessLookupError):  # a process that had just ended
            if whom:
                os.kill(whom, number)
            elif number == signal.SIGKILL:
                os.killpg(pid, number)
            else:
                os.kill(pid, number)

    def kill_until_done(self, subject: Path, *, most: int) -> None:
        """One run, killed up to `most` times, and compared."""
        kills = 0
        while True:
            number, call = None, None
            if kills < most:
                if self.draw.random() < 0.5:
                    number = self.draw.choice([signal.SIGKILL, *SIGNALS])
                else:
                    call = self.draw.choice(["torch.save", *CALLS])
            code = self.life(subject, number, call)
            said = self.said(subject)
            assert "Traceback" not in said or code in FATAL, said
            assert "damaged" not in said, said
            finished = "this run is finished" in said  # killed after its last checkpoint
            if code == 0 or finished:
                break
            self._count(subject, code, number, call, said)
            kills += 1
            told = f"kill {self.report.kills}: after update {self.report.updates[-1]}"
            print(told, file=sys.stderr, flush=True)
        self.report.runs += 1
        self._compare(subject)

    def _count(self, subject: Path, code: int, number: Any, call: str | None, said: str) -> None:
        """Take note of a death, and look at what it left: whatever has its name is whole."""
        if call is not None:
            assert code in (-signal.SIGKILL, 128 + signal.SIGKILL), (code, said)
            self.report.ended[f"SIGKILL at {call}"] += 1
        else:
            assert number is not None
            assert code in (-number, 128 + number), (code, said)
            self.report.ended[number.name] += 1
        run = self.run_of(subject)
        for path in [] if run is None else run.by_age():
            read_checkpoint(path)
        if run is None:
            self.report.fell["before the first checkpoint"] += 1
            for path in [] if self.auto else (subject / "runs").glob("*"):
                shutil.rmtree(path)
        elif list(run.path.rglob(".*.tmp")):
            self.report.fell["while a file was written"] += 1
        else:
            self.report.fell["between writes"] += 1
        self.report.updates.append(0 if run is None else max(logged(run), default=0))

    def _compare(self, subject: Path) -> None:
        of_whole = self.folder / "whole" / subject.name / "runs"
        [whole], again = map(Run, of_whole.glob("*")), self.run_of(subject)
        assert again is not None
        in_bf16 = subject.name in ("bf16", "all")
        leeway = 0.0 if self.processes <= 2 else 0.01 if in_bf16 else 1e-6
        for kind in ("train", "validation"):
            lines, then = log_of(again, kind), log_of(whole, kind)
            assert lines.keys() == then.keys(), (subject, kind)
            for step, line in lines.items():
                apart = abs(line["loss"] - then[step]["loss"])
                most = self.report.apart.get(subject.name, 0.0)
                self.report.apart[subject.name] = max(apart, most)
                assert apart <= leeway, (subject, kind, step, apart)
        # A signal makes a checkpoint after its update; those by epoch are the same.
        names, found = (
            [path.name for p in (BEST, REGULAR) for path in run.files(p)] for run in (whole, again)
        )
        without_loss = ([name.partition("_loss")[0] for name in n] for n in (names, found))
        assert operator.eq(*without_loss), (subject, found, names)
        try:
            assert found == names, (subject, found, names)
            assert_same_logs(again, whole)
            for name in names:
                assert_same_state(whole.checkpoints / name, again.checkpoints / name)
            assert_same_state(whole.by_age()[-1], again.by_age()[-1])
            self.report.alike += 1
        except AssertionError:
            if self.processes <= 2:
                raise
        for path in again.by_age():
            read_checkpoint(path)
        assert not list(again.path.rglob("*.tmp")), subject


def logged(run: Run) -> list[int]:
    """The updates in a log whose last line may be half."""
    lines = (run.logs / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    return [json.loads(line)["step"] for line in lines if line.endswith(b"\n")]


def run_campaign(
    folder: Path,
    *,
    kills: int,
    seed: int,
    auto: bool = False,
    processes: int = 1,
    variants: Sequence[str] = ("plain",),
) -> Report:
    """Kill runs until there were so many kills. Raises AssertionError at the first difference."""
    campaign = Campaign(folder, seed, auto, processes, variants)
    most = kills if auto else KILLS_OF_A_RUN
    while campaign.report.kills < kills:
        left = kills - campaign.report.kills
        variant = variants[campaign.report.runs % len(variants)]
        subject = folder / f"subject_{campaign.report.runs}" / variant
        subject.parent.mkdir()
        campaign.kill_until_done(subject, most=min(left, most))
        shutil.rmtree(subject.parent)
    return campaign.report


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Kill training runs and compare them with one never stopped."
    )
    parser.add_argument("--kills", type=int, default=50, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--auto", action="store_true")
    parser.add_argument("--processes", type=int, default=1, metavar="N")
    names = {"choices": VARIANTS, "default": ["plain"], "metavar": "NAME"}
    parser.add_argument("--with", nargs="+", dest="variants", help=", ".join(VARIANTS), **names)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = run_campaign(Path(folder), **vars(args))
        print(*report.lines(), sep="\n")


if __name__ == "__main__":
    main()
