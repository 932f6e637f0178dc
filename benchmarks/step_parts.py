"""Parts of a training step against torch's own, in turn: `python benchmarks/step_parts.py`.

Prints a Markdown table: median milliseconds of forward and backward, and the ratio round by round.
"""

import itertools
import platform
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: imports begin at the root of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common import DTYPES, in_turn, ratio, spread
from models.attention.kernels import attend_eager, attend_sdpa
from models.dropout import Dropout
from models.loss import token_sums
from models.positional_encodings.rope import inverse_frequencies, rotate_by
from utils.cli import Parser, positive, run_main, threads
from utils.machine import CPU, computes_bf16
from utils.tables import markdown_table


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(prog="step_parts.py", description=__doc__)
    parser.add_argument("--threads", type=threads, default=2)
    parser.add_argument("--rounds", type=positive, default=30)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    x = torch.randn(100, 15, 192, requires_grad=True)
    dropout = Dropout(0.15).train()
    hidden = torch.randn(1500, 192, requires_grad=True)
    weight = (torch.randn(6000, 192) / 192**0.5).requires_grad_()
    targets = torch.randint(0, 6000, (1500,))
    heads = torch.randn(100, 4, 15, 48, requires_grad=True)
    angles = torch.arange(15)[:, None] * inverse_frequencies(48)

    def torch_loss() -> Tensor:
        logits = F.linear(hidden, weight)
        return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1)

    parts: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
        "dropout, [100,15,192]": (lambda: dropout(x), lambda: F.dropout(x, 0.15, True)),
        "projection and smoothed cross-entropy, [1500,192] to 6000": (
            lambda: token_sums(hidden, weight, targets, label_smoothing=0.1).objective,
            torch_loss,
        ),
        "rotation, [100,4,15,48]: complex against real": (
            lambda: rotate_by(heads, angles, form="complex"),
            lambda: rotate_by(heads, angles, form="real"),
        ),
    }
    alike: dict[str, Any] = {
        "mask": None,
        "bias": None,
        "is_causal": False,
        "scale": 0.125,
        "dropout_p": 0.0,
    }
    precisions = ["float32", *(["bfloat16"] if computes_bf16(CPU) else [])]
    for precision, length in itertools.product(precisions, (16, 32, 64, 128, 256)):
        shape = [2048 // length, 4, length, 64]
        qkv = [torch.randn(shape, dtype=DTYPES[precision], requires_grad=True) for _ in range(3)]
        eager = partial(attend_eager, *qkv, **alike)
        name = f"attention in {precision}, {shape}: eager against fused"
        fused = partial(attend_sdpa, *qkv, **alike)
        parts[name] = (partial(lambda kernel: kernel()[0], eager), fused)
    rows = []
    for name, pair in parts.items():
        runs = {key: lambda _, part=part: part().sum().backward() for key, part in zip("ab", pair)}
        taken = in_turn(runs, rounds=args.rounds, warmup=2, rest=False)
        a, b = (f"{1e3 * spread(seconds).median:.2f}" for seconds in taken.values())
        rows.append((name, a, b, f"{ratio(taken['b'], taken['a']).median:.2f}"))
    machine = f"{platform.machine()}, {args.threads} threads, {args.rounds} rounds"
    print(f"torch {torch.__version__}, {machine}\n")
    print(markdown_table(("part", "ours, ms", "other, ms", "other / ours"), rows))


if __name__ == "__main__":
    run_main(main)
