"""Pictures of the effect of distance on position vectors and on turned queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pictures.panels import Curve, curve_panels, matrix_panels, panel_figure
from pictures.registry import NO_PLACE, NO_TABLE, Figures, need, one_of, picture, where
from pictures.text import wrap
from utils.errors import UserError

if TYPE_CHECKING:
    from pictures.schemes import Scheme


@picture(
    "the first ideas for marking positions, beside what a scheme adds to embeddings: the vectors, "
    "and how far apart every two of them are",
    n_positions=64,
    schemes=("sinusoidal",),
)
def ideas(scheme: Scheme, n: int) -> Figures:
    """Values end at 1, the size of an embedding's entries; distances are on a log scale."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm
    from scipy.spatial.distance import cdist

    width = scheme.model.d_model
    if n < 2:
        raise UserError(f"--positions {n}: distances need 2 or more")
    side, table = next(iter(need(scheme.tables(n), scheme, NO_TABLE).items()))
    tables = first_ideas(n, width) | {f"{scheme.label}{where(side, 'side')}": table}
    title = f"First ideas for {n} positions, why they fail, and what works instead{scheme.about}"
    shape, size = (2, len(tables)), (1.9, 2.2)
    figure, axes = panel_figure(*shape, size=size, sharex="row", sharey=True, title=title)
    how: Any = {"aspect": "auto", "interpolation": "nearest"}
    dark = colormaps["viridis"].with_extremes(bad=colormaps["viridis"](0))  # a distance of 0
    for (above, below), (name, p) in zip(axes.T, tables.items()):
        apart = cdist(p, p)
        nearest = np.where(np.eye(n), np.inf, apart).min()
        values = above.imshow(p, cmap="RdBu_r", vmin=-1, vmax=1, **how)
        distances = below.imshow(apart, cmap=dark, norm=LogNorm(0.1, 20), **how)
        titles = "\n".join(wrap(name, 10, 1.8)), f"nearest two: {nearest:.3g}"
        for place, title, axis in zip((above, below), titles, ("dimension", "position")):
            place.set_title(title, fontsize=10)
            place.set_xlabel(axis)
    for line, image, label in zip(axes, (values, distances), ("value", "distance")):
        line[0].set_ylabel("position")
        figure.colorbar(image, ax=line, pad=0.01, aspect=15, label=label, extend="both")
    yield "", figure


@picture(
    "how alike positions are: dot product and cosine of the position vectors t and t+k by offset k "
    "(mean over t, and range), and the cosine of every pair; a learned table stands beside an "
    "untrained one and beside sinusoids",
    n_positions=64,
    together=True,
)
def similarity(schemes: Sequence[Scheme], n: int) -> Figures:
    """Where only the offset counts, as with sinusoids, the range over t is empty."""
    tables = {
        f"{scheme.label}{where(side, 'side')}": table
        for scheme in schemes
        for side, table in need(scheme.tables(n), scheme, NO_TABLE).items()
    }
    for scheme in schemes:
        for reference in scheme.references():
            side, table = next(iter(reference.tables(n).items()))
            tables.setdefault(f"{reference.label}{where(side, 'side')}", table)
    panels = {}
    for label, table in tables.items():
        for what, products in (("dot product", table @ table.T), ("cosine", cosines(table))):
            curve = Curve(np.arange(n), *by_offset(products))
            panels[f"{label}: {what}"] = {"mean, range": curve}
    about = schemes[0].about if len(schemes) == 1 else ""
    curves = curve_panels(
        panels,
        title=f"Similarity of positions t and t+k{about}",
        x_label="offset k",
        columns=2,
        size=(4.6, 2.2),
    )
    yield "by_offset", curves
    matrices = matrix_panels(
        np.array([[cosines(table) for table in tables.values()]]),
        title=f"Cosine of the vectors of every two positions{about}",
        columns=list(tables),
        x_label="position",
        y_label="position",
        bar_label="cosine",
    )
    yield "matrices", matrices


@picture(
    "how a product decays with distance: the mean of cos(k w) over the frequencies w of sinusoids "
    "and of RoPE (q.k of equal vectors), and RoFormer's upper bound",
    n_positions=256,
    schemes=("sinusoidal", "rope"),
    together=True,
)
def decay(schemes: Sequence[Scheme], n: int) -> Figures:
    """First panel: how a product falls with the distance k, though not monotonically.

    For sinusoids it is PE(t).PE(t+k) over d/2, the mean of cos(k w_i); for a learned table the mean
    cosine over t; for a rotation `Scheme.equal_vector_logits`. Second panel, for pure rotations:
    `decay_bound`.
    """
    products: dict[str, Curve] = {}
    bounds: dict[str, Curve] = {}
    k = np.arange(n)
    for scheme in schemes:
        tables, turns = scheme.tables(n), scheme.turns(n)
        need(tables or turns, scheme, f"{NO_PLACE}{scheme.elsewhere}")
        for side, table in tables.items():
            label = f"{scheme.label}{where(side)} ({scheme.model.d_model} dimensions)"
            products[label] = Curve(k, by_offset(cosines(table))[0])
        for stack, turned in list(turns.items())[-1:]:  # the decoder, where the stacks differ
            layer = scheme.turning(stack)
            of = where(stack) + one_of(turned, layer)
            label = f"{scheme.label} (heads of {scheme.model.head_dim}{of})"
            products[label] = Curve(k, scheme.equal_vector_logits(stack, n))
            more = any(layer in layers for layers in scheme.beyond(stack, n).values())
            if np.allclose(np.abs(turned[layer]), 1.0) and not more:
                at_rest = scheme.model.head_dim // 2 - turned.shape[-1]
                planes = np.pad(turned[layer, 0], ((0, 0), (0, at_rest)), constant_values=1)
                bounds[label] = Curve(k, decay_bound(planes))
    panels = {
        "mean cosine of position vectors; q.k of equal vectors, turned "
        "(sinusoids, RoPE: the mean of cos(k w))": products,
        "RoFormer's upper bound of |q.k|, relative: the mean of "
        "|exp(i k w_1) + ... + exp(i k w_j)| over j": bounds,
    }
    figure = curve_panels(
        {title: curves for title, curves in panels.items() if curves},
        title=f"Decay with the distance{schemes[0].about if len(schemes) == 1 else ''}",
        x_label="distance k",
        size=(7.6, 2.7),
    )
    for place in figure.axes:
        place.set_ylim(bottom=min(0.0, place.get_ylim()[0]))
    yield "", figure


@picture(
    "how projections blur the distance pattern of position vectors: (W_q p_t).(W_k p_s) without "
    "projections, with random ones, and with those of a trained run's first encoder layer",
    n_positions=64,
)
def projections(scheme: Scheme, n: int) -> Figures:
    """Curves: the sum over heads for three queries t; unprojected sinusoids give the same curve.

    Matrices: by head, each divided by its largest magnitude. Without projections each head takes
    its slice of the dimensions.
    """
    side, table = next(iter(need(scheme.tables(n), scheme, NO_TABLE).items()))
    n_heads = scheme.model.n_heads
    products = {
        name: projected_products(table, *pair, n_heads)
        for name, pair in scheme.projections().items()
    }
    of = f"for the positions t and s of {scheme.label}{where(side, 'side')}{scheme.about}"
    curves = curve_panels(
        {
            name: {
                f"t = {t}": Curve(np.arange(n) - t, by_head.sum(0)[t])
                for t in (n // 4, n // 2, 3 * n // 4)
            }
            for name, by_head in products.items()
        },
        title=f"(W_q p_t).(W_k p_s) summed over heads, {of}",
        x_label="offset s - t of the key from the query",
        y_label="contribution to the logits",
    )
    yield "curves", curves
    by_head = np.array(list(products.values()))
    largest = np.abs(by_head).max((2, 3), keepdims=True)
    matrices = matrix_panels(
        by_head / np.where(largest > 0, largest, 1.0),
        title=f"(W_q p_t).(W_k p_s) by head, {of}",
        rows=list(products),
        columns=[f"head {i + 1}" for i in range(n_heads)],
        x_label="key position s",
        y_label="query position t",
        bar_label="as a share of the largest in the panel",
    )
    yield "matrices", matrices


# -------------------------------------------------------------------------------------- the numbers


def first_ideas(n: int, width: int) -> dict[str, np.ndarray]:
    """Naive vectors of the positions 0 .. n-1, [n,width] each, by idea and its fault."""
    t = np.arange(float(n))[:, None]
    ideas = {
        "the number itself: drowns the words": t,
        "a fraction of the length: neighbours hardly differ": t / max(n - 1, 1),
        "binary digits: near is far and far is near": t // 2.0 ** np.arange(width) % 2,
        "one sine: the same values again": np.sin(t),
        "sine and cosine of one frequency: comes round": np.hstack((np.sin(t), np.cos(t))),
    }
    return {name: p[:, np.arange(width) % p.shape[1]] for name, p in ideas.items()}


def cosines(table: np.ndarray) -> np.ndarray:
    """[T,D] -> the cosines of the angles between all pairs of rows, [T,T]; 0 for a row of zeros."""
    norms = np.linalg.norm(table, axis=1, keepdims=True)
    unit = table / np.where(norms > 0, norms, 1.0)
    return unit @ unit.T


def by_offset(products: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, smallest and largest of products[t,t+k] over t, for k = 0 .. T-1: [T,T] -> 3 x [T]."""
    diagonals = [np.diagonal(products, k) for k in range(len(products))]
    mean, low, high = (
        np.array([reduce(diagonal) for diagonal in diagonals])
        for reduce in (np.mean, np.min, np.max)
    )
    return mean, low, high


def decay_bound(turned: np.ndarray) -> np.ndarray:
    """RoFormer's bound (Su et al. 2021, section 3.4.3) by distance k = 0 .. T-1: mean |S_j|, [T].

    turned [T,P] holds exp(i k w_0), exp(i k w_1), ...; S_j is the sum of the first j = 1 .. P of
    them. By Abel's summation the product of q and k at distance k is at most
    P max_i |h_(i+1) - h_i| times this, where h_i is the complex product of their planes i, and
    h_P = 0 follows the last.
    """
    return np.abs(np.cumsum(turned, axis=1)).mean(axis=1)


def projected_products(
    table: np.ndarray, w_q: np.ndarray, w_k: np.ndarray, n_heads: int
) -> np.ndarray:
    """(W_q p_t).(W_k p_s) / sqrt(Dh) within each head, of all rows of a table [T,D]: [H,T,T].

    The part of a logit from the positions of query and key alone. Biases, norms and embeddings are
    left out.
    """
    q, k = (np.stack(np.split(table @ w.T, n_heads, axis=1)) for w in (w_q, w_k))  # [H,T,Dh]
    return q @ k.transpose(0, 2, 1) / q.shape[-1] ** 0.5
