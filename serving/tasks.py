"""What a served model is asked to do: to translate, to align words, to show a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from explorer.page import page
from explorer.trace import trace
from translation.loading import LoadedRun
from translation.translator import Translator
from utils.errors import UserError
from utils.lines import as_line

MOST_TOKENS = 1024  # of a sentence: a page's readers share the machine
MOST_SHOWN = 128  # in the explorer, whose page grows with their square


@dataclass(frozen=True, slots=True)
class Task:
    """What is done, and how. Items of equal tasks are computed together."""

    model: str
    kind: Literal["translate", "align", "explore"]
    search: str = "beam"
    n_best: int = 1
    text: str = ""  # to explore: a page takes long, and is made alone


@dataclass(frozen=True, slots=True)
class Served:
    """A model, as it translates."""

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

    @property
    def searches(self) -> list[str]:
        """The search of the model's configuration, and greedy search."""
        return [self.translator.decode.search.kind, "greedy"]

    def require_short(
        self, *texts: str, most: int = MOST_TOKENS, prefix: str = "", number: int = 0
    ) -> None:
        """Raises UserError for a text of more tokens than one sentence may have, or the prefix.

        number: of the prefix, from 0.
        """
        most = min(most, self.translator.searcher.longest("source") or most)
        for ids in self.translator.encode(texts):
            if len(ids) > most:
                raise UserError(f"a line of {len(ids):,} tokens: at most {most:,}; split it")
            self.translator.prefix_ids([prefix], [ids], self.translator.decode, [number])

    def do(self, task: Task, items: Sequence[Any]) -> list[Any]:
        """Of a sentence and a prefix hypotheses, of a sentence its page, of a pair linked words."""
        if task.kind == "explore":
            return [page([trace(self.loaded, self.translator, text)]) for text in items]
        if task.kind == "align":
            sources, targets = map(list, zip(*items))
            linked = self.translator.align(sources, targets)
            return [{"src": each.src, "tgt": each.tgt, "pairs": each.links} for each in linked]
        decode = self.translator.decode
        n_best = task.n_best if task.search == "sample" else min(task.n_best, decode.beam_size)
        if decode.mbr:  # all are compared to find the best
            n_best = decode.n_best
        texts, prefixes = map(list, zip(*items))
        found = self.translator.translate(texts, search=task.search, n_best=n_best, prefix=prefixes)
        answers = []
        for each in found:
            scores: dict[str, float] = {}  # of those that spell the same in other pieces the best
            for h in each.hypotheses[: task.n_best]:
                scores.setdefault(as_line(h.text), h.score)
            answers.append([{"text": text, "score": score} for text, score in scores.items()])
        return answers
