"""The server for an hour under clients that behave badly, and with its model swapped under it.

    python tests/serving/soak.py --model_path RUN --minutes 60

Clients translate, align, break off, send too much or what is no request; now and then the run's
files are overwritten. Every answer must be the first that its text ever got, or one of the
announced refusals; the server's memory is printed every minute.
"""

import argparse
import asyncio
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

if __name__ == "__main__":  # run as a file: where the imports of the project and its tests begin
    sys.path[1:1] = [str(Path(__file__).resolve().parents[n]) for n in (2, 1, 0)]

from test_serve import Server, serving

from configs.schema import Phrasebook
from data.corpora.phrasebook import PhrasebookCorpus

TEXTS = list(PhrasebookCorpus(Phrasebook(n_train=400)).load("test").src)
MALFORMED = ("{", "[]", '{"q": 1}', '{"q": "a", "model": "../../etc/passwd"}', "\x00\xff" * 50)
# What a client does, how often, and how it is then answered; None: it does not stay to hear.
DEEDS: dict[str, tuple[int, int | None]] = {
    "translate": (60, 200),
    "align": (10, 200),
    "explore": (2, 200),
    "metrics": (5, 200),
    "malformed": (8, 400),
    "oversized": (5, 413),
    "half a request": (3, None),
    "gone": (7, None),
}
BUSY = (503, 504)


async def send(port: int, method: str, path: str, body: str, *, stay: bool, part: float = 1) -> Any:
    """The status and the body of an answer; None of a client that goes away before it comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = body.encode("utf-8", "surrogatepass")
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n"
    sent = head.encode() + b"Connection: close\r\n\r\n" + raw
    writer.write(sent[: int(part * len(sent))])
    await writer.drain()
    answer = None
    if stay:
        said = (await reader.readuntil(b"\r\n\r\n")).decode()
        answer = int(said.split()[1]), await reader.read()
    writer.close()
    return answer


async def client(
    port: int, end: float, pause: float, draws: random.Random, first: dict, told: Counter
) -> None:
    while time.monotonic() < end:
        await asyncio.sleep(pause * draws.random())
        [deed] = draws.choices(list(DEEDS), [often for often, _ in DEEDS.values()])
        text, due = draws.choice(TEXTS), DEEDS[deed][1]
        asked = {"q": text, "search": draws.choice(("beam", "greedy"))}
        method, path, body = "POST", "/translate", json.dumps(asked)
        if deed == "align":
            path, body = "/align", json.dumps({"src": text, "tgt": draws.choice(TEXTS)})
        elif deed == "explore":
            method, path, body = "GET", f"/explore?text={quote(text.split()[0])}", ""
        elif deed == "metrics":
            method, path, body = "GET", "/metrics", ""
        elif deed == "malformed":
            body = draws.choice(MALFORMED)
        elif deed == "oversized":
            body = json.dumps({"q": text * draws.randint(200, 20_000)})
        part = draws.random() if deed == "half a request" else 1
        answer = await send(port, method, path, body, stay=due is not None, part=part)
        if answer is None:
            told[deed, "not heard"] += 1
            continue
        told[deed, answer[0]] += 1
        same = deed != "translate" or answer[0] != 200
        same = same or first.setdefault(body, answer[1]) == answer[1]
        if answer[0] not in (due, *BUSY) or not same:
            print(f"{deed}: {body[:200]!r} gave {answer[0]} {answer[1][:200]!r}", flush=True)
            told["fault"] += 1


async def watch(server: Server, run: Path, minutes: float) -> None:
    status = Path(f"/proc/{server.process.pid}/status")
    for minute in range(int(minutes) + 1):
        memory = int(re.findall(r"VmRSS:\s+(\d+)", status.read_text())[0]) / 1024
        print(f"{minute} min: {memory:.0f} MB", flush=True)
        for file in [*run.glob("checkpoints/*.pt"), run / "config.json"]:
            file.write_bytes(b"swapped" * minute)
        await asyncio.sleep(60)


async def soak(server: Server, run: Path, n_clients: int, minutes: float, pause: float) -> Counter:
    told: Counter = Counter()
    first: dict[str, bytes] = {}
    how = server.port, time.monotonic() + 60 * minutes, pause
    clients = (client(*how, random.Random(n), first, told) for n in range(n_clients))
    watcher = asyncio.create_task(watch(server, run, minutes))
    await asyncio.gather(*clients)
    watcher.cancel()
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description="The server for an hour under bad clients.")
    parser.add_argument("--model_path", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--minutes", type=float, default=60)
    what = "seconds that a client waits before its next deed, at most"
    parser.add_argument("--pause", type=float, default=1.0, help=what)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = shutil.copytree(args.model_path, Path(folder) / "run")
        with serving("--model_path", run, "--threads", "1") as server:
            told = asyncio.run(soak(server, run, args.clients, args.minutes, args.pause))
    for what, times in sorted(told.items(), key=str):
        print(f"{what}: {times:,}")
    sys.exit(told["fault"] > 0)


if __name__ == "__main__":
    main()
