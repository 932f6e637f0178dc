"""Plans with pronouns for objects and places: le, lui, y, en, alone or after their antecedent."""

from __future__ import annotations

from dataclasses import replace

from data.corpora.phrasebook import english, french, lexicon as lex
from data.corpora.phrasebook.clause import NP, VP
from data.corpora.phrasebook.tables import pairs, rows
from data.corpora.phrasebook.timed_clauses import Clauses, Sentence
from data.corpora.phrasebook.verb_phrases import CHAINS

THERE_VERBS = pairs("aller=go; aller=go; rester=stay; habiter=live; travailler=work; étudier=study")
SOME_VERBS = rows(
    "vouloir/want/state; avoir/have/state; manger/eat/act; boire/drink/act; acheter/buy/act"
)
COUNTED_VERBS = rows("""
    vouloir/want/state; avoir/have/state; manger/eat/act; acheter/buy/act; vendre/sell/act; voir/see/state
""")
NEWS = pairs("malade=sick; triste=sad; seul=alone; occupé=busy; fatigué=tired")


class Pronouns(Clauses):
    """Plans with pronouns for objects and places: le, lui, y, en, alone or after their antecedent."""

    def clitic(self) -> Sentence:
        subject = self.subject()
        vp = self.pronominal(subject)
        if self.chance(0.3):
            fr, link, en, en_link, aspect, _ = self.pick(CHAINS[:8])
            if vp.aspect == "act":
                vp = self.chained(fr, link, en, en_link, aspect, vp)
        return *self.statement(subject, vp, time=0.4), "."

    def pronominal(self, subject: NP) -> VP:
        """A verb whose object is a pronoun, from those that have one meaning without an antecedent."""
        draw = self.draw()
        if draw < 0.35:
            predicate = self.pick(
                [p for p in lex.THINGS if p.aspect != "state" and set(p.determiners) & set("dipt")]
            )
            noun = self.of_kinds(predicate.objects)
            plural = self.chance(0.3)
            clitic = "les" if plural else "la" if noun.feminine else "le"
            return self.cliticized(
                predicate, clitic, "them" if plural else "it", (noun.feminine, plural)
            )
        if draw < 0.7:
            predicate = self.pick(lex.PERSONS)
            if self.chance(0.5):
                fr, en = self.object_pronoun(subject, third=False)
                return self.cliticized(
                    predicate, fr, en, (self.chance(0.5), fr in ("nous", "vous"))
                )
            feminine, plural = self.chance(0.5), self.chance(0.3)
            return self.cliticized(
                predicate,
                "les" if plural else "la" if feminine else "le",
                "them" if plural else "her" if feminine else "him",
                (feminine, plural),
            )
        if draw < 0.85:
            predicate = self.pick(lex.DATIVES)
            fr, en = self.object_pronoun(subject)
            return self.cliticized(predicate, fr, en, None)
        predicate = self.pick(lex.GIVING)
        noun = self.of_kinds(predicate.objects)
        plural = self.chance(0.3)
        fr, en = self.object_pronoun(subject)
        direct = "les" if plural else "la" if noun.feminine else "le"
        vp = self.cliticized(predicate, direct, "them" if plural else "it", (noun.feminine, plural))
        return replace(vp, clitics=(fr, direct), en_obj=f"{vp.en_obj} to {en}")

    def cliticized(
        self, predicate: lex.Predicate, clitic: str, en: str, agreement: tuple[bool, bool] | None
    ) -> VP:
        vp = self.verb(predicate)
        particle = vp.en_obj
        # put it on, throw it away; but look for it, listen to it
        en_obj = f"{en} {particle}" if particle in ("on", "away") else f"{particle} {en}"
        return replace(vp, clitics=(clitic,), en_obj=en_obj, preceding=agreement, extras="")

    def adverbial_pronoun(self) -> Sentence:
        """y and en."""
        subject = self.subject()
        if self.chance(0.4):
            fr, en = self.pick(THERE_VERBS)
            rest_fr, rest_en = (
                self.company(subject) if fr != "habiter" and self.chance(0.4) else ("", "")
            )
            vp = VP(
                fr,
                en,
                "state" if fr == "habiter" else "act",
                rest_fr,
                f"there {rest_en}",
                clitics=("y",),
            )
            return *self.statement(subject, vp, time=0.6), "."
        if self.chance(0.5):
            fr, en, aspect = self.pick(SOME_VERBS)
            vp = VP(fr, en, aspect, "", "@some", clitics=("en",))
            if aspect == "act":
                tense = self.pick(("near", "past", "future", "near", "past"))
                negation = self.maybe_not(0.4)
                time = self.pick(lex.PAST[:4]) if tense == "past" else self.pick(lex.FUTURE[:5])
            else:
                tense = self.pick(("present", "imperfect"))
                negation = self.pick(("", "pas", "pas", "plus"))
                time = ("", "")
            return *self.placed(self.both(subject, vp, tense, negation=negation), time, False), "."
        fr, en, aspect = self.pick(COUNTED_VERBS)
        count = 2 + self.below(9)
        vp = VP(
            fr,
            en,
            aspect,
            french.number(count),
            f"{english.number(count)} of them",
            clitics=("en",),
        )
        tense = self.pick(
            ("past", "future", "near")
            if aspect == "act" or fr == "voir"
            else ("present", "imperfect")
        )
        return *self.both(subject, vp, tense), "."

    def antecedent(self) -> Sentence:
        """Two clauses, the second with pronouns for what the first named: Marie est malade, donc je
        lui téléphone.
        """
        person = self.named_or_kin()
        subject = self.pronoun("0134")
        him = "her" if person.feminine else "him"
        if person.fr.startswith(("notre", "votre", "ton", "ta")):
            subject = self.pronoun(
                "03"
                if person.fr.startswith("notre")
                else "14"
                if person.fr.startswith("votre")
                else "11"
            )
        elif person.fr.startswith(("mon", "ma")) and person.fr.split()[0] in (
            "mon",
            "ma",
            "ma|mon",
        ):
            subject = self.pronoun("0")
        draw = self.draw()
        if draw < 0.5:
            first = self.both(person, self.pick(self.person_news(person)), "present")
            if self.chance(0.5):
                predicate = self.pick(lex.among(lex.DATIVES, "téléphoner parler écrire répondre"))
                vp = self.cliticized(predicate, "lui", him, None)
            else:
                predicate = self.pick(lex.among(lex.PERSONS, "aider attendre appeler inviter voir"))
                vp = self.cliticized(
                    predicate, "la" if person.feminine else "le", him, (person.feminine, False)
                )
            tense = self.pick(("future", "near"))
            second = self.placed(
                self.both(subject, vp, tense), self.pick((("", ""), *lex.FUTURE)), False
            )
            link = self.pick((("et", ", and"), ("donc", ", so"), ("mais", ", but")))
            return *self.linked(first, link, second), "."
        predicate = self.pick([p for p in lex.GIVING if p.fr != "prêter"])
        noun = self.of_kinds(predicate.objects)
        thing = self.noun(noun, self.pick("dt"), False, 0.15)
        first = self.both(person, VP("vouloir", "want", "state", thing.fr, thing.en), "present")
        vp = self.cliticized(
            predicate, "la" if noun.feminine else "le", "it", (noun.feminine, False)
        )
        vp = replace(vp, clitics=(vp.clitics[0], "lui"), en_obj=f"it to {him}")
        tense = self.pick(("future", "near", "past"))
        link = ("donc", ", so") if tense != "past" else ("mais", ", but")
        if tense == "past":
            second = self.both(subject, vp, tense, negation=self.pick(("pas", "pas encore")))
        else:
            second = self.placed(
                self.both(subject, vp, tense), self.pick((("", ""), *lex.FUTURE)), False
            )
        return *self.linked(first, link, second), "."

    def person_news(self, person: NP) -> list[VP]:
        place = self.pick(lex.PLACES)
        city = self.pick(lex.CITIES)
        return [
            *(VP("être", "be", "be", person.agree(fr), en) for fr, en in NEWS),
            VP("être", "be", "be", place.fr, place.at),
            VP("habiter", "live", "state", city.fr, city.at),
        ]
