"""The grammar: the sentence plans with their shares, and an endless source of sentence pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from data.corpora.phrasebook import english, french
from data.corpora.phrasebook.pronouns import Pronouns
from data.corpora.phrasebook.questions import Questions
from data.corpora.phrasebook.set_phrases import SetPhrases
from data.corpora.phrasebook.statements import Statements
from data.corpora.phrasebook.subordinate import Subordinate
from data.corpora.phrasebook.timed_clauses import Sentence

# plan: share of the sentences; a plan is the method of that name
# fmt: off
PLANS = {
    "plain": 18, "infinitive": 8, "description": 8, "presentation": 4, "comparison": 4, "superlative": 2.5,
    "existence": 4, "location": 4, "time": 4, "weather": 2, "clitic": 8, "adverbial_pronoun": 3, "antecedent": 4,
    "yes_no": 6, "wh": 7, "relative_sentence": 7, "causal": 8, "temporal": 7, "reported": 6, "coordination": 14,
    "nothing": 2, "since": 2, "need": 3, "request": 4, "quantity": 4,
}
# fmt: on


@dataclass(frozen=True, slots=True)
class Pair:
    """A finished sentence in both languages and the plan it came from."""

    fr: str
    en: str
    plan: str


class Grammar(Statements, Pronouns, Questions, Subordinate, SetPhrases):
    """An endless source of sentence pairs: French and English of each are made from the same
    choices.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._plans = [(name, getattr(self, name)) for name in PLANS]
        total = sum(PLANS.values())
        self._steps: list[float] = []
        running = 0.0
        for weight in PLANS.values():
            running += weight / total
            self._steps.append(running)

    def pair(self) -> Pair:
        name, plan = self._weighted()
        fr, en, mark = plan()
        return Pair(french.spell(fr, mark), english.spell(en, mark), name)

    def _weighted(self) -> tuple[str, Callable[[], Sentence]]:
        draw = self.draw()
        for plan, step in zip(self._plans, self._steps, strict=True):
            if draw < step:
                return plan
        return self._plans[-1]
