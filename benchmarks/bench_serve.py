"""The server under load, with and without batches: `python benchmarks/bench_serve.py`.

Several clients at once ask for one sentence after the other, each over one connection. Each answer
is compared with the model's own, as in inference.py.
"""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

if not __package__:  # run as a file: imports begin at the root of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import common
from benchmarks.common import Report
from data.corpora.build import build_corpus
from translation.arguments import add_run_arguments, require_runs
from translation.loading import load_run
from translation.translator import Translator
from utils.cli import Parser, positive, run_main
from utils.errors import UserError
from utils.lines import open_source, read_lines

ROOT = Path(__file__).resolve().parents[1]


@contextlib.contextmanager
def serving(run: Path, max_batch: int, args: Namespace) -> Iterator[tuple[int, int]]:
    """The process id and the port of a running serve.py."""
    command = [sys.executable, str(ROOT / "serve.py"), "--model_path", str(run), "--port", "0"]
    command += ["--max_batch", str(max_batch), "--timeout", "600", "--device", args.device]
    command += [] if args.threads is None else ["--threads", str(args.threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://[^/]*:(\d+)/", process.stdout.readline())
            if found is None:
                raise UserError("serve.py did not start: see above")
            yield process.pid, int(found[1])
        finally:
            process.terminate()


async def ask(port: int, texts: Iterator[tuple[int, str]], answers: dict[int, str]) -> list[float]:
    """Seconds of each request of one client, which takes texts until none are left."""
    seconds = []
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number, text in texts:
        body = json.dumps({"q": text, "source": "auto", "split_sentences": False}).encode()
        head = f"POST /translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        begun = time.perf_counter()
        writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        said = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(re.findall(r"content-length: (\d+)", said, re.I)[0])
        answer = json.loads(await reader.readexactly(length))
        seconds.append(time.perf_counter() - begun)
        answers[number] = answer.get("translatedText", said.partition("\r\n")[0])
    writer.close()
    return seconds


async def load(port: int, texts: Sequence[str], n_clients: int) -> tuple[list[float], float, dict]:
    """Latencies, total seconds, and the answer to each text by its number."""
    answers: dict[int, str] = {}
    shared = iter(enumerate(texts))
    begun = time.perf_counter()
    clients = await asyncio.gather(*(ask(port, shared, answers) for _ in range(n_clients)))
    taken = time.perf_counter() - begun
    return [second for client in clients for second in client], taken, answers


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = Parser(prog="bench_serve.py", description="Measure serve.py under load.")
    add = parser.add_argument
    add_run_arguments(parser)
    what = "one sentence a line (default: the test split of the model's corpus)"
    add("--src_file", type=Path, metavar="FILE", help=what)
    add("--requests", type=positive, default=2000, metavar="N", help="default: 2000")
    several: dict[str, Any] = {"nargs": "+", "type": positive, "metavar": "N"}
    add("--clients", **several, default=[1, 8, 64, 256], help="default: 1 8 64 256")
    add("--max_batch", **several, default=[1, 32], help="default: 1 (no batches) and 32")
    common.add_arguments(parser, "bench_serve")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    device = common.use_machine(args)
    require_runs(args)
    loaded = load_run(args.model_path)
    if args.src_file is not None:
        lines = list(read_lines(*open_source(args.src_file)))
    else:
        corpus = build_corpus(loaded.config.data)
        lines = list(corpus.load(corpus.test[0]).src)
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise UserError(f"--src_file {args.src_file}: no sentence; give one sentence a line")
    texts = (lines * (1 + args.requests // len(lines)))[: args.requests]
    right = [each.text for each in Translator.of(loaded, device).translate(texts, n_best=1)]
    report = Report("bench_serve", "The server under load", args, device)
    rows = []
    for n_clients in args.clients:
        for max_batch in args.max_batch:
            with serving(args.model_path, max_batch, args) as (pid, port):
                asyncio.run(load(port, texts[:64], min(n_clients, 8)))  # warm-up
                before = common.status_mb("VmRSS", pid)
                latencies, taken, answers = asyncio.run(load(port, texts, n_clients))
                after = common.status_mb("VmRSS", pid)
            median, late = np.quantile(latencies, [0.5, 0.99]).tolist()
            same = sum(answers.get(i) == text for i, text in enumerate(right))
            row = {"clients": n_clients, "max_batch": max_batch, "requests": len(texts)}
            row |= {"answered": len(answers), "same": same, "rate": len(texts) / taken}
            row |= {"median": 1000 * median, "late": 1000 * late, "before": before, "after": after}
            rows.append(row)
            common.say(f"{n_clients} clients, batches of {max_batch}")
    columns = {
        "clients": "{clients}",
        "sentences at once": "{max_batch}",
        "requests/s": "{rate:.1f}",
        "median, ms": "{median:,.0f}",
        "99th percentile, ms": "{late:,.0f}",
        "same as inference.py": "{same} of {requests}",
        "memory before, MB": "{before:,.0f}",
        "after, MB": "{after:,.0f}",
    }
    report.add(f"{len(texts):,} requests", common.table(rows, columns), {"rows": rows})


if __name__ == "__main__":
    run_main(main)
