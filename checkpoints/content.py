"""What a checkpoint holds, and its two forms: a `.pt` file of a run, and an exported folder.

A checkpoint is a dict of tensors and plain values: nothing in it is ever executed. An exported
folder has `model.safetensors`, `config.json` and `tokenizer/`, and is used without its run. There a
tensor that the model has under several names is stored once; the other names are in the file's
metadata.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from checkpoints.run import FORMAT, WEIGHTS, DamagedError, Run, read_progress
from configs.load import read_config_json, write_config_json
from configs.schema import Config
from configs.serialize import from_dict, to_dict
from tokenizer.base import BaseTokenizer
from utils.errors import UserError
from utils.files import atomic_path, write_errors

CONFIG, TOKENIZER = "config.json", "tokenizer"


def checkpoint_config(payload: Mapping[str, Any]) -> Config:
    """The resolved configuration inside a checkpoint; data, never executed."""
    return from_dict(payload["config"])


def write_checkpoint(path: Path, payload: Any) -> None:
    """Write a whole checkpoint, or none.

    Where the folder has gone it is made again, unless the run has gone too.
    """
    with write_errors(path):
        path.parent.mkdir(exist_ok=True)
        with atomic_path(path) as aside, aside.open("wb") as file:
            try:
                torch.save(payload, file)
            except RuntimeError as error:  # of a full disk
                raise OSError(str(error).splitlines()[0][:200]) from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint of either form, on the CPU.

    Raises UserError for a file that is missing, damaged, of another kind, or of a newer format.
    """
    payload = _read_safetensors(path) if path.name == WEIGHTS else _read_torch(path)
    about = payload.get("format") if isinstance(payload, dict) else None
    version = about.get("version") if isinstance(about, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise UserError(
            f"{path}: checkpoint format {version} is newer than this program's {FORMAT}: update it"
        )
    if not isinstance(version, int) or not _has_parts(payload):
        raise UserError(f"{path}: a torch file, but not a checkpoint of this project")
    return payload


def _has_parts(payload: Mapping[str, Any]) -> bool:
    """Whether a checkpoint has what its readers count on."""
    payload = {"progress": {}, **payload}
    parts: list[Any] = [payload.get(n) for n in ("config", "model", "tokenizer", "progress")]
    if not all(isinstance(part, dict) for part in parts):
        return False
    _, model, tokenizer, progress = parts
    return (
        all(isinstance(name, str) and isinstance(value, Tensor) for name, value in model.items())
        and isinstance(tokenizer.get("fingerprint"), str)
        and all(isinstance(progress.get(name, 0), int) for name in ("epoch", "step"))
    )


# ---------------------------------------------------------------------------------------- of a run


def _read_torch(path: Path) -> Any:
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True)
        # torch writes checksums, and does not look at them.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"wrong checksum of {damaged.partition('/')[2]}")
    except FileNotFoundError:
        raise UserError(f"{path}: no such checkpoint") from None
    except Exception as error:  # torch raises many kinds: zip, pickle, EOF, runtime
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if reason.startswith("Weights only load failed"):  # with long advice for another reader
            reason = "it is another kind of file, or holds more than tensors and plain values"
        raise DamagedError(
            f"{path}: not a whole checkpoint ({reason[:120]}); {_instead_of(path)}"
        ) from error
    return payload


def _instead_of(damaged: Path) -> str:
    """What to take for a damaged checkpoint: the one before it, or else the first one after it."""
    files = Run(damaged.parent.parent).by_age()
    files = [path for path in files if path.name == damaged.name or read_progress(path)]
    place = next((i for i, path in enumerate(files) if path.name == damaged.name), len(files))
    if place > 0:
        return f"the one before it is {files[place - 1]}"
    if place + 1 < len(files):
        return f"the one after it is {files[place + 1]}"
    return f"there is no other one in {damaged.parent}"


# ----------------------------------------------------------------------------------------- exported


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to write in, which becomes `path` when all is written; else nothing is left of it.

    Raises UserError where `path` is there already, unless it is an empty folder.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"--output_dir {path} is not empty: give a new folder")
    with write_errors(path), atomic_path(path) as folder:
        folder.mkdir(parents=True)
        yield folder


def write_safetensors(
    model: nn.Module,
    config: Config,
    tokenizer: BaseTokenizer,
    progress: Mapping[str, int],
    folder: Path,
) -> None:
    """Write an exported folder's content.

    Args:
        model, config, tokenizer: of the run.
        progress: its epoch and step.
        folder: to write in; it is there.
    """
    tensors: dict[str, Tensor] = {}
    first: dict[tuple[int, tuple[int, ...]], str] = {}  # by place in memory
    tied: dict[str, str] = {}
    for name, tensor in model.state_dict().items():
        original = first.setdefault((tensor.data_ptr(), tuple(tensor.shape)), name)
        if original == name:
            tensors[name] = tensor.contiguous()
        else:
            tied[name] = original
    about = {
        "version": FORMAT,
        "tied": tied,
        "crc32": _checksum(tensors),
        "fingerprint": tokenizer.fingerprint(),
        "progress": dict(progress),
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt", "about": json.dumps(about)})
    write_config_json(config, folder / CONFIG)
    tokenizer.save(folder / TOKENIZER)


def _read_safetensors(path: Path) -> dict[str, Any]:
    """What `write_safetensors` wrote, as the content of a checkpoint."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["about"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if not about.keys() <= {"version", "tied", "crc32", "fingerprint", "progress"}:
            raise KeyError
        # Older exports have no checksum.
        whole = "crc32" not in about or about["crc32"] == _checksum(tensors)
        tensors |= {name: tensors[other] for name, other in about["tied"].items()}
        payload = {
            "format": {"version": int(about["version"])},
            "model": tensors,
            "tokenizer": {"fingerprint": str(about["fingerprint"])},
            "progress": dict(about["progress"]),
        }
    except (OSError, SafetensorError) as error:
        reason = str(error)[:120]
        raise UserError(
            f"{path}: not a whole safetensors file ({reason}); export it again"
        ) from error
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise UserError(f"{path}: not a file that this project exported") from None
    if not whole:
        raise UserError(f"{path}: the weights are damaged (wrong checksum); export it again")
    return payload | {"config": to_dict(read_config_json(path.parent / CONFIG))}


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of names, types, shapes and values."""
    crc = 0
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc
