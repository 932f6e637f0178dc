"""Pictures of what distance does: how alike two positions are, how products decay, and what
projections leave of it.

Each function yields (file name without suffix, figure). What is drawn is computed in
`position_arrays.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from configs.positions import Sinusoidal
from configs.schema import ModelConfig
from models.positional_encodings.base import Kind
from pictures import arrays as arrays
from pictures.panels import Curve, curve_panels, matrix_panels
from pictures.schemes import Subject, file_name, fresh_subject, need_tables, place_of
from utils.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Figures = Iterator[tuple[str, "Figure"]]


def similarity_figures(subjects: Sequence[Subject], n_positions: int | None = None) -> Figures:
    """How alike the vectors of two positions are: dot product and cosine by offset, and the cosine
    of every pair.

    n_positions None: 64. A line is the mean over all pairs of positions t and t+k, the band reaches
    from the smallest to the largest of them; where only the offset counts, as with sinusoids, the
    band has no width. Beside a learned table stand the same table before any training and the
    sinusoids of as many dimensions. Raises UserError for a scheme that adds nothing to embeddings.
    """
    tables: dict[str, np.ndarray] = {}
    for subject in subjects:
        n = subject.n_positions(n_positions, 64)
        for side, table in need_tables(subject, n).items():
            tables[f"{subject.label}{place_of(side, ' side')}{_by_token(subject, n)}"] = table
    for subject in subjects:
        n = subject.n_positions(n_positions, 64)
        references = []
        if subject.state == "trained":
            references.append(fresh_subject(subject.name, subject.model))
        if subject.state != "fixed":
            references.append(fresh_subject("sinusoidal", _with_sinusoids(subject.model)))
        for reference in references:
            side, table = next(iter(reference.tables(n).items()))
            tables.setdefault(f"{reference.label}{place_of(side, ' side')}", table)
    about = subjects[0].about if len(subjects) == 1 else ""
    name = file_name(*(subject.name for subject in subjects))
    panels = {}
    for label, table in tables.items():
        for what, products in (
            ("dot product", arrays.dot_products(table)),
            ("cosine", arrays.cosines(table)),
        ):
            mean, low, high = arrays.by_offset(products)
            panels[f"{label}: {what}"] = {"mean": Curve(np.arange(len(mean)), mean, low, high)}
    yield (
        file_name(name, "by_offset"),
        curve_panels(
            panels,
            title=f"Similarity of positions t and t+k (line: mean over t, band: smallest to largest){about}",
            x_label="offset k",
            columns=2,
            size=(4.6, 2.4),
            legend=False,
        ),
    )
    yield (
        file_name(name, "matrices"),
        matrix_panels(
            np.array([[arrays.cosines(table) for table in tables.values()]]),
            title=f"Cosine of the vectors of every two positions{about}",
            columns=list(tables),
            x_label="position",
            y_label="position",
            bar_label="cosine",
        ),
    )


def _by_token(subject: Subject, n: int) -> str:
    """The end of a label where distances are numbers of tokens, since these stand at drawn
    positions.
    """
    return "" if arrays.token_axis(subject.scheme, n) == "position" else ", by token"


def _with_sinusoids(model: ModelConfig) -> ModelConfig:
    return ModelConfig(position=Sinusoidal(), d_model=model.d_model, n_heads=model.n_heads)


# -------------------------------------------------------------------------------------------- decay


def decay_figures(subjects: Sequence[Subject], n_positions: int | None = None) -> Figures:
    """How a product falls with the distance k, for what is added to embeddings and for what turns q
    and k.

    n_positions None: 256. First panel: for sinusoids PE(t).PE(t+k) over d/2, which is the mean of
    cos(k w_i), for a learned table the mean cosine over t; for a rotation, q.k of vectors of ones
    (of any q = k with equally strong pairs) over Dh, again the mean of cos(k w_i), with the
    magnitudes of YaRN and xPos and the decoder's query as the later one. It is no monotone decay.
    Second panel, for pure rotations: RoFormer's bound, the mean of
    |exp(i k w_1) + ... + exp(i k w_j)| over j, to be multiplied by Dh/2 times the largest step between the products of
    neighbouring pairs.
    Raises UserError for a scheme that does neither.
    """
    products: dict[str, Curve] = {}
    shown: dict[str, None] = {}  # what the products are, each once
    bounds: dict[str, Curve] = {}
    for subject in subjects:
        n = subject.n_positions(n_positions, 256)
        head_dim = subject.model.d_model // subject.model.n_heads
        for side in subject.tables(n):
            # By distance, wherever the scheme puts its tokens.
            table = arrays.input_table(
                subject.scheme,
                "target" if side == "target" else "source",
                subject.model.d_model,
                n,
                positions=torch.arange(n),
            )
            assert table is not None  # `tables` has it
            mean, _, _ = arrays.by_offset(arrays.cosines(table))
            products[
                f"{subject.label}{place_of(side, '')} ({subject.model.d_model} dimensions)"
            ] = Curve(np.arange(n), mean)
            shown["mean cosine of position vectors (of sinusoids: the mean of cos(k w))"] = None
        turns = subject.turns(n)
        if turns:
            stack = list(turns)[-1]  # the decoder, where the stacks differ and it turns at all
            kind: Kind = "encoder" if stack == "encoder" else "decoder"
            module = subject.scheme.attention(kind, 0)
            logits = arrays.equal_vector_logits(
                module, n, n_heads=subject.model.n_heads, head_dim=head_dim
            )
            label = f"{subject.label} (heads of {head_dim}{place_of(stack, '')})"
            products[label] = Curve(np.arange(n), logits)
            shown[
                "q.k of unit vectors of equal entries (without magnitudes: the mean of cos(k w))"
            ] = None
            turned = arrays.rotation(
                module, torch.arange(n), n_heads=subject.model.n_heads, head_dim=head_dim
            )
            if (
                turned is not None
                and np.allclose(np.abs(turned), 1.0)
                and not arrays.depends_on_content(module)
            ):
                bounds[label] = Curve(np.arange(n), arrays.decay_bound(turned[0]))
        if not subject.tables(n) and not turns:
            raise UserError(
                f"the position scheme {subject.name!r} adds nothing to embeddings and turns nothing, so nothing decays "
                "there; `bias` draws a bias by distance"
            )
    panels = {"; ".join(shown): products}
    if bounds:
        panels[
            "RoFormer's upper bound of |q.k|, relative: the mean of |exp(i k w_1) + ... + exp(i k w_j)| over j"
        ] = bounds
    about = subjects[0].about if len(subjects) == 1 else ""
    yield (
        file_name(*(subject.name for subject in subjects)),
        curve_panels(
            panels, title=f"Decay with the distance{about}", x_label="distance k", size=(7.6, 2.9)
        ),
    )


# -------------------------------------------------------------------------------------- projections


def projection_figures(
    subject: Subject, encoder: nn.Module | None, n_positions: int | None = None
) -> Figures:
    """What projections do to a distance pattern: (W_q p_t).(W_k p_s) over sqrt(Dh), for the
    position vectors p.

    n_positions None: 64. Three rows: no projection (each head takes its slice of the dimensions),
    random ones (Xavier-uniform, seed 0), and the trained ones of the first layer of `encoder`, if
    there is one. Curves: the sum over heads for three queries t, by offset s - t; without
    projections sinusoids give one and the same curve. Matrices: by head, each divided by its
    largest magnitude. Raises UserError for a scheme that adds nothing.
    """
    n = subject.n_positions(n_positions, 64)
    side, table = next(iter(need_tables(subject, n).items()))
    model = subject.model
    identity = np.eye(model.d_model)
    weights = {
        "no projection": (identity, identity),
        "random": arrays.random_projections(model.d_model),
    }
    if encoder is not None:
        weights["trained"] = arrays.encoder_projections(encoder)
    products = {
        name: arrays.projected_products(table, *pair, model.n_heads)
        for name, pair in weights.items()
    }
    of = f"{subject.label}{place_of(side, ' side')}{_by_token(subject, n)}{subject.about}"
    titles = {
        "no projection": "no projection",
        "random": "random W_q, W_k (Xavier-uniform)",
        "trained": "trained W_q, W_k of the first encoder layer",
    }
    queries = [n // 4, n // 2, 3 * n // 4]
    panels = {
        titles[name]: {f"t = {t}": Curve(np.arange(n) - t, by_head.sum(0)[t]) for t in queries}
        for name, by_head in products.items()
    }
    yield (
        file_name(subject.name, "curves"),
        curve_panels(
            panels,
            title=f"(W_q p_t).(W_k p_s) summed over heads, for the positions t and s of {of}",
            x_label="offset s - t of the key from the query",
            y_label="share in the logits",
        ),
    )
    scaled = [
        [matrix / (np.abs(matrix).max() or 1.0) for matrix in by_head]
        for by_head in products.values()
    ]
    yield (
        file_name(subject.name, "matrices"),
        matrix_panels(
            np.array(scaled),
            title=f"(W_q p_t).(W_k p_s) by head, for the positions t and s of {of}",
            rows=list(products),
            columns=[f"head {number}" for number in range(1, model.n_heads + 1)],
            x_label="key position s",
            y_label="query position t",
            bar_label="as a share of the largest in the panel",
        ),
    )
