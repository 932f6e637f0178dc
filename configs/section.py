"""The base of every part of the configuration: a frozen dataclass that checks its fields when it is
made.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal

from utils.errors import ConfigError

NOUNS = {
    int: "an integer",
    float: "a number",
    str: "a string of Unicode text",
    bool: "True or False",
}
LARGEST = 2**63 - 1  # of an integer: what torch and NumPy can hold


def number(
    default: Any, *, ge: float | None = None, gt: float | None = None, lt: float | None = None
) -> Any:
    """A numeric field with bounds, checked when the section is made."""
    return field(default=default, metadata={"ge": ge, "gt": gt, "lt": lt})


@cache
def type_hints(cls: type) -> dict[str, Any]:
    """Resolved annotations of a section's fields (the annotations are strings in the source)."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def members(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union annotation; the annotation itself where it is not a union."""
    # `Literal["a"] | None` is a typing.Union on Python 3.11, unlike a union of classes.
    return (
        typing.get_args(hint)
        if typing.get_origin(hint) in (types.UnionType, typing.Union)
        else (hint,)
    )


def describe(hint: Any, bounds: typing.Mapping[str, Any]) -> str:
    """The allowed values of a field, in words."""
    parts = []
    for member in members(hint):
        if typing.get_origin(member) is Literal:
            parts += [repr(value) for value in typing.get_args(member)]
        elif dataclasses.is_dataclass(member):
            parts.append(member.__name__)  # type: ignore[union-attr]
        elif typing.get_origin(member) is tuple:
            inner = typing.get_args(member)
            count = "a sequence of" if inner[-1] is Ellipsis else str(len(inner))
            parts.append(f"{count} values, each {describe(inner[0], bounds)}")
        elif member is types.NoneType:
            parts.append("None")
        else:
            noun = NOUNS[member]
            limits = [
                f"{sign} {bounds[key]}"
                for key, sign in (("ge", ">="), ("gt", ">"), ("lt", "<"))
                if bounds.get(key) is not None
            ]
            parts.append(" ".join([noun, " and ".join(limits)]).strip())
    return ", ".join(parts)


def _is_text(value: str) -> bool:
    """Whether a string can be a file's name and stand in a file: no NUL, no lone surrogate."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def _fits(value: Any, hint: Any) -> bool:
    for member in members(hint):
        origin = typing.get_origin(member)
        if origin is Literal:
            if any(
                value == allowed and type(value) is type(allowed)
                for allowed in typing.get_args(member)
            ):
                return True
        elif origin is tuple:
            inner = typing.get_args(member)
            if isinstance(value, tuple):
                kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
                if len(kinds) == len(value) and all(map(_fits, value, kinds)):
                    return True
        elif member is float:
            if (
                isinstance(value, (int, float))
                and not isinstance(value, bool)
                and abs(value) <= sys.float_info.max
            ):
                return True
        elif member is int:
            if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST:
                return True
        elif member is str:
            if isinstance(value, str) and _is_text(value):
                return True
        elif isinstance(value, member):
            return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Base of every part of the configuration: checks types and bounds of all fields, then
    `_check`.
    """

    section: ClassVar[str] = "config"

    def __post_init__(self) -> None:
        cls: Any = type(self)
        hints = type_hints(cls)
        for f in dataclasses.fields(self):
            value, hint, bounds = getattr(self, f.name), hints[f.name], f.metadata
            ok = _fits(value, hint)
            if ok and bounds and value is not None:
                for item in value if isinstance(value, tuple) else (value,):
                    ok = ok and (bounds["ge"] is None or item >= bounds["ge"])
                    ok = ok and (bounds["gt"] is None or item > bounds["gt"])
                    ok = ok and (bounds["lt"] is None or item < bounds["lt"])
            if not ok:
                self._fail(f.name, f"allowed: {describe(hint, bounds)}")
        self._check()

    def _check(self) -> None:
        """Rules between the fields of one section."""

    def _fail(self, name: str, rule: str) -> typing.NoReturn:
        value: Any = self
        for part in name.split("."):
            value = getattr(value, part)
        prefix = "" if self.section == "config" else f"{self.section}."
        raise ConfigError(f"{prefix}{name} = {value!r}: {rule}")
