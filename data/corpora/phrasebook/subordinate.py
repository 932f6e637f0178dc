"""Plans of several clauses: relatives, cause and condition, time, reported speech, coordination."""

from __future__ import annotations

from dataclasses import replace

from data.corpora.phrasebook import english, french, lexicon as lex
from data.corpora.phrasebook.clause import NP, POSSESSIVES, VP
from data.corpora.phrasebook.noun_phrases import DETERMINERS
from data.corpora.phrasebook.tables import Text, pairs
from data.corpora.phrasebook.timed_clauses import Clauses, Sentence, joined
from data.corpora.phrasebook.verb_phrases import INNER, PERSON_WORDS

# Things of which one may say: the one that I did it to.
DONE_WITH = tuple(
    p
    for p in lex.THINGS
    if p.aspect != "state"
    and p.fr not in ("couper", "traverser")
    and set(p.determiners) & set("di")
    if not set(p.determiners) & set("ga")
)
# Places of which one may say: the one where.
WHERE = lex.NOUNS["town"] + lex.among(
    lex.NOUNS["building"], "restaurant hôtel école bibliothèque magasin usine université"
)
# what happens in the middle of something else: half of the time somebody arrives
HAPPENINGS: tuple[Text | None, ...] = (
    *(None, None, None),
    *pairs("LE téléphone a sonné=the phone rang; LE train est arrivé=the train arrived"),
    ("il a commencé à pleuvoir", "it started to rain"),
)
# what one may leave undone: after sans
SILENT = pairs("""
    regarder LA carte=look at the map; attendre LE bus=wait for the bus; fermer LA porte=close the door
    répondre à LA question=answer the question; dire merci=say thank you; lire LA lettre=read the letter
""")
QUESTION_WORDS = pairs("où=where; pourquoi=why; quand=when; si=if")
WHEREABOUTS = (
    VP("habiter", "live", "state"),
    VP("travailler", "work", "state"),  # where one works as a rule: simple present
    VP("être", "be", "be"),
    VP("aller", "go", "act"),
)
ARRIVALS = pairs(
    "arriver=arrive; rentrer=go home; appeler=call; entrer dans LE salon=go into the living room"
)
IT = NP("il", "it", pronoun=True)
SAYING = pairs("savoir=know; penser=think; croire=believe; dire=say; espérer=hope; sûr=sure")


class Subordinate(Clauses):
    """Plans of several clauses: relatives, cause and condition, time, reported speech,
    coordination.
    """

    def relative_sentence(self) -> Sentence:
        phrase = self.relative()
        person = " who " in phrase.en
        draw = self.draw()
        if draw < 0.3:
            fr, en = ("ce sont", "these are") if phrase.plural else ("ce est", "this is")
            return f"{fr} {phrase.fr}", f"{en} {phrase.en}", "."
        if draw < 0.45:
            return f"voici {phrase.fr}", f"here {'are' if phrase.plural else 'is'} {phrase.en}", "."
        if draw < 0.75:
            subject = self.pronoun("0134") if self.chance(0.6) else self.name()
            fr, en = (
                ("connaître", "know") if person or " où " in phrase.fr else ("chercher", "look")
            )
            if en == "look":
                vp = VP(fr, en, "act", phrase.fr, "for " + phrase.en)
            else:
                vp = VP(fr, en, "state", phrase.fr, phrase.en)
            return *self.both(
                subject, vp, "present", negation=self.maybe_not(0.3) if en == "know" else ""
            ), "."
        adjective = self.pick(
            (("formidable", "wonderful"), ("bizarre", "odd"), ("important", "important"))
        )
        if person:
            adjective = self.pick(PERSON_WORDS)
        vp = VP("être", "be", "be", phrase.agree(adjective[0]), adjective[1])
        return *self.both(phrase, vp, self.pick(("present", "imperfect"))), "."

    def relative(self) -> NP:
        """A noun phrase with a relative clause: qui, que, où, dont."""
        draw = self.draw()
        plural = self.chance(0.2)
        speaker = self.pronoun() if self.chance(0.7) else self.named_or_kin()
        if draw < 0.3:
            noun = self.pick(lex.NOUNS["public"])
            head = self.noun_phrase(
                noun, DETERMINERS["d"][2 if plural else int(noun.feminine)], "the", plural
            )
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
            clause = self.both(head, vp, self.pick(("present", "imperfect")), bare=True)
            return self.extended(head, ("qui", "that"), clause)
        if draw < 0.68:
            predicate = self.pick(DONE_WITH)
            if speaker.person == 2 and predicate.determiners == "p":
                speaker = self.pronoun("0134")
            noun = self.of_kinds(predicate.objects)
            head = self.noun(noun, "d", plural, 0.15)
            vp = replace(self.verb(predicate), preceding=(head.feminine, plural))
            if predicate.en_rest in ("on", "away"):
                vp = replace(vp, en_obj=predicate.en_rest)
            clause = self.both(speaker, vp, "past")
            clause = self.placed(clause, self.pick((("", ""), ("", ""), *lex.PAST[:5])), False)
            return self.extended(head, ("que", "that"), clause)
        if draw < 0.78:
            noun = self.pick(lex.NOUNS["public"])
            head = self.noun_phrase(
                noun, DETERMINERS["d"][2 if plural else int(noun.feminine)], "the", plural
            )
            predicate = self.pick(lex.PERSONS[:2] + lex.PERSONS[3:9])
            while predicate.fr in ("embrasser", "connaître"):
                predicate = self.pick(lex.PERSONS[:2] + lex.PERSONS[3:9])
            vp = replace(self.verb(predicate), preceding=(head.feminine, plural))
            clause = self.placed(
                self.both(speaker, vp, "past"), self.pick((("", ""), *lex.PAST[:5])), False
            )
            return self.extended(head, ("que", "that"), clause)
        if draw < 0.9:
            noun = self.pick(WHERE)
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
        return replace(
            head, fr=f"{head.fr} {link[0]} {clause[0]}", en=f"{head.en} {link[1]} {clause[1]}"
        )

    def causal(self) -> Sentence:
        """parce que, donc, quand, si: a cause and its effect."""
        person = self.subject()
        again = person.pro()
        state, consequences, weather = self.cause(person)
        action, negation = self.pick(consequences)
        if weather:
            first, second = IT, person
            again_for_cause = IT
        else:
            first, second = person, again
            again_for_cause = again
        draw = self.draw()
        if draw < 0.3:  # effect parce que cause
            if self.chance(0.6):
                effect = self.both(person, action, "past", negation=negation)
                cause = self.both(again_for_cause, state, "imperfect")
            else:
                effect = self.both(
                    person, action, self.pick(("present", "near")), negation=negation
                )
                cause = self.both(again_for_cause, state, "present")
            return *joined(effect, ("parce que", "because"), cause), "."
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
            cause = self.both(
                first, state, "imperfect", mode="" if state.aspect == "be" else "habit"
            )
            if state.aspect == "act":  # if it rained: not the habit
                en = (
                    cause[1]
                    .replace("used to", "")
                    .replace("rain", "rained")
                    .replace("snow", "snowed")
                )
                cause = (cause[0], en)
            effect = self.both(second, action, "conditional", negation=negation)
            return f"si {cause[0]} , {effect[0]}", f"if {cause[1]} , {effect[1]}", "."
        cause = self.both(first, state, "present", mode="habit")
        effect = self.both(second, action, "present", mode="habit", negation=negation)
        if self.chance(0.5):
            return f"quand {cause[0]} , {effect[0]}", f"when {cause[1]} , {effect[1]}", "."
        cause = self.both(again_for_cause, state, "present", mode="habit")
        effect = self.both(person, action, "present", mode="habit", negation=negation)
        return *joined(effect, ("quand", "when"), cause), "."

    def cause(self, subject: NP) -> tuple[VP, list[tuple[VP, str]], bool]:
        """A state of affairs, what it leads to with the negation of each, and whether it is the
        weather.
        """
        state_fr, state_en, consequences = self.pick(lex.CAUSES)
        weather = state_fr.startswith("il ")
        verb, _, rest = state_fr.removeprefix("il ").partition(" ")
        en_verb, _, en_rest = state_en.partition(" ")
        if verb == "être" and rest != "en retard":
            rest = subject.agree(rest)
        aspect = "be" if en_verb == "be" else "act" if weather else "state"
        listed = [(self.built(text, subject), negation) for text, negation in consequences]
        return VP(verb, en_verb, aspect, rest, en_rest), listed, weather

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

    def temporal(self) -> Sentence:
        """pendant que, quand with the imparfait, avant de, sans."""
        subject = self.subject()
        other = self.other_subject(subject)
        draw = self.draw()
        if draw < 0.3:
            tense = self.pick(("present", "imperfect"))
            one, two = self.lively(subject, 0.3), self.lively(other, 0.3)
            while one.fr == two.fr:
                two = self.lively(other, 0.3)
            first, second = self.both(subject, one, tense), self.both(other, two, tense)
            if self.chance(0.3):
                return (
                    f"pendant que {first[0]} , {second[0]}",
                    f"while {first[1]} , {second[1]}",
                    ".",
                )
            return *joined(first, ("pendant que", "while"), second), "."
        if draw < 0.55:
            vp = self.lively(subject, 0.3)
            happening = self.pick(HAPPENINGS)
            if happening is None:
                fr, en = self.pick(ARRIVALS)
                verb, _, rest = fr.partition(" ")
                en_verb, _, en_rest = en.partition(" ")
                clause = VP(verb, en_verb, "act", rest, en_rest)
                if verb == "appeler":
                    if subject.person != 0 or other.person in (0, 3):
                        clause = VP("arriver", "arrive", "act")
                    else:
                        clause = VP(
                            "appeler",
                            "call",
                            "act",
                            "",
                            "me",
                            clitics=("me",),
                            preceding=(False, False),
                        )
                event = self.both(other, clause, "past")
            else:
                event = happening
            background = self.both(subject, vp, "imperfect")
            if self.chance(0.5):
                return (
                    f"quand {event[0]} , {background[0]}",
                    f"when {event[1]} , {background[1]}",
                    ".",
                )
            return *joined(background, ("quand", "when"), event), "."
        if draw < 0.67:
            subject = self.pronoun() if self.chance(0.6) else self.name()
            fr, en = (
                ("petit", "little")
                if subject.person != 4 and self.chance(0.6)
                else ("jeune", "young")
            )
            first = self.both(subject, VP("être", "be", "be", subject.agree(fr), en), "imperfect")
            again = subject.pro()
            pastime = (
                self.with_object(self.pick(INNER["childhood"]), again)
                if self.chance(0.75)
                else self.going()
            )
            second = self.both(again, self.adjoin(pastime, again, 0.3), "imperfect", mode="habit")
            if self.chance(0.4):
                second = (
                    self.placed(second, self.pick(lex.HABITUAL), False)
                    if pastime.aspect == "act"
                    else second
                )
            return f"quand {first[0]} , {second[0]}", f"when {first[1]} , {second[1]}", "."
        one, two = self.lively(subject, 0.3), self.with_object(self.pick(INNER["before"]), subject)
        while one.fr == two.fr:
            one = self.lively(subject, 0.3)
        fr, en = self.pick((("avant de", "before"), ("avant de", "before"), ("sans", "without")))
        if fr == "sans":
            two = self.built(self.pick(SILENT), subject)
            if "sans" in one.fr_obj.split():  # not sans twice
                fr, en = "avant de", "before"
        tense = self.pick(("past", "past", "future", "near"))
        vp = one.plus(f"{fr} {two.infinitive()}", f"{en} {two.gerund()}".replace("@some", ""))
        return *self.both(subject, vp, tense), "."

    def reported(self) -> Sentence:
        """that-clauses and indirect questions."""
        subject = self.pronoun() if self.chance(0.6) else self.named_or_kin()
        other = self.other_subject(subject)
        fr, en = self.pick(SAYING)
        draw = self.draw()
        if draw < 0.25:
            vp = VP("savoir", "know", "state")
            word = self.pick(QUESTION_WORDS)
            if word[0] == "où":
                inner = self.both(other, self.pick(WHEREABOUTS), "present")
            elif word[0] == "quand":
                action = self.with_object(
                    self.pick(lex.among(lex.SIMPLE, "arriver partir revenir rentrer")), other
                )
                inner = self.both(other, action, self.pick(("future", "past")))
            else:
                action = self.action(other)
                tense = "past" if action.aspect != "state" else "present"
                inner = self.statement(other, action, tense, time=0.3, negate=0.0, front_share=0.0)
            return *joined(
                self.both(subject, vp, "present", negation=self.maybe_not(0.8)), word, inner
            ), "."
        vp = (
            VP("être", "be", "be", subject.agree("sûr"), "sure")
            if fr == "sûr"
            else VP(fr, en, "state")
        )
        if draw < 0.4 and fr in ("dire", "penser"):
            matrix = self.both(subject, vp, "past" if fr == "dire" else "imperfect")
            inner_vp = self.action(other, 0.3) if self.chance(0.6) else self.state(other)
            while inner_vp.aspect == "event":
                inner_vp = self.action(other, 0.3)
            tense = "conditional" if inner_vp.aspect == "act" and self.chance(0.5) else "imperfect"
            inner = self.both(other, inner_vp, tense)
            return *joined(matrix, ("que", "that"), inner), "."
        if fr == "espérer":
            action = self.action(other)
            tense = self.pick(("future", "near")) if action.aspect != "state" else "future"
            inner = self.statement(other, action, tense, front_share=0.0)
        elif self.chance(0.3):
            inner = self.both(other, self.state(other), "present", negation=self.maybe_not())
        else:
            action = self.action(other)
            if action.aspect == "state":
                tense = "present"
            else:
                tense = self.pick(
                    ("past", "future")
                    if action.aspect == "event"
                    else ("present", "past", "future")
                )
            inner = self.statement(other, action, tense, time=0.3, front_share=0.0)
        return *joined(self.both(subject, vp, "present"), ("que", "that"), inner), "."

    def coordination(self) -> Sentence:
        """Two to four clauses in one tense, joined by et, mais, puis."""
        draw = self.draw()
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
            time, mode = (
                (self.pick(lex.FORMERLY), "habit")
                if self.chance(0.5)
                else (self.pick(lex.BACKGROUND), "")
            )
        subject = self.subject()
        one = self.lively(subject, 0.4)
        text = self.both(subject, one, tense, mode=mode)
        if draw < 0.6 or tense in ("present", "imperfect"):
            text = self.placed(text, time, True) if time[0] and self.chance(0.75) else text
            if not text[0].startswith(time[0]) and mode == "habit":
                text = self.placed(text, time, True)
        used = {one.fr}
        count = self.pick((1, 1, 1, 2, 2, 3, 4))
        if draw < 0.45 and tense in (
            "past",
            "future",
            "near",
        ):  # one person, one thing after another
            again = subject.pro()
            for step in range(count):
                vp = self.fresh(again, used)
                last = step == count - 1
                clause = self.both(again, vp, tense)
                if not last:
                    link = (",", ",")
                else:
                    link = (
                        self.and_(text, again)
                        if count == 1 and self.chance(0.5)
                        else ("puis", ", then")
                    )
                text = self.linked(text, link, clause)
            return *text, "."
        people = [subject]
        for step in range(count):
            other = self.other_subject(people[-1])
            while any(
                other.fr == p.fr
                or p.fr in other.fr
                or (other.person == p.person and other.pronoun and p.pronoun)
                for p in people
            ):
                other = self.other_subject(people[-1])
            people.append(other)
            vp = self.fresh(other, used)
            deniable = count == 1 and not vp.no_negation and tense not in ("present", "imperfect")
            negation = self.maybe_not(0.2) if deniable else ""
            clause = self.both(other, vp, tense, mode=mode, negation=negation)
            last = step == count - 1
            if not last:
                link = (",", ",")
            else:
                link = (
                    ("mais", ", but") if negation or self.chance(0.35) else self.and_(text, other)
                )
            text = self.linked(text, link, clause)
        return *text, "."

    @staticmethod
    def and_(text: Text, subject: NP) -> Text:
        """et between clauses, with a comma where it might seem to lengthen a company: avec Anne, et
        vous …
        """
        unclear = " et " in subject.fr or {"avec", "sans"} & set(text[0].split())
        return (", et" if unclear else "et"), ", and"

    def fresh(self, subject: NP, used: set[str]) -> VP:
        while True:
            vp = self.lively(subject, 0.4)
            if vp.fr not in used and vp.fr not in ("rester", "arriver"):
                used.add(vp.fr)
                return vp

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
