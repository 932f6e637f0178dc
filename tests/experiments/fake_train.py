"""Writes what train.py writes, in no time. What becomes of it is said in fates.json, by variant."""

import json
import os
import signal
import sys
import time
from pathlib import Path

here = Path(__file__).parent
time.sleep(0.1)  # so that its memory is looked at: every 0.02 s
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
resume = arguments.get("--resume")
folder = Path(arguments["--config"]).parent
config = json.loads((folder / "config.json").read_text())
variant = folder.name.split("_seed")[0]
with (here / "calls").open("a") as file:
    print("resume" if resume else "train", variant, file=file)
fate = json.loads((here / "fates.json").read_text()).get(variant, "well")
if fate == "device":
    (here / f"gpu_of_{variant}").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "any"))
if fate == "error":
    print("Traceback: much text")
    sys.exit("error: no such luck")
run = folder / f"{config['name']}_20260101_000000_{time.monotonic_ns()}"
if resume:
    [run] = folder.glob("*_20260101_*")
for name in ("checkpoints", "logs"):
    (run / name).mkdir(parents=True, exist_ok=True)
(run / "checkpoints" / "regular_checkpoint_1.pt").write_text("regular")
print(f"{run}: 12,345 parameters, 8 pairs in 2 updates an epoch", file=sys.stderr, flush=True)
if fate == "killed" and not resume:
    os.kill(os.getpid(), signal.SIGKILL)
if fate == "slow" and not resume:

    def end(number: int, frame: object) -> None:
        (here / f"ended_{variant}").write_text(signal.Signals(number).name)
        sys.exit(128 + number)

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    (here / f"waiting_{variant}").touch()
    time.sleep(60)
(run / "checkpoints" / "best_checkpoint_2_loss=-1.5000.pt").write_text("best")
same = {"kind": "validation", "step": 3}
lines = [{**same, "epoch": n, "loss": 3 / n, "accuracy": n / 4} for n in (1, 2)]
for step, speed in enumerate((9.0, 100.0, 300.0), start=1):
    of_epoch = {"epoch": 1 + step // 3, "loss": 4.0 - step}
    lines.append({"kind": "train", "step": step, **of_epoch, "tokens_per_second": speed})
(run / "logs" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
print(run)
