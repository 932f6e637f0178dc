"""Clauses in both languages: tense, negation and adverbials of time that go together, links,
questions.
"""

from __future__ import annotations

from data.corpora.phrasebook import english, french, lexicon as lex
from data.corpora.phrasebook.clause import NP, VP, english_clause, french_clause
from data.corpora.phrasebook.tables import Text
from data.corpora.phrasebook.verb_phrases import VerbPhrases

Sentence = tuple[str, str, str]  # unspelled French and English, and the final mark

PC_STATES = ("voir", "comprendre")  # states whose passé composé is at home in everyday talk
ONCE = (
    "commencer",
    "finir",
    "casser",
    "recevoir",
    "marier",
    "reconnaître",
)  # not told of as habits
TENSES = (
    ("present",) * 8
    + ("past",) * 7
    + ("imperfect",) * 3
    + ("future",) * 3
    + ("near",) * 3
    + ("recent",)
)


def joined(*parts: Text) -> Text:
    return " ".join(part[0] for part in parts), " ".join(part[1] for part in parts)


class Clauses(VerbPhrases):
    """Clauses in both languages: tense, negation and adverbials of time that go together, links,
    questions.
    """

    def both(
        self,
        subject: NP,
        vp: VP,
        tense: str,
        *,
        mode: str = "",
        negation: str = "",
        adverb: Text = ("", ""),
        bare: bool = False,
    ) -> Text:
        return (
            french_clause(subject, vp, tense, negation=negation, adverb=adverb[0], bare=bare),
            english_clause(
                subject, vp, tense, negation=negation, adverb=adverb[1], mode=mode, bare=bare
            ),
        )

    def maybe_not(self, probability: float = 0.15) -> str:
        return "pas" if self.chance(probability) else ""

    def tense_for(self, vp: VP) -> str:
        while True:
            tense = self.pick(TENSES)
            if tense == "past" and vp.aspect in ("state", "be") and vp.fr not in PC_STATES:
                continue
            if tense in ("near", "recent") and (
                vp.aspect in ("state", "be") or vp.en in ("can", "must")
            ):
                continue
            if tense in ("present", "imperfect") and vp.aspect == "event" and vp.fr in ONCE:
                continue
            if tense == "recent" and (vp.no_negation or vp.fr in ("rester",)):
                continue
            return tense

    def statement(
        self,
        subject: NP,
        vp: VP,
        tense: str = "",
        negate: float = 0.2,
        time: float = 0.55,
        front_share: float = 0.35,
    ) -> Text:
        """A clause with tense, negation and an adverbial that go together."""
        tense = tense or self.tense_for(vp)
        negation = ""
        if not vp.no_negation and tense != "recent" and self.chance(negate):
            negation = self.pick(("pas", "pas", "pas", "jamais", "plus"))
            if tense == "past":
                negation = self.pick(("pas", "pas", "pas", "jamais", "pas encore"))
            elif (
                tense in ("near", "conditional")
                or (vp.aspect == "event" and negation == "plus")
                or (vp.aspect == "be" and tense == "future")
            ):
                negation = "pas"
            if vp.aspect in ("be", "state") and negation == "jamais" and vp.steady:
                negation = "pas"
        if negation in ("jamais", "plus", "pas encore"):
            if vp.steady and negation == "plus" and vp.aspect == "be":
                negation = "pas"
            if vp.aspect == "event" and tense == "imperfect":
                tense = "past" if negation != "plus" else "present"
            if negation == "pas encore" and " à " in f" {vp.fr_obj} " and "heure" in vp.fr_obj:
                negation = "pas"
            return self.both(subject, vp, tense, negation=negation)
        if vp.no_negation and tense in ("present", "imperfect"):
            tense = (
                "past" if vp.aspect != "state" else tense
            )  # a counted object belongs to one occasion
        timed = self.chance(time) and not (
            vp.steady and tense == "future" and vp.en not in ("can", "must")
        )
        front = self.chance(front_share)
        clocked = "heure" in vp.fr_obj or " à mi" in vp.fr_obj
        if vp.steady and tense in ("present", "imperfect"):
            text = self.both(subject, vp, tense, mode="habit", negation=negation)
            if tense == "imperfect" and timed and vp.en not in ("can", "must"):
                return self.placed(text, self.pick(lex.FORMERLY[:2]), front)
            return text
        if tense == "present":
            if vp.aspect == "event" or (timed and self.chance(0.6)):
                negation = "" if vp.aspect == "event" else negation
                if negation or clocked or self.chance(0.55):
                    frequency = self.pick(lex.FREQUENCY[:2] if negation else lex.FREQUENCY)
                    return self.both(
                        subject, vp, tense, mode="habit", negation=negation, adverb=frequency
                    )
                if vp.aspect == "be":
                    return self.both(subject, vp, tense)
                habit = self.pick(lex.HABITUAL)
                return self.placed(self.both(subject, vp, tense, mode="habit"), habit, front)
            if timed and vp.aspect == "act" and not clocked:
                now = self.pick(lex.NOW)
                return self.placed(
                    self.both(subject, vp, tense, mode="now", negation=negation), now, front
                )
            return self.both(subject, vp, tense, negation=negation)
        if tense == "past":
            if timed and clocked:
                return self.placed(
                    self.both(subject, vp, tense, negation=negation),
                    self.pick(lex.PAST[:1] + lex.PAST[-3:-1]),
                    front,
                )
            if timed and not negation and self.chance(0.12):
                return self.both(subject, vp, tense, mode="perfect", adverb=("déjà", "already"))
            text = self.both(subject, vp, tense, negation=negation)
            if timed:
                return self.placed(
                    text, self.pick(lex.PAST) if negation else self.past_time(), front
                )
            return text
        if tense == "imperfect":
            if vp.aspect == "event" or (timed and not negation):
                if vp.aspect == "be" or self.chance(0.4):
                    return self.placed(
                        self.both(subject, vp, tense, mode="habit"), self.pick(lex.FORMERLY), front
                    )
                if self.chance(0.3):
                    return self.both(subject, vp, tense, mode="habit", adverb=lex.FREQUENCY[0])
                return self.placed(
                    self.both(subject, vp, tense, mode="habit"), self.pick(lex.HABITUAL), front
                )
            text = self.both(subject, vp, tense, negation=negation)
            if timed and not clocked:
                return self.placed(text, self.pick(lex.BACKGROUND), front)
            return text
        text = self.both(subject, vp, tense, negation=negation)
        if tense in ("future", "near") and timed:
            if clocked:
                return self.placed(text, self.pick(lex.FUTURE[:1] + lex.FUTURE[7:10]), True)
            return self.placed(text, self.future_time(), front)
        return text

    def date(self) -> Text:
        day = 1 + self.below(28)
        month_fr, month_en = self.pick(lex.MONTHS)
        return f"{'1er' if day == 1 else day} {month_fr}", f"{month_en} {day}"

    def ago(self) -> Text:
        fr, en = self.pick(lex.PAST_UNITS)
        count = 1 + self.below(10)
        if count == 1:
            return (
                f"il y a {french.number(1, fr in ('semaine', 'heure', 'minute'))} {fr}",
                f"one {en} ago",
            )
        return (
            f"il y a {french.number(count)} {french.plural(fr)}",
            f"{english.number(count)} {en}s ago",
        )

    def within(self) -> Text:
        fr, en = self.ago()
        return fr.replace("il y a", "dans"), "in " + en.removesuffix(" ago")

    def past_time(self) -> Text:
        draw = self.draw()
        if draw < 0.7:
            return self.pick(lex.PAST)
        return self.ago()

    def future_time(self) -> Text:
        return self.pick(lex.FUTURE) if self.chance(0.8) else self.within()

    @staticmethod
    def placed(text: Text, time: Text, front: bool) -> Text:
        """A clause with its time, before it (with a comma) or after it."""
        if front:
            return f"{time[0]} , {text[0]}", f"{time[1]} , {text[1]}"
        return f"{text[0]} {time[0]}", f"{text[1]} {time[1]}"

    @staticmethod
    def linked(first: Text, link: Text, second: Text) -> Text:
        comma = " ," if link[0] in ("mais", "donc", "puis") else ""
        return f"{first[0]}{comma} {link[0]} {second[0]}", f"{first[1]} {link[1]} {second[1]}"

    def question_tense(self, vp: VP, subject: NP) -> str:
        if vp.aspect in ("state", "be") and vp.fr not in PC_STATES:
            return self.pick(("present", "present", "present", "imperfect", "future"))
        if vp.aspect == "event":
            return self.pick(("past", "past", "future"))
        if subject.person in (0, 3):
            return self.pick(("past", "past", "future", "near"))
        return self.pick(("present", "present", "past", "past", "future", "near"))

    def asked(
        self,
        subject: NP,
        vp: VP,
        tense: str,
        head: Text = ("", ""),
        inverted: bool | None = None,
        mode: str = "",
    ) -> Sentence:
        """A question with est-ce que or with inversion, after a question word or none."""
        if inverted is None:
            inverted = self.chance(0.5)
        if subject.person == 0:
            inverted = False
        en = f"{head[1]} {english_clause(subject, vp, tense, question=True, mode=mode)}"
        if inverted:
            return f"{head[0]} {french_clause(subject, vp, tense, invert=True)}", en, "?"
        return f"{head[0]} est-ce que {french_clause(subject, vp, tense)}", en, "?"

    def asked_subject(self) -> NP:
        return self.pronoun("112244355") if self.chance(0.65) else self.named_or_kin()
