"""What the name of a language, which ends the names of its files, says of it."""

import re

# Codes of three letters, and those of countries that are no codes of languages.
_CODES = {"zho": "zh", "chi": "zh", "cmn": "zh", "cn": "zh", "jpn": "ja", "jp": "ja", "kor": "ko"}


def language_code(name: str) -> str | None:
    """Its ISO 639 code: "zh" of "zh_CN" and of "zho"; None where it begins with no such code."""
    found = re.match(r"[a-z]{2,3}(?![^\W_])", name.lower())
    return found and _CODES.get(found[0], found[0])
