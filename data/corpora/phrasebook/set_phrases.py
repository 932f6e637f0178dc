"""Plans with a frame of their own: ne … rien, depuis, need and wish, requests, quantities and
prices.
"""

from __future__ import annotations

from dataclasses import replace

from data.corpora.phrasebook import english, french, lexicon as lex
from data.corpora.phrasebook.clause import NP, VP, english_clause, french_clause
from data.corpora.phrasebook.tables import Text, pairs, rows
from data.corpora.phrasebook.timed_clauses import Clauses, Sentence
from data.corpora.phrasebook.verb_phrases import INNER

# verb / English / aspect
NOTHING_VERBS = rows("""
    manger/eat/act; boire/drink/act; acheter/buy/act; faire/do/act; dire/say/act; voir/see/state
    comprendre/understand/state; trouver/find/event; oublier/forget/event; perdre/lose/event
""")
SINCE_UNITS = {
    "attendre": pairs("minute=minute; heure=hour"),
    "dormir": pairs("minute=minute; heure=hour"),
    "être": pairs("jour=day; semaine=week"),
}
# verb / English / kind of its object
ORDERS = rows("""
    fermer/close/opening; ouvrir/open/opening; apporter/bring/thing; donner/give/thing; montrer/show/picture
    prendre/take/thing; écouter/listen to/song; finir/finish/task; lire/read/text; attendre/wait for/person
    apporter/bring/drink; expliquer/explain/study; laver/wash/dish; vendre/sell/vehicle
""")
# measure / English / what it measures
MEASURES = rows("""
    un verre de/a glass of/drink; une bouteille de/a bottle of/drink; une tasse de/a cup of/hot
    un morceau de/a piece of/cuttable; un peu de/a little/mass; un kilo de/a kilo of/food
""")
MEASURED = {
    "drink": tuple(noun for noun in lex.NOUNS["drink"] if noun.fr not in ("café", "thé")),
    "hot": lex.among(lex.NOUNS["drink"], "café thé"),
    "food": lex.among(
        lex.NOUNS["food"], "pomme orange poire banane tomate carotte haricot abricot fraise cerise"
    ),
}
# amount / English with a mass / English with a plural
AMOUNTS = rows("""
    beaucoup de/a lot of/a lot of; trop de/too much/too many; assez de/enough/enough; plus de/more/more
    moins de/less/fewer; peu de/little/few
""")


class SetPhrases(Clauses):
    """Plans with a frame of their own: ne … rien, depuis, need and wish, requests, quantities and
    prices.
    """

    def nothing(self) -> Sentence:
        """ne … rien."""
        subject = self.subject()
        fr, en, aspect = self.pick(NOTHING_VERBS)
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
        if tense != "present":
            time = self.pick(lex.PAST if tense == "past" else lex.FUTURE)
            if self.chance(0.6):
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
        fr, en = self.pick(SINCE_UNITS.get(vp.fr, pairs("mois=month; an=year")))
        count = 2 + self.below(9)
        time = (
            f"depuis {french.number(count)} {french.plural(fr)}",
            f"for {english.number(count)} {en}s",
        )
        return *self.placed(self.both(subject, vp, "present", mode="since"), time, False), "."

    def need(self) -> Sentence:
        """avoir besoin de, avoir envie de, avoir peur de, il faut."""
        subject = self.subject()
        draw = self.draw()
        if draw < 0.35:
            thing = self.noun(
                self.of_kinds(("thing", "device", "dish", "clothes")), self.pick("it"), False, 0.1
            )
            vp = VP("avoir", "need", "state", f"besoin de {thing.fr.replace('@', '')}", thing.en)
            tense = self.pick(("present", "present", "imperfect", "future"))
            return *self.both(subject, vp, tense, negation=self.maybe_not()), "."
        inner = self.lively(subject, 0.0)
        while inner.no_negation:
            inner = self.lively(subject, 0.0)
        if draw < 0.6:
            vp = self.chained("avoir besoin", "de", "need", "to", "state", inner)
            tense = self.pick(("present", "present", "imperfect", "future"))
            return *self.both(subject, vp, tense, negation=self.maybe_not()), "."
        if draw < 0.8:
            vp = self.chained("avoir envie", "de", "feel like", "-ing", "state", inner)
            tense = self.pick(("present", "present", "imperfect"))
            return *self.both(subject, vp, tense, negation=self.maybe_not()), "."
        we = self.pronoun("3")
        inner = self.lively(we, 0.4)
        while (
            inner.reflexive
            or inner.clitics
            or "POSS" in inner.en_obj
            or {"our", "us"} & set(inner.en_obj.split())
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
        person = 4 if vous else 1
        subject = NP("vous" if vous else "tu", "you", person, pronoun=True, possessive="your")
        please = ("s'il vous plaît" if vous else "s'il te plaît", "please")
        draw = self.draw()
        if draw < 0.25:
            noun = self.of_kinds(("drink", "mass")) if self.chance(0.5) else None
            if noun is not None:
                thing = self.noun(noun, "a", False, 0.0)
            else:
                noun = self.pick(lex.NOUNS["food"])
                few = noun.fr in ("haricot", "cerise", "fraise")  # nobody asks for one bean
                thing = self.noun(noun, "n" if few else self.pick("in"), False, 0.0)
            speaker = self.pronoun("03")
            text = self.both(
                speaker, VP("vouloir", "want", "state", thing.fr, thing.en), "conditional"
            )
            return f"{text[0]} , s'il vous plaît", f"{text[1]} , please", "."
        if draw < 0.4:
            inner = (
                self.with_object(self.pick(INNER["duty"]), subject)
                if self.chance(0.5)
                else self.giving(subject)
            )
            while inner.no_negation:
                inner = self.giving(subject)
            vp = self.chained("pouvoir", "", "can", "", "state", inner)
            return *self.politely(
                self.asked(subject, vp, self.pick(("present", "conditional")))[:2], please
            ), "?"
        if draw < 0.55:
            place = self.noun(self.of_kinds(("building", "building", "area")), "d", False, 0.0)
            if self.chance(0.5):
                return f"où est {place.fr} , s'il vous plaît", f"where is {place.en} , please", "?"
            return f"excusez-moi , où se trouve {place.fr}", f"excuse me , where is {place.en}", "?"
        verb, en, kind = self.pick(ORDERS)
        noun = self.of_kinds((kind,))
        if kind == "drink":
            determiner = "a"
        else:
            determiner = (
                "dt" if kind in ("opening", "song", "study", "person", "picture") else "dpt"
            )
        owner = self.pronoun("0") if verb in ("apporter", "donner") else subject
        thing = self.noun(noun, self.pick(determiner), False, 0.1, owner)
        fr_thing = thing.fr.replace("@dela", "de LA").replace("@du", "de LE")
        en_thing = thing.en.replace("@some", "some")
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
        order = (
            f"ne{me} {french.imperative(verb, person)} pas {vp.fr_obj}",
            f"don't {vp.en}{me} {vp.en_obj}",
        )
        return *self.politely(order, please if self.chance(0.4) else ("", "")), "."

    @staticmethod
    def politely(text: Text, please: Text) -> Text:
        return (f"{text[0]} , {please[0]}", f"{text[1]} , {please[1]}") if please[0] else text

    def quantity(self) -> Sentence:
        """beaucoup de, un verre de, un kilo de; prices."""
        subject = self.subject()
        draw = self.draw()
        if draw < 0.3:
            noun = self.of_kinds(("thing", "clothes", "text", "dish", "device"))
            thing = self.noun(noun, "t", False, 0.2)
            price = 2 + self.below(98)
            vp = VP(
                "coûter",
                "cost",
                "state",
                f"{french.number(price)} euros",
                f"{english.number(price)} euros",
            )
            return *self.both(thing, vp, self.pick(("present", "present", "imperfect"))), "."
        if draw < 0.55:
            measure_fr, measure_en, kind = self.pick(MEASURES)
            noun = self.pick(MEASURED[kind]) if kind in MEASURED else self.of_kinds((kind,))
            if kind == "food":
                verb, phrase = (
                    ("acheter", "buy"),
                    (f"{measure_fr} {noun.fr_plural}", f"{measure_en} {noun.en_plural}"),
                )
            else:
                verb = ("manger", "eat") if kind in ("cuttable", "mass") else ("boire", "drink")
                phrase = (f"{measure_fr} {noun.fr}", f"{measure_en} {noun.en}")
            vp = VP(*verb, "act", *phrase, no_negation=True)
            if self.chance(0.2):
                speaker = self.pronoun("03")
                wish = self.both(speaker, VP("vouloir", "want", "state", *phrase), "conditional")
                return *self.politely(wish, ("s'il vous plaît", "please")), "."
            return *self.statement(subject, vp), "."
        many = self.pick(AMOUNTS)
        if many[0] == "peu de" or self.chance(0.5):
            noun = self.of_kinds(("food", "text"))
            phrase = (f"{many[0]} {noun.fr_plural}", f"{many[2]} {noun.en_plural}")
        else:
            noun = self.of_kinds(("mass", "drink"))
            phrase = (f"{many[0]} {noun.fr}", f"{many[1]} {noun.en}")
        verb = {"text": ("lire", "read"), "drink": ("boire", "drink")}.get(
            noun.kind, ("manger", "eat")
        )
        vp = VP(*verb, "act", *phrase, no_negation=True)
        tense = self.pick(("past", "past", "present", "future"))
        if many[0] in ("plus de", "moins de"):
            other = self.another_name(subject)
            vp = vp.plus(f"que {other.fr}", f"than {other.en}")
            return *self.both(subject, vp, "present", mode="habit"), "."
        if tense == "present":
            adverb = lex.FREQUENCY[0] if many[0] != "peu de" else ("", "")
            return *self.both(subject, vp, tense, mode="habit", adverb=adverb), "."
        return *self.statement(subject, vp, tense), "."
