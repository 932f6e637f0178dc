"""Plans of one statement: doing, being, comparing, what there is and where, clock, calendar and
weather.
"""

from __future__ import annotations

from dataclasses import replace

from data.corpora.phrasebook import english, french, lexicon as lex
from data.corpora.phrasebook.clause import NP, VP
from data.corpora.phrasebook.noun_phrases import ADJECTIVES_BY_KIND
from data.corpora.phrasebook.tables import Text, pairs, rows
from data.corpora.phrasebook.timed_clauses import Clauses, Sentence, joined

DESCRIBED = tuple(
    kind
    for kind, adjectives in ADJECTIVES_BY_KIND.items()
    if adjectives and kind not in ("person", "kin")
)
DESCRIBED_COUNT = tuple(kind for kind in DESCRIBED if kind not in ("mass", "drink"))
COMPARED = tuple(
    k
    for k in DESCRIBED
    if k not in ("song", "letter")
    and any(a.comparable for a in ADJECTIVES_BY_KIND[k])
    and len(lex.NOUNS[k]) > 1
)
COMPARED_PEOPLE = tuple(
    a
    for a in lex.ADJECTIVES
    if "kin" in a.kinds and a.comparable and a.fr not in ("jaloux", "malade", "inquiet", "content")
) + tuple(
    lex.Adjective(fr, en, frozenset(), False, True)
    for fr, en in (("grand", "tall"), ("jeune", "young"), ("petit", "short"))
)
OWNABLE = ("thing", "vehicle", "clothes", "device", "animal", "home", "room")
BEST = lex.among(
    lex.NOUNS["building"], "restaurant hôtel boulangerie école cinéma pharmacie magasin musée"
)
OPENING_HOURS = lex.among(
    lex.NOUNS["building"],
    "musée restaurant bibliothèque boulangerie banque cinéma théâtre université pharmacie magasin supermarché usine "
    "piscine",
)
DEGREES = pairs("=; =; très=very; trop=too; assez=quite; vraiment=really")
# adverb / English / the comparative of each / verbs that it goes with
COMPARED_ADVERBS = rows("""
    vite/fast/plus vite/faster/courir marcher nager travailler
    souvent/often/plus souvent/more often/voyager sortir danser nager cuisiner rire pleurer
    bien/well/mieux/better/danser chanter nager cuisiner travailler dormir
    lentement/slowly/plus lentement/more slowly/marcher courir travailler
""")
# for one and for several
THERE_IS = {
    "present": ("is", "are"),
    "imperfect": ("was", "were"),
    "future": ("will be", "will be"),
}
THERE_IS_NOT = {
    "present": ("isn't", "aren't"),
    "imperfect": ("wasn't", "weren't"),
    "future": ("won't be", "won't be"),
}
# affirmed and denied, present and past
IT_IS = (
    pairs("ce est=it is; ce était=it was"),
    pairs("ce ne est pas=it isn't; ce ne était pas=it wasn't"),
)
REGIONS = pairs("""
    LA ville=in town; LE village=in the village; LE monde=in the world; LE pays=in the country
    LE quartier=in the neighborhood
""")
GROUPS = pairs(
    "LA classe=in the class; LA famille=in the family; LE groupe=in the group; LE village=in the village"
)
AMOUNTS = pairs("""
    beaucoup de=a lot of; trop de=too many; quelques=a few; plusieurs=several; des=some; assez de=enough
""")


class Statements(Clauses):
    """Plans of one statement: doing, being, comparing, what there is and where, clock, calendar and
    weather.
    """

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
            person = (
                self.person()
                if self.chance(0.3)
                else self.pronoun("25")
                if self.chance(0.4)
                else self.name()
            )
            if person.plural:
                person = self.name()
            noun = self.pick([n for n in lex.PROFESSIONS if n.feminine == person.feminine])
            vp = VP("être", "be", "be", noun.fr, "a " + noun.en)
            return *self.both(person, vp, "present", negation=self.maybe_not()), "."
        return *self.thing_is(), "."

    def thing_is(self) -> Text:
        noun = self.of_kinds(DESCRIBED)
        adjective = self.adjective_for(noun)
        assert adjective is not None
        if noun.kind in ("mass", "drink", "food"):
            subject = self.noun(noun, self.pick("dt"), False, 0.0)
        elif self.chance(0.2) and noun.kind in OWNABLE[:-1]:
            thing = self.noun(noun, "d", False, 0.0)
            owner = self.named_or_kin()
            subject = replace(thing, fr=f"{thing.fr} de {owner.fr}", en=f"{owner.en} 's {noun.en}")
        else:
            determiner = self.pick("ddtp" if noun.kind in OWNABLE else "ddt")
            subject = self.noun(noun, determiner, self.chance(0.25), 0.0, self.pronoun("0134"))
        degree = self.pick(DEGREES)
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
                thing = self.noun_phrase(
                    noun, "de" if adjective and adjective.before else "des", "", True, adjective
                )
                return f"ce sont {thing.fr}", f"these are {thing.en}", "."
            thing = self.noun(noun, "i", False, 0.85)
            fr = thing.fr.replace("@une", "une").replace("@un", "un")
            negative, past = self.chance(0.2), self.chance(0.25)
            it_is = IT_IS[negative][past]
            return f"{it_is[0]} {fr}", f"{it_is[1]} {thing.en}", "."
        if self.chance(0.5):
            thing = self.owned()
            head = ("ce sont", "these are") if thing.plural else ("ce est", "it is")
            return *joined(head, (thing.fr, thing.en)), "."
        owner = self.pronoun("01344")
        noun = self.of_kinds(
            ("thing", "vehicle", "clothes", "device", "animal", "room", "home", "text")
        )
        thing = self.noun(noun, "p", self.chance(0.2), 0.2, owner)
        return f"voici {thing.fr}", f"here {'are' if thing.plural else 'is'} {thing.en}", "."

    def comparison(self) -> Sentence:
        degree_fr, word = self.pick(
            (("plus", "more"), ("plus", "more"), ("moins", "less"), ("aussi", "as"))
        )
        if self.chance(0.3):
            subject = self.subject()
            other = self.name() if self.chance(0.5) else self.kin()
            fr, en, more_fr, more_en, verbs = self.pick(COMPARED_ADVERBS)
            predicate = self.pick(
                [p for p in lex.among(lex.SIMPLE, verbs) if not p.objects and not p.fr_rest]
            )
            vp = self.verb(predicate)
            if degree_fr == "plus":
                fr, en = more_fr, more_en
            else:
                fr, en = f"{degree_fr} {fr}", f"{word} {en}"
            than = "as" if degree_fr == "aussi" else "than"
            while other.fr == subject.fr:
                other = self.name()
            vp = vp.plus(f"{fr} que {other.fr}", f"{en} {than} {other.en}")
            return *self.both(subject, vp, self.pick(("present", "future")), mode="habit"), "."
        if self.chance(0.5):
            noun = self.of_kinds(COMPARED)
            adjective = self.pick([a for a in ADJECTIVES_BY_KIND[noun.kind] if a.comparable])
            determiner = self.pick("tp" if noun.kind in OWNABLE[:5] else "td")
            subject = self.noun(noun, determiner, False, 0.0, self.pronoun("0134"))
            if subject.fr.startswith(("ce", "cette")) or noun.kind in ("transport",):
                other_noun = self.pick(lex.NOUNS[noun.kind])
                while other_noun.fr == noun.fr:
                    other_noun = self.pick(lex.NOUNS[noun.kind])
                other = self.noun(other_noun, "d", False, 0.0)
            else:
                owner = self.named_or_kin()
                other = NP(
                    f"celle de {owner.fr}" if noun.feminine else f"celui de {owner.fr}",
                    f"{owner.en} 's",
                )
                if subject.fr.startswith(("LE", "LA")):
                    other = self.noun(noun, "t", False, 0.0)
                    rival = self.pick([n for n in lex.NOUNS[noun.kind] if n.fr != noun.fr])
                    subject = self.noun(rival, "d", False, 0.0)
        else:
            subject = self.subject()
            adjective = self.pick(COMPARED_PEOPLE)
            other = self.name() if self.chance(0.5) else self.kin()
            while other.fr in subject.fr:
                other = self.name()
        vp = self.compared(subject, adjective, degree_fr, other)
        return *self.both(subject, vp, self.pick(("present", "present", "imperfect"))), "."

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
        where = self.pick(REGIONS)
        least = self.chance(0.2)
        if self.chance(0.35):
            subject = self.subject()
            adjective = self.pick(COMPARED_PEOPLE)
            group = self.pick(GROUPS)
            article = "LES" if subject.plural else "LA" if subject.feminine else "LE"
            fr = f"{article} {'moins' if least else 'plus'} {subject.agree(adjective.fr)} de {group[0]}"
            en = f"the {'least ' + adjective.en if least else english.superlative(adjective.en)} {group[1]}"
            vp = VP("être", "be", "be", fr, en)
            return *self.both(subject, vp, self.pick(("present", "present", "imperfect"))), "."
        noun = self.of_kinds(("building", "area", "home", "nature"))
        if noun.kind == "nature" or noun.fr in ("ville", "village", "quartier", "île"):
            where = self.pick(REGIONS[2:4])
        if self.chance(0.25):
            noun = self.pick(BEST)
            fr = french.adjective_form("meilleur", noun.feminine, False)
            head = (f"{'LA' if noun.feminine else 'LE'} {fr} {noun.fr}", f"the best {noun.en}")
        else:
            adjective = self.pick(
                [
                    a
                    for a in ADJECTIVES_BY_KIND[noun.kind]
                    if a.comparable and a.fr not in ("bon", "mauvais")
                ]
            )
            article = "LA" if noun.feminine else "LE"
            degree = "moins" if least else "plus"
            form = french.adjective_form(adjective.fr, noun.feminine, False, adjective.before)
            en_form = f"least {adjective.en}" if least else english.superlative(adjective.en)
            if adjective.before:
                head = (f"{article} {degree} {form} {noun.fr}", f"the {en_form} {noun.en}")
            else:
                head = (
                    f"{article} {noun.fr} {article.lower()} {degree} {form}",
                    f"the {en_form} {noun.en}",
                )
        if self.chance(0.6):
            return f"ce est {head[0]} de {where[0]}", f"it is {head[1]} {where[1]}", "."
        subject = self.subject()
        verb = (
            ("visiter", "visit", "act")
            if noun.kind in ("building", "area")
            else ("voir", "see", "state")
        )
        vp = VP(*verb, f"{head[0]} de {where[0]}", f"{head[1]} {where[1]}")
        return *self.both(subject, vp, self.pick(("past", "future", "near"))), "."

    def existence(self) -> Sentence:
        """il y a, with its negation, its tenses and a place."""
        position_fr, position_en, grounds, kinds = self.pick(lex.POSITIONS)
        ground = self.noun(self.of_kinds(grounds.split()), self.pick("dt"), False, 0.15)
        where = (f"{position_fr} {ground.fr}", f"{position_en} {ground.en}")
        noun = self.of_kinds(kinds.split())
        while noun.fr in ground.fr.split():
            noun = self.of_kinds(kinds.split())
        draw = self.draw()
        tense = self.pick(("present", "present", "present", "imperfect", "future"))
        verb_fr = {"present": "il y a", "imperfect": "il y avait", "future": "il y aura"}[tense]
        if draw < 0.45:
            thing = self.noun(noun, "i", False, 0.25)
            plural = False
            phrase = (thing.fr.replace("@une", "une").replace("@un", "un"), thing.en)
        elif draw < 0.75:
            count = 2 + self.below(11)
            plural = True
            phrase = (
                f"{french.number(count)} {noun.fr_plural}",
                f"{english.number(count)} {noun.en_plural}",
            )
        elif draw < 0.88:
            amount_fr, amount_en = self.pick(AMOUNTS)
            plural = True
            phrase = (f"{amount_fr} {noun.fr_plural}", f"{amount_en} {noun.en_plural}")
        else:
            verb_fr = verb_fr.replace("y", "ne y") + " pas"
            singular = self.chance(0.5)
            fr, en = (
                (noun.fr, f"a {noun.en}") if singular else (noun.fr_plural, f"any {noun.en_plural}")
            )
            be = THERE_IS_NOT[tense][not singular]
            return f"{verb_fr} de {fr} {where[0]}", f"there {be} {en} {where[1]}", "."
        be = THERE_IS[tense][plural]
        if tense == "present" and self.chance(0.15):
            return (
                f"est-ce que {verb_fr} {phrase[0]} {where[0]}",
                f"{be} there {phrase[1]} {where[1]}",
                "?",
            )
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
        thing = self.noun(
            noun,
            self.pick("ddtp" if personal else "ddt"),
            self.chance(0.2),
            0.15,
            self.pronoun("0134"),
        )
        if kind == "pet" and self.chance(0.5):
            vp = VP("dormir", "sleep", "act", *where)
        elif kind == "public" and self.chance(0.5):
            vp = VP("attendre", "wait", "act", *where)
        else:
            vp = VP("être", "be", "be", *where)
        tense = self.pick(("present", "present", "imperfect"))
        return *self.both(thing, vp, tense, negation=self.maybe_not() if vp.en == "be" else ""), "."

    def time(self) -> Sentence:
        draw = self.draw()
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
            subject = (
                subject
                if not subject.plural
                else self.noun(self.pick(lex.NOUNS["transport"]), "d", False, 0.0)
            )
            verb = self.pick((("partir", "leave"), ("arriver", "arrive")))
            if self.chance(0.25):
                subject = self.noun(self.pick(OPENING_HOURS), "d", False, 0.0)
                verb = self.pick((("ouvrir", "open"), ("fermer", "close")))
            vp = VP(*verb, "state", fr, en)  # timetables: simple present
            text = self.both(subject, vp, "present")
            return *self.placed(text, self.pick((("", ""), *lex.HABITUAL[3:7])), False), "."
        subject = self.subject()
        fr, en = self.date()
        if draw < 0.8:
            subject = self.thing("show study", "t", 0.0)
            noun = self.pick(
                (("LE anniversaire", "birthday"), ("LA fête", "party"), ("LE mariage", "wedding"))
            )
            owner = self.named_or_kin()
            return (
                f"{noun[0]} de {owner.fr} est LE {fr}",
                f"{owner.en} 's {noun[1]} is on {en}",
                ".",
            )
        vp = self.with_object(
            self.pick(lex.among(lex.SIMPLE, "arriver partir revenir marier")), subject
        )
        text = self.both(subject, vp, self.pick(("past", "future", "near")))
        return *self.placed(text, (f"LE {fr}", f"on {en}"), False), "."

    def weather(self) -> Sentence:
        draw = self.draw()
        if draw < 0.35:
            time = self.pick(lex.FUTURE)
            return *self.placed(
                self.weather_text(self.pick(("future", "near"))), time, self.chance(0.4)
            ), "."
        if draw < 0.6:
            time = self.pick((*lex.PAST, self.ago()))
            return *self.placed(self.weather_text("past"), time, self.chance(0.4)), "."
        place = self.pick(lex.CITIES)
        where = (place.fr, place.at)
        if draw < 0.8:
            adverb = self.pick(lex.FREQUENCY)
            fr, rest, en, en_rest = self.pick(lex.WEATHER)
            vp = VP(
                fr, en, "be" if en == "be" else "act", f"{rest} {where[0]}", f"{en_rest} {where[1]}"
            )
            return *self.both(
                NP("il", "it", pronoun=True), vp, "present", mode="habit", adverb=adverb
            ), "."
        text = self.weather_text("present")
        return *self.placed(
            text, self.pick((where, *lex.NOW, ("aujourd'hui", "today"))), False
        ), "."

    def weather_text(self, tense: str) -> Text:
        fr, rest, en, en_rest = self.pick(lex.WEATHER)
        vp = VP(fr, en, "be" if en == "be" else "act", rest, en_rest)
        return self.both(NP("il", "it", pronoun=True), vp, tense, negation=self.maybe_not())
