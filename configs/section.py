"""The base of every part of the configuration: a frozen dataclass that checks its fields."""

import dataclasses
import operator
import re
import sys
import types
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Literal, NoReturn, dataclass_transform, get_args, get_origin

from utils.errors import ConfigError

LARGEST = 2**63 - 1  # of an integer: what torch and NumPy can hold
MOST = 2**20  # of a width, a length or a count
MOST_STEPS = 2**31 - 1
TINY, HUGE = 1e-30, 1e30  # of a positive number: float32 holds it and its inverse
BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "ge": (">=", operator.ge),
    "gt": (">", operator.gt),
    "lt": ("<", operator.lt),
    "le": ("<=", operator.le),
    "multiple_of": ("a multiple of", lambda value, factor: value % factor == 0),
}
NOUNS: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    str: "a string of Unicode text",
    bool: "True or False",
    types.NoneType: "None",
}


def number(default: Any, **bounds: float | str) -> Any:
    """A numeric field, or a tuple of numbers; its BOUNDS are checked when the section is made.

    A bound given as text is the name of another field of the section.
    """
    return dataclasses.field(default=default, metadata=bounds)


def count(default: Any, ge: int = 1, le: int = MOST, **bounds: float | str) -> Any:
    """An integer field for a size or a number of times, up to MOST by default."""
    return number(default, ge=ge, le=le, **bounds)


def positive(default: Any) -> Any:
    """A field for a number above 0, of any order of magnitude."""
    return number(default, ge=TINY, le=HUGE)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Section:
    """A part of the configuration: checks types and bounds of all fields, then `_check`.

    Every subclass becomes a frozen, keyword-only dataclass. `class Noam(Section, kind="noam",
    section="optim.schedule")` names a union's member and its place, with which messages begin.
    """

    kind: ClassVar[str] = ""
    section: ClassVar[str] = ""  # subclasses inherit it
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, *, kind: str = "", section: str = "") -> None:
        cls.kind = kind or cls.kind
        cls.section = section or cls.section
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        cls: Any = type(self)
        hints = type_hints(cls)
        wrong = [name for name, hint in hints.items() if not fits(getattr(self, name), hint)]
        wrong = wrong or [name for name in hints if not self._within_bounds(name)]
        if wrong:
            self._fail(wrong[0], f"allowed: {describe(hints[wrong[0]], self._bounds(wrong[0]))}")
        self._check()

    def _within_bounds(self, name: str) -> bool:
        value = getattr(self, name)
        return value is None or all(
            BOUNDS[sign][1](each, getattr(self, bound) if isinstance(bound, str) else bound)
            for sign, bound in self.__dataclass_fields__[name].metadata.items()
            for each in (value if isinstance(value, tuple) else (value,))
        )

    def _bounds(self, name: str) -> str:
        """In words."""
        words = []
        for sign, bound in self.__dataclass_fields__[name].metadata.items():
            if isinstance(bound, str):
                bound = f"{bound} = {getattr(self, bound)}"
            words.append(f"{BOUNDS[sign][0]} {bound}")
        return " and ".join(words)

    def _check(self) -> None:
        """Rules between the fields of one section."""

    def _check_name(self, field: str, signs: str = "_-") -> None:
        """Check that a text, if there is one, can be part of a file's name."""
        text = getattr(self, field)
        if text == "" or not all(c.isalnum() or c in signs for c in text or ()):
            self._fail(field, f"allowed: letters, digits and {' '.join(signs)}")

    def _fail(self, name: str, rule: str) -> NoReturn:
        """Raises ConfigError naming the field (or one below: `clean.language`) and the rule."""
        value = operator.attrgetter(name)(self)
        raise ConfigError(f"{join(self.section, name)} = {value!r}: {rule}")


def to_dict(section: Section) -> dict[str, Any]:
    """Nested dict of JSON values; a union's member begins with its kind, tuples become lists."""
    data: dict[str, Any] = {"kind": section.kind} if section.kind else {}
    return data | {f.name: _plain(getattr(section, f.name)) for f in dataclasses.fields(section)}


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return to_dict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


# ---------------------------------------------------------------------------------------- the types


@cache
def type_hints(cls: Any) -> dict[str, Any]:
    """Resolved annotations of a section's fields, which may be strings in the source."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def members(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union annotation; the annotation itself where it is not a union."""
    # `Literal["a"] | None` is a typing.Union on Python 3.11, unlike a union of classes.
    return get_args(hint) if get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def item_hint(hint: Any) -> Any:
    """The annotation of a tuple's items; None for anything else."""
    return next((get_args(m)[0] for m in members(hint) if get_origin(m) is tuple), None)


def kinds(hint: Any) -> dict[str, Any]:
    """The section classes of an annotation by their `kind`, in its order; none for a value.

    Raises ConfigError where two classes have the same kind, or one of several has none.
    """
    found: dict[str, Any] = {}
    for cls in members(hint):
        if isinstance(cls, type) and issubclass(cls, Section):
            require_free(cls, found.setdefault(cls.kind, cls))
    if "" in found and len(found) > 1:
        raise ConfigError(f"class {found[''].__name__}: give it a kind")
    return found


def require_free(cls: type[Section], owner: type[Section]) -> None:
    """Raises ConfigError where another class, the owner, already has the kind of `cls`."""
    if owner is not cls:
        taken = f"kind={cls.kind!r} is taken by {owner.__name__}: choose another name"
        raise ConfigError(f"class {cls.__name__}: {taken}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type. True, False, NaN and NumPy's are no numbers."""
    inner = get_args(hint)
    if members(hint) != (hint,):
        return any(fits(value, member) for member in inner)
    if get_origin(hint) is Literal:
        return any(value == allowed and type(value) is type(allowed) for allowed in inner)
    if get_origin(hint) is tuple:
        sized = isinstance(value, tuple) and (inner[-1] is Ellipsis or len(value) == len(inner))
        return sized and all(fits(item, inner[0]) for item in value)
    if hint in (int, float):
        largest = LARGEST if hint is int else sys.float_info.max
        return type(value) in (int, hint) and abs(value) <= largest  # others: not in checkpoints
    if hint is str:  # may name a file or be written to one: no NUL, no lone surrogate
        return type(value) is str and not re.search("[\0\ud800-\udfff]", value)
    return isinstance(value, hint)


def describe(hint: Any, bounds: str) -> str:
    """The allowed values of a field, in words."""
    inner = get_args(hint)
    if members(hint) != (hint,):
        return ", ".join(describe(member, bounds) for member in inner)
    if get_origin(hint) is Literal:
        return ", ".join(map(repr, inner))
    if get_origin(hint) is tuple:
        count = "values" if inner[-1] is Ellipsis else f"{len(inner)} values"
        return f"a tuple of {count}, each {describe(inner[0], bounds)}"
    noun = NOUNS.get(hint, hint.__name__)
    return f"{noun} {bounds}".strip() if hint in (int, float) else noun
