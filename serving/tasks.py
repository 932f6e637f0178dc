"""The tasks of a served model: to translate, to align words, to explore a sentence."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from data.cleaning import STOP_WORDS, speaks
from explorer.page import page
from explorer.trace import trace
from translation.loading import LoadedRun
from translation.sentences import separator, split_sentences
from translation.translator import Translator
from utils.errors import UserError
from utils.lines import as_line

MOST_TOKENS = 1024  # of a sentence: a page's readers share the machine
MOST_SHOWN = 128  # in the explorer, whose page grows with their square


@dataclass(frozen=True, slots=True)
class Task:
    """What to do, and how. Items of equal tasks are computed together."""

    model: str
    kind: Literal["translate", "align", "explore"]
    search: str = "beam"
    n_best: int = 1
    text: str = ""  # to explore: a page takes long, so each is a task of its own


@dataclass(frozen=True, slots=True)
class Served:
    """A model that is served."""

    loaded: LoadedRun
    translator: Translator

    @property
    def src_lang(self) -> str:
        return self.loaded.config.data.src_lang

    @property
    def tgt_lang(self) -> str:
        return self.loaded.config.data.tgt_lang

    @property
    def shows_attention(self) -> bool:
        return self.loaded.config.model.backend == "scratch"

    def reads(self, text: str) -> bool:
        """Whether a text may be in the source language, as far as that is known."""
        return self.src_lang not in STOP_WORDS or speaks(text, self.src_lang)

    def sentences(self, line: str) -> list[str]:
        """The sentences of a line of the source language."""
        return split_sentences(line, self.src_lang)

    def beginnings(self, prefix: str, n: int) -> list[str]:
        """The prefixes of a line's n sentences, from that of the line; the last takes the rest."""
        if n <= 1 or not prefix.strip():
            return [prefix, *[""] * (n - 1)]
        parts = split_sentences(prefix, self.tgt_lang)
        rest = separator(self.tgt_lang).join(parts[n - 1 :])
        return [*parts[: n - 1], rest, *[""] * (n - 1 - len(parts))]

    def require_attention(self) -> None:
        """Raises UserError for a model that does not show its attention."""
        if not self.shows_attention:
            raise UserError("this model does not show its attention (model.backend)")

    @property
    def searches(self) -> list[str]:
        """The search of the model's configuration, and greedy search."""
        return [self.translator.decode.search.kind, "greedy"]

    def require_short(
        self,
        text: str,
        *,
        most: int = MOST_TOKENS,
        prefix: str = "",
        number: int = 0,
        tgt: str = "",
    ) -> None:
        """Raises UserError for a text, prefix or translation of too many tokens for one sentence.

        number: of the prefix, from 0. tgt: the translation of which links are asked for.
        """
        [ids] = self.translator.encode([text])
        given = self.translator.tokenizer.encode_tgt(tgt)
        longest = min(most, self.translator.searcher.longest("source") or most)
        for n, allowed in ((len(ids), longest), (len(given), most)):
            if n > allowed:
                raise UserError(f"a line of {n:,} tokens: at most {allowed:,}; split it")
        self.translator.prefix_ids([prefix], [ids], self.translator.decode, [number])

    def do(self, task: Task, items: Sequence[Any]) -> list[Any]:
        """Hypotheses for a sentence and prefix, a page for a sentence, linked words for a pair."""
        if task.kind == "explore":
            return [page([trace(self.loaded, self.translator, task.text)])] * len(items)
        if task.kind == "align":
            sources, targets = map(list, zip(*items))
            linked = self.translator.align(sources, targets)
            return [{"src": each.src, "tgt": each.tgt, "pairs": each.links} for each in linked]
        decode = self.translator.decode
        n_best = task.n_best
        if task.search != "sample":  # with mbr the best is chosen among as many as elsewhere
            several = decode.beam_size if n_best > 1 else 1  # of which some may have one text
            n_best = decode.n_best if decode.mbr else several
        elif decode.mbr:
            n_best = max(n_best, decode.n_best)
        texts, prefixes = map(list, zip(*items))
        found = self.translator.translate(texts, search=task.search, n_best=n_best, prefix=prefixes)
        answers = []
        for each in found:
            best: dict[str, dict[str, Any]] = {}  # of those with the same text in other pieces
            for h in each.hypotheses:
                text = as_line(h.text)
                best.setdefault(text, {"text": text, "score": h.score, "finished": h.finished})
            answers.append(list(itertools.islice(best.values(), task.n_best)))
        return answers
