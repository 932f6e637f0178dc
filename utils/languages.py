"""Language codes from language names, which are the ends of file names."""

import re

# Codes of two letters, each before its codes of three and names that are none.
_NAMES = """bg bul, bn ben, ca cat, cs ces cze, da dan, de deu ger, el ell gre, en eng, es spa, et
est, fi fin, fr fra fre, ga gle, hi hin, hu hun, is isl ice, it ita, ja jpn jap jp, ko kor, lt lit,
lv lav, nl nld dut, pl pol, pt por, ro ron rum, ru rus, sk slk slo, sl slv, sv swe, ta tam, uk ukr,
zh zho chi cmn cn"""
_CODES = {name: code for code, *names in map(str.split, _NAMES.split(",")) for name in names}


def may_be_one(name: str, other: str) -> bool:
    """Whether two names may mean one language, as "zh" and "zho" or "en" and "eng" do.

    Codes of two and of three letters are not told apart.
    """
    code, its = language_code(name), language_code(other)
    if code is None or its is None:
        return name == other
    return code == its or len(code) != len(its)


def language_code(name: str) -> str | None:
    """A name's ISO 639 code: "zh" for "zh_CN" and "zho"; None if it does not begin with one."""
    found = re.match(r"[a-z]{2,3}(?![^\W_])", name.lower())
    return found and _CODES.get(found[0], found[0])
