"""One clause in both languages: subject, tense, negation, pronouns and adverbs put where each
language wants them.

Complements may hold marks that only the clause can resolve: `@un @une @des @du @dela` become `de`
under negation, `@some` becomes some, any or nothing, `SE` is the reflexive pronoun of an
infinitive, `POSS` is "my", "your", "his"…
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from data.corpora.phrasebook import english, french

FRENCH_MARKS = {"@un": "un", "@une": "une", "@des": "des", "@du": "de LE", "@dela": "de LA"}
MARK = re.compile(r"@\w+")
SUBJECT_PRONOUNS = ("je", "tu", "il", "nous", "vous", "ils")
POSSESSIVES = (
    ("mon", "ma|mon", "mes"),
    ("ton", "ta|ton", "tes"),
    ("son", "sa|son", "ses"),
    ("notre", "notre", "nos"),
    ("votre", "votre", "vos"),
    ("leur", "leur", "leurs"),
)
TO_BE = {
    "present": ("am", "are", "is", "are", "are", "are"),
    "past": ("was", "were", "was", "were", "were", "were"),
}


@dataclass(frozen=True, slots=True)
class NP:
    """A noun phrase. person: 0..5 for je tu il nous vous ils; `plural` is agreement (a polite vous
    is singular).
    """

    fr: str
    en: str
    person: int = 2
    feminine: bool = False
    plural: bool = False
    pronoun: bool = False
    possessive: str = "its"  # in English, of what belongs to it

    def pro(self) -> NP:
        """The pronoun that takes this subject up again."""
        if self.pronoun:
            return self
        return third_person(self.feminine, self.plural)

    def agree(self, adjective: str) -> str:
        return french.adjective_form(adjective, self.feminine, self.plural)


def third_person(feminine: bool, plural: bool) -> NP:
    if plural:
        return NP("elles" if feminine else "ils", "they", 5, feminine, True, True, "their")
    if feminine:
        return NP("elle", "she", 2, True, False, True, "her")
    return NP("il", "he", 2, False, False, True, "his")


@dataclass(frozen=True, slots=True)
class VP:
    """A verb with its complements. aspect: act, state, event, or be (the copula and what English
    says with be).
    """

    fr: str
    en: str
    aspect: str
    fr_obj: str = ""
    en_obj: str = ""
    reflexive: bool = False
    clitics: tuple[str, ...] = ()
    preceding: tuple[bool, bool] | None = (
        None  # feminine, plural of a direct object before the verb
    )
    no_negation: bool = False  # reads badly when negated
    extras: str = ""
    manner: tuple[str, str] = (
        "",
        "",
    )  # bien, mal, beaucoup: before a participle or an infinitive in French
    steady: bool = (
        False  # goes without adverbials of habit and of the moment (knowing somebody, being tall)
    )

    def plus(self, fr: str, en: str) -> VP:
        return replace(self, fr_obj=f"{self.fr_obj} {fr}", en_obj=f"{self.en_obj} {en}")

    def infinitive(self) -> str:
        """The French infinitive with its pronouns and complements."""
        clitics = french.order_clitics((*self.clitics, "SE") if self.reflexive else self.clitics)
        return " ".join((*clitics, self.fr, self.fr_obj))

    def base(self) -> str:
        """The English infinitive without to."""
        return f"{self.en} {self.en_obj}"

    def gerund(self) -> str:
        return f"{english.ing(self.en)} {self.en_obj}"


def _french_rest(text: str, person: int, negated: bool) -> str:
    if "@" in text:
        text = MARK.sub(lambda m: "de" if negated else FRENCH_MARKS[m.group()], text)
    if "SE" in text:
        text = " ".join(
            french.reflexive_pronoun(person) if token == "SE" else token for token in text.split()
        )
    if "POSS_LES" in text:
        text = text.replace("POSS_LES", POSSESSIVES[person][2])
    return text


def french_clause(
    subject: NP,
    vp: VP,
    tense: str,
    *,
    negation: str = "",
    adverb: str = "",
    invert: bool = False,
    bare: bool = False,
) -> str:
    """tense: present imperfect future conditional, past (passé composé), near (futur proche),
    recent (venir de).

    invert: the question with the verb first (a noun subject stays in front and a pronoun follows
    the verb). bare: the subject is left to the caller (after qui).
    """
    person = subject.person
    clitics = (*vp.clitics, french.reflexive_pronoun(person)) if vp.reflexive else vp.clitics
    clitics = french.order_clitics(clitics)
    tail = ""
    if tense in ("near", "recent"):
        finite = french.conjugate("aller" if tense == "near" else "venir", "present", person)
        manner = vp.manner[0]
        tail = " ".join(("de" if tense == "recent" else "", manner, *clitics, vp.fr))
        vp = replace(vp, manner=("", ""))
        clitics = ()
    elif tense == "past":
        auxiliary = french.auxiliary(vp.fr, vp.reflexive)
        finite = french.conjugate(auxiliary, "present", person)
        if vp.preceding is not None:
            agreement = vp.preceding
        elif auxiliary == "être" and not (
            vp.reflexive and vp.fr in ("laver", "brosser") and vp.fr_obj
        ):
            agreement = (subject.feminine, subject.plural)
        else:
            agreement = (False, False)
        tail = french.participle(vp.fr, *agreement)
    else:
        finite = french.conjugate(vp.fr, tense, person)
    pronoun = subject.fr if subject.pronoun else third_person(subject.feminine, subject.plural).fr
    rest = _french_rest(vp.fr_obj, person, negation not in ("", "rien") and vp.fr != "être")
    words = [
        "" if bare or (invert and subject.pronoun) else subject.fr,
        "ne" if negation else "",
        *clitics,
        french.invert(finite, pronoun) if invert else finite,
        negation,
        adverb,
        vp.manner[0],
        tail,
        rest,
    ]
    return " ".join(words)


def english_form(vp: VP, tense: str, *, negation: str, mode: str, question: bool) -> str:
    """The English form that answers a French tense: one rule, from what can be seen in the French
    sentence.

    mode is what the adverbial or the clause asks for: now, habit, since, perfect, or nothing.
    """
    if tense == "present":
        if mode == "since":
            return "perfect progressive" if vp.aspect == "act" else "perfect"
        if vp.aspect == "act" and (mode == "now" or (mode == "" and not negation and not question)):
            return "progressive"
        return "present"
    if tense == "past":
        return "perfect" if mode == "perfect" or negation in ("jamais", "pas encore") else "past"
    if tense == "imperfect":
        if negation in ("jamais", "plus"):
            return "past"
        if mode == "habit":
            return "used" if vp.aspect in ("act", "event") else "past"
        return "past progressive" if vp.aspect == "act" else "past"
    return {"future": "will", "conditional": "would", "near": "going", "recent": "perfect"}[tense]


def _verb_group(verb: str, person: int, form: str) -> tuple[str, str]:
    """Auxiliary ("" where there is none) and main verb."""
    third = person == 2
    if verb == "can":
        return {
            "present": ("can", ""),
            "past": ("could", ""),
            "would": ("could", ""),
            "will": ("will", "be able to"),
        }[form]
    if verb == "must":
        if form in ("present", "would"):
            return ("must" if form == "present" else "should"), ""
        verb, suffix = "have", " to"
    elif verb == "have to":
        verb, suffix = "have", " to"
    elif verb == "want" and form == "would":
        return "would", "like"
    else:
        suffix = ""
    match form:
        case "present":
            if verb == "be":
                return TO_BE["present"][person], ""
            return "", (english.third_person(verb) if third else verb) + suffix
        case "past":
            return (
                (TO_BE["past"][person], "") if verb == "be" else ("", english.past(verb) + suffix)
            )
        case "progressive":
            return TO_BE["present"][person], english.ing(verb)
        case "past progressive":
            return TO_BE["past"][person], english.ing(verb)
        case "perfect":
            return ("has" if third else "have"), english.past_participle(verb)
        case "perfect progressive":
            return ("has" if third else "have"), "been " + english.ing(verb)
        case "used":
            return "", "used to " + verb
        case "will" | "would":
            return form, verb + suffix
        case "going":
            return TO_BE["present"][person], "going to " + verb + suffix
    raise ValueError(form)


def english_clause(
    subject: NP,
    vp: VP,
    tense: str,
    *,
    negation: str = "",
    adverb: str = "",
    mode: str = "",
    question: bool = False,
    bare: bool = False,
) -> str:
    form = english_form(vp, tense, negation=negation, mode=mode, question=question)
    verb = vp.en
    if verb == "must" and question:
        verb = "have to"  # do you have to, never must you
    auxiliary, main = _verb_group(verb, subject.person, form)
    negative = negation in ("pas", "rien", "pas encore")
    if (negative or question) and not auxiliary:
        auxiliary = "did" if form == "past" else "does" if subject.person == 2 else "do"
        main = "have to" if verb == "must" else verb
    if negative:
        auxiliary = english.NEGATED[auxiliary]
    middle = {"jamais": "never", "plus": "no longer"}.get(negation, "")
    if tense == "recent":
        middle = "just"
    rest = vp.en_obj
    if "@" in rest:
        if negative:
            some = "any"
        elif vp.aspect in ("state", "be"):
            some = "any" if negation else "some"
        else:
            some = "" if negation or form in ("present", "used") else "some"
        rest = rest.replace("@some", some)
    if "POSS" in rest:
        rest = rest.replace("POSS", subject.possessive)
    if negation == "rien":
        rest = f"anything {rest}"
    elif negation == "pas encore":
        rest += " yet"
    name = "" if bare else subject.en
    words = [auxiliary, name] if question else [name, auxiliary]
    return " ".join((*words, middle, adverb, main, rest, vp.manner[1]))
