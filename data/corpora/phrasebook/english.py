"""English morphology and spelling: verb forms, plurals, comparison, a/an, contracted negation."""

from __future__ import annotations

from functools import cache

from data.corpora.phrasebook.tables import entries, words

# base: past, past participle
IRREGULAR = {
    base: (past, participle)
    for base, past, participle in map(
        str.split,
        entries("""
            be was been; have had had; do did done; go went gone; come came come; become became become; see saw seen
            eat ate eaten; drink drank drunk; read read read; write wrote written; buy bought bought; sell sold sold
            take took taken; give gave given; get got gotten; put put put; lose lost lost; find found found
            break broke broken; know knew known; understand understood understood; hear heard heard; say said said
            tell told told; speak spoke spoken; think thought thought; sleep slept slept; run ran run; swim swam swum
            sing sang sung; drive drove driven; ride rode ridden; leave left left; meet met met; send sent sent
            lend lent lent; bring brought brought; build built built; cut cut cut; draw drew drawn; throw threw thrown
            forget forgot forgotten; choose chose chosen; hide hid hidden; fall fell fallen; feel felt felt
            pay paid paid; make made made; wear wore worn; wake woke woken; keep kept kept; begin began begun
            cost cost cost; ring rang rung; show showed shown
        """),
    )
}
DOUBLED = frozenset(["stop", "prefer"])  # regular verbs that double their last letter


@cache
def third_person(base: str) -> str:
    if base in ("be", "have", "do", "go"):
        return {"be": "is", "have": "has", "do": "does", "go": "goes"}[base]
    return _plus_s(base)


def _plus_s(word: str) -> str:
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


@cache
def past(base: str) -> str:
    return IRREGULAR[base][0] if base in IRREGULAR else _plus_ed(base)


@cache
def past_participle(base: str) -> str:
    return IRREGULAR[base][1] if base in IRREGULAR else _plus_ed(base)


def _plus_ed(base: str) -> str:
    if base in DOUBLED:
        return base + base[-1] + "ed"
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return base + "ed"


@cache
def ing(base: str) -> str:
    if base in DOUBLED or base in ("run", "swim", "put", "cut", "get", "forget", "begin"):
        return base + base[-1] + "ing"
    if base.endswith("ie"):
        return base[:-2] + "ying"
    if base.endswith("e") and not base.endswith("ee") and base != "be":
        return base[:-1] + "ing"
    return base + "ing"


# fmt: off
PLURALS = {
    "child": "children", "man": "men", "woman": "women", "mouse": "mice", "knife": "knives", "wife": "wives",
    "tooth": "teeth", "tomato": "tomatoes", "potato": "potatoes", "hero": "heroes", "fish": "fish",
    "saleswoman": "saleswomen", "salesman": "salesmen", "postman": "postmen",
}
# fmt: on


@cache
def plural(noun: str) -> str:
    head, _, last = noun.rpartition(" ")
    form = PLURALS.get(last) or _plus_s(last)
    return f"{head} {form}" if head else form


@cache
def comparative(adjective: str) -> str:
    if adjective in ("good", "bad"):
        return {"good": "better", "bad": "worse"}[adjective]
    stem = _short_stem(adjective)
    return stem + "er" if stem else "more " + adjective


@cache
def superlative(adjective: str) -> str:
    if adjective in ("good", "bad"):
        return {"good": "best", "bad": "worst"}[adjective]
    stem = _short_stem(adjective)
    return stem + "est" if stem else "most " + adjective


SHORT = words(
    "tall short big small old young new fast slow strong rich poor nice kind heavy light easy clean dirty happy pretty "
    "fresh hot cold high long sweet quiet proud funny busy lazy fat sad shy brave noisy strange sturdy handy empty"
)


def _short_stem(adjective: str) -> str:
    """The stem to which -er and -est are added; empty for adjectives compared with more and most."""
    if adjective not in SHORT:
        return ""
    if adjective.endswith("e"):
        return adjective[:-1]
    if adjective.endswith("y"):
        return adjective[:-1] + "i"
    return adjective + adjective[-1] if adjective in ("big", "hot", "fat", "sad") else adjective


# fmt: off
NEGATED = {
    "is": "isn't", "are": "aren't", "was": "wasn't", "were": "weren't", "have": "haven't", "has": "hasn't",
    "had": "hadn't", "do": "don't", "does": "doesn't", "did": "didn't", "will": "won't", "would": "wouldn't",
    "can": "can't", "could": "couldn't", "should": "shouldn't", "must": "must not", "am": "am not",
}
# fmt: on
# Spelling and sound part ways: a university, an hour.
CONSONANT_SOUND = ("uni", "use", "euro", "one")
VOWEL_SOUND = ("hour", "honest")


@cache
def article(word: str) -> str:
    """a or an before this word."""
    lower = word.lower()
    if lower.startswith(VOWEL_SOUND):
        return "an"
    return "an" if lower[0] in "aeiou" and not lower.startswith(CONSONANT_SOUND) else "a"


def spell(phrase: str, mark: str) -> str:
    """The written sentence: a/an chosen, commas and 's attached, capital first, `mark` at the end."""
    tokens = phrase.split()
    out = ""
    last = len(tokens) - 1
    for i, token in enumerate(tokens):
        if token == "a" and i < last:
            token = article(tokens[i + 1])
        out += token if token == "," or token[0] == "'" or not out else " " + token
    return out[0].upper() + out[1:] + mark


UNITS = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS = words("_ _ twenty thirty forty fifty sixty seventy eighty ninety")


def number(n: int) -> str:
    """0..100 in words."""
    if n == 100:
        return "a hundred"
    if n < 20:
        return UNITS[n]
    return TENS[n // 10] + (f"-{UNITS[n % 10]}" if n % 10 else "")
