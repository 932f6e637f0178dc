"""Noun phrases: pronouns, names, kin, and nouns with their article and adjective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from data.corpora.phrasebook import english, french, lexicon as lex
from data.corpora.phrasebook.choices import Choices
from data.corpora.phrasebook.clause import NP, POSSESSIVES, SUBJECT_PRONOUNS, third_person
from data.corpora.phrasebook.tables import Text

ENGLISH_PRONOUNS = ("I", "you", "he", "we", "you", "they")
ENGLISH_POSSESSIVES = ("my", "your", "his", "our", "your", "their")
DETERMINERS = {
    "d": ("LE", "LA", "LES"),
    "i": ("@un", "@une", "@des"),
    "t": ("ce|cet", "cette", "ces"),
}
ADJECTIVES_BY_KIND = {
    kind: tuple(
        adjective
        for adjective in lex.ADJECTIVES
        if kind in adjective.kinds
        and not (kind == "person" and adjective.fr in ("inquiet", "content", "fatigué"))
    )
    for kind in lex.NOUNS
}
ATTRIBUTES_BY_KIND = {
    kind: tuple(
        a
        for a in adjectives
        if a.fr not in ("ouvert", "fermé") and (kind != "person" or a.fr in lex.PERSON_ATTRIBUTES)
    )
    for kind, adjectives in ADJECTIVES_BY_KIND.items()
}


class NounPhrases(Choices):
    """Noun phrases: pronouns, names, kin, and nouns with their article and adjective."""

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
        return NP(
            f"{first.fr} et {second.fr}",
            f"{first.en} and {second.en}",
            5,
            feminine,
            True,
            possessive="their",
        )

    def kin(self, plural: bool = False) -> NP:
        noun = self.pick(lex.NOUNS["kin"])
        owner = int(self.pick("0001144" if noun.fr in ("mari", "femme") else "00011344"))
        return self.possessed(noun, owner, ENGLISH_POSSESSIVES[owner], plural)

    def possessed(self, noun: lex.Noun, owner: int, possessive: str, plural: bool = False) -> NP:
        forms = POSSESSIVES[owner]
        determiner = forms[2] if plural else forms[noun.feminine]
        return self.noun_phrase(noun, determiner, possessive, plural)

    def person(self, adjectives: bool = True) -> NP:
        """A person named by what he or she is, with the definite article."""
        noun = self.pick(lex.NOUNS["public"])
        return self.noun(
            noun, self.pick("dddt"), plural=self.chance(0.25), adjective=0.2 if adjectives else 0.0
        )

    def subject(self) -> NP:
        draw = self.draw()
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
        self,
        noun: lex.Noun,
        determiner: str,
        plural: bool = False,
        adjective: float = 0.25,
        owner: NP | None = None,
    ) -> NP:
        """determiner: d i t (definite, indefinite, this), p (the owner's), g (generic), a
        (partitive), n (counted).
        """
        chosen = self.adjective_for(noun) if self.chance(adjective) else None
        if determiner == "p" and owner is not None:
            fr = POSSESSIVES[owner.person][2 if plural else int(noun.feminine)]
            return self.noun_phrase(noun, fr, owner.possessive, plural, chosen)
        if determiner == "n":
            count = 2 + self.below(5)
            return self.noun_phrase(noun, french.number(count), english.number(count), True)
        if determiner == "g":
            mass = noun.kind in ("mass", "drink")
            return self.noun_phrase(
                noun, ("LA" if noun.feminine else "LE") if mass else "LES", "", not mass
            )
        if determiner == "a":
            fr = "@dela" if noun.feminine else "@du"
            return self.noun_phrase(noun, fr, "@some", False)
        fr = DETERMINERS[determiner][2 if plural else int(noun.feminine)]
        if determiner == "i":
            en = "@some" if plural else "a"
            if plural and chosen is not None and chosen.before:
                fr = "de"
        elif determiner == "t":
            en = "these" if plural else "this"
        else:
            en = "the"
        return self.noun_phrase(noun, fr, en, plural, chosen)

    def noun_phrase(
        self, noun: lex.Noun, fr: str, en: str, plural: bool, adjective: lex.Adjective | None = None
    ) -> NP:
        head_fr = noun.fr_plural if plural else noun.fr
        head_en = noun.en_plural if plural else noun.en
        if adjective is not None:
            form = french.adjective_form(adjective.fr, noun.feminine, plural, adjective.before)
            head_fr = f"{form} {head_fr}" if adjective.before else f"{head_fr} {form}"
            head_en = f"{adjective.en} {head_en}"
        human = noun.kind in ("person", "kin")
        possessive = "their" if plural else ("her" if noun.feminine else "his") if human else "its"
        return NP(
            f"{fr} {head_fr}",
            f"{en} {head_en}",
            5 if plural else 2,
            noun.feminine,
            plural,
            possessive=possessive,
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
            self.named_or_kin()
            if self.chance(0.75)
            else self.noun(self.pick(lex.NOUNS["public"]), "d", adjective=0.0)
        )
        return replace(
            thing,
            fr=f"{thing.fr} de {owner.fr}",
            en=f"{owner.en} 's {thing.en.removeprefix('the ')}",
        )

    def another_name(self, subject: NP) -> NP:
        while True:
            name = self.name()
            if name.fr not in subject.fr:
                return name

    def family_noun(self) -> lex.Noun:
        while True:
            noun = self.pick(lex.NOUNS["kin"])
            if noun.fr not in ("mari", "femme"):
                return noun

    def name_text(self) -> Text:
        name = self.name()
        return name.fr, name.en
