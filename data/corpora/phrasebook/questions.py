"""Plans of questions: yes or no, where, when, why, how much, what, which, who."""

from __future__ import annotations

from dataclasses import replace

from data.corpora.phrasebook import french, lexicon as lex
from data.corpora.phrasebook.clause import NP, VP, english_clause, french_clause
from data.corpora.phrasebook.tables import pairs
from data.corpora.phrasebook.timed_clauses import Clauses, Sentence

WHAT_VERBS = pairs("""
    manger=eat; boire=drink; faire=do; lire=read; regarder=watch; acheter=buy; chercher=look for; préparer=prepare
    écouter=listen to
""")
# What one may ask of: where does she …, where did you … it, how many did they …, which … did he …
SOMEWHERE = tuple(
    p
    for p in lex.among(
        lex.SIMPLE, "travailler habiter étudier déjeuner dîner marier dormir attendre"
    )
    if not p.fr_rest
)
WHEREABOUTS = tuple(
    p
    for p in lex.among(lex.THINGS, "acheter trouver perdre mettre cacher")
    if not set(p.determiners) & set("ga")
)
HOW_MANY = tuple(
    p
    for p in lex.among(lex.THINGS, "manger acheter lire avoir vendre écrire")
    if "a" not in p.determiners or p.determiners == "ian"
)
WHICH = tuple(
    p
    for p in lex.among(lex.THINGS, "lire acheter regarder choisir porter écouter apprendre visiter")
    if not set(p.determiners) & set("ag")
)


class Questions(Clauses):
    """Plans of questions: yes or no, where, when, why, how much, what, which, who."""

    def yes_no(self) -> Sentence:
        subject = self.asked_subject()
        draw = self.draw()
        if draw < 0.55:
            vp = self.action(subject)
        elif draw < 0.75:
            vp = self.state(subject)
        else:
            vp = self.chain(subject)
        while vp.no_negation:
            vp = self.action(subject)
        return self.asked(subject, vp, self.question_tense(vp, subject))

    def wh(self) -> Sentence:
        subject = self.asked_subject()
        draw = self.draw()
        if draw < 0.25:
            if self.chance(0.4):
                vp = VP("aller", "go", "act")
                return self.asked(
                    subject, vp, self.pick(("present", "past", "near")), ("où", "where"), mode="now"
                )
            vp = self.with_object(self.pick(SOMEWHERE), subject)
            if self.chance(0.3):
                vp = self.with_object(self.pick(WHEREABOUTS), subject)
                while "@" in vp.fr_obj or vp.no_negation:
                    vp = self.with_object(self.pick(WHEREABOUTS), subject)
                vp = (
                    vp
                    if vp.fr != "mettre"
                    else VP("mettre", "put", "act", vp.fr_obj, vp.en_obj.removeprefix("on "))
                )
                return self.asked(subject, vp, "past", ("où", "where"))
            return self.asked(subject, vp, self.question_tense(vp, subject), ("où", "where"))
        if draw < 0.42:
            vp = self.with_object(
                self.pick(lex.among(lex.SIMPLE, "arriver partir revenir marier rentrer")), subject
            )
            if self.chance(0.4):
                vp = self.action(subject, 0.0)
                while vp.aspect != "act" or vp.no_negation:
                    vp = self.action(subject, 0.0)
            head = ("quand", "when") if self.chance(0.6) else ("à quelle heure", "what time")
            return self.asked(
                subject,
                vp,
                self.pick(("past", "future", "near")) if vp.aspect == "act" else "past",
                head,
            )
        if draw < 0.6:
            if self.chance(0.4):
                vp = self.state(subject)
                while "ans" in vp.fr_obj:
                    vp = self.state(subject)
            else:
                vp = self.action(subject)
                while vp.no_negation:
                    vp = self.action(subject)
            return self.asked(subject, vp, self.question_tense(vp, subject), ("pourquoi", "why"))
        if draw < 0.75:
            return self.how_much(subject)
        if draw < 0.88:
            return self.what(subject)
        return self.who()

    def how_much(self, subject: NP) -> Sentence:
        draw = self.draw()
        if draw < 0.25:
            noun = self.of_kinds(
                ("thing", "clothes", "vehicle", "furniture", "text", "dish", "device")
            )
            thing = self.noun(noun, "t", self.chance(0.2), 0.2)
            vp = VP("coûter", "cost", "state")
            fr = f"combien {french.conjugate('coûter', 'present', thing.person)} {thing.fr}"
            return fr, f"how much {english_clause(thing, vp, 'present', question=True)}", "?"
        if draw < 0.4:
            return self.asked(
                subject, VP("avoir", "be", "be"), "present", ("quel âge", "how old"), True
            )
        predicate = self.pick(HOW_MANY)
        noun = self.of_kinds(predicate.objects)
        vp = replace(self.verb(predicate), preceding=(noun.feminine, True))
        tense = self.pick(("past", "past", "future")) if vp.aspect == "act" else "present"
        return self.asked(
            subject, vp, tense, (f"combien de {noun.fr_plural}", f"how many {noun.en_plural}"), True
        )

    def what(self, subject: NP) -> Sentence:
        if self.chance(0.5):
            fr, en = self.pick(WHAT_VERBS)
            verb, _, rest = en.partition(" ")
            vp = VP(fr, verb, "act", "", rest)
            tense = self.pick(("present", "past", "past", "near", "future"))
            question = f"what {english_clause(subject, vp, tense, question=True, mode='now')}"
            if subject.pronoun and subject.person != 0 and self.chance(0.5):
                return f"que {french_clause(subject, vp, tense, invert=True)}", question, "?"
            return f"que est-ce que {french_clause(subject, vp, tense)}", question, "?"
        predicate = self.pick(WHICH)
        noun = self.of_kinds(predicate.objects)
        plural = self.chance(0.2)
        which_fr = french.adjective_form("quel", noun.feminine, plural)
        which = (
            f"{which_fr} {noun.fr_plural if plural else noun.fr}",
            f"which {noun.en_plural if plural else noun.en}",
        )
        vp = replace(self.verb(predicate), preceding=(noun.feminine, plural))
        tense = self.pick(("past", "past", "future", "near"))
        return self.asked(subject, vp, tense, which)

    def who(self) -> Sentence:
        if self.chance(0.7):
            subject = NP("qui", "who", 2, possessive="his")
            vp = self.action(subject, 0.4)
            while (
                " son " in f" {vp.fr_obj} "
                or "his" in vp.en_obj
                or "POSS" in vp.en_obj
                or vp.no_negation
            ):
                vp = self.action(subject, 0.4)
            return *self.both(subject, vp, self.question_tense(vp, subject)), "?"
        subject = self.asked_subject()
        predicate = self.pick(
            [p for p in lex.PERSONS if p.aspect != "event" or p.fr == "rencontrer"]
        )
        tense = "past" if predicate.fr != "connaître" else "present"
        return self.asked(subject, self.verb(predicate), tense, ("qui", "who"))
