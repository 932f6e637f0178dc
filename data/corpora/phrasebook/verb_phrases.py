"""Verb phrases: a verb with objects and adjuncts, chains of verbs, states, clock times."""

from __future__ import annotations

from dataclasses import replace

from data.corpora.phrasebook import english, french, lexicon as lex
from data.corpora.phrasebook.clause import NP, VP
from data.corpora.phrasebook.noun_phrases import NounPhrases
from data.corpora.phrasebook.tables import Text, rows

OBJECT_PRONOUNS = (("me", "me"), ("te", "you"), ("nous", "us"), ("vous", "you"))
MANNER = dict(lex.MANNERS)
PERSON_WORDS = (
    tuple((a.fr, a.en) for a in lex.ADJECTIVES if "kin" in a.kinds) + lex.PERSON_ADJECTIVES
)
# verb / link / English / English link / aspect / class of the infinitive
CHAINS = rows("""
    vouloir//want/to/state/any
    vouloir//want/to/state/any
    pouvoir//can//state/any
    pouvoir//can//state/any
    devoir//must//state/any
    devoir//must//state/any
    refuser/de/refuse/to/event/any
    décider/de/decide/to/event/any
    savoir//know how/to/state/skill
    apprendre/à/learn/to/act/skill
    aimer//like/to/state/pleasure
    préférer//prefer/to/state/pleasure
    essayer/de/try/to/act/task
    oublier/de/forget/to/event/duty
    commencer/à/start/to/act/habit
    finir/de/finish/-ing/event/task
    arrêter/de/stop/-ing/event/habit
""")
_VERBS = (*lex.SIMPLE, *lex.THINGS, *lex.PERSONS, *lex.DATIVES)


def _verbs(with_objects: str, without: str = "") -> tuple[lex.Predicate, ...]:
    """Predicates of these verbs: `without` takes those alone that have no object."""
    bare = tuple(p for p in _VERBS if p.fr in without.split() and not p.objects)
    return bare + tuple(p for p in _VERBS if p.fr in with_objects.split())


# Which infinitives go with which verbs of CHAINS, after avant de, and when one was little.
INNER = {
    "skill": tuple(
        p
        for p in _verbs("nager danser chanter cuisiner jouer conduire réparer")
        if "t" not in p.determiners or p.fr != "chanter"
    ),
    "pleasure": (
        *_verbs(
            "jouer",
            "nager danser voyager marcher courir cuisiner jouer promener dormir étudier travailler",
        ),
        *_verbs("", "écouter"),
    ),
    "task": _verbs("lire réparer nettoyer laver préparer dessiner peindre") + _verbs("faire"),
    "duty": _verbs("fermer téléphoner appeler laver préparer remercier répondre nettoyer")
    + _verbs("faire"),
    "habit": _verbs(
        "jouer",
        "travailler courir pleurer rire fumer chanter danser étudier nager marcher cuisiner",
    ),
    "before": _verbs(
        "faire jouer",
        "partir sortir coucher dormir dîner déjeuner rentrer travailler promener étudier jouer reposer habiller laver",
    ),
    "childhood": _verbs(
        "aimer adorer détester jouer",
        "nager danser chanter pleurer jouer courir voyager habiter rire",
    ),
}


class VerbPhrases(NounPhrases):
    """Verb phrases: a verb with objects and adjuncts, chains of verbs, states, clock times."""

    def action(self, subject: NP, adjuncts: float = 0.5) -> VP:
        """Something that a person does, with its complements and now and then a place, a manner or
        company.
        """
        draw = self.draw()
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

    def with_object(self, predicate: lex.Predicate, subject: NP) -> VP:
        vp = self.verb(predicate)
        if not predicate.objects:
            return vp
        thing, determiner = self.object_for(predicate, subject)
        if predicate.fr_prep:  # only a direct object changes its article under negation
            bare_plural = predicate.fr_prep == "de" and "@des" in thing.fr
            fr = (
                thing.fr.replace("@des", "" if bare_plural else "des")
                .replace("@une", "une")
                .replace("@un", "un")
            )
            if predicate.fr_prep == "de" and fr.startswith("de "):
                fr, bare_plural = fr.removeprefix("de "), True
            thing = replace(
                thing, fr=fr, en=thing.en.replace("@some", "" if bare_plural else "some")
            )
        vp = vp.plus(f"{predicate.fr_prep} {thing.fr}", thing.en)
        return replace(vp, no_negation=True) if determiner == "n" else vp

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

    def going(self) -> VP:
        place = self.pick(lex.PLACES) if self.chance(0.6) else self.pick(lex.CITIES)
        vp = VP("aller", "go", "act", place.fr, place.to)
        if place in lex.CITIES and self.chance(0.5):
            means = self.pick(("en train", "en avion", "en voiture", "en bus"))
            by = {
                "en train": "by train",
                "en avion": "by plane",
                "en voiture": "by car",
                "en bus": "by bus",
            }[means]
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
            companion = self.possessed(
                friends, subject.person, subject.possessive, self.chance(0.6)
            )
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
        draw = self.draw()
        if draw < 0.5:
            fr, en = self.pick(PERSON_WORDS)
            return VP("être", "be", "be", subject.agree(fr), en, steady=fr not in lex.PASSING)
        if draw < 0.8:
            fr, en = self.pick(lex.FEELINGS)
            return VP("avoir", "be", "be", fr, en)
        if draw < 0.9:
            place = self.pick(lex.PLACES)
            return VP("être", "be", "be", place.fr, place.at)
        age = 5 + self.below(76)
        return VP(
            "avoir",
            "be",
            "be",
            f"{french.number(age)} ans",
            f"{english.number(age)} years old",
            steady=True,
        )

    def clock(self) -> Text:
        """à huit heures et demie: at half past eight."""
        fr, en = self.hour()
        return f"à {fr}", f"at {en}"

    def hour(self) -> Text:
        draw = self.draw()
        if draw < 0.06:
            return "midi", "noon"
        if draw < 0.1:
            return "minuit", "midnight"
        hour = 1 + self.below(11)
        name = "une heure" if hour == 1 else f"{french.number(hour)} heures"
        this = english.number(hour)
        match self.below(8):
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
