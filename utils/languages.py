"""Language codes from language names, which are the ends of file names."""

import re

# Three-letter codes, and country codes that are no language codes.
_CODES = dict.fromkeys(("zho", "chi", "cmn", "cn"), "zh") | dict.fromkeys(
    ("jpn", "jap", "jp"), "ja"
)
_CODES["kor"] = "ko"


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
