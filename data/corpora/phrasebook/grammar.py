"""Sentence plans: each makes one sentence in French and in English from the same choices."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from data.corpora.phrasebook import english, french
from data.corpora.phrasebook import lexicon as lex
from data.corpora.phrasebook.clause import (
    NP,
    POSSESSIVES,
    SUBJECT_PRONOUNS,
    VP,
    english_clause,
    french_clause,
    third_person,
)

T = TypeVar("T")

ENGLISH_PRONOUNS = ("I", "you", "he", "we", "you", "they")
ENGLISH_POSSESSIVES = ("my", "your", "his", "our", "your", "their")
OBJECT_PRONOUNS = (("me", "me"), ("te", "you"), ("nous", "us"), ("vous", "you"))
PC_STATES = ("voir", "comprendre")  # states whose passé composé is at home in everyday talk
DETERMINERS = {"d": ("LE", "LA", "LES"), "i": ("@un", "@une", "@des"), "t": ("ce|cet", "cette", "ces")}
WITHOUT_CLITIC = ("g", "a")


@dataclass(frozen=True, slots=True)
class Pair:
    """A finished sentence in both languages and the plan it came from."""

    fr: str
    en: str
    plan: str


Text = tuple[str, str]  # unspelled French and English of a part of a sentence
Sentence = tuple[str, str, str]  # the same with the final mark


def _join(*parts: Text) -> Text:
    return " ".join(part[0] for part in parts), " ".join(part[1] for part in parts)


class Grammar:
    """An endless source of sentence pairs. Only `random.Random.random` is drawn from, so that it never changes."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random
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
        draw = self._random()
        for plan, step in zip(self._plans, self._steps, strict=True):
            if draw < step:
                return plan
        return self._plans[-1]

    # ------------------------------------------------------------------------------------------ choices

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    # ------------------------------------------------------------------------------------- noun phrases

    def pronoun(self, persons: str = "012345") -> NP:
        """A subject pronoun; I, you and we have a gender that only agreement shows."""
        person = int(self.pick(persons))
        feminine = self.chance(0.5)
        if person in (2, 5):
            return third_person(feminine, person == 5)
        plural = person == 3 or (person == 4 and self.chance(0.6))
        return NP(
            SUBJECT_PRONOUNS[person],
            ENGLISH_PRONOUNS[person],
            person,
            feminine,
            plural,
            True,
            ENGLISH_POSSESSIVES[person],
        )

    def name(self) -> NP:
        name, feminine = self.pick(lex.NAMES)
        return NP(name, name, 2, feminine, possessive="her" if feminine else "his")

    def named_or_kin(self) -> NP:
        return self.name() if self.chance(0.6) else self.kin()

    def couple(self) -> NP:
        first, second = self.name(), self.name()
        while second.fr == first.fr:
            second = self.name()
        feminine = first.feminine and second.feminine
        return NP(f"{first.fr} et {second.fr}", f"{first.en} and {second.en}", 5, feminine, True, possessive="their")

    def kin(self, plural: bool = False) -> NP:
        noun = self.pick(lex.NOUNS["kin"])
        owner = int(self.pick("0001144" if noun.fr in ("mari", "femme") else "00011344"))
        return self.possessed(noun, owner, ENGLISH_POSSESSIVES[owner], plural)

    def possessed(self, noun: lex.Noun, owner: int, possessive: str, plural: bool = False) -> NP:
        forms = POSSESSIVES[owner]
        determiner = forms[2] if plural else forms[noun.feminine]
        return self._noun(noun, determiner, possessive, plural)

    def person(self, adjectives: bool = True) -> NP:
        """A person named by what he or she is, with the definite article."""
        noun = self.pick(lex.NOUNS["public"])
        return self.noun(noun, self.pick("dddt"), plural=self.chance(0.25), adjective=0.2 if adjectives else 0.0)

    def subject(self) -> NP:
        draw = self._random()
        if draw < 0.5:
            return self.pronoun()
        if draw < 0.7:
            return self.name()
        if draw < 0.83:
            return self.kin()
        if draw < 0.88:
            return self.couple()
        return self.person()

    def noun(
        self, noun: lex.Noun, determiner: str, plural: bool = False, adjective: float = 0.25, owner: NP | None = None
    ) -> NP:
        """determiner: d i t (definite, indefinite, this), p (the owner's), g (generic), a (partitive), n (counted)."""
        chosen = self.adjective_for(noun) if self.chance(adjective) else None
        if determiner == "p" and owner is not None:
            fr = POSSESSIVES[owner.person][2 if plural else int(noun.feminine)]
            return self._noun(noun, fr, owner.possessive, plural, chosen)
        if determiner == "n":
            count = 2 + int(self._random() * 5)
            return self._noun(noun, french.number(count), english.number(count), True)
        if determiner == "g":
            mass = noun.kind in ("mass", "drink")
            return self._noun(noun, ("LA" if noun.feminine else "LE") if mass else "LES", "", not mass)
        if determiner == "a":
            fr = "@dela" if noun.feminine else "@du"
            return self._noun(noun, fr, "@some", False)
        fr = DETERMINERS[determiner][2 if plural else int(noun.feminine)]
        if determiner == "i":
            en = "@some" if plural else "a"
            if plural and chosen is not None and chosen.before:
                fr = "de"
        elif determiner == "t":
            en = "these" if plural else "this"
        else:
            en = "the"
        return self._noun(noun, fr, en, plural, chosen)

    def _noun(self, noun: lex.Noun, fr: str, en: str, plural: bool, adjective: lex.Adjective | None = None) -> NP:
        head_fr = noun.fr_plural if plural else noun.fr
        head_en = noun.en_plural if plural else noun.en
        if adjective is not None:
            form = french.adjective_form(adjective.fr, noun.feminine, plural, adjective.before)
            head_fr = f"{form} {head_fr}" if adjective.before else f"{head_fr} {form}"
            head_en = f"{adjective.en} {head_en}"
        human = noun.kind in ("person", "kin")
        possessive = "their" if plural else ("her" if noun.feminine else "his") if human else "its"
        return NP(
            f"{fr} {head_fr}", f"{en} {head_en}", 5 if plural else 2, noun.feminine, plural, possessive=possessive
        )

    def adjective_for(self, noun: lex.Noun) -> lex.Adjective | None:
        options = ATTRIBUTES_BY_KIND[noun.kind]
        return self.pick(options) if options else None

    def of_kinds(self, kinds: Sequence[str]) -> lex.Noun:
        return self.pick(lex.NOUNS[self.pick(kinds)])

    def thing(self, kinds: str, determiners: str = "ddtp", adjective: float = 0.25) -> NP:
        """A thing as a subject of its own: the, this or my."""
        noun = self.of_kinds(kinds.split())
        determiner = self.pick(determiners)
        owner = self.pronoun("0134") if determiner == "p" else None
        return self.noun(noun, determiner, self.chance(0.2), adjective, owner)

    def owned(self) -> NP:
        """la voiture de Paul: Paul's car."""
        noun = self.of_kinds(("thing", "vehicle", "clothes", "device", "pet", "home", "text"))
        thing = self.noun(noun, "d", self.chance(0.15), 0.15)
        owner = (
            self.named_or_kin() if self.chance(0.75) else self.noun(self.pick(lex.NOUNS["public"]), "d", adjective=0.0)
        )
        return replace(thing, fr=f"{thing.fr} de {owner.fr}", en=f"{owner.en} 's {thing.en.removeprefix('the ')}")

    # ------------------------------------------------------------------------------------- verb phrases

    def object_for(self, predicate: lex.Predicate, subject: NP) -> tuple[NP, str]:
        """A noun phrase that the verb can take, and how it is determined."""
        kind = self.pick(predicate.objects)
        if kind in lex.GENERIC:
            fr, en = self.pick(lex.GENERIC[kind])
            return NP(fr, en), "g"
        determiner = self.pick(predicate.determiners)
        if kind == "person":
            if self.chance(0.3):
                return self.another_name(subject), "name"
            kind = "known" if determiner == "p" else "public"
        noun = self.pick(lex.NOUNS[kind])
        if kind == "kin":
            # his own mother, never the mother; her husband and his wife stay out of it
            if determiner != "p" or subject.person in (2, 3, 5):
                while noun.fr in ("mari", "femme"):
                    noun = self.pick(lex.NOUNS[kind])
            return self.possessed(noun, subject.person, subject.possessive), "p"
        if kind in ("known", "public"):
            return self.noun(noun, determiner, self.chance(0.2), 0.1, subject), determiner
        plural = (
            determiner in "dit"
            and self.chance(0.2)
            and noun.kind not in ("mass", "home", "room", "area", "building")
            and predicate.fr not in ("mettre", "porter", "prendre")
        )
        if kind == "clothes" and determiner == "p" and subject.person in (3, 5):
            plural = True  # nous mettons nos manteaux
        light = kind == "transport" or determiner == "a"
        return self.noun(noun, determiner, plural, 0.0 if light else 0.22, subject), determiner

    def with_object(self, predicate: lex.Predicate, subject: NP) -> VP:
        vp = self.verb(predicate)
        if not predicate.objects:
            return vp
        thing, determiner = self.object_for(predicate, subject)
        if predicate.fr_prep:  # only a direct object changes its article under negation
            bare_plural = predicate.fr_prep == "de" and "@des" in thing.fr
            fr = thing.fr.replace("@des", "" if bare_plural else "des").replace("@une", "une").replace("@un", "un")
            if predicate.fr_prep == "de" and fr.startswith("de "):
                fr, bare_plural = fr.removeprefix("de "), True
            thing = replace(thing, fr=fr, en=thing.en.replace("@some", "" if bare_plural else "some"))
        vp = vp.plus(f"{predicate.fr_prep} {thing.fr}", thing.en)
        return replace(vp, no_negation=True) if determiner == "n" else vp

    @staticmethod
    def verb(predicate: lex.Predicate) -> VP:
        return VP(
            fr=predicate.fr,
            en=predicate.en,
            aspect="be" if predicate.en == "be" else predicate.aspect,
            fr_obj=predicate.fr_rest,
            en_obj=predicate.en_rest,
            reflexive=predicate.reflexive,
            extras=predicate.extras,
            steady=predicate.aspect == "state" and predicate.fr not in ("voir", "ennuyer"),
        )

    def another_name(self, subject: NP) -> NP:
        while True:
            name = self.name()
            if name.fr not in subject.fr:
                return name

    def action(self, subject: NP, adjuncts: float = 0.5) -> VP:
        """Something that a person does, with its complements and now and then a place, a manner or company."""
        draw = self._random()
        if draw < 0.4:
            vp = self.with_object(self.pick(lex.THINGS), subject)
        elif draw < 0.5:
            vp = self.with_object(self.pick(lex.PERSONS), subject)
        elif draw < 0.57:
            vp = self.with_object(self.pick(lex.DATIVES), subject)
        elif draw < 0.61:
            vp = self.with_object(self.pick(lex.ABOUT), subject)
        elif draw < 0.67:
            vp = self.giving(subject)
        elif draw < 0.75:
            vp = self.going()
        else:
            vp = self.with_object(self.pick(lex.SIMPLE), subject)
        return self.adjoin(vp, subject, adjuncts)

    def lively(self, subject: NP, adjuncts: float = 0.4) -> VP:
        """Something that can be going on: never a state, never over in an instant."""
        while True:
            vp = self.action(subject, adjuncts)
            if vp.aspect == "act" and vp.fr not in ("mentir", "arriver", "rester", "réveiller"):
                return vp

    def going(self) -> VP:
        place = self.pick(lex.PLACES) if self.chance(0.6) else self.pick(lex.CITIES)
        vp = VP("aller", "go", "act", place.fr, place.to)
        if place in lex.CITIES and self.chance(0.5):
            means = self.pick(("en train", "en avion", "en voiture", "en bus"))
            by = {"en train": "by train", "en avion": "by plane", "en voiture": "by car", "en bus": "by bus"}[means]
            vp = vp.plus(means, by)
        return replace(vp, extras="w")

    def giving(self, subject: NP) -> VP:
        """donner quelque chose à quelqu'un, the receiver a noun or a pronoun."""
        predicate = self.pick(lex.GIVING)
        vp = self.with_object(predicate, subject)
        if self.chance(0.5):
            receiver = self.receiver(subject)
            return vp.plus(f"à {receiver.fr}", f"to {receiver.en}")
        fr, en = self.object_pronoun(subject)
        return replace(vp, clitics=(fr,), en_obj=f"{en} {vp.en_obj}")

    def receiver(self, subject: NP) -> NP:
        if self.chance(0.5):
            return self.another_name(subject)
        noun = self.pick(lex.NOUNS["public"])
        if self.chance(0.5):
            return self.noun(noun, "d", False, 0.0)
        return self.possessed(self.family_noun(), subject.person, subject.possessive)

    def family_noun(self) -> lex.Noun:
        while True:
            noun = self.pick(lex.NOUNS["kin"])
            if noun.fr not in ("mari", "femme"):
                return noun

    def object_pronoun(self, subject: NP, third: bool = True) -> Text:
        """me, te, nous, vous or leur, never the subject's own person."""
        options = [
            pair
            for pair, banned in zip(OBJECT_PRONOUNS, ((0, 3), (1, 4), (0, 3), (1, 4)), strict=True)
            if subject.person not in banned
        ]
        if third and subject.person != 5:
            options.append(("leur", "them"))
        return self.pick(options)

    def adjoin(self, vp: VP, subject: NP, probability: float) -> VP:
        """Adds what the verb calls for (live: somewhere) and, by chance, what it allows."""
        extras = vp.extras
        if vp.fr == "habiter":
            if self.chance(0.6):
                place = self.pick(lex.CITIES)
                return vp.plus(place.fr, place.at)
            area = self.noun(self.pick(lex.NOUNS["town"] + lex.NOUNS["home"]), "i", False, 0.7)
            fr = area.fr.replace("@une", "une").replace("@un", "un")
            return vp.plus(f"dans {fr}", f"in {area.en}")
        if not extras or not self.chance(probability):
            return vp
        match self.pick(extras):
            case "m" if vp.fr in lex.MANNER_VERBS:
                word = self.pick(lex.MANNER_VERBS[vp.fr].split())
                if word in ("vite", "lentement"):
                    return vp.plus(word, MANNER[word])
                return replace(vp, manner=(word, MANNER[word]))
            case "l":
                place = self.pick(lex.PLACES)
                return vp.plus(place.fr, place.at)
            case "r":
                return vp.plus(*self.pick(lex.ROOMS))
            case "c":
                place = self.pick(lex.CITIES)
                return vp.plus(place.fr, place.at)
            case "w":
                return vp.plus(*self.company(subject))
            case "t":
                return vp.plus(*self.clock())
            case "u":
                fr, en = self.clock()
                return vp.plus("jusque " + fr, en.replace("at", "until", 1))
        return vp

    def company(self, subject: NP) -> Text:
        if self.chance(0.4):
            companion = self.another_name(subject)
        elif self.chance(0.5):
            companion = self.possessed(self.family_noun(), subject.person, subject.possessive)
        else:
            friends = self.pick(lex.NOUNS["known"][:4])
            companion = self.possessed(friends, subject.person, subject.possessive, self.chance(0.6))
        if self.chance(0.85):
            return f"avec {companion.fr}", f"with {companion.en}"
        return f"sans {companion.fr}", f"without {companion.en}"

    def chain(self, subject: NP) -> VP:
        """vouloir manger, commencer à lire: a verb with an infinitive."""
        fr, link, en, en_link, aspect, kind = self.pick(CHAINS)
        if kind == "any":
            inner = self.lively(subject, 0.4)
        else:
            inner = self.with_object(self.pick(INNER[kind]), subject)
        return self.chained(fr, link, en, en_link, aspect, inner)

    def chained(self, fr: str, link: str, en: str, en_link: str, aspect: str, inner: VP) -> VP:
        verb, _, rest = fr.partition(" ")
        if en_link == "-ing":
            en_inner = inner.gerund()
        else:
            en_inner = f"{en_link} {inner.base()}"
        if fr in ("aimer", "préférer", "savoir"):
            en_inner = en_inner.replace("@some", "")
        head, _, en_rest = en.partition(" ")
        return VP(
            verb,
            head,
            aspect,
            f"{rest} {link} {inner.infinitive()}",
            f"{en_rest} {en_inner}",
            no_negation=inner.no_negation or fr == "préférer",
            steady=aspect == "state",
        )

    def state(self, subject: NP) -> VP:
        """How somebody is: an adjective, a feeling, an age, a profession."""
        draw = self._random()
        if draw < 0.5:
            fr, en = self.pick(PERSON_WORDS)
            return VP("être", "be", "be", subject.agree(fr), en, steady=fr not in lex.PASSING)
        if draw < 0.8:
            fr, en = self.pick(lex.FEELINGS)
            return VP("avoir", "be", "be", fr, en)
        if draw < 0.9:
            place = self.pick(lex.PLACES)
            return VP("être", "be", "be", place.fr, place.at)
        age = 5 + int(self._random() * 76)
        return VP("avoir", "be", "be", f"{french.number(age)} ans", f"{english.number(age)} years old", steady=True)

    # ------------------------------------------------------------------------------------ time and dates

    def clock(self) -> Text:
        """à huit heures et demie: at half past eight."""
        fr, en = self.hour()
        return f"à {fr}", f"at {en}"

    def hour(self) -> Text:
        draw = self._random()
        if draw < 0.06:
            return "midi", "noon"
        if draw < 0.1:
            return "minuit", "midnight"
        hour = 1 + int(self._random() * 11)
        name = "une heure" if hour == 1 else f"{french.number(hour)} heures"
        this = english.number(hour)
        match int(self._random() * 8):
            case 0 | 1 | 2:
                return name, f"{this} o'clock"
            case 3:
                return f"{name} et quart", f"quarter past {this}"
            case 4:
                return f"{name} et demie", f"half past {this}"
            case 5:
                return f"{name} moins LE quart", f"quarter to {this}"
            case 6:
                minutes = self.pick((5, 10, 20, 25))
                return f"{name} {french.number(minutes)}", f"{english.number(minutes)} past {this}"
        minutes = self.pick((5, 10, 20, 25))
        return f"{name} moins {french.number(minutes)}", f"{english.number(minutes)} to {this}"

    def date(self) -> Text:
        day = 1 + int(self._random() * 28)
        month_fr, month_en = self.pick(lex.MONTHS)
        return f"{'1er' if day == 1 else day} {month_fr}", f"{month_en} {day}"

    def ago(self) -> Text:
        fr, en = self.pick(lex.PAST_UNITS)
        count = 1 + int(self._random() * 10)
        if count == 1:
            return f"il y a {french.number(1, fr in ('semaine', 'heure', 'minute'))} {fr}", f"one {en} ago"
        return f"il y a {french.number(count)} {french.plural(fr)}", f"{english.number(count)} {en}s ago"

    def within(self) -> Text:
        fr, en = self.ago()
        return fr.replace("il y a", "dans"), "in " + en.removesuffix(" ago")

    def past_time(self) -> Text:
        draw = self._random()
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

    # ------------------------------------------------------------------------------------------ clauses

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
            english_clause(subject, vp, tense, negation=negation, adverb=adverb[1], mode=mode, bare=bare),
        )

    def tense_for(self, vp: VP) -> str:
        while True:
            tense = self.pick(TENSES)
            if tense == "past" and vp.aspect in ("state", "be") and vp.fr not in PC_STATES:
                continue
            if tense in ("near", "recent") and (vp.aspect in ("state", "be") or vp.en in ("can", "must")):
                continue
            if tense in ("present", "imperfect") and vp.aspect == "event" and vp.fr in ONCE:
                continue
            if tense == "recent" and (vp.no_negation or vp.fr in ("rester",)):
                continue
            return tense

    def statement(
        self, subject: NP, vp: VP, tense: str = "", negate: float = 0.2, time: float = 0.55, front_share: float = 0.35
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
            tense = "past" if vp.aspect != "state" else tense  # a counted object belongs to one occasion
        timed = self.chance(time) and not (vp.steady and tense == "future" and vp.en not in ("can", "must"))
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
                    return self.both(subject, vp, tense, mode="habit", negation=negation, adverb=frequency)
                if vp.aspect == "be":
                    return self.both(subject, vp, tense)
                habit = self.pick(lex.HABITUAL)
                return self.placed(self.both(subject, vp, tense, mode="habit"), habit, front)
            if timed and vp.aspect == "act" and not clocked:
                now = self.pick(lex.NOW)
                return self.placed(self.both(subject, vp, tense, mode="now", negation=negation), now, front)
            return self.both(subject, vp, tense, negation=negation)
        if tense == "past":
            if timed and clocked:
                return self.placed(
                    self.both(subject, vp, tense, negation=negation), self.pick(lex.PAST[:1] + lex.PAST[-3:-1]), front
                )
            if timed and not negation and self.chance(0.12):
                return self.both(subject, vp, tense, mode="perfect", adverb=("déjà", "already"))
            text = self.both(subject, vp, tense, negation=negation)
            if timed:
                return self.placed(text, self.pick(lex.PAST) if negation else self.past_time(), front)
            return text
        if tense == "imperfect":
            if vp.aspect == "event" or (timed and not negation):
                if vp.aspect == "be" or self.chance(0.4):
                    return self.placed(self.both(subject, vp, tense, mode="habit"), self.pick(lex.FORMERLY), front)
                if self.chance(0.3):
                    return self.both(subject, vp, tense, mode="habit", adverb=lex.FREQUENCY[0])
                return self.placed(self.both(subject, vp, tense, mode="habit"), self.pick(lex.HABITUAL), front)
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

    # -------------------------------------------------------------------------------------------- plans

    def plain(self) -> Sentence:
        subject = self.subject()
        return *self.statement(subject, self.action(subject, 0.65), time=0.65), "."

    def infinitive(self) -> Sentence:
        subject = self.subject()
        vp = self.chain(subject)
        if vp.fr in ("pouvoir", "vouloir", "devoir") and self.chance(0.25):
            return *self.both(subject, vp, "conditional"), "."
        return *self.statement(subject, vp), "."

    def description(self) -> Sentence:
        """Subject and adjective, feeling, age or profession."""
        if self.chance(0.6):
            subject = self.subject()
            return *self.statement(subject, self.state(subject), time=0.3), "."
        if self.chance(0.25):
            person = self.person() if self.chance(0.3) else self.pronoun("25") if self.chance(0.4) else self.name()
            if person.plural:
                person = self.name()
            noun = self.pick([n for n in PROFESSIONS if n.feminine == person.feminine])
            return *self.both(
                person, VP("être", "be", "be", noun.fr, "a " + noun.en), "present", negation=self.maybe_not()
            ), "."
        return *self.thing_is(), "."

    def maybe_not(self, probability: float = 0.15) -> str:
        return "pas" if self.chance(probability) else ""

    def thing_is(self) -> Text:
        noun = self.of_kinds(DESCRIBED)
        adjective = self.adjective_for(noun)
        assert adjective is not None
        if noun.kind in ("mass", "drink", "food"):
            subject = self.noun(noun, self.pick("dt"), False, 0.0)
        elif self.chance(0.2) and noun.kind in ("thing", "vehicle", "clothes", "device", "animal", "home"):
            thing = self.noun(noun, "d", False, 0.0)
            owner = self.named_or_kin()
            subject = replace(thing, fr=f"{thing.fr} de {owner.fr}", en=f"{owner.en} 's {noun.en}")
        else:
            determiner = self.pick(
                "ddtp" if noun.kind in ("thing", "vehicle", "clothes", "device", "animal", "home", "room") else "ddt"
            )
            subject = self.noun(noun, determiner, self.chance(0.25), 0.0, self.pronoun("0134"))
        degree = self.pick(
            (("", ""), ("", ""), ("très", "very"), ("trop", "too"), ("assez", "quite"), ("vraiment", "really"))
        )
        if not adjective.comparable:
            degree = ("", "")
        form = subject.agree(adjective.fr)
        vp = VP("être", "be", "be", f"{degree[0]} {form}", f"{degree[1]} {adjective.en}")
        tense = self.pick(("present", "present", "imperfect"))
        return self.both(subject, vp, tense, negation=self.maybe_not() if not degree[0] else "")

    def presentation(self) -> Sentence:
        """C'est un beau jardin; voici ma voiture."""
        if self.chance(0.5):
            noun = self.of_kinds(DESCRIBED_COUNT)
            plural = self.chance(0.2)
            if plural:
                adjective = self.adjective_for(noun)
                thing = self._noun(noun, "de" if adjective and adjective.before else "des", "", True, adjective)
                return f"ce sont {thing.fr}", f"these are {thing.en}", "."
            thing = self.noun(noun, "i", False, 0.85)
            fr = thing.fr.replace("@une", "une").replace("@un", "un")
            negative, tense = self.chance(0.2), self.chance(0.25)
            if tense:
                return (
                    (f"ce ne était pas {fr}", f"it wasn't {thing.en}", ".")
                    if negative
                    else (f"ce était {fr}", f"it was {thing.en}", ".")
                )
            return (
                (f"ce ne est pas {fr}", f"it isn't {thing.en}", ".")
                if negative
                else (f"ce est {fr}", f"it is {thing.en}", ".")
            )
        if self.chance(0.5):
            thing = self.owned()
            head = ("ce sont", "these are") if thing.plural else ("ce est", "it is")
            return *_join(head, (thing.fr, thing.en)), "."
        owner = self.pronoun("01344")
        noun = self.of_kinds(("thing", "vehicle", "clothes", "device", "animal", "room", "home", "text"))
        thing = self.noun(noun, "p", self.chance(0.2), 0.2, owner)
        return f"voici {thing.fr}", f"here {'are' if thing.plural else 'is'} {thing.en}", "."

    def comparison(self) -> Sentence:
        degree_fr, word = self.pick((("plus", "more"), ("plus", "more"), ("moins", "less"), ("aussi", "as")))
        if self.chance(0.3):
            subject = self.subject()
            other = self.name() if self.chance(0.5) else self.kin()
            fr, adverb_en, predicates = self.pick(COMPARED_ADVERBS)
            predicate = self.pick([p for p in lex.SIMPLE if p.fr in predicates and not p.objects and not p.fr_rest])
            vp = self.verb(predicate)
            if fr == "bien":
                forms = {
                    "plus": ("mieux", "better"),
                    "moins": ("moins bien", "less well"),
                    "aussi": ("aussi bien", "as well"),
                }
                fr_adverb, en_adverb = forms[degree_fr]
            elif degree_fr == "plus":
                fr_adverb, en_adverb = (
                    f"plus {fr}",
                    {"fast": "faster", "often": "more often", "slowly": "more slowly"}[adverb_en],
                )
            else:
                fr_adverb, en_adverb = f"{degree_fr} {fr}", f"{word} {adverb_en}"
            than = "as" if degree_fr == "aussi" else "than"
            while other.fr == subject.fr:
                other = self.name()
            vp = vp.plus(f"{fr_adverb} que {other.fr}", f"{en_adverb} {than} {other.en}")
            return *self.both(subject, vp, self.pick(("present", "future")), mode="habit"), "."
        if self.chance(0.5):
            noun = self.of_kinds(COMPARED)
            adjective = self.pick([a for a in ADJECTIVES_BY_KIND[noun.kind] if a.comparable])
            subject = self.noun(
                noun,
                self.pick("td")
                if noun.kind not in ("thing", "vehicle", "clothes", "device", "animal")
                else self.pick("tp"),
                False,
                0.0,
                self.pronoun("0134"),
            )
            if subject.fr.startswith(("ce", "cette")) or noun.kind in ("transport",):
                other_noun = self.pick(lex.NOUNS[noun.kind])
                while other_noun.fr == noun.fr:
                    other_noun = self.pick(lex.NOUNS[noun.kind])
                other = self.noun(other_noun, "d", False, 0.0)
            else:
                owner = self.named_or_kin()
                other = NP(f"celle de {owner.fr}" if noun.feminine else f"celui de {owner.fr}", f"{owner.en} 's")
                if subject.fr.startswith(("LE", "LA")):
                    other = self.noun(noun, "t", False, 0.0)
                    subject = self.noun(
                        self.pick([n for n in lex.NOUNS[noun.kind] if n.fr != noun.fr]), "d", False, 0.0
                    )
        else:
            subject = self.subject()
            adjective = self.pick(COMPARED_PEOPLE)
            other = self.name() if self.chance(0.5) else self.kin()
            while other.fr in subject.fr:
                other = self.name()
        return *self.both(
            subject, self.compared(subject, adjective, degree_fr, other), self.pick(("present", "present", "imperfect"))
        ), "."

    def compared(self, subject: NP, adjective: lex.Adjective, degree: str, other: NP) -> VP:
        form = subject.agree(adjective.fr)
        if degree == "plus":
            if adjective.fr == "bon":
                fr = french.adjective_form("meilleur", subject.feminine, subject.plural)
            else:
                fr = f"plus {form}"
            en = f"{english.comparative(adjective.en)} than"
        elif degree == "moins":
            fr, en = f"moins {form}", f"less {adjective.en} than"
        else:
            fr, en = f"aussi {form}", f"as {adjective.en} as"
        return VP("être", "be", "be", f"{fr} que {other.fr}", f"{en} {other.en}")

    def superlative(self) -> Sentence:
        """C'est le plus beau jardin de la ville; Marie est la plus jeune de la classe."""
        where = self.pick(
            (
                ("LA ville", "in town"),
                ("LE village", "in the village"),
                ("LE monde", "in the world"),
                ("LE pays", "in the country"),
                ("LE quartier", "in the neighborhood"),
            )
        )
        least = self.chance(0.2)
        if self.chance(0.35):
            subject = self.subject()
            adjective = self.pick(COMPARED_PEOPLE)
            group = self.pick(
                (
                    ("LA classe", "in the class"),
                    ("LA famille", "in the family"),
                    ("LE groupe", "in the group"),
                    ("LE village", "in the village"),
                )
            )
            article = "LES" if subject.plural else "LA" if subject.feminine else "LE"
            fr = f"{article} {'moins' if least else 'plus'} {subject.agree(adjective.fr)} de {group[0]}"
            en = f"the {'least ' + adjective.en if least else english.superlative(adjective.en)} {group[1]}"
            return *self.both(
                subject, VP("être", "be", "be", fr, en), self.pick(("present", "present", "imperfect"))
            ), "."
        noun = self.of_kinds(("building", "area", "home", "nature"))
        if noun.kind == "nature" or noun.fr in ("ville", "village", "quartier", "île"):
            where = self.pick((("LE monde", "in the world"), ("LE pays", "in the country")))
        if self.chance(0.25):
            noun = self.pick(
                [
                    n
                    for n in lex.NOUNS["building"]
                    if n.fr
                    in ("restaurant", "hôtel", "boulangerie", "école", "cinéma", "pharmacie", "magasin", "musée")
                ]
            )
            fr = french.adjective_form("meilleur", noun.feminine, False)
            head = (f"{'LA' if noun.feminine else 'LE'} {fr} {noun.fr}", f"the best {noun.en}")
        else:
            adjective = self.pick(
                [a for a in ADJECTIVES_BY_KIND[noun.kind] if a.comparable and a.fr not in ("bon", "mauvais")]
            )
            article = "LA" if noun.feminine else "LE"
            degree = "moins" if least else "plus"
            form = french.adjective_form(adjective.fr, noun.feminine, False, adjective.before)
            en_form = f"least {adjective.en}" if least else english.superlative(adjective.en)
            if adjective.before:
                head = (f"{article} {degree} {form} {noun.fr}", f"the {en_form} {noun.en}")
            else:
                head = (f"{article} {noun.fr} {article.lower()} {degree} {form}", f"the {en_form} {noun.en}")
        if self.chance(0.6):
            return f"ce est {head[0]} de {where[0]}", f"it is {head[1]} {where[1]}", "."
        subject = self.subject()
        vp = (
            VP("visiter", "visit", "act", f"{head[0]} de {where[0]}", f"{head[1]} {where[1]}")
            if noun.kind in ("building", "area")
            else VP("voir", "see", "state", f"{head[0]} de {where[0]}", f"{head[1]} {where[1]}")
        )
        return *self.both(subject, vp, self.pick(("past", "future", "near"))), "."

    def existence(self) -> Sentence:
        """il y a, with its negation, its tenses and a place."""
        position_fr, position_en, grounds, kinds = self.pick(lex.POSITIONS)
        ground = self.noun(self.of_kinds(grounds.split()), self.pick("dt"), False, 0.15)
        where = (f"{position_fr} {ground.fr}", f"{position_en} {ground.en}")
        noun = self.of_kinds(kinds.split())
        while noun.fr in ground.fr.split():
            noun = self.of_kinds(kinds.split())
        draw = self._random()
        tense = self.pick(("present", "present", "present", "imperfect", "future"))
        verb_fr = {"present": "il y a", "imperfect": "il y avait", "future": "il y aura"}[tense]
        if draw < 0.45:
            thing = self.noun(noun, "i", False, 0.25)
            plural = False
            phrase = (thing.fr.replace("@une", "une").replace("@un", "un"), thing.en)
        elif draw < 0.75:
            count = 2 + int(self._random() * 11)
            plural = True
            phrase = (f"{french.number(count)} {noun.fr_plural}", f"{english.number(count)} {noun.en_plural}")
        elif draw < 0.88:
            amount_fr, amount_en = self.pick(
                (
                    ("beaucoup de", "a lot of"),
                    ("trop de", "too many"),
                    ("quelques", "a few"),
                    ("plusieurs", "several"),
                    ("des", "some"),
                    ("assez de", "enough"),
                )
            )
            plural = True
            phrase = (f"{amount_fr} {noun.fr_plural}", f"{amount_en} {noun.en_plural}")
        else:
            verb_fr = verb_fr.replace("y", "ne y") + " pas"
            singular = self.chance(0.5)
            phrase = (
                f"de {noun.fr if singular else noun.fr_plural}",
                f"a {noun.en}" if singular else f"any {noun.en_plural}",
            )
            be = {
                "present": ("isn't", "aren't"),
                "imperfect": ("wasn't", "weren't"),
                "future": ("won't be", "won't be"),
            }[tense][not singular]
            return f"{verb_fr} {phrase[0]} {where[0]}", f"there {be} {phrase[1]} {where[1]}", "."
        be = {"present": ("is", "are"), "imperfect": ("was", "were"), "future": ("will be", "will be")}[tense][plural]
        if tense == "present" and self.chance(0.15):
            return f"est-ce que {verb_fr} {phrase[0]} {where[0]}", f"{be} there {phrase[1]} {where[1]}", "?"
        return f"{verb_fr} {phrase[0]} {where[0]}", f"there {be} {phrase[1]} {where[1]}", "."

    def location(self) -> Sentence:
        """Where a thing is; also put somewhere."""
        position_fr, position_en, grounds, kinds = self.pick(lex.POSITIONS)
        base = self.of_kinds(grounds.split())
        ground = self.noun(base, self.pick("ddt"), False, 0.15)
        kind = self.pick(kinds.split())
        where = (f"{position_fr} {ground.fr}", f"{position_en} {ground.en}")
        if kind in ("thing", "text", "clothes", "dish") and self.chance(0.4):
            subject = self.subject()
            thing = self.noun(self.of_kinds((kind,)), self.pick("dp"), False, 0.15, subject)
            vp = VP("mettre", "put", "act", f"{thing.fr} {where[0]}", f"{thing.en} {where[1]}")
            return *self.both(subject, vp, self.pick(("past", "past", "future", "near"))), "."
        noun = self.of_kinds((kind,))
        while noun.fr == base.fr:
            noun = self.of_kinds((kind,))
        personal = kind in ("thing", "text", "clothes", "dish", "vehicle", "pet", "device")
        thing = self.noun(noun, self.pick("ddtp" if personal else "ddt"), self.chance(0.2), 0.15, self.pronoun("0134"))
        if kind == "pet" and self.chance(0.5):
            vp = VP("dormir", "sleep", "act", *where)
        elif kind == "public" and self.chance(0.5):
            vp = VP("attendre", "wait", "act", *where)
        else:
            vp = VP("être", "be", "be", *where)
        return *self.both(
            thing,
            vp,
            self.pick(("present", "present", "imperfect")),
            negation=self.maybe_not() if vp.en == "be" else "",
        ), "."

    def time(self) -> Sentence:
        draw = self._random()
        if draw < 0.3:
            fr, en = self.hour()
            if self.chance(0.25):
                return f"il était {fr}", f"it was {en}", "."
            return f"il est {fr}", f"it is {en}", "."
        if draw < 0.45:
            fr, en = self.date()
            if self.chance(0.4):
                day_fr, day_en = self.pick(lex.DAYS)
                return f"nous sommes LE {day_fr} {fr}", f"today is {day_en} , {en}", "."
            return f"nous sommes LE {fr}", f"today is {en}", "."
        if draw < 0.7:
            fr, en = self.clock()
            subject = self.thing("transport", "dt", 0.0)
            subject = subject if not subject.plural else self.noun(self.pick(lex.NOUNS["transport"]), "d", False, 0.0)
            verb = self.pick((("partir", "leave"), ("arriver", "arrive")))
            if self.chance(0.25):
                subject = self.noun(
                    self.pick(
                        [
                            n
                            for n in lex.NOUNS["building"]
                            if n.fr not in ("école", "hôpital", "hôtel", "église", "château", "aéroport", "gare")
                        ]
                    ),
                    "d",
                    False,
                    0.0,
                )
                verb = self.pick((("ouvrir", "open"), ("fermer", "close")))
            vp = VP(*verb, "state", fr, en)  # timetables: simple present
            return *self.placed(
                self.both(subject, vp, "present"), self.pick((("", ""), *lex.HABITUAL[3:7])), False
            ), "."
        subject = self.subject()
        fr, en = self.date()
        if draw < 0.8:
            subject = self.thing("show study", "t", 0.0)
            noun = self.pick((("LE anniversaire", "birthday"), ("LA fête", "party"), ("LE mariage", "wedding")))
            owner = self.named_or_kin()
            return f"{noun[0]} de {owner.fr} est LE {fr}", f"{owner.en} 's {noun[1]} is on {en}", "."
        vp = self.with_object(
            self.pick([p for p in lex.SIMPLE if p.fr in ("arriver", "partir", "revenir", "marier")]), subject
        )
        return *self.placed(
            self.both(subject, vp, self.pick(("past", "future", "near"))), (f"LE {fr}", f"on {en}"), False
        ), "."

    def weather_text(self, tense: str, mode: str = "") -> Text:
        fr, rest, en, en_rest = self.pick(lex.WEATHER)
        subject = NP("il", "it", 2, pronoun=True)
        return self.both(
            subject,
            VP(fr, en, "be" if en == "be" else "act", rest, en_rest),
            tense,
            mode=mode,
            negation=self.maybe_not() if mode != "habit" else "",
        )

    def weather(self) -> Sentence:
        draw = self._random()
        if draw < 0.35:
            time = self.pick(lex.FUTURE)
            return *self.placed(self.weather_text(self.pick(("future", "near"))), time, self.chance(0.4)), "."
        if draw < 0.6:
            time = self.pick((*lex.PAST, self.ago()))
            return *self.placed(self.weather_text("past"), time, self.chance(0.4)), "."
        place = self.pick(lex.CITIES)
        where = (place.fr, place.at)
        if draw < 0.8:
            adverb = self.pick(lex.FREQUENCY)
            fr, rest, en, en_rest = self.pick(lex.WEATHER)
            vp = VP(fr, en, "be" if en == "be" else "act", f"{rest} {where[0]}", f"{en_rest} {where[1]}")
            return *self.both(NP("il", "it", pronoun=True), vp, "present", mode="habit", adverb=adverb), "."
        return *self.placed(
            self.weather_text("present"), self.pick((where, lex.NOW[0], lex.NOW[1], ("aujourd'hui", "today"))), False
        ), "."

    # ------------------------------------------------------------------------------------- object pronouns

    def pronominal(self, subject: NP, antecedent: NP | None = None) -> VP:
        """A verb whose object is a pronoun. Without an antecedent only pronouns with one meaning are used."""
        draw = self._random()
        if draw < 0.35:
            predicate = self.pick([p for p in lex.THINGS if p.aspect != "state" and set(p.determiners) & set("dipt")])
            noun = self.of_kinds(predicate.objects)
            plural = self.chance(0.3)
            clitic = "les" if plural else "la" if noun.feminine else "le"
            return self.cliticized(predicate, clitic, "them" if plural else "it", (noun.feminine, plural))
        if draw < 0.7:
            predicate = self.pick(lex.PERSONS)
            if self.chance(0.5):
                fr, en = self.object_pronoun(subject, third=False)
                return self.cliticized(predicate, fr, en, (self.chance(0.5), fr in ("nous", "vous")))
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

    def cliticized(self, predicate: lex.Predicate, clitic: str, en: str, agreement: tuple[bool, bool] | None) -> VP:
        vp = self.verb(predicate)
        particle = vp.en_obj
        # put it on, throw it away; but look for it, listen to it
        en_obj = f"{en} {particle}" if particle in ("on", "away") else f"{particle} {en}"
        return replace(vp, clitics=(clitic,), en_obj=en_obj, preceding=agreement, extras="")

    def clitic(self) -> Sentence:
        subject = self.subject()
        vp = self.pronominal(subject)
        if self.chance(0.3):
            fr, link, en, en_link, aspect, _ = self.pick(CHAINS[:8])
            if vp.aspect == "act":
                vp = self.chained(fr, link, en, en_link, aspect, vp)
        return *self.statement(subject, vp, time=0.4), "."

    def adverbial_pronoun(self) -> Sentence:
        """y and en."""
        subject = self.subject()
        if self.chance(0.4):
            fr, en, rest = self.pick(
                (
                    ("aller", "go", ""),
                    ("aller", "go", ""),
                    ("rester", "stay", ""),
                    ("habiter", "live", ""),
                    ("travailler", "work", ""),
                    ("étudier", "study", ""),
                )
            )
            if fr != "habiter" and self.chance(0.4):
                rest_fr, rest_en = self.company(subject)
            else:
                rest_fr, rest_en = "", rest
            vp = VP(fr, en, "state" if fr == "habiter" else "act", rest_fr, f"there {rest_en}", clitics=("y",))
            return *self.statement(subject, vp, time=0.6), "."
        if self.chance(0.5):
            fr, en, aspect = self.pick(
                (
                    ("vouloir", "want", "state"),
                    ("avoir", "have", "state"),
                    ("manger", "eat", "act"),
                    ("boire", "drink", "act"),
                    ("acheter", "buy", "act"),
                )
            )
            vp = VP(fr, en, aspect, "", "@some", clitics=("en",))
            tense = (
                self.pick(("present", "past", "future", "near", "past"))
                if aspect == "act"
                else self.pick(("present", "imperfect"))
            )
            if tense == "present" and aspect == "act":
                tense = "near"
            negation = (
                self.pick(("", "pas", "pas", "plus")) if tense in ("present", "imperfect") else self.maybe_not(0.4)
            )
            time = ("", "")
            if tense in ("past", "future", "near"):
                time = self.pick(lex.PAST[:4]) if tense == "past" else self.pick(lex.FUTURE[:5])
            return *self.placed(self.both(subject, vp, tense, negation=negation), time, False), "."
        fr, en, aspect = self.pick(
            (
                ("vouloir", "want", "state"),
                ("avoir", "have", "state"),
                ("manger", "eat", "act"),
                ("acheter", "buy", "act"),
                ("vendre", "sell", "act"),
                ("voir", "see", "state"),
            )
        )
        count = 2 + int(self._random() * 9)
        vp = VP(fr, en, aspect, french.number(count), f"{english.number(count)} of them", clitics=("en",))
        tense = (
            self.pick(("past", "future", "near"))
            if aspect == "act" or fr == "voir"
            else self.pick(("present", "imperfect"))
        )
        return *self.both(subject, vp, tense), "."

    def antecedent(self) -> Sentence:
        """Two clauses, the second with pronouns for what the first named: Marie est malade, donc je lui téléphone."""
        person = self.named_or_kin()
        subject = self.pronoun("0134")
        him = "her" if person.feminine else "him"
        if person.fr.startswith(("notre", "votre", "ton", "ta")):
            subject = self.pronoun(
                "03" if person.fr.startswith("notre") else "14" if person.fr.startswith("votre") else "11"
            )
        elif person.fr.startswith(("mon", "ma")) and person.fr.split()[0] in ("mon", "ma", "ma|mon"):
            subject = self.pronoun("0")
        draw = self._random()
        if draw < 0.5:
            first = self.both(person, self.pick(self.person_news(person)), "present")
            if self.chance(0.5):
                vp = self.cliticized(
                    self.pick([p for p in lex.DATIVES if p.fr in ("téléphoner", "parler", "écrire", "répondre")]),
                    "lui",
                    him,
                    None,
                )
            else:
                vp = self.cliticized(
                    self.pick([p for p in lex.PERSONS if p.fr in ("aider", "attendre", "appeler", "inviter", "voir")]),
                    "la" if person.feminine else "le",
                    him,
                    (person.feminine, False),
                )
            tense = self.pick(("future", "near"))
            second = self.placed(self.both(subject, vp, tense), self.pick((("", ""), *lex.FUTURE)), False)
            link = self.pick((("et", ", and"), ("donc", ", so"), ("mais", ", but")))
            return *self.linked(first, link, second), "."
        predicate = self.pick([p for p in lex.GIVING if p.fr != "prêter"])
        noun = self.of_kinds(predicate.objects)
        thing = self.noun(noun, self.pick("dt"), False, 0.15)
        first = self.both(person, VP("vouloir", "want", "state", thing.fr, thing.en), "present")
        vp = self.cliticized(predicate, "la" if noun.feminine else "le", "it", (noun.feminine, False))
        vp = replace(vp, clitics=(vp.clitics[0], "lui"), en_obj=f"it to {him}")
        tense = self.pick(("future", "near", "past"))
        link = ("donc", ", so") if tense != "past" else ("mais", ", but")
        if tense == "past":
            second = self.both(subject, vp, tense, negation=self.pick(("pas", "pas encore")))
        else:
            second = self.placed(self.both(subject, vp, tense), self.pick((("", ""), *lex.FUTURE)), False)
        return *self.linked(first, link, second), "."

    def person_news(self, person: NP) -> list[VP]:
        adjective = [
            VP("être", "be", "be", person.agree(fr), en)
            for fr, en in (
                ("malade", "sick"),
                ("triste", "sad"),
                ("seul", "alone"),
                ("occupé", "busy"),
                ("fatigué", "tired"),
            )
        ]
        place = self.pick(lex.PLACES)
        city = self.pick(lex.CITIES)
        return [
            *adjective,
            VP("être", "be", "be", place.fr, place.at),
            VP("habiter", "live", "state", city.fr, city.at),
        ]

    @staticmethod
    def linked(first: Text, link: Text, second: Text) -> Text:
        comma = " ," if link[0] in ("mais", "donc", "puis") else ""
        return f"{first[0]}{comma} {link[0]} {second[0]}", f"{first[1]} {link[1]} {second[1]}"

    # --------------------------------------------------------------------------------------------- questions

    def question_tense(self, vp: VP, subject: NP) -> str:
        if vp.aspect in ("state", "be") and vp.fr not in PC_STATES:
            return self.pick(("present", "present", "present", "imperfect", "future"))
        if vp.aspect == "event":
            return self.pick(("past", "past", "future"))
        if subject.person in (0, 3):
            return self.pick(("past", "past", "future", "near"))
        return self.pick(("present", "present", "past", "past", "future", "near"))

    def asked(
        self, subject: NP, vp: VP, tense: str, head: Text = ("", ""), inverted: bool | None = None, mode: str = ""
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

    def yes_no(self) -> Sentence:
        subject = self.asked_subject()
        draw = self._random()
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
        draw = self._random()
        if draw < 0.25:
            if self.chance(0.4):
                vp = VP("aller", "go", "act")
                return self.asked(subject, vp, self.pick(("present", "past", "near")), ("où", "where"), mode="now")
            vp = self.with_object(
                self.pick(
                    [
                        p
                        for p in lex.SIMPLE
                        if p.fr
                        in ("travailler", "habiter", "étudier", "déjeuner", "dîner", "marier", "dormir", "attendre")
                        and not p.fr_rest
                    ]
                ),
                subject,
            )
            if self.chance(0.3):
                vp = self.with_object(
                    self.pick(
                        [
                            p
                            for p in lex.THINGS
                            if p.fr in ("acheter", "trouver", "perdre", "mettre", "cacher")
                            and "g" not in p.determiners
                            and "a" not in p.determiners
                        ]
                    ),
                    subject,
                )
                while "@" in vp.fr_obj or vp.no_negation:
                    vp = self.with_object(
                        self.pick(
                            [
                                p
                                for p in lex.THINGS
                                if p.fr in ("trouver", "acheter", "perdre", "mettre", "cacher")
                                and "a" not in p.determiners
                            ]
                        ),
                        subject,
                    )
                vp = vp if vp.fr != "mettre" else VP("mettre", "put", "act", vp.fr_obj, vp.en_obj.removeprefix("on "))
                return self.asked(subject, vp, "past", ("où", "where"))
            return self.asked(subject, vp, self.question_tense(vp, subject), ("où", "where"))
        if draw < 0.42:
            vp = self.with_object(
                self.pick([p for p in lex.SIMPLE if p.fr in ("arriver", "partir", "revenir", "marier", "rentrer")]),
                subject,
            )
            if self.chance(0.4):
                vp = self.action(subject, 0.0)
                while vp.aspect != "act" or vp.no_negation:
                    vp = self.action(subject, 0.0)
            head = ("quand", "when") if self.chance(0.6) else ("à quelle heure", "what time")
            return self.asked(
                subject, vp, self.pick(("past", "future", "near")) if vp.aspect == "act" else "past", head
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
        draw = self._random()
        if draw < 0.25:
            thing = self.noun(
                self.of_kinds(("thing", "clothes", "vehicle", "furniture", "text", "dish", "device")),
                "t",
                self.chance(0.2),
                0.2,
            )
            vp = VP("coûter", "cost", "state")
            pronoun = thing
            fr = f"combien {french.conjugate('coûter', 'present', pronoun.person)} {thing.fr}"
            return fr, f"how much {english_clause(thing, vp, 'present', question=True)}", "?"
        if draw < 0.4:
            return self.asked(subject, VP("avoir", "be", "be"), "present", ("quel âge", "how old"), True)
        predicate = self.pick(
            [
                p
                for p in lex.THINGS
                if p.fr in ("manger", "acheter", "lire", "avoir", "vendre", "écrire")
                and "a" not in p.determiners.replace("ian", "in")
            ]
        )
        noun = self.of_kinds(predicate.objects)
        vp = replace(self.verb(predicate), preceding=(noun.feminine, True))
        tense = self.pick(("past", "past", "future")) if vp.aspect == "act" else "present"
        return self.asked(subject, vp, tense, (f"combien de {noun.fr_plural}", f"how many {noun.en_plural}"), True)

    def what(self, subject: NP) -> Sentence:
        if self.chance(0.5):
            fr, en = self.pick(
                (
                    ("manger", "eat"),
                    ("boire", "drink"),
                    ("faire", "do"),
                    ("lire", "read"),
                    ("regarder", "watch"),
                    ("acheter", "buy"),
                    ("chercher", "look for"),
                    ("préparer", "prepare"),
                    ("écouter", "listen to"),
                )
            )
            verb, _, rest = en.partition(" ")
            vp = VP(fr, verb, "act", "", rest)
            tense = self.pick(("present", "past", "past", "near", "future"))
            if subject.pronoun and subject.person != 0 and self.chance(0.5):
                return (
                    f"que {french_clause(subject, vp, tense, invert=True)}",
                    f"what {english_clause(subject, vp, tense, question=True, mode='now')}",
                    "?",
                )
            return (
                f"que est-ce que {french_clause(subject, vp, tense)}",
                f"what {english_clause(subject, vp, tense, question=True, mode='now')}",
                "?",
            )
        predicate = self.pick(
            [
                p
                for p in lex.THINGS
                if p.fr in ("lire", "acheter", "regarder", "choisir", "porter", "écouter", "apprendre", "visiter")
                and not set(p.determiners) & set("ag")
            ]
        )
        noun = self.of_kinds(predicate.objects)
        plural = self.chance(0.2)
        which = french.adjective_form("quel", noun.feminine, plural)
        vp = replace(self.verb(predicate), preceding=(noun.feminine, plural))
        tense = self.pick(("past", "past", "future", "near"))
        return self.asked(
            subject,
            vp,
            tense,
            (
                f"{which} {noun.fr_plural if plural else noun.fr}",
                f"which {noun.en_plural if plural else noun.en}",
            ),
        )

    def who(self) -> Sentence:
        if self.chance(0.7):
            subject = NP("qui", "who", 2, possessive="his")
            vp = self.action(subject, 0.4)
            while " son " in f" {vp.fr_obj} " or "his" in vp.en_obj or "POSS" in vp.en_obj or vp.no_negation:
                vp = self.action(subject, 0.4)
            return *self.both(subject, vp, self.question_tense(vp, subject)), "?"
        subject = self.asked_subject()
        predicate = self.pick([p for p in lex.PERSONS if p.aspect != "event" or p.fr == "rencontrer"])
        return self.asked(
            subject, self.verb(predicate), "past" if predicate.fr != "connaître" else "present", ("qui", "who")
        )

    # ---------------------------------------------------------------------------------------- subordination

    def relative(self) -> NP:
        """A noun phrase with a relative clause: qui, que, où, dont."""
        draw = self._random()
        plural = self.chance(0.2)
        speaker = self.pronoun() if self.chance(0.7) else self.named_or_kin()
        if draw < 0.3:
            noun = self.pick(lex.NOUNS["public"])
            head = self._noun(noun, DETERMINERS["d"][2 if plural else int(noun.feminine)], "the", plural)
            vp = self.action(head, 0.6)
            while vp.aspect == "event" or vp.no_negation:
                vp = self.action(head, 0.6)
            tense = self.pick(("present", "present", "past", "imperfect"))
            if tense == "past" and vp.aspect == "state":
                tense = "present"
            text = self.both(head, vp, tense, bare=True)
            return self.extended(head, ("qui", "who"), text)
        if draw < 0.4:
            position_fr, position_en, grounds, _ = self.pick(lex.POSITIONS[:2])
            ground = self.noun(self.of_kinds(grounds.split()), "d", False, 0.0)
            noun = self.of_kinds(("thing", "dish", "text"))
            head = self.noun(noun, "d", plural, 0.15)
            vp = VP("être", "be", "be", f"{position_fr} {ground.fr}", f"{position_en} {ground.en}")
            return self.extended(
                head, ("qui", "that"), self.both(head, vp, self.pick(("present", "imperfect")), bare=True)
            )
        if draw < 0.68:
            predicate = self.pick(
                [
                    p
                    for p in lex.THINGS
                    if p.aspect != "state"
                    and p.fr not in ("couper", "traverser")
                    and "d" in p.determiners + p.determiners.replace("i", "d")
                    and not set(p.determiners) & set("ga")
                ]
            )
            if speaker.person == 2 and predicate.determiners == "p":
                speaker = self.pronoun("0134")
            noun = self.of_kinds(predicate.objects)
            head = self.noun(noun, "d", plural, 0.15)
            vp = replace(self.verb(predicate), preceding=(head.feminine, plural))
            if predicate.en_rest in ("on", "away"):
                vp = replace(vp, en_obj=predicate.en_rest)
            return self.extended(
                head,
                ("que", "that"),
                self.placed(self.both(speaker, vp, "past"), self.pick((("", ""), ("", ""), *lex.PAST[:5])), False),
            )
        if draw < 0.78:
            noun = self.pick(lex.NOUNS["public"])
            head = self._noun(noun, DETERMINERS["d"][2 if plural else int(noun.feminine)], "the", plural)
            predicate = self.pick(lex.PERSONS[:2] + lex.PERSONS[3:9])
            while predicate.fr in ("embrasser", "connaître"):
                predicate = self.pick(lex.PERSONS[:2] + lex.PERSONS[3:9])
            vp = replace(self.verb(predicate), preceding=(head.feminine, plural))
            return self.extended(
                head,
                ("que", "that"),
                self.placed(self.both(speaker, vp, "past"), self.pick((("", ""), *lex.PAST[:5])), False),
            )
        if draw < 0.9:
            noun = self.pick(
                lex.NOUNS["town"]
                + tuple(
                    n
                    for n in lex.NOUNS["building"]
                    if n.fr in ("restaurant", "hôtel", "école", "bibliothèque", "magasin", "usine", "université")
                )
            )
            head = self.noun(noun, "d", False, 0.15)
            if noun.kind == "area":
                vp = VP("habiter", "live", "state")
            elif noun.fr in ("restaurant", "hôtel"):
                vp = VP("dîner", "have", "act", "", "dinner")
            elif noun.fr in ("école", "université", "bibliothèque"):
                vp = VP("étudier", "study", "act")
            else:
                vp = VP("travailler", "work", "act")
            tense = "past" if vp.fr == "dîner" else self.pick(("present", "imperfect"))
            return self.extended(head, ("où", "where"), self.both(speaker, vp, tense, mode="habit"))
        noun = self.of_kinds(("text", "show", "thing", "device"))
        head = self.noun(noun, "d", plural, 0.15)
        if noun.kind in ("text", "show"):
            vp = VP("parler", "talk", "act", "", "about")
            tense = self.pick(("present", "imperfect", "past"))
        else:
            vp = VP("avoir", "need", "state", "besoin")
            tense = self.pick(("present", "imperfect", "future"))
        return self.extended(head, ("dont", "that"), self.both(speaker, vp, tense))

    @staticmethod
    def extended(head: NP, link: Text, clause: Text) -> NP:
        return replace(head, fr=f"{head.fr} {link[0]} {clause[0]}", en=f"{head.en} {link[1]} {clause[1]}")

    def relative_sentence(self) -> Sentence:
        phrase = self.relative()
        person = " who " in phrase.en
        draw = self._random()
        if draw < 0.3:
            fr, en = ("ce sont", "these are") if phrase.plural else ("ce est", "this is")
            return f"{fr} {phrase.fr}", f"{en} {phrase.en}", "."
        if draw < 0.45:
            return f"voici {phrase.fr}", f"here {'are' if phrase.plural else 'is'} {phrase.en}", "."
        if draw < 0.75:
            subject = self.pronoun("0134") if self.chance(0.6) else self.name()
            fr, en = ("connaître", "know") if person or " où " in phrase.fr else ("chercher", "look")
            if en == "look":
                vp = VP(fr, en, "act", phrase.fr, "for " + phrase.en)
            else:
                vp = VP(fr, en, "state", phrase.fr, phrase.en)
            return *self.both(subject, vp, "present", negation=self.maybe_not(0.3) if en == "know" else ""), "."
        adjective = self.pick((("formidable", "wonderful"), ("bizarre", "odd"), ("important", "important")))
        if person:
            adjective = self.pick(PERSON_WORDS)
        vp = VP("être", "be", "be", phrase.agree(adjective[0]), adjective[1])
        return *self.both(phrase, vp, self.pick(("present", "imperfect"))), "."

    def cause(self, subject: NP) -> tuple[VP | None, list[tuple[VP, str]], str]:
        """A state of affairs and what it leads to: (state, [(action, negation)], weather as "fr/en")."""
        causes = self.pick(lex.CAUSES)
        state_fr, state_en, consequences = causes
        verb, _, rest = state_fr.partition(" ")
        en_verb, _, en_rest = state_en.partition(" ")
        if verb == "être" and rest != "en retard":
            rest = subject.agree(rest)
        listed = [(self.built(text, subject), negation) for text, negation in consequences]
        if state_fr.startswith("il "):
            fr, _, rest_fr = state_fr.removeprefix("il ").partition(" ")
            return None, listed, f"{fr}/{rest_fr}/{en_verb}/{en_rest}"
        return VP(verb, en_verb, "be" if en_verb == "be" else "state", rest, en_rest), listed, ""

    def built(self, text: Text, subject: NP) -> VP:
        fr, en = text
        verb, _, rest = fr.partition(" ")
        reflexive = verb == "se"
        if reflexive:
            verb, _, rest = rest.partition(" ")
        if "POSS_" in rest:
            owner = POSSESSIVES[subject.person]
            if subject.person in (3, 5):  # nous mettons nos manteaux
                rest = f"{owner[2]} {french.plural(rest.partition(' ')[2])}"
                en = english.plural(en)
            rest = rest.replace("POSS_M", owner[0]).replace("POSS_F", owner[1])
        en_verb, _, en_rest = en.partition(" ")
        return VP(verb, en_verb, "act", rest, en_rest, reflexive=reflexive)

    def causal(self) -> Sentence:
        """parce que, donc, quand, si: a cause and its effect."""
        person = self.subject()
        again = person.pro()
        state, consequences, weather = self.cause(person)
        action, negation = self.pick(consequences)
        if state is None:
            fr, rest, en, en_rest = weather.split("/")
            cause_subject, again_for_cause = NP("il", "it", pronoun=True), NP("il", "it", pronoun=True)
            state = VP(fr, en, "be" if en == "be" else "act", rest, en_rest)
            first, second = cause_subject, person
        else:
            first, second = person, again
            again_for_cause = again
        draw = self._random()
        if draw < 0.3:  # effect parce que cause
            if self.chance(0.6):
                effect = self.both(person, action, "past", negation=negation)
                cause = self.both(again_for_cause, state, "imperfect")
            else:
                effect = self.both(person, action, self.pick(("present", "near")), negation=negation)
                cause = self.both(again_for_cause, state, "present")
            return *_join(effect, ("parce que", "because"), cause), "."
        if draw < 0.55:  # cause, donc effect
            if self.chance(0.5):
                cause = self.both(first, state, "imperfect")
                effect = self.both(second, action, "past", negation=negation)
            else:
                cause = self.both(first, state, "present")
                effect = self.both(second, action, self.pick(("near", "future")), negation=negation)
            return *self.linked(cause, ("donc", ", so"), effect), "."
        if draw < 0.75:  # si + present, future
            cause = self.both(first, state, "present", mode="habit")
            effect = self.both(second, action, "future", negation=negation)
            return f"si {cause[0]} , {effect[0]}", f"if {cause[1]} , {effect[1]}", "."
        if draw < 0.87:  # si + imparfait, conditionnel
            cause = self.both(first, state, "imperfect", mode="" if state.aspect == "be" else "habit")
            cause = (
                cause[0],
                cause[1].replace("used to", "").replace("rain", "rained").replace("snow", "snowed")
                if state.aspect == "act"
                else cause[1],
            )
            effect = self.both(second, action, "conditional", negation=negation)
            return f"si {cause[0]} , {effect[0]}", f"if {cause[1]} , {effect[1]}", "."
        cause = self.both(first, state, "present", mode="habit")
        effect = self.both(second, action, "present", mode="habit", negation=negation)
        if self.chance(0.5):
            return f"quand {cause[0]} , {effect[0]}", f"when {cause[1]} , {effect[1]}", "."
        cause = self.both(again_for_cause, state, "present", mode="habit")
        effect = self.both(person, action, "present", mode="habit", negation=negation)
        return *_join(effect, ("quand", "when"), cause), "."

    def other_subject(self, first: NP) -> NP:
        while True:
            second = self.subject()
            if (
                second.fr != first.fr
                and second.en != first.en
                and second.fr not in first.fr
                and first.fr not in second.fr
                and not (second.person in (2, 5) and second.pronoun)
            ):
                return second

    def temporal(self) -> Sentence:
        """pendant que, quand with the imparfait, avant de, sans, pour."""
        subject = self.subject()
        other = self.other_subject(subject)
        draw = self._random()
        if draw < 0.3:
            tense = self.pick(("present", "imperfect"))
            one, two = self.lively(subject, 0.3), self.lively(other, 0.3)
            while one.fr == two.fr:
                two = self.lively(other, 0.3)
            first, second = self.both(subject, one, tense), self.both(other, two, tense)
            if self.chance(0.3):
                return f"pendant que {first[0]} , {second[0]}", f"while {first[1]} , {second[1]}", "."
            return *_join(first, ("pendant que", "while"), second), "."
        if draw < 0.55:
            vp = self.lively(subject, 0.3)
            happening = self.pick(HAPPENINGS)
            if happening is None:
                fr, en = self.pick(
                    (
                        ("arriver", "arrive"),
                        ("rentrer", "go home"),
                        ("appeler", "call"),
                        ("entrer dans LE salon", "go into the living room"),
                    )
                )
                verb, _, rest = fr.partition(" ")
                en_verb, _, en_rest = en.partition(" ")
                clause = VP(verb, en_verb, "act", rest, en_rest)
                if verb == "appeler":
                    if subject.person != 0 or other.person in (0, 3):
                        clause = VP("arriver", "arrive", "act")
                    else:
                        clause = VP("appeler", "call", "act", "", "me", clitics=("me",), preceding=(False, False))
                event = self.both(other, clause, "past")
            else:
                event = happening
            background = self.both(subject, vp, "imperfect")
            if self.chance(0.5):
                return f"quand {event[0]} , {background[0]}", f"when {event[1]} , {background[1]}", "."
            return *_join(background, ("quand", "when"), event), "."
        if draw < 0.67:
            subject = self.pronoun() if self.chance(0.6) else self.name()
            fr, en = (
                (subject.agree("petit"), "little")
                if subject.person != 4 and self.chance(0.6)
                else (subject.agree("jeune"), "young")
            )
            first = self.both(subject, VP("être", "be", "be", fr, en), "imperfect")
            again = subject.pro()
            pastime = self.with_object(self.pick(INNER["childhood"]), again) if self.chance(0.75) else self.going()
            second = self.both(again, self.adjoin(pastime, again, 0.3), "imperfect", mode="habit")
            if self.chance(0.4):
                second = self.placed(second, self.pick(lex.HABITUAL), False) if pastime.aspect == "act" else second
            return f"quand {first[0]} , {second[0]}", f"when {first[1]} , {second[1]}", "."
        one, two = self.lively(subject, 0.3), self.with_object(self.pick(INNER["before"]), subject)
        while one.fr == two.fr:
            one = self.lively(subject, 0.3)
        fr, en = self.pick((("avant de", "before"), ("avant de", "before"), ("sans", "without")))
        if fr == "sans":
            two = self.built(self.pick(SILENT), subject)
        tense = self.pick(("past", "past", "future", "near"))
        vp = one.plus(f"{fr} {two.infinitive()}", f"{en} {two.gerund()}".replace("@some", ""))
        return *self.both(subject, vp, tense), "."

    def reported(self) -> Sentence:
        """that-clauses and indirect questions."""
        subject = self.pronoun() if self.chance(0.6) else self.named_or_kin()
        other = self.other_subject(subject)
        fr, en = self.pick(
            (
                ("savoir", "know"),
                ("penser", "think"),
                ("croire", "believe"),
                ("dire", "say"),
                ("espérer", "hope"),
                ("sûr", "sure"),
            )
        )
        draw = self._random()
        if draw < 0.25:
            vp = VP("savoir", "know", "state")
            word = self.pick((("où", "where"), ("pourquoi", "why"), ("quand", "when"), ("si", "if")))
            if word[0] == "où":
                whereabouts = (
                    VP("habiter", "live", "state"),
                    VP("travailler", "work", "state"),  # where one works as a rule: simple present
                    VP("être", "be", "be"),
                    VP("aller", "go", "act"),
                )
                inner = self.both(other, self.pick(whereabouts), "present")
            elif word[0] == "quand":
                inner = self.both(
                    other,
                    self.with_object(
                        self.pick([p for p in lex.SIMPLE if p.fr in ("arriver", "partir", "revenir", "rentrer")]), other
                    ),
                    self.pick(("future", "past")),
                )
            else:
                action = self.action(other)
                inner = self.statement(
                    other,
                    action,
                    "past" if action.aspect != "state" else "present",
                    time=0.3,
                    negate=0.0,
                    front_share=0.0,
                )
            return *_join(self.both(subject, vp, "present", negation=self.maybe_not(0.8)), word, inner), "."
        vp = VP("être", "be", "be", subject.agree("sûr"), "sure") if fr == "sûr" else VP(fr, en, "state")
        if draw < 0.4 and fr in ("dire", "penser"):
            matrix = self.both(subject, vp, "past" if fr == "dire" else "imperfect")
            inner_vp = self.action(other, 0.3) if self.chance(0.6) else self.state(other)
            while inner_vp.aspect == "event":
                inner_vp = self.action(other, 0.3)
            inner = self.both(
                other, inner_vp, "conditional" if inner_vp.aspect == "act" and self.chance(0.5) else "imperfect"
            )
            return *_join(matrix, ("que", "that"), inner), "."
        if fr == "espérer":
            action = self.action(other)
            tense = self.pick(("future", "near")) if action.aspect != "state" else "future"
            inner = self.statement(other, action, tense, front_share=0.0)
        elif self.chance(0.3):
            inner = self.both(other, self.state(other), "present", negation=self.maybe_not())
        else:
            action = self.action(other)
            tense = (
                "present"
                if action.aspect == "state"
                else self.pick(("past", "future"))
                if action.aspect == "event"
                else self.pick(("present", "past", "future"))
            )
            inner = self.statement(other, action, tense, time=0.3, front_share=0.0)
        return *_join(self.both(subject, vp, "present"), ("que", "that"), inner), "."

    def coordination(self) -> Sentence:
        """Two to four clauses in one tense, joined by et, mais, puis."""
        draw = self._random()
        tense = self.pick(("present", "past", "past", "future", "near", "imperfect"))
        time = ("", "")
        mode = ""
        if tense == "past":
            time = self.pick(lex.PAST)
        elif tense in ("future", "near"):
            time = self.pick(lex.FUTURE[:10])
        elif tense == "present" and self.chance(0.6):
            time, mode = self.pick(lex.HABITUAL), "habit"
        elif tense == "imperfect":
            time, mode = (self.pick(lex.FORMERLY), "habit") if self.chance(0.5) else (self.pick(lex.BACKGROUND), "")
        subject = self.subject()
        one = self.lively(subject, 0.4)
        text = self.both(subject, one, tense, mode=mode)
        if draw < 0.6 or tense in ("present", "imperfect"):
            text = self.placed(text, time, True) if time[0] and self.chance(0.75) else text
            if not text[0].startswith(time[0]) and mode == "habit":
                text = self.placed(text, time, True)
        used = {one.fr}
        count = self.pick((1, 1, 1, 2, 2, 3, 4))
        if draw < 0.45 and tense in ("past", "future", "near"):  # one person, one thing after another
            again = subject.pro()
            for step in range(count):
                vp = self.fresh(again, used)
                last = step == count - 1
                clause = self.both(again, vp, tense)
                link = (
                    (",", ",")
                    if not last
                    else ("et", ", and")
                    if count == 1 and self.chance(0.5)
                    else ("puis", ", then")
                )
                text = self.linked(text, link, clause)
            return *text, "."
        people = [subject]
        for step in range(count):
            other = self.other_subject(people[-1])
            while any(
                other.fr == p.fr or p.fr in other.fr or (other.person == p.person and other.pronoun and p.pronoun)
                for p in people
            ):
                other = self.other_subject(people[-1])
            people.append(other)
            vp = self.fresh(other, used)
            negation = (
                "pas"
                if step == 0
                and count == 1
                and not vp.no_negation
                and tense not in ("present", "imperfect")
                and self.chance(0.2)
                else ""
            )
            clause = self.both(other, vp, tense, mode=mode, negation=negation)
            last = step == count - 1
            link = (
                ("mais", ", but")
                if last and (negation or self.chance(0.35))
                else ("et", ", and")
                if last
                else (",", ",")
            )
            text = self.linked(text, link, clause)
        return *text, "."

    def fresh(self, subject: NP, used: set[str]) -> VP:
        while True:
            vp = self.lively(subject, 0.4)
            if vp.fr not in used and vp.fr not in ("rester", "arriver"):
                used.add(vp.fr)
                return vp

    # ------------------------------------------------------------------------------------------- set phrases

    def nothing(self) -> Sentence:
        """ne … rien."""
        subject = self.subject()
        fr, en, aspect = self.pick(
            (
                ("manger", "eat", "act"),
                ("boire", "drink", "act"),
                ("acheter", "buy", "act"),
                ("faire", "do", "act"),
                ("dire", "say", "act"),
                ("voir", "see", "state"),
                ("comprendre", "understand", "state"),
                ("trouver", "find", "event"),
                ("oublier", "forget", "event"),
                ("perdre", "lose", "event"),
            )
        )
        vp = VP(fr, en, aspect)
        tense = self.pick(("past", "past", "present", "future", "near"))
        if aspect == "event" and tense == "present":
            tense = "past"
        if self.chance(0.2):
            vp = VP("vouloir", "want", "state", fr, f"to {en} anything")
            text = (
                french_clause(subject, replace(vp, fr_obj=fr), "present", negation="rien"),
                english_clause(subject, vp, "present", negation="pas"),
            )
            return *text, "."
        text = self.both(subject, vp, tense, negation="rien")
        time = (
            self.pick(lex.PAST)
            if tense == "past"
            else self.pick(lex.FUTURE)
            if tense in ("future", "near")
            else ("", "")
        )
        if time[0] and self.chance(0.6):
            text = self.placed(text, time, self.chance(0.4))
        return *text, "."

    def since(self) -> Sentence:
        """depuis + present: the English perfect."""
        subject = self.subject()
        vp = self.pick(
            (
                self.verb(lex.SIMPLE[1]),
                VP("habiter", "live", "state"),
                VP("apprendre", "learn", "act", *self.pick(lex.GENERIC["language"])),
                VP("jouer", "play", "act", *self.pick(lex.GENERIC["instrument"])),
                VP("attendre", "wait", "act"),
                VP("dormir", "sleep", "act"),
                VP("connaître", "know", "state", *self.name_text()),
                VP("chercher", "look", "act", "un appartement", "for an apartment"),
                VP("être", "be", "be", subject.agree("malade"), "sick"),
            )
        )
        if vp.fr in ("travailler", "habiter"):
            place = self.pick(lex.CITIES)
            vp = vp.plus(place.fr, place.at)
        units = (
            (("minute", "minute"), ("heure", "hour"))
            if vp.fr in ("attendre", "dormir")
            else (("jour", "day"), ("semaine", "week"))
            if vp.fr == "être"
            else (("mois", "month"), ("an", "year"))
        )
        fr, en = self.pick(units)
        count = 2 + int(self._random() * 9)
        time = (f"depuis {french.number(count)} {french.plural(fr)}", f"for {english.number(count)} {en}s")
        return *self.placed(self.both(subject, vp, "present", mode="since"), time, False), "."

    def name_text(self) -> Text:
        name = self.name()
        return name.fr, name.en

    def need(self) -> Sentence:
        """avoir besoin de, avoir envie de, avoir peur de, il faut."""
        subject = self.subject()
        draw = self._random()
        if draw < 0.35:
            thing = self.noun(self.of_kinds(("thing", "device", "dish", "clothes")), self.pick("it"), False, 0.1)
            vp = VP("avoir", "need", "state", f"besoin de {thing.fr.replace('@', '')}", thing.en)
            return *self.both(
                subject, vp, self.pick(("present", "present", "imperfect", "future")), negation=self.maybe_not()
            ), "."
        inner = self.lively(subject, 0.0)
        while inner.no_negation:
            inner = self.lively(subject, 0.0)
        if draw < 0.6:
            vp = self.chained("avoir besoin", "de", "need", "to", "state", inner)
            return *self.both(
                subject, vp, self.pick(("present", "present", "imperfect", "future")), negation=self.maybe_not()
            ), "."
        if draw < 0.8:
            vp = self.chained("avoir envie", "de", "feel like", "-ing", "state", inner)
            return *self.both(
                subject, vp, self.pick(("present", "present", "imperfect")), negation=self.maybe_not()
            ), "."
        we = self.pronoun("3")
        inner = self.lively(we, 0.4)
        while (
            inner.reflexive
            or "POSS" in inner.en_obj
            or "our" in inner.en_obj.split()
            or "us" in inner.en_obj.split()
            or inner.clitics
        ):
            inner = self.lively(we, 0.4)
        tense = self.pick(("present", "imperfect", "future"))
        vp = VP("falloir", "must", "state", inner.infinitive(), inner.base())
        il = NP("il", "we", 2, pronoun=True)
        form = {"present": "have to", "imperfect": "had to", "future": "will have to"}[tense]
        return (
            french_clause(il, vp, tense).replace("@une", "une").replace("@un", "un"),
            f"we {form} {inner.base()}".replace("@some", "some"),
            ".",
        )

    def request(self) -> Sentence:
        """Orders and polite requests."""
        vous = self.chance(0.6)
        subject = (
            NP("vous", "you", 4, plural=False, pronoun=True, possessive="your")
            if vous
            else NP("tu", "you", 1, pronoun=True, possessive="your")
        )
        please = ("s'il vous plaît", "please") if vous else ("s'il te plaît", "please")
        draw = self._random()
        if draw < 0.25:
            noun = self.of_kinds(("drink", "mass")) if self.chance(0.5) else None
            if noun is not None:
                thing = self.noun(noun, "a", False, 0.0)
            else:
                noun = self.pick(lex.NOUNS["food"])
                # nobody asks for one bean
                thing = self.noun(
                    noun, "n" if noun.fr in ("haricot", "cerise", "fraise") else self.pick("in"), False, 0.0
                )
            speaker = self.pronoun("03")
            text = self.both(speaker, VP("vouloir", "want", "state", thing.fr, thing.en), "conditional")
            return f"{text[0]} , s'il vous plaît", f"{text[1]} , please", "."
        if draw < 0.4:
            inner = self.with_object(self.pick(INNER["duty"]), subject) if self.chance(0.5) else self.giving(subject)
            while inner.no_negation:
                inner = self.giving(subject)
            vp = self.chained("pouvoir", "", "can", "", "state", inner)
            return *self.politely(self.asked(subject, vp, self.pick(("present", "conditional")))[:2], please), "?"
        if draw < 0.55:
            place = self.noun(self.of_kinds(("building", "building", "area")), "d", False, 0.0)
            if self.chance(0.5):
                return f"où est {place.fr} , s'il vous plaît", f"where is {place.en} , please", "?"
            return f"excusez-moi , où se trouve {place.fr}", f"excuse me , where is {place.en}", "?"
        verb, en, kind = self.pick(
            (
                ("fermer", "close", "opening"),
                ("ouvrir", "open", "opening"),
                ("apporter", "bring", "thing"),
                ("donner", "give", "thing"),
                ("montrer", "show", "picture"),
                ("prendre", "take", "thing"),
                ("écouter", "listen to", "song"),
                ("finir", "finish", "task"),
                ("lire", "read", "text"),
                ("attendre", "wait for", "person"),
                ("apporter", "bring", "drink"),
                ("expliquer", "explain", "study"),
                ("laver", "wash", "dish"),
                ("vendre", "sell", "vehicle"),
            )
        )
        noun = self.of_kinds((kind,))
        determiner = (
            "dt" if kind in ("opening", "song", "study", "person", "picture") else "a" if kind == "drink" else "dpt"
        )
        owner = self.pronoun("0") if verb in ("apporter", "donner") else subject
        thing = self.noun(noun, self.pick(determiner), False, 0.1, owner)
        person = 4 if vous else 1
        fr_thing, en_thing = (
            thing.fr.replace("@dela", "de LA").replace("@du", "de LE"),
            thing.en.replace("@some", "some"),
        )
        if verb != "vendre" and self.chance(0.6):
            form = french.imperative(verb, person)
            if verb in ("apporter", "donner", "montrer"):
                if kind != "drink" and self.chance(0.35):
                    form = f"{form}-{'la' if noun.feminine else 'le'}-moi"
                    text = (form, f"{en} it to me")
                else:
                    text = (f"{form}-moi {fr_thing}", f"{en} me {en_thing}")
            else:
                text = (f"{form} {fr_thing}", f"{en} {en_thing}")
            return *self.politely(text, please if self.chance(0.6) else ("", "")), "."
        vp = VP(verb, en.partition(" ")[0], "act", fr_thing, f"{en.partition(' ')[2]} {en_thing}")
        if kind == "drink":
            vp = replace(vp, fr_obj=f"de {noun.fr}", en_obj=f"any {noun.en}")
        me = " me" if verb in ("apporter", "donner", "montrer") else ""
        return *self.politely(
            (
                f"ne{me} {french.imperative(verb, person)} pas {vp.fr_obj}",
                f"don't {vp.en}{me} {vp.en_obj}",
            ),
            please if self.chance(0.4) else ("", ""),
        ), "."

    @staticmethod
    def politely(text: Text, please: Text) -> Text:
        return (f"{text[0]} , {please[0]}", f"{text[1]} , {please[1]}") if please[0] else text

    def quantity(self) -> Sentence:
        """beaucoup de, un verre de, un kilo de; prices."""
        subject = self.subject()
        draw = self._random()
        if draw < 0.3:
            noun = self.of_kinds(("thing", "clothes", "text", "dish", "device"))
            thing = self.noun(noun, "t", False, 0.2)
            price = 2 + int(self._random() * 98)
            vp = VP("coûter", "cost", "state", f"{french.number(price)} euros", f"{english.number(price)} euros")
            return *self.both(thing, vp, self.pick(("present", "present", "imperfect"))), "."
        if draw < 0.55:
            measure_fr, measure_en, kind = self.pick(
                (
                    ("un verre de", "a glass of", "drink"),
                    ("une bouteille de", "a bottle of", "drink"),
                    ("une tasse de", "a cup of", "hot"),
                    ("un morceau de", "a piece of", "cuttable"),
                    ("un peu de", "a little", "mass"),
                    ("un kilo de", "a kilo of", "food"),
                )
            )
            if kind == "hot":
                noun = self.pick([n for n in lex.NOUNS["drink"] if n.fr in ("café", "thé")])
            elif kind == "drink":
                noun = self.pick([n for n in lex.NOUNS["drink"] if n.fr not in ("café", "thé")])
            elif kind == "food":
                noun = self.pick(
                    [
                        n
                        for n in lex.NOUNS["food"]
                        if n.fr
                        in (
                            "pomme",
                            "orange",
                            "poire",
                            "banane",
                            "tomate",
                            "carotte",
                            "haricot",
                            "abricot",
                            "fraise",
                            "cerise",
                        )
                    ]
                )
            else:
                noun = self.of_kinds((kind,))
            phrase = (
                f"{measure_fr} {noun.fr_plural if kind == 'food' else noun.fr}",
                f"{measure_en} {noun.en_plural if kind == 'food' else noun.en}",
            )
            verb = (
                ("boire", "drink")
                if kind in ("drink", "hot")
                else ("manger", "eat")
                if kind in ("cuttable", "mass")
                else ("acheter", "buy")
            )
            vp = VP(*verb, "act", *phrase, no_negation=True)
            if self.chance(0.2):
                speaker = self.pronoun("03")
                return *self.politely(
                    self.both(speaker, VP("vouloir", "want", "state", *phrase), "conditional"),
                    ("s'il vous plaît", "please"),
                ), "."
            return *self.statement(subject, vp), "."
        many = self.pick(
            (
                ("beaucoup de", "a lot of", "a lot of"),
                ("trop de", "too much", "too many"),
                ("assez de", "enough", "enough"),
                ("plus de", "more", "more"),
                ("moins de", "less", "fewer"),
                ("peu de", "little", "few"),
            )
        )
        if many[0] == "peu de" or self.chance(0.5):
            noun = self.of_kinds(("food", "text"))
            phrase = (f"{many[0]} {noun.fr_plural}", f"{many[2]} {noun.en_plural}")
        else:
            noun = self.of_kinds(("mass", "drink"))
            phrase = (f"{many[0]} {noun.fr}", f"{many[1]} {noun.en}")
        verb = {
            "food": ("manger", "eat"),
            "text": ("lire", "read"),
            "mass": ("manger", "eat"),
            "drink": ("boire", "drink"),
        }[noun.kind]
        vp = VP(*verb, "act", *phrase, no_negation=True)
        tense = self.pick(("past", "past", "present", "future"))
        if tense == "present" or many[0] in ("plus de", "moins de"):
            if many[0] in ("plus de", "moins de"):
                other = self.name()
                while other.fr in subject.fr:
                    other = self.name()
                vp = vp.plus(f"que {other.fr}", f"than {other.en}")
            return *self.both(
                subject,
                vp,
                "present",
                mode="habit",
                adverb=lex.FREQUENCY[0] if many[0] not in ("plus de", "moins de", "peu de") else ("", ""),
            ), "."
        return *self.statement(subject, vp, tense), "."


ONCE = ("commencer", "finir", "casser", "recevoir", "marier", "reconnaître")  # not told of as habits
MANNER = dict(lex.MANNERS)
ADJECTIVES_BY_KIND = {
    kind: tuple(
        adjective
        for adjective in lex.ADJECTIVES
        if kind in adjective.kinds and not (kind == "person" and adjective.fr in ("inquiet", "content", "fatigué"))
    )
    for kind in lex.NOUNS
}
ATTRIBUTES_BY_KIND = {
    kind: tuple(
        a for a in adjectives if a.fr not in ("ouvert", "fermé") and (kind != "person" or a.fr in lex.PERSON_ATTRIBUTES)
    )
    for kind, adjectives in ADJECTIVES_BY_KIND.items()
}
DESCRIBED = tuple(
    kind for kind, adjectives in ADJECTIVES_BY_KIND.items() if adjectives and kind not in ("person", "kin")
)
DESCRIBED_COUNT = tuple(kind for kind in DESCRIBED if kind not in ("mass", "drink"))
COMPARED = tuple(
    k
    for k in DESCRIBED
    if k not in ("song", "letter") and any(a.comparable for a in ADJECTIVES_BY_KIND[k]) and len(lex.NOUNS[k]) > 1
)
COMPARED_PEOPLE = tuple(
    a
    for a in lex.ADJECTIVES
    if "kin" in a.kinds and a.comparable and a.fr not in ("jaloux", "malade", "inquiet", "content")
) + tuple(
    lex.Adjective(fr, en, frozenset(), False, True)
    for fr, en in (("grand", "tall"), ("jeune", "young"), ("petit", "short"))
)
PERSON_WORDS = tuple((a.fr, a.en) for a in lex.ADJECTIVES if "kin" in a.kinds) + lex.PERSON_ADJECTIVES
PROFESSIONS = tuple(noun for noun in lex.NOUNS["person"] if noun.fr in lex.PROFESSIONS)
COMPARED_ADVERBS = (
    ("vite", "fast", ("courir", "marcher", "nager", "travailler")),
    ("souvent", "often", ("voyager", "sortir", "danser", "nager", "cuisiner", "rire", "pleurer")),
    ("bien", "well", ("danser", "chanter", "nager", "cuisiner", "travailler", "dormir")),
    ("lentement", "slowly", ("marcher", "courir", "travailler")),
)
TENSES = ("present",) * 8 + ("past",) * 7 + ("imperfect",) * 3 + ("future",) * 3 + ("near",) * 3 + ("recent",)
# Which verbs go together with which: verb, link, English, English link, aspect, class of the infinitive
CHAINS = (
    ("vouloir", "", "want", "to", "state", "any"),
    ("vouloir", "", "want", "to", "state", "any"),
    ("pouvoir", "", "can", "", "state", "any"),
    ("pouvoir", "", "can", "", "state", "any"),
    ("devoir", "", "must", "", "state", "any"),
    ("devoir", "", "must", "", "state", "any"),
    ("refuser", "de", "refuse", "to", "event", "any"),
    ("décider", "de", "decide", "to", "event", "any"),
    ("savoir", "", "know how", "to", "state", "skill"),
    ("apprendre", "à", "learn", "to", "act", "skill"),
    ("aimer", "", "like", "to", "state", "pleasure"),
    ("préférer", "", "prefer", "to", "state", "pleasure"),
    ("essayer", "de", "try", "to", "act", "task"),
    ("oublier", "de", "forget", "to", "event", "duty"),
    ("commencer", "à", "start", "to", "act", "habit"),
    ("finir", "de", "finish", "-ing", "event", "task"),
    ("arrêter", "de", "stop", "-ing", "event", "habit"),
)
_VERBS = (*lex.SIMPLE, *lex.THINGS, *lex.PERSONS, *lex.DATIVES)


def _predicates(verbs: str, objects: bool = True) -> tuple[lex.Predicate, ...]:
    return tuple(p for p in _VERBS if p.fr in verbs.split() and (objects or not p.objects))


INNER = {
    "skill": tuple(
        p
        for p in _predicates("nager danser chanter cuisiner jouer conduire réparer")
        if "t" not in p.determiners or p.fr != "chanter"
    ),
    "pleasure": _predicates(
        "nager danser voyager marcher courir cuisiner jouer promener dormir étudier travailler", False
    )
    + _predicates("jouer")
    + _predicates("écouter", False),
    "task": _predicates("lire réparer nettoyer laver préparer dessiner peindre") + _predicates("faire"),
    "duty": _predicates("fermer téléphoner appeler laver préparer remercier répondre nettoyer") + _predicates("faire"),
    "habit": _predicates("travailler courir pleurer rire fumer chanter danser étudier nager marcher cuisiner", False)
    + _predicates("jouer"),
    "before": _predicates(
        "partir sortir coucher dormir dîner déjeuner rentrer travailler promener étudier jouer reposer habiller laver",
        False,
    )
    + _predicates("faire jouer"),
    "childhood": _predicates("nager danser chanter pleurer jouer courir voyager habiter rire", False)
    + _predicates("aimer adorer détester jouer"),
}
# What happens in the middle of something else.
HAPPENINGS: tuple[Text | None, ...] = (
    None,
    None,
    None,
    ("LE téléphone a sonné", "the phone rang"),
    ("LE train est arrivé", "the train arrived"),
    ("il a commencé à pleuvoir", "it started to rain"),
)
SILENT: tuple[Text, ...] = (
    ("regarder LA carte", "look at the map"),
    ("attendre LE bus", "wait for the bus"),
    ("fermer LA porte", "close the door"),
    ("répondre à LA question", "answer the question"),
    ("dire merci", "say thank you"),
    ("lire LA lettre", "read the letter"),
)
# plan: share of the sentences
PLANS = {
    "plain": 18,
    "infinitive": 8,
    "description": 8,
    "presentation": 4,
    "comparison": 4,
    "superlative": 2.5,
    "existence": 4,
    "location": 4,
    "time": 4,
    "weather": 2,
    "clitic": 8,
    "adverbial_pronoun": 3,
    "antecedent": 4,
    "yes_no": 6,
    "wh": 7,
    "relative_sentence": 7,
    "causal": 8,
    "temporal": 7,
    "reported": 6,
    "coordination": 14,
    "nothing": 2,
    "since": 2,
    "need": 3,
    "request": 4,
    "quantity": 4,
}
