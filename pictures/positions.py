"""Pictures of what a position scheme does: what it adds, how it turns, which bias it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pictures.panels import Curve, curve_panels, encoding_heatmap, matrix_panels, point_panels
from pictures.registry import Figures, file_name, picture, where
from utils.errors import UserError

if TYPE_CHECKING:
    from models.positional_encodings.base import Role
    from pictures.schemes import Scheme


@picture(
    "heat-maps by position of what a scheme adds to embeddings, of the cos and sin of the angles "
    "by which it turns queries and keys (and of their magnitudes, where they vary), and of Shaw's "
    "tables of distances",
    n_positions=128,
)
def encoding(scheme: Scheme, n: int) -> Figures:
    """Raises UserError for a scheme that has none of them."""
    figures = [*_added(scheme, n), *_rotation_angles(scheme, n), *_shaw_tables(scheme)]
    if not figures:
        raise UserError(
            f"the position scheme {scheme.name!r} adds nothing to embeddings and turns nothing: "
            "nothing to draw; `bias` draws what it adds to the logits, if that depends on "
            "positions alone"
        )
    return figures


def _added(scheme: Scheme, n: int) -> Figures:
    for side, table in scheme.tables(n).items():
        figure = encoding_heatmap(
            table,
            title=f"{scheme.label}: added to embeddings of {scheme.model.d_model} dimensions"
            f"{where(side, 'side')}{scheme.about}",
            x_label="embedding dimension",
            y_label=scheme.token_axis(n),
        )
        yield side, figure


def _rotation_angles(scheme: Scheme, n: int) -> Figures:
    """cos and sin of the angles, and the magnitudes where they vary."""
    for stack, turned in scheme.turns(n).items():
        alike = bool((turned == turned[:1]).all())
        heads = "each head" if alike else f"{len(turned)} heads"
        of = f"{heads} of {scheme.head_dim} dimensions{where(stack)}{scheme.correction(stack)}"
        unit = turned / np.abs(turned)
        tables = {
            "cos": ("cos of the rotation angles", unit.real, 0.0),
            "sin": ("sin of the rotation angles", unit.imag, 0.0),
        }
        roles: dict[str, Role] = {"queries": "query", "keys": "key"}
        for what, role in roles.items():
            magnitude = np.abs(scheme.rotation(stack, n, role))
            if np.ptp(magnitude) > 1e-9:
                shown = f"by what the {what} are multiplied beside the rotation"
                tables[f"magnitude_{what}"] = (shown, magnitude, 1.0)
            elif abs(magnitude.flat[0] - 1) > 1e-9:
                of += f"; {what} x {magnitude.flat[0]:.3f}"
        for name, (shown, table, centre) in tables.items():
            figure = encoding_heatmap(
                table[0] if alike else np.concatenate(list(table), axis=1),
                centre=centre,
                title=f"{scheme.label}: {shown}, {of}{scheme.about}",
                x_label="rotated pair of dimensions"
                f"{' (fast to slow)' if alike else ', head by head'}",
                y_label=scheme.token_axis(n),
            )
            yield file_name(stack, name), figure


def _shaw_tables(scheme: Scheme) -> Figures:
    for stack in ("encoder", "decoder"):
        tables = scheme.shaw_tables(stack)
        if not tables:
            continue
        matrices = np.array(list(tables.values()))  # [keys and values,L,2*clip+1,Dh]
        figure = matrix_panels(
            matrices,
            title=f"{scheme.label}: the vectors of each clipped distance, {stack}{scheme.about}",
            rows=[f"added to {what}" for what in tables],
            columns=_numbered("layer", matrices.shape[1]),
            x_label="dimension of a head",
            y_label="key position - query position",
            bar_label="value",
            first_row=-(matrices.shape[2] // 2),
        )
        yield f"{stack}_tables", figure


@picture(
    "the bias that positions alone add to the logits of encoder and decoder self-attention: a "
    "matrix for each head (and layer, where layers differ), and curves by distance from one query",
    n_positions=64,
)
def bias(scheme: Scheme, n: int) -> Figures:
    """Matrices: red raises a logit and blue lowers it; all share a scale, to compare heads.

    Curves: the bias that one query gives to the keys around it, the middle query of the encoder and
    the last of the decoder. Raises UserError where no bias depends on positions alone.
    """
    tokens = scheme.token_axis(n)
    drawn = False
    for stack in ("encoder", "decoder"):
        matrices = scheme.bias(stack, n)
        if matrices is None:
            continue
        drawn = True
        causal = stack == "decoder"
        n_layers, n_heads = matrices.shape[:2]
        layers = _numbered("layer", n_layers) if n_layers > 1 else []
        heads = _numbered("head", n_heads)
        of = f"of {scheme.label}, {stack} self-attention{scheme.about}"
        matrix_figure = matrix_panels(
            matrices,
            title=f"Bias {of}",
            rows=layers,
            columns=heads,
            x_label=f"key {tokens}",
            y_label=f"query {tokens}",
            bar_label="added to the logit" + (" (grey: the future)" if causal else ""),
        )
        yield f"{stack}_matrices", matrix_figure
        query = n - 1 if causal else n // 2
        positions = scheme.positions(stack, n).numpy()
        offsets = positions - positions[query]
        panels = {
            layer: {head: Curve(offsets, row) for head, row in zip(heads, by_head[:, query])}
            for layer, by_head in zip(layers or [""], matrices)
        }
        curves = curve_panels(
            panels,
            title=f"Bias by distance {of}",
            x_label="key position - query position "
            f"(the query stands at {positions[query]} of {positions[0]} .. {positions[-1]})",
            y_label="added to the logit",
            columns=min(3, len(panels)),
            size=(6.5, 4.2) if len(panels) == 1 else (3.2, 2.6),
        )
        yield f"{stack}_curves", curves
    if not drawn and (scheme.depends_on_content("encoder") or scheme.depends_on_content("decoder")):
        raise UserError(
            f"the position scheme {scheme.name!r} has no bias to draw: what it adds to the logits "
            "depends on content; look at a trained run with "
            '`visualize.py attention --src_text "..." --model_path RUN`'
        )
    if not drawn:
        raise UserError(
            f"the position scheme {scheme.name!r} adds no bias to the logits; choose one that "
            "does, as in --position alibi"
        )


@picture(
    "the rotation in the plane: the vector (1, 0) of eight pairs of dimensions, fast to slow, at "
    "each position",
    n_positions=32,
    schemes=("rope",),
)
def rotation(scheme: Scheme, n: int) -> Figures:
    """The pairs are those of the first head; of queries, where queries and keys differ.

    Raises UserError for a scheme that turns nothing.
    """
    for stack, turned in scheme.need_turns(n).items():
        planes = turned[0]
        remark = scheme.correction(stack)
        magnitude, of_keys = np.abs(turned), np.abs(scheme.rotation(stack, n, "key"))
        if not np.allclose(magnitude, 1) and np.allclose(magnitude * of_keys, 1):
            remark += "; shown for queries, keys have the inverse magnitudes"
        # From 0 to 1: tokens at drawn positions can be more than a turn apart.
        first, second = scheme.rotation(stack, 2, by_position=True)[0]
        periods = 2 * np.pi / np.abs(np.angle(second / first))
        lengths = [f"{period:.1f}" if period < 100 else f"{period:,.0f}" for period in periods]
        pairs = np.unique(np.linspace(0, planes.shape[1] - 1, 8).round().astype(int))
        figure = point_panels(
            {
                f"pair {pair}: period {lengths[pair]}": np.stack(
                    (planes[:, pair].real, planes[:, pair].imag), axis=1
                )
                for pair in pairs
            },
            title=f"{scheme.label}: the vector (1, 0) of a pair of dimensions, turned by position "
            f"(period: of a whole turn){where(stack)}{remark}{scheme.about}",
            x_label="first dimension of the pair",
            y_label="second dimension of the pair",
            columns=4,
            side=2.5,
            limit=1.15 * max(1.0, float(np.abs(planes[:, pairs]).max())),
            circle=True,
            bar_label=scheme.token_axis(n),
        )
        yield stack, figure


def _numbered(noun: str, n: int) -> list[str]:
    """ "head 1", "head 2", ..."""
    return [f"{noun} {number}" for number in range(1, n + 1)]
