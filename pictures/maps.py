"""Maps of position vectors: points in the plane by PCA and MDS, and how they move while a run is
trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from checkpoints.content import checkpoint_config, read_checkpoint
from checkpoints.run import Run
from pictures import arrays as arrays
from pictures.panels import point_panels
from pictures.schemes import Subject, need_tables, place_of
from utils.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def map_figures(subject: Subject, n_positions: int | None = None) -> Iterator[tuple[str, Figure]]:
    """The vectors of positions as points in the plane: by PCA and by metric MDS, for each side.

    n_positions None: 64. PCA shows the two directions of the largest variance; MDS places points so
    that their distances come close to those of the vectors (stress 0: equal). A line joins
    neighbouring positions. Raises UserError for a scheme that adds nothing to embeddings, and for
    fewer than 3 positions.
    """
    tables = need_tables(subject, _enough(subject, n_positions))
    panels = {}
    for side, table in tables.items():
        mean, axes, shares = arrays.principal_axes(table)
        panels[f"PCA{place_of(side, ' side')} ({shares.sum():.0%} of the variance)"] = (
            table - mean
        ) @ axes.T
        points, stress = arrays.scaled_map(table)
        panels[f"MDS{place_of(side, ' side')} (stress {stress:.2f})"] = points
    yield (
        subject.name,
        point_panels(
            panels,
            title=f"{subject.label}: the vectors of positions in the plane{subject.about}",
            x_label="first coordinate",
            y_label="second coordinate",
            columns=2,
            bar_label=arrays.token_axis(
                subject.scheme, min(len(table) for table in tables.values())
            ),
        ),
    )


def map_frames(run: Run, n_positions: int | None = None) -> list[Figure]:
    """The PCA of a run's position vectors at each of its checkpoints, oldest first: frames of one
    size.

    The directions are those of the last checkpoint, and the axes are common, so that points can be
    followed. Raises UserError for a scheme whose vectors are not trained.
    """
    states = _states(run)
    subjects = [subject for _, subject in states]
    last = subjects[-1]
    n = _enough(last, n_positions)
    need_tables(last, n)
    if last.state == "fixed":
        raise UserError(
            f"--gif: the vectors of {last.name!r} are fixed, so no checkpoint moves them; give a run "
            "with a learned table"
        )
    directions = {side: arrays.principal_axes(table)[:2] for side, table in last.tables(n).items()}
    moved = [
        {
            side: (table - directions[side][0]) @ directions[side][1].T
            for side, table in subject.tables(n).items()
        }
        for subject in subjects
    ]
    limit = 1.08 * max(float(np.abs(points).max()) for frame in moved for points in frame.values())
    return [
        point_panels(
            {f"PCA{place_of(side, ' side')}": points for side, points in frame.items()},
            title=f"{last.name} ({run.path.name}): {when}",
            x_label="first direction of the last checkpoint",
            y_label="second direction",
            columns=len(frame),
            limit=limit,
            bar_label=arrays.token_axis(last.scheme, n),
        )
        for (when, _), frame in zip(states, moved)
    ]


def _enough(subject: Subject, n_positions: int | None) -> int:
    n = subject.n_positions(n_positions, 64)
    if n < 3:
        raise UserError(f"--positions {n}: a map in the plane needs 3 positions or more")
    return n


def _states(run: Run) -> list[tuple[str, Subject]]:
    """("epoch 3", scheme) of every update at which the run has a checkpoint, oldest first."""
    found: dict[int, tuple[str, Subject]] = {}
    for path in run.by_age():
        payload: dict[str, Any] = read_checkpoint(path)
        progress = payload.get("progress", {})
        epoch, step = progress.get("epoch", 0), progress.get("step", 0)
        if step in found:
            continue
        model = checkpoint_config(payload).model
        scheme = arrays.fresh_scheme(model)
        weights = payload["model"]
        scheme.load_state_dict(
            {
                key.removeprefix("scheme."): weights[key]
                for key in weights
                if key.startswith("scheme.")
            }
        )
        found[step] = (
            f"epoch {epoch}, update {step}",
            Subject(model.position.kind, scheme, model, trained=True),
        )
    return [found[step] for step in sorted(found)]
