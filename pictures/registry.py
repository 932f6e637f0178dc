"""A picture of position schemes: its name, what it shows, and the function that draws it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

    from pictures.schemes import Scheme

T = TypeVar("T")
Figures = Iterable[tuple[str, "Figure"]]  # with the part of file names that tells them apart
NO_TABLE = "adds nothing to embeddings; choose one that does, as in --position sinusoidal"
NO_PLACE = "adds nothing to embeddings and turns nothing by position alone"


@dataclass(frozen=True, slots=True)
class Picture:
    """A subcommand of visualize.py.

    shows ends the sentence "Draws ...". n_positions and schemes are the defaults of the command
    line; no schemes: that of a run. together: one picture compares all schemes.
    """

    name: str
    function: Callable[[Any, int], Figures]
    shows: str
    n_positions: int
    schemes: tuple[str, ...] = ()
    together: bool = False

    def draw(self, schemes: Sequence[Scheme], n_positions: int | None = None) -> Figures:
        """Figures with names for files. Raises UserError if a scheme has no such picture."""
        for group in [schemes] if self.together else [[scheme] for scheme in schemes]:
            names = [self.name, *(scheme.name for scheme in group)]
            n = min(scheme.n_positions(n_positions, self.n_positions) for scheme in group)
            for name, figure in self.function(group if self.together else group[0], n):
                yield "_".join(filter(None, [*names, name])), figure


def picture(shows: str, **options: Any) -> Callable[[Callable[[Any, int], Figures]], Picture]:
    """Turns a function of a Scheme (or of several) and n positions into a Picture of its name."""
    return lambda function: Picture(function.__name__, function, shows, **options)


def where(place: str, noun: str = "") -> str:
    """The end of a title for a side or a stack: ", source side"; "" if all have the same."""
    return f", {place} {noun}".rstrip() if place else ""


def layers_of(values: np.ndarray) -> list[str]:
    """Names for the layers of values [L,...]; no name if L is 1, which stands for all."""
    return [f"layer {i + 1}" for i in range(len(values))] if len(values) > 1 else []


def heads_of(values: np.ndarray) -> list[str]:
    """Names for the heads of values [L,H,...]."""
    return [f"head {i + 1}" for i in range(values.shape[1])]


def one_of(values: np.ndarray, layer: int) -> str:
    """The end of a title for a layer's first head in values [L,H,...], as far as they differ."""
    alike = (values[layer] == values[layer, :1]).all()
    return where([*layers_of(values), ""][layer]) + where("" if alike else "head 1")


def need(found: T, scheme: Scheme, lacks: str) -> T:
    """`found`. If nothing is found, raises UserError saying what the scheme lacks."""
    if not found:
        what, remedy, _ = lacks.partition("; choose one")
        if remedy and scheme.trained:
            lacks = f"{what}; give a run of a scheme that does"
        raise UserError(f"the position scheme {scheme.name!r} {lacks}")
    return found
