"""Computes all that the explorer shows of one model and one sentence, as plain data."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from configs.schema import Beam
from data.corpora.text import plain_text
from explorer.heads import head_statistics
from explorer.packed import pack
from explorer.tree import likeliest, searched
from models.positional_encodings.base import AttentionPosition, Side
from models.positional_encodings.ssmax import Ssmax
from pictures.attention import attention_maps
from pictures.schemes import Scheme, trained_scheme
from translation.loading import LoadedRun
from translation.search import limits_of, not_a_number
from translation.translator import Translator

SIDE: dict[str, Side] = {"encoder": "source", "decoder": "target"}


def trace(
    loaded: LoadedRun, translator: Translator, src_text: str, tgt_text: str | None = None
) -> dict[str, Any]:
    """One sentence through one model: text, attention, search and positions, for `page`.

    tgt_text: a translation to show (None: the best that beam search finds). The search shown is
    always the model's own.

    Raises UserError for a text that is not Unicode or longer than the model's positions, and where
    the model's output is not a number.
    """
    tokenizer, decode = translator.tokenizer, translator.decode
    [source] = translator.encode([src_text])
    n_best, free = min(decode.n_best, decode.beam_size), not decode.no_repeat_ngram_size
    tree, results = searched(
        translator.searcher.model,
        torch.tensor([source], device=translator.searcher.device),
        limits_of(decode, tokenizer),
        beam_size=decode.beam_size,
        n_best=n_best,
        pieces=tokenizer.tgt_pieces,
    )
    if not results:
        raise not_a_number(translator.searcher.precision)
    best = results[0]
    target = [*best["ids"], *([tokenizer.eos_id] if best["finished"] else [])]
    if tgt_text is not None:
        target = tokenizer.encode_tgt(plain_text(tgt_text))
    for result in results:
        result["text"] = tokenizer.decode(result.pop("ids"))
    attention = translator.attention(source, target)
    start = tree.nodes[0]["piece"] = attention.read[0]
    return {
        "name": loaded.run.name,
        "about": f"epoch {loaded.epoch}, update {loaded.step:,}",
        "source": {
            **words(plain_text(src_text), attention.source),
            "lang": loaded.config.data.src_lang.replace("_", "-"),  # as in HTML
        },
        "target": {
            **words(attention.text, attention.target),
            "lang": loaded.config.data.tgt_lang.replace("_", "-"),
            "given": tgt_text is not None,
            "start": start,
            **_probabilities(translator, source, target),
        },
        "attention": {
            kind: {
                "log_weights": pack(_log(found.maps)),
                "query_name": found.query_name,
                "key_name": found.key_name,
                "statistics": {
                    name: np.round(values, 4).tolist()
                    for name, values in head_statistics(found.maps.astype(np.float64)).items()
                },
            }
            for kind, found in attention_maps(attention).items()
        },
        "search": {
            "beam_size": decode.beam_size,
            "n_best": n_best,
            "alpha": decode.length_penalty,
            "longest": tree.longest,
            "own": isinstance(decode.search, Beam) and decode.mbr is None and free,
            "nodes": tree.nodes,
            "steps": tree.steps,
            "results": results,
        },
        "position": positions(trained_scheme(loaded), len(source), len(target)),
    }


def words(text: str, pieces: Sequence[str]) -> dict[str, Any]:
    """A text with its pieces, its words, and the word [T] that each piece belongs to.

    Words are separated by white space; the last token (EOS) is one of its own. Words are shown as
    in the text, if the pieces divide it into the same words.
    """
    word_of, parts = [], list[str]()
    for place, piece in enumerate(pieces):
        if not parts or piece.startswith("▁") or (place == len(pieces) - 1 and piece == "</s>"):
            parts.append("")
        parts[-1] += piece.removeprefix("▁")
        word_of.append(len(parts) - 1)
    ends = parts[-1:] if pieces and pieces[-1] == "</s>" else []
    typed = [*text.split(), *ends]
    named = typed if len(typed) == len(parts) else parts
    return {"text": text, "pieces": list(pieces), "words": named, "word_of": word_of}


def _log(weights: np.ndarray) -> np.ndarray:
    """The logits, minus a constant of each row; -inf where a weight is 0."""
    return np.log(weights, out=np.full_like(weights, -np.inf), where=weights > 0)


@torch.inference_mode()
def _probabilities(
    translator: Translator, source: Sequence[int], target: Sequence[int]
) -> dict[str, Any]:
    """The log-probability of each target token given the true ones before it; the likeliest."""
    tokenizer = translator.tokenizer
    read = [tokenizer.bos_id, *target[:-1]]
    searcher = translator.searcher
    ids = (torch.tensor([row], device=searcher.device) for row in (source, read))
    log_probs = searcher.model(*ids)[0].float().log_softmax(-1)  # [T,V]
    return {
        "log_probs": [round(float(row[i]), 5) for row, i in zip(log_probs, target)],
        "likeliest": [likeliest(row, tokenizer.tgt_pieces) for row in log_probs],
    }


def positions(scheme: Scheme, n_source: int, n_target: int) -> dict[str, Any]:
    """What the scheme does to sequences of these lengths, a part for each place where it acts.

    `at` [n] has the positions of the model's tokens. table [n,D] is added to the embeddings.
    rotation [L,H,n,P] has the angle in radians of each pair of dimensions, and its magnitude if
    there is one (H is 1 if all heads turn alike). bias [L,H,n,n] is added to the logits. L is 1 if
    all layers do the same. The note describes what no part shows.
    """
    parts: list[dict[str, Any]] = []
    where = {"encoder": scheme.positions("source", n_source)}
    where["decoder"] = scheme.positions("target", n_target)

    def add(form: str, stack: str, values: np.ndarray | None, **more: Any) -> None:
        if values is not None and values.size:
            part = {"form": form, "stack": stack, "at": at.tolist(), "values": pack(values)}
            parts.append(part | more)

    for stack, at in where.items():
        add("table", stack, scheme.tables(at, (SIDE[stack],)).get(""))
        turned = scheme.rotation(stack, at)
        if (turned == turned[:, :1]).all():
            turned = turned[:, :1]
        stretched = {} if np.allclose(abs(turned), 1) else {"factors": pack(abs(turned))}
        add("rotation", stack, np.angle(turned), **stretched)
        add("bias", stack, scheme.biases(at, (stack,)).get(stack))
    note = f"{scheme.name} ({scheme.state}), for {n_source} source and {n_target} target tokens."
    by_words, by_length = (scheme.decided_by(cause, where) for cause in ("words", "length"))
    if by_words:
        note += f" What it does in {by_words} also depends on the words, which is not drawn."
    if by_length:
        note += f" In {by_length} a sentence of this length turns by other angles than these."
    decoder = range(scheme.model.n_decoder_layers)
    if any(type(scheme.module.attention("cross", i)) is not AttentionPosition for i in decoder):
        note += " The scheme acts in the cross-attention too, which is not drawn."
    if isinstance(scheme.attention("encoder"), Ssmax):
        note += " All logits of the self-attentions grow by s ln n, where n keys are seen."
    elif not (parts or by_words) and scheme.moves():
        note += " Queries and keys change with position, not by turning pairs, which is not drawn."
    elif not (parts or by_words):
        note += " Nothing is added or turned: only the decoder's mask tells places apart."
    return {"scheme": scheme.name, "note": note, "parts": parts}
