"""The source of chance. Only `random.Random.random` is drawn from: its sequence never changes
between Pythons.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Draws from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def draw(self) -> float:
        """Uniform in [0, 1)."""
        return self._random()

    def below(self, n: int) -> int:
        """Uniform in 0..n-1."""
        return int(self._random() * n)

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self._random() < probability
