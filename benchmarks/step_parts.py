"""Two parts of a training step against torch's own, side by side in one run: `python
benchmarks/step_parts.py`.

Prints a Markdown table: median milliseconds of forward and backward, in turn, and the ratio pair by
pair.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models.dropout import Dropout
from models.loss import token_sums
from models.positional_encodings.rope import inverse_frequencies, rotate_complex, rotate_real


def pair(
    ours: Callable[[], None], theirs: Callable[[], None], rounds: int
) -> tuple[float, float, float]:
    """Median milliseconds of both, run in turn, and the median ratio theirs / ours."""
    times: list[tuple[float, float]] = []
    for _ in range(rounds + 2):
        taken = []
        for run in (ours, theirs):
            start = time.perf_counter()
            run()
            taken.append((time.perf_counter() - start) * 1e3)
        times.append((taken[0], taken[1]))
    kept = times[2:]
    return (
        statistics.median(a for a, _ in kept),
        statistics.median(b for _, b in kept),
        statistics.median(b / a for a, b in kept),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    x = torch.randn(100, 15, 192, requires_grad=True)
    dropout = Dropout(0.15).train()
    hidden = torch.randn(1500, 192, requires_grad=True)
    weight = (torch.randn(6000, 192) / 192**0.5).requires_grad_()
    targets = torch.randint(0, 6000, (1500,))
    heads = torch.randn(100, 4, 15, 48, requires_grad=True)
    angles = torch.arange(15)[:, None] * inverse_frequencies(48)

    def our_loss() -> None:
        token_sums(hidden, weight, targets, label_smoothing=0.1).objective.backward()

    def torch_loss() -> None:
        F.cross_entropy(
            F.linear(hidden, weight), targets, reduction="sum", label_smoothing=0.1
        ).backward()

    rows = {
        "dropout, [100,15,192]": (
            lambda: dropout(x).sum().backward(),
            lambda: F.dropout(x, 0.15, True).sum().backward(),
        ),
        "projection and smoothed cross-entropy, [1500,192] to 6000": (our_loss, torch_loss),
        "rotation, [100,4,15,48]: complex against real": (
            lambda: rotate_complex(heads, angles).sum().backward(),
            lambda: rotate_real(heads, angles).sum().backward(),
        ),
    }
    print(
        f"torch {torch.__version__}, {platform.machine()}, {args.threads} threads, {args.rounds} rounds\n"
    )
    print("| part | ours, ms | other, ms | other / ours |\n| --- | --- | --- | --- |")
    for name, (ours, theirs) in rows.items():
        a, b, ratio = pair(ours, theirs, args.rounds)
        print(f"| {name} | {a:.2f} | {b:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
