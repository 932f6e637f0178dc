"""Pictures of a position scheme: what it adds, how it turns and biases, how it shows order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pictures.panels import Curve, curve_panels, matrix_panels, point_panels
from pictures.registry import NO_PLACE, Figures, heads_of, layers_of, need, one_of, picture, where

if TYPE_CHECKING:
    from pictures.schemes import Scheme

WORDS = np.array(["le", "chien", "mord", "l'", "homme"])


@picture(
    "heat-maps by position of what a scheme adds to embeddings, of the cos and sin of the angles "
    "by which it turns queries and keys (and of the magnitudes, where they are not 1), and of "
    "Shaw's tables of distances",
    n_positions=128,
)
def encoding(scheme: Scheme, n: int) -> Figures:
    wide = (8.0, 4.3)
    tables, turns, shaw = scheme.tables(n), scheme.turns(n), scheme.shaw_tables()
    need(tables or turns or shaw, scheme, f"{NO_PLACE}{scheme.elsewhere}")
    for side, table in tables.items():
        figure = matrix_panels(
            table[None, None],
            size=wide,
            title=f"{scheme.label}: added to embeddings of {scheme.model.d_model} dimensions"
            f"{where(side, 'side')}{scheme.about}",
            x_label="embedding dimension",
            y_label="position",
        )
        yield side, figure
    but = scheme.reservations(n) if turns else ""
    for stack, turned in turns.items():
        keys = scheme.rotation(stack, n, "key")
        alike = bool((turned == turned[:, :1]).all())
        if alike:
            turned, keys = turned[:, :1], keys[:, :1]
        angles = turned / np.abs(turned)
        shown = {
            "cos": ("cos of the rotation angles", angles.real, 0.0),
            "sin": ("sin of the rotation angles", angles.imag, 0.0),
            "magnitude_queries": ("magnitudes of turned queries", np.abs(turned), 1.0),
            "magnitude_keys": ("magnitudes of turned keys", np.abs(keys), 1.0),
        }
        for name, (what, values, centre) in shown.items():
            if name in ("cos", "sin") or not np.allclose(values, 1.0):
                layers = layers_of(values)
                figure = matrix_panels(
                    values.swapaxes(0, 1) if alike else values,
                    rows=[] if alike else layers,
                    columns=layers or [""] if alike else heads_of(values),
                    size=wide if values.shape[:2] == (1, 1) else None,
                    centre=centre,
                    title=f"{scheme.label}: {what}, heads of {scheme.model.head_dim} dimensions"
                    f"{where(stack)}{but}{scheme.about}",
                    x_label="rotated pair of dimensions (fast to slow)",
                    y_label="position",
                )
                yield f"{stack}_{name}".lstrip("_"), figure
    for (stack, _), by_layer in shaw.items():
        matrices = np.stack([*by_layer.values()], axis=1)
        figure = matrix_panels(
            matrices,
            title=f"{scheme.label}: the vectors of each clipped distance, {stack}{scheme.about}",
            rows=["added to keys", "added to values"][: len(matrices)],
            columns=[f"layer {layer + 1}" for layer in by_layer],
            x_label="dimension of a head",
            y_label="key position - query position",
            first_row=-(matrices.shape[2] // 2),
        )
        alone = [name for name, _ in shaw].count(stack) == 1
        yield f"{stack}_tables{'' if alone else f'_layer_{min(by_layer) + 1}'}", figure


@picture(
    "the bias that positions alone add to the logits of encoder and decoder self-attention: a "
    "matrix for each head (and layer, where layers differ), and curves by distance from one query",
    n_positions=64,
)
def bias(scheme: Scheme, n: int) -> Figures:
    """Matrices: red raises a logit and blue lowers it; all share a scale, to compare heads.

    Curves: the bias of one query for the keys around it, the middle query of the encoder and the
    last of the decoder.
    """
    biases = need(
        scheme.biases(n),
        scheme,
        "adds no bias to the logits that is independent of queries and keys; choose one that does, "
        "as in --position alibi",
    )
    for stack, matrices in biases.items():
        layers, heads = layers_of(matrices), heads_of(matrices)
        of = f"of {scheme.label}, {stack} self-attention{scheme.about}"
        matrix_figure = matrix_panels(
            matrices,
            title=f"Bias {of}",
            rows=layers,
            columns=heads,
            x_label="key position",
            y_label="query position",
            bar_label="added to the logit" + (" (grey: the future)" if stack == "decoder" else ""),
        )
        yield f"{stack}_matrices", matrix_figure
        query = n - 1 if stack == "decoder" else n // 2
        panels = {
            layer: {head: Curve(np.arange(n) - query, row) for head, row in zip(heads, rows)}
            for layer, rows in zip(layers or [""], matrices[:, :, query])
        }
        curves = curve_panels(
            panels,
            title=f"Bias by distance {of}",
            x_label=f"key position - query position (the query stands at {query} of 0 .. {n - 1})",
            y_label="added to the logit",
            columns=min(3, len(panels)),
            size=(3.2, 2.4) if layers else (6.5, 4.0),
        )
        yield f"{stack}_curves", curves


@picture(
    "the rotation in the plane: the vector (1, 0) of eight pairs of dimensions, fast to slow, at "
    "each position",
    n_positions=32,
    schemes=("rope",),
)
def rotation(scheme: Scheme, n: int) -> Figures:
    """The pairs are those of queries, in the first head of the first layer that turns them."""
    lacks = "turns no queries and keys by position alone; choose one that does, as in "
    lacks += "--position rope"
    for stack, turned in need(scheme.turns(n), scheme, lacks).items():
        layer = scheme.turning(stack)
        head, of = turned[layer, 0], where(stack) + one_of(turned, layer)
        planes = np.stack((head.real, head.imag), axis=2)  # [n,P,2]
        first, second = scheme.rotation(stack, 2)[layer, 0]
        with np.errstate(divide="ignore"):  # a pair may rest
            periods = 2 * np.pi / np.abs(np.angle(second / first))
        lengths = [f"{period:.1f}" if period < 100 else f"{period:,.0f}" for period in periods]
        pairs = np.unique(np.linspace(0, len(periods) - 1, 8).round().astype(int))
        figure = point_panels(
            {f"pair {pair}: period {lengths[pair]}": planes[:, pair] for pair in pairs},
            title=f"{scheme.label}: the vector (1, 0) of a pair of dimensions of a query, turned "
            f"by position (period: positions a turn){of}{scheme.reservations(n)}{scheme.about}",
            x_label="first dimension of the pair",
            y_label="second dimension of the pair",
            columns=4,
            side=2.5,
            limit=1.15 * max(1.0, float(np.abs(head[:, pairs]).max())),
            circle=True,
        )
        yield stack, figure


@picture(
    "the same words in two orders through an encoder with random weights: its output for each "
    "word, which without positions is the same in both",
    n_positions=len(WORDS),
    schemes=("none", "sinusoidal", "rope"),
    together=True,
)
def permutation(schemes: Sequence[Scheme], n: int) -> Figures:
    """The two ends of the sentence are swapped; the rows of both outputs are sorted alike."""
    ids = np.arange(n) % len(WORDS)
    half = n // 2
    half -= (n - half) % len(WORDS) == 0  # else both ends were the same words
    order = np.r_[n - half : n, half : n - half, :half]  # its own inverse
    rows, outputs = [], []
    for scheme in schemes:
        first, second = scheme.encoded(ids), scheme.encoded(ids[order])[order]
        rows.append(f"{scheme.label}\ndiffers by {np.abs(second - first).max():.2g}")
        outputs.append((first, second, second - first))
    figure = matrix_panels(
        np.array(outputs)[..., :32],
        rows=rows,
        columns=[" ".join(WORDS[ids]), " ".join(WORDS[ids[order]]), "difference"],
        size=(3.6, max(1.7, 0.2 * n)),
        title="The same words in two orders through a random encoder: its output, sorted by word",
        x_label=f"output dimension (row labels: largest difference in all {first.shape[-1]})",
    )
    figure.axes[0].set_yticks(range(n), WORDS[ids])
    yield "", figure
