"""Pictures of a model: what its attention looks at, and what its positional encoding is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, get_args

import torch

from configs.errors import UserError
from configs.schema import Config
from data.corpora.text import normalize_whitespace
from models.positional_encodings.base import AttentionPosition, InputPosition, Kind, PositionScheme, Side
from utils.plots import attention_grid, encoding_heatmap
from utils.translation import Translator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS: tuple[Kind, ...] = get_args(Kind)
_TITLES: Mapping[Kind, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}


def choose(wanted: Sequence[int] | None, there_are: int, what: str) -> list[int]:
    """Numbers from 1 as they were asked for, or all of them. Raises UserError for one that is not there."""
    missing = [number for number in wanted or () if not 1 <= number <= there_are]
    if missing:
        raise UserError(f"there is no {what} {missing[0]}: it has {what}s 1 to {there_are}")
    return list(wanted or range(1, there_are + 1))


def target_tokens(translator: Translator, source: Sequence[int], tgt_text: str | None) -> list[int]:
    """The target whose attention is shown: a given text, or the greedy translation; with EOS if it was reached."""
    if tgt_text is not None:
        return translator.tokenizer.encode_tgt(normalize_whitespace(tgt_text))
    [[best]] = translator.search_ids([source], greedy=True)
    return [*best.ids, translator.tokenizer.eos_id] if best.finished else list(best.ids)


def attention_figures(
    translator: Translator,
    source: Sequence[int],
    target: Sequence[int],
    *,
    kinds: Sequence[Kind] = KINDS,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    about: str = "",
) -> dict[Kind, Figure]:
    """A grid of layers and heads (numbered from 1; None: all) for each kind of attention of one sentence pair.

    source ends in EOS, target has no start token. The rows of a self-attention are the tokens that it updates. The
    rows of the cross-attention are the tokens that come out: row t shows where the model looked when it predicted
    token t. Raises UserError for layers and heads that are not there.
    """
    tokenizer = translator.tokenizer
    read = [tokenizer.bos_id, *target[:-1]]
    src, tgt = tokenizer.src_pieces(source), tokenizer.tgt_pieces(target)
    # Marian starts from its padding token, and a label "<pad>" would look like an error.
    start = "<start>" if tokenizer.bos_id == tokenizer.pad_id else tokenizer.tgt_pieces([tokenizer.bos_id])[0]
    shifted = [start, *tgt[:-1]]
    axes: dict[Kind, tuple[list[str], list[str], str, str]] = {
        "encoder": (src, src, "source token (query)", "source token (key)"),
        "decoder": (shifted, shifted, "target token read (query)", "target token read (key)"),
        "cross": (tgt, src, "target token predicted (query)", "source token (key)"),
    }
    maps = translator.attention_maps(source, read)
    figures = {}
    for kind in kinds:
        queries, keys, query_name, key_name = axes[kind]
        n_layers, n_heads = maps[kind].shape[:2]
        stack = "encoder" if kind == "encoder" else "decoder"
        layer_numbers = choose(layers, n_layers, f"{stack} layer")
        head_numbers = choose(heads, n_heads, "head")
        chosen = maps[kind][[n - 1 for n in layer_numbers]][:, [n - 1 for n in head_numbers]]
        figures[kind] = attention_grid(
            chosen,
            queries,
            keys,
            title=_TITLES[kind] + about,
            layers=layer_numbers,
            heads=head_numbers,
            query_name=query_name,
            key_name=key_name,
        )
    return figures


def encoding_figures(
    scheme: PositionScheme, config: Config, *, n_positions: int | None = None, about: str = ""
) -> Iterator[tuple[str, Figure]]:
    """(name, picture) of what a scheme adds to embeddings, and of the angles by which it turns queries and keys.

    n_positions None: 128, or as many as the scheme knows. Raises UserError for more than it knows, and for a scheme
    that does neither.
    """
    kind, model = config.model.position.kind, config.model
    known = scheme.input("source").max_positions
    if n_positions is not None and known is not None and n_positions > known:
        raise UserError(f"--positions {n_positions}: the {kind} encoding has {known}")
    positions = torch.arange(n_positions or min(128, known or 128))
    sides: tuple[Side, ...] = ("source", "target")
    one_for_both = scheme.input("source") is scheme.input("target")
    pictures = 0
    for side in sides[: 1 if one_for_both else 2]:
        module = scheme.input(side)
        if type(module).forward is not InputPosition.forward:
            with torch.inference_mode():
                table = module(torch.zeros(1, len(positions), model.d_model), positions)[0].numpy()
            title = f"{kind} encoding, d_model {model.d_model}" + ("" if one_for_both else f", {side} side") + about
            pictures += 1
            yield f"{kind}" if one_for_both else f"{kind}_{side}", encoding_heatmap(table, title=title)

    attention = scheme.attention("encoder", 0)
    if type(attention).rotate is not AttentionPosition.rotate:
        # The vector (1, 0) in every pair of dimensions, turned: (cos, sin) of each angle, whatever the scheme's form.
        head_dim = model.d_model // model.n_heads
        x = torch.zeros(1, model.n_heads, len(positions), head_dim)
        x[..., ::2] = 1.0
        with torch.inference_mode():
            turned = attention.rotate(x, positions)[0]
        alike = bool((turned == turned[:1]).all())
        turned = turned[0] if alike else turned.transpose(0, 1).flatten(1)  # [T,Dh], or [T,H*Dh] head by head
        where = f"each head of {head_dim} dimensions" if alike else f"{model.n_heads} heads of {head_dim} dimensions"
        x_label = "rotated pair of dimensions (fast to slow)" if alike else "rotated pair of dimensions, head by head"
        for name, table in (("cos", turned[:, ::2]), ("sin", turned[:, 1::2])):
            title = f"{kind} encoding: {name} of the rotation angles, {where}" + about
            pictures += 1
            yield f"{kind}_{name}", encoding_heatmap(table.numpy(), title=title, x_label=x_label)
    if not pictures:
        raise UserError(f"the position scheme {kind!r} adds nothing to embeddings and turns nothing: nothing to draw")
