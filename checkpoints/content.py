"""The content of a checkpoint, and its two forms: a run's `.pt` file, and an exported folder.

A checkpoint is a dict of tensors and plain values: nothing in it is ever executed. An exported
folder has `model.safetensors`, `config.json` and `tokenizer/`. It stores a tensor of several names
once; the other names are in the file's metadata.
"""

import errno
import json
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from checkpoints.run import FORMAT, WEIGHTS, DamagedError, Run, read_progress
from configs.load import read_config_json, write_config_json
from configs.schema import OF_BLEU, Config, Plateau
from configs.serialize import diff, from_dict, to_dict
from tokenizer.base import BaseTokenizer
from utils.errors import ConfigError, UserError, one_line
from utils.files import atomic_path, write_errors
from utils.machine import is_out_of_memory

CONFIG, TOKENIZER = "config.json", "tokenizer"
# What a resumed run may change: nothing that shapes the model, the data or the updates.
MAY_CHANGE = (
    "train.",
    "evaluate.",
    "decode.",
    "optim.bad_numbers",
    "data.num_workers",
    "data.cache_dir",
    "data.corpus.path",
    "data.corpus.root",
)
MAY_NOT_CHANGE = (
    *(f"train.{name}" for name in ("seed", "precision", "ema_decay", "freeze")),
    *("train.init_from", "train.init_model", "evaluate.choose_by"),
)
# A part of a mixture: its folders may change, as those of a corpus alone.
_PART = re.compile(r"(?<=^data\.corpus\.)parts\.\d+\.corpus\.")


def checkpoint_config(payload: Mapping[str, Any]) -> Config:
    """The resolved configuration inside a checkpoint."""
    return from_dict(payload["config"])


def fixed_differences(before: Config, now: Config) -> list[tuple[str, Any, Any]]:
    """As `diff`, for the fields that a resumed run may not change."""
    fixed = MAY_NOT_CHANGE + OF_BLEU * (now.evaluate.choose_by != "loss")
    if isinstance(now.optim.schedule, Plateau):  # it observes each validation
        fixed += ("evaluate.every_epochs", "evaluate.every_steps")
    return [
        found
        for found in diff(before, now)
        if found[0] in fixed or not _PART.sub("", found[0]).startswith(MAY_CHANGE)
    ]


def write_checkpoint(path: Path, payload: Any) -> None:
    """Write a whole file or none; make its folder if that has gone and its run has not."""
    with write_errors(path):
        path.parent.mkdir(exist_ok=True)
        with atomic_path(path) as aside, aside.open("wb") as file:
            try:
                torch.save(payload, file)
            except RuntimeError as error:  # a full disk
                if is_out_of_memory(error):
                    raise
                why = str(error).splitlines()[0][:200]
                raise OSError(f"not all of it could be written ({why})") from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint of either form, on the CPU; epoch and step are 0 if not known.

    Raises UserError for a file that is missing, damaged, of another kind, or of a newer format.
    """
    payload = _read_safetensors(path) if path.name == WEIGHTS else _read_torch(path)
    try:
        version = payload["format"]["version"]
        newer = isinstance(version, int) and version > FORMAT
        progress = {"epoch": 0, "step": 0, **payload.get("progress", {})}
        whole = newer or (
            all(isinstance(each, int) for each in (version, progress["epoch"], progress["step"]))
            and all(
                isinstance(k, str) and isinstance(v, Tensor) for k, v in payload["model"].items()
            )
            and isinstance(payload["tokenizer"]["fingerprint"], str)
            and isinstance(payload["config"], dict)
        )
    except (AttributeError, LookupError, TypeError):
        whole = newer = False
    if newer:
        raise UserError(
            f"{path}: checkpoint format {version} is newer than this program's {FORMAT}: update it"
        )
    if not whole:
        raise UserError(f"{path}: a torch file, but not a checkpoint of this project")
    try:
        from_dict(payload["config"])
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return {**payload, "progress": progress}


def tied_names(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Each name with the first name of the same tensor, or its own if the tensor is not shared."""
    first: dict[tuple[int, torch.Size], str] = {}  # by place in memory
    return {
        name: first.setdefault((tensor.data_ptr(), tensor.shape), name)
        for name, tensor in tensors.items()
    }


# ---------------------------------------------------------------------------------------- of a run


# Errors that say nothing of the content: the checkpoint may be whole.
_UNREAD = (errno.EACCES, errno.EPERM, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def _require_read(path: Path, error: Exception) -> None:
    if is_out_of_memory(error) or getattr(error, "errno", None) in _UNREAD:
        why = f"{one_line(error)}; it may be whole: allow that, or give more memory"
        raise UserError(f"{path}: cannot be read: {why}") from error


def _read_torch(path: Path) -> Any:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                    raise zipfile.BadZipFile("compressed, which torch does not write")  # a bomb?
        payload = torch.load(path, map_location="cpu", weights_only=True)
        # torch writes checksums, and does not check them.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"wrong checksum of {damaged.partition('/')[2]}")
    except FileNotFoundError:
        raise UserError(f"{path}: no such checkpoint") from None
    except Exception as error:  # torch raises many kinds: zip, pickle, EOF, runtime
        _require_read(path, error)
        beside = Run(path.parent.parent).by_age()
        others = [str(each) for each in beside if each.name != path.name and read_progress(each)]
        raise DamagedError(
            f"{path}: not a whole checkpoint ({one_line(error, 120)}); another one beside it: "
            f"{others[-1] if others else 'none'}"
        ) from error
    return payload


# ----------------------------------------------------------------------------------------- exported


def write_safetensors(
    model: nn.Module,
    config: Config,
    tokenizer: BaseTokenizer,
    progress: Mapping[str, int],
    folder: Path,
) -> None:
    """Write an exported folder's content into `folder`; `progress` are the run's epoch and step."""
    state = model.state_dict()
    first = tied_names(state)
    tensors = {name: state[name].contiguous() for name in first if first[name] == name}
    about = {
        "version": FORMAT,
        "tied": {name: first[name] for name in first if first[name] != name},
        "crc32": checksum(tensors),
        "fingerprint": tokenizer.fingerprint(),
        "progress": dict(progress),
    }
    save_tensors(tensors, folder / WEIGHTS, about=json.dumps(about))
    write_config_json(config, folder / CONFIG)
    tokenizer.save(folder / TOKENIZER)


def save_tensors(tensors: dict[str, Tensor], path: Path, **metadata: str) -> None:
    """Write as safetensors. Raises OSError where the file cannot be written."""
    # Not by save_file, whose files only their owner may read.
    path.write_bytes(save(tensors, metadata={"format": "pt", **metadata}))


def _read_safetensors(path: Path) -> dict[str, Any]:
    """Read what `write_safetensors` wrote, as the content of a checkpoint."""
    again = f"export it again, or remove {path.parent} if it was made from a Marian model"
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["about"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if not about.keys() <= {"version", "tied", "crc32", "fingerprint", "progress"}:
            raise KeyError
        crc = checksum(tensors)
        whole = about.get("crc32", crc) == crc  # older exports have none
        tensors |= {name: tensors[other] for name, other in about["tied"].items()}
        payload = {
            "format": {"version": int(about["version"])},
            "model": tensors,
            "tokenizer": {"fingerprint": str(about["fingerprint"])},
            "progress": dict(about["progress"]),
        }
    except (OSError, SafetensorError) as error:
        _require_read(path, error)
        reason = f"not a whole safetensors file ({str(error)[:120]})"
        raise UserError(f"{path}: {reason}; {again}") from error
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise UserError(f"{path}: not a file that this project exported") from None
    if not whole:
        raise UserError(f"{path}: the weights are damaged (wrong checksum); {again}")
    return payload | {"config": to_dict(read_config_json(path.parent / CONFIG))}


def checksum(tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of names, types, shapes and values."""
    crc = 0
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc
