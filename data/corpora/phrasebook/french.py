"""French morphology and spelling: conjugation, agreement, elision, contraction.

A phrase is a string of tokens parted by spaces. `spell` turns it into text. Tokens with a meaning of their own:
`LE LA LES` are articles (they contract with `à` and `de`, clitic pronouns do not); `a|b` is `a` before a consonant
and `b` before a vowel sound (`ma|mon`, `ce|cet`, `beau|bel`).
"""

from __future__ import annotations

import unicodedata
from functools import cache

from data.corpora.phrasebook.tables import words

# Words with h aspiré, and the vowel words that refuse elision.
NO_ELISION = words(
    "haricot haricots hamster hamsters héros hibou hiboux haut haute hauts hautes huit huitième onze onzième oui "
    "homard homards halles hasard honte hollandais hollandaise"
)
ELIDED = {
    word: word[:-1] + "'"
    for word in (
        "je",
        "me",
        "te",
        "se",
        "ne",
        "de",
        "que",
        "le",
        "la",
        "ce",
        "jusque",
        "lorsque",
        "puisque",
    )
}
ARTICLES = {"LE": "le", "LA": "la", "LES": "les"}
CONTRACTED = {("à", "LE"): "au", ("à", "LES"): "aux", ("de", "LE"): "du", ("de", "LES"): "des"}


@cache
def starts_with_vowel(word: str) -> bool:
    """Whether elision and liaison happen before this word: vowels and mute h, but not h aspiré."""
    if word == "y":
        return True
    lower = word.lower()
    if lower in NO_ELISION:
        return False
    return unicodedata.normalize("NFD", lower)[0] in "aeiouhœæ"


def spell(phrase: str, mark: str) -> str:
    """The written sentence: elision and contraction resolved, capital first, `mark` at the end."""
    out = ""
    following = ""  # surface form of the token to the right
    raw = phrase.split()
    i = len(raw) - 1
    while i >= 0:
        token = raw[i]
        glue = " "
        if "|" in token:
            consonant, vowel = token.split("|")
            token = vowel if following and starts_with_vowel(following) else consonant
        elif token in ARTICLES:
            vowel_next = starts_with_vowel(following) and token != "LES"
            before = raw[i - 1] if i else ""
            if not vowel_next and (before, token) in CONTRACTED:
                token = CONTRACTED[before, token]
                i -= 1
            else:
                token = "l'" if vowel_next else ARTICLES[token]
        elif (token in ELIDED and following and starts_with_vowel(following)) or (
            token == "si" and following in ("il", "ils")
        ):
            token = ELIDED.get(token, "s'")
        if token.endswith("'") or following in (",", ""):
            glue = ""
        out = token + glue + out
        following = token
        i -= 1
    return out[0].upper() + out[1:] + mark


# ----------------------------------------------------------------------------- nouns and adjectives


def plural(word: str) -> str:
    """Plural of a noun or of a masculine adjective, for the regular classes (exceptions live in the
    lexicon).
    """
    if word[-1] in "sxz":
        return word
    if word.endswith(("eau", "eu")):
        return word + "x"
    if word.endswith("al"):
        return word[:-2] + "aux"
    return word + "s"


# fmt: off
FEMININE = {
    "beau": "belle", "nouveau": "nouvelle", "vieux": "vieille", "blanc": "blanche", "gros": "grosse",
    "gentil": "gentille", "frais": "fraîche", "long": "longue", "doux": "douce", "public": "publique",
    "jaloux": "jalouse", "inquiet": "inquiète", "roux": "rousse", "bas": "basse",
}
# fmt: on
BEFORE_VOWEL = {"beau": "bel", "nouveau": "nouvel", "vieux": "vieil"}


@cache
def feminine(adjective: str) -> str:
    if adjective in FEMININE:
        return FEMININE[adjective]
    if adjective.endswith("e"):
        return adjective
    for ending, replacement in (
        ("er", "ère"),
        ("eux", "euse"),
        ("f", "ve"),
        ("en", "enne"),
        ("on", "onne"),
        ("el", "elle"),
    ):
        if adjective.endswith(ending):
            return adjective[: -len(ending)] + replacement
    return adjective + "e"


@cache
def adjective_form(
    adjective: str, is_feminine: bool, is_plural: bool, before_noun: bool = False
) -> str:
    """The agreeing form. Before a noun, `beau`, `nouveau` and `vieux` keep both variants for
    `spell` to choose from.
    """
    if is_feminine:
        form = feminine(adjective)
        return form + "s" if is_plural else form
    if is_plural:
        return "bleus" if adjective == "bleu" else plural(adjective)
    if before_noun and adjective in BEFORE_VOWEL:
        return f"{adjective}|{BEFORE_VOWEL[adjective]}"
    return adjective


# -------------------------------------------------------------------------------------------- verbs
# infinitive: present (je tu il nous vous ils), future stem, past participle.
IRREGULAR = {
    "être": ("suis es est sommes êtes sont", "ser", "été"),
    "avoir": ("ai as a avons avez ont", "aur", "eu"),
    "aller": ("vais vas va allons allez vont", "ir", "allé"),
    "faire": ("fais fais fait faisons faites font", "fer", "fait"),
    "pouvoir": ("peux peux peut pouvons pouvez peuvent", "pourr", "pu"),
    "vouloir": ("veux veux veut voulons voulez veulent", "voudr", "voulu"),
    "devoir": ("dois dois doit devons devez doivent", "devr", "dû"),
    "savoir": ("sais sais sait savons savez savent", "saur", "su"),
    "voir": ("vois vois voit voyons voyez voient", "verr", "vu"),
    "croire": ("crois crois croit croyons croyez croient", "croir", "cru"),
    "venir": ("viens viens vient venons venez viennent", "viendr", "venu"),
    "prendre": ("prends prends prend prenons prenez prennent", "prendr", "pris"),
    "mettre": ("mets mets met mettons mettez mettent", "mettr", "mis"),
    "dire": ("dis dis dit disons dites disent", "dir", "dit"),
    "écrire": ("écris écris écrit écrivons écrivez écrivent", "écrir", "écrit"),
    "lire": ("lis lis lit lisons lisez lisent", "lir", "lu"),
    "boire": ("bois bois boit buvons buvez boivent", "boir", "bu"),
    "recevoir": ("reçois reçois reçoit recevons recevez reçoivent", "recevr", "reçu"),
    "connaître": (
        "connais connais connaît connaissons connaissez connaissent",
        "connaîtr",
        "connu",
    ),
    "ouvrir": ("ouvre ouvres ouvre ouvrons ouvrez ouvrent", "ouvrir", "ouvert"),
    "courir": ("cours cours court courons courez courent", "courr", "couru"),
    "vivre": ("vis vis vit vivons vivez vivent", "vivr", "vécu"),
    "suivre": ("suis suis suit suivons suivez suivent", "suivr", "suivi"),
    "conduire": ("conduis conduis conduit conduisons conduisez conduisent", "conduir", "conduit"),
    "construire": (
        "construis construis construit construisons construisez construisent",
        "construir",
        "construit",
    ),
    "rire": ("ris ris rit rions riez rient", "rir", "ri"),
    "peindre": ("peins peins peint peignons peignez peignent", "peindr", "peint"),
    "falloir": ("faut faut faut faut faut faut", "faudr", "fallu"),
    "pleuvoir": ("pleut pleut pleut pleut pleut pleut", "pleuvr", "plu"),
    "envoyer": ("envoie envoies envoie envoyons envoyez envoient", "enverr", "envoyé"),
}
# fmt: off
PREFIXED = {
    "apprendre": ("ap", "prendre"), "comprendre": ("com", "prendre"), "revenir": ("re", "venir"),
    "devenir": ("de", "venir"), "souvenir": ("sou", "venir"), "promettre": ("pro", "mettre"),
    "reconnaître": ("re", "connaître"), "sourire": ("sou", "rire"),
}
# fmt: on
DORMIR_CLASS = frozenset(["dormir", "partir", "sortir", "sentir", "servir", "mentir", "endormir"])
DOUBLING = {
    "appeler": "appell",
    "rappeler": "rappell",
    "jeter": "jett",
}  # l and t doubled before a mute e
ETRE_VERBS = words(
    "aller venir revenir devenir partir sortir arriver entrer rentrer rester tomber retourner"
)
PRESENT_ER = ("e", "es", "e", "ons", "ez", "ent")
IMPERFECT = ("ais", "ais", "ait", "ions", "iez", "aient")
FUTURE = ("ai", "as", "a", "ons", "ez", "ont")


def _er_stems(verb: str) -> tuple[str, str]:
    """Stem of the stressed forms (je, tu, il, ils) and future stem of a verb in -er."""
    stem = verb[:-2]
    if verb in DOUBLING:
        return DOUBLING[verb], DOUBLING[verb] + "er"
    if stem.endswith(("oy", "uy", "ay")):
        return stem[:-1] + "i", stem[:-1] + "ier"
    if (len(stem) > 2 and stem[-2] == "e" and stem[-1] not in "rlst") or verb in (
        "acheter",
        "lever",
        "geler",
        "peser",
    ):
        accented = stem[:-2] + "è" + stem[-1]
        return accented, accented + "er"
    if len(stem) > 2 and stem[-2] == "é":
        return stem[:-2] + "è" + stem[-1], verb  # préférer: je préfère, je préférerai
    return stem, verb


def _soften(stem: str, ending: str) -> str:
    """mangeons, commençons: g and c keep their sound before a and o."""
    if ending[0] in "ao":
        if stem.endswith("g"):
            return stem + "e" + ending
        if stem.endswith("c"):
            return stem[:-1] + "ç" + ending
    return stem + ending


@cache
def _principal(verb: str) -> tuple[tuple[str, ...], str, str]:
    """Present tense, future stem, past participle."""
    if verb in IRREGULAR:
        present, future, participle = IRREGULAR[verb]
        return tuple(present.split()), future, participle
    if verb in PREFIXED:
        prefix, base = PREFIXED[verb]
        present_forms, future, participle = _principal(base)
        return tuple(prefix + form for form in present_forms), prefix + future, prefix + participle
    stem = verb[:-2]
    if verb in DORMIR_CLASS:
        short = stem[:-1]
        return (
            (short + "s", short + "s", short + "t", stem + "ons", stem + "ez", stem + "ent"),
            verb,
            stem + "i",
        )
    if verb.endswith("er"):
        stressed, future = _er_stems(verb)
        forms = tuple(
            (stem if k in (3, 4) else stressed, ending) for k, ending in enumerate(PRESENT_ER)
        )
        return tuple(_soften(s, e) for s, e in forms), future, stem + "é"
    if verb.endswith("ir"):
        return (
            tuple(stem + e for e in ("is", "is", "it", "issons", "issez", "issent")),
            verb,
            stem + "i",
        )
    if verb.endswith("dre"):
        return tuple(stem + e for e in ("s", "s", "", "ons", "ez", "ent")), verb[:-1], stem + "u"
    raise KeyError(verb)


@cache
def conjugate(verb: str, tense: str, person: int) -> str:
    """A simple tense. tense: present, imperfect, future, conditional; person: 0..5 for je tu il
    nous vous ils.
    """
    present, future, _ = _principal(verb)
    if tense == "present":
        return present[person]
    if tense == "future":
        return future + FUTURE[person]
    if tense == "conditional":
        return future + IMPERFECT[person]
    if tense == "imperfect":
        stem = {"être": "ét", "falloir": "fall", "pleuvoir": "pleuv"}.get(verb) or present[3][:-3]
        if (stem.endswith("ge") and verb.endswith("ger")) or stem.endswith("ç"):
            stem = verb[:-2]
        return _soften(stem, IMPERFECT[person])
    raise ValueError(tense)


IMPERATIVES = {
    "être": ("sois", "soyons", "soyez"),
    "avoir": ("aie", "ayons", "ayez"),
    "savoir": ("sache", "sachons", "sachez"),
}


def imperative(verb: str, person: int) -> str:
    """Imperative of tu (1), nous (3) or vous (4)."""
    if verb in IMPERATIVES:
        return IMPERATIVES[verb][(1, 3, 4).index(person)]
    form = conjugate(verb, "present", person)
    return form[:-1] if person == 1 and form.endswith(("es", "as")) else form


@cache
def participle(verb: str, is_feminine: bool = False, is_plural: bool = False) -> str:
    form = _principal(verb)[2]
    if is_feminine:
        form = "due" if form == "dû" else form + "e"
    if is_plural and not form.endswith("s"):
        form += "s"
    return form


def auxiliary(verb: str, reflexive: bool) -> str:
    return "être" if reflexive or verb in ETRE_VERBS else "avoir"


def invert(verb_form: str, pronoun: str) -> str:
    """Verb and subject pronoun turned round, with the euphonic t: parle-t-il, a-t-elle, veux-tu."""
    link = "-t-" if verb_form[-1] in "aec" and pronoun[0] in "aeio" else "-"
    return verb_form + link + pronoun


def reflexive_pronoun(person: int) -> str:
    return ("me", "te", "se", "nous", "vous", "se")[person]


# fmt: off
CLITIC_RANK = {
    "me": 0, "te": 0, "se": 0, "SE": 0, "nous": 0, "vous": 0, "le": 1, "la": 1, "les": 1, "lui": 2, "leur": 2, "y": 3,
    "en": 4,
}
# fmt: on


def order_clitics(clitics: tuple[str, ...]) -> tuple[str, ...]:
    """Object pronouns in the order of French: me te se nous vous, le la les, lui leur, y, en."""
    return tuple(sorted(clitics, key=CLITIC_RANK.__getitem__))


# ------------------------------------------------------------------------------------------ numbers
UNITS = words(
    "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize dix-sept dix-huit "
    "dix-neuf"
)
TENS = {20: "vingt", 30: "trente", 40: "quarante", 50: "cinquante", 60: "soixante"}


def number(n: int, is_feminine: bool = False) -> str:
    """0..100 in words, in the traditional spelling (vingt et un, soixante et onze, quatre-vingts)."""
    if n == 100:
        return "cent"
    if n < 20:
        return "une" if n == 1 and is_feminine else UNITS[n]
    if n < 70:
        ten, unit = n - n % 10, n % 10
        if unit == 0:
            return TENS[ten]
        return (
            f"{TENS[ten]} et {'une' if is_feminine else 'un'}"
            if unit == 1
            else f"{TENS[ten]}-{UNITS[unit]}"
        )
    if n < 80:
        return "soixante et onze" if n == 71 else f"soixante-{UNITS[n - 60]}"
    if n == 80:
        return "quatre-vingts"
    return f"quatre-vingt-{'une' if n == 81 and is_feminine else UNITS[n - 80]}"
