"""A Config from a JSON-able dict, and changes to it by text (`model.d_model=256`).

Nothing here executes code: a dict from a file or a checkpoint is checked key by key against
`configs/schema.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from configs.positions import POSITIONS, choose_position
from configs.schema import Config
from configs.section import Section, fits, item_hint, join, kinds, sections, to_dict, type_hints
from utils.errors import ConfigError, closest_first


class Text(str):
    """A value as a user typed it, still to be read by the annotation of its field."""


def from_dict(data: Mapping[str, Any]) -> Config:
    """The inverse of `to_dict`. Missing keys take their defaults, so that older runs load.

    Raises ConfigError for an unknown key or kind, a value of the wrong type, or a rule that does
    not hold.
    """
    config = _build(Config, data, "")
    assert isinstance(config, Config)
    return config


def apply_overrides(config: Config, texts: Iterable[str], *, position: str | None = None) -> Config:
    """A copy of `config` with every `section.field=value` of `texts` set, checked when all are set.

    The order matters only between texts of the same key, where the last wins: the choice of a
    union's member (`data.corpus=files`) comes before the fields inside it
    (`data.corpus.root=folder`). `position` is the name of `--position NAME`, see `choose_position`;
    what is set of the scheme and of the name wins over it. Raises ConfigError naming the key, the
    value and the allowed ones.
    """
    data = to_dict(config)
    given = sorted(map(parse_override, texts), key=lambda override: override[0].count("."))
    after = [override for override in given if override[0].startswith(("name", "model.position"))]
    for key, text in given:
        if (key, text) not in after:
            _set(data, key, text)
    if position is not None:
        lengths: list[Any] = [_build(type(config.data), data["data"], "data")]
        lengths.append(_build(type(config.decode), data["decode"], "decode"))
        choose_position(data, position, *(section.max_len for section in lengths))
    for key, text in after:
        _set(data, key, text)
    return from_dict(data)


def parse_override(text: str) -> tuple[str, str]:
    """`section.field=value` as (key, value). Raises ConfigError where there is no key or no '='."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(
            f"--set {text!r}: write SECTION.FIELD=VALUE, for example model.d_model=256"
        )
    return key.strip(), value.strip()


def diff(a: Config, b: Config) -> list[tuple[str, Any, Any]]:
    """(dotted key, value in a, value in b) where two differ; None for a field that one lacks.

    The key of a union itself (`model.position`) stands for its kind.
    """
    left, right = dict(_leaves(to_dict(a), "")), dict(_leaves(to_dict(b), ""))
    keys = left | right
    return [(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)]


def _leaves(data: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        place = path if key == "kind" else join(path, key)
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            value = {str(i): item for i, item in enumerate(value)}
        if isinstance(value, Mapping):
            yield from _leaves(value, place)
        else:
            yield place, value


# -------------------------------------------------------------------------------------- from a dict


def _build(hint: Any, data: Any, path: str) -> Section:
    """The section that `data` describes; its leaves may be Text."""
    cls = _section_class(hint, data, path)
    hints = type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in {} if isinstance(data, Text) else data.items():
        if key == "kind" and cls.kind:
            continue
        if key not in hints:
            raise _unknown(path, str(key), cls, hint)
        values[key] = _value(hints[key], value, join(path, key))
    try:
        return cls(**values)
    except ConfigError as error:  # it names one place of such a section, perhaps another
        raise ConfigError(f"{path}{str(error).removeprefix(cls.section)}") from None


def _section_class(hint: Any, data: Any, path: str) -> Any:
    """The class that `data` stands for: the section itself, or the union's member of its kind."""
    several = kinds(hint)
    kind: Any = data
    if not isinstance(data, Text):
        if not isinstance(data, Mapping):
            where = path or "the configuration"
            raise ConfigError(f"{where} = {data!r}: must be a mapping of field names to values")
        if len(several) == 1:
            return sections(hint)[0]
        path, kind = f"{path}.kind", data.get("kind")
    elif len(several) == 1:
        raise ConfigError(
            f"{path} = {data!r}: {path} is a section; set its fields: {_fields(hint)}"
        )
    if not isinstance(kind, str) or kind not in several:
        raise ConfigError(
            f"{path} = {kind!r}: allowed: {', '.join(several)}{_spelled_out(path, several, kind)}"
        )
    return several[kind]


def _value(hint: Any, value: Any, path: str) -> Any:
    """The value of a field; what does not fit its annotation stays, and the section refuses it."""
    item = item_hint(hint)
    if sections(hint):
        return _build(hint, value, path)
    if sections(item) and isinstance(value, Text):
        raise ConfigError(
            f"{path} = {value!r}: {path} is a list of sections, which a config file makes; set "
            f"fields of one, for example {path}.0.FIELD: {_fields(item)}"
        )
    if sections(item) and isinstance(value, list):
        return tuple(_build(item, each, f"{path}.{i}") for i, each in enumerate(value))
    if isinstance(value, Text):
        return _parse(hint, value)
    return tuple(value) if isinstance(value, list) else value


def _unknown(path: str, key: str, cls: Any, hint: Any) -> ConfigError:
    """The error for a key that `cls` has not: its fields, closest first, and where there is one."""
    where = f"{path or 'the configuration'}{f' ({cls.kind})' if cls.kind else ''}"
    fields = closest_first(key, type_hints(cls))
    has = f"has: {', '.join(fields)}" if fields else "has no fields"
    owners = [other.kind for other in sections(hint) if key in type_hints(other)]
    elsewhere = list(dict.fromkeys(_places(key, Config, "")))
    remedy = ""
    if owners:
        remedy = f"; {key} belongs to {path}={' or '.join(owners)}"
    elif elsewhere:
        remedy = f"; there is {', '.join(elsewhere)}"
    return ConfigError(f"unknown key {join(path, key)!r}: {where} {has}{remedy}")


def _places(key: str, hint: Any, path: str) -> Iterator[str]:
    """Every dotted key below `path` that ends in `key`, in any member of the unions on the way."""
    for cls in sections(hint):
        for name, inner in type_hints(cls).items():
            if name == key:
                yield join(path, name)
            yield from _places(key, inner, join(path, name))
            yield from _places(key, item_hint(inner), join(path, f"{name}.NUMBER"))


def _fields(hint: Any) -> str:
    return ", ".join(type_hints(sections(hint)[0]))


def _spelled_out(path: str, allowed: Mapping[str, Any], name: object) -> str:
    """How a name of `--position` that is no kind is set field by field; else nothing."""
    scheme = POSITIONS.get(str(name))
    if scheme is None or scheme.kind not in allowed:
        return ""
    plain = dict(_leaves(to_dict(type(scheme)()), path))
    changes = [
        f"{key}={value}"
        for key, value in _leaves(to_dict(scheme), path)
        if key != path and plain.get(key) != value
    ]
    return f"; {name} is {path}={scheme.kind} with {', '.join(changes)}".removesuffix(" with ")


# ------------------------------------------------------------------------------------ from the text


def _set(data: dict[str, Any], key: str, text: str) -> None:
    """Put text into the dict of a whole configuration; `_build` finds what is wrong with it."""
    node: Any = data
    parts = key.split(".")
    for i, part in enumerate(parts):
        path = ".".join(parts[:i])
        at: Any = part
        if isinstance(node, list) and node and isinstance(node[0], dict):
            if not part.isdecimal() or int(part) >= len(node):
                raise ConfigError(
                    f"unknown key {key!r}: {path}.{part} is none of 0 to {len(node) - 1}"
                )
            at = int(part)
        elif not isinstance(node, dict):
            raise ConfigError(f"unknown key {key!r}: {path} is a single value, it has no fields")
        if i == len(parts) - 1:
            node[at] = Text(text)
        elif isinstance(node, dict) and isinstance(node.setdefault(at, {}), Text):
            node[at] = {"kind": node[at]}  # of a union's member, without its fields
        node = node[at]


_WORDS = {"none": None, "null": None, "true": True, "yes": True, "1": True}
_WORDS |= {"false": False, "no": False, "0": False}


def _parse(hint: Any, text: str) -> Any:
    """A plain value from text, by its annotation; the text itself where there is none."""
    item = item_hint(hint)
    readers: list[Callable[[str], Any]] = [lambda text: _WORDS[text.lower()], float, int, str]
    if item is not None:
        readers.append(lambda text: tuple(_parse(item, word) for word in _words(text)))
    for read in readers:
        with contextlib.suppress(ValueError, KeyError):
            if fits(value := read(text), hint):
                return value
    return str(text)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.strip("()[]").split(",") if word.strip()]
