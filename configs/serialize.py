"""A Config from a JSON-able dict, and changes to it by text (`model.d_model=256`).

Nothing here executes code: a dict from a file or a checkpoint is checked key by key against
`configs/schema.py`.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from configs.position_names import POSITIONS, choose_position, fit_scaling
from configs.positions import Position
from configs.schema import Config, DataConfig, DecodeConfig
from configs.section import Section, fits, item_hint, join, kinds, to_dict, type_hints
from utils.errors import ConfigError, closest_first

PLACES = (".cache_dir", ".datastore", ".init_from", ".name_or_path", ".path", ".root")


def from_dict(data: Mapping[str, Any]) -> Config:
    """The inverse of `to_dict`. Missing keys take their defaults, so that older runs load.

    Raises ConfigError for an unknown key or kind, a value of the wrong type, or a rule that does
    not hold.
    """
    return _build(Config, data, "")


def position_from_dict(data: Mapping[str, Any]) -> Position:
    """As `from_dict`, for a position scheme alone."""
    return _build(Position, data, "model.position")


def apply_overrides(config: Config, texts: Iterable[str], *, position: str | None = None) -> Config:
    """A copy of `config` with every `section.field=value` of `texts` set, checked when all are set.

    The order matters only between texts of the same key, where the last wins: the choice of a
    union's member (`data.corpus=files`) comes before the fields inside it
    (`data.corpus.root=folder`). `position` is what `--position NAME[:FIELD=VALUE...]` gives, see
    `choose_position`; a scheme's field or a name that `texts` set wins over it. Raises ConfigError
    naming the key, the value and the allowed ones.
    """
    data = to_dict(config)
    fields = (position or "").split(":")[1:]
    if not all(field.partition("=")[1] for field in fields):
        example = "for example rope:base=500"
        raise ConfigError(f"--position {position!r}: write NAME:FIELD=VALUE, {example}")
    fixed = {"model.position", *(f"model.position.{field.split('=')[0]}" for field in fields)}
    texts = list(texts)
    for text in texts:
        key, value = parse_override(text)
        if position is not None and key in fixed:
            raise ConfigError(f"--position {position} and --set {text}: give one of the two")
        if not value and key.endswith(PLACES):  # as from a shell variable that is not set
            what = "file" if key.endswith(".datastore") else "folder"
            raise ConfigError(f"{key} = '': name a {what}")
    texts = [*(f"model.position.{field}" for field in fields), *texts]
    given = sorted(map(parse_override, texts), key=lambda override: override[0].count("."))
    after = [override for override in given if override[0].startswith(("name", "model.position"))]
    for key, text in given:
        if (key, text) not in after:
            _set(data, key, text)
    max_len = _build(DataConfig, data["data"], "data").max_len
    if position is not None:
        choose_position(
            data, position, max_len, _build(DecodeConfig, data["decode"], "decode").max_len
        )
    for key, text in after:
        value = _set(data, key, text)
        if key.startswith("model.position") and isinstance(value, dict):
            fit_scaling(value, max_len)
    return from_dict(data)


def parse_override(text: str) -> tuple[str, str]:
    """`section.field=value` as (key, value). A JSON file's `section.kind` is the key `section`.

    Raises ConfigError where there is no key or no '='.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(
            f"--set {text!r}: write SECTION.FIELD=VALUE, for example model.d_model=256"
        )
    return key.strip().removesuffix(".kind"), value.strip()


def diff(a: Section, b: Section, path: str = "") -> list[tuple[str, Any, Any]]:
    """(dotted key, value in a, value in b) where they differ; None for a field that one lacks.

    The key of a union itself (`model.position`) stands for its kind. The keys begin with `path`.
    """
    left, right = dict(leaves(to_dict(a), path)), dict(leaves(to_dict(b), path))
    keys = left | right
    return [(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)]


def leaves(data: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of each field in a section's `to_dict`, below `path`."""
    for key, value in data.items():
        place = path if key == "kind" else join(path, key)
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            value = {str(i): item for i, item in enumerate(value)}
        if isinstance(value, Mapping):
            yield from leaves(value, place)
        else:
            yield place, value


# -------------------------------------------------------------------------------------- from a dict


def _build(hint: Any, data: Any, path: str) -> Any:
    """The section that `data` describes."""
    cls = _section_class(hint, data, path)
    hints = type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key == "kind" and cls.kind:
            continue
        if key not in hints:
            raise _unknown(path, str(key), cls, hint)
        values[key] = _value(hints[key], value, join(path, key))
    try:
        return cls(**values)
    except ConfigError as error:  # it names the place of the class, perhaps not this one
        raise ConfigError(f"{path}{str(error).removeprefix(cls.section)}") from None


def _section_class(hint: Any, data: Any, path: str) -> Any:
    """The class that `data` stands for: the section itself, or the union's member of its kind."""
    several = kinds(hint)
    only = next(iter(several.values())) if len(several) == 1 else None
    if not isinstance(data, Mapping):
        where = path or "the configuration"
        fields = ", ".join(type_hints(only)) if only else "kind"
        raise ConfigError(f"{where} = {data!r}: {where} is a section; set its fields: {fields}")
    if only:
        return only
    kind = data.get("kind")
    if isinstance(kind, str) and kind in several:
        return several[kind]
    remedy, scheme = "", POSITIONS.get(str(kind))
    if scheme is not None and scheme.kind in several:  # a name of `--position` that is no kind
        changes = [f"{key}={value}" for key, _, value in diff(type(scheme)(), scheme, path)]
        remedy = f"; {kind} is {', '.join([f'{path}={scheme.kind}', *changes])}"
    raise ConfigError(f"{path} = {kind!r}: allowed: {', '.join(several)}{remedy}")


def _value(hint: Any, value: Any, path: str) -> Any:
    """The value of a field; the section itself refuses what does not fit the annotation."""
    item = item_hint(hint)
    if kinds(hint):
        return _build(hint, value, path)
    if kinds(item) and isinstance(value, list):
        return tuple(_build(item, each, f"{path}.{i}") for i, each in enumerate(value))
    return tuple(value) if isinstance(value, list) else value


# What fairseq, joeynmt, Marian, OpenNMT-py and transformers call these.
_CALLED = {
    "data.batch_size": "max_tokens mini_batch mini_batch_fit mini_batch_words "
    "per_device_train_batch_size",
    "data.batch_by": "batch_type",
    "tokenizer.sampling": "bpe_dropout",
    "model.norm": "encoder_normalize_before transformer_preprocess",
    "model.tie_embeddings": "share_all_embeddings share_decoder_input_output_embed "
    "tied_embeddings tied_embeddings_all tied_softmax",
    "model.d_model": "dim_emb embedding_dim encoder_embed_dim hidden_size",
    "model.d_ff": "encoder_ffn_embed_dim ff_size transformer_dim_ffn transformer_ff",
    "model.n_heads": "encoder_attention_heads heads num_heads transformer_heads",
    "model.n_encoder_layers": "enc_depth enc_layers encoder_layers num_layers",
    "model.n_decoder_layers": "dec_depth dec_layers decoder_layers",
    "optim.accumulate": "accum_count batch_multiplier gradient_accumulation_steps "
    "optimizer_delay update_freq",
    "optim.grad_clip": "clip_grad_norm clip_norm max_grad_norm",
    "optim.label_smoothing": "label_smoothing_factor",
    "optim.schedule": "lr_scheduler lr_scheduler_type",
    "optim.schedule.lr": "learn_rate learning_rate",
    "optim.schedule.warmup_steps": "lr_warmup warmup_updates",
    "optim.betas": "adam_betas",
    "train.max_epochs": "max_epoch num_train_epochs",
    "train.max_steps": "max_update train_steps",
    "train.init_from": "finetune_from_model",
    "train.runs_dir": "model_dir output_dir save_dir",
    "train.keep_regular": "keep_last_epochs",
    "train.keep_steps": "keep_interval_updates",
    "train.checkpoint_every_steps": "save_freq save_interval_updates save_steps",
    "train.patience": "early_stopping early_stopping_patience",
    "train.precision": "bf16 fp16",
    "train.ema_decay": "exponential_smoothing",
    "evaluate.every_steps": "eval_steps valid_freq valid_steps validate_interval_updates "
    "validation_freq",
    "evaluate.every_epochs": "validate_interval",
    "train.checkpoint_every_epochs": "save_interval",
    "evaluate.choose_by": "best_checkpoint_metric early_stopping_metric metric_for_best_model "
    "valid_metrics",
    "decode.beam_size": "beam num_beams",
    "decode.length_penalty": "beam_alpha lenpen",
    "decode.max_len": "max_new_tokens",
    "decode.max_len_ratio": "max_len_a",
}
PEERS = {theirs: ours for ours, names in _CALLED.items() for theirs in names.split()}


def fields_named(key: str) -> list[str]:
    """The fields that have this name here or in another program, of any section."""
    key = key.replace("-", "_")
    theirs = filter(None, [PEERS.get(key)])
    return list(dict.fromkeys([*theirs, *_places(key, Config, "")]))


def _unknown(path: str, key: str, cls: Any, hint: Any, *, field: str = "") -> ConfigError:
    """The error for a key that `cls` lacks: its fields, closest first, and where the key exists.

    For a section, `field` is the one that is wanted in it.
    """
    where = f"{path or 'the configuration'}{f' ({cls.kind})' if cls.kind else ''}"
    fields = closest_first(key, type_hints(cls))
    has = f"has: {', '.join(fields)}" if fields else "has no fields"
    owners = [kind for kind, other in kinds(hint).items() if key in type_hints(other)]
    elsewhere = fields_named(key) or fields_named(field)
    remedy = ""
    if owners:
        remedy = f"; {key} belongs to {path}={' or '.join(owners)}"
    elif elsewhere:
        remedy = f"; there is {', '.join(elsewhere)}"
    return ConfigError(f"unknown key {join(path, key)!r}: {where} {has}{remedy}")


def _places(key: str, hint: Any, path: str) -> Iterator[str]:
    """Every dotted key below `path` that ends in `key`, in any member of the unions on the way."""
    for cls in kinds(hint).values():
        for name, inner in type_hints(cls).items():
            if name == key:
                yield join(path, name)
            yield from _places(key, inner, join(path, name))
            yield from _places(key, item_hint(inner), join(path, f"{name}.NUMBER"))


# ------------------------------------------------------------------------------------ from the text


def _set(data: dict[str, Any], key: str, text: str) -> Any:
    """Put the value of a text into the dict of a whole configuration, and return it.

    Wrong values, and unknown names at the end of a key, are left for `_build` to find.
    """
    node: Any = data
    hint: Any = Config
    parts = key.split(".")
    for i, part in enumerate(parts):
        path = ".".join(parts[:i])
        at: Any = part
        if isinstance(node, list):
            if part not in map(str, range(len(node))):
                raise ConfigError(
                    f"unknown key {key!r}: {path} has the numbers 0 to {len(node) - 1}"
                )
            at, hint = int(part), item_hint(hint)
        elif isinstance(node, dict):
            cls = kinds(hint).get(node.get("kind", ""))
            if cls and part not in type_hints(cls):
                raise _unknown(path, part, cls, hint, field=parts[-1])
            hint = type_hints(cls)[part] if cls else str
            node.setdefault(part, {})
        else:
            raise ConfigError(f"unknown key {key!r}: {path} is a single value, it has no fields")
        if i < len(parts) - 1:
            node = node[at]
    node[at] = value = _parse(hint, text, key)
    return value


_WORDS = {"none": None, "null": None, "true": True, "yes": True, "1": True}
_WORDS |= {"false": False, "no": False, "0": False}


def _parse(hint: Any, text: str, path: str) -> Any:
    """A value from text, by its annotation; the text itself where there is none."""
    if len(kinds(hint)) > 1:
        return {"kind": text}
    if kinds(hint):
        _section_class(hint, text, path)  # raises: a section needs a mapping
    item = item_hint(hint)
    readers: list[Callable[[str], Any]] = [lambda text: _WORDS[text.lower()], float, int, str]
    if item is not None:
        listed, inner = text.strip(), text.strip()[1:-1].strip()
        # Brackets around all, unless the items have some: "[URL],[NAME]", but "['[1]']".
        if listed[:1] + listed[-1:] in ("()", "[]"):
            listed = inner if inner[:1] in ("'", '"') or not re.search(r"[][()]", inner) else listed
        words = [re.sub(r"""^(['"])(.*)\1$""", r"\2", word.strip()) for word in listed.split(",")]
        parts = [word for word in words if word]
        readers.append(lambda text: tuple(_parse(item, part, f"{path}.0") for part in parts))
    for read in readers:
        with contextlib.suppress(ValueError, KeyError):
            if fits(value := read(text), hint):
                return value
    return text
