"""Pictures of what the attention of a model looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from data.corpora.text import normalize_whitespace
from models.positional_encodings.base import Kind
from pictures.attention import AttentionMaps, attention_grid
from translation.translator import Translator
from utils.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS: tuple[Kind, ...] = get_args(Kind)
_TITLES: Mapping[Kind, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}


def choose(wanted: Sequence[int] | None, there_are: int, what: str) -> list[int]:
    """Numbers from 1 as they were asked for, or all of them. Raises UserError for one that is not
    there.
    """
    missing = [number for number in wanted or () if not 1 <= number <= there_are]
    if missing:
        raise UserError(f"there is no {what} {missing[0]}: it has {what}s 1 to {there_are}")
    return list(wanted or range(1, there_are + 1))


def target_tokens(translator: Translator, source: Sequence[int], tgt_text: str | None) -> list[int]:
    """The target whose attention is shown: a given text, or the greedy translation; with EOS if it
    was reached.
    """
    if tgt_text is not None:
        return translator.tokenizer.encode_tgt(normalize_whitespace(tgt_text))
    [[best]] = translator.search_ids([source], greedy=True)
    return [*best.ids, translator.tokenizer.eos_id] if best.finished else list(best.ids)


def attention_maps(
    translator: Translator,
    source: Sequence[int],
    target: Sequence[int],
    *,
    kinds: Sequence[Kind] = KINDS,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    about: str = "",
) -> dict[Kind, AttentionMaps]:
    """The maps of layers and heads (numbered from 1; None: all) for each kind of attention of one
    sentence pair.

    source ends in EOS, target has no start token. The rows of a self-attention are the tokens that
    it updates. The rows of the cross-attention are the tokens that come out: row t shows where the
    model looked when it predicted token t. Raises UserError for layers and heads that are not
    there.
    """
    tokenizer = translator.tokenizer
    read = [tokenizer.bos_id, *target[:-1]]
    src, tgt = tokenizer.src_pieces(source), tokenizer.tgt_pieces(target)
    # Marian starts from its padding token, and a label "<pad>" would look like an error.
    start = (
        "<start>"
        if tokenizer.bos_id == tokenizer.pad_id
        else tokenizer.tgt_pieces([tokenizer.bos_id])[0]
    )
    shifted = [start, *tgt[:-1]]
    axes: dict[Kind, tuple[list[str], list[str], str, str]] = {
        "encoder": (src, src, "source token (query)", "source token (key)"),
        "decoder": (shifted, shifted, "target token read (query)", "target token read (key)"),
        "cross": (tgt, src, "target token predicted (query)", "source token (key)"),
    }
    weights = translator.attention_maps(source, read)
    maps = {}
    for kind in kinds:
        queries, keys, query_name, key_name = axes[kind]
        n_layers, n_heads = weights[kind].shape[:2]
        stack = "encoder" if kind == "encoder" else "decoder"
        layer_numbers = choose(layers, n_layers, f"{stack} layer")
        head_numbers = choose(heads, n_heads, "head")
        maps[kind] = AttentionMaps(
            weights[kind][[n - 1 for n in layer_numbers]][:, [n - 1 for n in head_numbers]],
            queries,
            keys,
            title=_TITLES[kind] + about,
            layers=layer_numbers,
            heads=head_numbers,
            query_name=query_name,
            key_name=key_name,
        )
    return maps


def draw_attention(*runs: Mapping[Kind, AttentionMaps]) -> dict[Kind, Figure]:
    """A figure for each kind of attention: the maps of all runs side by side, with one colour
    scale.
    """
    return {kind: attention_grid(*(run[kind] for run in runs)) for kind in runs[0]}


def attention_figures(
    translator: Translator, source: Sequence[int], target: Sequence[int], **options: Any
) -> dict[Kind, Figure]:
    """The pictures of `attention_maps`, which takes the same options."""
    return draw_attention(attention_maps(translator, source, target, **options))
