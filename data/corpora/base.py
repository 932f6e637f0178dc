"""The interface of a corpus."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ParallelText:
    """The sentences of a split: src[i] translates tgt[i]; `skipped` counts others by reason.

    Large sides should be tuples: the garbage collector looks through all of a list each time.
    """

    src: Sequence[str]
    tgt: Sequence[str]
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.src) != len(self.tgt):
            raise ValueError(f"{len(self.src)} source lines against {len(self.tgt)} target lines")

    def __len__(self) -> int:
        return len(self.src)

    def both_ways(self) -> "ParallelText":
        """All pairs in both directions: the forward ones, then the same pairs swapped."""
        return ParallelText((*self.src, *self.tgt), (*self.tgt, *self.src), self.skipped)

    def fingerprint(self) -> str:
        """A hash of the text itself, so that a cache never outlives a change of the corpus."""
        digest = hashlib.sha256()
        for side in (self.src, self.tgt):
            digest.update(f"{len(side)}\n".encode())
            for line in side:
                raw = line.encode("utf-8", "surrogatepass")
                digest.update(f"{len(raw)}:".encode() + raw)
        return digest.hexdigest()


class CorpusReader(ABC):
    """A corpus: its named splits, one for training, one for validation, the rest for testing."""

    train: str
    validation: str
    test: tuple[str, ...]

    @property
    def splits(self) -> tuple[str, ...]:
        """Those that can be scored by name."""
        return (*self.test, self.validation, self.train)

    @abstractmethod
    def load(self, split: str) -> ParallelText:
        """One split in the direction of the config. Raises UserError where it is not available."""
