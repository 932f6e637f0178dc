"""Bad input for the fuzzing tests: damaged bytes, odd text, values of the wrong kind."""

import copy
import io
import string
import tarfile
import zipfile
from typing import Any

from hypothesis import strategies as st

# NUL, marks that turn the direction of writing, lone surrogates, a byte order mark, separators that
# end no line, combining marks, and what XML and JSON take for their own.
ODD = "\0\x0b\x0c\x85\u2028\u202e\u2066\u200f\ud800\udfff\ufeff\ufffd\U0010ffff\u0301\u0316"
ODD += "\u200d\u00a0 \t\n\r<>&;\"'{}[]#%\\"
odd_characters = st.one_of(
    st.sampled_from(ODD), st.sampled_from(string.ascii_letters + "éàœ’«»"), st.characters()
)
short_text = st.text(odd_characters, max_size=30)


@st.composite
def odd_text(draw: st.DrawFn) -> str:
    """A short text, now and then repeated to 100,000 characters."""
    text = draw(short_text)
    return text * (100_000 // len(text)) if text and draw(st.integers(0, 19)) == 7 else text


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """`whole` cut, bits turned over, a stretch replaced or repeated, or something else entirely."""
    how = draw(st.sampled_from(["cut", "flipped", "flipped", "replaced", "repeated", "other"]))
    if not whole:
        return draw(st.binary(max_size=200))
    place = st.integers(0, len(whole))
    if how == "cut":
        return whole[: draw(place)]
    if how == "flipped":
        flipped = bytearray(whole)
        for bit in draw(st.lists(st.integers(0, 8 * len(whole) - 1), min_size=1, max_size=6)):
            flipped[bit // 8] ^= 1 << bit % 8
        return bytes(flipped)
    first, last = sorted((draw(place), draw(place)))
    if how == "replaced":
        return whole[:first] + draw(st.binary(max_size=40)) + whole[last:]
    if how == "repeated":
        return whole[:last] + whole[first:last] * draw(st.integers(1, 20)) + whole[last:]
    return draw(st.binary(max_size=200))


numbers = st.sampled_from([-1, 0, 1, 2**31, 2**63, 10**30, 10**400])
odd_values: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), numbers, st.floats(), short_text),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(short_text, inner, max_size=3)
    ),
    max_leaves=5,
)


def _places(data: Any) -> list[list[Any]]:
    """The keys on the way to every value inside nested dicts and lists."""
    items: Any = ()
    if isinstance(data, dict):
        items = data.items()
    elif isinstance(data, (list, tuple)):
        items = enumerate(data)
    return [[key, *rest] for key, value in items for rest in ([], *_places(value))]


@st.composite
def altered(draw: st.DrawFn, data: Any) -> Any:
    """A copy of `data` with one to three of its values replaced, renamed or left out."""
    data = copy.deepcopy(data)
    for _ in range(draw(st.integers(1, 3))):
        places = _places(data)
        if not places:
            return data
        *outer, last = draw(st.sampled_from(places))
        node = data
        for key in outer:
            node = node[key]
        if not isinstance(node, (dict, list)):
            continue
        how = draw(st.sampled_from(["replaced", "replaced", "left out", "renamed"]))
        if how == "replaced":
            node[last] = draw(odd_values)
        elif how == "left out":
            del node[last]
        elif isinstance(node, dict):
            node[draw(short_text)] = node.pop(last)
    return data


def packed(suffix: str, members: list[tuple[str, bytes]], *, links: bool = False) -> bytes:
    """A .zip or .tgz of (name, content); in the latter perhaps a link beside each member."""
    raw = io.BytesIO()
    if suffix == ".zip":
        with zipfile.ZipFile(raw, "w") as archive:
            for name, content in members:
                archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        return raw.getvalue()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name, content in members:
            info, link = tarfile.TarInfo(name), tarfile.TarInfo(f"{name}.link")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            if links:
                tar.addfile(link)
    return raw.getvalue()
