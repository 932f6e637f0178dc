"""Maps of position vectors: points in the plane, and how they move during training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pictures.panels import point_panels
from pictures.registry import NO_TABLE, Figures, need, picture, where
from utils.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from checkpoints.run import Run
    from pictures.schemes import Scheme


@picture(
    "position vectors as points in the plane: by PCA and by MDS; with --gif, also PCA over "
    "the checkpoints of a run",
    n_positions=64,
)
def embedding_map(scheme: Scheme, n: int) -> Figures:
    """PCA shows the two directions of largest variance; MDS keeps distances (stress 0: all).

    A line joins neighbouring positions.
    """
    tables = need(scheme.tables(n), scheme, NO_TABLE)
    if n < 3:
        raise UserError(f"--positions {n}: a map in the plane needs 3 positions or more")
    panels = {}
    for side, table in tables.items():
        mean, axes, shares = principal_axes(table)
        points, stress = scaled_map(table)
        of = where(side, "side")
        panels[f"PCA{of} ({shares.sum():.0%} of the variance)"] = (table - mean) @ axes.T
        panels[f"MDS{of} (stress {stress:.2f})"] = points
    figure = point_panels(
        panels,
        title=f"{scheme.label}: the vectors of positions in the plane{scheme.about}",
        x_label="first coordinate",
        y_label="second coordinate",
        columns=2,
    )
    yield "", figure


def map_frames(run: Run, n_positions: int | None = None) -> list[Figure]:
    """The PCA of a run's position vectors at each of its checkpoints, oldest first.

    The figures have the same size and axes, and the directions of the last checkpoint, so that
    points can be followed. Raises UserError for a scheme without a learned table.
    """
    from pictures.schemes import trained_scheme
    from translation.loading import load_run

    if not (paths := run.by_age()):
        raise UserError(f"--gif: {run.path} has no checkpoints of a training: give a run that has")
    found = {}
    for path in paths:
        loaded = load_run(path)
        scheme = trained_scheme(loaded)
        if not scheme.learns_tables:
            raise UserError(
                f"--gif: the vectors of {scheme.name!r} are fixed, so no checkpoint moves them; "
                "give a run with a learned table"
            )
        tables = scheme.tables(scheme.n_positions(n_positions, embedding_map.n_positions))
        found[loaded.step] = (f"epoch {loaded.epoch}, update {loaded.step}", tables)
    directions = {side: principal_axes(table)[:2] for side, table in found[max(found)][1].items()}
    frames = {}
    for _, (when, tables) in sorted(found.items()):
        frames[when] = {
            f"PCA{where(side, 'side')}": (table - directions[side][0]) @ directions[side][1].T
            for side, table in tables.items()
        }
    farthest = max(np.abs(points).max() for panels in frames.values() for points in panels.values())
    return [
        point_panels(
            panels,
            title=f"{scheme.name} ({run.name})",  # wrapped the same, for frames of one size
            x_label=f"{when}: first direction of the last checkpoint",
            y_label="second direction",
            columns=len(panels),
            limit=1.08 * float(farthest),
        )
        for when, panels in frames.items()
    ]


def principal_axes(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """PCA of [T,D]: mean row [D], the two directions of most variance [2,D], their shares [2]."""
    from sklearn.decomposition import PCA

    pca = PCA(n_components=2, svd_solver="full").fit(table)
    return pca.mean_, pca.components_, pca.explained_variance_ratio_


def scaled_map(table: np.ndarray) -> tuple[np.ndarray, float]:
    """Metric MDS of [T,D]: points [T,2] at distances close to those of the rows, and the stress.

    It starts from classical scaling and has no randomness. The stress is Kruskal's stress-1 (1964),
    relative to the distances in the map; 0 if all are kept.
    """
    from sklearn.manifold import MDS
    from sklearn.metrics import pairwise_distances

    mapped = MDS(n_init=1, init="classical_mds", metric="precomputed", normalized_stress=True)
    return mapped.fit_transform(pairwise_distances(table)), float(mapped.stress_)
