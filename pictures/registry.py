"""A picture of position schemes: its name, what it shows, and the function that draws it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pictures.schemes import Scheme

Figures = Iterable[tuple[str, "Figure"]]  # with what tells them apart in the names of files


@dataclass(frozen=True, slots=True)
class Picture:
    """A subcommand of visualize.py.

    shows ends the sentence "Draws ...". n_positions and schemes are what is drawn where the command
    line names none; no schemes: that of a run. together: one picture compares all schemes.
    """

    name: str
    function: Callable[[Any, int], Figures]
    shows: str
    n_positions: int
    schemes: tuple[str, ...] = ()
    together: bool = False

    def draw(self, schemes: Sequence[Scheme], n_positions: int | None = None) -> Figures:
        """Figures with names for files. Raises UserError where a scheme has no such picture."""
        for group in [schemes] if self.together else [[scheme] for scheme in schemes]:
            prefix = file_name(self.name, *(scheme.name for scheme in group))
            n = min(scheme.n_positions(n_positions, self.n_positions) for scheme in group)
            for name, figure in self.function(group if self.together else group[0], n):
                yield file_name(prefix, name), figure


def picture(shows: str, **options: Any) -> Callable[[Callable[[Any, int], Figures]], Picture]:
    """Makes a function of a Scheme (or of several) and n positions the Picture of its name."""
    return lambda function: Picture(function.__name__, function, shows, **options)


def file_name(*parts: str) -> str:
    """The parts that are not empty, joined."""
    return "_".join(part for part in parts if part)


def where(place: str, noun: str = "") -> str:
    """The end of a title for a side or a stack: ", source side"; "" where all have the same."""
    return f", {place} {noun}".rstrip() if place else ""
