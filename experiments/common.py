"""What the experiments share: a store of finished runs, tables, and the mean and spread over seeds."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utils.errors import UserError
from utils.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ResultStore:
    """Finished runs, one JSON file each: `{label}_{digest of the settings}.json`.

    A run is known by its settings: everything that decides its outcome belongs there (scheme, seed,
    sizes, and a version to be raised when the code that computes the outcome changes). A run that
    was cut short leaves no file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, label: str, settings: Mapping[str, Any]) -> Path:
        """Where the run with these settings (values that JSON can hold) lies or will lie."""
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        return self.folder / f"{label}_{digest}.json"

    def find(self, label: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result of a finished run; None where it has not been run. Raises UserError for a
        broken file.
        """
        path = self.path(label, settings)
        try:
            return json.loads(path.read_text("utf-8"))["result"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: not a result ({error!r}); delete it to run it again"
            ) from error

    def find_or_run(
        self, label: str, settings: Mapping[str, Any], run: Callable[[], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The stored result, or that of run(): values that JSON can hold. It is stored with its
        "provenance" added.
        """
        found = self.find(label, settings)
        if found is not None:
            return found
        from utils.machine import provenance  # imports torch

        result = {**run(), "provenance": provenance()}
        record = {"label": label, "settings": settings, "result": result}
        text = json.dumps(record, indent=1) + "\n"
        write_text(self.path(label, settings), text)
        return json.loads(text)[
            "result"
        ]  # the same whether it was just run or read: lists, and names as text


def provenance_line(results: Collection[Mapping[str, Any]]) -> str:
    """Which commits, versions and hardware the results come from."""
    kinds = {
        key: sorted({result["provenance"][key] for result in results})
        for key in ("commit", "torch", "hardware")
    }
    return "; ".join(f"{key} {', '.join(values)}" for key, values in kinds.items())


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for a single value)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def mean_plus_minus(values: Sequence[float], digits: int = 3) -> str:
    """`0.950 ± 0.012` from several values, `0.950` from one, a dash from none."""
    if not values:
        return "–"
    mean, spread = mean_and_spread(values)
    return f"{mean:.{digits}f} ± {spread:.{digits}f}" if len(values) > 1 else f"{mean:.{digits}f}"


def seed_bars(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    title: str,
    x_label: str,
    limits: tuple[float, float] | None = None,
) -> Figure:
    """Panels, one under the other, of horizontal bars: for each name the mean of its values (one a
    seed), a line from mean - to mean + standard deviation, and each value as a dot. A name without
    values has no bar.

    limits: the range of the x axis, beyond which no spread is drawn. Raises ValueError where there
    is nothing to draw.
    """
    from pictures.panels import panel_figure  # numpy and matplotlib

    if not any(panels.values()):
        raise ValueError("no bars to draw: panels is empty")
    counts = [len(bars) for bars in panels.values()]
    figure, axes = panel_figure(
        len(panels),
        1,
        size=(7.5, 0.8 + 0.26 * sum(counts) / len(counts)),
        title=title,
        x_label=x_label,
        y_label="",
        sharex=True,
        height_ratios=[2 + count for count in counts],
    )
    for place, (panel, bars) in zip(axes.flat, panels.items()):
        for row, values in enumerate(bars.values()):
            if not values:
                continue
            mean, spread = mean_and_spread(values)
            low, high = mean - spread, mean + spread
            if limits:
                low, high = max(low, limits[0]), min(high, limits[1])
            place.barh(row, mean, height=0.7, color="C0", alpha=0.45)
            place.plot([low, high], [row, row], color="black", linewidth=1)
            # Equal values lie beside each other, not on top of one another.
            offsets = [0.09 * (i - (len(values) - 1) / 2) for i in range(len(values))]
            place.scatter(
                values,
                [row + offset for offset in offsets],
                s=9,
                color="C3",
                zorder=3,
                clip_on=False,
            )
        place.set_yticks(range(len(bars)), list(bars), fontsize=8)
        place.set_ylim(len(bars) - 0.4, -0.6)
        if limits:
            place.set_xlim(*limits)
        place.grid(axis="x", alpha=0.3)
        place.set_title(panel, fontsize=10)
    return figure
