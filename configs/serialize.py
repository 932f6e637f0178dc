"""A Config as JSON-able dict and back, and changes to it by text (`model.d_model=256`). Standard
library only.

Nothing here executes code: a dict from a file or a checkpoint is checked key by key against
`configs/schema.py`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args, get_origin

from configs.positions import POSITIONS, Position
from configs.schema import Config
from configs.section import Section, describe, members, type_hints
from utils.errors import ConfigError


def kinds(union: Any) -> dict[str, type[Section]]:
    """The alternatives of a union of sections by their `kind`, in the order of the schema."""
    return {member.kind: member for member in members(union)}


def to_dict(config: Section) -> dict[str, Any]:
    """Nested dict of JSON values. A member of a union begins with its "kind"; tuples become lists,
    of dicts where they hold sections.
    """
    kind = getattr(config, "kind", None)
    data: dict[str, Any] = {} if kind is None else {"kind": kind}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if isinstance(value, Section):
            value = to_dict(value)
        elif isinstance(value, tuple):
            value = [to_dict(item) if isinstance(item, Section) else item for item in value]
        data[f.name] = value
    return data


def from_dict(data: Mapping[str, Any]) -> Config:
    """The inverse of `to_dict`. Missing keys take their defaults, so that older runs load.

    Raises ConfigError for an unknown key or kind, a value of the wrong type, or a rule that does
    not hold.
    """
    config = _build(Config, data, "")
    assert isinstance(config, Config)
    return config


def apply_overrides(config: Config, texts: Iterable[str], *, position: str | None = None) -> Config:
    """A copy of `config` with every `section.field=value` of `texts` set, and checked once, when
    all are set.

    The order matters only between texts of the same key, where the last wins: the choice of a
    union's member (`data.corpus=files`) comes before the fields inside it
    (`data.corpus.root=folder`). `position` is the name of `--position NAME`, a kind or one of
    configs.positions.POSITIONS: a kind keeps the present member where that is of this kind already;
    and a table of positions is made long enough for data.max_len and decode.max_len. Raises
    ConfigError naming the key, the value and the allowed ones.
    """
    data = to_dict(config)
    if position is not None and position != data["model"]["position"]["kind"]:
        data["model"]["position"] = _named_position(position)
    given = list(map(parse_override, texts))
    for key, text in sorted(given, key=lambda override: override[0].count(".")):
        _set(data, key, text)
    chosen = data["model"]["position"]
    table = "model.position.max_positions"
    if (
        position is not None
        and "max_positions" in chosen
        and table not in dict(given)
        and not _kept(config, position)
    ):
        chosen["max_positions"] = max(
            chosen["max_positions"], data["data"]["max_len"], data["decode"]["max_len"]
        )
    return from_dict(data)


def _kept(config: Config, position: str) -> bool:
    return position == config.model.position.kind


def _named_position(name: str) -> dict[str, Any]:
    """A position section by its kind, or by its name among POSITIONS. Raises ConfigError listing
    both.
    """
    if name in POSITIONS:
        return to_dict(POSITIONS[name])
    members_by_kind = kinds(Position)
    if name not in members_by_kind:
        names = _by_likeness(name, dict.fromkeys([*POSITIONS, *members_by_kind]))
        raise ConfigError(f"model.position = {name!r}: allowed: {', '.join(names)}")
    return to_dict(members_by_kind[name]())


def set_field(config: Config, key: str, text: str) -> Config:
    """A copy of `config` with one field set from text; see `apply_overrides`."""
    return apply_overrides(config, [f"{key}={text}"])


def with_position(config: Config, name: str) -> Config:
    """A copy of `config` with the position scheme of this kind; see `apply_overrides`."""
    return apply_overrides(config, (), position=name)


def parse_override(text: str) -> tuple[str, str]:
    """`section.field=value` as (key, value). Raises ConfigError where there is no key or no '='."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(
            f"--set {text!r}: write SECTION.FIELD=VALUE, for example model.d_model=256"
        )
    return key.strip(), value.strip()


def diff(a: Config, b: Config) -> list[tuple[str, Any, Any]]:
    """(dotted key, value in a, value in b) wherever the two differ; None for a field that one of
    them lacks.

    The key of a union itself (`model.position`) stands for its kind.
    """
    left, right = dict(_leaves(to_dict(a), "")), dict(_leaves(to_dict(b), ""))
    keys = list(left) + [key for key in right if key not in left]
    return [(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)]


def _leaves(data: Mapping[str, Any], path: str) -> Iterable[tuple[str, Any]]:
    for key, value in data.items():
        if key == "kind":
            yield path, value
        elif isinstance(value, Mapping):
            yield from _leaves(value, _join(path, key))
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield from _leaves({str(i): item for i, item in enumerate(value)}, _join(path, key))
        else:
            yield _join(path, key), value


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _sections(hint: Any) -> tuple[Any, ...]:
    """The section classes of an annotation: one for a section, several for a union of them, none
    for a plain value.
    """
    return tuple(
        member
        for member in members(hint)
        if isinstance(member, type) and issubclass(member, Section)
    )


def _item(hint: Any) -> Any:
    """The annotation of one item, for a tuple of sections; None for anything else."""
    inner = get_args(hint)[0] if get_origin(hint) is tuple else None
    return inner if _sections(inner) else None


def _by_likeness(word: str, names: Iterable[str]) -> list[str]:
    return sorted(
        names, key=lambda name: -difflib.SequenceMatcher(None, word.lower(), name.lower()).ratio()
    )


def _places(key: str, hint: Any, path: str) -> Iterable[str]:
    """Every dotted key below `path` that ends in `key`, in any member of the unions on the way."""
    for cls in _sections(hint):
        for name, inner in type_hints(cls).items():
            if name == key:
                yield _join(path, name)
            yield from _places(key, inner, _join(path, name))
            yield from _places(key, _item(inner), _join(path, f"{name}.NUMBER"))


def _unknown(path: str, key: str, cls: Any, hint: Any) -> ConfigError:
    """The error for a key that `cls` has not: its fields, closest first, and where there is such a
    key.
    """
    where = path or "the configuration"
    if hasattr(cls, "kind"):
        where += f" ({cls.kind})"
    fields = _by_likeness(key, type_hints(cls))
    has = f"has: {', '.join(fields)}" if fields else "has no fields"
    owners = [
        other.kind for other in _sections(hint) if other is not cls and key in type_hints(other)
    ]
    elsewhere = [] if owners else list(dict.fromkeys(_places(key, Config, "")))
    remedy = f"; {key} belongs to {path}={' or '.join(owners)}" if owners else ""
    remedy += f"; there is {', '.join(elsewhere)}" if elsewhere else ""
    return ConfigError(f"unknown key {_join(path, key)!r}: {where} {has}{remedy}")


def _member(hint: Any, data: Mapping[str, Any], path: str) -> type[Section]:
    """The class that `data` stands for: the section itself, or the union's member of its kind."""
    sections = _sections(hint)
    if len(sections) == 1:
        return sections[0]
    allowed = kinds(hint)
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in allowed:
        raise ConfigError(f"{path}.kind = {kind!r}: allowed: {', '.join(allowed)}")
    return allowed[kind]


def _build(hint: Any, data: Any, path: str) -> Section:
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"{path or 'the configuration'} = {data!r}: must be a mapping of field names to values"
        )
    cls: Any = _member(hint, data, path)
    hints = type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key == "kind" and hasattr(cls, "kind"):
            continue
        if key not in hints:
            raise _unknown(path, str(key), cls, hint)
        if _sections(hints[key]):
            value = _build(hints[key], value, _join(path, key))
        elif isinstance(value, list) and _item(hints[key]):
            place = _join(path, key)
            value = tuple(
                _build(_item(hints[key]), item, f"{place}.{i}") for i, item in enumerate(value)
            )
        elif isinstance(value, list):
            value = tuple(value)
        values[key] = value
    return cls(**values)


def _set(data: dict[str, Any], key: str, text: str) -> None:
    """Set one dotted key in the dict of a whole configuration."""
    hint: Any = Config
    cls: Any = Config
    node: Any = data
    path = ""
    *outer, last = key.split(".")
    for part in outer:
        if isinstance(node, list):
            path = _join(path, part)
            if not part.isdecimal() or int(part) >= len(node):
                raise ConfigError(f"unknown key {key!r}: {path} is none of 0 to {len(node) - 1}")
            node = node[int(part)]
            continue
        cls = _member(hint, node, path)
        hints = type_hints(cls)
        if part not in hints:
            raise _unknown(path, part, cls, hint)
        path = _join(path, part)
        if not _sections(hints[part]) and not _item(hints[part]):
            raise ConfigError(f"unknown key {key!r}: {path} is a single value, it has no fields")
        hint, node = _item(hints[part]) or hints[part], node[part]
    if isinstance(node, list):
        raise ConfigError(
            f"{key} = {text!r}: an item of {path} is a section; set its fields: {_fields(hint)}"
        )
    cls = _member(hint, node, path)
    hints = type_hints(cls)
    if last not in hints:
        raise _unknown(path, last, cls, hint)
    sections = _sections(hints[last])
    if len(sections) > 1:
        node[last] = {"kind": _parse_kind(key, hints[last], text)}
    elif sections:
        raise ConfigError(
            f"{key} = {text!r}: {key} is a section; set its fields: {_fields(hints[last])}"
        )
    elif _item(hints[last]):
        raise ConfigError(
            f"{key} = {text!r}: {key} is a list of sections, which a config file makes; set fields of one, for example "
            f"{key}.0.FIELD: {_fields(_item(hints[last]))}"
        )
    else:
        metadata = next(f.metadata for f in dataclasses.fields(cls) if f.name == last)
        try:
            node[last] = _parse(hints[last], text)
        except ValueError:
            raise ConfigError(
                f"{key} = {text!r}: allowed: {describe(hints[last], metadata)}"
            ) from None


def _fields(hint: Any) -> str:
    return ", ".join(type_hints(_sections(hint)[0]))


def _parse_kind(key: str, union: Any, text: str) -> str:
    allowed = kinds(union)
    if text not in allowed:
        raise ConfigError(
            f"{key} = {text!r}: allowed: {', '.join(allowed)}{_spelled_out(key, allowed, text)}"
        )
    return text


def _spelled_out(key: str, allowed: Mapping[str, type[Section]], name: str) -> str:
    """How a name of `--position` that is no kind is set field by field; nothing for any other word."""
    scheme = POSITIONS.get(name)
    if scheme is None or scheme.kind not in allowed:
        return ""
    return f"; {name} is {' with '.join([f'{key}={scheme.kind}', *filter(None, [_changed(scheme, key)])])}"


def _changed(section: Any, path: str) -> str:
    """`path.field=value`, separated by commas, of the fields that are not as the section's kind has
    them.
    """
    changes: list[str] = []
    for field in dataclasses.fields(section):
        value, place = getattr(section, field.name), _join(path, field.name)
        if value == getattr(type(section)(), field.name):
            continue
        if isinstance(value, Section):
            changes += filter(None, [f"{place}={to_dict(value)['kind']}", _changed(value, place)])
        else:
            changes.append(f"{place}={value}")
    return ", ".join(changes)


_WORDS: dict[type, dict[str, Any]] = {
    bool: {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False},
    type(None): {"none": None, "null": None},
}


def _parse(hint: Any, text: str) -> Any:
    """A plain value from text, by its annotation. Raises ValueError; bounds are the schema's to
    check.
    """
    for member in sorted(
        members(hint), key=lambda member: member is not type(None)
    ):  # "none" before any string
        try:
            return _parse_one(member, text)
        except ValueError:
            continue
    raise ValueError(text)


def _parse_one(hint: Any, text: str) -> Any:
    origin = get_origin(hint)
    if origin is tuple:
        inner = get_args(hint)[0]
        items = [item.strip() for item in text.strip("()[]").split(",")]
        return [_parse(inner, item) for item in items if item]
    if origin is Literal:
        choices = {str(value): value for value in get_args(hint)}
    elif hint in _WORDS:
        choices, text = _WORDS[hint], text.lower()
    else:
        return hint(text)  # int, float or str
    if text not in choices:
        raise ValueError(text)
    return choices[text]
