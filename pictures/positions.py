"""Pictures of what a position scheme does: what it adds, how it turns, which bias it gives; and all
pictures by name.

Each function yields (file name without suffix, figure). What is drawn is computed in
`position_arrays.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from models.positional_encodings.base import AttentionPosition, Kind, Role
from models.positional_encodings.rope_scaling import DynamicNtkRotary
from models.positional_encodings.shaw import Shaw
from pictures import arrays as arrays
from pictures.distance import decay_figures, projection_figures, similarity_figures
from pictures.maps import map_figures
from pictures.panels import Curve, curve_panels, encoding_heatmap, matrix_panels, point_panels
from pictures.schemes import SIDES, STACKS, Subject, file_name, need_turns, place_of
from utils.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Figures = Iterator[tuple[str, "Figure"]]


# ---------------------------------------------------------------------------------------- heat-maps


def encoding_figures(subject: Subject, n_positions: int | None = None) -> Figures:
    """Heat-maps by position of what is added to embeddings, of the angles by which q and k turn,
    and of Shaw's tables.

    n_positions None: 128, or as many as the scheme knows. A table that differs by side, and a
    rotation that differs by stack, is drawn once for each. Raises UserError for a scheme that has
    none of them.
    """
    n = subject.n_positions(n_positions, 128)
    y_label = arrays.token_axis(subject.scheme, n)
    pictures = 0
    for side, table in subject.tables(n).items():
        pictures += 1
        title = f"{subject.label}: added to embeddings of {subject.model.d_model} dimensions{place_of(side, ' side')}"
        yield (
            file_name(subject.name, side),
            encoding_heatmap(table, title=title + subject.about, y_label=y_label),
        )
    for stack, turned in subject.turns(n).items():
        for name, table, title in _rotation_tables(subject, stack, turned):
            pictures += 1
            alike = table.shape[1] == turned.shape[2]
            x_label = (
                f"rotated pair of dimensions{' (fast to slow)' if alike else ', head by head'}"
            )
            centre = float("magnitude" in name)
            yield (
                name,
                encoding_heatmap(
                    table, title=title, x_label=x_label, y_label=y_label, centre=centre
                ),
            )
    for name, figure in _shaw_figures(subject):
        pictures += 1
        yield name, figure
    if not pictures:
        raise UserError(
            f"the position scheme {subject.name!r} adds nothing to embeddings and turns nothing: nothing to draw; "
            "`bias` draws what it adds to the logits, if that depends on positions alone"
        )


def _rotation_tables(
    subject: Subject, stack: str, turned: np.ndarray
) -> Iterator[tuple[str, np.ndarray, str]]:
    """cos and sin of the angles, and the magnitudes where they vary: (file name, [T,P] or [T,H*P],
    title).
    """
    alike = bool((turned == turned[:1]).all())
    head_dim = subject.model.d_model // subject.model.n_heads
    heads = "each head" if alike else f"{len(turned)} heads"
    where = f"{heads} of {head_dim} dimensions{place_of(stack, '')}{_correction(_module_of(subject, stack))}"

    def flat(table: np.ndarray) -> np.ndarray:
        return table[0] if alike else np.concatenate(list(table), axis=1)

    magnitudes: dict[str, np.ndarray] = {}
    roles: Mapping[str, Role] = {"queries": "query", "keys": "key"}
    for what, role in roles.items():
        magnitude = np.abs(subject.turns(turned.shape[1], role)[stack])
        if np.ptp(magnitude) > 1e-9:
            magnitudes[what] = magnitude
        elif abs(magnitude.flat[0] - 1) > 1e-9:
            where += f"; {what} x {magnitude.flat[0]:.3f}"
    unit = turned / np.abs(turned)
    for part, table in (("cos", unit.real), ("sin", unit.imag)):
        title = f"{subject.label}: {part} of the rotation angles, {where}{subject.about}"
        yield file_name(subject.name, stack, part), flat(table), title
    for what, magnitude in magnitudes.items():
        title = f"{subject.label}: by what the {what} are multiplied beside the rotation, {where}{subject.about}"
        yield file_name(subject.name, stack, "magnitude", what), flat(magnitude), title


def _module_of(subject: Subject, stack: str) -> AttentionPosition:
    """The module of the first layer of a key of `Subject.turns`."""
    kind: Kind = "decoder" if stack == "decoder" else "encoder"
    return subject.scheme.attention(kind, 0)


def _correction(module: AttentionPosition) -> str:
    """The end of a title of rotations that a longer sequence leaves as they are, while its logits
    change.
    """
    if not isinstance(module, DynamicNtkRotary):
        return ""
    return f"; frequencies up to L={module.trained_length}; beyond, the logits are corrected"


def _shaw_figures(subject: Subject) -> Figures:
    layers = {"encoder": subject.model.n_encoder_layers, "decoder": subject.model.n_decoder_layers}
    for stack in STACKS:
        modules = [subject.scheme.attention(stack, layer) for layer in range(layers[stack])]
        shaw = [module for module in modules if isinstance(module, Shaw)]
        if not shaw:
            continue
        tables = {"keys": [module.key_table for module in shaw]}
        if shaw[0].needs_weights:
            tables["values"] = [module.value_table for module in shaw]
        matrices = [[table.detach().double().numpy() for table in row] for row in tables.values()]
        yield (
            file_name(subject.name, stack, "tables"),
            matrix_panels(
                np.array(matrices),
                title=f"{subject.label}: the vectors of each clipped distance, {stack}{subject.about}",
                rows=[f"added to {what}" for what in tables],
                columns=[f"layer {number}" for number in range(1, len(shaw) + 1)],
                x_label="dimension of a head",
                y_label="key position - query position",
                bar_label="value",
                first_row=-shaw[0].clip,
            ),
        )


# ------------------------------------------------------------------------------------------- biases


def bias_figures(subject: Subject, n_positions: int | None = None) -> Figures:
    """The bias of encoder and decoder self-attention, by head: as matrices, and as curves by
    distance.

    n_positions None: 64. Matrices: rows are queries, columns keys, red raises a logit and blue
    lowers it; all share a scale, so that heads can be compared. Layers with a bias of their own
    take a row each. Curves: the bias that one query gives to the keys around it, the middle query
    of the encoder and the last of the decoder. Raises UserError for a scheme whose logits have no
    term that depends on positions alone.
    """
    n = subject.n_positions(n_positions, 64)
    tokens = arrays.token_axis(subject.scheme, n)
    drawn = 0
    for stack, side in zip(STACKS, SIDES):
        matrices = arrays.bias_matrices(subject.scheme, stack, subject.model, n)
        if matrices is None:
            continue
        drawn += 1
        causal = stack == "decoder"
        heads = [f"head {number}" for number in range(1, matrices.shape[1] + 1)]
        layers = (
            [f"layer {number}" for number in range(1, len(matrices) + 1)]
            if len(matrices) > 1
            else []
        )
        of = f"of {subject.label}, {stack} self-attention{subject.about}"
        yield (
            file_name(subject.name, stack, "matrices"),
            matrix_panels(
                matrices,
                title=f"Bias {of}",
                rows=layers,
                columns=heads,
                x_label=f"key {tokens}",
                y_label=f"query {tokens}",
                bar_label="added to the logit" + (" (grey: the future)" if causal else ""),
            ),
        )
        query = n - 1 if causal else n // 2
        positions = arrays.positions_of(subject.scheme, side, n).numpy()
        offsets = positions[: query + 1 if causal else n] - positions[query]
        panels = {
            layer: {
                head: Curve(offsets, matrix[query, : len(offsets)])
                for head, matrix in zip(heads, by_head)
            }
            for layer, by_head in zip(layers or [""], matrices)
        }
        yield (
            file_name(subject.name, stack, "curves"),
            curve_panels(
                panels,
                title=f"Bias by distance {of}",
                x_label="key position - query position "
                f"(the query stands at {positions[query]} of {positions[0]} .. {positions[-1]})",
                y_label="added to the logit",
                columns=min(3, len(panels)),
                size=(6.5, 4.2) if len(panels) == 1 else (3.2, 2.6),
            ),
        )
    if not drawn:
        modules = [subject.scheme.attention(stack, 0) for stack in STACKS]
        if any(map(arrays.depends_on_content, modules)):
            raise UserError(
                f"the position scheme {subject.name!r} has no bias to draw: what it adds to the logits depends on "
                'content; look at a trained run with `visualize.py attention --src_text "..." --model_path RUN`'
            )
        raise UserError(
            f"the position scheme {subject.name!r} adds no bias to the logits; choose one that does, as in "
            "--position alibi"
        )


# ----------------------------------------------------------------------------------------- rotation


def rotation_figures(subject: Subject, n_positions: int | None = None) -> Figures:
    """The rotation in the plane: where the vector (1, 0) of a pair of dimensions lies at the
    positions 0, 1, 2, ...

    n_positions None: 32. Eight pairs of the first head, from the fastest to the slowest; queries,
    where queries and keys differ. Raises UserError for a scheme that turns nothing.
    """
    n = subject.n_positions(n_positions, 32)
    for stack, turned in need_turns(subject, n).items():
        planes = turned[0]
        step = _steps(subject, stack)
        remark = _correction(_module_of(subject, stack))
        magnitude = np.abs(turned)
        if not np.allclose(magnitude, 1) and np.allclose(
            magnitude * np.abs(subject.turns(n, "key")[stack]), 1
        ):
            remark += "; shown for queries, keys have the inverse magnitudes"
        chosen = np.unique(np.linspace(0, planes.shape[1] - 1, 8).round().astype(int))
        panels = {
            f"pair {pair}: period {_digits(2 * np.pi / abs(step[pair]))}": np.stack(
                (planes[:, pair].real, planes[:, pair].imag), axis=1
            )
            for pair in chosen
        }
        yield (
            file_name(subject.name, stack),
            point_panels(
                panels,
                title=f"{subject.label}: the vector (1, 0) of a pair of dimensions, turned by position "
                f"(period: of a whole turn){place_of(stack, '')}{remark}{subject.about}",
                x_label="first dimension of the pair",
                y_label="second dimension of the pair",
                columns=4,
                side=2.5,
                limit=1.15 * max(1.0, float(np.abs(planes[:, chosen]).max())),
                circle=True,
                bar_label=arrays.token_axis(subject.scheme, n),
            ),
        )


def _steps(subject: Subject, stack: str) -> np.ndarray:
    """The angles [P] by which the pairs of the first head turn from one position to the next.

    Measured from 0 to 1: tokens at drawn positions can be more than a turn apart.
    """
    heads = subject.model.n_heads
    turned = arrays.rotation(
        _module_of(subject, stack),
        torch.arange(2),
        n_heads=heads,
        head_dim=subject.model.d_model // heads,
    )
    assert turned is not None  # `stack` turns
    return np.angle(turned[0, 1] / turned[0, 0])


def _digits(number: float) -> str:
    return f"{number:.1f}" if number < 100 else f"{number:,.0f}"


# ------------------------------------------------------------------------------------------ by name


def draw(
    picture: str, subjects: Sequence[Subject], n_positions: int | None, encoder: nn.Module | None
) -> Figures:
    """The pictures of a command of visualize.py; schemes are drawn together where the command
    compares them.
    """
    together = {"similarity": similarity_figures, "decay": decay_figures}
    if picture in together:
        yield from together[picture](subjects, n_positions)
        return
    alone = {
        "encoding": encoding_figures,
        "bias": bias_figures,
        "rotation": rotation_figures,
        "embedding_map": map_figures,
    }
    for subject in subjects:
        if picture == "projections":
            yield from projection_figures(subject, encoder, n_positions)
        else:
            yield from alone[picture](subject, n_positions)
