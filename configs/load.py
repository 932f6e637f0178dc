"""Config files: executed, changed by the command line, written to and read from JSON."""

import argparse
import dataclasses
import json
import os
import re
import runpy
import sys
import traceback
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs import schema
from configs.position_names import NAMES
from configs.schema import Config
from configs.section import to_dict
from configs.serialize import apply_overrides, from_dict
from utils.errors import ConfigError, closest_first
from utils.files import write_text

CRC = "crc32"  # of the rest of a config.json
CONFIGS_DIR = Path(__file__).resolve().parent


def config_files() -> list[Path]:
    """The files in `configs/` and its folders that define a `config`, sorted by path."""
    files = sorted(CONFIGS_DIR.rglob("*.py"))
    return [path for path in files if "\nconfig = " in path.read_text("utf-8", errors="replace")]


def load_config(
    path: str | Path, overrides: Sequence[str] = (), position: str | None = None
) -> Config:
    """Execute a config file and apply `--set` texts and `--position` to its `config`.

    A config file is Python code and is executed as such: load only files that you would run. It may
    import other configs (`from configs.base import config as base`), also files beside it (from a
    folder beside it once in a process). A config that leaves `name` at the schema's default is
    named after its file. Raises ConfigError: one line with the file, the line where it failed, and
    the reason.
    """
    path = Path(path)
    if path.suffix != ".py" or not path.is_file():
        wrong = "a config is a Python file (.py)" if path.exists() else "no such config file"
        files = {file.stem: os.path.relpath(file) for file in config_files()}
        closest = [files[stem] for stem in closest_first(path.stem, files)]
        there = f"; the closest of {len(files)} there are: {', '.join(closest[:5])}"
        raise ConfigError(f"{path}: {wrong}{there}")
    config = _execute(path)
    if config.name == Config().name:
        stem = "".join(c if c.isalnum() or c in "_-." else "_" for c in path.stem)
        config = dataclasses.replace(config, name=stem)
    return apply_overrides(config, overrides, position=position)


def add_set_argument(parser: argparse.ArgumentParser, metavar: str, what: str) -> None:
    """Add the repeatable option `--set`, whose values go to `overrides`."""
    place: dict[str, Any] = {"dest": "overrides", "default": [], "metavar": metavar}
    parser.add_argument("--set", action="append", help=f"change one {what}; repeatable", **place)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--set` and `--position`, for `load_config`."""
    add_set_argument(parser, "SECTION.FIELD=VALUE", "field of the config")
    what = f"change the positional encoding (rope:base=500 sets a field of it): {NAMES}"
    parser.add_argument("--position", metavar="NAME[:FIELD=VALUE...]", help=what)


def write_config_json(config: Config, path: Path) -> None:
    """Write the whole config as JSON with a checksum, in one step."""
    data = to_dict(config)
    data[CRC] = _checksum(data)
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def read_config_json(path: Path) -> Config:
    """Read what `write_config_json` wrote; executes nothing. Raises ConfigError naming the file."""
    try:
        data = json.loads(path.read_text("utf-8"))
        crc = data.pop(CRC, None) if isinstance(data, dict) else None
        if crc not in (None, _checksum(data)):  # earlier releases wrote none
            rule = f"damaged, or changed by hand; to use it as it is, remove its {CRC!r}"
            raise ConfigError(f"wrong checksum: {rule}")
        return from_dict(data)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:  # also bad UTF-8, endless digits and brackets
        raise ConfigError(f"{path}: not valid JSON: {error}") from None


def _checksum(data: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())


def config_of(path: str | Path) -> Config | None:
    """The config in a config file, a config.json or a run's folder; None for anything else.

    Also None for the folder of a transformers model, whose config.json is of another kind. The
    config.json of a run describes it as it was started or last resumed. Only a config file is
    executed. Raises ConfigError for a config file that does not exist, and for a config that is not
    whole.
    """
    path = Path(path)
    saved = path / "config.json" if path.is_dir() else path
    if saved.is_file() if path.is_dir() else path.suffix == ".json":
        is_theirs = path.is_dir() and b'"model_type"' in saved.read_bytes()
        return None if is_theirs else read_config_json(saved)
    if path.suffix == ".py" or (path.parent.name in ("", "configs") and not path.exists()):
        return load_config(path)
    return None


def _fields_there(error: BaseException) -> str:
    """The end of the message about a field that a section does not have: the fields it has."""
    said = r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'"
    unknown = re.match(said, str(error))
    section = vars(schema).get(unknown[1]) if unknown else None
    if unknown is None or not dataclasses.is_dataclass(section):
        return ""
    fields = (field.name for field in dataclasses.fields(section))
    return f"; {unknown[1]} has: {', '.join(closest_first(unknown[2], fields))}"


def _execute(path: Path) -> Config:
    beside = str(path.resolve().parent)
    if added := beside not in sys.path:
        sys.path.append(beside)  # last, so that no file there hides a module
    known = {*sys.modules}
    try:
        # Compiled from the source each time: cached bytecode may be older than a file just edited.
        names = runpy.run_path(str(path), run_name=f"config_file_{path.stem}")
    except SyntaxError as error:
        where = f"{error.filename or path}:{error.lineno or 1}"
        raise ConfigError(f"{where}: syntax error: {error.msg}") from None
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f":{frame.lineno}" for frame in frames if frame.filename == str(path)]
        kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
        reason = " ".join(str(error).split()) + _fields_there(error)
        raise ConfigError(f"{path}{''.join(lines[-1:])}: {kind}{reason}") from None
    finally:
        if added and beside in sys.path:
            sys.path.remove(beside)
        for name in sys.modules.keys() - known:  # another config may have another of this name
            if os.path.dirname(getattr(sys.modules[name], "__file__", None) or "") == beside:
                del sys.modules[name]
    config = names.get("config")
    if not isinstance(config, Config):
        kind = type(config).__name__
        raise ConfigError(
            f"{path}: must end in `config = ...`, a configs.schema.Config, not {kind}"
        )
    return config
