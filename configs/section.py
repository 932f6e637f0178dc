"""The base of every part of the configuration: a frozen dataclass that checks its fields."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import (
    Any,
    ClassVar,
    Literal,
    NoReturn,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from utils.errors import ConfigError

LARGEST = 2**63 - 1  # of an integer: what torch and NumPy can hold


def number(
    default: Any, *, ge: float | None = None, gt: float | None = None, lt: float | None = None
) -> Any:
    """A numeric field with bounds, checked when the section is made."""
    return field(default=default, metadata={">=": ge, ">": gt, "<": lt})


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Section:
    """A part of the configuration: checks types and bounds of all fields, then `_check`.

    Every subclass is made a frozen dataclass with keywords alone. `class Noam(Section, kind="noam",
    section="optim.schedule")` names a member of a union, and its place, which begins its messages.
    """

    kind: ClassVar[str] = ""
    section: ClassVar[str] = ""  # that of a base class is its subclasses' too
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, *, kind: str = "", section: str = "") -> None:
        cls.kind = kind or cls.kind
        cls.section = section or cls.section
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        cls: Any = type(self)
        hints = type_hints(cls)
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if not fits(value, hints[f.name]) or not _within(value, f.metadata):
                self._fail(f.name, f"allowed: {describe(hints[f.name], f.metadata)}")
        self._check()

    def _check(self) -> None:
        """Rules between the fields of one section."""

    def _require(self, holds: bool, name: str, rule: str) -> None:
        """Raises ConfigError naming the field (or one below: `clean.language`) and the rule."""
        if not holds:
            self._fail(name, rule)

    def _fail(self, name: str, rule: str) -> NoReturn:
        value: Any = self
        for part in name.split("."):
            value = getattr(value, part)
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
    """Resolved annotations of a section's fields (the annotations are strings in the source)."""
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def members(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union annotation; the annotation itself where it is not a union."""
    # `Literal["a"] | None` is a typing.Union on Python 3.11, unlike a union of classes.
    return get_args(hint) if get_origin(hint) in (types.UnionType, Union) else (hint,)


def sections(hint: Any) -> tuple[Any, ...]:
    """The section classes of an annotation; none for a plain value."""
    return tuple(m for m in members(hint) if isinstance(m, type) and issubclass(m, Section))


def item_hint(hint: Any) -> Any:
    """The annotation of a tuple's items; None for anything else."""
    return next((get_args(m)[0] for m in members(hint) if get_origin(m) is tuple), None)


def kinds(union: Any) -> dict[str, Any]:
    """The alternatives of a union of sections by their `kind`, in the order of the schema."""
    return {member.kind: member for member in sections(union)}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type. True and False are no numbers, NaN neither."""
    return any(_fits_one(value, member) for member in members(hint))


def _fits_one(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return any(value == allowed and type(value) is type(allowed) for allowed in get_args(hint))
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        sized = isinstance(value, tuple) and (inner[-1] is Ellipsis or len(value) == len(inner))
        return sized and all(fits(item, inner[0]) for item in value)
    if hint in (int, float):
        kind, largest = (int, LARGEST) if hint is int else ((int, float), sys.float_info.max)
        return isinstance(value, kind) and not isinstance(value, bool) and abs(value) <= largest
    if hint is str:
        return isinstance(value, str) and _is_text(value)
    return isinstance(value, hint)


def _is_text(value: str) -> bool:
    """Whether a string can be a file's name and stand in a file: no NUL, no lone surrogate."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def _within(value: Any, bounds: Mapping[str, Any]) -> bool:
    holds = {">=": lambda a, b: a >= b, ">": lambda a, b: a > b, "<": lambda a, b: a < b}
    numbers = value if isinstance(value, tuple) else (value,)
    return value is None or all(
        holds[sign](each, bound)
        for sign, bound in bounds.items()
        if bound is not None
        for each in numbers
    )


def describe(hint: Any, bounds: Mapping[str, Any]) -> str:
    """The allowed values of a field, in words."""
    return ", ".join(_describe_one(member, bounds) for member in members(hint))


def _describe_one(hint: Any, bounds: Mapping[str, Any]) -> str:
    inner = get_args(hint)
    if get_origin(hint) is Literal:
        return ", ".join(map(repr, inner))
    if get_origin(hint) is tuple:
        count = "a sequence of" if inner[-1] is Ellipsis else str(len(inner))
        return f"{count} values, each {describe(inner[0], bounds)}"
    nouns = {
        int: "an integer",
        float: "a number",
        str: "a string of Unicode text",
        bool: "True or False",
        types.NoneType: "None",
    }
    limits = [f"{sign} {bound}" for sign, bound in bounds.items() if bound is not None]
    if hint not in (int, float):
        limits = []
    return f"{nouns.get(hint, hint.__name__)} {' and '.join(limits)}".strip()
